"""Writers decide which storage row a new record goes to.

The round robin ones overwrite the oldest record.

rows written   0 1 2 ... capacity - 1 0 1 2 ...

`TensorDictMaxValueWriter` keeps the records of the highest value: a new one goes to a free row, else it replaces the lowest.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Container
from pathlib import Path
from statistics import fmean, median_low
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase, is_tensor_collection
from torch.utils import _pytree as pytree

from ...errors import DamagedDatasetError, ReadOnlyError, SchemaError, UnsupportedError, UsageError
from ..durable import write_atomically
from ..tensordict_folder import map_tensor, read_json
from .overrides import link
from .saving import Saved, read_state, write_state
from .storages.storage import Storage
from .storages.trees import check_lengths, tree_map
from .timeline import Key, as_key


class SlotGenerations:
    """A stamp for each row along a storage's first dimension, int64: the number of its writes minus one; -1 without writes.

    A caller that kept the number of a row learns from the stamp whether the record is still there. Stamps belong to the
    storage, because buffers that share a storage overwrite each other's rows. Each process counts separately.
    """

    def __init__(self, stamps: torch.Tensor | None = None) -> None:
        given = torch.zeros(0, device="cpu") if stamps is None else stamps
        self.stamps = given.detach().cpu().long().clone()

    @torch.inference_mode(False)
    def count(self, rows: torch.Tensor) -> None:
        """Count one write for every occurrence of a row in ``rows`` (int64 ``[n]``)."""
        if not rows.numel():
            return
        missing = int(rows.max()) + 1 - len(self.stamps)
        if missing > 0:
            room = torch.full((max(missing, len(self.stamps)),), -1, device="cpu")
            self.stamps = torch.cat([self.stamps, room])
        self.stamps.index_put_((rows,), torch.ones_like(rows), accumulate=True)

    def of(self, rows: torch.Tensor) -> torch.Tensor:
        """The stamps of rows, -1 also for rows that do not exist; shaped like ``rows`` and on their device."""
        if not len(self.stamps):
            return torch.full_like(rows, -1)
        known = rows.to(self.stamps.device)
        stamps = self.stamps[known.clamp(0, len(self.stamps) - 1)]
        return torch.where((known >= 0) & (known < len(self.stamps)), stamps, -1).to(rows.device)

    def retire(self) -> None:
        """Invalidate all stamps, because the records were removed."""
        self.stamps[self.stamps >= 0] += 1


class Writer(Saved):
    """Base of all writers; ``register_storage`` sets the storage to write to."""

    _storage: Storage
    #: Whether the writer keeps a value for every row; it has no values for rows that another process writes.
    values_per_row = False
    #: Whether rows get a stamp that shows whether they were overwritten, see `SlotGenerations`.
    tracks_generations = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        link(cls, "empty", "_empty")

    def __init__(self, compilable: bool = False) -> None:
        """``compilable`` is accepted as by TorchRL's writers and has no effect."""

    def register_storage(self, storage: Storage) -> None:
        self._storage = storage

    def _share_count(self) -> None:
        """Put what counts the records into shared memory, where the rows are."""

    def add(self, data: Any) -> Any:
        """Write one record; returns its row (an int, or ``[rows, ndim]``), None where it was not kept."""
        raise NotImplementedError

    def extend(self, data: Any) -> torch.Tensor:
        """Write records; returns their rows, int64 ``[n]`` (or ``[n * width, ndim]``)."""
        raise NotImplementedError

    def empty(self, empty_write_count: bool = True) -> None:
        """Begin again with the first row; ``empty_write_count`` also resets the count of written records."""

    _empty = empty

    def generations_of(self, index: Any) -> torch.Tensor:
        """The stamps of rows along the first dimension, int64; -1 for rows never written, or if stamps are not tracked.

        ``index`` is ``[n]``, ``[n, ndim]`` or a tuple of one tensor for each dimension, as returned by `extend` or in batches.
        """
        ndim = self._storage.ndim if hasattr(self, "_storage") else 1
        if isinstance(index, tuple):
            index = index[0]
        elif isinstance(index, torch.Tensor) and ndim > 1 and index.ndim > 1 and index.shape[-1] == ndim:
            index = index[..., 0]
        rows = torch.as_tensor(index, device="cpu").long()
        stamps = self._storage.generations if self.tracks_generations else None
        return torch.full_like(rows, -1) if stamps is None else stamps.of(rows)

    def read(self, folder: Path) -> dict[str, Any]:
        """The state in a folder that `dumps` wrote. Raises DamagedDatasetError if it is incomplete."""
        return read_state(folder)

    def _state_in(self, folder: Path) -> dict[str, Any]:
        return self.read(folder)

    def _dump_rest(self, folder: Path, known: Container[str]) -> None:
        """Write the entries that a user's class adds to the state; the ``known`` entries have separate files."""
        rest = {name: value for name, value in self.state_dict().items() if name not in known}
        (folder / "state.json").unlink(missing_ok=True)
        if rest:
            write_state(folder, rest)

    @staticmethod
    def _read_rest(folder: Path) -> dict[str, Any]:
        return read_state(folder) if (folder / "state.json").exists() else {}

    def _coordinates_of(self, index: torch.Tensor) -> torch.Tensor:
        """Rows along the first dimension as ``[n * width, ndim]`` coordinates of all rows written."""
        storage = self._storage
        if storage.ndim == 1:
            return index
        sizes = (torch.arange(size, device="cpu") for size in storage.shape[1:])
        beside = torch.cartesian_prod(*sizes).view(-1, storage.ndim - 1)
        return torch.cat([index.repeat_interleave(len(beside)).unsqueeze(1), beside.repeat(len(index), 1)], 1)

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
    """Overwrites the oldest record.

    With ``track_generations`` every row has a stamp that grows with each write, see `generations_of`: batches then have
    ``index_generation``, and ``ReplayBuffer.update_if_present`` writes only to records that are still there.
    """

    def __init__(self, compilable: bool = False, *, track_generations: bool = False) -> None:
        super().__init__(compilable)
        self._written = torch.zeros(1, dtype=torch.int64, device="cpu")
        self.tracks_generations = track_generations
        self._begin = 0  # the cursor, and the stamps, until there is a storage
        self._stamps: SlotGenerations | None = None

    def register_storage(self, storage: Storage) -> None:
        super().register_storage(storage)
        if self.tracks_generations and storage.generations is None:
            storage.generations = self._stamps or SlotGenerations()
        self._share_count()

    @property
    def write_count(self) -> int:
        """The number of records written, by all processes where they share the rows."""
        return int(self._written.numpy()[0])

    @write_count.setter
    def write_count(self, count: int) -> None:
        self._written.numpy()[0] = count  # torch would refuse it outside of inference mode, where it was made inside

    def _share_count(self) -> None:
        if self._storage.is_shared:
            self._written.share_memory_()

    @property
    def cursor(self) -> int:
        """The row of the next record. The storage keeps it: other processes may write as well."""
        return self._storage.cursor if hasattr(self, "_storage") else self._begin

    @cursor.setter
    def cursor(self, row: int) -> None:
        self._begin = row
        if hasattr(self, "_storage"):
            self._storage.seek(row)

    _cursor = cursor

    def add(self, data: Any) -> Any:
        return self._write(torch.tensor(self.cursor, device="cpu"), data)

    def write_at(self, index: Any, data: Any) -> Any:
        """Write records to rows (an int, or ``[n]``) along the first dimension; the cursor stays. Returns the rows."""
        cursor = self.cursor
        rows = self._write(torch.as_tensor(index, device="cpu").long(), data)
        self._storage.seek(cursor)
        return index if self._storage.ndim == 1 else rows

    def _write(self, rows: torch.Tensor, data: Any) -> Any:
        """Write records to rows, or one to a single row; returns its number, or ``[n, ndim]``."""
        self._storage.set(int(rows) if not rows.ndim else rows, self._with_index(data, rows))
        self.write_count += rows.numel()
        self._stamp(rows.reshape(-1))
        return int(rows) if not rows.ndim and self._storage.ndim == 1 else self._coordinates_of(rows.reshape(-1))

    def _stamp(self, rows: torch.Tensor) -> None:
        if self._storage.generations is not None:
            self._storage.generations.count(rows)

    def extend(self, data: Any) -> torch.Tensor:
        count = count_records(data)
        if not count:
            raise SchemaError("extend was given no records")
        capacity = self._storage.capacity_for(data)
        cursor = self.cursor
        index = torch.arange(cursor, cursor + count, device="cpu")
        if cursor + count > capacity:
            index %= capacity
        data = self._with_index(data, index)
        at = max(0, count - capacity)  # records before these would be overwritten by later ones of the same batch
        runs: list[tuple[int, int, int]] = []  # (row, first record, records), in order of time
        while at < count:
            row = (cursor + at) % capacity
            runs.append((row, at, min(count - at, capacity - row)))
            at += runs[-1][2]
        if len(runs) > 1:  # the second run would read rows that the first has overwritten
            data = self._storage._copied_if_own(data)
        for row, first, length in runs if count <= capacity else sorted(runs):  # a list grows at its end
            self._storage.set(slice(row, row + length), _part(data, first, first + length))
        self._storage.seek((cursor + count) % capacity)
        if count > capacity:  # every row is of this batch
            self._storage.ordered = capacity
        self.write_count += count
        self._stamp(index)
        return self._coordinates_of(index)

    def _with_index(self, data: Any, index: torch.Tensor) -> Any:
        return data

    def empty(self, empty_write_count: bool = True) -> None:
        self.write_count = 0 if empty_write_count else self.write_count
        if self._storage.generations is not None:
            self._storage.generations.retire()

    def _generations(self) -> torch.Tensor | None:
        stamps = self._storage.generations if hasattr(self, "_storage") else self._stamps
        return stamps.stamps if self.tracks_generations and stamps is not None else None

    def state_dict(self) -> dict[str, Any]:
        stamps = self._generations()
        state = {"_cursor": self.cursor, "_write_count": self.write_count}
        return state if stamps is None else {**state, "_generation": stamps.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        row = int(state["_cursor"] if "_cursor" in state else state["cursor"])
        self.write_count = int(state.get("_write_count", state.get("write_count", self.write_count)))
        self._begin = row
        if hasattr(self, "_storage"):
            ordered = self._storage.ordered
            self._storage.seek(row)
            self._storage.ordered = ordered  # the state belongs to the rows
        if state.get("_generation") is not None and self.tracks_generations:
            self._stamps = SlotGenerations(state["_generation"])
            if hasattr(self, "_storage"):
                self._storage.generations = self._stamps

    def dumps(self, path: Any) -> None:
        """As TorchRL 0.14 writes it: metadata.json and, where rows are stamped, generation.memmap."""
        folder, stamps = Path(path), self._generations()
        record: dict[str, Any] = {"cursor": self.cursor, "write_count": self.write_count}
        folder.mkdir(parents=True, exist_ok=True)
        if stamps is not None:
            (folder / "generation.memmap").write_bytes(stamps.numpy().tobytes())
            record |= {"generation_shape": list(stamps.shape), "generation_dtype": "torch.int64"}
        write_atomically(folder / "metadata.json", json.dumps(record).encode())
        self._dump_rest(folder, ("_cursor", "_write_count", "_generation"))

    def read(self, folder: Path) -> dict[str, Any]:
        record = read_json(folder / "metadata.json")
        if "rank_key" in record:
            message = f"{folder} holds the state of a TensorDictMaxValueWriter, whose rows are not in order of time"
            raise UsageError(message, hint="make the buffer with such a writer")
        state: dict[str, Any] = {"_cursor": record.get("cursor"), "_write_count": record.get("write_count") or 0}
        if any(type(value) is not int or not 0 <= value < 1 << 62 for value in state.values()):
            raise DamagedDatasetError(f"{folder / 'metadata.json'} is damaged: {record!r:.100}")
        if record.get("generation_shape") is not None:
            file = folder / "generation.memmap"
            stamps = map_tensor(file, record.get("generation_dtype"), record["generation_shape"])
            if stamps.ndim != 1 or stamps.is_floating_point() or stamps.is_complex():
                raise DamagedDatasetError(f"{file} holds no stamps of rows")
            state["_generation"] = stamps.clone()
        return {**self._read_rest(folder), **state}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(cursor={self.cursor}, write_count={self.write_count})"


class TensorDictRoundRobinWriter(RoundRobinWriter):
    """Stores the row of every record in the record, under ``index``; the given data are not changed.

    A `TensorStorage` over data without ``index`` has no leaf for it, so rows are not stored.
    """

    def _with_index(self, data: Any, index: torch.Tensor) -> Any:
        if isinstance(data, list):
            return [self._with_index(record, row) for record, row in zip(data, index)]
        if isinstance(data, TensorDictBase):
            fields = self._storage.fields()
            if fields is not None and "index" not in fields:  # existing memory without this leaf
                return data.exclude("index")
            index = index.to(data.device) if data.device is not None else index
            index = index.reshape([*index.shape, *[1] * (data.ndim - index.ndim)])
            return data.copy().set("index", index.expand(data.batch_size).contiguous())
        return data


def check_newest(storage: Storage, index: Any) -> None:
    """Note that rows are not in order of time, where a user's writer wrote these last and the storage does not know it: of
    ``storage[rows] = records`` it takes none for the newest."""
    rows = storage.flat([index] if isinstance(index, int) else index)
    rows = rows[rows >= 0]
    if len(rows) and int(rows[-1]) // storage.width != storage.newest:
        storage.ordered = 0


def count_records(data: Any) -> int:
    """The number of records of a batch. Raises SchemaError for anything else, and for columns of different lengths."""
    if isinstance(data, (list, torch.Tensor)) or is_tensor_collection(data):
        return len(data)
    leaves = pytree.tree_leaves(data)
    if leaves and not hasattr(leaves[0], "__len__"):
        kind = type(data).__name__
        raise SchemaError(f"extend takes a batch or a sequence of records, not a {kind} of single values")
    check_lengths(data, (leaf for leaf in leaves if isinstance(leaf, (torch.Tensor, np.ndarray)) and leaf.ndim))
    return len(leaves[0]) if leaves else 0


def _part(data: Any, low: int, high: int) -> Any:
    if isinstance(data, list) or is_tensor_collection(data):
        return data if low == 0 and high == len(data) else data[low:high]
    return tree_map(lambda leaf: leaf[low:high], data)


#: How several values become one: the rows of a tensor ``[n, k]``, and a list of Python's numbers.
_REDUCED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[Any], Any]]] = {
    "sum": (lambda rows: rows.sum(1), sum),
    "max": (lambda rows: rows.amax(1), max),
    "min": (lambda rows: rows.amin(1), min),
    "mean": (lambda rows: rows.mean(1), fmean),
    "median": (lambda rows: rows.median(1).values, median_low),
}
REDUCTIONS = tuple(_REDUCED)


