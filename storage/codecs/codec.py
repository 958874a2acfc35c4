"""The interface of codecs, between stored rows and the rest of the package."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from ..checksums import append_blocks, crc32c, sum_range
from ..durable import has_size
from ..leaf import Leaf
from ..memory_map import read_file
from ..parts import PartFile, lengths_path, part_path, read_pieces, sum_piece

if TYPE_CHECKING:
    import torch

#: Limit in bytes of a dictionary; zstd's have about 100 kB.
LARGEST_DICTIONARY = 64 << 20
#: Checksum ranges of files by path, as the manifest has them.
Files = Mapping[str, Sequence[Sequence[Any]]]


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
        """Rows ``start..stop-1``, ``[stop - start, *shape]``: a private view of fixed rows, new memory for others."""


class StoredRows(Rows, Protocol):
    """Rows in files, whose bytes may have to be fetched first."""

    def extents(self, first: np.ndarray, length: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """The bytes of ``length`` rows from each of ``first`` (int64 ``[n]``): ``(path, starts, stops)`` per file.

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


class Sink(Protocol):
    """Takes the rows of one part, in any order.

    Rows are given as byte offsets into a buffer, so that leaving out rows (padding) or repeating them (zeros) needs no copy.
    """

    def write(self, position: int, buffer: Any, starts: np.ndarray) -> None:
        """Store rows at ``position`` (relative to the part); row i begins at byte ``starts[i]`` of the buffer."""

    def finish(self) -> dict[str, Any]:
        """Make what was written durable; returns the record for the journal."""


