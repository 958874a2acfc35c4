"""A file of columns as a table: Parquet, Arrow, CSV. pyarrow reads them."""

from __future__ import annotations

import gzip
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkstemp
from typing import Any

import numpy as np

from ....errors import CorruptSourceError, reason
from ....storage.durable import is_about_reader
from ...formats.arrow import EXPORTED, ROW_OF_ONE, is_number, number_dtype, open_parquet, require_pyarrow
from .files import TEXT, refuse_full, suffix_of
from .tables import Table

_HEAD_BYTES = 1 << 20
#: The texts of an empty cell in a text table. NaN is a number.
_EMPTY = ["", "#N/A", "#N/A N/A", "#NA", "N/A", "NA", "NULL", "n/a", "null"]


def open_columns(path: Path, scratch: Path) -> Table:
    """A file of columns; ``scratch`` is a folder for its rows, which are mapped from there. Text is read into memory."""
    require_pyarrow(f"reading {suffix_of(path)} files needs pyarrow, which is not installed")
    import pyarrow

    try:
        rows, schema = _read_text(path) if suffix_of(path) in TEXT else _unpacked(path, scratch)
    except (pyarrow.ArrowException, OSError, EOFError, zlib.error) as error:
        refuse_full(error, path, scratch)
        if isinstance(error, OSError) and is_about_reader(error):
            raise
        raise CorruptSourceError(f"{path.name} cannot be read: {reason(error)}") from error
    return _table(rows, schema, path.name)


def _read_text(path: Path) -> tuple[Any, Any]:
    """The rows of a text table (``pyarrow.Table``), and its schema."""
    from pyarrow import csv

    opened_as = gzip.open if suffix_of(path).endswith(".gz") else open  # pyarrow goes by the name, too
    with opened_as(path, "rt", encoding="utf-8", errors="replace") as file:
        head = file.readline(_HEAD_BYTES)
    delimiter = "\t" if suffix_of(path).startswith(".tsv") else ","
    if delimiter not in head and ";" in head:  # as spreadsheets write it if the comma is the decimal separator
        delimiter = ";"
    empty, parsed = csv.ConvertOptions(null_values=_EMPTY), csv.ParseOptions(delimiter=delimiter)
    rows = csv.read_csv(path, parse_options=parsed, convert_options=empty)
    rows = rows.rename_columns([name.strip() for name in rows.column_names])
    return rows, rows.schema


def _unpacked(path: Path, scratch: Path) -> tuple[Any, Any]:
    """The columns of numbers of a file (``pyarrow.Table``), mapped from one that is not compressed; and the schema of all."""
    import pyarrow
    from pyarrow import ipc

    batches, stated = _batches(path)
    kept = [number for number, field in enumerate(stated) if _holds_numbers(field.type)]
    schema = pyarrow.schema([stated.field(number) for number in kept], metadata=stated.metadata)
    scratch.mkdir(parents=True, exist_ok=True)
    handle, unpacked = mkstemp(".arrow", dir=scratch)
    with os.fdopen(handle, "wb") as file, ipc.new_file(file, schema) as writer:
        for batch in batches:
            writer.write_batch(pyarrow.record_batch([batch.column(number) for number in kept], schema=schema))
    with pyarrow.memory_map(unpacked) as source:  # what is mapped stays so when the file is closed
        return ipc.open_file(source).read_all(), stated


def _batches(path: Path) -> tuple[Iterator[Any], Any]:
    """The record batches of a file, and its schema."""
    import pyarrow
    from pyarrow import ipc

    if suffix_of(path) == ".parquet":
        parquet = open_parquet(path, path.name)
        return parquet.iter_batches(), parquet.schema_arrow
    source = pyarrow.memory_map(str(path))
    try:
        file = ipc.open_file(source)
    except pyarrow.ArrowInvalid:  # of the streaming format
        source.seek(0)
        stream = ipc.open_stream(source)
        return iter(stream), stream.schema
    return (file.get_batch(number) for number in range(file.num_record_batches)), file.schema


@dataclass(frozen=True)
class _ArrowColumn:
    """A column of numbers, or of lists of them that are of one length."""

    column: Any
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def __getitem__(self, rows: slice) -> np.ndarray:
        from pyarrow import compute

        low, high, _ = rows.indices(self.shape[0])
        found = self.column.slice(low, high - low)
        while hasattr(found.type, "value_type"):
            found = compute.list_flatten(found)
        return found.to_numpy().astype(self.dtype, copy=False).reshape(-1, *self.shape[1:])


def _table(rows: Any, schema: Any, name: str) -> Table:
    """The columns of numbers of a ``pyarrow.Table``; ``schema`` is that of all columns. Raises CorruptSourceError for empty
    cells, and for lists of several lengths."""
    twice = [column for column, times in Counter(schema.names).items() if times > 1]
    if twice:
        message = f"{name} has several columns named {twice[0]!r}"
        raise CorruptSourceError(message, hint="its first line names the columns")
    table = Table(name, {})
    for field in schema:
        if not _holds_numbers(field.type):
            table.unreadable[field.name] = f"its type is {field.type}"
            continue
        found = _column(rows.column(field.name), f"{name}: {field.name}")
        is_row = ROW_OF_ONE in (field.metadata or {})
        table.values[field.name] = _ArrowColumn(found.column, found.dtype, (*found.shape, 1)) if is_row else found
    if EXPORTED in (schema.metadata or {}):
        table.values.pop("step", None)  # the step's number in its episode, which follows from the rows
    return table


def _holds_numbers(kind: Any) -> bool:
    """Whether values of a type are numbers, or lists of them."""
    from pyarrow import types

    while types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind):
        kind = kind.value_type
    return is_number(types, kind)


def _column(column: Any, where: str) -> _ArrowColumn:
    """A column of numbers (``pyarrow.ChunkedArray``)."""
    from pyarrow import compute, types

    flat, shape = column, [len(column)]
    while True:
        if flat.null_count:
            row = compute.index(flat.is_null(), True).as_py() // max(1, int(np.prod(shape[1:])))
            raise CorruptSourceError(f"{where} of row {row} is empty", hint="fill it, or leave the row out")
        if is_number(types, flat.type):
            return _ArrowColumn(column, number_dtype(flat.type), tuple(shape))
        if types.is_fixed_size_list(flat.type):
            shape.append(flat.type.list_size)
        else:
            lengths = compute.min_max(compute.list_value_length(flat)).as_py()
            if lengths["min"] != lengths["max"]:
                hint = (
                    "where a row is an episode: rbdata.from_episodes(pyarrow.parquet.read_table(PATH).to_pylist(), ID)"
                )
                raise CorruptSourceError(f"{where}: its lists differ in length", hint=hint)
            shape.append(lengths["max"] or 0)
        flat = compute.list_flatten(flat)
