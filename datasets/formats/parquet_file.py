"""Parquet files opened with care: what their pages unpack to is added up before any is unpacked.

A column of a row group is a row of pages, each behind a header (thrift's compact protocol) that states the bytes it unpacks
to, which the reader allocates, and how many values it has. A page of zeros may unpack a thousandfold, and repeats of one value
take no bytes at all; real files have both. So pages are bounded by the size of the file, and rows are read in pieces.

Format: https://github.com/apache/parquet-format (parquet.thrift: PageHeader), thrift/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

from ...errors import CorruptSourceError
from .limits import most_unpacked

#: Columns, row groups, entries of the schema.
_MOST_ENTRIES = 1 << 18
#: Fields of PageHeader: type, sizes, and the headers of data pages (version 1 and 2), which begin with the number of values.
_TYPE, _UNPACKED, _PACKED, _DATA, _DATA_2 = 1, 2, 3, 5, 8
_DATA_PAGES = (0, 3)
_LONGEST_HEADER, _DEEPEST = 1 << 16, 16
#: What some old writers leave out of the size of a column.
_SLACK = 100


def open_parquet(path: Path, name: str, **options: Any) -> Any:
    """The file as `pyarrow.parquet.ParquetFile`. Raises CorruptSourceError, or errors of pyarrow."""
    from pyarrow import parquet

    if not path.stat().st_size:
        raise CorruptSourceError(f"{name} is empty")
    file: Any = parquet.ParquetFile(path, thrift_container_size_limit=_MOST_ENTRIES, **options)
    with path.open("rb") as source, mmap.mmap(source.fileno(), 0, prot=mmap.PROT_READ) as data:
        _check_pages(file, data, name)
    return file


def _check_pages(file: Any, data: Any, name: str) -> None:
    """Raise CorruptSourceError where the pages that are in memory together are larger than the file justifies."""
    metadata, size = file.metadata, len(data)
    for number in range(metadata.num_row_groups):
        group, together = metadata.row_group(number), 0
        for at in range(group.num_columns):
            chunk = group.column(at)
            where = f"{name}: {chunk.path_in_schema} of row group {number}"
            begin = chunk.data_page_offset
            if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < begin:
                begin = chunk.dictionary_page_offset
            end = begin + chunk.total_compressed_size
            if not 4 <= begin <= end <= size:
                raise CorruptSourceError(f"{where} lies outside of the file")
            largest, values = _look_through(data, begin, min(end + _SLACK, size), chunk.num_values, where)
            together += largest
            nested = metadata.schema.column(at).max_repetition_level > 0
            if values != chunk.num_values or (not nested and values != group.num_rows):
                message = (
                    f"{where} has {values} values in its pages, {chunk.num_values} and {group.num_rows} rows are stated"
                )
                raise CorruptSourceError(message)
            # All values of a nested column may be those of one row.
            width = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4}.get(chunk.physical_type, 8) + 4
            if nested and values * width > 4 * most_unpacked(size):
                message = f"{where} has {values} values, more than the {size} bytes of the file justify"
                raise CorruptSourceError(message, hint="write it in smaller row groups")
        if together > 3 * most_unpacked(size):
            message = f"{name}: the pages of row group {number} unpack to {together} bytes, from a file of {size}"
            raise CorruptSourceError(message)


def _look_through(data: Any, at: int, end: int, wanted: int, where: str) -> tuple[int, int]:
    """What the largest page and the dictionary unpack to together, and the values of all data pages."""
    largest = dictionary = values = 0
    while at < end and values < wanted:
        try:
            header, at = _read_struct(data[at : min(end, at + _LONGEST_HEADER)], 0, 0, at)
        except (IndexError, ValueError) as error:
            raise CorruptSourceError(f"{where} has a malformed page: {error}") from error
        unpacked, packed = header.get(_UNPACKED, -1), header.get(_PACKED, -1)
        if (
            not isinstance(unpacked, int)
            or not isinstance(packed, int)
            or min(unpacked, packed) < 0
            or at + packed > end
        ):
            raise CorruptSourceError(f"{where} has a page that states {packed} bytes, unpacked {unpacked}")
        inner = header.get(_DATA if header.get(_TYPE) == _DATA_PAGES[0] else _DATA_2)
        if header.get(_TYPE) in _DATA_PAGES:
            count = inner.get(1, -1) if isinstance(inner, dict) else -1
            if not isinstance(count, int) or count < 0:
                raise CorruptSourceError(f"{where} has a page of {count} values")
            values, largest = values + count, max(largest, unpacked)
        else:
            dictionary = max(dictionary, unpacked)
        at += packed
    return largest + dictionary, values


def _read_struct(data: bytes, at: int, depth: int, base: int) -> tuple[dict[int, Any], int]:
    """The whole numbers and structs of a struct by field; returns it and the place behind it, counted from ``base``."""
    if depth > _DEEPEST:
        raise ValueError("it is nested too deeply")
    found: dict[int, Any] = {}
    number = 0
    while True:
        head = data[at]
        at += 1
        kind = head & 15
        if not kind:
            return found, base + at
        if head >> 4:
            number += head >> 4
        else:
            number, at = _zigzag(data, at)
        if kind == 12:
            found[number], behind = _read_struct(data, at, depth + 1, base)
            at = behind - base
        elif kind in (4, 5, 6):
            found[number], at = _zigzag(data, at)
        else:
            at = _skip(data, at, kind, depth)


def _skip(data: bytes, at: int, kind: int, depth: int) -> int:
    """Past a value that is of no interest."""
    if depth > _DEEPEST:
        raise ValueError("it is nested too deeply")
    if kind in (1, 2):  # truth values are in the head of their field
        return at
    if kind == 3:
        return at + 1
    if kind in (4, 5, 6):
        return _varint(data, at)[1]
    if kind == 7:
        return at + 8
    if kind == 8:
        length, at = _varint(data, at)
        return at + length
    if kind in (9, 10):
        head = data[at]
        count, at = _varint(data, at + 1) if head >> 4 == 15 else (head >> 4, at + 1)
        for _ in range(count):
            # In a list, a truth value takes a byte.
            at = at + 1 if head & 15 in (1, 2) else _skip(data, at, head & 15, depth + 1)
            if at > len(data):
                raise ValueError("it is cut short")
        return at
    if kind == 12:
        return _read_struct(data, at, depth + 1, 0)[1]
    raise ValueError(f"it has a value of kind {kind}")


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return value >> 1 ^ -(value & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("an integer is too long")
