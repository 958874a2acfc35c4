"""Checksums of what was written, by range.

A file of a dataset is covered by consecutive ranges, each with its own crc32c: ``[length, "8 hex digits"]`` in the
manifest, in order from offset 0. Ranges are the pieces in which the file was written (decided by the plan, not by the
number of processes), so that every byte is summed while it passes by, and ``verify`` can say which part is damaged.

crc32c is the checksum Google Cloud Storage states for every object: https://cloud.google.com/storage/docs/data-validation
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import google_crc32c

#: Bytes read at a time when a file is summed again.
BLOCK = 1 << 22
_COPY = 1 << 18
_ZEROS = bytes(1 << 20)


class Crc32c:
    """A running crc32c that also counts bytes."""

    def __init__(self) -> None:
        self._value = 0
        self.length = 0

    def update(self, data: Any) -> None:
        """Add bytes (anything with the buffer protocol)."""
        if isinstance(data, bytes):
            self._value = google_crc32c.extend(self._value, data)
            self.length += len(data)
            return
        view = memoryview(data).cast("B")
        for at in range(0, len(view), _COPY):  # the library takes bytes only: copies that fit the cache cost little
            self._value = google_crc32c.extend(self._value, bytes(view[at : at + _COPY]))
        self.length += len(view)

    @property
    def hex(self) -> str:
        """Eight lowercase hex digits."""
        return f"{self._value:08x}"

    @property
    def range(self) -> tuple[int, str]:
        """What the manifest records."""
        return (self.length, self.hex)


def join_ranges(ranges: Sequence[Sequence[Any]]) -> list[Any]:
    """Consecutive ranges as one: ``[length, crc32c]`` of all their bytes, which are not read."""
    if len(ranges) == 1:
        return list(ranges[0])
    value = length = 0
    for count, checksum in ranges:
        # crc(a + b) = crc(a + zeros) ^ crc(zeros) ^ crc(b), with as many zeros as b has bytes.
        value = _extend_by_zeros(value, count) ^ _extend_by_zeros(0, count) ^ int(checksum, 16)
        length += count
    return [length, f"{value:08x}"]


def _extend_by_zeros(value: int, count: int) -> int:
    for low in range(0, count, len(_ZEROS)):
        value = google_crc32c.extend(value, _ZEROS[: count - low])
    return value


def crc32c(data: Any) -> str:
    """crc32c of a buffer, as eight hex digits."""
    checksum = Crc32c()
    checksum.update(data)
    return checksum.hex


def check_ranges(path: Path, ranges: Sequence[Sequence[Any]]) -> Iterator[tuple[int, bool]]:
    """The bytes found of each of a manifest's ``ranges`` of a file, and whether they are what was written.

    A block is read at a time; a file that ends early gives shorter ranges.
    """
    with path.open("rb") as file:
        for length, wanted in ranges:
            yield _check(file, length, wanted)


def check_range(path: Path, offset: int, length: int, wanted: str) -> tuple[int, bool]:
    """As `check_ranges`, for the one range that begins at a byte."""
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        return _check(file, length, wanted)


def _check(file: IO[bytes], length: int, wanted: str) -> tuple[int, bool]:
    checksum = Crc32c()
    while checksum.length < length:
        block = file.read(min(BLOCK, length - checksum.length))
        if not block:
            break
        checksum.update(block)
    return checksum.length, checksum.hex == wanted
