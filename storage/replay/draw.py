"""Draws: the steps of a batch, as a sampler passes them to the reader.

A draw consists of pieces of consecutive steps. Single steps are identified by their storage row. Longer pieces are identified
by their position in time (`timeline`), because a ring that has wrapped holds consecutive steps in rows that are not
consecutive:

    transitions      start = rows                      length 1
    slices of 3      start = positions p, q            p p+1 p+2 | q q+1 q+2
    short slices     lengths = 3, 2                    p p+1 p+2 | q q+1
    padded           lengths = 3, 2, padded            p p+1 p+2 | q q+1 q+1      (the last step repeated, masked)

`mark_slices` sets the flags of slices: for the learner a slice ends with its last step, even if the episode continues.

slice [s2 s3 s4] of an episode that goes on        truncated  F F T       done = done | truncated
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...errors import UsageError
from .timeline import Key, Timeline

#: Info of this package's slices and windows that TorchRL does not have: a leaf of that name is the user's.
ADDED = frozenset({"anchor_index", "learning_mask", "sequence_id", "step_in_sequence", "validity_mask"})


@dataclass(frozen=True)
class SliceMarks:
    """The keys of the flags of a slice: ``truncated`` on its last step (and done), ``init`` on its first; None: no flag."""

    truncated: Key | None = ("next", "truncated")
    init: Key | None = ("is_init",)


@dataclass
class Draw:
    """Pieces of ``length`` steps from each of ``start`` (int64 ``[n]``).

    ``lengths`` (int64 ``[n]``) is set if pieces may be shorter. With a ``timeline``, starts are positions in time, otherwise
    storage rows. ``info``: the sampler's values for each drawn step (importance weights); ``notes``: its values for the whole
    draw. ``overlapping``: single steps that follow each other, so that the same rows are read several times. ``goals``
    (int64): the rows from which goals are taken, chosen by a `pipeline.Relabeling`.
    """

    start: torch.Tensor
    length: int = 1
    lengths: torch.Tensor | None = None
    timeline: Timeline | None = None
    padded: bool = False
    marks: SliceMarks | None = None
    info: dict[Any, torch.Tensor] = field(default_factory=dict)
    goals: torch.Tensor | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    overlapping: bool = False

    @classmethod
    def join(cls, draws: Sequence[Draw]) -> Draw:
        """Several draws of one sampler as one."""
        first = draws[0]
        start = torch.cat([draw.start for draw in draws])
        lengths = None
        if any(draw.lengths is not None for draw in draws):
            lengths = torch.cat([draw.each_length() for draw in draws])
        info = {name: torch.cat([draw.info[name] for draw in draws]) for name in first.info}
        marks, overlapping = first.marks, first.overlapping
        return cls(start, first.length, lengths, first.timeline, first.padded, marks, info, overlapping=overlapping)

    @property
    def steps(self) -> int:
        """The number of drawn steps, including padding."""
        if self.lengths is None or self.padded:
            return len(self.start) * self.length
        return int(self.lengths.sum())

    def each_length(self) -> torch.Tensor:
        """The length of every piece, int64 ``[n]``."""
        return torch.full((len(self.start),), self.length, device="cpu") if self.lengths is None else self.lengths

    def indices(self) -> torch.Tensor:
        """All drawn steps in order: positions with a timeline, otherwise rows; int64 ``[steps]``."""
        if self.length == 1:
            return self.start
        offsets = torch.arange(self.length, device="cpu")
        if self.lengths is None:
            return (self.start[:, None] + offsets).reshape(-1)
        if self.padded:
            return (self.start[:, None] + torch.minimum(offsets, self.lengths[:, None] - 1)).reshape(-1)
        return (self.start[:, None] + offsets)[offsets < self.lengths[:, None]]

    def rows(self) -> torch.Tensor:
        """The storage rows of all steps drawn, in order; int64 ``[steps]``."""
        return self.indices() if self.timeline is None else self.timeline.rows(self.indices())

    def beginnings(self) -> torch.Tensor:
        """The place in ``indices`` of the first step of every piece, int64 ``[n]``."""
        if self.lengths is None or self.padded:
            return torch.arange(len(self.start), device="cpu") * self.length
        return self.lengths.cumsum(0) - self.lengths

    def ends(self) -> torch.Tensor:
        """The place in ``indices`` of the last step of every piece, int64 ``[n]``."""
        return self.beginnings() + (self.length if self.lengths is None else self.lengths) - 1

    def mask(self) -> torch.Tensor:
        """True where ``indices`` holds a step, False where it holds padding; bool ``[steps]``."""
        if self.lengths is None or not self.padded:
            return torch.ones(self.steps, dtype=torch.bool, device="cpu")
        return (torch.arange(self.length, device="cpu") < self.lengths[:, None]).reshape(-1)


def check_generator(generator: torch.Generator | None) -> None:
    """Raise UsageError for a generator of another device than the CPU."""
    if generator is not None and generator.device.type != "cpu":
        message = f"the generator is on {generator.device}, and rows are drawn on the CPU"
        raise UsageError(message, hint="give torch.Generator() without a device")


def draw_seed(generator: torch.Generator | None = None) -> int:
    """A seed from a generator; without one, from torch's global generator."""
    check_generator(generator)
    return int(torch.randint(1 << 62, (), generator=generator, device="cpu"))


