"""TFRecord files: records out of a byte stream, every checksum checked.

Format (https://www.tensorflow.org/tutorials/load_data/tfrecord, tensorflow/core/lib/io/record_writer.h). One record after
the other, all numbers little-endian:

    uint64   length of the payload
    uint32   masked crc32c of those 8 bytes
    byte     payload[length]
    uint32   masked crc32c of the payload

masked(c) = rotate right(c, 15) + 0xa282ead8, modulo 2**32. There is no header and no index.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ...errors import CorruptSourceError

#: The longest episode of the dataset (27,000 frames) takes about 60 MB; what claims more than this is no such file.
LONGEST_RECORD = 1 << 27

_MASK = 0xA282EAD8
_DAMAGED = "the copy at the source or mirror is damaged; fetch it again, or try another mirror"


@dataclass(frozen=True)
class Record:
    """One record; ``number`` and ``offset`` (of its first byte in the unpacked file) say where it lies."""

    number: int
    offset: int
    payload: bytearray


def masked_crc32c(value: int) -> int:
    """The mask that keeps a checksum of checksums apart from one of data."""
    return ((value >> 15 | value << 17) + _MASK) & 0xFFFFFFFF


def read_records(pieces: Iterable[bytes], name: str) -> Iterator[Record]:
    """Yield the records of a stream. Memory is one record and one piece.

    Raises CorruptSourceError, naming the file, the record and its offset, when a checksum does not match or the stream
    ends inside a record.
    """
    import google_crc32c

    extend: Any = google_crc32c.extend
    source = _Source(pieces)
    number = 0
    while True:
        offset = source.position
        where = f"{name}: record {number} (at byte {offset} of the unpacked file)"
        head = b"".join(source.take(12))
        if not head:
            return
        if len(head) < 12:
            raise CorruptSourceError(f"{where} is cut short: {len(head)} bytes are left", hint=_DAMAGED)
        length, stated = struct.unpack("<QI", head)
        if masked_crc32c(extend(0, head[:8])) != stated:
            raise CorruptSourceError(f"{where}: the checksum of its length does not match", hint=_DAMAGED)
        if length > LONGEST_RECORD:
            raise CorruptSourceError(f"{where} claims to be {length} bytes long", hint=_DAMAGED)
        payload, found = bytearray(), 0
        # Grows with what arrives: a length alone claims no memory.
        for piece in source.take(length):
            found = extend(found, piece)
            payload += piece
        tail = b"".join(source.take(4))
        if len(payload) < length or len(tail) < 4:
            got = len(payload) + len(tail)
            raise CorruptSourceError(f"{where} is cut short: {got} of {length + 4} bytes are there", hint=_DAMAGED)
        if masked_crc32c(found) != int.from_bytes(tail, "little"):
            raise CorruptSourceError(f"{where}: the checksum of its content does not match", hint=_DAMAGED)
        yield Record(number, offset, payload)
        del payload  # before the next one comes
        number += 1


class _Source:
    """Bytes in the amounts asked for, out of pieces of any size."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.position = 0
        self._pieces = iter(pieces)
        self._piece, self._used = b"", 0

    def take(self, count: int) -> Iterator[bytes]:
        """Yield up to ``count`` bytes in pieces; less when the stream ends."""
        while count:
            if self._used == len(self._piece):
                self._piece, self._used = next(self._pieces, b""), 0
                if not self._piece:
                    return
            # The checksum function wants `bytes`; a whole piece is passed on as it is.
            part = self._piece[self._used : self._used + count]
            self._used += len(part)
            self.position += len(part)
            count -= len(part)
            yield part
