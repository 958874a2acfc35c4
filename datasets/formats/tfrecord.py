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
asks: unknown fields are skipped, the last of several values of one key counts, the parts of a repeated field may come in
several pieces, packed and unpacked mixed. Byte strings come out as views of the record, so frames are not copied.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np

from ...errors import CorruptSourceError

#: A stream keeps its record in memory. The longest episode of RL Unplugged (27,000 frames) takes about 60 MB; what claims
#: more than this is not such a file.
_LONGEST_RECORD = 1 << 27

_MASK = 0xA282EAD8
#: A list of byte strings, or an array: float32 or int64 ``[n]``.
Value: TypeAlias = "list[memoryview] | np.ndarray"

_VARINT, _FIXED64, _BYTES, _GROUP, _END_GROUP, _FIXED32 = range(6)
_LONGEST_VARINT = 10
_DEEPEST = 64
#: Values of all features, and features, of one example. An episode of 27,000 rows has 135,000 values.
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
        source = _Source(iter(lambda: file.read(_PIECE), b""))
        for number, offset, length, where in _heads(source, name, ""):
            if length > size - offset:
                raise CorruptSourceError(
                    f"{where} is cut short: {size - offset - 12} of {length + 4} bytes are there", hint=_DAMAGED
                )
            _check_content(source, length, where, lambda piece: None)
            yield Record(number, offset, _mapped(file, offset + 12, length))


def _mapped(file: BinaryIO, offset: int, length: int) -> memoryview:
    before = offset % mmap.ALLOCATIONGRANULARITY
    # Including the checksum after it: a record may be empty, a map may not.
    size = before + length + 4
    content = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ, offset=offset - before)
    return memoryview(content)[before : before + length]


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
    lists, budget = Lists(payload), _Budget(MOST_VALUES)
    return {name: _feature(data, budget, budget) for name, data in lists.encoded.items()}


class Lists:
    """The features of an Example, each decoded when it is asked for. Raises WireError, at construction and when it decodes.

    Packed numbers are limited by the bytes that they are written in alone: 2,000 steps with an embedding of 512 are a
    million. Byte strings and single numbers, whose objects take far more memory than a record needs to state them, are
    limited to `MOST_VALUES` a feature.
    """

    def __init__(self, payload: bytes | bytearray | memoryview) -> None:
        #: The encoded lists by name.
        self.encoded: dict[str, memoryview] = {}
        budget = _Budget(MOST_VALUES)
        for features in _ones(memoryview(payload), budget):
            for entry in _ones(features, budget):
                name = value = memoryview(b"")
                for number, part in _messages(entry, budget):
                    if number == 1:
                        name = part
                    elif number == 2:
                        value = part
                try:
                    self.encoded[str(name, "utf-8")] = value
                except UnicodeDecodeError as error:
                    raise WireError("a feature name is not text") from error
                if len(self.encoded) > _MOST_FEATURES:
                    raise WireError(f"it has more than {_MOST_FEATURES} features")

    def strings(self, name: str) -> list[memoryview]:
        """The byte strings of a feature, none for an empty one. Raises KeyError, WireError."""
        kind, lists = _lists(self.encoded[name], budget := _Budget(MOST_VALUES))
        if kind not in (0, 1):
            raise WireError("it is a list of numbers")
        return list(_strings(lists, budget))

    def numbers(self, name: str) -> Iterator[np.ndarray]:
        """The numbers of a feature in pieces, int64 or float32 ``[n]``; none for an empty one. Raises KeyError, WireError."""
        data = self.encoded[name]
        kind, lists = _lists(data, budget := _Budget(MOST_VALUES))
        if kind == 1 and any(True for _ in _strings(lists, budget)):
            raise WireError("it is a list of byte strings")
        decode = {2: _floats, 3: _integers}.get(kind)
        return (piece for part in lists for piece in decode(part, budget, _Budget(len(data)))) if decode else iter(())


class _Budget:
    """Values and fields that one example may still have: each takes a hundred bytes, and two in the record."""

    def __init__(self, left: int) -> None:
        self._left = left

    def spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise WireError(f"it has more than {MOST_VALUES} values")