_ENDS = ("done", "terminated")


def expand_to_records(value: torch.Tensor, tail: tuple[int, ...]) -> torch.Tensor:
    """A value for each record, ``[n, *shape]``, for all steps of records with batch dimensions: ``[n, *tail, *shape]``."""
    if not tail:
        return value
    size, shape = len(value), value.shape[1:]
    return value.view(size, *[1] * len(tail), *shape).expand(size, *tail, *shape).contiguous()


def mark_slices(draw: Draw, columns: dict[str, torch.Tensor], tail: tuple[int, ...] = ()) -> None:
    """Put the flags into columns (by path, ``[steps, ...]``), whose memory must not be shared."""
    flags = slice_flags(draw, lambda key: columns.get("/".join(key)), tail)
    columns.update({"/".join(key): value for key, value in flags.items()})


def check_replaces_none(draw: Draw, is_leaf: Callable[[str], bool]) -> None:
    """Raise UsageError if the info of a draw would replace a leaf of the records (`ADDED`, or one under the mask's key)."""
    for name in (*ADDED.intersection(draw.info), *(["collector"] if draw.padded else [])):
        if is_leaf(name):
            what = "mask of padding, collector/mask" if name == "collector" else name
            message = f"the records have a leaf {name}, which the {what} of these batches would replace"
            raise UsageError(message, hint="rename the leaf, or leave it out (keys=)")


def flag_keys(draw: Draw) -> list[Key]:
    """The keys that `slice_flags` may return for a draw."""
    marks = draw.marks
    if marks is None:
        return []
    keys = [] if marks.truncated is None else [(*marks.truncated[:-1], name) for name in (marks.truncated[-1], *_ENDS)]
    keys += [] if marks.init is None else [marks.init]
    return [*keys, ("collector", "mask")] if draw.padded else keys


def slice_flags(
    draw: Draw, column: Callable[[Key], torch.Tensor | None], tail: tuple[int, ...] = ()
) -> dict[Key, torch.Tensor]:
    """``truncated``, ``done`` and ``terminated`` (bool ``[steps, 1]``, or like the data's), ``is_init`` and the mask.

    Tensors that ``column`` gives are written to. ``tail`` are the batch dimensions of a record.
    """
    marks = draw.marks
    flags: dict[Key, torch.Tensor] = {}
    if marks is None:
        return flags
    if marks.truncated is not None:
        ends = draw.ends()
        above = marks.truncated[:-1]
        for name in (marks.truncated[-1], *_ENDS):
            key = (*above, name)
            flag = column(key)
            if flag is None:
                flag = torch.zeros(draw.steps, *tail, 1, dtype=torch.bool, device="cpu")
            if name != "terminated":
                flag.index_fill_(0, ends.to(flag.device), True)
            flags[key] = flag
    if marks.init is not None:
        flag = column(marks.init)
        if flag is not None:  # only if the data have this flag
            flags[marks.init] = flag.index_fill_(0, draw.beginnings().to(flag.device), True)
    if draw.padded:
        flags["collector", "mask"] = expand_to_records(draw.mask(), tail)
    return flags
