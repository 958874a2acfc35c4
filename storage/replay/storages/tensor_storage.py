"""Storages of tensors: one tensor for each leaf, allocated once, written like a ring.

`TensorStorage` takes over an existing batch; `LazyTensorStorage` allocates at the first record, which determines keys, shapes
and dtypes. A batch is a TensorDict, a tensorclass, a tensor, or a tree of these (tuples, lists, dictionaries). Leaves that are
no tensors are refused: a `ListStorage` takes any object.
"""

from __future__ import annotations

import warnings
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase, is_tensor_collection

from ....errors import SchemaError, UsageError
from ...codecs.codec import Rows
from ...row_index import row_index
from ..devices import check_device
from ..timeline import Key, path_of
from .rows import check_no_gap, index_error, is_number, leaves_of, written_rows
from .storage import Storage
from .trees import as_batch, check_tensors, columns_of, rows_of, tree_copied, tree_map

#: How often torch has seen a tensor change in place.
_changes = attrgetter("_version")


class TensorStorage(Storage):
    """An existing batch, ``[max_size, ...]``, in its own memory."""

    def __init__(
        self, storage: Any, max_size: int | None = None, *, device: Any = "cpu", ndim: int = 1, compilable: bool = False
    ) -> None:
        if storage is None and max_size is None:
            raise UsageError("the storage must be non-null: a TensorStorage takes over a batch that is there")
        if storage is not None:
            storage = tree_map(lambda part: part.detach(), check_tensors(storage))
            rows = rows_of(storage, ndim)
            if max_size is not None and max_size not in (rows[0], rows.numel()):
                raise UsageError(f"max_size and storage shape mismatch: {max_size} for a storage of {list(rows)}")
            max_size = rows.numel()
        super().__init__(max_size, ndim=ndim, compilable=compilable)  # type: ignore[arg-type]
        self._device = None if device in (None, "auto") else check_device(device)
        self._storage: Any = None
        self._rows, self._warned = torch.Size(), False  # along all dimensions that count as rows
        self._leaves: dict[str, Rows] | None = None
        self.filled = 0
        if storage is not None:
            if self._device is not None and device != "cpu":
                storage = tree_map(lambda part: part.to(self._device), storage)
            self._take_over(storage)
            self.filled, self.newest = self.capacity, self.capacity - 1

    def _take_over(self, data: Any) -> None:
        """Make tensors the memory of the storage."""
        self._storage, self._rows = data, rows_of(data, self.ndim)
        self.max_size, self.capacity, self.width = self._rows.numel(), self._rows[0], self._rows[1:].numel()
        self._leaves = leaves_of(data, self.ndim)
        self._columns = columns_of(data)
        self._counted = [column for column in self._columns.values() if not column.is_inference()]
        self._version += 1

    @property
    def initialized(self) -> bool:
        """Whether memory is allocated."""
        return self._storage is not None

    @property
    def version(self) -> Any:
        # Views share the counter that torch keeps of changes in place: a program may write to a leaf of `storage[:]`.
        return self._version, 0 if self._storage is None else sum(map(_changes, self._counted))

    @property
    def device(self) -> torch.device | None:
        return self._device

    @property
    def shape(self) -> torch.Size:
        return torch.Size([self.filled, *self._rows[1:]])

    def capacity_for(self, batch: Any) -> int:
        if self.ndim == 1 or self._storage is not None:
            return self.capacity
        return -(-self.max_size // max(1, rows_of(batch, self.ndim)[1:].numel()))

    @property
    def batch_tail(self) -> tuple[int, ...]:
        return tuple(self._storage.batch_size[self.ndim :]) if is_tensor_collection(self._storage) else ()

    def leaves(self) -> dict[str, Rows] | None:
        return self._leaves

    # -- reading -----------------------------------------------------------------------------------------------------

    def contents(self) -> Any:
        """Return the filled rows, as views."""
        return self._storage if self.is_full else tree_map(lambda part: part[: self.filled], self._storage)

    def get(self, index: Any) -> Any:
        if not self.initialized:
            raise SchemaError("the storage is empty: nothing was written yet")
        if isinstance(index, tuple) and len(index) == 1:
            index = index[0]
        if not isinstance(index, tuple) and not (self.ndim > 1 and getattr(index, "ndim", 1) > 1):
            index = row_index(index, self.filled, "record")
        elif isinstance(index, np.ndarray):
            index = torch.from_numpy(index)
        try:
            return tree_map(lambda part: part[index], self.contents())
        except (IndexError, TypeError, ValueError, RuntimeError) as error:
            raise index_error(index, self.shape, error) from error

    # -- writing -----------------------------------------------------------------------------------------------------

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        if isinstance(cursor, tuple) and self.ndim > 1:
            self._set_at(cursor, data)
            return
        data, before = as_batch(data), self.filled
        if not isinstance(cursor, slice):
            cursor, data = self._placed(cursor, data)
        count = rows_of(data, 1)[0]
        rows = written_rows(cursor, before)
        room = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        if room != count:
            raise SchemaError(f"{count} records do not fit into the places given: {room}")
        if not count:
            return
        if self._storage is None:
            with torch.inference_mode(False):
                self._allocate(tree_map(lambda part: part[0], data))
        check_no_gap(rows, before, self.capacity)
        pairs = self._paired(data)
        end = rows.stop if isinstance(rows, slice) else int(rows.max()) + 1
        self._reserve(end)
        with torch.no_grad():
            for column, values in pairs:
                column[rows] = values if values.device == column.device else values.to(column.device)
        self.filled = max(before, end)
        self._note_write(rows, before, set_cursor)

    def _placed(self, cursor: Any, data: Any) -> tuple[Any, Any]:
        """A cursor of one dimension, and the records for it: one number takes one record."""
        cursor = cursor[0] if isinstance(cursor, tuple) else cursor
        dims = getattr(cursor, "ndim", 1)
        if dims > 1:
            return cursor.reshape(-1), tree_map(lambda part: part.reshape(-1, *part.shape[dims:]), data)
        return cursor, tree_map(lambda part: part[None], data) if is_number(cursor) else data

    def _set_at(self, index: tuple[Any, ...], data: Any) -> None:
        """Change records at an index over several dimensions."""
        data, pairs = as_batch(data), []
        try:
            for column, values in self._paired(data, lead=None):
                room = column[: self.filled][index]
                if values.shape != room.shape and (is_tensor_collection(data) or values.ndim != room.ndim):
                    message = f"the data have batch size {list(getattr(data, 'batch_size', values.shape))}"
                    raise SchemaError(f"{message}, which does not fit records of shape {list(room.shape)}")
                pairs.append((column[: self.filled], values.to(column.device)))
        except (IndexError, TypeError) as error:
            raise index_error(index, self.shape, error) from error
        with torch.no_grad():
            for column, values in pairs:
                column[index] = values
        self._version += 1

    def _paired(self, data: Any, lead: int | None = 1) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each stored leaf with the values to write, whose rows begin after ``lead`` dimensions.

        Raises SchemaError, before anything is written, for leaves that are missing, and for other shapes and dtypes.
        """
        columns, given = self._columns, columns_of(data)
        if given.keys() != columns.keys():
            given = self._fitted(given)
        pairs = []
        for key, column in columns.items():
            values = given[key]
            if values.dtype != column.dtype or (lead is not None and values.shape[lead:] != column.shape[lead:]):
                name = path_of(key) if key else "the records"
                given_as, stored = (
                    f"{str(one.dtype).removeprefix('torch.')} {list(one.shape[lead or 0 :])}"
                    for one in (values, column)
                )
                message = f"key {name}: got {given_as}, the storage holds {stored}"
                raise SchemaError(message, hint="the first record determines shapes and dtypes")
            values = values.detach()
            if values.untyped_storage().data_ptr() == column.untyped_storage().data_ptr():
                values = values.clone()  # of rows of this storage, which the write changes
            pairs.append((column, values))
        return pairs

    def _fitted(self, given: dict[Key, torch.Tensor]) -> dict[Key, torch.Tensor]:
        """The given leaves, if none of those stored is missing; others are not stored. Raises SchemaError."""
        missing = ", ".join(path_of(key) for key in self._columns if key not in given)
        more = ", ".join(path_of(key) for key in given if key not in self._columns and key != ("index",))
        if missing:
            words = f"without {missing}" + (f" and with {more}" if more else "")
            hint = "records have the keys of the first one; a ListStorage keeps records of any keys"
            raise SchemaError(f"records come {words}, unlike those stored", hint=hint)
        if more and not self._warned:
            self._warned = True
            warnings.warn(f"{more} came after the first record, and is not stored", stacklevel=6)
        return given

    def _reserve(self, rows: int) -> None:
        """Reserve space for the first ``rows`` rows, which are about to be written. Raises DiskError."""

    def _allocate(self, example: Any) -> None:
        raise AssertionError("a TensorStorage is allocated from the start")

    def _empty(self) -> None:
        self.filled, self.newest, self.in_order = 0, -1, True
        self._version += 1

    # -- saving -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the contents."""
        return tree_copied(self.state())

    def state(self) -> dict[str, Any]:
        """Return the contents, as views."""
        data = None if not self.filled else self.contents()
        return {"_storage": data, "_len": len(self), "newest": self.newest, "in_order": self.in_order}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over contents (copied). Raises SchemaError, before anything is written, if they do not fit."""
        data, newest = state["_storage"], state["newest"]
        if data is None:
            self._empty()
            return
        data = check_tensors(data)
        if (
            isinstance(data, TensorDictBase)
            and is_tensor_collection(self._storage)
            and not isinstance(self._storage, TensorDictBase)
        ):
            data = type(self._storage).from_tensordict(data)
        rows = rows_of(data, self.ndim)
        if rows[0] > self.capacity_for(data) or type(newest) is not int or not -1 <= newest < rows[0]:
            raise SchemaError(
                f"{rows[0]} rows, the last one written {newest}, do not fit into {self.capacity_for(data)}"
            )
        if not self.initialized:
            with torch.inference_mode(False):
                self._allocate(tree_map(lambda part: part[0], data))
        pairs = self._paired(data)
        more = [path_of(key) for key in columns_of(data) if key not in self._columns]
        if more:
            raise SchemaError(f"the state's records come with {', '.join(more)}, unlike those stored")
        self._reserve(rows[0])
        with torch.no_grad():
            for column, values in pairs:
                column[: rows[0]] = values
        self.filled, self.newest = rows[0], newest
        # A ring that has wrapped is none any more in a larger storage.
        self.in_order = bool(state["in_order"]) and (newest == rows[0] - 1 or rows[0] == self.capacity)
        self._version += 1

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_timelines": {}, "_leaves": None, "_columns": None, "_counted": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.initialized:
            version = self._version
            self._take_over(self._storage)
            self._version = version

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={tuple(self.shape)}, max_size={self.max_size}, device={self._device})"


class LazyTensorStorage(TensorStorage):
    """Allocates at the first record. ``device="auto"`` takes the device of the first data.

    With ``ndim`` > 1 the first data determine the further dimensions, and ``max_size`` is rounded up to full rows.
    ``shared_init`` has no effect.
    """

    def __init__(
        self,
        max_size: int,
        *,
        device: Any = "cpu",
        ndim: int = 1,
        compilable: bool = False,
        shared_init: bool = False,
    ) -> None:
        super().__init__(None, max_size, device=device, ndim=ndim, compilable=compilable)
        self._auto = device == "auto"

    def _allocate(self, example: Any) -> None:
        if self._auto:
            self._device = next(iter(columns_of(example).values())).device
        rows = -(-self.max_size // max(1, rows_of(example, self.ndim - 1).numel()))
        self._take_over(tree_map(lambda part: self._room(part, rows), example))

    def _room(self, part: Any, rows: int) -> Any:
        """Memory for ``rows`` of a record."""
        if not is_tensor_collection(part):
            return torch.empty((rows, *part.shape), dtype=part.dtype, device=self._device)
        wide = part.to(self._device).expand(rows, *part.batch_size)
        # In order, whatever the order of the first record (a permuted frame): windows are read leaf by leaf.
        return wide.apply(lambda leaf: torch.empty_like(leaf, memory_format=torch.contiguous_format))
