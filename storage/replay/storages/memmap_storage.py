"""A storage in files, for buffers larger than memory, or to be opened again.

The folder is one that ``TensorDict.load_memmap`` opens, with two small files of ours in it:

    rbdata_storage.json       {"format_version": 3, "ndim": 1, "max_size": 1000}; "plain": rows are tensors, not TensorDicts
    rbdata_counters.memmap    three int64: rows filled along the first dimension, the row written last, whether in order

The counters are mapped as the data are, so that the folder can be opened again after the writer was killed.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, is_tensor_collection

from ....errors import DamagedDatasetError, DatasetExistsError, DiskError, SchemaError, UsageError, reason
from ...durable import allocate, is_full, write_atomically
from ...tensordict_folder import read_json, read_memmap
from .tensor_storage import LazyTensorStorage

FORMAT_VERSION = 3
#: The key of rows that are tensors.
PLAIN = "tensor"
DESCRIPTION, COUNTERS = "rbdata_storage.json", "rbdata_counters.memmap"
#: Bytes of rows for which disk space is reserved at a time, before they are written.
RESERVED_BYTES = 16 << 20


class LazyMemmapStorage(LazyTensorStorage):
    """Rows of TensorDicts, tensorclasses or tensors in memory-mapped files below ``scratch_dir``.

    With ``existsok``, a folder that already holds a storage is opened with its contents (``max_size`` must be unchanged);
    without it, the first write to such a folder raises DatasetExistsError. Without ``scratch_dir`` the files are temporary,
    and removed with the storage; ``auto_cleanup`` overrides whether files are removed. Disk space is reserved before rows are
    written: DiskError if there is not enough. Pickles contain no rows: the unpickled storage has the same files.
    """

    def __init__(
        self,
        max_size: int,
        *,
        scratch_dir: Any = None,
        device: Any = "cpu",
        ndim: int = 1,
        existsok: bool = False,
        compilable: bool = False,
        shared_init: bool = False,
        auto_cleanup: bool | None = None,
    ) -> None:
        if device not in ("auto", None) and torch.device(device).type != "cpu":
            message = f"files are mapped into the CPU's memory: the device {device} cannot be honored"
            raise UsageError(message, hint="move batches: ReplayBuffer(device=...)")
        self._counts = np.array([0, -1, 1], np.int64)
        super().__init__(max_size, ndim=ndim, compilable=compilable)
        self._reserved, self._is_plain = 0, False
        temporary = scratch_dir is None if auto_cleanup is None else auto_cleanup
        made = tempfile.mkdtemp(prefix="rbdata-replay-") if scratch_dir is None else scratch_dir
        self.scratch_dir = Path(made).absolute()
        if temporary:
            weakref.finalize(self, _remove, self.scratch_dir, os.getpid())
        self._occupied = self.scratch_dir.is_dir() and any(self.scratch_dir.iterdir()) and not existsok
        if (self.scratch_dir / DESCRIPTION).exists() and not self._occupied:
            self._reopen()

    # -- counters, in a file -----------------------------------------------------------------------------------------

    @property
    def filled(self) -> int:
        return int(self._counts[0])

    @filled.setter
    def filled(self, rows: int) -> None:
        self._counts[0] = rows

    @property
    def newest(self) -> int:
        return int(self._counts[1])

    @newest.setter
    def newest(self, row: int) -> None:
        self._counts[1] = row

    @property
    def in_order(self) -> bool:
        return bool(self._counts[2])

    @in_order.setter
    def in_order(self, value: bool) -> None:
        self._counts[2] = value

    # -- files -------------------------------------------------------------------------------------------------------

    def _allocate(self, example: Any) -> None:
        if self._occupied:
            message = f"{self.scratch_dir} is not empty"
            raise DatasetExistsError(message, hint="open the existing files with existsok=True, or name another folder")
        kind, self._is_plain = type(example), isinstance(example, torch.Tensor)
        if self._is_plain:
            example = TensorDict({PLAIN: example}, example.shape[: self.ndim - 1])
        elif not isinstance(example, TensorDict):
            if not is_tensor_collection(example):
                message = f"files hold TensorDicts and tensors, not a {kind.__name__}"
                raise SchemaError(message, hint="a LazyTensorStorage keeps it in memory")
            example = example.to_tensordict()
        width = example.batch_size[: self.ndim - 1].numel()
        rows = -(-self.max_size // max(1, width))
        self.scratch_dir.mkdir(parents=True, exist_ok=True)
        wide = example.expand(rows, *example.batch_size)
        try:
            data = wide.memmap_like(prefix=self.scratch_dir)
            (self.scratch_dir / COUNTERS).write_bytes(np.array([0, -1, 1], np.int64).tobytes())
            description = {"format_version": FORMAT_VERSION, "ndim": self.ndim, "max_size": self.max_size}
            description |= {"plain": True} if self._is_plain else {}
            write_atomically(self.scratch_dir / DESCRIPTION, json.dumps(description).encode())
        except OSError as error:
            if is_full(error):
                raise self._too_large(1) from error
            raise
        self._map(data if self._is_plain or kind is TensorDict else kind.from_tensordict(data))

    def _map(self, data: Any) -> None:
        # Shared on purpose: the counters tell who opens the folder which rows have been written.
        self._counts = np.memmap(self.scratch_dir / COUNTERS, np.int64, "r+", shape=(3,))
        self._take_over(data[PLAIN] if self._is_plain else data)

    def _reopen(self) -> None:
        try:
            description = read_json(self.scratch_dir / DESCRIPTION)
            if description["format_version"] != FORMAT_VERSION:
                raise ValueError(f"format version {description['format_version']}")
            if description["ndim"] != self.ndim:
                raise UsageError(f"{self.scratch_dir} was made with ndim={description['ndim']}, not {self.ndim}")
            if description["max_size"] != self.max_size:
                message = f"{self.scratch_dir} has room for {description['max_size']} records, and max_size is {self.max_size}"
                raise UsageError(message, hint="open it with the size that it was made with, or name another folder")
            if (self.scratch_dir / COUNTERS).stat().st_size != 24:
                raise ValueError(f"{COUNTERS} is not three numbers")
            self._is_plain = bool(description.get("plain"))
            self._map(read_memmap(self.scratch_dir))
            if not 0 <= self.filled <= self.capacity or not -1 <= self.newest < self.capacity:
                raise ValueError(f"it counts {self.filled} rows of {self.capacity}")
        except UsageError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
            message = f"the storage in {self.scratch_dir} is damaged: {reason(error)}"
            raise DamagedDatasetError(message, hint="remove the folder, or name another scratch_dir") from error

    def _reserve(self, rows: int) -> None:
        # Writing into holes of a file on a full disk kills the process.
        if rows <= self._reserved:
            return
        leaves: list[Any] = [self._storage] if self._is_plain else list(self._storage.values(True, True))
        step = RESERVED_BYTES * self.capacity // max(1, sum(leaf.nbytes for leaf in leaves))
        for count in (min(self.capacity, rows + step), rows):
            try:
                for leaf in leaves:
                    allocate(Path(leaf.filename), leaf.nbytes // len(leaf) * count)
                self._reserved = count
                return
            except OSError as error:
                if not is_full(error):
                    raise
                failure = error
        raise self._too_large(rows) from failure

    def _too_large(self, rows: int) -> DiskError:
        message = f"the disk of {self.scratch_dir} is full: there is no room for {rows} records"
        return DiskError(message, hint="make room, or name a scratch_dir on another disk")

    def cleanup(self) -> bool:
        """Remove the files, after which the storage cannot be used. Returns whether there were any files."""
        there = self.scratch_dir.is_dir() and any(self.scratch_dir.iterdir())
        _remove(self.scratch_dir, os.getpid())
        return there

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {**state, "_storage": None, "_counts": np.array(self._counts), "_mapped": self.initialized}

    def __setstate__(self, state: dict[str, Any]) -> None:
        mapped = state.pop("_mapped")
        self.__dict__.update(state)
        if mapped:
            self._map(read_memmap(self.scratch_dir))

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyMemmapStorage:
        """A storage with a copy of the rows, in temporary files that are removed with it."""
        copied = memo[id(self)] = LazyMemmapStorage(self.max_size, ndim=self.ndim)
        copied.load_state_dict(self.state())
        copied._version = self._version
        return copied


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # not when a fork of the process ends
        shutil.rmtree(folder, ignore_errors=True)
