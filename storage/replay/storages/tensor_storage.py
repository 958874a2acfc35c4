"""Storages of tensors: one tensor for each leaf, allocated once, written like a ring.

`TensorStorage` takes over an existing batch; `LazyTensorStorage` allocates at the first record, which determines keys, shapes
and dtypes. After that all writes must have leaves of the same shapes and dtypes. In memory, a later record may have
additional leaves, which are zero in all other records; if rows are shared or in files, additional leaves are left out. Leaves
that new records lack are zero in them. Values that are not tensors must be the same in all records (see `trees`), unless the
batch of a `TensorStorage` already has one for each record.

Storages are saved to states in memory, and to folders (see `saving`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from functools import partial
from inspect import signature
from multiprocessing.context import get_spawning_popen
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, TensorDictBase, is_leaf_nontensor, is_tensor_collection
from torch.utils import _pytree as pytree

from ....errors import DamagedDatasetError, RowIndexError, SchemaError, UsageError, reason
from ...row_index import of_one_dimension, row_index
from ..devices import check_device
from ..locks import ProcessLock
from ..saving import read_contents, reading, write_contents, write_files, write_metadata
from ..timeline import Key, entry_at, path_of
from .rows import Readable, check_no_gap, is_number, numbers_of, plain, readable_fields, take_rows, written_rows
from .storage import Result, Storage
from .trees import (
    VALUES_HINT,
    MemoryOf,
    Pairs,
    as_list,
    as_tensors,
    batch_shape,
    clone_tensors,
    copy_of,
    expand_record,
    from_state,
    leaves_of,
    listed_values,
    pair_leaves,
    partial_keys,
    plain_pairs,
    repeat_values,
    share_memory,
    shared_values,
    stack,
    tree_map,
)


def _dense(data: LazyStackedTensorDict) -> TensorDictBase:
    """The records of a lazy stack in tensors. Raises SchemaError if their shapes differ."""
    try:
        return data.contiguous()
    except RuntimeError as error:
        message = "the records are not alike: leaves of the lazy stack have other shapes, or dtypes, in some of them"
        raise SchemaError(message, hint="a ListStorage keeps records of unlike shapes") from error


# Counters, shared with other processes where the storage is: rows filled along the first dimension, the row written
# last, a number that every write increases, and how many of the last rows are in order of time. The third is odd while rows
# that are shared are written: who reads looks at it before and after (a sequence lock), and takes the lock of the writers
# only where it was odd or has changed.
FILLED, NEWEST, VERSION, ORDERED = range(4)

#: The counter of in-place changes that torch keeps for a tensor.
_changes = attrgetter("_version")


class TensorStorage(Storage):
    """An existing batch, ``[max_size, ...]``: a TensorDict, a tensorclass, a tensor, or a tree of tensors."""

    def __init__(
        self, storage: Any, max_size: int | None = None, *, device: Any = "cpu", ndim: int = 1, compilable: bool = False
    ) -> None:
        self._data: Any = None
        self._device = None if device is None or device == "auto" else check_device(device)
        rows = None if storage is None else batch_shape(storage, ndim)
        if rows is None and max_size is None:
            raise UsageError("the storage must be non-null: a TensorStorage takes over a batch that is there")
        if rows is not None and max_size is not None and max_size not in (rows[0], rows.numel()):
            raise UsageError(f"max_size and storage shape mismatch: {max_size} for a storage of {list(rows)}")
        size = max_size if rows is None else rows.numel()
        super().__init__(size, ndim=ndim, compilable=compilable)  # type: ignore[arg-type]
        # Reads use NumPy's view, which is fast, but keeps the old memory when torch moves a tensor to shared memory.
        self._counters = torch.tensor([0, -1, 0, 0], device="cpu")
        self._count: Any = self._counters.numpy()
        self._write_lock: ProcessLock | None = None
        self._rows_shape: torch.Size | None = None
        self._table: dict[str, Readable] | None = None
        self._tensors: list[torch.Tensor] = []
        self._memory: tuple[bool, MemoryOf] | None = None
        self._listed: tuple[Any, ...] = ()
        self._warned: set[str] = set()
        if storage is not None:
            if any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves_of(storage)):
                storage = tree_map(lambda leaf: leaf.detach(), storage)  # in the same memory
            if self._device is not None and device != "cpu":
                storage = tree_map(lambda leaf: leaf.to(self._device), storage)
            self._set_data(storage)
            self._count[FILLED] = self.ordered = self.capacity
            self._count[NEWEST] = self.capacity - 1

    def _set_data(self, data: Any) -> None:
        self._data = data
        self._rows_shape = batch_shape(data, self.ndim)
        self.max_size = int(self._rows_shape.numel())
        self._note_leaves()
        self._listed = listed_values(data)

    def _note_leaves(self) -> None:
        self._table = None if self._data is None else readable_fields(self._data, self.ndim)
        self._memory = None
        leaves = pytree.tree_leaves(self._data.to_dict() if is_tensor_collection(self._data) else self._data)
        self._tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not leaf.is_inference()]

    @property
    def initialized(self) -> bool:
        """Whether memory is allocated."""
        return self._data is not None

    @property
    def version(self) -> int:
        return int(self._count[VERSION])

    @property
    def contents_version(self) -> Any:
        # Views share the counter that torch keeps of changes in place.
        return self.version, sum(map(_changes, self._tensors))

    @property
    def filled(self) -> int:
        return int(self._count[FILLED])

    @property
    def newest(self) -> int:
        return int(self._count[NEWEST])

    @property
    def ordered(self) -> int:
        return int(self._count[ORDERED])

    @ordered.setter
    def ordered(self, rows: int) -> None:
        self._count[ORDERED] = rows

    @property
    def device(self) -> torch.device | None:
        return self._device

    @property
    def width(self) -> int:
        return 1 if self._rows_shape is None else int(self._rows_shape[1:].numel())

    @property
    def shape(self) -> torch.Size:
        return torch.Size([self.filled, *(self._rows_shape[1:] if self._rows_shape is not None else ())])

    @property
    def capacity(self) -> int:
        return self.max_size if self._rows_shape is None else self._rows_shape[0]

    @property
    def batch_tail(self) -> tuple[int, ...]:
        return tuple(self._data.batch_size[self.ndim :]) if is_tensor_collection(self._data) else ()

    def fields(self) -> dict[str, Readable] | None:
        return self._table

    @property
    def write_lock(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._write_lock is None else self._marked(self._write_lock)

    @contextmanager
    def _marked(self, lock: ProcessLock) -> Iterator[None]:
        with lock:
            if lock.depth > 1:
                yield
                return
            self._begin_write()
            try:
                yield
            finally:
                self._count[VERSION] += 1

    def _begin_write(self) -> None:
        self._count[VERSION] += 1 + self.version % 2  # already odd if the last writer was killed

    @property
    def read_lock(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._write_lock is None else self._unmarked(self._write_lock)

    @contextmanager
    def _unmarked(self, lock: ProcessLock) -> Iterator[None]:
        with lock:
            if self.version % 2 and lock.depth == 1:
                self._count[VERSION] += 1
            yield

    def read_whole(self, read: Callable[[], Result]) -> Result:
        if not self.is_shared:
            return read()
        version = self.version
        if version % 2 == 0:
            try:
                result = read()
            except Exception:
                if self.version == version:
                    raise
            else:
                if self.version == version:
                    return result
        with self.read_lock:
            return read()

    @property
    def is_shared(self) -> bool:
        return self._counters.untyped_storage().is_shared()  # as Tensor.is_shared, without its detours

    # -- reading -----------------------------------------------------------------------------------------------------

    def get(self, index: Any) -> Any:
        if self._data is None:
            self._check_own_memory()
            raise SchemaError("the storage is empty: nothing was written yet")
        if isinstance(index, tuple) and len(index) == 1:
            index = index[0]
        is_wide_mask = getattr(index, "dtype", None) in (torch.bool, np.bool_) and index.ndim > 1
        if index is not None and not isinstance(index, tuple) and not (self.ndim > 1 and is_wide_mask):
            index = row_index(index, self.filled, "record")
        try:
            records = tree_map(lambda leaf: take_rows(leaf, index), self.contents())
        except (IndexError, TypeError, ValueError) as error:
            message = f"{index!s:.60} does not fit records of shape {list(self.shape)}: {reason(error)}"
            raise RowIndexError(message) from error
        return repeat_values(records) if self._table is None and is_tensor_collection(records) else records

    def _records_to_change(self, index: Any, key: Any) -> Any:
        """Only the leaf ``key``, as stored: a user's ``get`` may return other values."""
        records = TensorStorage.get(self, index)
        return records.select(key, strict=False) if is_tensor_collection(records) else records

    def contents(self) -> Any:
        """The filled rows, as views."""
        return self._data if self.is_full else tree_map(lambda leaf: leaf[: self.filled], self._data)

    def column(self, key: Key) -> torch.Tensor | None:
        if not is_tensor_collection(self._data):
            raise UsageError("episodes can only be told apart in a storage of TensorDicts")
        leaf = entry_at(self._data, key)
        return None if leaf is None else plain(leaf[: self.filled]).flatten(0, self.ndim - 1)

    # -- writing -----------------------------------------------------------------------------------------------------

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        with self.write_lock:
            self._set(cursor, data, set_cursor)

    def _copied_if_own(self, data: Any) -> Any:
        if self._data is None:
            return data
        if self._memory is None or self._memory[0] != self.is_shared:  # sharing moves it
            self._memory = self.is_shared, MemoryOf(self._data)
        if not self._memory[1].holds_any(data):
            return data
        return clone_tensors(data) if is_tensor_collection(data) else copy_of(data)

    def _set(self, cursor: Any, data: Any, set_cursor: bool) -> None:
        if self.ndim == 1 and isinstance(cursor, tuple):
            cursor = of_one_dimension(cursor, "record")
        data = as_list(data)
        if isinstance(data, list):
            if not data:
                self._require_no_rows(cursor)
                return
            data = stack(data)
        data = self._as_leaves(data)
        if is_number(cursor):
            row = int(cursor) if cursor >= 0 else int(written_rows(cursor, self.filled, 1))
            cursor, data = slice(row, row + 1), tree_map(lambda leaf: leaf[None], data)
        elif not isinstance(cursor, tuple) and not batch_shape(data, 1)[0]:
            self._require_no_rows(cursor)
            return
        if self._data is None:
            self._check_own_memory()
            shared_values(data)  # before there is memory for the first record's
            with torch.inference_mode(False):
                self._allocate(tree_map(lambda leaf: leaf[0], data))
        cursor, data, rows, end = self._placed(cursor, data)
        lead = cursor[0].ndim if isinstance(cursor, tuple) else None
        missing: list[Any] = []
        data = self._copied_if_own(data)
        pairs = None if lead is not None else plain_pairs(self._data, data)
        if pairs is None:
            pairs, new, missing = pair_leaves(self._data, data, self.ndim, lead, same_keys=False)
            self._check_other_values(data, new, missing if set_cursor else [])
            if new:
                pairs += self._add_leaves(data, new, self.ndim if lead is None else lead)
        self._reserve(end)
        try:
            self._write(cursor, pairs, data)
        except RuntimeError as error:  # of the first leaf: nothing was written
            raise SchemaError(f"the records do not fit into the places given: {reason(error)}") from error
        if missing and set_cursor:
            self._warn_once(f"records come without {', '.join(map(path_of, missing))}: zeros are stored")
            for key in missing:
                self._data.get(key)[cursor] = 0
        ordered = self._ordered_after(rows, end, set_cursor)
        self._count[FILLED] = max(self.filled, end)
        if set_cursor:
            self._count[NEWEST] = int(rows[-1])
        self.ordered = ordered
        self._count[VERSION] += 2

    def _as_leaves(self, data: Any) -> Any:
        """Records as a collection whose leaves are tensors with a row for each record."""
        if not is_tensor_collection(data):
            return as_tensors(data)
        if unlike := partial_keys(data):
            names = ", ".join(sorted(map(path_of, unlike)))
            self._warn_once(f"only some of the records have {names}, which is not stored")
        return _dense(data) if isinstance(data, LazyStackedTensorDict) else data

    def _require_no_rows(self, cursor: Any) -> None:
        """Raise SchemaError if an index of rows to write names any: there are no records for them."""
        rows = () if isinstance(cursor, tuple) else numbers_of(written_rows(cursor, self.filled, 0), self.capacity)
        if len(rows):
            raise SchemaError(f"0 records for {len(rows)} places")

    def _placed(self, cursor: Any, data: Any) -> tuple[Any, Any, Any, int]:
        """Matching cursor and data, the rows' numbers, and the end of the filled rows then. Raises RowIndexError."""
        in_order = not isinstance(cursor, tuple)
        given = batch_shape(data, 1)[0] if in_order else 0
        if in_order:
            cursor = written_rows(cursor, self.filled, given)
            if self.ndim == 1 and isinstance(cursor, torch.Tensor) and cursor.ndim > 1:
                shape = cursor.shape
                if cursor.dtype == torch.bool or batch_shape(data, len(shape)) != shape:
                    raise RowIndexError(f"an index of shape {list(shape)} does not fit the records")
                cursor, data = cursor.flatten(), tree_map(lambda leaf: leaf.flatten(0, len(shape) - 1), data)
        rows = numbers_of(cursor, self.capacity)
        if in_order:
            if not len(rows):
                raise SchemaError(f"{given} records for 0 places")
            check_no_gap(cursor, rows, self.filled)
        end = 1 + (int(rows.max()) if isinstance(rows, torch.Tensor) else rows[-1]) if len(rows) else 0
        if end > self.capacity or (given and isinstance(cursor, slice) and (cursor.start or 0) >= self.capacity):
            beyond = cursor.start if isinstance(cursor, slice) else end - 1
            raise RowIndexError(f"row {beyond} is beyond a storage of {self.capacity}")
        return cursor, data, rows, end

    def _check_other_values(self, data: Any, new: list[Any], missing: list[Any]) -> None:
        """Raise SchemaError for values that are not tensors and that some records lack."""
        for keys, records, words in ((new, data, "with"), (missing, self._data, "without")):
            names = [path_of(key) for key in keys if not isinstance(records.get(key), torch.Tensor)]
            if names:
                message = f"records come {words} {', '.join(names)}, which is not a tensor, unlike the first record"
                raise SchemaError(message, hint=VALUES_HINT)

    def _add_leaves(self, data: Any, keys: list[Any], ndim: int) -> Pairs:
        """Allocate additional leaves, zero in all other records, if the storage allows it; returns them in pairs."""
        if self._data.is_locked or self.is_shared:
            self._warn_once(f"{', '.join(map(path_of, keys))} came after the first record, and is not stored")
            return []
        for key in keys:
            leaf = data.get(key)
            shape = (*self._data.batch_size[: self.ndim], *leaf.shape[ndim:])
            with torch.inference_mode(False):
                self._data.set(key, torch.zeros(shape, dtype=leaf.dtype, device=self._data.device or leaf.device))
        self._note_leaves()
        return [(self._data.get(key), data.get(key)) for key in keys]

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, stacklevel=5)

    def leaf(self, key: Key) -> torch.Tensor | None:
        """The tensor of a leaf over all rows, to write to; call `touch` then."""
        leaf = entry_at(self._data, key) if is_tensor_collection(self._data) else None
        return plain(leaf) if isinstance(leaf, torch.Tensor) else None

    def touch(self) -> None:
        """Note a change of the contents, so that values computed from them are recognised as outdated."""
        self._count[VERSION] += 2

    def seek(self, row: int) -> None:
        if self.filled and row != self.cursor:
            self._count[NEWEST] = (row - 1) % self.capacity
            self.ordered = 0
            self.touch()

    def flatten(self) -> Storage:
        if self.ndim == 1:
            return self
        if self._data is None:
            raise SchemaError("nothing was written yet that could be flattened")
        return TensorStorage(tree_map(lambda leaf: leaf.flatten(0, self.ndim - 1), self.contents()))

    def _check_own_memory(self) -> None:
        if self.filled:
            message = "the first record was written by another process, into memory that this one does not share"
            raise UsageError(message, hint="write a record before processes start, or use a LazyMemmapStorage")

    def _reserve(self, rows: int) -> None:
        """Reserve space for the first ``rows`` rows, which are about to be written. Raises DiskSpaceError."""

    @torch.no_grad()
    def _write(self, cursor: Any, pairs: Pairs, data: Any) -> None:
        """Write the tensors of the data, and the values of each record that are not tensors."""
        for target, leaf in pairs:
            plain(target)[cursor] = leaf.to(target.device)
        if self._listed:
            listed = data.select(*self._listed, strict=False)
            self._data.select(*listed.keys(True, True, is_leaf=is_leaf_nontensor))[cursor] = listed

    def capacity_for(self, batch: Any) -> int:
        if self._data is not None or self.ndim == 1:
            return self.capacity
        return -(-self.max_size // max(1, int(batch_shape(batch, self.ndim)[1:].numel())))

    def _allocate(self, example: Any) -> None:
        raise AssertionError("a TensorStorage is allocated from the start")

    def empty(self) -> None:
        with self.write_lock:
            self._count[FILLED], self._count[NEWEST], self._count[ORDERED] = 0, -1, 0
            self._count[VERSION] += 2

    # -- saving -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Copies of the contents, under the names that TorchRL's storages use."""
        data = {} if self._data is None else copy_of(self.contents())
        counts = {"_len": len(self), "newest": self.newest, **self._order_to_save()}
        return {"_storage": data, "initialized": self.initialized, **counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state from `state_dict`, or from TorchRL's tensor storages, which have no newest row."""
        if not state["initialized"]:
            self._accept()
            self.empty()
            return
        data = self._as_stored(from_state(state["_storage"]))
        filled = -(-int(state["_len"]) // int(batch_shape(data, self.ndim)[1:].numel()))
        self._restore(data, filled, state.get("newest", filled - 1), state.get("ordered"))

    def _as_stored(self, data: Any) -> Any:
        """A TensorDict as the stored tensorclass, if one is stored."""
        stored = type(self._data)
        other = isinstance(data, TensorDictBase) and is_tensor_collection(self._data)
        return stored.from_tensordict(data) if other and not issubclass(stored, TensorDictBase) else data

    def dumps(self, path: Any, hooks: Sequence[Any] = ()) -> None:
        """Write the contents to a folder, see `saving`; ``hooks`` change the data before that, see `ted_hooks`."""
        folder = Path(path)
        if not hooks:
            write_contents(folder, self._data, self.filled, self._counts_to_save())
            return
        if not is_tensor_collection(self._data):
            raise UsageError(f"save hooks work on TensorDicts; the storage is a {type(self).__name__}")
        data = self._data
        if not self.is_full:  # rows never written hold arbitrary memory
            data = clone_tensors(data)
            data[self.filled :].zero_()
        folder.mkdir(parents=True, exist_ok=True)
        for hook in hooks:
            hook.is_full, hook.shift = self.is_full, (self.newest + 1) % self.capacity
            data = hook(data, path=folder)
        if isinstance(data, TensorDictBase) and not data.is_memmap():
            write_files(folder, data)
        write_metadata(folder, self._data, self._counts_to_save())

    def _counts_to_save(self) -> dict[str, int]:
        return {"len": len(self), "newest": self.newest, **self._order_to_save()}

    def loads(self, path: Any, hooks: Sequence[Any] = (), cursor: int | None = None) -> None:
        """Read what `dumps`, or TorchRL's, wrote; ``cursor`` is the next row if the folder does not state it.

        Raises DamagedDatasetError if it is incomplete, SchemaError or UsageError if it belongs to another storage.
        """
        folder = Path(path).absolute()
        with reading(folder):
            data, rows, newest, ordered = read_contents(folder, self._data, hooks)
            if data is None:
                self._accept()
                self.empty()
                return
            if is_tensor_collection(data) and len(data.batch_size) < max(1, self.ndim):
                message = "the data were changed by a save hook"
                raise UsageError(message, hint="register the hook that undoes it: register_load_hook(Flat2TED())")
            shape = batch_shape(data, self.ndim)
            filled = rows // int(shape[1:].numel())
            # `extend` would refuse a next row after a gap, but only later, when the buffer is in use.
            if cursor is not None and not 0 <= cursor <= min(filled, shape[0]):
                message = f"{folder}: row {cursor} cannot be the next one: {filled} of {shape[0]} are written"
                raise DamagedDatasetError(message)
            if newest is None:
                newest = ((filled if cursor is None else cursor) - 1) % shape[0] if filled else -1
            if filled > shape[0] or not -1 <= newest < shape[0]:
                raise DamagedDatasetError(f"{folder}: {filled} rows, the last one written {newest}, in {shape[0]} rows")
            self._take_files(folder, data, filled, newest, ordered)

    def _take_files(self, folder: Path, data: Any, filled: int, newest: int, ordered: int | None) -> None:
        """Take over the contents of a folder."""
        self._restore(data, filled, newest, ordered)

    def _restore(self, data: Any, filled: int, newest: int, ordered: int | None) -> None:
        self.restore(data, filled, newest)
        self.ordered = self._ordered_here(filled, newest, ordered)

    def restore(self, data: Any, filled: int, newest: int) -> None:
        """Take over contents (copied): ``data`` holds the first ``filled`` rows, or more.

        Raises SchemaError, before anything is written, if they do not fit.
        """
        capacity = self.capacity_for(data)
        if filled > capacity:
            raise SchemaError(f"{filled} rows do not fit into a storage of {capacity}")
        if newest >= max(filled, 1):
            raise SchemaError(f"the last row written is {newest}, and there are {filled} rows")
        if self._data is not None:
            pairs, _, _ = pair_leaves(self._data, data, self.ndim)
            self._reserve(filled)
        self._accept()
        if self._data is None and not batch_shape(data, self.ndim)[0]:
            self.empty()  # the contents of an emptied storage: there is no record to allocate for
            return
        if self._data is None:
            shared_values(data)
            self._allocate(tree_map(lambda leaf: leaf[0], data))
            pairs, _, _ = pair_leaves(self._data, data, self.ndim)  # perhaps data of another process
            self._reserve(filled)
        if filled:
            pairs = [(target, leaf[:filled]) for target, leaf in pairs]
            self._write(slice(0, filled), pairs, tree_map(lambda leaf: leaf[:filled], data))
        self._count[FILLED], self._count[NEWEST] = filled, newest
        self.ordered = self._ordered_here(filled, newest, None)
        self._count[VERSION] += 2

    # -- sharing -----------------------------------------------------------------------------------------------------

    def share_memory_(self) -> TensorStorage:
        """Put data and counters in shared memory, so that processes started later see the same rows.

        Raises UsageError if records have different values that are not tensors, and DiskSpaceError if there is too little
        shared memory; the storage then stays unchanged.
        """
        if self._listed:
            names = ", ".join(map(path_of, self._listed))
            raise UsageError(f"{names}: values that are not tensors cannot be shared", hint="exclude them")
        if self._data is not None:
            share_memory(self._data)
        self._counters.share_memory_()
        self._count = self._counters.numpy()
        if self._write_lock is None:
            self._write_lock = ProcessLock()
        return self

    def _prepare_pickle(self) -> None:
        """Prepare for a pickler of multiprocessing, which moves tensors to shared memory."""
        if not self.initialized and get_spawning_popen() is not None:
            message = f"a {type(self).__name__} without records has no memory yet that processes could share"
            raise UsageError(message, hint="extend the buffer before processes start, or use a LazyMemmapStorage")
        if not self._counters.is_shared():
            self._count = self._counters
        if self._write_lock is None:
            self._write_lock = ProcessLock()

    def __getstate__(self) -> dict[str, Any]:
        self._prepare_pickle()
        state = {name: value for name, value in self.__dict__.items() if name not in ("_count", "_table", "_tensors")}
        return {**state, "_timelines": {}, "_memory": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._count = self._counters.numpy()
        if not self.is_shared:
            self._write_lock = None  # a copy by value: no other process writes its rows
        self._note_leaves()

    def __deepcopy__(self, memo: dict[int, Any]) -> TensorStorage:
        """A storage with a copy of the rows, shared where this one is."""
        with self.read_lock:
            copied = memo[id(self)] = type(self).__new__(type(self))
            if is_tensor_collection(self._data):
                memo[id(self._data)] = copy_of(self._data)
            copied.__setstate__(deepcopy(self.__getstate__(), memo))
        copied._write_lock = None  # the lock belongs to the original
        return copied.share_memory_() if self.is_shared else copied

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={tuple(self.shape)}, max_size={self.max_size}, device={self._device})"


class LazyTensorStorage(TensorStorage):
    """Allocates at the first record. ``device="auto"`` takes the device of the first data.

    With ``ndim`` > 1 the first data determine the further dimensions, and ``max_size`` is rounded up to full rows.
    With ``shared_init``, processes that start before the first record share the rows as well: rows then lie in temporary files,
    and the storage is a `LazyMemmapStorage`. ``consolidated`` and ``cleanup_memmap`` are accepted and have no effect.
    """

    #: The class whose rows lie in files; set where it is defined.
    in_files: type[LazyTensorStorage]

    def __new__(cls, *args: Any, shared_init: bool = False, **options: Any) -> LazyTensorStorage:
        # Processes that started before the memory existed can find it only in files.
        return super().__new__(cls.in_files if shared_init and cls is LazyTensorStorage else cls)

    def __init__(
        self,
        max_size: int,
        *,
        device: Any = "cpu",
        ndim: int = 1,
        compilable: bool = False,
        consolidated: bool = False,
        shared_init: bool = False,
        cleanup_memmap: bool = True,
    ) -> None:
        self._auto = device == "auto"
        super().__init__(None, max_size, device=device, ndim=ndim, compilable=compilable)

    __new__.__signature__ = signature(__init__)  # type: ignore[attr-defined]

    def _allocate(self, example: Any) -> None:
        if self._auto:
            self._device = leaves_of(example)[0].device
        beside = batch_shape(example, self.ndim - 1)
        self._set_data(self._allocate_rows(example, -(-self.max_size // int(beside.numel()))))

    def _allocate_rows(self, example: Any, rows: int) -> Any:
        if is_tensor_collection(example):
            # In order, whatever the order of the first record (a permuted frame): windows are read leaf by leaf.
            empty_like = partial(torch.empty_like, memory_format=torch.contiguous_format)
            data: Any = expand_record(example.to(self._device), rows).apply(empty_like)
        else:
            empty = partial(torch.empty, device=self._device)
            data = tree_map(lambda leaf: empty((rows, *leaf.shape), dtype=leaf.dtype), example)
        return share_memory(data) if self.is_shared else data
