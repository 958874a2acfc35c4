"""Base of all writers: they decide which storage row a new record goes to."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Any

import torch

from ....errors import ReadOnlyError
from ..overrides import link
from ..state_files import read_state, reading, write_state
from ..storages.storage import Storage


class Writer:
    """Base of all writers; ``register_storage`` tells it where to write."""

    _storage: Storage
    #: Whether the writer keeps a value of every row; rows that another process writes have none here.
    values_per_row = False
    #: Whether rows get a stamp that tells whether they were written again, see `SlotGenerations`.
    tracks_generations = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        link(cls, "empty", "_empty")

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

    def empty(self, empty_write_count: bool = True) -> None:
        """Begin again with the first row, and with ``empty_write_count`` to count the records written."""

    _empty = empty

    def generations_of(self, index: Any) -> torch.Tensor:
        """The stamps of rows along the first dimension, int64; -1 for rows never written, or where nothing is tracked.

        ``index`` is ``[n]``, ``[n, ndim]`` or a tuple of one tensor for each dimension, as `extend` and batches give it.
        """
        ndim = self._storage.ndim if hasattr(self, "_storage") else 1
        if isinstance(index, tuple):
            index = index[0]
        elif isinstance(index, torch.Tensor) and ndim > 1 and index.ndim > 1 and index.shape[-1] == ndim:
            index = index[..., 0]
        rows = torch.as_tensor(index).long()
        stamps = self._storage.generations if self.tracks_generations else None
        return torch.full_like(rows, -1) if stamps is None else stamps.of(rows)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def dumps(self, path: Any) -> None:
        """Write the state to a folder: what `loads` reads, without pickle."""
        write_state(Path(path), self.state_dict())

    def loads(self, path: Any) -> None:
        """Read what `dumps`, or TorchRL's, wrote. Raises DamagedDatasetError when it is not whole."""
        with reading(Path(path)):
            self.load_state_dict(self.read(Path(path)))

    def read(self, folder: Path) -> dict[str, Any]:
        """The state in a folder that `dumps` wrote. Raises DamagedDatasetError when it is not whole."""
        return read_state(folder)

    def _dump_rest(self, folder: Path, known: Container[str]) -> None:
        """Write what a class of one's own adds to the state, beside the ``known`` entries that have files of their own."""
        rest = {name: value for name, value in self.state_dict().items() if name not in known}
        (folder / "state.json").unlink(missing_ok=True)
        if rest:
            write_state(folder, rest)

    @staticmethod
    def _read_rest(folder: Path) -> dict[str, Any]:
        return read_state(folder) if (folder / "state.json").exists() else {}

    def save(self, path: Any) -> None:
        """`dumps` by another name."""
        self.dumps(path)

    def load(self, path: Any) -> None:
        """`loads` by another name."""
        self.loads(path)

    dump = save

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what ``state_dict``, or that of TorchRL's writer, gave."""

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

    def empty(self, empty_write_count: bool = True) -> None:
        raise ReadOnlyError("the buffer doesn't allow writing: it reads a dataset")
