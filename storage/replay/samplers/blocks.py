"""Every step once a pass, in an order that suits data that are still on their way: see `BlockOrder`.

`BlockOrder` is a random order that stays for a while in few places.

    groups    consecutive steps, each the same number (but for the last group)       0 1 2 3 | 4 5 6 7 | 8 9 ...
    pools     so many groups at a time, in an order by the seed                      {4..7, 12..15} {0..3, 8..9} ...
    order     all steps of a pool, shuffled, then all of the next one                13 5 4 14 7 ... | 2 8 0 ...

Every step comes once. Inside a pool the order is uniformly random. What it costs beside a shuffle of everything: a batch has
steps of one pool only, so two batches near each other in time share their groups. With no more groups than make a pool there is
no difference. Where a step stands is computed, as in `Permutation`, so nothing is stored and any place can be begun at.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from ..draw import Draw
from ..storages.storage import Storage
from .uniform import Passes, Permutation, SamplerWithoutReplacement

#: Groups in a pool.
POOL = 8


class BlockOrder:
    """The order of ``0..size-1`` that belongs to a seed; ``order(positions)`` maps int64 arrays."""

    def __init__(self, size: int, seed: int, group: int, pool: int = POOL) -> None:
        self.size, self.group, self.pool = size, max(1, group), pool
        self._seed = seed
        self._groups = -(-size // self.group)
        self._missing = self._groups * self.group - size  # what the last group lacks
        self._order = Permutation(self._groups, seed)
        everywhere = self._order(np.arange(self._groups))
        #: The pool of the last group: those after it begin earlier than whole groups would.
        self._short = int(np.flatnonzero(everywhere == self._groups - 1)[0]) // pool if size else 0
        self.pools = -(-self._groups // pool)
        self._within: tuple[int, np.ndarray, Permutation] | None = None

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        positions = np.asarray(positions, np.int64)
        found = np.empty(len(positions), np.int64)
        pools = self.pool_of(positions)
        for pool in np.unique(pools).tolist():
            here = pools == pool
            groups, order = self._of_pool(pool)
            places = order(positions[here] - self._begin(pool))
            found[here] = groups[places // self.group] * self.group + places % self.group
        return found

    def pool_of(self, positions: np.ndarray) -> np.ndarray:
        """The pool that each place of the order lies in."""
        late = positions >= self._begin(self._short + 1)
        result: np.ndarray = (positions + self._missing * late) // (self.pool * self.group)
        return result

    def ranges(self, pool: int) -> list[tuple[int, int]]:
        """The steps ``(start, stop)`` of the groups of a pool; none behind the last one."""
        if not 0 <= pool < self.pools:
            return []
        starts = (self._groups_of(pool) * self.group).tolist()
        return [(start, min(start + self.group, self.size)) for start in starts]

    def _begin(self, pool: int) -> int:
        """The first place of a pool."""
        return min(pool * self.pool * self.group, self._groups * self.group) - self._missing * (pool > self._short)

    def _of_pool(self, pool: int) -> tuple[np.ndarray, Permutation]:
        if self._within is None or self._within[0] != pool:
            number = int(np.random.SeedSequence((self._seed, pool)).generate_state(1)[0])
            order = Permutation(self._begin(pool + 1) - self._begin(pool), number)
            self._within = (pool, self._groups_of(pool), order)
        return self._within[1:]

    def _groups_of(self, pool: int) -> np.ndarray:
        """The groups of a pool, the short one last."""
        groups = self._order(np.arange(pool * self.pool, min((pool + 1) * self.pool, self._groups)))
        return np.concatenate([groups[groups < self._groups - 1], groups[groups == self._groups - 1]])


class BlockSampler(SamplerWithoutReplacement):
    """Every step once a pass; for a while all steps are of ``pool`` groups of ``group`` consecutive steps.

    The order depends on the seed and on these two numbers alone. The storage is told which steps come next
    (`Storage.will_read`), so that they can be fetched.
    """

    def __init__(self, group: int, pool: int = POOL, drop_last: bool = False, **options: Any) -> None:
        super().__init__(drop_last, True, **options)
        self.group, self.pool = group, pool
        order = partial(BlockOrder, group=group, pool=pool)
        self.passes = Passes(shuffle=True, drop_last=drop_last, order=order)
        self._announced: tuple[int, int] | None = None

    def draw(self, storage: Storage, batch_size: int, generator: torch.Generator) -> Draw:
        draw = super().draw(storage, batch_size, generator)
        self._announce(storage)
        return draw

    def _announce(self, storage: Storage) -> None:
        """Tell the storage what the pool that is drawn from holds, and the next one."""
        order, place = self.passes.ahead()
        if not isinstance(order, BlockOrder):
            return
        pool = int(order.pool_of(np.array([place * self.share[1] + self.share[0]]))[0])
        if self._announced != (id(order), pool):
            self._announced = (id(order), pool)
            storage.will_read(order.ranges(pool) + order.ranges(pool + 1))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_announced": None}

    def __repr__(self) -> str:
        return f"BlockSampler(group={self.group}, pool={self.pool}, drop_last={self.drop_last})"
