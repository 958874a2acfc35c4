"""The arrays of a table: whatever has a dtype and a shape, and gives rows by slices.

Files are opened for each read and closed after it: a user's folder has more files than may be open at once, and a mapping
keeps its file open as well. Their sizes are compared when an array is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from ...formats.hdf5 import damage_reported, plain_bools
from ...formats.npy import read_header


class Stored(Protocol):
    """What a table holds."""

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: Any) -> np.ndarray: ...


@dataclass(frozen=True)
class FileRows:
    """An array whose elements lie in a file from ``offset`` on, in the ``order`` of C or of Fortran."""

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    order: Any = "C"

    def __getitem__(self, rows: Any) -> np.ndarray:
        if 0 in self.shape:
            return np.zeros(self.shape, self.dtype)[rows]
        return np.array(np.memmap(self.path, self.dtype, "r", self.offset, self.shape, self.order)[rows])


def npy_rows(path: Path, begin: int = 0, end: int | None = None) -> FileRows:
    """The array of a ``.npy`` in bytes ``begin`` to ``end`` of a file. Raises CorruptSourceError for anything else, ValueError
    for elements that are not plain, and for too few of them."""
    with path.open("rb") as file:
        file.seek(begin)
        shape, columns_first, dtype = read_header(file, path.name)
        offset = file.tell()
    if dtype.hasobject or dtype.names:
        raise ValueError("its elements are Python objects" if dtype.hasobject else "it has fields: give each alone")
    held = (path.stat().st_size if end is None else end) - offset
    if held < (wanted := int(np.prod(shape, dtype=object)) * dtype.itemsize):
        raise ValueError(f"it is cut short: {held} bytes instead of {wanted}")
    return FileRows(path, dtype, shape, offset, "F" if columns_first else "C")


class Hdf5Files:
    """Opens HDF5 files; the one that was used last stays open until another one is."""

    def __init__(self) -> None:
        self._open: tuple[Path, Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def open(self, path: Path) -> Any:
        """The file (``h5py.File``). Raises CorruptSourceError, and UsageError if this program has it open."""
        import h5py

        if self._open is None or self._open[0] != path:
            self.__exit__()
            with damage_reported(path.name):
                self._open = (path, h5py.File(path, "r", locking=False))
        return self._open[1]


class Hdf5Rows:
    """The rows of an array of an HDF5 file."""

    def __init__(self, files: Hdf5Files, path: Path, array: Any) -> None:
        self.dtype, self.shape = array.dtype, array.shape
        self._files, self._path, self._name = files, path, array.name

    def __getitem__(self, rows: Any) -> np.ndarray:
        with damage_reported(self._path.name):
            return plain_bools(self._files.open(self._path)[self._name][rows])


@dataclass(frozen=True)
class Columns:
    """Arrays of numbers ``[n]`` and of vectors ``[n, k]``, side by side: an array ``[n, width]`` of their common dtype."""

    columns: Sequence[Stored]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.result_type(*(column.dtype for column in self.columns))

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.columns[0].shape[0], sum(map(_width, self.columns)))

    def __getitem__(self, rows: slice) -> np.ndarray:
        read = [np.asarray(column[rows], self.dtype).reshape(-1, _width(column)) for column in self.columns]
        return np.concatenate(read, -1)


def _width(column: Stored) -> int:
    return int(np.prod(column.shape[1:]))


class Concatenated:
    """The rows of several arrays, one after the other, in their common dtype."""

    def __init__(self, parts: Sequence[Stored]) -> None:
        self._parts, self._ends = parts, np.cumsum([part.shape[0] for part in parts])
        self.dtype = np.result_type(*(part.dtype for part in parts))
        self.shape = (int(self._ends[-1]), *parts[0].shape[1:])

    def __getitem__(self, rows: slice) -> np.ndarray:
        low, high, _ = rows.indices(self.shape[0])
        read = [np.zeros((0, *self.shape[1:]), self.dtype)]
        first, last = np.searchsorted(self._ends, [low, high - 1], "right")
        for part, end in zip(self._parts[first : last + 1], self._ends[first : last + 1].tolist()):
            begin = end - part.shape[0]
            read.append(part[max(low, begin) - begin : min(high, end) - begin])
        return np.concatenate(read)


@dataclass(frozen=True)
class Ring:
    """The first ``rows`` of an array that a ring filled: those from row ``begin`` on, then those before it."""

    array: Stored
    rows: int
    begin: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, *self.array.shape[1:])

    def __getitem__(self, rows: slice) -> np.ndarray:
        low, high, _ = rows.indices(self.rows)
        low, high, stop = low + self.begin, high + self.begin, self.rows
        ranges = (low, min(high, stop)), (max(0, low - stop), max(0, high - stop))
        parts = [self.array[a:b] for a, b in ranges if a < b]
        return np.concatenate([np.asarray(part) for part in parts]) if parts else np.asarray(self.array[:0])
