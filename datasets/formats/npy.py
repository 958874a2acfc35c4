"""Read numpy's arrays without ever trusting what they declare: ``.npy`` from a byte stream, whole or in blocks of rows, and
``.npz``, a zip archive of them.

Formats: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html, numpy.savez.html. Headers that ask for pickle
(object dtypes) are refused; big-endian data become native; memory grows with the bytes that arrive, not with the shape that is
declared.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from ...errors import CorruptSourceError, RbdataError
from .hdf5 import plain_bools
from .limits import check_row_bytes, check_rows, most_unpacked
from .packed import StreamFile, ZipArchive, member_names

#: An array with more rows than this is invalid (the public shards have 1 M).
MAX_ROWS = 1 << 26
#: numpy writes 128 bytes; long ones are made to overwhelm the parser.
_MAX_HEADER = 1 << 12
_DAMAGED = "the copy at the source or mirror is not what the dataset's authors published; try another mirror"


#: numpy parses the header as a Python literal, and CPython 3.11's parser fails now and then when two threads use it at once
#: (https://github.com/python/cpython/issues/106905).
_PARSING = Lock()


@dataclass(frozen=True)
class Expected:
    """What an array must be: dtype, and shape, in which -1 allows any size."""

    dtype: str
    shape: tuple[int, ...]


class NpyStream:
    """An array arriving as a stream of bytes: the header is read on construction, the rows on demand.

    ``expected`` None: any array is accepted. ``name`` is what errors call it; more than ``most_rows`` rows are refused. Raises
    CorruptSourceError if the bytes are not an ``.npy``, ask for pickle, or do not have the expected dtype and shape.
    """

    def __init__(
        self, pieces: Iterable[bytes], expected: Expected | None, name: str, most_rows: int = MAX_ROWS
    ) -> None:
        self._most_rows, self._file = most_rows, io.BufferedReader(StreamFile(pieces))
        self._name = name
        self._stored, self.shape = self._header(expected)
        self.dtype = self._stored.newbyteorder("=")
        self.rows = self.shape[0] if self.shape else 1
        self.row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize

    def blocks(self, rows: int, spare: int = 0) -> Iterator[np.ndarray]:
        """Up to ``rows`` rows at a time, ``[k, *row]``, in native byte order; new arrays that end in ``spare`` rows of zeros.

        Raises CorruptSourceError at the end when the stream was shorter or longer than the header said.
        """
        for first in range(0, self.rows, rows):
            wanted = min(rows, self.rows - first) * self.row_bytes
            block = np.empty(wanted + spare * self.row_bytes, np.uint8)
            block[wanted:] = 0
            if (got := self._file.readinto(block.data[:wanted])) < wanted:
                have = first + got // self.row_bytes
                raise self._error(f"is cut short: {have} whole rows instead of {self.rows}")
            yield block.view(self._stored).astype(self.dtype, copy=False).reshape(-1, *self.shape[1:])
        if self._file.read(1):
            raise self._error(f"is longer than its header says ({self.rows} rows)")

    def array(self) -> np.ndarray:
        """The whole array, native byte order."""
        (block,) = self.blocks(self.rows)
        return block.reshape(self.shape)

    def _header(self, expected: Expected | None) -> tuple[np.dtype, tuple[int, ...]]:
        shape, fortran, dtype = read_header(self._file, self._name)
        if dtype.hasobject:
            raise self._error("asks for pickle (dtype object), which is never read: it could run any code")
        columns_first = fortran and len(shape) > 1
        if columns_first or (expected is not None and not _fits(dtype, shape, expected)):
            wanted = f"{expected.dtype} {_show(expected.shape)}" if expected else "rows one after the other"
            order = " in Fortran order" if columns_first else ""
            raise self._error(f"holds {dtype} {_show(shape)}{order}; expected {wanted}")
        if shape and not 0 < shape[0] <= self._most_rows:
            raise self._error(f"declares {shape[0]} rows, of at most {self._most_rows}")
        return dtype, tuple(int(size) for size in shape)

    def _error(self, problem: str) -> CorruptSourceError:
        return CorruptSourceError(f"{self._name} {problem}", hint=_DAMAGED)


def read_header(file: Any, name: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """The shape, whether columns come first, and the dtype that the header of a file states. Raises CorruptSourceError."""
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version[0] == 1 else np.lib.format.read_array_header_2_0
        with _PARSING:
            header: tuple[tuple[int, ...], bool, np.dtype] = read(file, max_header_size=_MAX_HEADER)
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise ValueError(f"version {version[0]}.{version[1]} is unknown")
    except RbdataError:
        raise  # an error of the stream
    except Exception as error:
        # The header is a Python literal, and what its parser raises (TokenError, MemoryError, RecursionError, ...)
        # depends on who wrote it.
        why = str(error).partition("\n")[0][:120]
        raise CorruptSourceError(f"{name} is not a .npy array: {why}", hint=_DAMAGED) from error
    return header


def _fits(dtype: np.dtype, shape: tuple[int, ...], expected: Expected) -> bool:
    same = len(shape) == len(expected.shape) and all(want in (-1, got) for want, got in zip(expected.shape, shape))
    return same and dtype.newbyteorder("=") == np.dtype(expected.dtype)


def _show(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join("any" if size < 0 else str(size) for size in shape) + "]"


# -- .npz --------------------------------------------------------------------------------------------------------------

_SUFFIX = ".npy"
#: Bytes of rows that are unpacked at a time.
_BLOCK_BYTES = 4 << 20


class NpzArchive(ZipArchive):
    """A zip archive whose arrays are read by name (``keys``).

    Raises CorruptSourceError where an array is read that is damaged, asks for pickle, or declares more than the bytes of the
    archive justify.
    """

    def __init__(self, source: Path | bytes, name: str) -> None:
        super().__init__(source, name)
        self._left = most_unpacked(self.size)
        self.keys = [member.removesuffix(_SUFFIX) for member in self.members if member.endswith(_SUFFIX)]

    def head(self, key: str) -> tuple[np.dtype, tuple[int, ...]]:
        """The dtype, in native byte order, and the shape that an array declares."""
        stream = self._open(key)
        return stream.dtype, stream.shape

    def array(self, key: str) -> np.ndarray:
        """A whole array. All arrays together may have as many bytes as the archive justifies (`most_unpacked`)."""
        stream = self._open(key)
        declared = stream.rows * stream.row_bytes
        if declared > self._left:
            declares = f"declares {stream.dtype} {list(stream.shape)}"
            raise CorruptSourceError(f"{self.name}: {key} {declares}, in an archive of {self.size} bytes")
        self._left -= declared
        return plain_bools(stream.array())

    def blocks(self, key: str) -> Iterator[np.ndarray]:
        """The rows of an array in blocks of some megabytes, in order."""
        stream = self._open(key)
        check_row_bytes(stream.row_bytes, f"{self.name}: {key}")
        yield from map(plain_bools, stream.blocks(max(1, _BLOCK_BYTES // max(1, stream.row_bytes))))

    def rows(self, key: str) -> NpzRows:
        """The rows of an array in order, cut where the caller likes."""
        return NpzRows(self.blocks(key))

    def _open(self, key: str) -> NpyStream:
        where = f"{self.name}: {key}"
        stream = NpyStream(self.stream(key + _SUFFIX), None, where)
        if stream.dtype.kind not in "biuf" or 0 in stream.shape or math.prod(stream.shape) > 1 << 62:
            raise CorruptSourceError(f"{where} holds {stream.dtype} {list(stream.shape)}, not rows of numbers")
        check_rows(stream.rows, self.size, where)
        return stream


class NpzRows:
    """The rows of one array in ascending order; each can be taken once. ``blocks`` are all of them."""

    def __init__(self, blocks: Iterator[np.ndarray]) -> None:
        self._unread, self._block, self._next = blocks, np.zeros(0), 0

    def blocks(self, low: int, high: int) -> Iterator[np.ndarray]:
        """Rows ``low..high-1`` in blocks of some megabytes; those before ``low`` that were not taken are left out."""
        while self._next < high:
            if not len(self._block):
                self._block = next(self._unread)
            skipped = min(len(self._block), max(0, low - self._next))
            taken = min(len(self._block), high - self._next)
            if taken > skipped:
                yield self._block[skipped:taken]
            self._block = self._block[taken:]
            self._next += taken

    def finish(self) -> None:
        """Read to the end: sizes and checksums are compared there."""
        for _ in self._unread:
            pass


def array_names(path: Path) -> set[str]:
    """Names of the arrays of an archive; empty for other files."""
    return {name.removesuffix(_SUFFIX) for name in member_names(path) if name.endswith(_SUFFIX)}
