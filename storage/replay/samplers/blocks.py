"""Every step once a pass, in an order that suits data that are still on their way: see `block_order`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from ..storages.storage import Storage
from ..windows.draw import Draw
from .block_order import POOL, BlockOrder
from .uniform import Passes, SamplerWithoutReplacement


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
