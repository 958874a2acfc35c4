"""TFRecord files of ``tf.train.Example``: records from a byte stream or a file, every checksum checked, and their named lists.

Format (https://www.tensorflow.org/tutorials/load_data/tfrecord, tensorflow/core/lib/io/record_writer.h). One record after
the other, all numbers little-endian:

    uint64   length of the payload
    uint32   masked crc32c of those 8 bytes
    byte     payload[length]
    uint32   masked crc32c of the payload

masked(c) = rotate right(c, 15) + 0xa282ead8, modulo 2**32. There is no header and no index.

The payload is an Example in protocol buffer wire format: named lists of bytes, floats or integers.

    Example          1: Features
    Features         1: map entry, repeated        { 1: key (string), 2: Feature }
    Feature          one of 1: BytesList, 2: FloatList, 3: Int64List
    BytesList        1: bytes, repeated
    FloatList        1: float, repeated, packed or not
    Int64List        1: int64, repeated, packed or not

Formats: https://protobuf.dev/programming-guides/encoding and tensorflow/core/example/{example,feature}.proto. As the format
asks, unknown fields are skipped (groups, which are obsolete, are refused), the last of several values of one key counts, and
the parts of a repeated field may come in several pieces, packed and unpacked mixed. Byte strings come out as views of the
record, so frames are not copied.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np

from ...errors import CorruptSourceError

#: A stream keeps its record in memory. The longest episode of RL Unplugged (27,000 frames) takes about 60 MB; what claims
#: more than this is not such a file.
_LONGEST_RECORD = 1 << 27

_MASK = 0xA282EAD8
#: A list of byte strings, or an array: float32 or int64 ``[n]``.
Value: TypeAlias = "list[memoryview] | np.ndarray"
Item = TypeVar("Item")

#: Wire types, and the kinds of lists.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_STRINGS, _FLOATS, _INTEGERS = 1, 2, 3
_LONGEST_VARINT = 10
#: Values of a feature, and features, of one example.
MOST_VALUES, _MOST_FEATURES = 1 << 19, 1 << 10
#: Bytes of a packed field that are decoded at a time: a number of one byte takes fifty meanwhile.
_VARINT_BYTES = 1 << 20
#: Bytes of a file that are checked at a time.
_PIECE = 1 << 20
_DAMAGED = "the copy at the source or mirror is damaged; fetch it again, or try another mirror"


@dataclass(frozen=True)
class Record:
    """One record; ``number`` and ``offset`` (of its first byte in the unpacked file) say where it lies."""

    number: int
    offset: int
    payload: bytearray | memoryview


def masked_crc32c(value: int) -> int:
    """The mask that keeps a checksum of checksums apart from one of data."""
    return ((value >> 15 | value << 17) + _MASK) & 0xFFFFFFFF


def read_records(pieces: Iterable[bytes], name: str) -> Iterator[Record]:
    """Yield the records of a stream. Memory is one record and one piece.

    Raises CorruptSourceError, naming the file, the record and its offset, when a checksum does not match or the stream
    ends inside a record.
    """
    source = _Source(pieces)
    for number, offset, length, where in _heads(source, name, " of the unpacked file"):
        if length > _LONGEST_RECORD:
            raise CorruptSourceError(f"{where} claims to be {length} bytes long", hint=_DAMAGED)
        # Grows with what arrives: a length alone claims no memory.
        payload = bytearray()
        _check_content(source, length, where, payload.extend)
        yield Record(number, offset, payload)
        del payload  # before the next one comes


def read_mapped_records(path: Path, name: str) -> Iterator[Record]:
    """Yield the records of a file; each is a view of the file, mapped, until the next one is asked for.

    So a record may be as long as the file, and needs no extra memory. Anything kept of it must be copied. Raises as
    `read_records` does, after the record was read once to check it.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")
        source = _Source(iter(lambda: file.read(_PIECE), b""))
        for number, offset, length, where in _heads(source, name, ""):
            if length > size - offset:
                raise CorruptSourceError(
                    f"{where} is cut short: {size - offset - 12} of {length + 4} bytes are there", hint=_DAMAGED
                )
            _check_content(source, length, where, lambda piece: None)
            yield Record(number, offset, content[offset + 12 : offset + 12 + length])
            drop_pages(content)


def drop_pages(view: memoryview) -> None:
    """Drop the pages of a mapped record from this process's memory; they are read again if they are needed."""
    if isinstance(view.obj, mmap.mmap):
        view.obj.madvise(mmap.MADV_DONTNEED)


