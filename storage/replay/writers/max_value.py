"""A writer that keeps the records of the highest value: a new record goes to a free row, else it replaces the lowest one."""

from __future__ import annotations

import heapq
from typing import Any

import torch
from tensordict import is_tensor_collection

from ....errors import SchemaError, UsageError
from ..reductions import REDUCTIONS, reduce
from ..storages.storage import Storage
from ..windows.draw import Key
from ..windows.edges import as_key
from .base import Writer


class TensorDictMaxValueWriter(Writer):
    """Keeps the records that rank best by ``rank_key``, summed (``reduction``) where it has several values."""

    values_per_row = True

    def __init__(self, rank_key: Any = None, reduction: str = "sum", compilable: bool = False) -> None:
        super().__init__(compilable)
        if reduction not in REDUCTIONS:
            raise UsageError(f"reduction {reduction!r} is not one of {', '.join(REDUCTIONS)}")
        self.rank_key: Key = ("next", "reward") if rank_key is None else as_key(rank_key)
        self.reduction = reduction
        self.write_count = 0
        self._worst: list[tuple[float, int]] = []  # a heap: (value, row), the worst on top

    def register_storage(self, storage: Storage) -> None:
        if storage.ndim > 1:
            raise UsageError("records are ranked one by one: the storage must have one dimension")
        super().register_storage(storage)

    def add(self, data: Any) -> Any:
        row = int(self.extend(data.unsqueeze(0))[0])
        return None if row < 0 else row

    def extend(self, data: Any) -> torch.Tensor:
        if not is_tensor_collection(data):
            raise SchemaError(f"{type(self).__name__} takes TensorDicts, not a {type(data).__name__}")
        ranks = data.get(self.rank_key if len(self.rank_key) > 1 else self.rank_key[0], None)
        if ranks is None:
            raise SchemaError(f"the data have no {'/'.join(self.rank_key)} to rank them by")
        placed: dict[int, int] = {}  # row -> record
        for record, value in enumerate(reduce(ranks.float(), self.reduction).tolist()):
            if len(self._worst) < self._storage.capacity:
                row = len(self._worst)
                heapq.heappush(self._worst, (value, row))
            elif value > self._worst[0][0]:
                row = self._worst[0][1]
                heapq.heapreplace(self._worst, (value, row))
            else:
                continue
            placed[row] = record
            self.write_count += 1
        index = torch.full((len(data),), -1)
        if placed:
            rows, records = torch.tensor(list(placed)), torch.tensor(list(placed.values()))
            index[records] = rows
            self._storage.set(rows, data[records])
        return index

    def empty(self) -> None:
        self._worst, self.write_count = [], 0

    def state_dict(self) -> dict[str, Any]:
        return {"write_count": self.write_count, "worst": [list(entry) for entry in self._worst]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.write_count = int(state["write_count"])
        self._worst = [(float(value), int(row)) for value, row in state["worst"]]

    def __repr__(self) -> str:
        return f"TensorDictMaxValueWriter(rank_key={'/'.join(self.rank_key)}, reduction={self.reduction})"
