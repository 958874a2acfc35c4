"""Structs of thrift's compact protocol, read where they lie: nothing is kept but what is asked for.

A struct is a row of fields, each behind its number and kind, and ends with a zero. Whole numbers are varints.

Format: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .tf_example import read_varint

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _TEXT, LIST, _SET, _MAP, STRUCT = range(1, 13)
_WHOLE = (_I16, _I32, _I64)
_DEEPEST = 16


class Cursor:
    """A place in ``data``, which moves as values are read. Raises IndexError and ValueError for what is malformed."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.at = at
        self._data = data

    def fields(self) -> Iterator[tuple[int, int]]:
        """Number and kind of each field of a struct; the caller reads or skips its value before the next one."""
        number = 0
        while kind := self._data[self.at] & 15:
            step = self._data[self.at] >> 4
            self.at += 1
            number = number + step if step else self._whole()
            yield number, kind
        self.at += 1

    def items(self) -> Iterator[int]:
        """The kind of each item of a list; the caller reads or skips it before the next one."""
        head = self._data[self.at]
        self.at += 1
        count = head >> 4
        if count == 15:
            count, self.at = read_varint(self._data, self.at)
        for _ in range(count):
            if self.at >= len(self._data):
                raise ValueError("it is cut short")
            yield head & 15

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """The whole numbers, structs, and lengths of lists of a struct, by field; others are None."""
        if depth > _DEEPEST:
            raise ValueError("it is nested too deeply")
        return {number: self._value(kind, depth) for number, kind in self.fields()}

    def skip(self, kind: int, depth: int = 0) -> None:
        """Move past a value of a field."""
        if depth > _DEEPEST:
            raise ValueError("it is nested too deeply")
        if kind in _WHOLE:
            self._whole()
        elif kind in (_BYTE, _DOUBLE):
            self.at += 1 if kind == _BYTE else 8
        elif kind == _TEXT:
            length, self.at = read_varint(self._data, self.at)
            self.at += length
        elif kind in (LIST, _SET):
            self._length(depth)
        elif kind == STRUCT:
            for _, inner in self.fields():
                self.skip(inner, depth + 1)
        elif kind not in (_TRUE, _FALSE):  # which are in the head of their field
            raise ValueError(f"it has a value of kind {kind}")

    def _value(self, kind: int, depth: int) -> Any:
        if kind in _WHOLE:
            return self._whole()
        if kind == STRUCT:
            return self.struct(depth + 1)
        if kind in (LIST, _SET):
            return self._length(depth)
        self.skip(kind, depth)
        return None

    def _length(self, depth: int) -> int:
        count = 0
        for kind in self.items():
            count += 1
            if kind in (_TRUE, _FALSE):  # in a list they take a byte
                self.at += 1
            else:
                self.skip(kind, depth + 1)
        return count

    def _whole(self) -> int:
        value, self.at = read_varint(self._data, self.at)
        return value >> 1 ^ -(value & 1)
