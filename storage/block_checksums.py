"""Checksums of large files by block: which crc32c covers which bytes.

A dataset whose files are large has a file ``blocks.crc32c``: uint32, little-endian, the crc32c of every block of 4 MiB (the
last one of a file is shorter) of the files that ``blocks`` of the manifest names, in its order, from the beginning of each.
So a reader of one block, a repair and a partial copy can verify what they have without the rest of the file. ``files`` of the
manifest cover the table itself. Small files, and all files of a dataset without a table, are covered by the ranges of the
manifest: such a range counts as a block here, whatever its length.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from ..errors import DamagedDatasetError
from .checksums import BLOCK, crc32c, cut_ranges, join_ranges, sum_blocks
from .durable import write_atomically
from .manifest import BLOCK_TABLE, Manifest
from .memory_map import read_file

#: Bytes of a table: four for each 4 MiB, so that of 256 TiB.
_LARGEST_TABLE = 256 << 20


@dataclass(frozen=True)
class Block:
    """Consecutive bytes of a file that have a checksum (8 hex digits) of their own: from the table or, without one, a range."""

    path: str
    number: int
    begin: int
    length: int
    crc32c: str

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.begin + self.length


class BlockChecksums:
    """The blocks of all files of a dataset. Of a manifest and the bytes of its table (None: ranges only)."""

    def __init__(self, manifest: Manifest, table: bytes | None) -> None:
        """Raises DamagedDatasetError where the table is not what the manifest says, or contradicts it."""
        self._files = manifest.files
        self._sizes = {path: sum(length for length, _ in ranges) for path, ranges in manifest.files.items()}
        self._tabled: dict[str, array[int]] = {}
        self._begins: dict[str, list[int]] = {}
        #: Bytes of a block of the files in the table.
        self.size = BLOCK
        if table is None or not manifest.blocks:
            return
        if [len(table), crc32c(table)] != join_ranges(manifest.files[BLOCK_TABLE]):
            raise DamagedDatasetError(f"{BLOCK_TABLE} of {manifest.id} has a checksum mismatch")
        self.size = manifest.blocks["size"]
        values = array("I", table)
        if sys.byteorder == "big":
            values.byteswap()
        at = 0
        for path in manifest.blocks["files"]:
            count = -(-self._sizes[path] // self.size)
            self._tabled[path] = values[at : at + count]
            at += count
            if join_ranges([(block.length, block.crc32c) for block in self.all(path)]) != join_ranges(
                self._files[path]
            ):
                raise DamagedDatasetError(f"{BLOCK_TABLE} of {manifest.id} contradicts its manifest about {path}")

    @property
    def tabled(self) -> Mapping[str, Sequence[int]]:
        """The values of the table: the crc32c of each block, in order, of each of its files."""
        return self._tabled

    def count(self, path: str) -> int:
        """How many blocks a file has."""
        return len(self._tabled.get(path, self._files[path]))

    def block(self, path: str, number: int) -> Block:
        """One block of a file."""
        if path in self._tabled:
            begin = number * self.size
            length = min(self.size, self._sizes[path] - begin)
            return Block(path, number, begin, length, f"{self._tabled[path][number]:08x}")
        length, checksum = self._files[path][number]
        return Block(path, number, self._range_begins(path)[number], length, checksum)

    def all(self, path: str) -> Iterator[Block]:
        """The blocks of a file in order."""
        return (self.block(path, number) for number in range(self.count(path)))

    def covering(self, path: str, begin: int, end: int) -> Iterator[Block]:
        """The blocks that hold bytes ``begin..end-1`` of a file, in order; none where there are no such bytes."""
        end = min(end, self._sizes[path])
        number = begin // self.size if path in self._tabled else bisect_right(self._range_begins(path), begin) - 1
        while begin < end and number < self.count(path):
            block = self.block(path, number)
            if block.begin >= end:
                return
            if block.length:
                yield block
            number += 1

    def where(self, block: Block) -> str:
        """Which bytes a block is, for messages."""
        number = f" in block {block.number}" if block.path in self._tabled else ""
        return f"{number}, bytes {block.begin}-{block.end}"

    def _range_begins(self, path: str) -> list[int]:
        if path not in self._begins:
            self._begins[path] = list(accumulate((length for length, _ in self._files[path]), initial=0))[:-1]
        return self._begins[path]


def read_block_checksums(folder: Path, manifest: Manifest) -> BlockChecksums:
    """The blocks of a dataset folder. Raises DamagedDatasetError where its table is missing or damaged."""
    if not manifest.blocks:
        return BlockChecksums(manifest, None)
    return BlockChecksums(manifest, read_file(folder / BLOCK_TABLE, _LARGEST_TABLE))


def write_table(
    folder: Path, written: Mapping[str, Sequence[Sequence[Any]]]
) -> tuple[dict[str, Any] | None, list[list[Any]]]:
    """Write the table of the files that are larger than a block, if there are any.

    ``written`` has the ranges of all files as they were recorded while they were written (`checksums`); only a file whose
    record lacks its pieces is read. Returns ``blocks`` of the manifest, and the ranges of the table.
    """
    large = [path for path, ranges in sorted(written.items()) if sum(record[0] for record in ranges) > BLOCK]
    if not large:
        return None, []
    values = array("I")
    for path in large:
        blocks = cut_ranges(written[path])
        if blocks is None:  # begun by a version without a table
            blocks = sum_blocks(folder / path)
            if join_ranges(blocks) != join_ranges(written[path]):
                raise DamagedDatasetError(f"{folder / path} is not what was written", hint="start over with --force")
        values.extend(int(checksum, 16) for _, checksum in blocks)
    if sys.byteorder == "big":
        values.byteswap()
    data = values.tobytes()
    write_atomically(folder / BLOCK_TABLE, data)
    return {"size": BLOCK, "files": large}, [[len(data), crc32c(data)]]
