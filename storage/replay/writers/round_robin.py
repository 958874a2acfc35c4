"""Writers that overwrite the oldest record.

rows written   0 1 2 ... capacity - 1 0 1 2 ...
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase, is_tensor_collection
from torch.utils import _pytree as pytree

from ....errors import DamagedDatasetError, SchemaError
from ...durable import write_atomically
from ...tensordict_folder import map_tensor, read_json
from ..storages.slot_generations import SlotGenerations
from ..storages.storage import Storage
from ..storages.trees import tree_map
from .base import Writer


class RoundRobinWriter(Writer):
    """Overwrites the oldest record.

    With ``track_generations`` every row has a stamp that grows with each write, see `generations_of`: batches carry
    ``index_generation`` then, and ``ReplayBuffer.update_if_present`` writes only to records that are still there.
    """

    def __init__(self, compilable: bool = False, *, track_generations: bool = False) -> None:
        super().__init__(compilable)
        #: Records written by this process.
        self.write_count = 0
        self.tracks_generations = track_generations
        self._begin = 0  # the cursor, and the stamps, until there is a storage
        self._stamps: SlotGenerations | None = None

    def register_storage(self, storage: Storage) -> None:
        super().register_storage(storage)
        if self.tracks_generations and storage.generations is None:
            storage.generations = self._stamps or SlotGenerations()

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
        index = torch.tensor([self.cursor])
        self._storage.set(int(index), self._with_index(data, index[0]))
        self.write_count += 1
        self._stamp(index)
        return int(index) if self._storage.ndim == 1 else self._coordinates_of(index)

    def write_at(self, index: Any, data: Any) -> Any:
        """Write records to rows (an int, or ``[n]``) along the first dimension; the cursor stays. Returns the rows."""
        rows = torch.as_tensor(index).long().cpu()
        cursor = self.cursor
        self._storage.set(int(rows) if not rows.ndim else rows, self._with_index(data, rows))
        self._storage.seek(cursor)
        self.write_count += rows.numel()
        self._stamp(rows.reshape(-1))
        return index if self._storage.ndim == 1 else self._coordinates_of(rows.reshape(-1))

    def _stamp(self, rows: torch.Tensor) -> None:
        if self._storage.generations is not None:
            self._storage.generations.count(rows)

    def extend(self, data: Any) -> torch.Tensor:
        count = count_records(data)
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
            self._storage.set(slice(row, row + length), _part(data, first, first + length))
        self._storage.seek((int(index[-1]) + 1) % capacity)
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
        self.cursor = row
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
        state: dict[str, Any] = {"_cursor": record.get("cursor"), "_write_count": record.get("write_count") or 0}
        if any(type(value) is not int or not 0 <= value < 1 << 62 for value in state.values()):
            raise DamagedDatasetError(f"{folder / 'metadata.json'} is damaged: {record!r:.100}")
        if record.get("generation_shape") is not None:
            stamps = map_tensor(
                folder / "generation.memmap", record.get("generation_dtype"), record["generation_shape"]
            )
            if stamps.ndim != 1 or stamps.is_floating_point() or stamps.is_complex():
                raise DamagedDatasetError(f"{folder / 'generation.memmap'} holds no stamps of rows")
            state["_generation"] = stamps.clone()
        return {**self._read_rest(folder), **state}

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


def count_records(data: Any) -> int:
    """How many records a batch has. Raises SchemaError where it is no batch."""
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
