"""Writers that overwrite the oldest record.

rows written   0 1 2 ... capacity - 1 0 1 2 ...
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase, is_tensor_collection
from torch.utils import _pytree as pytree

from ....errors import SchemaError
from ..storages.trees import tree_map
from .base import Writer


class RoundRobinWriter(Writer):
    """Overwrites the oldest record. More records than there is room for: the newest stay, in their places of the ring."""

    def __init__(self, compilable: bool = False) -> None:
        super().__init__(compilable)
        #: Records written by this process.
        self.write_count = 0

    @property
    def cursor(self) -> int:
        """The row of the next record. The storage keeps it: other processes may write as well."""
        return self._storage.cursor if hasattr(self, "_storage") else 0

    def add(self, data: Any) -> Any:
        index = torch.tensor([self.cursor])
        self._storage.set(int(index), self._with_index(data, index[0]))
        self.write_count += 1
        return int(index) if self._storage.ndim == 1 else self._coordinates_of(index)

    def extend(self, data: Any) -> torch.Tensor:
        count = _count(data)
        if not count:
            raise SchemaError("extend was given no records")
        capacity = self._storage.capacity_for(data)
        index = (self.cursor + torch.arange(count)) % capacity
        data = self._with_index(data, index)
        at = max(0, count - capacity)  # records before these would be overwritten by later ones of the same batch
        runs: list[tuple[int, int, int]] = []  # (row, first record, records), in order of time
        while at < count:
            row = int(index[at])
            runs.append((row, at, min(count - at, capacity - row)))
            at += runs[-1][2]
        for run in sorted(runs):  # from the front, as a list grows
            row, first, length = run
            newest = run == runs[-1]
            self._storage.set(slice(row, row + length), _part(data, first, first + length), set_cursor=newest)
        self.write_count += count
        return self._coordinates_of(index)

    def _with_index(self, data: Any, index: torch.Tensor) -> Any:
        return data

    def empty(self) -> None:
        self.write_count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"cursor": self.cursor, "write_count": self.write_count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        int(state["cursor"])  # which the storage restores
        self.write_count = int(state["write_count"])

    def __repr__(self) -> str:
        return f"{type(self).__name__}(cursor={self.cursor}, write_count={self.write_count})"


class TensorDictRoundRobinWriter(RoundRobinWriter):
    """Stores with every record the row it lies in, under ``index``; the data given stay as they are.

    A `TensorStorage` over data without ``index`` has no place for it, and goes without.
    """

    def _with_index(self, data: Any, index: torch.Tensor) -> Any:
        if isinstance(data, TensorDictBase):
            shape = data.batch_size
            index = index.to(data.device) if data.device is not None else index
            data = data.copy()
            data.set(
                "index", index.reshape([*index.shape, *[1] * (len(shape) - index.ndim)]).expand(shape).contiguous()
            )
            fields = self._storage.fields()
            if fields is not None and "index" not in fields:  # memory that was there before, without a place for it
                return data.exclude("index")
        return data


def _count(data: Any) -> int:
    if isinstance(data, (list, torch.Tensor)) or is_tensor_collection(data):
        return len(data)
    leaves = pytree.tree_leaves(data)
    if leaves and not hasattr(leaves[0], "__len__"):
        raise SchemaError(
            f"extend takes a batch or a sequence of records, not a {type(data).__name__} of single values"
        )
    return len(leaves[0]) if leaves else 0


def _part(data: Any, low: int, high: int) -> Any:
    if isinstance(data, list) or is_tensor_collection(data):
        return data[low:high]
    return tree_map(lambda leaf: leaf[low:high], data)
