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
from typing_extensions import TypedDict, Unpack

from ....errors import SamplingError, UsageError
from ...keywords import whole_number, with_options
from ...row_index import runs_of
from ..draw import Draw, SliceMarks
from ..storages.storage import Storage, require_records
from ..timeline import Edges, Timeline, as_key
from .sampler import Sampler
from .uniform import SamplerWithoutReplacement

UniformOver = Literal["trajectories", "transitions"]
Span = bool | int | Sequence[bool | int]
KeyLike = str | tuple[str, ...]


class SliceOptions(TypedDict, total=False):
    """The arguments of `SliceSampler`, for the samplers that pass them on; see `..arguments`."""

    num_slices: int | None
    slice_len: int | None
    end_key: KeyLike | None
    end_keys: Sequence[KeyLike] | None
    traj_key: KeyLike | None
    ends: torch.Tensor | None
    trajectories: torch.Tensor | None
    cache_values: bool
    truncated_key: KeyLike | None
    init_key: KeyLike | None
    strict_length: bool
    pad_output: bool
    compile: bool | dict[str, Any]
    span: Span
    use_gpu: Any
    uniform_over: UniformOver
    stride: int
    burn_in: int
    fragmented: bool
    step_key: KeyLike
    trajectory_key: KeyLike | None


