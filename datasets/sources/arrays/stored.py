"""Arrays in files, opened for each read and closed after it: a user's folder has more files than may be open at once.

A mapping would keep its file open as well. Sizes are compared with the file when an array is found, the checksum of an
archive when it is first read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from ....errors import CorruptSourceError, UsageError
from ...formats.hdf5 import damage_reported, plain_bools


class Stored(Protocol):
    """What a table holds: an array whose rows are read by slices."""

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: Any) -> np.ndarray: ...


class FileRows:
    """The rows of an array whose elements lie in a file from ``offset`` on; ``columns_first``: in Fortran's order.

    ``check`` is called before the first read. Raises ValueError if the file, or its ``end``, is too short for the array.
    """

    def __init__(
        self,
        path: Path,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        offset: int = 0,
        end: int | None = None,
        *,
        columns_first: bool = False,
        check: Callable[[], None] | None = None,
    ) -> None:
        self.dtype, self.shape = dtype, shape
        self._path, self._offset, self._columns_first, self._check = path, offset, columns_first, check
        held = (path.stat().st_size if end is None else end) - offset
        if held < (wanted := int(np.prod(shape, dtype=object)) * dtype.itemsize):
            raise ValueError(f"it is cut short: {held} bytes instead of {wanted}")

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Some rows, by a slice; of an array of one value that, by ``()``."""
        if self._check is not None:
            self._check()
            self._check = None
        if not self.shape:
            return np.fromfile(self._path, self.dtype, 1, offset=self._offset).reshape(())
        low, high, _ = rows.indices(self.shape[0])
        shape = (max(0, high - low), *self.shape[1:])
        if 0 in shape or not self.dtype.itemsize:
            return np.zeros(shape, self.dtype)
        if self._columns_first:
            return np.array(np.memmap(self._path, self.dtype, "r", self._offset, self.shape, "F")[low:high])
        items = int(np.prod(self.shape[1:]))
        begin = self._offset + low * items * self.dtype.itemsize
        found = np.fromfile(self._path, self.dtype, shape[0] * items, offset=begin)
        if len(found) < shape[0] * items:
            raise CorruptSourceError(f"{self._path.name} was cut short while it was read")
        return found.reshape(shape)


def npy_rows(path: Path, begin: int = 0, end: int | None = None, check: Callable[[], None] | None = None) -> FileRows:
    """The array of a ``.npy`` in bytes ``begin`` to ``end`` of a file. Raises ValueError for anything else, or for a pickle."""
    with path.open("rb") as file:
        file.seek(begin)
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, columns_first, dtype = read(file)
        if dtype.hasobject:
            raise ValueError("its elements are Python objects")
        return FileRows(
            path, dtype, shape, file.tell(), end, columns_first=columns_first and len(shape) > 1, check=check
        )


class Part:
    """A part of every row: a field of its dtype, or the index of a column."""

    def __init__(self, rows: Stored, pick: Any) -> None:
        self._rows, self._pick = rows, pick
        like = np.zeros((0, *rows.shape[1:]), rows.dtype)[pick]
        self.dtype, self.shape = like.dtype, (*rows.shape[:1], *like.shape[1:])

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self._rows[rows][self._pick]


class Hdf5Files:
    """Opens HDF5 files; the one that was used last stays open until another one is."""

    def __init__(self) -> None:
        self._open: tuple[Path, Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def open(self, path: Path) -> Any:
        """The file (``h5py.File``). Raises CorruptSourceError, and UsageError if this program has it open."""
        import h5py

        if self._open is None or self._open[0] != path:
            self.close()
            with damage_reported(path.name):
                self._open = (path, h5py.File(path, "r", locking=False))
        return self._open[1]


class Hdf5Rows:
    """The rows of an array of an HDF5 file, by its path there."""

    def __init__(self, files: Hdf5Files, path: Path, name: str, array: Any) -> None:
        self.dtype, self.shape = array.dtype, array.shape
        self._files, self._path, self._name = files, path, name

    def __getitem__(self, rows: Any) -> np.ndarray:
        with damage_reported(self._path.name):
            return plain_bools(self._files.open(self._path)[self._name][rows])


@dataclass(frozen=True)
class Joined:
    """Columns of one number per row, side by side."""

    names: tuple[str, ...]
    columns: Sequence[Any]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.result_type(*(column.dtype for column in self.columns))

    @property
    def shape(self) -> tuple[int, ...]:
        return (min(column.shape[0] for column in self.columns), len(self.columns))

    def __getitem__(self, rows: slice) -> np.ndarray:
        return side_by_side([np.asarray(column[rows]).reshape(-1) for column in self.columns]).astype(self.dtype)


def side_by_side(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Columns ``[n]`` as one array ``[n, columns]`` of their common dtype.

    Raises UsageError for integers that this dtype, a float, would round: those beyond 2^53 beside columns of fractions.
    """
    joined = np.stack(columns, -1)
    for column in columns:
        if joined.dtype.kind == "f" and column.dtype.kind in "iu" and column.dtype.itemsize == 8:
            beyond = (column > 1 << 53) | (column < -(1 << 53)) if column.dtype.kind == "i" else column > 1 << 53
            if beyond.any():
                message = (
                    f"columns of {joined.dtype} would round the integer {column[beyond][0]} of a column beside them"
                )
                raise UsageError(message, hint="map the column of integers to its own key")
    return joined


@dataclass(frozen=True)
class Ring:
    """The ``rows`` of an array that a ring has from row ``first`` on: those from its row ``begin`` on, then those before it."""

    array: Any
    rows: int
    begin: int
    first: int = 0

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
        parts = [self.array[self.first + a : self.first + b] for a, b in ranges if a < b]
        return np.concatenate(parts) if parts else self.array[:0]
