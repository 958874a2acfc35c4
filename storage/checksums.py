"""Checksums of what was written, by range.

A file of a dataset is covered by consecutive ranges, each with its own crc32c: ``[length, "8 hex digits"]`` in the
manifest, in order from offset 0. Ranges are the pieces in which the file was written (decided by the plan, not by the
number of processes), so that every byte is summed while it passes by, and ``verify`` can say which part is damaged.

crc32c is the checksum Google Cloud Storage states for every object: https://cloud.google.com/storage/docs/data-validation
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import google_crc32c

#: Bytes read at a time when a file is summed again.
BLOCK = 1 << 22
_COPY = 1 << 18


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
            checksum = Crc32c()
            while checksum.length < length:
                block = file.read(min(BLOCK, length - checksum.length))
                if not block:
                    break
                checksum.update(block)
            yield checksum.length, checksum.hex == wanted
