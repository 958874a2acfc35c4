"""How records come into a buffer: transforms, the writer, and what the sampler learns of it."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from tensordict import TensorDict, is_tensor_collection
from typing_extensions import Self

from .locking import LockMixin
from .overrides import is_overridden
from .samplers.consuming import ConsumingSampler, ReusingWriter
from .storages.column_access import is_key, write_column, write_records
from .storages.trees import copy_of, move_dim_first
from .transforms.chain import Transforms
from .windows.edges import as_key
from .writers.base import Writer


class WritingMixin(LockMixin):
    """The part of `ReplayBuffer` that writes."""

    _transforms: Transforms
    _dim_extend: int
    _warned_of_add = False

    @property
    def _swapped_dim(self) -> int:
        """Where `extend` is given the first dimension of the storage, if elsewhere than in front."""
        return self._dim_extend if self._storage.ndim > 1 else 0

    def add(self, data: Any) -> Any:
        """Write one record; returns its row (an int; None where the writer does not keep it).

        Warns once when a TensorDict has a batch dimension: it is stored as one record, with whatever is in it.
        """
        if not self._warned_of_add and is_tensor_collection(data) and data.ndim:
            self._warned_of_add = True
            warnings.warn(
                f"Using `add()` with a TensorDict that has batch_size={tuple(data.batch_size)}: it becomes one record; "
                "extend() writes a record for each of its rows",
                stacklevel=3,
            )
        if len(self._transforms):
            # Transforms are written for batches with a time dimension.
            nested = is_tensor_collection(data)
            data = self._transforms.inv(data.unsqueeze(-1) if nested else data)
            if data is None:
                return None
            data = data.squeeze(-1) if nested else data
        with self._writing():
            return self._notify_sampler(self._row_writer().add(data), single=True)

    def extend(self, data: Any, *, update_priority: bool | None = None) -> Any:
        """Write a batch of records; returns their rows, int64 ``[n]`` (``[n, ndim]`` for a storage of more dimensions).

        A list is a list of records, a tuple a tree of columns. More records than there is room for: the newest stay.
        Raises SchemaError for other keys, shapes or dtypes than those stored, ReadOnlyError where nothing can be written.
        """
        if len(self._transforms):
            data = self._transforms.inv(data)
        if data is None:
            return torch.zeros((0, self._storage.ndim), dtype=torch.int64)
        with self._writing():
            return self._notify_sampler(
                self._row_writer().extend(move_dim_first(data, self._dim_extend, self._storage.ndim))
            )

    def _row_writer(self) -> Writer | ReusingWriter:
        if isinstance(self._sampler, ConsumingSampler):
            return ReusingWriter(self._writer, self._sampler, self._storage)
        return self._writer

    def _notify_sampler(self, index: Any, *, single: bool = False) -> Any:
        """Tell the sampler of the rows written; returns them. Methods that a user has overridden get them as TorchRL's do."""
        if index is None:
            return None
        sampler, storage = self._sampler, self._storage
        if storage.ndim > 1:
            sampler.reserve(storage.capacity * storage.width)
        if is_overridden(sampler, "mark_update"):
            sampler.mark_update(index, storage=storage)
        name = "add" if single else "extend"
        if not is_overridden(sampler, name):
            getattr(sampler, name)(storage.flat([index] if isinstance(index, int) else index))
            return index
        sampler._written = storage
        try:
            getattr(sampler, name)(index)
        finally:
            sampler._written = None
        return index

    def update_priority(self, index: Any, priority: Any) -> None:
        """Set priorities by row; nothing happens where the sampler has none."""
        if is_overridden(self._sampler, "update_priority"):  # which gets what TorchRL's gets
            index = torch.stack(index, -1) if isinstance(index, tuple) else index
            priority = torch.as_tensor(priority)
        self._check_process()
        with self._lock:
            self._sampler.update_priority(index, priority, storage=self._storage)

    def mark_update(self, index: Any) -> None:
        """Give rows the priority of new records. Raises SamplingError for rows that are not there."""
        self._check_process()
        with self._lock:
            self._sampler.mark_update(index, storage=self._storage)

    def empty(self, empty_write_count: bool = True) -> None:
        """Forget all records, and with ``empty_write_count`` how many were written. Raises ReadOnlyError over a dataset."""
        self._check_process()
        with self._exclusive():
            self._writer.empty(empty_write_count=empty_write_count)
            self._storage.empty()
            self._sampler.empty()

    def __setitem__(self, index: Any, value: Any) -> None:
        if is_key(index):
            with self._writing():
                write_column(self._storage, index, value, self._swapped_dim)
            return
        if len(self._transforms):
            value = self._transforms.inv(value)
        with self._writing():
            write_records(self._storage, index, value, self._swapped_dim)

    def write_all(self, data: Any, end: int | None = None) -> None:
        """``self[:end] = data``; ``end`` is the number of records in the data if not given."""
        end = len(data) if end is None and not self._swapped_dim else end
        self[:end] = data

    def set_(self, key: Any, value: Any) -> Self:
        """Change a leaf of all records, as they are stored: ``[*storage.shape, ...]``, without transforms."""
        with self._writing():
            write_column(self._storage, key, value, 0)
        return self

    def set_at_(self, key: Any, value: Any, index: Any) -> Self:
        """Change a leaf of the records at ``index``, as they are stored."""
        with self._writing():
            records = copy_of(self._storage.get(index)).set_(key, value)
            write_records(self._storage, index, records, 0)
        return self

    def update_(self, input_dict_or_td: Any, clone: bool = False, *, keys_to_update: Any = None) -> Self:
        """Change the leaves of all records that are given (or only ``keys_to_update`` of them); values are always copied."""
        wanted = None if keys_to_update is None else {as_key(key) for key in keys_to_update}
        for key, value in TensorDict(input_dict_or_td, []).items(True, True):
            path = as_key(key)
            if wanted is None or any(path[: len(key)] == key for key in wanted):
                self.set_(key, value)
        return self
