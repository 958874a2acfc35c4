"""A file of columns as a table: Parquet, Arrow, CSV. Rows are written to a temporary folder, batch by batch."""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from ....errors import CorruptSourceError, reason
from ....storage.durable import is_about_reader
from ...formats.arrow import EXPORTED, ROW_OF_ONE, is_number, open_parquet, require_pyarrow
from .files import NUMBERED, TEXT, refuse_full, suffix_of
from .roles import NAMES, exported_names
from .stored import FileRows, side_by_side
from .tables import Table

_HEAD_BYTES = 1 << 20
#: The texts of an empty cell in a text table. NaN is a number.
_EMPTY = ["", "#N/A", "#N/A N/A", "#NA", "N/A", "NA", "NULL", "n/a", "null"]


def open_columns(path: Path, scratch: Path) -> Table:
    """A file of columns, written to a temporary folder batch by batch."""
    require_pyarrow(f"reading {suffix_of(path)} files needs pyarrow, which is not installed")
    import pyarrow

    scratch.mkdir(parents=True, exist_ok=True)
    columns = _Columns(path.name, Path(mkdtemp(dir=scratch)))
    try:
        for batch in _batches(path):
            columns.append(batch)
    except (pyarrow.ArrowException, OSError, EOFError, zlib.error) as error:
        refuse_full(error, path, scratch)
        if isinstance(error, OSError) and is_about_reader(error):
            raise
        raise CorruptSourceError(f"{path.name} cannot be read: {reason(error)}") from error
    return columns.table()


def _batches(path: Path) -> Iterator[Any]:
    """The record batches of a file."""
    import pyarrow
    from pyarrow import ipc

    suffix = suffix_of(path)
    if suffix == ".parquet":
        yield from open_parquet(path, path.name).iter_batches()
    elif suffix in TEXT:
        yield from _csv_batches(path, "\t" if suffix.startswith(".tsv") else ",")
    else:
        with pyarrow.memory_map(str(path)) as source:
            try:
                file = ipc.open_file(source)
            except pyarrow.ArrowInvalid:  # of the streaming format
                source.seek(0)
                yield from ipc.open_stream(source)
                return
            yield from map(file.get_batch, range(file.num_record_batches))


def _csv_batches(path: Path, delimiter: str) -> Iterator[Any]:
    """The rows of a text table. Types follow from all of them: whole numbers may be followed by a fraction."""
    import pyarrow
    from pyarrow import csv

    opened_as = gzip.open if suffix_of(path).endswith(".gz") else open  # pyarrow goes by the name, too
    with opened_as(path, "rt", encoding="utf-8", errors="replace") as file:
        head = file.readline(_HEAD_BYTES)
    if delimiter not in head and ";" in head:  # as spreadsheets write it if the comma is the decimal separator
        delimiter = ";"
    types: dict[str, Any] = {}
    names: list[str] = []

    def opened(columns: Sequence[str] = ()) -> Any:
        # Whole numbers, then fractions, then text: a column that does not fit a guess gets the next one.
        convert = csv.ConvertOptions(column_types=types, include_columns=columns, null_values=_EMPTY)
        reader = csv.open_csv(path, parse_options=csv.ParseOptions(delimiter=delimiter), convert_options=convert)
        names[:] = reader.schema.names
        return reader

    while True:
        try:
            deque(opened(), 0)
            break
        except pyarrow.ArrowInvalid as error:
            wrong = re.search(r"In CSV column #(\d+)", str(error))
            if wrong is None or not names:
                raise
            name = names[int(wrong[1])]
            types[name] = pyarrow.string() if name in types else pyarrow.float64()
    large: set[str] = set()
    for batch in opened():
        for name, column in zip(batch.schema.names, batch.columns):
            if pyarrow.types.is_floating(column.type) and (np.abs(column.drop_null().to_numpy()) > 1 << 53).any():
                large.add(name)
        yield batch.rename_columns([name.strip() for name in batch.schema.names])
    if large:
        types |= dict.fromkeys(large, pyarrow.string())
        _check_not_rounded(opened(sorted(large)), path.name)


def _check_not_rounded(batches: Iterable[Any], where: str) -> None:
    """Raise CorruptSourceError for whole numbers in text that float64, the type of their column, does not hold."""
    import pyarrow.compute

    for batch in batches:
        for name, column in zip(batch.schema.names, batch.columns):
            whole = pyarrow.compute.match_substring_regex(column, r"^\s*[+-]?[0-9]{16,}(\.0*)?\s*$")
            for text in column.filter(whole).to_pylist():
                if int(text.partition(".")[0]) != int(float(text)):
                    message = (
                        f"{where}: the whole number {text.strip()} of {name} would be rounded to {float(text):.0f}"
                    )
                    hint = "int64, without fractions in the column, holds those up to 2^63; leave other columns out"
                    raise CorruptSourceError(message, hint=hint)


