"""Passes that read a few groups of consecutive steps at a time: for datasets whose rows are being fetched.

    groups    consecutive steps, each the same number (but for the last group)       0 1 2 3 | 4 5 6 7 | 8 9 ...
    pools     a few groups at a time, in an order by the seed                        {4..7, 12..15} {0..3, 8..9} ...
    order     all steps of a pool, shuffled, then all of the next one                13 5 4 14 7 ... | 2 8 0 ...

Every step comes once. Inside a pool the order is uniformly random. Unlike in a full shuffle a batch has steps of one pool only
(unless all groups fit into one), so batches near each other in time share their groups.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..draw import Draw
from ..order import Permutation, Turn, hashed
from ..storages.storage import Storage
from .sampler import SamplerWithoutReplacement

#: Groups in a pool.
POOL = 8


class BlockOrder:
    """The order of ``0..size-1`` that belongs to a seed; ``order(places)`` maps int64 arrays."""

    def __init__(self, size: int, seed: int, group: int, pool: int = POOL) -> None:
        self.size, self.group, self.pool, self._seed = size, max(1, group), pool, seed
        self._groups = -(-size // self.group)
        self._missing = self._groups * self.group - size  # steps missing from the last group
        self._order = Permutation(self._groups, seed)
        everywhere = self._order(np.arange(self._groups))
        #: The pool of the last group: later pools begin earlier than they would with whole groups only.
        self._short = int(np.flatnonzero(everywhere == self._groups - 1)[0]) // pool if size else 0
        self.pools = -(-self._groups // pool)

    def __call__(self, places: np.ndarray) -> np.ndarray:
        found = np.empty(len(places), np.int64)
        pools = self.pool_of(places)
        for pool in np.unique(pools).tolist():
            here = pools == pool
            groups = self._groups_of(pool)
            order = Permutation(self._begin(pool + 1) - self._begin(pool), hashed(self._seed, pool))
            inside = order(places[here] - self._begin(pool))
            found[here] = groups[inside // self.group] * self.group + inside % self.group
        return found

    def pool_of(self, places: np.ndarray) -> np.ndarray:
        """Return the pool that each place of the order lies in."""
        late = places >= self._begin(self._short + 1)
        result: np.ndarray = (places + self._missing * late) // (self.pool * self.group)
        return result

    def ranges(self, pool: int) -> list[tuple[int, int]]:
        """Return the steps ``(start, stop)`` of the groups of a pool; none behind the last one."""
        if not 0 <= pool < self.pools:
            return []
        starts = (self._groups_of(pool) * self.group).tolist()
        return [(start, min(start + self.group, self.size)) for start in starts]

    def _begin(self, pool: int) -> int:
        """The first place of a pool."""
        return min(pool * self.pool * self.group, self._groups * self.group) - self._missing * (pool > self._short)

    def _groups_of(self, pool: int) -> np.ndarray:
        """The groups of a pool, the short one last."""
        groups = self._order(np.arange(pool * self.pool, min((pool + 1) * self.pool, self._groups)))
        return np.concatenate([groups[groups < self._groups - 1], groups[groups == self._groups - 1]])


class BlockSampler(SamplerWithoutReplacement):
    """Every step once a pass, from ``pool`` groups of ``group`` consecutive steps at a time.

    The storage is told which steps come next (`Storage.will_read`), so that they can be fetched.
    """

    def __init__(self, group: int, pool: int = POOL, drop_last: bool = False) -> None:
        super().__init__(drop_last, True)
        self.group, self.pool = group, pool
        self._made: tuple[tuple[int, int], BlockOrder] | None = None
        self._announced: Any = None

    def draw(self, storage: Storage, batch_size: int, turn: Turn) -> Draw:
        draw = super().draw(storage, batch_size, turn)
        last = draw.places[-1]
        if self._made is not None and not last.ended:
            (key, order), place = self._made, np.array([last.taken + turn.order.rank])
            pool = int(order.pool_of(place)[0])
            if self._announced != (key, pool):
                self._announced = (key, pool)
                storage.will_read(order.ranges(pool) + order.ranges(pool + 1))
        return draw

    def permutation(self, size: int, seed: int) -> BlockOrder:
        if self._made is None or self._made[0] != (size, seed):
            self._made = (size, seed), BlockOrder(size, seed, self.group, self.pool)
        return self._made[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None, "_announced": None}

    def __repr__(self) -> str:
        return f"BlockSampler(group={self.group}, pool={self.pool}, drop_last={self.drop_last})"
