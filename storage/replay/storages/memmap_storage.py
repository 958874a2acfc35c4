"""A storage in files, for buffers larger than memory, or to be opened again.

The folder is one that ``TensorDict.load_memmap`` opens, or holds a tree of tensors (see `saving`), with two small files
of ours in it:

    rbdata_storage.json       {"format_version": 1, "ndim": 1}; with a tree: {"format_version": 2, "ndim": 1, "tree": ...}
    rbdata_counters.memmap    four int64: rows filled along the first dimension, the row written last, a number that every
                              write increases, odd while rows are written, and how many rows, those written last, are in
                              order of time; older versions wrote three

The counters are mapped, as the data are: a process that opens the folder sees what was written last, also after the writer was
killed, and a process that got the storage by pickling or forking sees new rows as they come. Processes that write do so in
turn, under a lock on the file of the counters.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from tensordict import MemoryMappedTensor

from ....errors import DamagedDatasetError, DatasetExistsError, DiskSpaceError, UsageError, reason
from ...durable import allocate, is_full, system_error, write_atomically
from ...scratch import ScratchFolder
from ...tensordict_folder import check_plain, read_json, regular_size
from ..locks import ProcessLock
from ..saving import create_files, describe_tree, open_files, write_metadata
from .rows import Readable
from .tensor_storage import LazyTensorStorage
from .trees import batch_shape, expand_record, leaves_of

FORMAT_VERSION, FORMAT_VERSION_OF_TREES = 1, 2
DESCRIPTION, COUNTERS = "rbdata_storage.json", "rbdata_counters.memmap"
#: Bytes of rows for which disk space is reserved at a time, before they are written.
RESERVED_BYTES = 16 << 20


class LazyMemmapStorage(LazyTensorStorage):
    """Rows in memory-mapped files below ``scratch_dir``.

    With ``existsok``, a folder that already holds a storage is opened with its contents (``max_size`` must be unchanged);
    without it, the first write to such a folder raises DatasetExistsError. Without ``scratch_dir`` the files are temporary:
    they are removed with the storage, by the process that made them (if that was killed, when the next process needs
    temporary files). ``auto_cleanup`` overrides whether files are removed. Disk space is reserved before rows are written:
    DiskSpaceError if there is not enough. Pickles contain no rows: the unpickled storage has the same files; ``copy.deepcopy``
    copies the rows into temporary files. Changed batches never reach the files. ``shared_init`` and ``cleanup_memmap`` have
    no effect: every process that has the storage may write the first record.
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
        consolidated: bool = False,
        shared_init: bool = False,
        cleanup_memmap: bool = True,
        auto_cleanup: bool | None = None,
    ) -> None:
        if torch.device("cpu" if device in ("auto", None) else device).type != "cpu":
            message = f"files are mapped into the CPU's memory: the device {device} cannot be honored"
            if not shared_init:
                raise UsageError(message, hint="move batches: ReplayBuffer(device=...)")
            warnings.warn(message, stacklevel=2)
        super().__init__(max_size, ndim=ndim, compilable=compilable)
        self._temporary = scratch_dir is None if auto_cleanup is None else auto_cleanup
        self._made_in = os.getpid()
        self._reserved = 0
        self._is_named = scratch_dir is not None
        if scratch_dir is not None:
            self.scratch_dir = Path(scratch_dir).absolute()
        elif self._temporary:
            self._make_scratch()
        else:
            self.scratch_dir = Path(tempfile.mkdtemp(prefix="rbdata-replay-")).absolute()
        self._write_lock = ProcessLock(self.scratch_dir / COUNTERS)
        #: Whether the folder holds files of another storage, which must be neither opened nor overwritten.
        self._occupied = self.scratch_dir.is_dir() and any(self.scratch_dir.iterdir()) and not existsok
        if (self.scratch_dir / DESCRIPTION).exists() and not self._occupied:
            self._reopen()
            self._remove_later()

    def _make_scratch(self) -> None:
        self._scratch: ScratchFolder | None = ScratchFolder()
        self.scratch_dir = self._scratch.path.absolute()

    def _remove_later(self) -> None:
        if self._temporary:
            weakref.finalize(self, _remove, self.scratch_dir, self._made_in)

    def _allocate_rows(self, example: Any, rows: int) -> Any:
        self._remove_later()
        self._reserved = 0
        data = create_files(self.scratch_dir, expand_record(example, rows), [DESCRIPTION, COUNTERS])
        self._describe(data)
        return data

    def _reserve(self, rows: int) -> None:
        # Writing into holes of a file on a full disk kills the process.
        if rows <= self._reserved:
            return
        leaves = [leaf for leaf in leaves_of(self._data) if isinstance(leaf, MemoryMappedTensor)]
        step = RESERVED_BYTES * self.capacity // max(1, sum(leaf.nbytes for leaf in leaves))
        for count in (min(self.capacity, rows + step), rows):
            try:
                for leaf in leaves:
                    allocate(Path(leaf.filename), leaf.nbytes // len(leaf) * count)
            except OSError as error:
                if not is_full(error):
                    raise
                failure = error
            else:
                self._reserved = count
                return
        raise self._too_large(rows) from failure

    def _too_large(self, rows: int) -> DiskSpaceError:
        message = f"the disk of {self.scratch_dir} is full: there is no room for {rows} records"
        return DiskSpaceError(message, hint="make room, or name a scratch_dir on another disk")

    @contextmanager
    def _making_files(self) -> Iterator[None]:
        """Raise DiskSpaceError in place of the errors of tensordict, torch or the system on a full disk."""
        try:
            yield
        except (OSError, RuntimeError) as error:
            if self._data is None:
                self._count = self._counters.numpy()  # the next attempt creates the file of the counters again
            found = system_error(error)
            if found is not None and is_full(found):
                raise self._too_large(1) from error
            raise

    def _describe(self, data: Any) -> None:
        """Write the counters and, last, the description, which makes the files a storage."""
        (self.scratch_dir / COUNTERS).write_bytes(self._counters.numpy().tobytes())
        self._map_counters()
        description: dict[str, Any] = {"format_version": FORMAT_VERSION, "ndim": self.ndim}
        tree = describe_tree(data)
        if tree is not None:
            description |= {"format_version": FORMAT_VERSION_OF_TREES, "tree": tree}
        write_atomically(self.scratch_dir / DESCRIPTION, json.dumps(description).encode())

    def _allocate(self, example: Any) -> None:
        if self._occupied:
            message = f"{self.scratch_dir} is not empty"
            raise DatasetExistsError(message, hint="open the existing files with existsok=True, or name another folder")
        with self.write_lock, self._making_files():
            self._attach()
            if self._data is None:
                super()._allocate(example)

    def _attach(self) -> None:
        """Open the files, if another process has written the first record."""
        if self._data is None and not self._occupied and (self.scratch_dir / DESCRIPTION).exists():
            self._reopen()

    @property
    def filled(self) -> int:
        self._attach()
        return super().filled

    def fields(self) -> dict[str, Readable] | None:
        self._attach()
        return super().fields()

    def _begin_write(self) -> None:
        self._attach()
        super()._begin_write()

    @property
    def read_lock(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._data is None else super().read_lock

    @property
    def write_lock(self) -> AbstractContextManager[Any]:
        if self._data is None and self._is_named:
            with self._making_files():
                self.scratch_dir.mkdir(parents=True, exist_ok=True)
                check_plain(self.scratch_dir)  # with existsok it may belong to other programs
                (self.scratch_dir / COUNTERS).touch(0o600)  # the file to lock
        return super().write_lock

    @property
    def is_shared(self) -> bool:
        return True

    def _reopen(self) -> None:
        try:
            description = read_json(self.scratch_dir / DESCRIPTION)
            if description["format_version"] != (FORMAT_VERSION_OF_TREES if "tree" in description else FORMAT_VERSION):
                raise ValueError(f"format version {description['format_version']}")
            if description["ndim"] != self.ndim:
                raise UsageError(f"{self.scratch_dir} was made with ndim={description['ndim']}, not {self.ndim}")
            is_older = self._map_counters()
            data = open_files(self.scratch_dir, description.get("tree"))
            rows = batch_shape(data, self.ndim)
            if rows[0] != -(-self.max_size // max(1, rows[1:].numel())):
                message = f"{self.scratch_dir} has room for {rows.numel()} records, and max_size is {self.max_size}"
                raise UsageError(message, hint="open it with the size that it was made with, or name another folder")
            self._set_data(data)
            if not 0 <= self.filled <= self.capacity or not -1 <= self.newest < self.capacity:
                raise ValueError(f"it counts {self.filled} rows of {self.capacity}")
            if is_older:
                self.ordered = self._ordered_here(self.filled, self.newest, None)
        except UsageError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
            message = f"the storage in {self.scratch_dir} is damaged: {reason(error)}"
            raise DamagedDatasetError(message, hint="remove the folder, or name another scratch_dir") from error

    def _map_counters(self) -> bool:
        """Map the counters; returns whether an older version wrote them, which did not count the rows in order."""
        size = regular_size(self.scratch_dir / COUNTERS)
        if size not in (24, 32):
            raise ValueError(f"{COUNTERS} is not four numbers")
        if size == 24:
            os.truncate(self.scratch_dir / COUNTERS, 32)
        # Shared on purpose: these counters tell other readers which rows have been written.
        self._count = np.memmap(self.scratch_dir / COUNTERS, np.int64, "r+", shape=(4,))
        return size == 24

    def dumps(self, path: Any, hooks: Sequence[Any] = ()) -> None:
        """As `TensorStorage.dumps`; data that lie in ``path`` already are not copied."""
        if hooks or self._data is None or Path(path).absolute() != self.scratch_dir:
            super().dumps(path, hooks)
            return
        write_metadata(self.scratch_dir, self._data, self._counts_to_save())

    def _take_files(self, folder: Path, data: Any, filled: int, newest: int, ordered: int | None) -> None:
        if folder != self.scratch_dir:
            super()._take_files(folder, data, filled, newest, ordered)
            return
        self._accept()
        if self._data is None:  # the files were written as a checkpoint
            with self._making_files():
                self._describe(data)
            self._set_data(data)
            self._occupied = False
        with self.write_lock:
            self._count[:2] = filled, newest
            self.ordered = self._ordered_here(filled, newest, ordered)
            self._count[2] += 2

    def cleanup(self) -> bool:
        """Remove the files, after which the storage cannot be used. Returns whether there were any files."""
        there = self.scratch_dir.is_dir() and any(self.scratch_dir.iterdir())
        _remove(self.scratch_dir, os.getpid())
        return there

    def share_memory_(self) -> LazyMemmapStorage:
        return self  # files are shared as they are

    def _prepare_pickle(self) -> None:
        """Nothing: copies map the files."""

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {**state, "_data": None, "_reopen": self._data is not None, "_temporary": False, "_scratch": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        written = state.pop("_reopen")
        super().__setstate__(state)
        self._write_lock = state["_write_lock"]  # the lock of the files, which is shared even before they exist
        if written:
            self._reopen()

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyMemmapStorage:
        """A storage with a copy of the rows, in temporary files that are removed with it."""
        self._attach()
        with self.read_lock:
            copied: Any = type(self).__new__(type(self))
            memo[id(self)] = copied
            copied.__setstate__(deepcopy({**self.__getstate__(), "_reopen": False}, memo))
            copied._make_scratch()
            copied._temporary, copied._is_named, copied._occupied = True, False, False
            copied._made_in, copied._reserved = os.getpid(), 0
            copied._write_lock = ProcessLock(copied.scratch_dir / COUNTERS)
            if self._data is not None:
                copied.restore(self._data, self.filled, self.newest)
                copied._count[:] = self._count  # samplers compare the version, and the order of the rows is the same
        return cast(LazyMemmapStorage, copied)


LazyTensorStorage.in_files = LazyMemmapStorage


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # not when a fork of the process ends
        shutil.rmtree(folder, ignore_errors=True)
