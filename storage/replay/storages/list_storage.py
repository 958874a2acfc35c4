"""A storage of records of any kind in a Python list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase, is_tensor_collection

from ....errors import SchemaError, UsageError
from ..windows.draw import Key
from .storage import Storage


class ListStorage(Storage):
    """Records of any kind in a Python list: flexible, slow."""

    def __init__(
        self, max_size: int | None = None, *, compilable: bool = False, device: Any = None, ndim: int = 1
    ) -> None:
        super().__init__(max_size if max_size is not None else 2**63 - 1, ndim=ndim, compilable=compilable)
        if ndim != 1:
            raise UsageError("a ListStorage has one dimension", hint="LazyTensorStorage takes ndim")
        self._records: list[Any] = []
        self._device = None if device is None else torch.device(device)
        self._version, self._newest = 0, -1

    @property
    def version(self) -> int:
        return self._version

    @property
    def filled(self) -> int:
        return len(self._records)

    @property
    def newest(self) -> int:
        return self._newest

    @property
    def device(self) -> torch.device | None:
        return self._device

    def get(self, index: Any) -> Any:
        if isinstance(index, tuple):
            if len(index) != 1:
                raise UsageError("a ListStorage has one dimension")
            return self.get(index[0])
        if isinstance(index, (int, np.integer, slice)):
            return self._records[index]
        if isinstance(index, (torch.Tensor, np.ndarray)):
            if index.ndim == 0:
                return self._records[int(index)]
            index = index.tolist()
        return [self._records[number] for number in index]

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        if isinstance(cursor, (int, np.integer)) or (isinstance(cursor, torch.Tensor) and not cursor.ndim):
            cursor, data = [int(cursor)], [data]
        elif isinstance(cursor, slice):
            cursor = range(*cursor.indices(self.capacity))
        cursor = cursor.tolist() if isinstance(cursor, (torch.Tensor, np.ndarray)) else list(cursor)
        if not isinstance(data, (Sequence, torch.Tensor, np.ndarray)) and not is_tensor_collection(data):
            raise SchemaError(f"a ListStorage takes a sequence of records, not a {type(data).__name__}")
        if len(cursor) != len(data):
            raise SchemaError(f"{len(data)} records for {len(cursor)} places")
        for place, record in zip(cursor, data):
            if not 0 <= place <= len(self._records) or place >= self.capacity:
                raise SchemaError(
                    f"record {place} cannot be written: {len(self._records)} of {self.capacity} are there"
                )
            record = self._to_device(record)
            if place == len(self._records):
                self._records.append(record)
            else:
                self._records[place] = record
        if set_cursor and cursor:
            self._newest = cursor[-1]
        self._version += 1

    def _to_device(self, record: Any) -> Any:
        return record.to(self._device) if self._device is not None and hasattr(record, "to") else record

    def column(self, key: Key) -> torch.Tensor | None:
        if not all(isinstance(record, TensorDictBase) for record in self._records):
            raise UsageError("episodes can only be told apart in a storage of TensorDicts")
        values = [record.get(key if len(key) > 1 else key[0], None) for record in self._records]
        return None if any(value is None for value in values) else torch.stack(values)

    def empty(self) -> None:
        self._records, self._newest = [], -1
        self._version += 1

    _empty = empty

    def state_dict(self) -> dict[str, Any]:
        copies = [record.clone() if hasattr(record, "clone") else record for record in self._records]
        return {"records": copies, "newest": self._newest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if len(state["records"]) > self.capacity:
            raise SchemaError(f"{len(state['records'])} records do not fit into a storage of {self.capacity}")
        records = [record.clone() if hasattr(record, "clone") else record for record in state["records"]]
        self._records, self._newest = records, state["newest"]
        self._version += 1

    def __repr__(self) -> str:
        return f"ListStorage({len(self)} of {self.max_size} records)"
