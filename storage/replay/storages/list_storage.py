"""A storage of records of any kind in a Python list.

Tensors and arrays are copied when they are written, as in the other storages, because an environment or a loop may reuse its
memory for the next record. (TorchRL keeps references: all records then hold the values of the last one.) Tensors that are
mapped from files are not copied.

"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import MemoryMappedTensor, TensorDict, TensorDictBase, is_tensor_collection

from ....errors import RowIndexError, SchemaError, UsageError
from ...row_index import of_one_dimension, row_index
from ..devices import check_device
from ..overrides import reads_by_get
from ..saving import read_state, reading, write_state
from ..timeline import Key, entry_at
from .rows import is_number, written_rows
from .storage import Storage
from .trees import copy_of, dense_leaves, from_state, records_of_columns, with_values_copied


class ListStorage(Storage):
    """Records of any kind in a Python list: flexible, slow."""

    def __init__(
        self, max_size: int | None = None, *, compilable: bool = False, device: Any = None, ndim: int = 1
    ) -> None:
        super().__init__(max_size if max_size is not None else 2**63 - 1, ndim=ndim, compilable=compilable)
        if ndim != 1:
            raise UsageError("a ListStorage has one dimension", hint="LazyTensorStorage takes ndim")
        self._records: list[Any] = []
        self._device = None if device is None else check_device(device)
        self._version, self._newest, self.ordered = 0, -1, 0

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
        rows = row_index(index, len(self._records), "record")
        if isinstance(rows, int):
            return self._read(rows)
        if isinstance(rows, slice):
            return [self._read(place) for place in range(rows.start, rows.stop, rows.step)]
        if rows.ndim != 1:
            raise RowIndexError(f"an index of shape {list(rows.shape)} does not fit a list of records")
        return [self._read(place) for place in rows.tolist()]

    def _read(self, place: int) -> Any:
        return self._records[place]

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        if isinstance(cursor, tuple):
            cursor = of_one_dimension(cursor, "record")
        if is_number(cursor):
            cursor, data = [int(cursor)], [data]
        elif isinstance(data, tuple):
            data = records_of_columns(data)
        if not isinstance(data, (Sequence, torch.Tensor, np.ndarray, set)) and not is_tensor_collection(data):
            raise SchemaError(f"a {type(self).__name__} takes a sequence of records, not a {type(data).__name__}")
        cursor = self._places(cursor, len(data))
        if len(cursor) != len(data):
            raise SchemaError(f"{len(data)} records for {len(cursor)} places")
        room = len(self._records)
        for place in cursor:
            if not 0 <= place <= room or place >= self.capacity:
                raise SchemaError(f"record {place} cannot be written: {room} of {self.capacity} are there")
            room = max(room, place + 1)
        ordered = self._ordered_after(cursor, max(cursor, default=-1) + 1, set_cursor)
        for place, record in zip(cursor, self._to_records(data)):
            self._write(place, record)
        self.ordered = ordered
        if set_cursor and cursor:
            self._newest = cursor[-1]
        self._version += 1

    def _places(self, cursor: Any, given: int) -> list[int]:
        """The numbers of the records that an index names, to which ``given`` records are written."""
        rows = written_rows(cursor, len(self._records), given)
        if isinstance(rows, slice):
            return list(range(*rows.indices(self.capacity)))
        if rows.ndim != 1:
            raise RowIndexError(f"an index of shape {list(rows.shape)} does not fit a list of records")
        return list(rows.tolist())

    def _to_records(self, data: Any) -> Iterable[Any]:
        """The records of a batch in the form in which the list keeps them."""
        if isinstance(data, (torch.Tensor, np.ndarray)) or is_tensor_collection(data):
            return map(self._to_device, _copy(data))
        return (self._to_device(_copy(record)) for record in data)

    def _write(self, place: int, record: Any) -> None:
        if place == len(self._records):
            self._records.append(record)
        else:
            self._records[place] = record

    def seek(self, row: int) -> None:
        row = min(row, len(self._records))  # a list grows only at its end
        if self._records and row != self.cursor:
            self._newest = (row - 1) % self.capacity
            self.ordered = 0
            self._version += 1

    def _to_device(self, record: Any) -> Any:
        return record.to(self._device) if self._device is not None and hasattr(record, "to") else record

    def _records_to_change(self, index: Any, key: Any) -> Any:
        """Whole records. Raises UsageError if a user's ``get`` returns something other than the stored records."""
        if reads_by_get(self):
            message = f"{type(self).__name__}.get is your own: a leaf alone cannot be written beside what it gives"
            raise UsageError(message, hint="write whole records: buffer[index] = records")
        return super()._records_to_change(index, key)

    def column(self, key: Key) -> torch.Tensor | None:
        records = [self._read(place) for place in range(len(self._records))]
        if not all(isinstance(record, TensorDictBase) for record in records):
            raise UsageError("episodes can only be told apart in a storage of TensorDicts")
        values = [entry_at(record, key) for record in records]
        return None if any(value is None for value in values) else torch.stack(values)

    def empty(self) -> None:
        self._records, self._newest, self.ordered = [], -1, 0
        self._version += 1

    def state_dict(self) -> dict[str, Any]:
        records = [copy_of(record) for record in self._records]
        return {"_storage": records, "newest": self._newest, **self._order_to_save()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state from `state_dict`, or from TorchRL's storage, which has no newest row."""
        records = [from_state(record) for record in state["_storage" if "_storage" in state else "records"]]
        if len(records) > self.capacity:
            raise SchemaError(f"{len(records)} records do not fit into a storage of {self.capacity}")
        newest = state.get("newest", len(records) - 1)
        in_range = type(newest) is int and -1 <= newest < self.capacity
        # The next place is that of an existing record, or the end.
        if not in_range or (newest + 1) % self.capacity > len(records):
            raise SchemaError(f"the record written last is {newest!r:.50}, of {len(records)}")
        ordered = self._ordered_here(len(records), newest, state.get("ordered"))
        self._accept()
        self.empty()
        for place, record in enumerate(self._to_records(records)):
            self._write(place, record)
        self._newest, self.ordered = newest, ordered

    def dumps(self, path: Any) -> None:
        """Write the records to a folder, see `saving`. Raises UsageError for a record that only pickle could write."""
        # Without a copy: no record changes while the records are written.
        write_state(Path(path), {"records": self._records, "newest": self.newest, **self._order_to_save()})

    def loads(self, path: Any) -> None:
        with reading(Path(path)):
            state = read_state(Path(path))
            if "kinds" in state:  # written by an older version
                state["records"] = [_record(number, kind, state) for number, kind in enumerate(state["kinds"])]
            if "records" not in state:
                raise UsageError(f"{path} holds no list of records")
            self.load_state_dict({**state, "newest": state["newest"]})

    def __deepcopy__(self, memo: dict[int, Any]) -> ListStorage:
        copied = memo[id(self)] = type(self).__new__(type(self))
        for record in filter(is_tensor_collection, self._records):
            memo[id(record)] = copy_of(record)
        state: Any = deepcopy(self.__reduce_ex__(4)[2], memo)
        getattr(copied, "__setstate__", copied.__dict__.update)(state)
        return copied

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} of {self.max_size} records)"


def _copy(data: Any) -> Any:
    if is_tensor_collection(data) and any(isinstance(leaf, MemoryMappedTensor) for leaf in dense_leaves(data)):
        copied = data.apply(lambda leaf: leaf if isinstance(leaf, MemoryMappedTensor) else leaf.clone())
        return with_values_copied(copied)
    return copy_of(data)


def _record(number: int, kind: Any, state: dict[str, Any]) -> Any:
    if kind == "tensor":
        return state[f"{number}"]
    if "value" in kind:
        return kind["value"]
    record = TensorDict(batch_size=kind["batch"])
    for name in kind["keys"]:
        record.set(tuple(name.split("/")), state[f"{number}/{name}"])
    return record
