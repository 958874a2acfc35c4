"""Storages of tensors: one tensor for each leaf, allocated once, written like a ring.

`TensorStorage` takes over a batch that is there; `LazyTensorStorage` allocates when the first record comes and its keys,
shapes and dtypes are known. After that every write must bring the same ones.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, TensorDict, is_tensor_collection
from torch.utils import _pytree as pytree

from ....errors import SchemaError, UsageError
from ..windows.draw import Key
from .gather import Readable, TensorRows
from .process_lock import ProcessLock
from .storage import Storage
from .trees import stack, tree_map

# Counters, shared with other processes where the storage is: rows filled along the first dimension, the row written
# last, and how many writes there were.
FILLED, NEWEST, VERSION = range(3)


class TensorStorage(Storage):
    """A batch that is there already, ``[max_size, ...]``: a TensorDict, a tensorclass, a tensor, or a tree of tensors."""

    def __init__(self, storage: Any, max_size: int | None = None, *, device: Any = "cpu", ndim: int = 1) -> None:
        self._data: Any = None
        self._device = None if device is None or device == "auto" else torch.device(device)
        size = None if storage is None else _batch_shape(storage, ndim)
        super().__init__(max_size if max_size is not None else int(size.numel()) if size is not None else 0, ndim=ndim)
        # What is read is NumPy's view, which is quick, but stays behind when torch moves a tensor to shared memory.
        self._counters = torch.tensor([0, -1, 0])
        self._count: Any = self._counters.numpy()
        self._write_lock: ProcessLock | None = None
        self._rows_shape: torch.Size | None = None
        self._table: dict[str, Readable] | None = None
        if storage is not None:
            if self._device is not None and device != "cpu":
                storage = tree_map(lambda leaf: leaf.to(self._device), storage)
            self._set_data(storage)
            self._count[FILLED] = self.capacity
            self._count[NEWEST] = self.capacity - 1

    def _set_data(self, data: Any) -> None:
        self._data = data
        self._rows_shape = _batch_shape(data, self.ndim)
        self.max_size = int(self._rows_shape.numel())
        self._table = _fields(data, self.ndim)

    @property
    def initialized(self) -> bool:
        """Whether memory is allocated."""
        return self._data is not None

    @property
    def version(self) -> int:
        return int(self._count[VERSION])

    @property
    def filled(self) -> int:
        return int(self._count[FILLED])

    @property
    def newest(self) -> int:
        return int(self._count[NEWEST])

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
        return nullcontext() if self._write_lock is None else self._write_lock

    @property
    def is_shared(self) -> bool:
        return self._counters.is_shared()

    # -- reading -----------------------------------------------------------------------------------------------------

    def get(self, index: Any) -> Any:
        if self._data is None:
            self._check_own_memory()
            raise SchemaError("the storage is empty: nothing was written yet")
        if isinstance(index, list):
            index = torch.as_tensor(index)
        elif isinstance(index, range):
            index = torch.arange(index.start, index.stop, index.step)
        if isinstance(index, (torch.Tensor, np.ndarray)) and index.ndim == 1 and index.dtype != torch.bool:
            return tree_map(lambda leaf: _take(leaf, index), self.contents())
        return tree_map(lambda leaf: leaf[index], self.contents())

    def contents(self) -> Any:
        """What is filled, as views."""
        if self.is_full:
            return self._data
        return tree_map(lambda leaf: leaf[: self.filled], self._data)

    def column(self, key: Key) -> torch.Tensor | None:
        if not is_tensor_collection(self._data):
            raise UsageError("episodes can only be told apart in a storage of TensorDicts")
        leaf = self._data.get(key if len(key) > 1 else key[0], None)
        return None if leaf is None else _plain(leaf[: self.filled]).flatten(0, self.ndim - 1)

    # -- writing -----------------------------------------------------------------------------------------------------

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        single = isinstance(cursor, (int, np.integer)) or (isinstance(cursor, torch.Tensor) and not cursor.ndim)
        if isinstance(data, list):
            data = stack(data)
        elif isinstance(data, LazyStackedTensorDict):
            data = data.contiguous()
        if not is_tensor_collection(data):
            data = _tensors(data)
        if single:
            cursor, data = slice(int(cursor), int(cursor) + 1), tree_map(lambda leaf: leaf[None], data)
        if self._data is None:
            self._check_own_memory()
            self._allocate(tree_map(lambda leaf: leaf[0], data))
        elif isinstance(cursor, range):
            cursor = torch.arange(cursor.start, cursor.stop, cursor.step)
        _check_same(self._data, data, self.ndim, cursor[0].ndim if isinstance(cursor, tuple) else None)
        rows = _highest(cursor, self.capacity) + 1
        if rows > self.capacity:
            raise SchemaError(f"row {rows - 1} is beyond a storage of {self.capacity}")
        self._write(cursor, data)
        self._count[FILLED] = max(self.filled, rows)
        if set_cursor:
            self._count[NEWEST] = _last(cursor, self.capacity)
        self._count[VERSION] += 1

    def _check_own_memory(self) -> None:
        if self.filled:
            message = "the first record was written by another process, into memory that this one does not share"
            raise UsageError(message, hint="write a record before processes start, or use a LazyMemmapStorage")

    def _write(self, cursor: Any, data: Any) -> None:
        if is_tensor_collection(self._data):
            for key, leaf in data.items(include_nested=True, leaves_only=True):
                target = self._data.get(key)
                if isinstance(target, torch.Tensor):
                    _plain(target)[cursor] = leaf.to(target.device)
                else:
                    self._data[cursor] = data  # non-tensor leaves: tensordict knows how
                    return
            return
        for target, leaf in zip(pytree.tree_leaves(self._data), pytree.tree_leaves(data)):
            target[cursor] = leaf.to(target.device)

    def capacity_for(self, batch: Any) -> int:
        if self._data is not None or self.ndim == 1:
            return self.capacity
        return -(-self.max_size // max(1, int(_batch_shape(batch, self.ndim)[1:].numel())))

    def _allocate(self, example: Any) -> None:
        raise AssertionError("a TensorStorage is allocated from the start")

    def empty(self) -> None:
        self._count[FILLED], self._count[NEWEST] = 0, -1
        self._count[VERSION] += 1

    _empty = empty

    # -- saving and sharing ------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        data = None if self._data is None else tree_map(lambda leaf: leaf.clone(), self.contents())
        return {"data": data, "filled": self.filled, "newest": self.newest, "shape": tuple(self._rows_shape or ())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["data"] is None:
            self.empty()
            return
        self.restore(state["data"], state["filled"], state["newest"])

    def restore(self, data: Any, filled: int, newest: int) -> None:
        """Take over contents (copied): ``data`` holds the first ``filled`` rows, or more.

        Raises SchemaError, with nothing written, when they do not fit.
        """
        capacity = self.capacity_for(data)
        if filled > capacity:
            raise SchemaError(f"{filled} rows do not fit into a storage of {capacity}")
        if self._data is None:
            self._allocate(tree_map(lambda leaf: leaf[0], data))
        _check_same(self._data, data, self.ndim)
        if filled:
            self._write(slice(0, filled), tree_map(lambda leaf: leaf[:filled], data))
        self._count[FILLED], self._count[NEWEST] = filled, newest
        self._count[VERSION] += 1

    def share_memory_(self) -> TensorStorage:
        """Put data and counters in shared memory, so that processes started later see the same rows."""
        self._counters.share_memory_()
        self._count = self._counters.numpy()
        if self._write_lock is None:
            self._write_lock = ProcessLock()
        if self._data is not None:
            tree_map(lambda leaf: leaf.share_memory_(), self._data)
        return self

    def _prepare_pickle(self) -> None:
        """Be ready for a pickler of multiprocessing, which moves tensors to shared memory."""
        if not self.initialized and get_spawning_popen() is not None:
            message = f"a {type(self).__name__} without records has no memory yet that processes could share"
            raise UsageError(message, hint="extend the buffer before processes start, or use a LazyMemmapStorage")
        if not self._counters.is_shared():
            self._count = self._counters
        if self._write_lock is None:
            self._write_lock = ProcessLock()

    def __getstate__(self) -> dict[str, Any]:
        self._prepare_pickle()
        state = {name: value for name, value in self.__dict__.items() if name not in ("_count", "_table")}
        return {**state, "_timelines": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._count = self._counters.numpy()
        self._table = None if self._data is None else _fields(self._data, self.ndim)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={tuple(self.shape)}, max_size={self.max_size}, device={self._device})"


class LazyTensorStorage(TensorStorage):
    """Allocates when the first record comes. ``device="auto"`` takes that of the first data.

    With ``ndim`` > 1 the further dimensions are those of the first data, and ``max_size`` is rounded up to full rows.
    """

    def __init__(self, max_size: int, *, device: Any = "cpu", ndim: int = 1) -> None:
        self._auto = device == "auto"
        super().__init__(None, max_size, device=device, ndim=ndim)

    def _allocate(self, example: Any) -> None:
        if self._auto:
            self._device = _first_leaf(example).device
        beside = _batch_shape(example, self.ndim - 1)
        rows = -(-self.max_size // int(beside.numel()))
        self._set_data(self._allocate_rows(example, rows))

    def _allocate_rows(self, example: Any, rows: int) -> Any:
        if is_tensor_collection(example):
            data: Any = torch.empty_like(example.to(self._device).expand(rows, *example.batch_size))
        else:
            data = tree_map(
                lambda leaf: torch.empty((rows, *leaf.shape), dtype=leaf.dtype, device=self._device), example
            )
        return tree_map(lambda leaf: leaf.share_memory_(), data) if self.is_shared else data


def _tensors(data: Any) -> Any:
    try:
        return pytree.tree_map(torch.as_tensor, data)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SchemaError(f"a tensor storage takes tensors and numbers: {error}") from error


def _plain(leaf: Any) -> Any:
    return leaf.as_subclass(torch.Tensor) if isinstance(leaf, torch.Tensor) and type(leaf) is not torch.Tensor else leaf


def _take(data: Any, index: Any) -> Any:
    if isinstance(data, torch.Tensor) and type(data) is torch.Tensor and data.ndim:
        index = torch.as_tensor(index)
        return data.index_select(0, torch.where(index < 0, index + len(data), index).to(data.device))
    return data[index]


def _first_leaf(data: Any) -> torch.Tensor:
    if is_tensor_collection(data):
        return next(iter(data.values(True, True)))
    return pytree.tree_leaves(data)[0]


def _batch_shape(data: Any, ndim: int) -> torch.Size:
    """The leading ``ndim`` dimensions. Raises SchemaError when the data have fewer."""
    if is_tensor_collection(data):
        shape = data.batch_size
    else:
        leaves = pytree.tree_leaves(data)
        if not leaves or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
            raise SchemaError(f"a tensor storage takes tensors, not {type(data).__name__}")
        shape = leaves[0].shape
    if len(shape) < ndim:
        raise SchemaError(f"data with batch {tuple(shape)} have fewer than {ndim} dimensions")
    return torch.Size(shape[:ndim])


def _fields(data: Any, ndim: int) -> dict[str, Readable] | None:
    """The leaves to be read one by one, where the data are a plain TensorDict of plain tensors."""
    if not isinstance(data, TensorDict) or data.names != [None] * len(data.batch_size):
        return None
    fields: dict[str, Readable] = {}
    for key, leaf in data.items(include_nested=True):
        if isinstance(leaf, torch.Tensor):
            names = (key,) if isinstance(key, str) else key
            if any("/" in name for name in names) or not leaf.is_contiguous() or leaf.layout != torch.strided:
                return None
            fields["/".join(names)] = TensorRows("/".join(names), _plain(leaf).flatten(0, ndim - 1))
        elif type(leaf) is not TensorDict or leaf.batch_size != data.batch_size or not len(leaf.keys()):
            return None
    return fields or None


def _describe(leaf: torch.Tensor, ndim: int) -> str:
    return f"{str(leaf.dtype).removeprefix('torch.')} {list(leaf.shape[ndim:])}"


def _check_same(stored: Any, data: Any, ndim: int, lead: int | None = None) -> None:
    """Raise SchemaError unless the data have the stored keys, dtypes and shapes.

    ``lead`` dimensions of the data number records, where they do not stand for the storage's own.
    """
    if is_tensor_collection(stored) != is_tensor_collection(data):
        raise SchemaError(f"the storage holds a {type(stored).__name__}, not a {type(data).__name__}")
    if not is_tensor_collection(stored):
        if pytree.tree_structure(stored) != pytree.tree_structure(data):
            raise SchemaError("the data are not built like those in the storage")
        leaves = zip(pytree.tree_leaves(stored), pytree.tree_leaves(data))
        pairs = [(str(number), pair) for number, pair in enumerate(leaves)]
    else:
        there, given = set(stored.keys(True, True)), set(data.keys(True, True))
        if there != given:
            missing, unknown = (
                sorted("/".join(_names(key)) for key in keys) for keys in (there - given, given - there)
            )
            words = [f"{what} {', '.join(keys)}" for what, keys in (("without", missing), ("with", unknown)) if keys]
            raise SchemaError(
                f"the data come {' and '.join(words)}", hint="every write needs the keys of the first one"
            )
        pairs = [("/".join(_names(key)), (stored.get(key), data.get(key))) for key in there]
    for name, (old, new) in pairs:
        if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
            continue
        fits = old.shape[1:] == new.shape[1:] if lead is None else old.shape[ndim:] == new.shape[lead:]
        if not fits or old.dtype != new.dtype:
            message = f"key {name}: got {_describe(new, ndim)}, the storage holds {_describe(old, ndim)}"
            if lead is None and old.shape[1:ndim] != new.shape[1:ndim]:
                message += f", and {list(new.shape[1:ndim])} beside each other instead of {list(old.shape[1:ndim])}"
            raise SchemaError(message)


def _names(key: Any) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else key


def _highest(cursor: Any, capacity: int) -> int:
    if isinstance(cursor, slice):
        return max(cursor.indices(capacity)[1] - 1, -1)
    if isinstance(cursor, tuple):
        cursor = cursor[0]
    if isinstance(cursor, torch.Tensor) and cursor.dtype == torch.bool:
        cursor = cursor.nonzero()
    cursor = torch.as_tensor(cursor)
    return int(cursor.max()) if cursor.numel() else -1


def _last(cursor: Any, capacity: int) -> int:
    if isinstance(cursor, slice):
        return range(*cursor.indices(capacity))[-1]
    return int(torch.as_tensor(cursor).reshape(-1)[-1])
