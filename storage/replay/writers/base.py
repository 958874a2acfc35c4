"""Base of all writers: they decide which storage row a new record goes to."""

from __future__ import annotations

from typing import Any

import torch

from ....errors import ReadOnlyError
from ..storages.storage import Storage


class Writer:
    """Base of all writers; ``register_storage`` tells it where to write."""

    _storage: Storage
    #: Whether the writer keeps a value of every row; rows that another process writes have none here.
    values_per_row = False

    def __init__(self, compilable: bool = False) -> None:
        """``compilable`` is accepted as by TorchRL's writers and changes nothing."""

    def register_storage(self, storage: Storage) -> None:
        self._storage = storage

    def add(self, data: Any) -> Any:
        """Write one record; returns its row (an int, or ``[rows, ndim]``), None where it was not kept."""
        raise NotImplementedError

    def extend(self, data: Any) -> torch.Tensor:
        """Write records; returns their rows, int64 ``[n]`` (or ``[n * width, ndim]``)."""
        raise NotImplementedError

    def empty(self) -> None:
        """Begin anew."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what ``state_dict`` gave."""

    def _coordinates_of(self, index: torch.Tensor) -> torch.Tensor:
        """Rows along the first dimension as ``[n * width, ndim]`` coordinates of all rows written."""
        storage = self._storage
        if storage.ndim == 1:
            return index
        beside = torch.cartesian_prod(*(torch.arange(size) for size in storage.shape[1:])).view(-1, storage.ndim - 1)
        return torch.cat(
            [index.repeat_interleave(len(beside)).unsqueeze(1), beside.repeat(len(index), 1)],
            1,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class ImmutableDatasetWriter(Writer):
    """Refuses every write."""

    def add(self, data: Any) -> Any:
        raise ReadOnlyError("the buffer doesn't allow writing: it reads a dataset")

    def extend(self, data: Any) -> torch.Tensor:
        raise ReadOnlyError("the buffer doesn't allow writing: it reads a dataset")

    def empty(self) -> None:
        raise ReadOnlyError("the buffer doesn't allow writing: it reads a dataset")
