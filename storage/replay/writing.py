"""How records come into a buffer: transforms, the writer, and what the sampler learns of it."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import is_tensor_collection

from .locking import LockMixin
from .storages.column_access import is_key, write_column, write_records
from .storages.trees import move_dim_first
from .transforms.chain import Transforms


class WritingMixin(LockMixin):
    """The part of `ReplayBuffer` that writes."""

    _transforms: Transforms
    _dim_extend: int

    @property
    def _swapped_dim(self) -> int:
        """Where `extend` is given the first dimension of the storage, if elsewhere than in front."""
        return self._dim_extend if self._storage.ndim > 1 else 0

    def add(self, data: Any) -> Any:
        """Write one record; returns its row (an int; None where the writer does not keep it)."""
        if len(self._transforms):
            # Transforms are written for batches with a time dimension.
            nested = is_tensor_collection(data)
            data = self._transforms.inv(data.unsqueeze(-1) if nested else data)
            if data is None:
                return None
            data = data.squeeze(-1) if nested else data
        with self._writing():
            return self._notify_sampler(self._writer.add(data))

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
            return self._notify_sampler(self._writer.extend(move_dim_first(data, self._dim_extend, self._storage.ndim)))

    def _notify_sampler(self, index: Any) -> Any:
        if index is not None:
            if self._storage.ndim > 1:
                self._sampler.reserve(self._storage.capacity * self._storage.width)
            self._sampler.extend(self._storage.flat([index] if isinstance(index, int) else index))
        return index

    def update_priority(self, index: Any, priority: Any) -> None:
        """Set priorities by row; nothing happens where the sampler has none."""
        update = getattr(self._sampler, "update_priority", None)
        if update is not None:
            self._check_process()
            with self._lock:
                update(index, priority, storage=self._storage)

    def mark_update(self, index: Any) -> None:
        """Give rows the priority of new records."""
        mark = getattr(self._sampler, "mark_update", None)
        if mark is not None:
            with self._lock:
                mark(index, storage=self._storage)

    def empty(self) -> None:
        """Forget all records. Raises ReadOnlyError over a dataset."""
        with self._exclusive():
            self._writer.empty()
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
