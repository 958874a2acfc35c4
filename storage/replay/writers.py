"""Writers decide which storage row a new record goes to.

The round robin ones overwrite the oldest record.

rows written   0 1 2 ... capacity - 1 0 1 2 ...

`TensorDictMaxValueWriter` keeps the records of the highest value: a new one goes to a free row, else it replaces the lowest.
"""

from __future__ import annotations

import heapq
from typing import Any

import torch
from tensordict import TensorDictBase, is_tensor_collection
from torch.utils import _pytree as pytree

from ...errors import ReadOnlyError, SchemaError, UsageError
from .saved import Saved
from .storages.storage import Storage
from .storages.trees import tree_copied
from .timeline import Key, as_key, entry_key


class Writer(Saved):
    """Base of all writers; ``register_storage`` sets the storage to write to."""

    _storage: Storage

    def __init__(self, compilable: bool = False) -> None:
        """``compilable`` is accepted as by TorchRL's writers and has no effect."""

    def register_storage(self, storage: Storage) -> None:
        self._storage = storage

    def add(self, data: Any) -> Any:
        """Write one record; returns its row (an int, or ``[rows, ndim]``), None where it was not kept."""
        raise NotImplementedError

    def extend(self, data: Any) -> torch.Tensor:
        """Write records; returns their rows, int64 ``[n]`` (or ``[n * width, ndim]``)."""
        raise NotImplementedError

    def empty(self, empty_write_count: bool = True) -> None:
        """Begin again with the first row; ``empty_write_count`` also resets the count of written records."""
        self._empty(empty_write_count=empty_write_count)

    def _empty(self, empty_write_count: bool = True) -> None:
        pass

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class ImmutableDatasetWriter(Writer):
    """Refuses every write."""

    def add(self, data: Any) -> Any:
        raise ReadOnlyError("the buffer doesn't allow writing: it reads a dataset")

    def extend(self, data: Any) -> torch.Tensor:
        raise ReadOnlyError("the buffer doesn't allow writing: it reads a dataset")

    def empty(self, empty_write_count: bool = True) -> None:
        raise ReadOnlyError("the buffer doesn't allow writing: it reads a dataset")


