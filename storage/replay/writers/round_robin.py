"""Which row the next record goes to.

round robin      0 1 2 ... capacity - 1 0 1 2 ...      the oldest record gives way
maximum value    a free row, else the row of the worst record, if the new one is better
"""

from __future__ import annotations

import heapq
from typing import Any

import torch
from tensordict import TensorDictBase, is_tensor_collection
from torch.utils import _pytree as pytree

from ....errors import ReadOnlyError, SchemaError, UsageError
from ..storages.storage import Storage
from ..storages.tensor_storage import tree_map
from ..windows.draw import Key
from ..windows.edges import as_key

REDUCTIONS = ("sum", "max", "min", "mean", "median")


def reduce(values: torch.Tensor, how: str) -> torch.Tensor:
    """``[n, ...]`` to ``[n]``: sum, max, min, mean or median over all further dimensions."""
    flat = values.reshape(len(values), -1)
    if flat.shape[1] == 1:
        return flat[:, 0]
    if how == "max":
        return flat.amax(1)
    if how == "min":
        return flat.amin(1)
    if how == "median":
        return flat.median(1).values
    return flat.mean(1) if how == "mean" else flat.sum(1)


class Writer:
    """Base of all writers; ``register_storage`` tells it where to write."""

    _storage: Storage

    def register_storage(self, storage: Storage) -> None:
        self._storage = storage

    def add(self, data: Any) -> Any:
        """Write one record; returns its row (an int, or ``[rows, ndim]``), None where it was not kept."""
        raise NotImplementedError

    def extend(self, data: Any) -> torch.Tensor:
        """Write records; returns their rows, int64 ``[n]`` (or ``[n * width, ndim]``)."""
        raise NotImplementedError

    def empty(self) -> None:
        """Begin anew."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what ``state_dict`` gave."""

    def _everywhere(self, index: torch.Tensor) -> torch.Tensor:
        """Rows along the first dimension as ``[n * width, ndim]`` coordinates of all rows written."""
        storage = self._storage
        if storage.ndim == 1:
            return index
        beside = torch.cartesian_prod(*(torch.arange(size) for size in storage.shape[1:])).view(-1, storage.ndim - 1)
        return torch.cat(
            [index.repeat_interleave(len(beside)).unsqueeze(1), beside.repeat(len(index), 1)],
            1,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class ImmutableDatasetWriter(Writer):
    """Refuses every write."""

    def add(self, data: Any) -> Any:
        raise ReadOnlyError("the buffer doesn't allow writing: it reads a dataset")

    def extend(self, data: Any) -> torch.Tensor:
        raise ReadOnlyError("the buffer doesn't allow writing: it reads a dataset")

    def empty(self) -> None:
        raise ReadOnlyError("the buffer doesn't allow writing: it reads a dataset")


class RoundRobinWriter(Writer):
    """Overwrites the oldest record. More records than there is room for: the newest stay, in their places of the ring."""

    def __init__(self) -> None:
        self.cursor = 0
        self.write_count = 0

    def register_storage(self, storage: Storage) -> None:
        super().register_storage(storage)
        # A storage that was opened again goes on where it stopped.
        self.cursor = (storage.newest + 1) % storage.capacity if len(storage) else 0

    def add(self, data: Any) -> Any:
        index = torch.tensor([self.cursor])
        self._storage.set(self.cursor, self._marked(data, index[0]))
        self._advance(1, self._storage.capacity)
        return int(index) if self._storage.ndim == 1 else self._everywhere(index)

    def extend(self, data: Any) -> torch.Tensor:
        count = _count(data)
        if not count:
            raise SchemaError("extend was given no records")
        capacity = self._storage.capacity_for(data)
        index = (self.cursor + torch.arange(count)) % capacity
        data = self._marked(data, index)
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
        self._advance(count, capacity)
        return self._everywhere(index)

    def _advance(self, count: int, capacity: int) -> None:
        self.cursor = (self.cursor + count) % capacity
        self.write_count += count

    def _marked(self, data: Any, index: torch.Tensor) -> Any:
        return data

    def empty(self) -> None:
        self.cursor = self.write_count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"cursor": self.cursor, "write_count": self.write_count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.cursor, self.write_count = int(state["cursor"]), int(state["write_count"])

    def __repr__(self) -> str:
        return f"{type(self).__name__}(cursor={self.cursor}, write_count={self.write_count})"


class TensorDictRoundRobinWriter(RoundRobinWriter):
    """Stores with every record the row it lies in, under ``index``; the data given stay as they are.

    A `TensorStorage` over data without ``index`` has no place for it, and goes without.
    """

    def _marked(self, data: Any, index: torch.Tensor) -> Any:
        if isinstance(data, TensorDictBase):
            shape = data.batch_size
            index = index.to(data.device) if data.device is not None else index
            data = data.copy()
            data.set("index", index.reshape(*index.shape, *[1] * (len(shape) - index.ndim)).expand(shape).contiguous())
            fields = self._storage.fields()
            if fields is not None and "index" not in fields:  # memory that was there before, without a place for it
                return data.exclude("index")
        return data


class TensorDictMaxValueWriter(Writer):
    """Keeps the records that rank best by ``rank_key``, summed (``reduction``) where it has several values."""

    def __init__(self, rank_key: Any = None, reduction: str = "sum") -> None:
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
