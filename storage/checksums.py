"""Checksums of the files of a dataset, by range and by block.

A file is covered by consecutive ranges, each with its own crc32c: ``[length, "8 hex digits"]`` in the manifest, in order from
offset 0. Ranges are the pieces in which the file was written (decided by the plan, not by the number of processes), so that
checksums are computed while writing, and ``verify`` can say which part is damaged.

Files are also cut into blocks of one size. A range that crosses the end of a block has a checksum for each of its *cuts*, the
pieces between block ends: those of all ranges make the table of block checksums.

crc32c is the checksum Google Cloud Storage states for every object: https://cloud.google.com/storage/docs/data-validation
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, TypeVar

import google_crc32c

from .durable import write_atomically

Digest = TypeVar("Digest", bound=Any)
#: Consecutive bytes: how many, and their crc32c.
Range = tuple[int, str]

#: Bytes of a block, which are also read at a time to compute checksums of a file.
BLOCK = 1 << 22
_COPY = 1 << 18
_DIGITS = 8
#: Bytes that have a checksum of their own in a file whose place in a larger one is not known yet (`Cells`).
CELL = 1 << 18


class Crc32c:
    """A running crc32c that also counts bytes."""

    def __init__(self) -> None:
        self._value = self.length = 0

    def update(self, data: Any) -> None:
        """Add bytes (anything with the buffer protocol)."""
        pieces: Iterable[bytes] = [data]
        if not isinstance(data, bytes):
            # The library takes only bytes: copies that fit the CPU cache are cheap.
            view = memoryview(data).cast("B")
            pieces = (bytes(view[at : at + _COPY]) for at in range(0, len(view), _COPY))
        for piece in pieces:
            self._value = google_crc32c.extend(self._value, piece)
            self.length += len(piece)

    def hexdigest(self) -> str:
        """Eight lowercase hex digits; named as in hashlib."""
        return f"{self._value:08x}"

    @property
    def range(self) -> Range:
        """Length and checksum, as the manifest records them."""
        return self.length, self.hexdigest()


class Cells:
    """crc32c of the bytes of a file, one for each `CELL` of them: any range of them can be summed by reading two cells."""

    def __init__(self) -> None:
        self.length = self._value = 0
        self._whole: list[str] = []

    def update(self, data: Any) -> None:
        """Add bytes (anything contiguous with the buffer protocol)."""
        view = memoryview(data)
        if not view.nbytes:
            return
        view, at = view.cast("B"), 0
        while at < len(view):
            piece = bytes(view[at : at + CELL - self.length % CELL])
            self._value = google_crc32c.extend(self._value, piece)
            self.length += len(piece)
            at += len(piece)
            if self.length % CELL == 0:
                self._whole.append(f"{self._value:08x}")
                self._value = 0

    @property
    def record(self) -> tuple[int, str]:
        """The number of bytes, and the checksums of all cells, 8 hex digits each."""
        last = f"{self._value:08x}" if self.length % CELL else ""
        return self.length, "".join(self._whole) + last


def sum_cells(path: Path, offset: int, length: int) -> tuple[int, str]:
    """`Cells.record` of the bytes of a file from ``offset``; fewer than ``length`` if the file ends before."""
    cells = Cells()
    with path.open("rb") as file:
        file.seek(offset)
        while cells.length < length and (block := file.read(min(BLOCK, length - cells.length))):
            cells.update(block)
    return cells.record


def place_cells(path: Path, offset: int, length: int, cells: str, begin: int) -> list[Range]:
    """Return the cuts (`cut_file`) of ``length`` bytes of a file from ``offset``, with these ``cells``, that will begin at byte
    ``begin`` of another file. Only the cells that the end of a block cuts are read."""

    def cut(low: int, high: int) -> Range:
        first, last = -(-low // CELL), (high if high < length else -(-high // CELL) * CELL) // CELL
        if first > last:
            return sum_range(path, offset + low, high - low)
        head = [sum_range(path, offset + low, min(first * CELL, high) - low)] if low % CELL else []
        whole = [
            (min(CELL, length - cell * CELL), cells[cell * _DIGITS : (cell + 1) * _DIGITS])
            for cell in range(first, last)
        ]
        tail = [sum_range(path, offset + last * CELL, high - last * CELL)] if last * CELL < high else []
        return join_ranges([*head, *whole, *tail])

    return [cut(low, high) for low, high in pairwise([0, *_block_ends(begin, length), length])]


def cut_file(path: Path, lengths: Sequence[int]) -> list[list[Range]]:
    """The cuts of consecutive ranges of a file: ``(length, crc32c)`` of the pieces of each between the ends of blocks."""
    pieces = [
        [high - low for low, high in pairwise([0, *_block_ends(begin, length), length])]
        for begin, length in zip(accumulate(lengths, initial=0), lengths)
    ]
    sums = iter(sum_pieces(path, 0, chain(*pieces)))
    return [[next(sums) for _ in some] for some in pieces]


def _block_ends(begin: int, length: int) -> range:
    """Where blocks end inside a range of a file that begins there, counted from its begin."""
    return range(BLOCK - begin % BLOCK, length, BLOCK)


def join_ranges(ranges: Iterable[Range]) -> Range:
    """Return consecutive ranges as one: ``(length, crc32c)`` of all their bytes, without reading these."""
    value = length = 0
    for count, checksum in ranges:
        value = _multiply(_power(count), value) ^ int(checksum, 16) if length else int(checksum, 16)
        length += count
    return length, f"{value:08x}"


def join_cuts(cuts: Iterable[Range]) -> list[Range]:
    """Return the blocks of a file, ``(length, crc32c)`` in order, from the cuts of all its ranges."""
    blocks: list[Range] = []
    at = 0
    for cut in cuts:
        if at % BLOCK:
            blocks[-1] = join_ranges([blocks[-1], cut])
        elif cut[0]:
            blocks.append(cut)
        at += cut[0]
    return blocks


def write_table(path: Path, cuts: Mapping[str, Sequence[Sequence[Range]]]) -> tuple[Any, list[Range]]:
    """Write the table of the blocks of files that are larger than one, if there are any; ``cuts`` are those of all ranges of
    each file. Returns ``blocks`` of the manifest, and the ranges of the table."""
    blocks = {name: join_cuts(chain(*ranges)) for name, ranges in sorted(cuts.items())}
    large = [name for name, some in blocks.items() if len(some) > 1]
    if not large:
        return None, []
    data = b"".join(int(checksum, 16).to_bytes(4, "little") for name in large for _, checksum in blocks[name])
    write_atomically(path, data)
    return {"size": BLOCK, "files": large}, [(len(data), crc32c(data))]


# crc(a + b) = crc(a) * x ** (8 * len(b)) + crc(b), where a checksum is a polynomial over the field of two elements modulo the
# Castagnoli polynomial, its bits reflected: the highest bit is the coefficient of 1 (zlib's crc32_combine does the same).
_POLYNOMIAL = 0x82F63B78


def _multiply(a: int, b: int) -> int:
    product = 0
    while a:
        if a & 0x80000000:
            product ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


@lru_cache(1024)
def _power(count: int) -> int:
    """``x ** (8 * count)``."""
    result, square = 0x80000000, 0x00800000  # 1, x ** 8
    while count:
        if count & 1:
            result = _multiply(result, square)
        square = _multiply(square, square)
        count >>= 1
    return result


def crc32c(data: Any) -> str:
    """crc32c of a small buffer, as eight hex digits."""
    return f"{google_crc32c.value(bytes(data)):08x}"


def hash_file(path: Path, digest: Digest) -> Digest:
    """Add the bytes of a whole file to a digest (one of hashlib, `Crc32c`, anything with `update`); returns the digest."""
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest


def sum_range(path: Path, offset: int, length: int) -> Range:
    """``(length, crc32c)`` of the bytes of a file from ``offset``; fewer than ``length`` if the file ends before."""
    return sum_pieces(path, offset, [length])[0]


def sum_pieces(path: Path, offset: int, lengths: Iterable[int]) -> list[Range]:
    """`sum_range` of consecutive pieces of these lengths."""
    sums = []
    with path.open("rb") as file:
        file.seek(offset)
        for length in lengths:
            checksum = Crc32c()
            while block := file.read(min(BLOCK, length - checksum.length)):
                checksum.update(block)
            sums.append(checksum.range)
    return sums
