"""Checksums of the files of a dataset, by range and by block.

A file is covered by consecutive ranges, each with its own crc32c: ``[length, "8 hex digits"]`` in the manifest, in order from
offset 0. Ranges are the pieces in which the file was written (decided by the plan, not by the number of processes), so that
checksums are computed while writing, and ``verify`` can say which part is damaged.

Files are also cut into blocks of one size. While they are written, a range that crosses the end of a block is recorded with a
third item: the checksums of its pieces between block ends, 8 hex digits each. `integrity` turns them into the table of
block checksums.

crc32c is the checksum Google Cloud Storage states for every object: https://cloud.google.com/storage/docs/data-validation
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, TypeVar

import google_crc32c

from .durable import close_durably, open_plain, open_replacement, sync_folder

Digest = TypeVar("Digest", bound=Any)

#: Bytes of a block, which are also read at a time to compute checksums of a file.
BLOCK = 1 << 22
_COPY = 1 << 18
_DIGITS = 8
#: Bytes that have a checksum of their own in a file whose place in a larger one is not known yet (`Cells`).
CELL = 1 << 18


class Crc32c:
    """A running crc32c that also counts bytes. With ``begin``, the bytes are those of a file from there, cut at block ends."""

    def __init__(self, begin: int | None = None) -> None:
        self._begin = begin
        self._value = self._from = self.length = 0
        self._before: list[list[Any]] = []

    def update(self, data: Any) -> None:
        """Add bytes (anything with the buffer protocol)."""
        view = data if isinstance(data, bytes) else memoryview(data).cast("B")
        # The library takes only bytes: copies that fit the CPU cache are cheap.
        at, limit = 0, len(view) if isinstance(data, bytes) else _COPY
        while at < len(view):
            if self._begin is not None and self.length > self._from and (self._begin + self.length) % BLOCK == 0:
                self._before.append([self.length - self._from, f"{self._value:08x}"])
                self._value, self._from = 0, self.length
            room = limit if self._begin is None else min(limit, BLOCK - (self._begin + self.length) % BLOCK)
            piece = bytes(view[at : at + room])
            self._value = google_crc32c.extend(self._value, piece)
            self.length += len(piece)
            at += len(piece)

    def copy(self) -> Crc32c:
        """A copy that continues from here."""
        other = Crc32c()
        other._value, other.length = self._value, self.length
        return other

    def hexdigest(self) -> str:
        """Eight lowercase hex digits; named as in hashlib."""
        return self.range[1]

    @property
    def range(self) -> tuple[int, str]:
        """Length and checksum, as the manifest records them."""
        length, checksum = join_ranges(self._pieces())
        return length, checksum

    @property
    def record(self) -> list[Any]:
        """The range as it is recorded while a dataset is written: with the checksums of its pieces, if there are several."""
        pieces = self._pieces()
        if len(pieces) == 1:
            return list(self.range)
        return [*self.range, "".join(checksum for _, checksum in pieces)]

    def _pieces(self) -> list[list[Any]]:
        return [*self._before, [self.length - self._from, f"{self._value:08x}"]]


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
    with open_plain(path, "rb", follow=True) as file:
        file.seek(offset)
        while cells.length < length and (block := file.read(min(BLOCK, length - cells.length))):
            cells.update(block)
    return cells.record


def place_cells(path: Path, offset: int, length: int, cells: str, begin: int) -> list[Any]:
    """The range (`Crc32c.record`) of ``length`` bytes of a file from ``offset``, with these ``cells``, that will begin at byte
    ``begin`` of another file. Only the cells that the end of a block cuts are read."""

    def piece(low: int, high: int) -> list[Any]:
        first, last = -(-low // CELL), (high if high < length else -(-high // CELL) * CELL) // CELL
        if first > last:
            return sum_range(path, offset + low, high - low)
        head = [sum_range(path, offset + low, min(first * CELL, high) - low)] if low % CELL else []
        whole = [
            [min(CELL, length - cell * CELL), cells[cell * _DIGITS : (cell + 1) * _DIGITS]]
            for cell in range(first, last)
        ]
        tail = [sum_range(path, offset + last * CELL, high - last * CELL)] if last * CELL < high else []
        return join_ranges([*head, *whole, *tail])

    edges = [0, *range(BLOCK - begin % BLOCK, length, BLOCK), length]
    pieces = [piece(low, high) for low, high in pairwise(edges)]
    joined = join_ranges(pieces)
    return joined if len(pieces) == 1 else [*joined, "".join(checksum for _, checksum in pieces)]


def join_ranges(ranges: Sequence[Sequence[Any]]) -> list[Any]:
    """Consecutive ranges as one: ``[length, crc32c]`` of all their bytes, without reading these."""
    value = length = 0
    for count, checksum, *_ in ranges:
        value = _multiply(_power(count), value) ^ int(checksum, 16) if length else int(checksum, 16)
        length += count
    return [length, f"{value:08x}"]


def cut_ranges(ranges: Iterable[Sequence[Any]]) -> list[list[Any]] | None:
    """The blocks of a file, ``[length, crc32c]`` in order, from the recorded ranges of all its bytes.

    None if a range crosses the end of a block and the checksums of its pieces were not recorded.
    """
    blocks: list[list[Any]] = []
    at = 0
    for length, checksum, *more in ranges:
        end, left = at + length, more[0] if more else checksum
        while at < end:
            count = min(end, (at // BLOCK + 1) * BLOCK) - at
            piece, left = [count, left[:_DIGITS]], left[_DIGITS:]
            if not piece[1]:
                return None
            if at % BLOCK:
                blocks[-1] = join_ranges([blocks[-1], piece])
            else:
                blocks.append(piece)
            at += count
    return blocks


def sum_blocks(path: Path) -> list[list[Any]]:
    """The blocks of a file, ``[length, crc32c]`` in order; reads the whole file."""
    with open_plain(path, "rb", follow=True) as file:
        return [list(summed([block]).range) for block in iter(lambda: file.read(BLOCK), b"")]


def summed(pieces: Iterable[Any], begin: int | None = None) -> Crc32c:
    """The checksum of bytes, one piece after the other."""
    checksum = Crc32c(begin)
    for piece in pieces:
        checksum.update(piece)
    return checksum


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


def record_of(data: Any) -> list[Any]:
    """The recorded range (`Crc32c.record`) of a file that holds these bytes."""
    return summed([data], 0).record


def crc32c(data: Any) -> str:
    """crc32c of a buffer, as eight hex digits."""
    return summed([data]).hexdigest()


def hash_file(path: Path, digest: Digest) -> Digest:
    """Add the bytes of a whole file to a digest (one of hashlib, `Crc32c`, anything with `update`); returns the digest."""
    with open_plain(path, "rb", follow=True) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest


def damaged_ranges(path: Path, ranges: Iterable[Sequence[Any]]) -> Iterator[tuple[int, int]]:
    """The first byte and the length of each of the manifest's ``ranges`` of a file that does not match its checksum.

    Reads a block at a time. Raises OSError if the file cannot be read.
    """
    begin = 0
    with open_plain(path, "rb", follow=True) as file:
        for length, checksum in ranges:
            if _sum(file, length) != [length, checksum]:
                yield begin, length
            begin += length


def sum_range(path: Path, offset: int, length: int) -> list[Any]:
    """``[length, crc32c]`` of the bytes of a file from ``offset``; fewer than ``length`` if the file ends before."""
    return sum_pieces(path, offset, [length])[0]


def sum_pieces(path: Path, offset: int, lengths: Iterable[int]) -> list[list[Any]]:
    """`sum_range` of consecutive pieces of these lengths."""
    with open_plain(path, "rb", follow=True) as file:
        file.seek(offset)
        return [_sum(file, length) for length in lengths]


def write_parts(path: Path, parts: Iterable[bytes]) -> list[Crc32c]:
    """Write a new file of these parts, durable; returns the checksum of each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    checksums: list[Crc32c] = []
    with open_replacement(path) as file:
        for part in parts:
            checksums.append(summed([part], file.tell()))
            file.write(part)
        close_durably(file)
    sync_folder(path.parent)
    return checksums


def _sum(file: IO[bytes], length: int) -> list[Any]:
    checksum = Crc32c()
    while checksum.length < length:
        block = file.read(min(BLOCK, length - checksum.length))
        if not block:
            break
        checksum.update(block)
    return list(checksum.range)
