"""Types of values as HDF5 describes them: proved, as far as HDF5 (2.0 at least) trusts them.

A type of variable length that is neither a sequence nor a text has no functions to read it, and HDF5 calls them; an array is
read as large as its dimensions say, into memory as large as its own size says.

Format: https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html (IV.A.2.d)
"""

from __future__ import annotations

import math
import struct
from typing import Any

_NUMBER, _FLOAT, _TIME, _STRING, _BITS, _OPAQUE, _COMPOUND, _REFERENCE, _ENUM, _VLEN, _ARRAY, _COMPLEX = range(12)
#: Bits that a class may set, of the 24 it has.
_BIT_FIELDS = {
    _NUMBER: 0xF,
    _FLOAT: 0xFF7F,
    _TIME: 1,
    _STRING: 0x1F,
    _BITS: 7,
    _OPAQUE: 0xF8,
    _COMPOUND: 0xFFFF,
    _REFERENCE: 0xFF,
    _ENUM: 0xFFFF,
    _VLEN: 0x131,
    _ARRAY: 0,
    _COMPLEX: 7,
}
#: Bytes of a number; HDF5 converts larger ones in a buffer of this size. Types inside each other: of each h5py keeps a copy of
#: all that are in it. Dimensions of an array.
_WIDEST, _DEEPEST, _MOST_DIMENSIONS = 64, 8, 32
#: Of texts and values of any length: in a file, and in memory.
_IN_FILE, _IN_MEMORY = (16,), (8, 16)


def read_type(data: Any, begin: int, *, in_file: bool = True) -> tuple[int, int]:
    """Bytes of a value of the type described at ``begin``, and where its description ends.

    Raises ValueError, struct.error or IndexError for a description that HDF5 does not write. ``in_file``: it is in a file, not
    what HDF5 says of a type in memory.
    """
    return _Types(data, _IN_FILE if in_file else _IN_MEMORY).read(begin, 0)


class _Types:
    def __init__(self, data: Any, references: tuple[int, ...]) -> None:
        self._data, self._references = data, references

    def _get(self, form: str, at: int) -> tuple[int, ...]:
        return struct.unpack_from("<" + form, self._data, at)

    def read(self, at: int, depth: int) -> tuple[int, int]:
        head, size = self._get("II", at)
        version, kind, bits = head >> 4 & 15, head & 15, head >> 8
        if depth > _DEEPEST:
            raise ValueError("too many types inside each other")
        known = 1 <= version <= 5 and kind <= _COMPLEX and size
        if not known or bits & ~_BIT_FIELDS[kind]:
            raise ValueError("unknown type")
        at += 8
        if kind in (_NUMBER, _BITS, _FLOAT):
            at = self._number(at, size, kind, bits)
        elif kind == _TIME:
            at += 2
        elif kind == _STRING:
            self._text(bits & 15, bits >> 4)
        elif kind == _OPAQUE:
            at += bits & 0xFF
        elif kind == _COMPOUND:
            at = self._compound(at, size, version, bits, depth)
        elif kind == _REFERENCE:
            if (bits & 15 < 2 and size != (8, 12)[bits & 15]) or bits & 15 > 4:
                raise ValueError("unknown reference")
        else:
            at = self._made_of_another(at, size, version, kind, bits, depth)
        return size, at

    def _number(self, at: int, size: int, kind: int, bits: int) -> int:
        offset, precision = self._get("HH", at)
        sound = 0 < precision <= 8 * size - offset and (size <= _WIDEST or kind == _BITS)
        if kind == _FLOAT:
            exponent, wide, mantissa, long, _ = self._get("BBBBI", at + 4)
            inside = max(bits >> 8 & 0xFF, exponent + wide - 1, mantissa + long - 1) < precision
            sound = sound and inside and wide > 0 and long > 0 and bits & 0x30 != 0x30
        if not sound:
            raise ValueError("a number of bits that its bytes do not have")
        return at + (12 if kind == _FLOAT else 4)

    @staticmethod
    def _text(padding: int, charset: int) -> None:
        if padding > 2 or charset > 1:
            raise ValueError("unknown text")

    def _compound(self, at: int, size: int, version: int, members: int, depth: int) -> int:
        spans = []
        for _ in range(members):
            at = self._name(at, version)
            width = (size.bit_length() - 1) // 8 + 1 if version > 2 else 4
            offset = int.from_bytes(self._data[at : at + width], "little")
            at, times = at + width, 1
            if version == 1:
                times = math.prod(self._get("4I", at + 12)[: self._data[at]])
                at += 28
            held, at = self.read(at, depth + 1)
            spans.append((offset, offset + times * held))
        spans.sort()
        ends = [0, *(end for _, end in spans)]
        if not spans or any(begin < end for (begin, _), end in zip(spans, ends)) or max(ends) > size:
            raise ValueError("members that overlap")
        return at

    def _name(self, at: int, version: int) -> int:
        """Where a name ends; up to version 2 its bytes are filled up to a multiple of 8."""
        length = self._data.find(b"\0", at) - at + 1
        if length < 1:
            raise ValueError("a name without end")
        return at + (length if version > 2 else length + 7 & ~7)

    def _made_of_another(self, at: int, size: int, version: int, kind: int, bits: int, depth: int) -> int:
        dims: tuple[int, ...] = (2,) if kind == _COMPLEX else ()
        if kind == _ARRAY:
            rank = self._data[at]
            at += 1 if version > 2 else 4
            dims = self._get(f"{rank}I", at)
            at += 4 * rank * (1 if version > 2 else 2)
            if not 0 < rank <= _MOST_DIMENSIONS:
                raise ValueError("an array of no dimensions")
        inside = self._data[at] & 15
        held, at = self.read(at, depth + 1)
        if kind == _VLEN:
            self._text(bits >> 4 & 15, bits >> 8)
            text = bits & 1
            if size not in self._references or (text and (inside, held) != (_NUMBER, 1)) or (not text and bits):
                raise ValueError("unknown values of any length")
        elif size != held * math.prod(dims) or (kind == _ENUM and inside != _NUMBER):
            raise ValueError("another size than that of its values")
        if kind == _ENUM:
            for _ in range(bits):
                at = self._name(at, version)
            at += bits * held
        return at