def reduce(values: torch.Tensor, how: str) -> torch.Tensor:
    """``[n, ...]`` to ``[n]``: sum, max, min, mean or median over all further dimensions."""
    rows = values.reshape(len(values), -1)
    return rows[:, 0] if rows.shape[1] == 1 else _REDUCED[how][0](rows)


def reduce_exactly(values: torch.Tensor, how: str) -> list[int | float]:
    """As `reduce`, ``[n, ...]`` to n comparable numbers: integers exactly, also beyond 2^53, other numbers as float64."""
    if values.is_floating_point():
        return reduce(values.double(), how).tolist()
    rows = values.reshape(len(values), -1).tolist()
    return [_REDUCED[how][1](row) if len(row) != 1 else row[0] for row in rows]


class TensorDictMaxValueWriter(Writer):
    """Keeps the records with the highest ``rank_key``, summed (``reduction``) if it has several values.

    Of equal ranks the first record stays. Integers are compared exactly, other numbers as float64. `add` and `extend` raise
    SchemaError for records without a rank, and for ranks that are NaN or complex, because these have no order.

    Rows are not in order of time: sampling slices, n-step returns, frame stacks and goals of later steps is refused.
    """

    values_per_row = True

    def __init__(self, rank_key: Any = None, reduction: str = "sum", compilable: bool = False) -> None:
        super().__init__(compilable)
        if reduction not in REDUCTIONS:
            raise UsageError(f"reduction {reduction!r} is not one of {', '.join(REDUCTIONS)}")
        self.rank_key: Key = ("next", "reward") if rank_key is None else as_key(rank_key)
        self.reduction = reduction
        self.write_count = 0
        self._current_top_values: list[tuple[int | float, int]] = []  # a heap: (value, row), the worst on top

    def register_storage(self, storage: Storage) -> None:
        if storage.ndim > 1:
            raise UsageError("records are ranked one by one: the storage must have one dimension")
        if getattr(self, "_storage", None) is not storage:
            self._current_top_values = self._ranks_of(storage)
        super().register_storage(storage)

    def _ranks_of(self, storage: Storage) -> list[tuple[int | float, int]]:
        """The heap of the records that a storage already has. Raises SchemaError if they have no ranks."""
        if not len(storage):
            return []
        ranks = storage.column(self.rank_key)
        if ranks is None:
            raise SchemaError(f"the records in the storage have no {'/'.join(self.rank_key)} to rank them by")
        best = [(value, row) for row, value in enumerate(reduce_exactly(ranks, self.reduction))]
        heapq.heapify(best)
        return best

    @property
    def cursor(self) -> int:
        """The row of the next record while there are free rows, then 0."""
        return len(self._current_top_values) % self._storage.capacity if hasattr(self, "_storage") else 0

    _cursor = cursor

    def add(self, data: Any) -> Any:
        row = int(self.extend(data.unsqueeze(0) if is_tensor_collection(data) else data)[0])
        return None if row < 0 else row

    def extend(self, data: Any) -> torch.Tensor:
        if not is_tensor_collection(data):
            message = f"{type(self).__name__} expects data to be a tensor collection, not a {type(data).__name__}"
            raise UnsupportedError(message, hint="a RoundRobinWriter takes anything")
        ranks = data.get(self.rank_key if len(self.rank_key) > 1 else self.rank_key[0], None)
        if ranks is None:
            raise SchemaError(f"the data have no {'/'.join(self.rank_key)} to rank them by")
        if ranks.is_complex():
            raise SchemaError(f"{'/'.join(self.rank_key)} is {ranks.dtype}, which has no order")
        values = reduce_exactly(ranks, self.reduction)
        unordered = [record for record, value in enumerate(values) if value != value]
        if unordered:
            message = f"{'/'.join(self.rank_key)} of record {unordered[0]} is NaN, by which it cannot be ranked"
            raise SchemaError(message, hint="leave such records out, or give them a rank")
        placed: dict[int, int] = {}  # row -> record
        for record, value in enumerate(values):
            if len(self._current_top_values) < self._storage.capacity:
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
        self._storage.ordered = 0
        return index

    def empty(self, empty_write_count: bool = True) -> None:
        self._current_top_values = []
        self.write_count = 0 if empty_write_count else self.write_count

    def state_dict(self) -> dict[str, Any]:
        return {"write_count": self.write_count, "worst": [list(entry) for entry in self._current_top_values]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        best = [(value if type(value) is int else float(value), int(row)) for value, row in state["worst"]]
        if sorted(row for _, row in best) != [*range(len(best))]:
            raise DamagedDatasetError("the rows of the writer's values are not those of the records")
        self.write_count, self._current_top_values = int(state["write_count"]), best
        if hasattr(self, "_storage"):
            self._storage.ordered = 0

    def dumps(self, path: Any) -> None:
        """As TorchRL 0.14 writes it: metadata.json and current_top_values.memmap, ``[n, 2]`` of values and rows.

        Whole numbers that float64 does not hold are in state.json as well.
        """
        folder = Path(path)
        best = torch.tensor(self._current_top_values, dtype=torch.float64, device="cpu").reshape(-1, 2)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "current_top_values.memmap").write_bytes(best.numpy().tobytes())
        record = {"cursor": self.cursor, "write_count": self.write_count, "rank_key": list(self.rank_key)}
        record |= {"dtype": "torch.float64", "shape": list(best.shape)}
        write_atomically(folder / "metadata.json", json.dumps(record).encode())
        exact = all(value == float(value) for value, _ in self._current_top_values)
        self._dump_rest(folder, ("write_count", "worst") if exact else ("write_count",))

    def read(self, folder: Path) -> dict[str, Any]:
        record = read_json(folder / "metadata.json")
        best = map_tensor(folder / "current_top_values.memmap", record.get("dtype"), record.get("shape"))
        if best.ndim != 2 or best.shape[-1] != 2 or best.is_complex():
            raise DamagedDatasetError(f"{folder / 'current_top_values.memmap'} holds no values of rows")
        return {"worst": best.tolist(), **self._read_rest(folder), "write_count": record.get("write_count") or 0}

    def __repr__(self) -> str:
        return f"TensorDictMaxValueWriter(rank_key={'/'.join(self.rank_key)}, reduction={self.reduction})"
