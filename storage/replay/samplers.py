"""Which steps make a batch.

A sampler draws from a range of steps or from an episode table; it never looks at data, so a draw costs the same however
large the dataset is. It draws from the one generator it is given: the same seed gives the same batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from ...errors import SamplingError, UsageError
from .permutation import Permutation

UniformOver = Literal["trajectories", "transitions"]


@dataclass(frozen=True)
class Draw:
    """What was drawn: ``start`` int64 ``[n]``, first step of each piece, and ``length`` steps each.

    ``lengths`` (int64 ``[n]``) is set instead where pieces may be shorter than ``length``.
    """

    start: torch.Tensor
    length: int = 1
    lengths: torch.Tensor | None = None

    @classmethod
    def join(cls, draws: Sequence[Draw]) -> Draw:
        """Several draws of one length as one."""
        start = torch.cat([draw.start for draw in draws])
        if all(draw.lengths is None for draw in draws):
            return cls(start, draws[0].length)
        return cls(start, draws[0].length, torch.cat([draw.each_length() for draw in draws]))

    @property
    def steps(self) -> int:
        """How many steps were drawn."""
        return len(self.start) * self.length if self.lengths is None else int(self.lengths.sum())

    def each_length(self) -> torch.Tensor:
        """The length of every piece, int64 ``[n]``."""
        return torch.full((len(self.start),), self.length) if self.lengths is None else self.lengths

    def index(self) -> torch.Tensor:
        """All steps drawn, in order, int64."""
        if self.length == 1:
            return self.start
        offsets = torch.arange(self.length)
        index = self.start[:, None] + offsets
        if self.lengths is None:
            return index.reshape(-1)
        return index[offsets < self.lengths[:, None]]


class Sampler(Protocol):
    """Draws batches; ``ran_out`` is True after the draw that ended a pass."""

    @property
    def ran_out(self) -> bool: ...

    def draw(self, batch_size: int, generator: torch.Generator) -> Draw:
        """The next batch. Raises SamplingError when it cannot be drawn."""


class RandomSampler:
    """Uniform over ``size`` steps, with replacement."""

    ran_out = False

    def __init__(self, size: int) -> None:
        self._size = size

    def draw(self, batch_size: int, generator: torch.Generator) -> Draw:
        if not self._size:
            raise SamplingError("cannot sample from an empty dataset")
        return Draw(torch.randint(self._size, (batch_size,), generator=generator))


class _Passes:
    """Walks 0..size-1 pass after pass, each in a new order if shuffled; the last batch of a pass may be short."""

    def __init__(self, size: int, *, shuffle: bool, drop_last: bool) -> None:
        self._size, self._shuffle, self._drop_last = size, shuffle, drop_last
        self._order: Permutation | None = None
        self._next = 0
        self.ran_out = False

    def take(self, count: int, generator: torch.Generator) -> torch.Tensor:
        if self._drop_last and count > self._size:
            message = (
                f"a batch of {count} cannot be drawn from {self._size} without replacement and without a short batch"
            )
            raise SamplingError(message)
        if self._shuffle and self._next == 0:
            seed = int(torch.randint(1 << 62, (), generator=generator))
            self._order = Permutation(self._size, seed)
        stop = min(self._next + count, self._size)
        positions = torch.arange(self._next, stop)
        left = self._size - stop
        self.ran_out = left == 0 or (self._drop_last and left < count)
        self._next = 0 if self.ran_out else stop
        return torch.from_numpy(self._order(positions.numpy())) if self._order is not None else positions


class SamplerWithoutReplacement:
    """Every step once a pass. The last batch is short, or with ``drop_last`` left out."""

    def __init__(self, size: int, *, drop_last: bool = False, shuffle: bool = True) -> None:
        if not size:
            raise SamplingError("cannot sample from an empty dataset")
        self._passes = _Passes(size, shuffle=shuffle, drop_last=drop_last)

    @property
    def ran_out(self) -> bool:
        return self._passes.ran_out

    def draw(self, batch_size: int, generator: torch.Generator) -> Draw:
        return Draw(self._passes.take(batch_size, generator))


class SliceSampler:
    """Slices of ``slice_len`` consecutive steps of one episode.

    ``starts`` int64 ``[episodes + 1]``: first step of every episode, and the end. Give ``slice_len`` or ``num_slices``; the
    other follows from the batch size. With ``strict_length`` shorter episodes are never drawn; without it they give the
    slices they have, and batches come out shorter. ``uniform_over`` ``trajectories`` draws an episode and then a start in
    it (a short episode's steps are then drawn more often), ``transitions`` draws every possible start alike. Without
    ``replacement`` every episode gives one slice a pass.
    """

    def __init__(
        self,
        starts: torch.Tensor,
        *,
        slice_len: int | None = None,
        num_slices: int | None = None,
        strict_length: bool = True,
        uniform_over: UniformOver = "trajectories",
        replacement: bool = True,
        drop_last: bool = False,
        shuffle: bool = True,
    ) -> None:
        if (slice_len is None) == (num_slices is None):
            raise UsageError("give either slice_len or num_slices")
        for name, value in (("slice_len", slice_len), ("num_slices", num_slices)):
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, not {value}")
        if uniform_over not in ("trajectories", "transitions"):
            raise UsageError(f"uniform_over is {uniform_over!r}, not 'trajectories' or 'transitions'")
        if uniform_over == "transitions" and not replacement:
            raise UsageError("without replacement every episode gives one slice: uniform_over must be 'trajectories'")
        self.slice_len, self.num_slices = slice_len, num_slices
        self._starts, self._strict, self._over = starts, strict_length, uniform_over
        self._pass_options = None if replacement else {"shuffle": shuffle, "drop_last": drop_last}
        self._pools: dict[int, _Pool] = {}
        self._passes: _Passes | None = None

    @property
    def ran_out(self) -> bool:
        return self._passes is not None and self._passes.ran_out

    def draw(self, batch_size: int, generator: torch.Generator) -> Draw:
        count, length = self._shape(batch_size)
        pool = self._pools.get(length)
        if pool is None:
            pool = self._pools[length] = _Pool(self._starts, length, self._strict)
        if self._over == "transitions":
            place = torch.randint(pool.total, (count,), generator=generator)
            chosen = torch.searchsorted(pool.before, place, right=True) - 1
            offset = place - pool.before[chosen]
        else:
            if self._pass_options is None:
                chosen = torch.randint(len(pool.first), (count,), generator=generator)
            else:
                if self._passes is None:
                    self._passes = _Passes(len(pool.first), **self._pass_options)
                chosen = self._passes.take(count, generator)
            # One float64 a slice instead of one bounded integer each: the bias is below 2^-53 times the episode length.
            offset = (torch.rand(len(chosen), dtype=torch.float64, generator=generator) * pool.places[chosen]).long()
        start = pool.first[chosen] + offset
        if self._strict:
            return Draw(start, length)
        lengths = pool.lengths[chosen].clamp(max=length)
        return Draw(start, length, lengths if bool((lengths < length).any()) else None)

    def _shape(self, batch_size: int) -> tuple[int, int]:
        known = self.slice_len or self.num_slices
        assert known is not None
        if batch_size % known:
            name = "slice_len" if self.slice_len else "num_slices"
            message = f"batch_size {batch_size} cannot be divided by {name} {known}"
            raise SamplingError(message, hint=f"for example {known * max(1, round(batch_size / known))}")
        other = batch_size // known
        return (other, known) if self.slice_len else (known, other)


class _Pool:
    """The episodes that slices of one length may come from.

    ``first`` and ``lengths`` of those episodes, the number of ``places`` a slice can begin in each, and how many places lie
    ``before`` it; all int64 ``[n]``.
    """

    def __init__(self, starts: torch.Tensor, length: int, strict: bool) -> None:
        self.lengths = starts[1:] - starts[:-1]
        self.first = starts[:-1]
        if strict:
            fits = self.lengths >= length
            if not bool(fits.any()):
                longest = int(self.lengths.max()) if len(self.lengths) else 0
                message = f"no episode has {length} steps; the longest has {longest}"
                raise SamplingError(message, hint="ask for shorter slices, or strict_length=False for what there is")
            self.lengths, self.first = self.lengths[fits], self.first[fits]
        self.places = (self.lengths - length + 1).clamp(min=1)
        ends = self.places.cumsum(0)
        self.before, self.total = ends - self.places, int(ends[-1])
