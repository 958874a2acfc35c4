"""Arrow IPC files, one record batch at a time, and no batch that unpacks into more than its file justifies.

    "ARROW1" 0 0   messages: a schema, record batches, an end mark   footer   "ARROW1"

A batch may be packed (LZ4, zstd): 764 kB that unpack to 18 GiB have been seen. Every packed buffer begins with the size that
it unpacks to, where Arrow allocates it, so that is added up before. Batches are read in the order of the messages, which
share no bytes, and the footer must list as many; pyarrow then proves offsets and lengths before a value is looked at.

Format: https://arrow.apache.org/docs/format/Columnar.html, format/Message.fbs (a flatbuffer: a table begins with the distance
back to its list of field offsets).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from ...errors import CorruptSourceError
from .limits import most_unpacked

_BEGIN = 8
#: Fields of the tables Message and RecordBatch, by their number.
_HEADER, _LENGTH, _BUFFERS, _COMPRESSION = 2, 0, 2, 3
_NOT_PACKED = -1


class ArrowFile:
    """An open file: its ``schema`` and number of ``rows``. Raises CorruptSourceError, or errors of pyarrow."""

    def __init__(self, path: Path, name: str) -> None:
        import pyarrow
        import pyarrow.ipc

        self._ipc: Any = pyarrow.ipc
        self._name = name
        source = pyarrow.memory_map(str(path))
        footer = pyarrow.ipc.open_file(source)
        self.schema: Any = footer.schema
        source.seek(0)
        data = source.read_buffer()
        self._batches: list[Any] = []
        for message in pyarrow.ipc.MessageReader.open_stream(pyarrow.BufferReader(data.slice(_BEGIN))):
            if message.type == "dictionary":
                hint = "write those columns plain (pyarrow: column.dictionary_decode()), as Minari does"
                raise CorruptSourceError(f"{name} has dictionary-encoded columns, which are not read", hint=hint)
            if message.type == "record batch":
                self._batches.append(message)
        if len(self._batches) != footer.num_record_batches:
            found, stated = len(self._batches), footer.num_record_batches
            raise CorruptSourceError(f"{name} holds {found} record batches, its footer lists {stated}")
        lengths = [_rows_of(message, data.size, name) for message in self._batches]
        self._ends = list(accumulate(lengths))
        self.rows = self._ends[-1] if lengths else 0
        self._open: tuple[int, Any] | None = None

    def read(self, path: tuple[str, ...], low: int, high: int, at_once: int) -> Iterator[Any]:
        """Rows ``low..high-1`` of a column, or of a field of its structs, as arrays of up to ``at_once`` rows."""
        number = bisect_right(self._ends, low)
        while low < min(high, self.rows):
            batch, first = self._batch(number), self._ends[number - 1] if number else 0
            column = inner_field(batch.column(path[0]), path[1:])
            for begin in range(low, min(high, self._ends[number]), at_once):
                yield column.slice(begin - first, min(at_once, min(high, self._ends[number]) - begin))
            low, number = self._ends[number], number + 1

    def _batch(self, number: int) -> Any:
        if self._open is None or self._open[0] != number:
            self._open = None
            batch = self._ipc.read_record_batch(self._batches[number], self.schema)
            batch.validate(full=True)  # offsets from elsewhere lead anywhere in memory
            self._open = (number, batch)
        return self._open[1]


def inner_field(column: Any, names: Sequence[str]) -> Any:
    """A field inside the structs of an array; where a struct is null, its fields are."""
    import pyarrow.compute as compute

    for name in names:
        column = compute.struct_field(column, [column.type.get_field_index(name)])
    return column


def _rows_of(message: Any, size: int, name: str) -> int:
    """The rows of a batch. Raises CorruptSourceError where its buffers unpack to more than a file of ``size`` bytes may."""
    data, body = memoryview(message.metadata), memoryview(message.body) if message.body else memoryview(b"")
    try:
        header = _field(data, struct.unpack_from("<I", data)[0], _HEADER)
        batch = header + _unsigned(data, header)
        place = _field(data, batch, _LENGTH)
        rows: int = struct.unpack_from("<q", data, place)[0] if place else 0
        unpacked = 0
        if _field(data, batch, _COMPRESSION):
            buffers = _field(data, batch, _BUFFERS)
            buffers += _unsigned(data, buffers)
            for number in range(_unsigned(data, buffers)):
                offset, length = struct.unpack_from("<qq", data, buffers + 4 + 16 * number)
                if length > 0:
                    stated = struct.unpack_from("<q", body, offset)[0]
                    unpacked += length if stated == _NOT_PACKED else max(0, stated)
    except (struct.error, IndexError, TypeError) as error:
        raise CorruptSourceError(f"{name}: a record batch is malformed: {error}") from error
    if rows < 0 or unpacked > 2 * most_unpacked(size):
        raise CorruptSourceError(f"{name}: a batch of {rows} rows unpacks to {unpacked} bytes, from a file of {size}")
    return rows


def _field(data: memoryview, table: int, number: int) -> int:
    """Where a field of a table is, 0 where it has none."""
    fields = table - struct.unpack_from("<i", data, table)[0]
    at = 4 + 2 * number
    (size,) = struct.unpack_from("<H", data, fields)
    offset = struct.unpack_from("<H", data, fields + at)[0] if at + 2 <= size else 0
    return table + offset if offset else 0


def _unsigned(data: memoryview, at: int) -> int:
    value: int = struct.unpack_from("<I", data, at)[0]
    return value
