"""Slices whose starts are drawn by priority.

A slice must fit into its episode, so the last steps of an episode are no starts. They keep their priority in the tree
of all records (the weights are relative to its least), and count nothing in a second tree that starts are drawn from:

    priorities   3 1 2 4 | 2 5        slices of 3
    starts       3 1 0 0 | 0 0        of an episode of 4 two starts, of one of 2 none
    not strict   3 1 0 0 | 2 0        or, where short episodes give what they have, their first step
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from typing_extensions import Unpack

from ....errors import SamplingError
from ....keywords import with_options
from ..storages.storage import Storage
from ..windows.draw import Draw
from ..windows.timeline import Timeline
from .prioritized import PrioritizedSampler
from .slices import EpisodePool, SliceOptions, SliceSampler
from .sum_tree import SumTree


class PrioritizedSliceSampler(SliceSampler, PrioritizedSampler):
    """`SliceSampler` and `PrioritizedSampler` in one; the weight of a slice's start comes with all its steps.

    Slices may end after their episode (right ``span``, which a single value sets), but not begin before it: a left span is
    turned off with a warning. With a right span episodes that lack no more steps than it allows are drawn from as well.
    Positional arguments and ``device`` are those of `PrioritizedSampler`, all others those of
    `SliceSampler`.
    """

    ahead = False
    _cut_short = True

    @with_options(SliceOptions, SliceSampler.__init__)
    def __init__(
        self,
        max_capacity: int,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float32,
        reduction: str = "max",
        *,
        max_priority_within_buffer: bool = False,
        device: Any = None,
        **slices: Unpack[SliceOptions],
    ) -> None:
        span = slices.get("span")
        if isinstance(span, (bool, int)):
            slices["span"] = (False, span)
        SliceSampler.__init__(self, **slices)
        self._starts: SumTree | None = None
        PrioritizedSampler.__init__(
            self, max_capacity, alpha, beta, eps, dtype, reduction, max_priority_within_buffer, device
        )
        if self.span[0]:
            warnings.warn(
                "a priority belongs to the step a slice begins with: the left span is turned off", stacklevel=2
            )
            self.span = (False, self.span[1])
        self._eligible = torch.zeros(max_capacity, dtype=torch.bool)
        self._known: tuple[Timeline, int] | None = None

    def draw(self, storage: Storage, batch_size: int, generator: torch.Generator) -> Draw:
        count, length = self.shape(batch_size)
        self.add_missing_priorities(storage)
        pool = self.pool(storage, length)
        starts = self._start_tree(pool, length)
        if starts.total <= 0:
            raise SamplingError(f"no step that a slice of {length} could begin with has a priority above zero")
        rows = torch.from_numpy(starts.draw(count, generator)[0])
        position = pool.timeline.positions(rows)
        left = pool.timeline.starts[pool.timeline.episode_of(position) + 1] - position
        lengths = left.clamp(max=length) if bool((left < length).any()) else None
        padded = self.pad_output and pool.short
        each = torch.full((count,), length) if lengths is None or padded else lengths
        info = {name: value.repeat_interleave(each) for name, value in self._info(self.tree[rows.numpy()]).items()}
        return self._finish(Draw(position, length, lengths, pool.timeline, padded, self.marks, info))

    def _start_tree(self, pool: EpisodePool, length: int) -> SumTree:
        """The tree of starts, worked out anew when the storage's contents have changed."""
        known = self._known
        if self._starts is None or known is None or known[0] is not pool.timeline or known[1] != length:
            ends = torch.zeros(int(pool.timeline.starts[-1]) + 1, dtype=torch.int64)
            last = pool.first + torch.minimum((pool.places - 1) * pool.stride + 1, pool.lengths)
            ends.index_add_(0, pool.first, torch.ones_like(pool.first))
            ends.index_add_(0, last, -torch.ones_like(last))
            position = (ends.cumsum(0)[:-1] > 0).nonzero().squeeze(1)
            if pool.stride > 1:
                ahead = position - pool.timeline.starts[pool.timeline.episode_of(position)]
                position = position[ahead % pool.stride == 0]
            self._eligible.fill_(False)
            self._eligible[pool.timeline.rows(position)] = True
            self._starts = SumTree(self.room)
            self._starts.fill(torch.where(self._eligible, self.tree.values, 0.0))
            self._known = (pool.timeline, length)
        return self._starts

    def _set(self, rows: np.ndarray, values: np.ndarray) -> None:
        super()._set(rows, values)
        if self._starts is not None:
            stored = self.tree[rows]
            self._starts.update(rows, np.where(self._eligible.numpy()[rows], stored, 0.0))

    def _refill(self) -> None:
        super()._refill()
        self._eligible = torch.zeros(self.room, dtype=torch.bool)
        self._starts = self._known = None

    def empty(self) -> None:
        SliceSampler.empty(self)
        PrioritizedSampler.empty(self)
        self._starts = self._known = None

    def __getstate__(self) -> dict[str, Any]:
        state = {**PrioritizedSampler.__getstate__(self), "_pools": {}, "_starts": None, "_known": None}
        del state["_eligible"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        PrioritizedSampler.__setstate__(self, state)

    def __repr__(self) -> str:
        return SliceSampler.__repr__(self)
