"""A storage of records of any kind in a Python list: flexible, slow.

Tensors and arrays are copied when they are written, as in the other storages, because an environment or a loop may reuse its
memory for the next record. (TorchRL keeps references: all records then hold the values of the last one.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from tensordict import is_tensor_collection
from torch.utils import _pytree as pytree

from ....errors import SchemaError, UnknownKeyError, UsageError
from ...row_index import row_index
from .rows import check_no_gap, is_number, numbers_in, written_rows
from .storage import Storage


class ListStorage(Storage):
    """Records of any kind in a Python list."""

    is_list = True

    def __init__(
        self, max_size: int | None = None, *, compilable: bool = False, device: Any = None, ndim: int = 1
    ) -> None:
        super().__init__(max_size if max_size is not None else 2**63 - 1, ndim=ndim, compilable=compilable)
        if ndim != 1:
            raise UsageError("a ListStorage has one dimension", hint="LazyTensorStorage takes ndim")
        self._records: list[Any] = []
        self._device: torch.device | None = None
        if device is not None:
            from ..devices import check_device

            self._device = check_device(device)

    @property
    def filled(self) -> int:  # type: ignore[override]
        return len(self._records)

    @property
    def device(self) -> torch.device | None:
        return self._device

    def get(self, index: Any) -> Any:
        rows = row_index(index, len(self._records), "record")
        if isinstance(rows, int):
            return self._records[rows]
        if isinstance(rows, slice):
            return self._records[rows]
        if rows.ndim != 1:
            raise UnknownKeyError(f"an index of shape {list(rows.shape)} does not fit a list of records")
        return [self._records[place] for place in rows.tolist()]

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        cursor = cursor[0] if isinstance(cursor, tuple) and len(cursor) == 1 else cursor
        records = [data] if is_number(cursor) else records_of(data)
        before = self.filled
        rows = numbers_in(written_rows(cursor, before))
        if len(rows) != len(records):
            raise SchemaError(f"{len(records)} records for {len(rows)} places")
        check_no_gap(rows, before, self.capacity)
        own = [self._own(record) for record in records]
        self._records.extend([None] * (max(rows.tolist(), default=-1) + 1 - before))
        for place, record in zip(rows.tolist(), own):
            self._records[place] = record
        self._note_write(rows, before, set_cursor)

    def _own(self, record: Any) -> Any:
        """A record in memory of its own, on the device of the storage."""

        def copied(part: Any) -> Any:
            if isinstance(part, torch.Tensor) or is_tensor_collection(part):
                part = part.clone()
                return part if self._device is None else part.to(self._device)
            return deepcopy(part) if isinstance(part, np.ndarray) else part

        return pytree.tree_map(copied, record, is_leaf=is_tensor_collection)

    def seek(self, row: int) -> None:
        super().seek(min(row, len(self._records)))  # a list grows only at its end

    @property
    def cursor(self) -> int:
        return (self.newest + 1) % min(self.capacity, len(self._records) + 1)

    @property
    def oldest(self) -> int:
        return self.cursor if self.is_full else 0

    def _empty(self) -> None:
        self._records, self.newest, self.in_order = [], -1, True
        self._version += 1

    # -- saving ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return copies of all records."""
        return {
            "_storage": [self._own(record) for record in self._records],
            "newest": self.newest,
            "in_order": self.in_order,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        records, newest = list(state["_storage"]), state.get("newest", len(state["_storage"]) - 1)
        if len(records) > self.capacity:
            raise SchemaError(f"{len(records)} records do not fit into a storage of {self.capacity}")
        if type(newest) is not int or not -1 <= newest < len(records):
            raise SchemaError(f"the record written last is {newest!r}, and there are {len(records)} records")
        self._records, self.newest = [self._own(record) for record in records], newest
        self.in_order = bool(state.get("in_order", True))
        self._version += 1

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_timelines": {}}

    def __repr__(self) -> str:
        return f"ListStorage(records={len(self._records)}, max_size={self.max_size})"


def records_of(data: Any) -> Sequence[Any]:
    """The records of a batch: of a list each element, of a tuple (a tree of columns) the i-th elements of all columns."""
    if isinstance(data, tuple):
        lengths = {len(column) for column in data}
        if len(lengths) != 1:
            raise SchemaError(f"the columns have {sorted(lengths)} records")
        return list(zip(*data))
    if isinstance(data, (torch.Tensor, np.ndarray)) or is_tensor_collection(data):
        if not len(data.shape):
            raise SchemaError("one record is given for several places")
        return list(data)
    if not isinstance(data, Iterable) or isinstance(data, (str, bytes, dict)):
        raise SchemaError(f"a ListStorage takes a sequence of records, not a {type(data).__name__}")
    return list(data)