def _feature(data: memoryview, budget: _Budget, numbers: _Budget) -> Value:
    """The list of a feature; ``numbers`` is the budget of those that are packed."""
    kind, lists = _lists(data, budget)
    if kind == 2:
        return _joined([piece for part in lists for piece in _floats(part, budget, numbers)], np.float32)
    if kind == 3:
        return _joined([piece for part in lists for piece in _integers(part, budget, numbers)], np.int64)
    return list(_strings(lists, budget))


def _lists(data: memoryview, budget: _Budget) -> tuple[int, list[memoryview]]:
    """The kind of a feature's list (byte strings 1, floats 2, integers 3, none 0), and the parts of the list."""
    kind, lists = 0, list[memoryview]()
    for number, part in _messages(data, budget):
        if number not in (1, 2, 3):
            continue
        if number != kind:
            kind, lists = number, []  # of a "one of", the last one counts
        lists.append(part)
    return kind, lists


def _strings(lists: Iterable[memoryview], budget: _Budget) -> Iterator[memoryview]:
    return (item for part in lists for item in _ones(part, budget))


def _joined(pieces: list[np.ndarray], dtype: type) -> np.ndarray:
    if len(pieces) == 1:
        return pieces[0].astype(dtype)
    return np.concatenate(pieces).astype(dtype) if pieces else np.empty(0, dtype)


def _floats(data: memoryview, budget: _Budget, numbers: _Budget) -> Iterator[np.ndarray]:
    for number, wire, value in _fields(data, budget):
        if number != 1:
            continue
        if (wire == _BYTES and len(value) % 4 == 0) or wire == _FIXED32:
            numbers.spend(len(value) // 4)
            yield np.frombuffer(value, "<f4")
        else:
            raise WireError("a list of floats holds something else")


def _integers(data: memoryview, budget: _Budget, numbers: _Budget) -> Iterator[np.ndarray]:
    for number, wire, value in _fields(data, budget):
        if number != 1:
            continue
        if wire not in (_BYTES, _VARINT):
            raise WireError("a list of integers holds something else")
        for piece in _varint_pieces(value):
            numbers.spend(len(piece) // _LONGEST_VARINT)
            found = decode_varints(piece)
            numbers.spend(len(found) - len(piece) // _LONGEST_VARINT)
            yield found


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


def _messages(data: memoryview, budget: _Budget) -> Iterator[tuple[int, memoryview]]:
    """The length-delimited fields of a message: (field number, content)."""
    return ((number, value) for number, wire, value in _fields(data, budget) if wire == _BYTES)


def _ones(data: memoryview, budget: _Budget) -> Iterator[memoryview]:
    return (value for number, value in _messages(data, budget) if number == 1)


def _fields(data: memoryview, budget: _Budget) -> Iterator[tuple[int, int, memoryview]]:
    """All fields of a message: (field number, wire type, content); groups are passed over."""
    at, end = 0, len(data)
    while at < end:
        tag, at = data[at], at + 1
        if tag >= 0x80:  # most are one byte
            tag, at = read_varint(data, at - 1)
        number, wire = tag >> 3, tag & 7
        if not number:
            raise WireError("a field has number 0")
        if wire == _GROUP:
            at = _skip_group(data, at, number, budget)
            continue
        budget.spend(1)
        begin, at = _extent(data, at, wire)
        yield number, wire, data[begin:at]


def _extent(data: memoryview, at: int, wire: int) -> tuple[int, int]:
    """Where the content of a field begins and ends."""
    begin = at
    if wire == _BYTES:
        length, begin = read_varint(data, at)
        at = begin + length
    elif wire == _VARINT:
        _, at = read_varint(data, at)
    elif wire in (_FIXED32, _FIXED64):
        at += 4 if wire == _FIXED32 else 8
    else:
        raise WireError(f"a field has wire type {wire}")
    if at > len(data):
        raise WireError("a field reaches beyond its message")
    return begin, at


def _skip_group(data: memoryview, at: int, group: int, budget: _Budget) -> int:
    """The position after a group, an obsolete way to nest messages."""
    open_groups = [group]
    while open_groups:
        budget.spend(1)
        tag, at = read_varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == _GROUP:
            open_groups.append(number)
            if len(open_groups) > _DEEPEST:
                raise WireError("groups are nested too deeply")
        elif wire == _END_GROUP:
            if open_groups.pop() != number:
                raise WireError("a group ends that has not begun")
        else:
            _, at = _extent(data, at, wire)
    return at


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
