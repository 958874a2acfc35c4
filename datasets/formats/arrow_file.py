"""Arrow IPC files, one record batch at a time. pyarrow trusts them, and is used in a sandbox (`workers.sandbox`)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from ...errors import CorruptSourceError


class ArrowFile:
    """An open file: its ``schema`` and number of ``rows``. Raises CorruptSourceError, or errors of pyarrow."""

    def __init__(self, path: Path, name: str) -> None:
        import pyarrow
        import pyarrow.ipc

        source = pyarrow.memory_map(str(path))
        self._file: Any = pyarrow.ipc.open_file(source)
        self.schema: Any = self._file.schema
        if any("dictionary<" in str(field.type) for field in self.schema):
            hint = "write those columns plain (pyarrow: column.dictionary_decode()), as Minari does"
            raise CorruptSourceError(f"{name} has dictionary-encoded columns, which are not read", hint=hint)
        # Of a packed batch one column is unpacked to count its rows: one of numbers, if there is one.
        wanted = [number for number, field in enumerate(self.schema) if pyarrow.types.is_primitive(field.type)]
        smallest = pyarrow.ipc.IpcReadOptions(included_fields=wanted[:1])
        counted = pyarrow.ipc.open_file(source, options=smallest)
        lengths = [counted.get_batch(number).num_rows for number in range(counted.num_record_batches)]
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
            batch = self._file.get_batch(number)
            batch.validate(full=True)  # offsets from elsewhere lead anywhere in memory
            self._open = (number, batch)
        return self._open[1]


def inner_field(column: Any, names: Sequence[str]) -> Any:
    """A field inside the structs of an array; where a struct is null, its fields are."""
    import pyarrow.compute as compute

    for name in names:
        column = compute.struct_field(column, [column.type.get_field_index(name)])
    return column
