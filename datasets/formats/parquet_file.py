"""Parquet files opened with care: what their pages unpack to is added up before any is unpacked.

A column of a row group is a row of pages, each behind a header (thrift's compact protocol) that states the bytes it unpacks
to, which the reader allocates, and how many values it has. A page of zeros may unpack a thousandfold, and repeats of one value
take no bytes at all; real files have both. So pages are bounded by the size of the file, and rows are read in pieces.

pyarrow (26 at least) ends the process when it is asked about a column that is described wrongly: exceptions of Parquet's C++
library do not get through there. So the footer is looked through first.

Format: https://github.com/apache/parquet-format (parquet.thrift: FileMetaData, PageHeader)
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CorruptSourceError
from .limits import most_unpacked
from .tfrecord import read_varint

#: Columns, row groups, entries of the schema.
_MOST_ENTRIES = 1 << 18
#: Fields of PageHeader: type, sizes, and the headers of data pages (version 1 and 2), which begin with the number of values.
_TYPE, _UNPACKED, _PACKED, _DATA, _DATA_2 = 1, 2, 3, 5, 8
#: Of the header of a data page of version 2: the bytes of its repetition levels.
_LEVELS_2 = 6
_DATA_PAGES = (0, 3)
#: Fields of FileMetaData, RowGroup, ColumnChunk, ColumnMetaData and SizeStatistics.
_GROUPS, _COLUMNS, _ABOUT, _CRYPTO, _SIZES = 4, 1, 3, 8, 16
_TEXT_BYTES, _REPETITIONS, _DEFINITIONS = 1, 2, 3
_LONGEST_HEADER = 1 << 16
#: What some old writers leave out of the size of a column.
_SLACK = 100


def open_parquet(path: Path, name: str, **options: Any) -> Any:
    """The file as `pyarrow.parquet.ParquetFile`. Raises CorruptSourceError, or errors of pyarrow."""
    from pyarrow import parquet

    if not path.stat().st_size:
        raise CorruptSourceError(f"{name} is empty")
    file: Any = parquet.ParquetFile(path, thrift_container_size_limit=_MOST_ENTRIES, **options)
    with path.open("rb") as source, mmap.mmap(source.fileno(), 0, prot=mmap.PROT_READ) as data:
        _check_footer(file.metadata.schema, data, name)
        _check_pages(file, data, name)
    return file


def _check_footer(schema: Any, data: Any, name: str) -> None:
    """Raise CorruptSourceError where the description of a column would end the process."""
    columns = [schema.column(at) for at in range(len(schema))]
    end = len(data) - 8
    footer = _Cursor(data[max(0, end - int.from_bytes(data[end : end + 4], "little")) : end])
    try:
        for field, kind in footer.fields():
            if field != _GROUPS or kind != _LIST:
                footer.skip(kind)
                continue
            for _ in footer.items():
                _check_group(footer, columns)
    except (IndexError, ValueError) as error:
        raise CorruptSourceError(f"{name} has a malformed footer: {error}") from error


def _check_group(footer: _Cursor, columns: Sequence[Any]) -> None:
    """Move past a row group. Raises ValueError where its columns are not those of the schema."""
    count = 0
    for field, kind in footer.fields():
        if field != _COLUMNS or kind != _LIST:
            footer.skip(kind)
            continue
        count = 0
        for item in footer.items():
            if item != _STRUCT or count == len(columns) or not _described_well(columns[count], footer.struct()):
                raise ValueError(f"column {count} of a row group is not what its schema says")
            count += 1
    if count != len(columns):
        raise ValueError(f"a row group has {count} columns, the schema {len(columns)}")


def _described_well(column: Any, chunk: dict[int, Any]) -> bool:
    """Whether what is said of the sizes in a column fits its type, and is not encrypted."""
    about = chunk.get(_ABOUT)
    sizes = about.get(_SIZES) if isinstance(about, dict) else None
    if _CRYPTO in chunk:
        return False
    if not isinstance(sizes, dict):
        return True
    levels = ((_REPETITIONS, column.max_repetition_level), (_DEFINITIONS, column.max_definition_level))
    return all(sizes.get(field) in (None, 0, most + 1) for field, most in levels) and (
        sizes.get(_TEXT_BYTES) is None or column.physical_type == "BYTE_ARRAY"
    )


def _check_pages(file: Any, data: Any, name: str) -> None:
    """Raise CorruptSourceError where the pages that are in memory together are larger than the file justifies."""
    metadata, size = file.metadata, len(data)
    for number in range(metadata.num_row_groups):
        group, together = metadata.row_group(number), 0
        large: list[tuple[Any, tuple[int, int], str]] = []
        for at in range(group.num_columns):
            chunk = group.column(at)
            where = f"{name}: {chunk.path_in_schema} of row group {number}"
            begin = chunk.data_page_offset
            if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < begin:
                begin = chunk.dictionary_page_offset
            end = begin + chunk.total_compressed_size
            if not 4 <= begin <= end <= size:
                raise CorruptSourceError(f"{where} lies outside of the file")
            values, most = 0, {False: 0, True: 0}
            for page in _pages(data, begin, min(end + _SLACK, size), chunk.num_values, where):
                values += page.values
                most[page.has_rows] = max(most[page.has_rows], page.unpacked)
            together += sum(most.values())
            nested = metadata.schema.column(at).max_repetition_level > 0
            if values != chunk.num_values or (not nested and values != group.num_rows):
                message = (
                    f"{where} has {values} values in its pages, {chunk.num_values} and {group.num_rows} rows are stated"
                )
                raise CorruptSourceError(message)
            width = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4}.get(chunk.physical_type, 8) + 4
            if nested and values * width > 4 * most_unpacked(size):
                large.append((chunk, (begin, min(end + _SLACK, size)), where))
        if together > 3 * most_unpacked(size):
            message = f"{name}: the pages of row group {number} unpack to {together} bytes, from a file of {size}"
            raise CorruptSourceError(message)
        for chunk, place, where in large:
            pages = _pages(data, *place, chunk.num_values, where)
            _check_lists(file.schema_arrow, chunk, group.num_rows, pages, data, where)


@dataclass(frozen=True)
class _Page:
    """A page: whether it has rows or is a dictionary, how many values, and where its ``packed`` bytes begin.

    ``levels``: bytes of the repetition levels in front, which are not packed; None where they are packed with the rest.
    """

    has_rows: bool
    values: int
    unpacked: int
    begin: int
    packed: int
    levels: int | None


def _pages(data: Any, at: int, end: int, wanted: int, where: str) -> Iterator[_Page]:
    """The pages of a column, until they have as many values as are wanted."""
    values = 0
    while at < end and values < wanted:
        try:
            cursor = _Cursor(data[at : min(end, at + _LONGEST_HEADER)])
            header, at = cursor.struct(), at + cursor.at
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
        kind, count, levels = header.get(_TYPE), 0, None
        if kind in _DATA_PAGES:
            found = header.get(_DATA if kind == _DATA_PAGES[0] else _DATA_2)
            inner = found if isinstance(found, dict) else {}
            count = inner.get(1, -1)
            if not isinstance(count, int) or count < 0:
                raise CorruptSourceError(f"{where} has a page of {count} values")
            levels = inner.get(_LEVELS_2, 0) if kind == _DATA_PAGES[1] else None
            values += count
        yield _Page(kind in _DATA_PAGES, count, unpacked, at, packed, levels)
        at += packed


def _check_lists(schema: Any, chunk: Any, rows: int, pages: Iterator[_Page], data: Any, where: str) -> None:
    """Raise CorruptSourceError unless each row of a column has the one length that its type states.

    The rows of such a column may be read in pieces, of a size that is known: pictures, whose values are many and alike.
    """
    size = _list_size(schema, chunk.path_in_schema.split("."))
    if size and chunk.num_values == size * rows:
        longest = since = 0
        for page in pages:
            if page.has_rows:
                longest, since = _longest_row(_levels(page, chunk.compression, data), page.values, longest, since)
        if max(longest, since) == size:
            return
    message = f"{where} has {chunk.num_values} values, more than the {len(data)} bytes of the file justify"
    raise CorruptSourceError(message, hint="write it in smaller row groups")


def _list_size(schema: Any, path: Sequence[str]) -> int:
    """The length of the lists of a column by its path, 0 where they have no fixed one."""
    import pyarrow

    kind = schema.field(path[0]).type if schema.names.count(path[0]) == 1 else None
    for name in path[1:]:
        if kind is None or not pyarrow.types.is_struct(kind):
            break
        kind = kind.field(name).type if kind.get_field_index(name) >= 0 else None
    return int(kind.list_size) if kind is not None and pyarrow.types.is_fixed_size_list(kind) else 0


def _levels(page: _Page, codec: str, data: Any) -> bytes:
    """The repetition levels of a page, as they are encoded."""
    import pyarrow

    held = data[page.begin : page.begin + page.packed]
    if page.levels is not None:
        return bytes(held[: page.levels])
    if codec != "UNCOMPRESSED":
        try:
            name = "lz4_raw" if codec == "LZ4" else codec.lower()
            held = pyarrow.Codec(name).decompress(held, page.unpacked, asbytes=True)
        except (pyarrow.ArrowException, ValueError, OSError):
            return b""  # no levels: a row of length 0 is not what is wanted
    return bytes(held[4 : 4 + int.from_bytes(held[:4], "little")])


def _longest_row(levels: bytes, count: int, longest: int, since: int) -> tuple[int, int]:
    """The longest row that ended so far, and the values since one began, behind ``count`` more levels; 0 begins a row.

    Levels are runs of one value, or of eight bits at a time: https://parquet.apache.org/docs/file-format/data-pages/encodings/
    """
    at = 0
    with suppress(IndexError, ValueError):
        while count and at < len(levels):
            head, at = read_varint(levels, at)
            if head & 1:
                bits = np.unpackbits(np.frombuffer(levels, np.uint8, head >> 1, at), bitorder="little")[:count]
                starts, run, at = np.flatnonzero(bits == 0), len(bits), at + (head >> 1)
                if len(starts):
                    longest = max(longest, since + int(starts[0]), int(np.diff(starts).max(initial=0)))
                since = run - int(starts[-1]) if len(starts) else since + run
            else:
                run, value, at = min(head >> 1, count), levels[at], at + 1
                if run and not value:
                    longest = max(longest, since, min(run - 1, 1))
                since = since + run if value else 1
            count -= run
    return (longest, since) if not count else (0, 0)


# -- thrift's compact protocol -----------------------------------------------------------------------------------------


# https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _TEXT, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_WHOLE = (_I16, _I32, _I64)
_DEEPEST = 16


class _Cursor:
    """A place in ``data``, which moves as values are read; nothing is kept but what is asked for.

    A struct is a row of fields, each behind its number and kind, and ends with a zero. Whole numbers are varints. Raises
    IndexError and ValueError for malformed data.
    """

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
        elif kind in (_LIST, _SET):
            self._length(depth)
        elif kind == _STRUCT:
            for _, inner in self.fields():
                self.skip(inner, depth + 1)
        elif kind not in (_TRUE, _FALSE):  # which are in the head of their field
            raise ValueError(f"it has a value of kind {kind}")

    def _value(self, kind: int, depth: int) -> Any:
        if kind in _WHOLE:
            return self._whole()
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in (_LIST, _SET):
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
