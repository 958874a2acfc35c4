"""The rows of one leaf in a part: a file of them, and where they are compressed one of their lengths.

<stem>.rows       the rows, stored as in the dataset, in the order in which they came
<stem>.lengths    int64 [rows]: the stored length of every row, where rows differ in length
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import SchemaError
from .checksums import Cells, crc32c
from .codecs import codec_of
from .codecs.codec import Encode
from .leaf import Leaf

#: Bytes that are written at once.
_BUFFER = 1 << 20


class RowsFile:
    """Appends rows of a leaf to ``<stem>.rows``; ``encode`` compresses them (None: they are stored as they are)."""

    def __init__(self, stem: Path, leaf: Leaf, encode: Encode | None) -> None:
        self.rows = 0
        #: What compresses rows; it may be set later where there is no dictionary yet, and no row.
        self.leaf, self.encode, self._stem = leaf, encode, stem
        self._file = rows_path(stem).open("xb", buffering=_BUFFER)
        self._cells, self._lengths = Cells(), list[np.ndarray]()

    def append(self, rows: np.ndarray) -> None:
        """Append rows ``[n, *leaf.shape]``; where a row is one number, ``[n]`` will do. Raises SchemaError for another shape or
        dtype."""
        leaf = self.leaf
        rows = rows[:, None] if rows.ndim == 1 and leaf.shape == (1,) else rows
        if rows.shape[1:] != leaf.shape or rows.dtype.newbyteorder("=") != np.dtype(leaf.dtype):
            got, wanted = f"{rows.dtype} {rows.shape[1:]}", f"{leaf.dtype} {leaf.shape}"
            raise SchemaError(f"key {leaf.name}: got {got}, the schema says {wanted}")
        if not len(rows):
            return
        data: Any = np.ascontiguousarray(rows, leaf.np_dtype)
        if self.encode is None:
            self._store(len(rows), data.data)
        else:
            starts = np.arange(len(rows), dtype=np.int64) * leaf.row_bytes
            self.append_stored(*self.encode(data.reshape(-1).view(np.uint8).data, starts, leaf.row_bytes))

    def append_stored(self, data: Any, lengths: np.ndarray) -> None:
        """Append rows that are already stored like this leaf's: their concatenated bytes, and the length of each."""
        self._lengths.append(lengths)
        self._store(len(lengths), data)

    def _store(self, rows: int, data: Any) -> None:
        self._file.write(data)
        self._cells.update(data)
        self.rows += rows

    def position(self) -> tuple[int, int, str]:
        """Return what was written so far: rows, bytes, and their `Cells`."""
        length, cells = self._cells.record
        return self.rows, length, cells

    def finish(self, rows: int) -> str:
        """Close the files; returns the crc32c of the lengths of the first ``rows``, "" where rows are of one length.

        They are not synced: what a power cut damages is noticed by its checksum, and made again; the join syncs all of them
        before it relies on them (`storage.join`).
        """
        self.close()
        if not self._lengths:
            return ""
        lengths = np.concatenate(self._lengths).astype("<i8")
        lengths_path(self._stem).write_bytes(lengths.data)
        return crc32c(lengths[:rows].data)

    def close(self) -> None:
        """Close the file of the rows."""
        self._file.close()


def rows_path(stem: Path) -> Path:
    """Return the file of the rows."""
    return stem.with_name(f"{stem.name}.rows")


def lengths_path(stem: Path) -> Path:
    """Return the file of their lengths."""
    return stem.with_name(f"{stem.name}.lengths")


def encoder_of(leaf: Leaf, folder: Path, threads: int, level: int | None = None) -> Encode | None:
    """What compresses the rows of a leaf with the dictionary in a working folder; None where rows are stored as they are."""
    codec = codec_of(leaf)
    if codec.fixed_rows:
        return None
    return _encoder(type(codec), codec.read_dictionary(folder), threads, level)


@lru_cache(4)
def _encoder(codec: Any, dictionary: bytes, threads: int, level: int | None) -> Encode:
    """Loading a dictionary is slow: a process keeps the last ones."""
    encode: Encode = codec.encoder(dictionary, threads, **({} if level is None else {"level": level}))
    return encode


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_encoder.cache_clear)  # the threads of the parent's encoders no longer exist


def read_plain_rows(path: Path, count: int, dtype: Any) -> np.ndarray:
    """Return the first ``count`` values of a file of a part, mapped."""
    if not count:
        return np.zeros(0, dtype)
    with path.open("rb") as file:
        return np.memmap(file, dtype, "r", shape=(count,))