class SliceSampler(Sampler):
    """Slices with replacement. Give ``slice_len`` or ``num_slices``; the other follows from the batch size.

    - ``end_key``, ``end_keys`` or ``traj_key`` (also ``trajectory_key``): where the data say that episodes end (see `Edges`);
      by default the usual keys, or a dataset's own episode table. ``ends`` or ``trajectories``: tensors that say it for the
      rows there are.
    - ``strict_length``: only episodes that are long enough are drawn from. If False, shorter episodes give shorter slices,
      and batches are shorter, or with ``pad_output`` filled up with the last step (``("collector", "mask")`` is then True for
      real steps, if there are episodes shorter than a slice).
    - ``span``: slices may begin before (left) or end after (right) their episode, and are cut there: True for as far as
      one step remains, a number for at most this many steps; one value, or (left, right).
    - ``truncated_key``, ``init_key``: see `SliceMarks`; the ``done`` beside the former is set as well.
    - ``uniform_over``: see above.
    - ``stride``: slices begin at the first step of an episode, or a multiple of ``stride`` steps after it.
    - ``burn_in``: the first ``burn_in`` steps of a slice only bring a recurrent state up to date. ``"learning_mask"`` (bool
      ``[steps]``) is False there, and True in a slice that begins with its episode, where the initial state is known.
    - ``fragmented``: pieces of trajectories are interleaved, and ordered by ``traj_key`` and ``step_key``.
    - ``replacement=False``: a `SliceSamplerWithoutReplacement` is made.

    ``cache_values``, ``compile`` and ``use_gpu`` are taken for compatibility, without effect: edges are always kept until the
    storage is written, and a draw takes microseconds on the CPU.
    """

    arguments = frozenset(SliceOptions.__annotations__) - {"cache_values", "compile", "use_gpu", "trajectory_key"}
    #: Attributes computed from the arguments, see `_configure`.
    edges: Edges
    marks: SliceMarks
    #: Whether short episodes are long enough with a right span.
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
        use_gpu: Any = False,
        uniform_over: UniformOver = "trajectories",
        stride: int = 1,
        burn_in: int = 0,
        fragmented: bool = False,
        step_key: KeyLike = "step_count",
        trajectory_key: KeyLike | None = None,
        replacement: bool = True,
    ) -> None:
        if traj_key is not None and trajectory_key is not None:
            raise UsageError("traj_key and trajectory_key are one argument: give one of them")
        self.slice_len, self.num_slices = slice_len, num_slices
        self.strict_length, self.pad_output, self.uniform_over = strict_length, pad_output, uniform_over
        self.stride, self.burn_in = stride, burn_in
        self.span: Any = span  # `_configure` makes it (left, right)
        self.end_key, self.end_keys, self.ends, self.trajectories = end_key, end_keys, ends, trajectories
        #: As given, or as found by the first draw.
        self.traj_key = self._given_traj_key = trajectory_key if traj_key is None else traj_key
        self.truncated_key, self.init_key = truncated_key, init_key
        self.fragmented, self.step_key = fragmented, step_key
        self.cache_values, self.compile, self.use_gpu = cache_values, bool(compile), bool(use_gpu)
        self._pools: dict[int, EpisodePool] = {}
        SliceSampler._configure(self)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "traj_key":
            self.__dict__["_given_traj_key"] = value
        super().__setattr__(name, value)

    def _configure(self) -> None:
        if (self.slice_len is None) == (self.num_slices is None):
            raise UsageError("give either slice_len or num_slices")
        for name, least in (("slice_len", 1), ("num_slices", 1), ("stride", 1), ("burn_in", 0)):
            value = getattr(self, name)
            if value is not None:
                self.__dict__[name] = whole_number(name, value, least)
        end_key, end_keys, traj_key = self.end_key, self.end_keys, self._given_traj_key
        by_key = end_key is not None or bool(end_keys) or traj_key is not None
        if by_key + (self.ends is not None) + (self.trajectories is not None) > 1 or (end_key is not None and end_keys):
            raise UsageError("end_key, end_keys and traj_key, ends, and trajectories are exclusive: give one of them")
        if self.pad_output and self.strict_length:
            raise UsageError("pad_output=True is incompatible with strict_length=True: it fills up short slices")
        if self.uniform_over not in ("trajectories", "transitions"):
            raise UsageError(f"uniform_over is {self.uniform_over!r}, not 'trajectories' or 'transitions'")
        span = _both_sides(self.span)
        if any(span) and (self.uniform_over == "transitions" or self.stride > 1):
            message = "span goes with uniform_over='trajectories' and a stride of 1"
            hint = "load(windows=...) reads windows that begin at every step alike, padded beyond the ends of episodes"
            raise UsageError(message, hint=hint)
        for name in ("ends", "trajectories"):  # copied: edges are computed again after a write
            value = getattr(self, name)
            if value is not None:
                is_tensor = isinstance(value, torch.Tensor)
                self.__dict__[name] = value.clone() if is_tensor else torch.as_tensor(np.array(value))
        end_keys = tuple(map(as_key, end_keys or (() if end_key is None else (end_key,))))
        step_key = as_key(self.step_key) if self.fragmented else None
        traj_key, truncated, init = (
            None if key is None else as_key(key) for key in (traj_key, self.truncated_key, self.init_key)
        )
        edges = Edges(traj_key, end_keys, step_key, self.ends, self.trajectories)
        self.__dict__.update(span=span, edges=edges, marks=SliceMarks(truncated, init))
        self._pools.clear()

    def draw(self, storage: Storage, batch_size: int, generator: torch.Generator) -> Draw:
        count, length = self.shape(batch_size)
        pool = self.pool(storage, length)
        if self.uniform_over == "transitions":
            place = torch.randint(pool.total, (count,), generator=generator, device="cpu")
            chosen = runs_of(pool.before, place)
            start, lengths = pool.first[chosen] + (place - pool.before[chosen]) * pool.stride, pool.cut(chosen)
        else:
            chosen = self._choose(pool, count, generator)
            start, lengths = pool.draw(chosen, generator)
        return self._finish(Draw(start, length, lengths, pool.timeline, self.pad_output and pool.short, self.marks))

    def _finish(self, draw: Draw) -> Draw:
        if self.burn_in:
            draw.info["learning_mask"] = _learning_mask(draw, self.burn_in)
        return draw

    def _choose(self, pool: EpisodePool, count: int, generator: torch.Generator) -> torch.Tensor:
        return torch.randint(len(pool.first), (count,), generator=generator, device="cpu")

    def pool(self, storage: Storage, length: int) -> EpisodePool:
        """The episodes that slices of a length may come from."""
        require_records(storage)
        timeline = storage.timeline(self.edges)
        pool = self._pools.get(length)
        if pool is None or pool.timeline is not timeline:
            how = (self.strict_length, self.span, self.stride, self._cut_short)
            pool = self._pools[length] = EpisodePool(timeline, length, *how)
            if self.traj_key is None and timeline.traj_key is not None:
                found = timeline.traj_key if len(timeline.traj_key) > 1 else timeline.traj_key[0]
                self.__dict__["traj_key"] = found
        return pool

    def sampleable(self, storage: Storage, batch_size: int) -> int:
        try:
            return self.pool(storage, self.shape(batch_size)[1]).total
        except SamplingError:  # no records, or no episode that is long enough
            return 0

    def shape(self, batch_size: int) -> tuple[int, int]:
        """``(slices, their length)``. Raises SamplingError when the batch cannot be divided."""
        known = self.slice_len or self.num_slices
        assert known is not None
        if batch_size % known:
            name = "slice_len" if self.slice_len else "num_slices"
            message = f"batch_size {batch_size} cannot be divided by {name} {known}"
            raise SamplingError(message, hint=f"for example {known * max(1, round(batch_size / known))}")
        other = batch_size // known
        count, length = (other, known) if self.slice_len else (known, other)
        if self.burn_in >= length:
            raise SamplingError(f"a burn_in of {self.burn_in} leaves nothing to learn from in a slice of {length}")
        return count, length

    def empty(self) -> None:
        self._pools.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_pools": {}}

    def __repr__(self) -> str:
        size = f"slice_len={self.slice_len}" if self.slice_len else f"num_slices={self.num_slices}"
        return f"{type(self).__name__}({size}, strict_length={self.strict_length}, uniform_over={self.uniform_over!r})"