class Codec(ABC):
    """How the rows of one leaf are stored. ``folder`` is that of the dataset, finished or being written."""

    #: The name in the manifest.
    name: ClassVar[str]
    #: Whether all rows have the same size and are stored in order: a part is then written in place in a preallocated file, and
    #: reading is a copy. Otherwise every part is a file until it is appended.
    fixed_rows: ClassVar[bool]
    #: Whether rows are encoded with a dictionary, which `train` makes.
    uses_dictionary: ClassVar[bool] = False
    #: Bytes stored per row in addition to the row itself.
    index_bytes: ClassVar[int] = 0
    #: The roles of the files that parts are appended to, the rows first; `path` returns the files.
    appended: ClassVar[tuple[str, ...]] = ("blob",)

    def __init__(self, leaf: Leaf) -> None:
        self.leaf = leaf

    # -- files -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def path(self, name: str) -> str:
        """A file of the leaf by its role (one of ``appended``), relative to the folder."""

    @property
    def files(self) -> tuple[str, ...]:
        """All files of the leaf, relative to the folder."""
        return tuple(map(self.path, (*self.appended, "dictionary") if self.uses_dictionary else self.appended))

    # -- reading ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def open_rows(self, folder: Path, count: int) -> StoredRows:
        """Map the leaf without reading rows. Raises DamagedDatasetError if a file is missing or too short."""

    def is_like(self, folder: Path, other: Leaf, other_folder: Path) -> bool:
        """Whether stored rows of another leaf can be appended unchanged (`PartFile.copy`)."""
        return False

    # -- writing one part ------------------------------------------------------------------------------------------

    @abstractmethod
    def open_sink(self, folder: Path, number: int, first: int, rows: int, threads: int = 1) -> Sink:
        """The sink for the rows of a part; ``first`` is its first row in the leaf, ``rows`` their number."""

    def open_appender(self, folder: Path, number: int) -> PartFile:
        """The file that takes the rows of a part in order, if their number is not known in advance."""
        return PartFile(folder, self.leaf, number, None)

    @abstractmethod
    def copy_part(self, source: Path, files: Files, folder: Path, number: int, first: int, rows: int) -> dict[str, Any]:
        """Copy part ``number`` of the finished dataset ``source``, ``rows`` rows from ``first`` on, into the part of the same
        number; returns the record for the journal.

        Raises RbdataError or OSError if the part does not match the checksums ``files`` of its manifest.
        """

    # -- finished parts --------------------------------------------------------------------------------------------

    def part_is_there(self, folder: Path, number: int, record: Mapping[str, Any], *, contents: bool) -> bool:
        """Whether the files of a finished part that is not appended yet match its record, by sizes and with ``contents`` by
        checksums."""
        path, pieces = part_path(folder, self.leaf, number), record["pieces"]
        if not has_size(path, sum(piece["length"] for piece in pieces)):
            return False
        if not self.fixed_rows:
            lengths = lengths_path(path)
            if not has_size(lengths, 8 * sum(piece["rows"] for piece in pieces)):
                return False
            if contents and record["lengths"] != crc32c(lengths.read_bytes()):
                return False
        return not contents or all(piece["crc32c"] == sum_piece(path, piece) for piece in pieces)

    def has_appended(self, folder: Path, entry: Mapping[str, Any]) -> bool:
        """Whether the leaf's files hold the appended bytes of a part, by its entry in the journal.

        Raises OSError for files that are missing or cannot be read.
        """
        length, checksum, *_ = entry["ranges"]["blob"]
        path, begin = folder / self.path("blob"), entry["blob"] - length
        return sum_range(path, begin, length) == [length, checksum]

    def fits(self, records: Iterable[Mapping[str, Any]], last: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
        """Whether finished parts fill the gap between two appended parts exactly."""
        pieces = [piece for record in records for piece in record["pieces"]]
        room = after["blob"] - after["ranges"]["blob"][0] - last["blob"], after["rows"] - after["new"] - last["rows"]
        return room == (sum(piece["length"] for piece in pieces), sum(piece["rows"] for piece in pieces))

    def append_parts(
        self, folder: Path, parts: Mapping[int, Mapping[str, Any]], last: Mapping[str, Any], *, cut: bool = True
    ) -> list[dict[str, Any]]:
        """Append finished parts (records by number, in order) after the ``last`` entry.

        Returns an entry for each: ``rows`` and bytes of the ``blob`` up to its end, its number of rows (``new``), and its
        recorded ``ranges``. Without ``cut``, what follows them in the files is kept.
        """
        pieces = [
            read_pieces(part_path(folder, self.leaf, number), record["pieces"]) for number, record in parts.items()
        ]
        blob, rows = last["blob"], last["rows"]
        entries: list[dict[str, Any]] = []
        written = append_blocks(folder / self.path("blob"), blob, pieces, cut=cut)
        for record, checksum in zip(parts.values(), written):
            new = sum(piece["rows"] for piece in record["pieces"])
            blob, rows = blob + checksum.length, rows + new
            entries.append({"blob": blob, "rows": rows, "new": new, "ranges": {"blob": checksum.record}})
        return entries

    def remove_part(self, folder: Path, number: int) -> None:
        """Remove the files of a part that is appended."""
        path = part_path(folder, self.leaf, number)
        path.unlink(missing_ok=True)
        lengths_path(path).unlink(missing_ok=True)

    # -- dictionaries and sizes -------------------------------------------------------------------------------------

    def read_dictionary(self, folder: Path) -> bytes:
        """The dictionary of the leaf. Raises DamagedDatasetError if it is missing."""
        return read_file(folder / self.path("dictionary"), LARGEST_DICTIONARY) if self.uses_dictionary else b""

    @classmethod
    def train(cls, samples: Iterable[np.ndarray]) -> bytes:
        """A dictionary for rows like these (uint8), which may differ in size; empty if none helps. Deterministic."""
        return b""

    @classmethod
    def encoded_lengths(cls, rows: Iterable[np.ndarray], dictionary: bytes) -> np.ndarray:
        """The encoded length of each row in bytes, int64 ``[n]``."""
        return np.array([row.nbytes for row in rows], np.int64)

    def stored_row_bytes(self, folder: Path, rows: int) -> float:
        """The average bytes on disk of the ``rows`` rows of a finished leaf."""
        return (folder / self.path("blob")).stat().st_size / rows + self.index_bytes