def _heads(source: _Source, name: str, of_what: str) -> Iterator[tuple[int, int, int, str]]:
    """Number, offset and length of each record, and its name for messages; the caller reads the bytes after the head.

    Raises CorruptSourceError.
    """
    for number in count():
        offset = source.position
        where, head = f"{name}: record {number} (at byte {offset}{of_what})", b"".join(source.take(12))
        if not head:
            return
        if len(head) < 12:
            raise CorruptSourceError(f"{where} is cut short: {len(head)} bytes are left", hint=_DAMAGED)
        length, stated = struct.unpack("<QI", head)
        if masked_crc32c(_extend(0, head[:8])) != stated:
            raise CorruptSourceError(f"{where}: the checksum of its length does not match", hint=_DAMAGED)
        yield number, offset, length, where


def _check_content(source: _Source, length: int, where: str, take: Callable[[bytes], object]) -> None:
    """Pass the payload on piece by piece, and compare its checksum. Raises CorruptSourceError."""
    found = got = 0
    for piece in source.take(length):
        found = _extend(found, piece)
        got += len(piece)
        take(piece)
    tail = b"".join(source.take(4))
    if got < length or len(tail) < 4:
        message = f"{where} is cut short: {got + len(tail)} of {length + 4} bytes are there"
        raise CorruptSourceError(message, hint=_DAMAGED)
    if masked_crc32c(found) != int.from_bytes(tail, "little"):
        raise CorruptSourceError(f"{where}: the checksum of its content does not match", hint=_DAMAGED)


def _extend(found: int, piece: bytes) -> int:
    import google_crc32c

    extended: int = google_crc32c.extend(found, piece)
    return extended


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


# -- examples ----------------------------------------------------------------------------------------------------------


class WireError(ValueError):
    """The bytes are not a protocol buffer message, or one of another kind."""


def parse_example(payload: bytes | bytearray | memoryview) -> dict[str, Value]:
    """The features of an Example by name; one without a value is an empty list of bytes. Raises WireError.

    Integers are int64; those written as unsigned with the highest bit set come out as the negative number of the same
    bits (``array.view("uint64")`` undoes it).
    """
    lists = Lists(payload)
    return {name: lists.value(name) for name in lists.encoded}


class Lists:
    """The features of an Example, each decoded when it is asked for. Raises WireError, at construction and when it decodes.

    Packed numbers are limited by the bytes that they are written in alone: 2,000 steps with an embedding of 512 are a
    million. Byte strings and single numbers, whose objects take far more memory than a record needs to state them, are
    limited to `MOST_VALUES` a feature.
    """

    def __init__(self, payload: bytes | bytearray | memoryview) -> None:
        #: The encoded lists by name.
        self.encoded: dict[str, memoryview] = {}
        for features in _ones(memoryview(payload)):
            for entry in _ones(features):
                parts = dict(_messages(entry))
                try:
                    self.encoded[str(parts.get(1, b""), "utf-8")] = parts.get(2, memoryview(b""))
                except UnicodeDecodeError as error:
                    raise WireError("a feature name is not text") from error
                if len(self.encoded) > _MOST_FEATURES:
                    raise WireError(f"it has more than {_MOST_FEATURES} features")

    def value(self, name: str) -> Value:
        """The byte strings of a feature, or its numbers, here at most `MOST_VALUES` too."""
        kind, _ = self._list(name)
        if kind in (0, _STRINGS):
            return self.strings(name)
        pieces, found = [np.empty(0, np.float32 if kind == _FLOATS else np.int64)], 0
        for piece in self.numbers(name):
            pieces.append(piece)
            found += len(piece)
            if found > MOST_VALUES:
                raise WireError(f"it has more than {MOST_VALUES} values")
        return np.concatenate(pieces)

    def strings(self, name: str) -> list[memoryview]:
        """The byte strings of a feature, none for an empty one. Raises KeyError, WireError."""
        kind, parts = self._list(name)
        if kind not in (0, _STRINGS):
            raise WireError("it is a list of numbers")
        return list(_limited(item for part in parts for item in _ones(part)))

    def numbers(self, name: str) -> Iterator[np.ndarray]:
        """The numbers of a feature in pieces, int64 or float32 ``[n]``; none for an empty one. Raises KeyError, WireError."""
        kind, parts = self._list(name)
        if kind == _STRINGS and any(True for part in parts for _ in _ones(part)):
            raise WireError("it is a list of byte strings")
        decode = {_FLOATS: _floats, _INTEGERS: _integers}.get(kind)
        return _limited(piece for part in parts for piece in decode(part)) if decode else iter(())

    def _list(self, name: str) -> tuple[int, list[memoryview]]:
        """The kind of a feature's list (0: none), and the parts of the list; of several kinds the last one counts."""
        kind, parts = 0, list[memoryview]()
        for number, part in _messages(self.encoded[name]):
            if number in (_STRINGS, _FLOATS, _INTEGERS):
                kind, parts = number, [*(parts if number == kind else []), part]
        return kind, parts


