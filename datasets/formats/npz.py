"""Read ``.npz`` archives (a zip of ``.npy`` arrays), without trusting what they declare and without pickle.

Format: https://numpy.org/doc/stable/reference/generated/numpy.savez.html
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ...errors import CorruptSourceError
from .hdf5 import plain_bools
from .limits import check_row_bytes, check_rows, most_unpacked
from .npy import NpyStream
from .zip_archive import ZipArchive, member_names

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
        yield from map(plain_bools, stream.arrays(max(1, _BLOCK_BYTES // max(1, stream.row_bytes))))

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
