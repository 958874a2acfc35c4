"""A writer that keeps the records of the highest value: a new record goes to a free row, else it replaces the lowest one."""

from __future__ import annotations

import heapq
import json
from pathlib import Path
from typing import Any

import torch
from tensordict import is_tensor_collection

from ....errors import DamagedDatasetError, SchemaError, UnsupportedError, UsageError
from ...durable import write_atomically
from ...tensordict_folder import map_tensor, read_json
from ..reductions import REDUCTIONS, reduce_exactly
from ..storages.storage import Storage
from ..windows.draw import Key
from ..windows.edges import as_key
from .base import Writer


class TensorDictMaxValueWriter(Writer):
    """Keeps the records that rank best by ``rank_key``, summed (``reduction``) where it has several values.

    Of equal ranks the first record stays. Whole numbers are compared as such, others as float64. `add` and `extend` raise
    SchemaError for records without a rank, and for ranks that are NaN or complex: those have no order.
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
        super().register_storage(storage)

    @property
    def cursor(self) -> int:
        """The row of the next record while there is room, then 0."""
        return len(self._current_top_values) % self._storage.capacity if hasattr(self, "_storage") else 0

    _cursor = cursor

    def add(self, data: Any) -> Any:
        self._check(data)
        row = int(self.extend(data.unsqueeze(0))[0])
        return None if row < 0 else row

    def extend(self, data: Any) -> torch.Tensor:
        self._check(data)
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
        index = torch.full((len(data),), -1)
        if placed:
            rows, records = torch.tensor(list(placed)), torch.tensor(list(placed.values()))
            index[records] = rows
            self._storage.set(rows, data[records])
        return index

    def _check(self, data: Any) -> None:
        if not is_tensor_collection(data):
            message = f"{type(self).__name__} expects data to be a tensor collection, not a {type(data).__name__}"
            raise UnsupportedError(message, hint="a RoundRobinWriter takes anything")

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

    def dumps(self, path: Any) -> None:
        """As TorchRL 0.14 writes it: metadata.json and current_top_values.memmap, ``[n, 2]`` of values and rows.

        Whole numbers that float64 does not hold are in state.json as well.
        """
        folder, best = Path(path), torch.tensor(self._current_top_values, dtype=torch.float64).reshape(-1, 2)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "current_top_values.memmap").write_bytes(best.numpy().tobytes())
        record = {"cursor": self.cursor, "write_count": self.write_count, "rank_key": list(self.rank_key)}
        record |= {"dtype": "torch.float64", "shape": list(best.shape)}
        write_atomically(folder / "metadata.json", json.dumps(record).encode())
        exact = all(value == float(value) for value, _ in self._current_top_values)
        self._dump_rest(folder, ("write_count", "worst") if exact else ("write_count",))

    def read(self, folder: Path) -> dict[str, Any]:
        if not (folder / "metadata.json").exists():
            return super().read(folder)  # of an older version
        record = read_json(folder / "metadata.json")
        best = map_tensor(folder / "current_top_values.memmap", record.get("dtype"), record.get("shape"))
        if best.ndim != 2 or best.shape[-1] != 2 or best.is_complex():
            raise DamagedDatasetError(f"{folder / 'current_top_values.memmap'} holds no values of rows")
        return {"worst": best.tolist(), **self._read_rest(folder), "write_count": record.get("write_count") or 0}

    def __repr__(self) -> str:
        return f"TensorDictMaxValueWriter(rank_key={'/'.join(self.rank_key)}, reduction={self.reduction})"