class _Columns:
    """Record batches as arrays in files: a column is one array, and so are columns ``obs_0 .. obs_3`` together."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._folder = name, folder
        self._rows = 0
        #: By array: the columns that it is made of, and dtype and shape of a row.
        self._made_of: dict[str, list[str]] | None = None
        self._kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        self._unreadable: dict[str, str] = {}
        self._names: Mapping[str, Sequence[str]] = NAMES

    def append(self, batch: Any) -> None:
        """Write the rows of a batch. Raises CorruptSourceError for empty cells, and for lists that change their length."""
        if self._made_of is None:
            twice = [name for name, times in Counter(batch.schema.names).items() if times > 1]
            if twice:
                message = f"{self._name} has several columns named {twice[0]!r}"
                raise CorruptSourceError(message, hint="its first line names the columns")
            if EXPORTED in (batch.schema.metadata or {}):  # a leaf is one column there, also one named agent_0
                self._names = exported_names("episode")
                self._made_of = {name: [name] for name in batch.schema.names}
                self._made_of.pop("step", None)  # the step's number in its episode, which follows from the rows
            else:
                self._made_of = _joined(batch.schema)
        for number, (name, columns) in enumerate(self._made_of.items()):
            if name in self._unreadable:
                continue
            try:
                parts = [self._numbers(batch.column(column), column) for column in columns]
            except _NotNumbersError as error:
                self._unreadable[name] = str(error)
                continue
            rows = parts[0] if len(columns) == 1 else side_by_side(parts)
            if ROW_OF_ONE in (batch.schema.field(columns[0]).metadata or {}):
                rows = rows.reshape(-1, 1)
            kind = (rows.dtype, rows.shape[1:])
            if self._kinds.setdefault(name, kind) != kind:
                (dtype, shape), (now, other) = self._kinds[name], kind
                message = f"{self._name}: {name} has rows {dtype} {shape} and, from row {self._rows} on, {now} {other}"
                raise CorruptSourceError(message, hint="lists of one column have one length")
            with (self._folder / str(number)).open("ab") as file:
                file.write(np.ascontiguousarray(rows).data)
        self._rows += batch.num_rows

    def table(self) -> Table:
        """The arrays, mapped."""
        values, joined = {}, {}
        for number, (name, columns) in enumerate((self._made_of or {}).items()):
            if name in self._unreadable:
                continue
            dtype, shape = self._kinds[name]
            path, shape = self._folder / str(number), (self._rows, *shape)
            values[name] = FileRows(path, dtype, shape) if self._rows else np.zeros(shape, dtype)
            if columns != [name]:
                joined[name] = columns
        return Table(self._name, values, self._unreadable, joined, self._names)

    def _numbers(self, column: Any, name: str) -> np.ndarray:
        """The rows of a column: numbers, or lists of them of one length."""
        import pyarrow

        if column.null_count:
            row = self._rows + column.is_null().to_pylist().index(True)
            message = f"{self._name}: {name} of row {row} is empty"
            raise CorruptSourceError(message, hint="fill it, or leave the row out")
        kind = column.type
        if pyarrow.types.is_fixed_size_list(kind) or pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
            inner = self._numbers(column.flatten(), name)
            width = len(inner) // max(1, len(column))
            if not pyarrow.types.is_fixed_size_list(kind) and (np.diff(column.offsets.to_numpy()) != width).any():
                message = f"{self._name}: the lists of {name} differ in length, after row {self._rows}"
                hint = (
                    "where a row is an episode: rbdata.from_episodes(pyarrow.parquet.read_table(PATH).to_pylist(), ID)"
                )
                raise CorruptSourceError(message, hint=hint)
            return inner.reshape(len(column), width, *inner.shape[1:])
        if not is_number(pyarrow.types, kind):
            raise _NotNumbersError(f"its type is {kind}")
        return column.to_numpy(zero_copy_only=False)


class _NotNumbersError(ValueError):
    """A column holds something other than numbers."""


def _joined(schema: Any) -> dict[str, list[str]]:
    """Columns by the array that they belong to: the numbers ``obs_0``, ``obs_1`` ... belong to ``obs``, if each number from 0
    on occurs once (not as ``obs_1`` and ``obs_01``). Columns of lists are arrays alone."""
    import pyarrow

    names = schema.names
    numbered: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        match = NUMBERED.fullmatch(name)
        if match and not pyarrow.types.is_nested(schema.field(name).type):
            numbered.setdefault(match[1], []).append((int(match[2]), name))
    stems: dict[str, str] = {}
    for stem, parts in numbered.items():
        if stem and stem not in names and sorted(number for number, _ in parts) == list(range(len(parts))):
            stems |= {name: stem for _, name in parts}
    made_of: dict[str, list[str]] = {}
    for name in names:
        stem = stems.get(name, name)
        made_of[stem] = [column for _, column in sorted(numbered[stem])] if name in stems else [name]
    return made_of
