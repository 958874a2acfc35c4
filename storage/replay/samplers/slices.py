"""Slices: some consecutive steps of one episode.

    episode of 5, slices of 3:    0 1 2 3 4         possible starts 0, 1, 2
                                  [1 2 3]           the last step is marked truncated (and done)

An episode is chosen, then a start in it (``uniform_over="trajectories"``, as TorchRL does: the steps of short episodes
come more often), or every possible start is equally likely (``"transitions"``). The candidates are computed once for each
state of the storage's contents, so the cost of a draw does not depend on the number of episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, Literal

import numpy as np
import torch

from ....errors import SamplingError, UsageError
from ...keywords import goes_with, shows_arguments_of, whole_number
from ...row_index import lookup, runs_of
from ..draw import Draw, Slices
from ..order import Pass, Turn
from ..storages.storage import Storage, require_records
from ..timeline import Edges, Timeline, as_key, entry_key
from .sampler import Sampler, SamplerWithoutReplacement

UniformOver = Literal["trajectories", "transitions"]
Span = bool | int | Sequence[bool | int]
KeyLike = str | tuple[str, ...]


class SliceSampler(Sampler):
    """Slices with replacement. Give ``slice_len`` or ``num_slices``; the other follows from the batch size.

    - ``end_key``, ``end_keys`` or ``traj_key``: where the data say that episodes end (see `Edges`); by default the usual keys,
      or a dataset's own episode table. ``ends`` or ``trajectories``: tensors that say it for the rows there are.
    - ``strict_length``: only episodes that are long enough are drawn from. If False, shorter episodes give shorter slices,
      and batches are shorter, or with ``pad_output`` filled up with the last step (``("collector", "mask")`` is then True for
      real steps, if there are episodes shorter than a slice).
    - ``span``: slices may begin before (left) or end after (right) their episode, and are cut there: True for as far as
      one step remains, a number for at most this many steps; one value, or (left, right).
    - ``truncated_key``, ``init_key``: the flags of a slice's last and first step (``init_key`` where the data have it); the
      ``done`` beside the former is set as well. None: no flag.
    - ``uniform_over``: see above.

    - ``replacement=False``: a `SliceSamplerWithoutReplacement` is made, with ``drop_last`` and ``shuffle``.

    ``cache_values`` and ``compile`` are taken for compatibility, without effect: edges are always kept until the storage is
    written, and a draw takes microseconds.
    """

    #: Whether an episode that is short by at most the right span is long enough.
    _cut_short = False

    def __init__(
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        end_key: KeyLike | None = None,
        end_keys: Sequence[KeyLike] | None = None,
        traj_key: KeyLike | None = None,
        ends: torch.Tensor | None = None,
        trajectories: torch.Tensor | None = None,
        cache_values: bool = False,
        truncated_key: KeyLike | None = ("next", "truncated"),
        init_key: KeyLike | None = "is_init",
        strict_length: bool = True,
        pad_output: bool = False,
        compile: bool | dict[str, Any] = False,
        span: Span = False,
        uniform_over: UniformOver = "trajectories",
        replacement: bool = True,
        drop_last: bool = False,
        shuffle: bool = True,
    ) -> None:
        if replacement:
            goes_with("replacement=False", drop_last=drop_last, shuffle=not shuffle)
        else:
            self.__class__ = SliceSamplerWithoutReplacement
            SamplerWithoutReplacement.__init__(self, drop_last, shuffle)  # type: ignore[arg-type]
        self.slice_len, self.num_slices = slice_len, num_slices
        self.strict_length, self.pad_output = strict_length, pad_output
        self.uniform_over, self.span = uniform_over, span
        self.end_key, self.end_keys, self.traj_key = end_key, end_keys, traj_key
        self.ends, self.trajectories = _copied(ends), _copied(trajectories)
        self.truncated_key, self.init_key = truncated_key, init_key
        self._settings()

    #: What follows from the attributes: the edges of episodes and both spans; the episodes to draw from.
    _known: tuple[Edges, tuple[bool | int, bool | int]] | None = None
    _pool: EpisodePool | None = None

    def _changed(self) -> None:
        super()._changed()
        self._known = self._pool = None

    def _settings(self) -> tuple[Edges, tuple[bool | int, bool | int]]:
        """The edges of episodes and both spans, as the attributes say now. Raises UsageError for those that contradict."""
        if self._known is not None:
            return self._known
        if (self.slice_len is None) == (self.num_slices is None):
            raise UsageError("give either slice_len or num_slices")
        for name in ("slice_len", "num_slices"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), 1)
        by_key = self.end_key is not None or bool(self.end_keys) or self.traj_key is not None
        both = self.end_key is not None and self.end_keys
        if by_key + (self.ends is not None) + (self.trajectories is not None) > 1 or both:
            raise UsageError("end_key, end_keys and traj_key, ends, and trajectories are exclusive: give one of them")
        if self.pad_output and self.strict_length:
            raise UsageError("pad_output=True is incompatible with strict_length=True: it fills up short slices")
        if self.uniform_over not in ("trajectories", "transitions"):
            raise UsageError(f"uniform_over is {self.uniform_over!r}, not 'trajectories' or 'transitions'")
        span = self._spans()
        if any(span) and self.uniform_over == "transitions":
            raise UsageError("span goes with uniform_over='trajectories'")
        ends = self.end_keys or (() if self.end_key is None else (self.end_key,))
        traj_key = None if self.traj_key is None else as_key(self.traj_key)
        self._known = Edges(traj_key, tuple(map(as_key, ends)), self.ends, self.trajectories), span
        return self._known

    def _spans(self) -> tuple[bool | int, bool | int]:
        return _both_sides(self.span)

    # -- drawing -----------------------------------------------------------------------------------------------------

    def draw(self, storage: Storage, batch_size: int, turn: Turn) -> Draw:
        count, length = self.shape(batch_size)
        pool = self.pool(storage, length)
        if self.uniform_over == "transitions":
            place = torch.from_numpy(turn.below(pool.total, count))
            chosen = runs_of(pool.before, place)
            start, lengths = lookup(pool.first, chosen) + place - lookup(pool.before, chosen), pool.cut(chosen)
        else:
            chosen = self._choose(pool, count, turn)
            start, lengths = pool.draw(chosen, turn.floats(count)[: len(chosen)])  # the last batch may be short
        return self._finish(pool, start, lengths, self._counts(turn, count), turn)

    def _choose(self, pool: EpisodePool, count: int, turn: Turn) -> torch.Tensor:
        """An episode of the pool for every slice."""
        return torch.from_numpy(turn.below(len(pool.first), count))

    def _counts(self, turn: Turn, count: int) -> list[int]:
        """The slices of each batch."""
        return [count] * turn.count

    def _finish(
        self, pool: EpisodePool, start: torch.Tensor, lengths: torch.Tensor | None, counts: list[int], turn: Turn
    ) -> Draw:
        keys = (None if key is None else as_key(key) for key in (self.truncated_key, self.init_key))
        slices = Slices(pool.timeline, start, pool.length, lengths, self.pad_output and pool.short, *keys)
        rows = pool.timeline.rows(slices.positions)
        return Draw(rows, slices.steps_of(counts), turn.places, slices=slices, counts=counts)

    def pool(self, storage: Storage, length: int) -> EpisodePool:
        """Return the episodes that slices of a length may come from, kept until the storage or an attribute changes."""
        require_records(storage)
        edges, span = self._settings()
        timeline = storage.timeline(edges)
        pool = self._pool
        if pool is None or pool.length != length or pool.timeline is not timeline:
            pool = self._pool = EpisodePool(timeline, length, self.strict_length, span, self._cut_short)
            if self.traj_key is None and timeline.traj_key is not None:  # as TorchRL notes what it found
                self.__dict__["traj_key"] = entry_key(timeline.traj_key)
        return pool

    def shape(self, batch_size: int) -> tuple[int, int]:
        """``(slices, their length)``. Raises SamplingError when the batch cannot be divided."""
        self._settings()
        known = self.slice_len or self.num_slices
        assert known is not None
        if batch_size % known:
            name = "slice_len" if self.slice_len else "num_slices"
            message = f"batch_size {batch_size} cannot be divided by {name} {known}"
            raise SamplingError(message, hint=f"for example {known * max(1, round(batch_size / known))}")
        return (batch_size // known, known) if self.slice_len else (known, batch_size // known)

    def _empty(self) -> None:
        self._pool = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None, "_known": None}

    def __repr__(self) -> str:
        size = f"slice_len={self.slice_len}" if self.slice_len else f"num_slices={self.num_slices}"
        return f"{type(self).__name__}({size}, strict_length={self.strict_length}, uniform_over={self.uniform_over!r})"


class SliceSamplerWithoutReplacement(SliceSampler, SamplerWithoutReplacement):
    """One slice of every episode a pass; the last batch is short, or with ``drop_last`` left out.

    ``slices``: the arguments of `SliceSampler`.
    """

    endless = False

    @shows_arguments_of(SliceSampler.__init__)
    def __init__(self, *, drop_last: bool = False, shuffle: bool = True, **slices: Any) -> None:
        SamplerWithoutReplacement.__init__(self, drop_last, shuffle)
        SliceSampler.__init__(self, **slices)

    def _settings(self) -> tuple[Edges, tuple[bool | int, bool | int]]:
        if self.uniform_over == "transitions":
            raise UsageError("without replacement every episode gives one slice: uniform_over must be 'trajectories'")
        return super()._settings()

    def one_pass(self, storage: Storage, batch_size: int) -> Pass:
        count, length = self.shape(batch_size)
        return Pass(len(self.pool(storage, length).first), count, bool(self.drop_last))

    def _choose(self, pool: EpisodePool, count: int, turn: Turn) -> torch.Tensor:
        one_pass = Pass(len(pool.first), count, bool(self.drop_last))
        return torch.from_numpy(turn.take(one_pass, self.permutation if self.shuffle else None))

    def _counts(self, turn: Turn, count: int) -> list[int]:
        return turn.sizes

    state_dict, load_state_dict = SamplerWithoutReplacement.state_dict, SamplerWithoutReplacement.load_state_dict


class EpisodePool:
    """The episodes that slices of one length may come from.

    ``first`` position and ``lengths`` of those episodes, the number of ``places`` a slice can begin in each, and how many
    places lie ``before`` it; all int64 ``[n]``. ``lead`` is how far a slice may begin ahead of its episode. ``short`` says
    whether a slice may have fewer steps than ``length``. With ``cut_short`` an episode is long enough for a ``strict`` pool if
    no more steps are missing than the right span allows.
    """

    def __init__(
        self, timeline: Timeline, length: int, strict: bool, span: tuple[bool | int, bool | int], cut_short: bool
    ) -> None:
        self.timeline, self.length = timeline, length
        self.lengths, self.first = timeline.lengths, timeline.starts[:-1]
        self.strict = strict and not any(span)
        self.lead, lag = (_reach(side, length) for side in span)
        if strict:
            fits = self.lengths >= length - (lag if cut_short else 0)
            if not bool(fits.any()):
                longest = int(self.lengths.max()) if len(self.lengths) else 0
                message = f"no episode has {length} steps; the longest has {longest}"
                raise SamplingError(message, hint=f"slice_len={longest}, say, or strict_length=False for what there is")
            self.lengths, self.first = self.lengths[fits], self.first[fits]
        self.short = any(span) or (not strict and bool((self.lengths < length).any()))
        # Between the first and the last start; a slice that leaves its episode keeps at least one step of it.
        last = self.lengths - length if strict else (self.lengths - length).clamp(min=0)
        last = torch.minimum(last + lag, self.lengths - 1)
        self.places = last + 1 + self.lead
        ends = self.places.cumsum(0)
        self.before, self.total = ends - self.places, int(ends[-1])

    def draw(self, chosen: torch.Tensor, share: np.ndarray) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A start in each of the chosen episodes (``share`` of its places before it), and the lengths if some are short."""
        offset = torch.from_numpy((share * lookup(self.places, chosen).numpy()).astype(np.int64))
        first = lookup(self.first, chosen)
        if not self.lead:
            return first + offset, self.cut(chosen, offset)
        offset -= self.lead
        begin = offset.clamp(min=0)
        return first + begin, torch.minimum(offset + self.length, self.lengths[chosen]) - begin

    def cut(self, chosen: torch.Tensor, offset: torch.Tensor | int = 0) -> torch.Tensor | None:
        """Return the lengths of the slices; None if all have the full length."""
        if self.strict:
            return None
        lengths = (self.lengths[chosen] - offset).clamp(max=self.length)
        return lengths if bool((lengths < self.length).any()) else None


def _copied(values: Any) -> torch.Tensor | None:
    """Edges in memory of their own: they are computed again after a write."""
    if values is None:
        return None
    return values.clone() if isinstance(values, torch.Tensor) else torch.as_tensor(np.array(values))


def _both_sides(span: Span) -> tuple[bool | int, bool | int]:
    """``(left, right)``. Raises UsageError for anything but flags and numbers of steps."""
    sides = tuple(span) if isinstance(span, Sequence) else (span, span)
    if len(sides) != 2 or not all(isinstance(side, (bool, np.bool_, Integral)) and side >= 0 for side in sides):
        raise UsageError(f"span is a flag, a number of steps, or two of them (left, right), not {span!r}")
    left, right = (bool(side) if isinstance(side, (bool, np.bool_)) else int(side) for side in sides)
    return left, right


def _reach(span: bool | int, length: int) -> int:
    """The number of steps of a slice that may lie outside its episode."""
    if span is True:
        return length - 1
    if span >= length:
        raise UsageError(f"a span of {span} leaves nothing of a slice of {length}")
    return int(span)