def _limited(values: Iterator[Item]) -> Iterator[Item]:
    for number, value in enumerate(values, 1):
        if number > MOST_VALUES:
            raise WireError(f"it has more than {MOST_VALUES} values")
        yield value


def _floats(data: memoryview) -> Iterator[np.ndarray]:
    for number, wire, value in _fields(data):
        if number == 1:
            if wire not in (_BYTES, _FIXED32) or len(value) % 4:
                raise WireError("a list of floats holds something else")
            yield np.frombuffer(value, "<f4")


def _integers(data: memoryview) -> Iterator[np.ndarray]:
    for number, wire, value in _fields(data):
        if number == 1:
            if wire not in (_BYTES, _VARINT):
                raise WireError("a list of integers holds something else")
            yield from map(decode_varints, _varint_pieces(value))


def _varint_pieces(data: memoryview) -> Iterator[memoryview]:
    """A packed field in pieces that end where a number ends."""
    at = 0
    while at < len(data):
        end = min(at + _VARINT_BYTES, len(data))
        while end < len(data) and data[end - 1] >= 0x80 and end - at < _VARINT_BYTES + _LONGEST_VARINT:
            end += 1
        yield data[at:end]
        at = end


def decode_varints(data: memoryview) -> np.ndarray:
    """All varints of a packed field, int64. Raises WireError when the last one has no end, or one is too long."""
    raw = np.frombuffer(data, np.uint8)
    if not len(raw):
        return np.empty(0, np.int64)
    ends = np.flatnonzero(raw < 0x80)
    if len(ends) == len(raw):
        return raw.astype(np.int64)
    if not len(ends) or ends[-1] != len(raw) - 1:
        raise WireError("an integer has no end")
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    if lengths.max() > _LONGEST_VARINT:
        raise WireError("an integer is longer than 64 bits")
    values = np.zeros(len(starts), np.uint64)
    for place in range(int(lengths.max())):  # seven bits at a time, for all numbers that have them
        chosen = np.flatnonzero(lengths > place)
        bits = (raw[starts[chosen] + place] & 0x7F).astype(np.uint64)
        if place == _LONGEST_VARINT - 1 and (bits > 1).any():
            raise WireError("an integer is longer than 64 bits")
        values[chosen] |= bits << np.uint64(7 * place)
    return values.view(np.int64)


# -- wire format -----------------------------------------------------------------------------------------------------


def _messages(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The length-delimited fields of a message: (field number, content)."""
    return ((number, value) for number, wire, value in _fields(data) if wire == _BYTES)


def _ones(data: memoryview) -> Iterator[memoryview]:
    return (value for number, value in _messages(data) if number == 1)


def _fields(data: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """All fields of a message: (field number, wire type, content)."""
    at = found = 0
    while at < len(data):
        tag, at = data[at], at + 1
        if tag >= 0x80:  # most are one byte
            tag, at = read_varint(data, at - 1)
        begin, wire = at, tag & 7
        if wire == _BYTES:
            length, begin = read_varint(data, at)
            at = begin + length
        elif wire == _VARINT:
            _, at = read_varint(data, at)
        elif wire in (_FIXED32, _FIXED64):
            at += 4 if wire == _FIXED32 else 8
        else:
            raise WireError(f"a field has wire type {wire}")
        found += 1
        if tag < 8 or at > len(data) or found > MOST_VALUES:
            what = "a field has number 0" if tag < 8 else "a field reaches beyond its message"
            raise WireError(what if found <= MOST_VALUES else f"it has more than {MOST_VALUES} values")
        yield tag >> 3, wire, data[begin:at]


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """An integer of 7 bits per byte, the lowest first, and the position after it. Raises WireError."""
    value = shift = 0
    while True:
        if at >= len(data):
            raise WireError("an integer has no end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift >= 7 * _LONGEST_VARINT:
            raise WireError("an integer is longer than 64 bits")
