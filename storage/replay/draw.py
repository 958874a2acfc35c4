"""A draw: the steps of some batches, as a sampler passes them to the reader.

Slices are known by their position in time (`timeline`), because a ring that has wrapped holds consecutive steps in rows that
are not consecutive:

    slices of 3      start = positions p, q            p p+1 p+2 | q q+1 q+2
    short ones       lengths = 3, 2                    p p+1 p+2 | q q+1
    padded           lengths = 3, 2, padded            p p+1 p+2 | q q+1 q+1      (the last step repeated, masked)

For the learner a slice ends with its last step, even if the episode continues (`flags_of`):

    slice [s2 s3 s4] of an episode that goes on        truncated  F F T       done = done | truncated
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from ...errors import UsageError
from .order import OrderPlace
from .timeline import Key, Timeline


@dataclass
class Slices:
    """Pieces of ``length`` steps (or ``lengths``, where some are shorter) from each position ``start``; int64 ``[n]``.

    ``truncated_key``: the flag to set on the last step of each, and the ``done`` beside it; ``init_key``: that of the first.
    """

    timeline: Timeline
    start: torch.Tensor
    length: int
    lengths: torch.Tensor | None = None
    padded: bool = False
    truncated_key: Key | None = ("next", "truncated")
    init_key: Key | None = ("is_init",)

    @cached_property
    def positions(self) -> torch.Tensor:
        """The positions of all steps, in order; int64 ``[steps]``."""
        offsets = torch.arange(self.length, device="cpu")
        if self.lengths is None:
            return (self.start[:, None] + offsets).reshape(-1)
        if self.padded:
            return (self.start[:, None] + torch.minimum(offsets, self.lengths[:, None] - 1)).reshape(-1)
        return (self.start[:, None] + offsets)[offsets < self.lengths[:, None]]

    @property
    def whole(self) -> bool:
        """Whether rows of all slices can be read as windows of one length."""
        return self.lengths is None and self.timeline.identity

    def beginnings(self) -> torch.Tensor:
        """Return the place in ``positions`` of the first step of every slice, int64 ``[n]``."""
        if self.lengths is None or self.padded:
            return torch.arange(len(self.start), device="cpu") * self.length
        return self.lengths.cumsum(0) - self.lengths

    def ends(self) -> torch.Tensor:
        """Return the place in ``positions`` of the last step of every slice, int64 ``[n]``."""
        return self.beginnings() + (self.length if self.lengths is None else self.lengths) - 1

    def mask(self) -> torch.Tensor:
        """True for steps, False for padding; bool ``[steps]``."""
        lengths = torch.full_like(self.start, self.length) if self.lengths is None else self.lengths
        return (torch.arange(self.length, device="cpu") < lengths[:, None]).reshape(-1)

    def steps_of(self, counts: Sequence[int]) -> list[int]:
        """Return the steps of consecutive groups of this many slices."""
        if self.lengths is None or self.padded:
            return [count * self.length for count in counts]
        return [int(part.sum()) for part in self.lengths.split_with_sizes(list(counts))]

    def split(self, counts: Sequence[int]) -> list[Slices]:
        starts, none = self.start.split_with_sizes(list(counts)), [None] * len(counts)
        lengths = none if self.lengths is None else self.lengths.split_with_sizes(list(counts))
        keys = self.truncated_key, self.init_key
        return [
            Slices(self.timeline, *part, self.padded, *keys)
            for part in zip(starts, [self.length] * len(counts), lengths)
        ]


@dataclass
class Draw:
    """The steps of one batch or of several: ``rows`` of the storage, int64 ``[steps]``.

    ``sizes``: the steps of each batch; ``places``: the place in the order after each. ``info``: the sampler's values for each
    step, by key. ``slices`` are those that the steps form, ``counts`` their number in each batch.
    """

    rows: torch.Tensor
    sizes: list[int]
    places: list[OrderPlace]
    info: dict[Key, torch.Tensor] = field(default_factory=dict)
    slices: Slices | None = None
    counts: list[int] = field(default_factory=list)

    def one(self, part: int) -> Draw:
        """Return the draw of one of the batches."""
        low, size = sum(self.sizes[:part]), self.sizes[part]
        info = {key: value[low : low + size] for key, value in self.info.items()}
        slices = None if self.slices is None else self.slices.split(self.counts)[part]
        counts = self.counts[part : part + 1]
        return Draw(self.rows[low : low + size], [size], self.places[part : part + 1], info, slices, counts)


def flag_keys(slices: Slices) -> list[Key]:
    """Return the keys of the stored flags that slices change."""
    truncated, init = slices.truncated_key, slices.init_key
    keys = [] if truncated is None else [(*truncated[:-1], name) for name in (truncated[-1], "done", "terminated")]
    return keys if init is None else [*keys, init]


def flags_of(
    slices: Slices, column: Callable[[Key], torch.Tensor | None], tail: tuple[int, ...] = ()
) -> dict[Key, torch.Tensor]:
    """``truncated``, ``done`` and ``terminated`` (bool ``[steps, *tail, 1]``, or like the data's), ``is_init``, and the mask.

    Tensors that ``column`` gives are written to. ``is_init`` is set only where the data have it.
    """
    flags: dict[Key, torch.Tensor] = {}
    for key in flag_keys(slices):
        flag = column(key)
        if key == slices.init_key:
            if flag is not None:
                flags[key] = flag.index_fill_(0, slices.beginnings().to(flag.device), True)
            continue
        if flag is None:
            flag = torch.zeros(len(slices.positions), *tail, 1, dtype=torch.bool, device="cpu")
        if key[-1] != "terminated":
            flag.index_fill_(0, slices.ends().to(flag.device), True)
        flags[key] = flag
    if slices.padded:
        flags["collector", "mask"] = over_tail(slices.mask(), tail)
    return flags


def mask_error() -> UsageError:
    """Return the error for records whose leaf ``collector`` the mask of padding would replace."""
    message = "the records have a leaf collector, which the mask of padding, collector/mask, would replace"
    return UsageError(message, hint="rename the leaf, or leave it out (keys=)")


def over_tail(value: torch.Tensor, tail: tuple[int, ...]) -> torch.Tensor:
    """A value for each record, ``[n, *shape]``, for all steps of records with batch dimensions: ``[n, *tail, *shape]``."""
    if not tail:
        return value
    size, shape = len(value), value.shape[1:]
    return value.view(size, *[1] * len(tail), *shape).expand(size, *tail, *shape).contiguous()