class RoundRobinWriter(Writer):
    """Overwrites the oldest record."""

    write_count = 0

    @property
    def cursor(self) -> int:
        """The row of the next record, along the first dimension. The storage keeps it."""
        return self._storage.cursor

    @cursor.setter
    def cursor(self, row: int) -> None:
        self._storage.seek(row)

    def add(self, data: Any) -> Any:
        row = self.cursor
        rows = torch.tensor([row], device="cpu")
        self._storage.set(row, self._with_index(data, rows[0]))
        self.write_count += 1
        return row if self._storage.ndim == 1 else self._index_of(rows)

    def extend(self, data: Any) -> torch.Tensor:
        storage, count = self._storage, count_records(data)
        if not count:
            raise SchemaError("extend was given no records")
        capacity, cursor = storage.capacity_for(data), self.cursor
        rows = torch.arange(cursor, cursor + count, device="cpu")
        if cursor + count <= capacity:
            storage.set(slice(cursor, cursor + count), self._with_index(data, rows))
        else:
            rows %= capacity
            self._extend_around(self._with_index(data, rows), count, cursor, capacity)
        self.write_count += count
        return rows if storage.ndim == 1 else self._index_of(rows)

    def _extend_around(self, data: Any, count: int, cursor: int, capacity: int) -> None:
        """Write records past the end of the ring; if they do not all fit, the last ones."""
        storage, end = self._storage, (cursor + count) % capacity
        if count > capacity:
            data, count = part_of(data, count - capacity, count), capacity
        if storage.filled:
            data = tree_copied(data)  # it may be a view of the rows that the first run overwrites
        first = (end - count) % capacity
        before = min(count, capacity - first)
        runs = [(first, 0, before), (0, before, count)]  # (row, first record, after the last), in order of time
        for row, low, high in runs if count < capacity else sorted(runs):  # a list grows at its end
            if low < high:
                storage.set(slice(row, row + high - low), part_of(data, low, high))
        storage.seek(end)
        if count == capacity:  # every row is of this batch
            storage.in_order = True

    def _with_index(self, data: Any, rows: torch.Tensor) -> Any:
        return data

    def _index_of(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows along the first dimension as the index of all records in them: ``[n]``, or ``[n * width, ndim]``."""
        storage = self._storage
        if storage.ndim == 1:
            return rows
        beside = torch.arange(storage.width, device="cpu")
        return storage.index_of((rows[:, None] * storage.width + beside).reshape(-1))

    def _empty(self, empty_write_count: bool = True) -> None:
        self.write_count = 0 if empty_write_count else self.write_count

    def state_dict(self) -> dict[str, Any]:
        cursor = self.cursor if hasattr(self, "_storage") else 0
        return {"_cursor": cursor, "_write_count": self.write_count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        row, count = state["_cursor"], state["_write_count"]
        if any(type(value) is not int or not 0 <= value < 1 << 62 for value in (row, count)):
            raise UsageError(f"{state!r:.100} is not the state of a writer")
        self.write_count = count
        if hasattr(self, "_storage"):
            self._storage.seek(row)

    def __repr__(self) -> str:
        cursor = self.cursor if hasattr(self, "_storage") else 0
        return f"{type(self).__name__}(cursor={cursor}, write_count={self.write_count})"


class TensorDictRoundRobinWriter(RoundRobinWriter):
    """Stores the row of every record in the record, under ``index``; the given data are not changed.

    A storage over data without ``index`` has no leaf for it, so rows are not stored.
    """

    def _with_index(self, data: Any, rows: torch.Tensor) -> Any:
        if isinstance(data, list):
            return [self._with_index(record, row) for record, row in zip(data, rows)]
        if not isinstance(data, TensorDictBase):
            return data
        rows = rows.to(data.device) if data.device is not None else rows
        rows = rows.reshape([*rows.shape, *[1] * (data.ndim - rows.ndim)])
        return data.copy().set("index", rows.expand(data.batch_size).contiguous())


def count_records(data: Any) -> int:
    """Return the number of records of a batch. Raises SchemaError for anything else, and for columns of different lengths."""
    if isinstance(data, (list, torch.Tensor)) or is_tensor_collection(data):
        return len(data)
    lengths = {len(leaf) if hasattr(leaf, "__len__") else -1 for leaf in _parts(data)}
    if not lengths or -1 in lengths:
        kind = type(data).__name__
        raise SchemaError(f"extend takes a batch or a sequence of records, not a {kind} of single values")
    if len(lengths) > 1:
        raise SchemaError(f"the columns have {sorted(lengths)} records")
    return lengths.pop()


def part_of(data: Any, low: int, high: int) -> Any:
    """Records ``low..high-1`` of a batch."""
    if isinstance(data, (list, torch.Tensor)) or is_tensor_collection(data):
        return data[low:high]
    return pytree.tree_map(lambda leaf: leaf[low:high], data, is_leaf=is_tensor_collection)


def _parts(data: Any) -> list[Any]:
    return pytree.tree_leaves(data, is_leaf=is_tensor_collection)


#: How several values become one.
REDUCTIONS = ("sum", "max", "min", "mean", "median")


def reduce(values: torch.Tensor, how: str) -> torch.Tensor:
    """``[n, ...]`` to ``[n]``: sum, max, min, mean or median over all further dimensions."""
    rows = values.reshape(len(values), -1)
    if rows.shape[1] == 1:
        return rows[:, 0]
    found = getattr(torch, how)(rows, 1)
    return found if isinstance(found, torch.Tensor) else found.values


class TensorDictMaxValueWriter(Writer):
    """Keeps the records with the highest ``rank_key``, summed (``reduction``) if it has several values.

    Of equal ranks, which are compared as float64, the first record stays. `add` and `extend` raise SchemaError for records
    without a rank, and for ranks that are NaN.

    Rows are not in order of time: sampling slices, n-step returns, frame stacks and goals of later steps is refused.
    """

    def __init__(self, rank_key: Any = None, reduction: str = "sum", compilable: bool = False) -> None:
        super().__init__(compilable)
        if reduction not in REDUCTIONS:
            raise UsageError(f"reduction {reduction!r} is not one of {', '.join(REDUCTIONS)}")
        self.rank_key: Key = ("next", "reward") if rank_key is None else as_key(rank_key)
        self.reduction = reduction
        self.write_count = 0
        self._current_top_values: list[tuple[float, int]] = []  # a heap: (value, row), the worst on top

    def register_storage(self, storage: Storage) -> None:
        if storage.ndim > 1:
            raise UsageError("records are ranked one by one: the storage must have one dimension")
        if getattr(self, "_storage", None) is not storage:
            self._current_top_values = self._ranks_of(storage)
        super().register_storage(storage)

    def _ranks_of(self, storage: Storage) -> list[tuple[float, int]]:
        """The heap of the records that a storage already has. Raises SchemaError if they have no ranks."""
        if not len(storage):
            return []
        ranks = storage.column(self.rank_key)
        if ranks is None:
            raise SchemaError(f"the records in the storage have no {'/'.join(self.rank_key)} to rank them by")
        best = [(value, row) for row, value in enumerate(reduce(ranks.double(), self.reduction).tolist())]
        heapq.heapify(best)
        return best

    def add(self, data: Any) -> Any:
        row = int(self.extend(data.unsqueeze(0) if is_tensor_collection(data) else data)[0])
        return None if row < 0 else row

    def extend(self, data: Any) -> torch.Tensor:
        if not is_tensor_collection(data):
            message = f"{type(self).__name__} expects data to be a tensor collection, not a {type(data).__name__}"
            raise UsageError(message, hint="a RoundRobinWriter takes anything")
        ranks = data.get(entry_key(self.rank_key), None)
        if ranks is None:
            raise SchemaError(f"the data have no {'/'.join(self.rank_key)} to rank them by")
        values = reduce(ranks.double(), self.reduction).tolist()
        unordered = [record for record, value in enumerate(values) if value != value]
        if unordered:
            message = f"{'/'.join(self.rank_key)} of record {unordered[0]} is NaN, by which it cannot be ranked"
            raise SchemaError(message, hint="leave such records out, or give them a rank")
        placed: dict[int, int] = {}  # row -> record
        capacity = self._storage.capacity
        for record, value in enumerate(values):
            if len(self._current_top_values) < capacity:
                row = len(self._current_top_values)
                heapq.heappush(self._current_top_values, (value, row))
            elif value > self._current_top_values[0][0]:
                row = self._current_top_values[0][1]
                heapq.heapreplace(self._current_top_values, (value, row))
            else:
                continue
            placed[row] = record
            self.write_count += 1
        index = torch.full((len(data),), -1, device="cpu")
        if placed:
            rows, records = torch.tensor(list(placed), device="cpu"), torch.tensor(list(placed.values()), device="cpu")
            index[records] = rows
            self._storage.set(rows, data[records])
        self._storage.in_order = False
        return index

    def _empty(self, empty_write_count: bool = True) -> None:
        self._current_top_values = []
        self.write_count = 0 if empty_write_count else self.write_count

    def state_dict(self) -> dict[str, Any]:
        return {"write_count": self.write_count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.write_count = int(state["write_count"])
        if hasattr(self, "_storage"):  # whose records have their ranks
            self._current_top_values = self._ranks_of(self._storage)
            self._storage.in_order = False

    def __repr__(self) -> str:
        return f"TensorDictMaxValueWriter(rank_key={'/'.join(self.rank_key)}, reduction={self.reduction})"