class SliceSamplerWithoutReplacement(SamplerWithoutReplacement, SliceSampler):
    """One slice of every episode a pass; the last batch is short, or with ``drop_last`` left out."""

    @with_options(SliceOptions, SliceSampler.__init__)
    def __init__(self, *, drop_last: bool = False, shuffle: bool = True, **slices: Unpack[SliceOptions]) -> None:
        SliceSampler.__init__(self, **slices)
        SamplerWithoutReplacement.__init__(self, drop_last, shuffle)
        self._configure()

    arguments = SliceSampler.arguments | SamplerWithoutReplacement.arguments
    draw, sampleable = SliceSampler.draw, SliceSampler.sampleable

    def _configure(self) -> None:
        SliceSampler._configure(self)
        SamplerWithoutReplacement._configure(self)
        if self.uniform_over == "transitions":
            raise UsageError("without replacement every episode gives one slice: uniform_over must be 'trajectories'")

    def _choose(self, pool: EpisodePool, count: int, generator: torch.Generator) -> torch.Tensor:
        return self.passes.take(len(pool.first), count, generator, self.share)

    __repr__ = SliceSampler.__repr__


SliceSampler.without_replacement = SliceSamplerWithoutReplacement


class EpisodePool:
    """The episodes that slices of one length may come from.

    ``first`` position and ``lengths`` of those episodes, the number of ``places`` a slice can begin in each, and how many
    places lie ``before`` it; all int64 ``[n]``. ``lead`` is how far a slice may begin ahead of its episode, and places are
    ``stride`` steps apart. ``short`` says whether a slice may have fewer steps than ``length``. With ``cut_short`` an episode
    is long enough for a ``strict`` pool if no more steps are missing than the right span allows.
    """

    def __init__(
        self,
        timeline: Timeline,
        length: int,
        strict: bool,
        span: tuple[bool | int, bool | int],
        stride: int,
        cut_short: bool,
    ) -> None:
        self.timeline, self.length, self.stride = timeline, length, stride
        self.lengths, self.first = timeline.lengths, timeline.starts[:-1]
        self.strict = strict and not any(span)
        self.lead, lag = (_reach(side, length) for side in span)
        if strict:
            fits = self.lengths >= length - (lag if cut_short else 0)
            if not bool(fits.any()):
                longest = int(self.lengths.max()) if len(self.lengths) else 0
                message = f"no episode has {length} steps; the longest has {longest}"
                raise SamplingError(message, hint="ask for shorter slices, or strict_length=False for what there is")
            self.lengths, self.first = self.lengths[fits], self.first[fits]
        self.short = any(span) or (not strict and bool((self.lengths < length).any()))
        # Between the first and the last start; a slice that leaves its episode keeps at least one step of it.
        last = self.lengths - length if strict else (self.lengths - length).clamp(min=0)
        last = torch.minimum(last + lag, self.lengths - 1)
        self.places = last // stride + 1 + self.lead
        ends = self.places.cumsum(0)
        self.before, self.total = ends - self.places, int(ends[-1])

    def draw(self, chosen: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A start in each of the chosen episodes, and the lengths if some are short."""
        # One float64 a slice instead of one bounded integer each: the bias is below 2^-53 times the episode length.
        share = torch.rand(len(chosen), dtype=torch.float64, generator=generator, device="cpu")
        offset = (share * self.places[chosen]).long()
        if self.stride > 1:
            offset *= self.stride
        if not self.lead:
            return self.first[chosen] + offset, self.cut(chosen, offset)
        offset -= self.lead
        begin = offset.clamp(min=0)
        lengths = torch.minimum(offset + self.length, self.lengths[chosen]) - begin
        return self.first[chosen] + begin, lengths

    def cut(self, chosen: torch.Tensor, offset: torch.Tensor | int = 0) -> torch.Tensor | None:
        """The lengths of the slices; None if all have the full length."""
        if self.strict:
            return None
        lengths = (self.lengths[chosen] - offset).clamp(max=self.length)
        return lengths if bool((lengths < self.length).any()) else None


def _learning_mask(draw: Draw, burn_in: int) -> torch.Tensor:
    """False on the first ``burn_in`` steps of pieces that do not begin with their episode, and on padding; bool ``[steps]``."""
    timeline, start = draw.timeline, draw.start
    assert timeline is not None
    later = timeline.extent_of(timeline.episode_of(start))[0] != start
    ahead = draw.beginnings()[later]
    burnt = torch.minimum(draw.each_length()[later], torch.tensor(burn_in, device="cpu"))
    mask = draw.mask()
    places = ahead[:, None] + torch.arange(burn_in, device="cpu")
    mask[places[torch.arange(burn_in, device="cpu") < burnt[:, None]]] = False
    return mask


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
