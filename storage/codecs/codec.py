"""The interface of codecs, between stored rows and the rest of the package."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from ..leaf import Leaf
from ..memory_map import read_file

if TYPE_CHECKING:
    import torch


#: ``encode(buffer, starts, row_bytes)`` encodes the rows of ``row_bytes`` bytes that begin at ``starts`` (int64 ``[n]``) of a
#: buffer, and returns the encoded rows joined and their lengths (int64 ``[n]``).
Encode = Callable[[Any, np.ndarray, int], tuple[bytes, np.ndarray]]


class Rows(Protocol):
    """The rows of a leaf, read-only."""

    leaf: Leaf

    @property
    def count(self) -> int: ...

    def windows(self, first: torch.Tensor, length: int) -> torch.Tensor:
        """``length`` consecutive rows from each of ``first`` (int64 ``[B]``): a new tensor ``[B, length, *shape]``.

        Every ``first`` must lie in ``[0, count - length]``.
        """

    def take(self, index: torch.Tensor) -> torch.Tensor:
        """Single rows (``index`` int64 ``[B]``): a new tensor ``[B, *shape]``."""

    def block(self, start: int, stop: int) -> torch.Tensor:
        """Return rows ``start..stop-1``, ``[stop - start, *shape]``: a private view of fixed rows, new memory for others."""


class StoredRows(Rows, Protocol):
    """Rows in files, whose bytes may have to be fetched first."""

    def extents(self, first: np.ndarray, length: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Return the bytes of ``length`` rows from each of ``first`` (int64 ``[n]``): ``(path, starts, stops)`` per file.

        The iterator reads each file's bytes before it yields the next file, so they must be present by then; the file of the
        rows (``Codec.path("blob")``) comes last. Raises DamagedDatasetError.
        """


class WrappedRows(ABC):
    """Rows that are read by way of others (`Rows`, `StoredRows`). A derived class defines `_read`."""

    def __init__(self, rows: Any) -> None:
        self.leaf, self.count, self._rows = rows.leaf, rows.count, rows

    def windows(self, first: torch.Tensor, length: int) -> torch.Tensor:
        return self._read(first.numpy(), length, lambda: self._rows.windows(first, length))

    def take(self, index: torch.Tensor) -> torch.Tensor:
        return self._read(index.numpy(), 1, lambda: self._rows.take(index))

    def block(self, start: int, stop: int) -> torch.Tensor:
        return self._read(np.array([start]), stop - start, lambda: self._rows.block(start, stop))

    @abstractmethod
    def _read(self, first: np.ndarray, length: int, read: Callable[[], torch.Tensor]) -> torch.Tensor:
        """``read()`` reads ``length`` rows from each of ``first``: fetch or check their bytes before, or change the result."""


class Codec(ABC):
    """How the rows of one leaf are stored. ``folder`` is that of the dataset, finished or being written."""

    #: The name in the manifest.
    name: ClassVar[str]
    #: Whether all rows have the same size and are stored as they are: reading is a copy.
    fixed_rows: ClassVar[bool]
    #: Whether rows are encoded with a dictionary, which `train` makes.
    uses_dictionary: ClassVar[bool] = False
    #: Bytes stored per row in addition to the row itself.
    index_bytes: ClassVar[int] = 0
    #: The roles of the files that parts are joined to, the rows first; `path` returns the files.
    joined: ClassVar[tuple[str, ...]] = ("blob",)

    def __init__(self, leaf: Leaf) -> None:
        self.leaf = leaf

    # -- files -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def path(self, name: str) -> str:
        """Return a file of the leaf by its role (one of ``joined``), relative to the folder."""

    @property
    def files(self) -> tuple[str, ...]:
        """All files of the leaf, relative to the folder."""
        return tuple(map(self.path, (*self.joined, "dictionary") if self.uses_dictionary else self.joined))

    # -- reading ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def open_rows(self, folder: Path, count: int) -> StoredRows:
        """Map the leaf without reading rows. Raises DamagedDatasetError if a file is missing or too short."""

    def is_like(self, folder: Path, other: Leaf, other_folder: Path) -> bool:
        """Return whether stored rows of another leaf can be copied unchanged (`CompressedRows.stored`)."""
        return False

    # -- dictionaries and sizes -------------------------------------------------------------------------------------

    def read_dictionary(self, folder: Path) -> bytes:
        """Return the dictionary of the leaf. Raises DamagedDatasetError if it is missing."""
        return read_file(folder / self.path("dictionary")) if self.uses_dictionary else b""

    @classmethod
    def train(cls, samples: Iterable[np.ndarray]) -> bytes:
        """Return a dictionary for rows like these (uint8), which may differ in size; empty if none helps. Deterministic."""
        return b""

    @classmethod
    def encoded_lengths(cls, rows: Iterable[np.ndarray], dictionary: bytes) -> np.ndarray:
        """Return the encoded length of each row in bytes, int64 ``[n]``."""
        return np.array([row.nbytes for row in rows], np.int64)

    def stored_row_bytes(self, folder: Path, rows: int) -> float:
        """Return the average bytes on disk of the ``rows`` rows of a finished leaf."""
        return (folder / self.path("blob")).stat().st_size / rows + self.index_bytes
