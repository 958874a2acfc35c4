"""Step leaves, appended in step order while the plan is made.

They are small beside the frames (13 bytes a step for Atari), so one pass in one process writes them; only a block of
rows is ever in memory, however long the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..errors import SchemaError
from .checksums import Crc32c
from .durable import open_anew
from .folder import check_space
from .leaf import Leaf
from .schema import Schema

_BLOCK = 1 << 22


class ColumnWriter:
    """Appends rows to every step leaf of a schema below ``folder``; with no folder it only checks and counts.

    Constant leaves are not appended: ``close`` writes them (as holes in the file where the value is zero).
    """

    def __init__(self, folder: Path | None, schema: Schema) -> None:
        self.rows = 0
        self._folder = folder
        self._leaves = [leaf for leaf in schema.steps if leaf.constant is None]
        self._constants = [leaf for leaf in schema.steps if leaf.constant is not None]
        self._checksums = {leaf.name: Crc32c(0) for leaf in self._leaves}
        self._files: dict[str, BinaryIO] = {}
        if folder is not None:
            for leaf in self._leaves:
                path = folder / leaf.memmap
                path.parent.mkdir(parents=True, exist_ok=True)
                self._files[leaf.name] = open_anew(path)

    def reserve(self, rows: int) -> None:
        """Raise DiskSpaceError when this many rows in all do not fit on the disk."""
        if self._folder is not None:
            size = rows * sum(leaf.row_bytes for leaf in self._leaves)
            check_space(self._folder, size, "the dataset")

    def append(self, columns: Mapping[str, np.ndarray]) -> None:
        """Append rows: one array ``[n, *leaf.shape]`` for each step leaf that is not constant.

        Raises SchemaError for other keys, dtypes, shapes or lengths than the schema's.
        """
        names = {leaf.name for leaf in self._leaves}
        if set(columns) != names:
            raise SchemaError(f"columns {sorted(columns)} are not the schema's {sorted(names)}")
        counts = {len(array) for array in columns.values()}
        if len(counts) != 1:
            raise SchemaError(f"columns of different lengths: { ({k: len(v) for k, v in columns.items()}) }")
        for leaf in self._leaves:
            array = columns[leaf.name]
            if array.shape[1:] != leaf.shape or array.dtype.newbyteorder("=") != np.dtype(leaf.dtype):
                got, wanted = f"{array.dtype} {array.shape[1:]}", f"{leaf.dtype} {leaf.shape}"
                raise SchemaError(f"key {leaf.name}: got {got}, the schema says {wanted}")
            if self._folder is not None:
                data = np.ascontiguousarray(array, leaf.np_dtype).tobytes()
                self._checksums[leaf.name].update(data)
                self._files[leaf.name].write(data)
        self.rows += counts.pop()

    def close(self) -> dict[str, list[list[object]]]:
        """Finish all files; returns their ranges as they are recorded, by path relative to the folder."""
        if self._folder is None:
            return {}
        ranges: dict[str, list[list[object]]] = {}
        for leaf in self._leaves:
            file = self._files.pop(leaf.name)
            file.close()
            ranges[leaf.memmap] = [self._checksums[leaf.name].record]
        for leaf in self._constants:
            ranges[leaf.memmap] = [_write_constant(self._folder / leaf.memmap, leaf, self.rows)]
        return ranges

    def abandon(self) -> None:
        """Close the files without finishing."""
        for file in self._files.values():
            file.close()
        self._files.clear()


def _write_constant(path: Path, leaf: Leaf, rows: int) -> list[object]:
    path.parent.mkdir(parents=True, exist_ok=True)
    total = rows * leaf.row_bytes
    value = np.full((), leaf.constant, leaf.np_dtype)
    block = np.full(min(total, _BLOCK) // leaf.np_dtype.itemsize, value).tobytes()
    checksum = Crc32c(0)
    with open_anew(path) as file:
        if not any(value.tobytes()):
            file.truncate(total)
        while checksum.length < total:
            piece = block[: total - checksum.length]
            checksum.update(piece)
            if any(value.tobytes()):
                file.write(piece)
    return checksum.record
