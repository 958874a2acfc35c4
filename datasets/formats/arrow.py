"""Arrow IPC and Parquet files. pyarrow trusts them, and is used in a worker process (`workers`).

`ArrowFile` reads one record batch at a time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CorruptSourceError, MissingExtraError, RbdataError
from .limits import REFETCH, check_rows

#: Marks of `datasets.export` in the metadata of a table, and of a column whose rows are arrays of one number.
EXPORTED, ROW_OF_ONE = b"rbdata.export", b"rbdata.row_of_one"


def require_pyarrow(message: str, instead: str = "") -> None:
    """Raise MissingExtraError with this message where pyarrow is not installed; ``instead`` ends its hint."""
    if find_spec("pyarrow") is None:
        raise MissingExtraError(message, hint="pip install 'rbdata[parquet]'" + instead)


@contextmanager
def damage_reported(name: str, what: str = "cannot be read") -> Iterator[None]:
    """Turn pyarrow's errors about a file inside the block into a CorruptSourceError: ``name`` and ``what``; disk errors
    stay."""
    import pyarrow

    try:
        yield
    except RbdataError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, TypeError, LookupError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise CorruptSourceError(f"{name} {what}: {str(error)[:200]}", hint=REFETCH) from error


class ArrowFile:
    """An open file: its ``schema`` and number of ``rows``; plain columns stay on the disk until they are read.

    Raises CorruptSourceError, or errors of pyarrow.
    """

    def __init__(self, path: Path, name: str) -> None:
        import pyarrow
        import pyarrow.ipc

        file = pyarrow.ipc.open_file(pyarrow.memory_map(str(path)))
        self.schema: Any = file.schema
        if any("dictionary<" in str(field.type) for field in self.schema):
            hint = "write those columns plain (pyarrow: column.dictionary_decode()), as Minari does"
            raise CorruptSourceError(f"{name} has dictionary-encoded columns, which are not read", hint=hint)
        self._table: Any = file.read_all()
        self._table.validate(full=True)  # untrusted offsets may point anywhere in memory
        self.rows: int = self._table.num_rows

    def read(self, path: tuple[str, ...], low: int, high: int, at_once: int) -> Iterator[Any]:
        """Rows ``low..high-1`` of a column, or of a field of its structs, as arrays of up to ``at_once`` rows."""
        column = self._table.column(path[0])
        for begin in range(low, min(high, self.rows), at_once):
            for array in column.slice(begin, min(at_once, high - begin)).chunks:
                yield inner_field(array, path[1:])


def inner_field(column: Any, names: Sequence[str]) -> Any:
    """A field inside the structs of an array; where a struct is null, its fields are."""
    import pyarrow.compute as compute

    for name in names:
        column = compute.struct_field(column, [column.type.get_field_index(name)])
    return column


def open_parquet(path: Path, name: str, **options: Any) -> Any:
    """The file as `pyarrow.parquet.ParquetFile`. Raises CorruptSourceError, or errors of pyarrow."""
    from pyarrow import parquet

    if not path.stat().st_size:
        raise CorruptSourceError(f"{name} is empty")
    return parquet.ParquetFile(path, page_checksum_verification=True, **options)


def parquet_records(data: bytes, name: str, without: str | None = None) -> list[dict[str, Any]]:
    """The rows of a small table in memory, except for columns whose names begin with ``without``.

    Read in a worker process. Raises CorruptSourceError.
    """
    import pyarrow
    from pyarrow import parquet

    with damage_reported(name):
        file = parquet.ParquetFile(pyarrow.BufferReader(data), page_checksum_verification=True)
        check_rows(file.metadata.num_rows, len(data), name)
        names = [one for one in file.schema_arrow.names if without is None or not one.startswith(without)]
        if len(set(names)) < len(names):
            raise CorruptSourceError(f"{name} has columns of the same name")
        table = file.read(columns=names, use_threads=False)
        table.validate(full=True)
        return table.to_pylist()


class ParquetRows:
    """A Parquet file, whose columns are read in order, a few rows at a time: its ``schema`` and number of ``rows``."""

    def __init__(self, path: Path, name: str) -> None:
        self._file, self._name = open_parquet(path, name), name
        self.schema: Any = self._file.schema_arrow
        self.rows: int = self._file.metadata.num_rows
        groups = range(self._file.metadata.num_row_groups)
        self._ends = list(accumulate(self._file.metadata.row_group(group).num_rows for group in groups))
        #: By column: the next row, the rest of the rows read last, and the iterator of the rows after them.
        self._cursors: dict[tuple[str, ...], tuple[int, Any, Iterator[Any]]] = {}

    def read(self, path: tuple[str, ...], low: int, high: int, at_once: int) -> Iterator[Any]:
        """Rows ``low..high-1`` of a column, or of a field of its structs, as arrays of up to ``at_once`` rows.

        Reading the next rows is cheap; any other range is read from the start of the row group that holds ``low``.
        """
        at, left, batches = self._cursors.pop(path, (self.rows + 1, (), iter(())))
        group = bisect_right(self._ends, low)
        first = self._ends[group - 1] if group else 0
        if at > low or at < first:
            groups, names = range(group, len(self._ends)), [".".join(path)]
            batches = self._file.iter_batches(batch_size=at_once, row_groups=groups, columns=names, use_threads=False)
            at, left = first, ()
        while at < high:
            if not len(left):
                batch = next(batches, None)
                if batch is None:
                    raise CorruptSourceError(f"{self._name} holds {at} rows, {self.rows} are stated")
                # Names with dots also select nested columns.
                left = inner_field(batch.column(batch.schema.get_field_index(path[0])), path[1:])
            skip = min(max(0, low - at), len(left))
            taken = min(len(left) - skip, high - at - skip)
            if taken:
                yield left.slice(skip, taken)
            at, left = at + skip + taken, left.slice(skip + taken)
        self._cursors[path] = (at, left, batches)


#: NumPy's names of Arrow's types of numbers, where they differ.
_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}


def list_column(rows: np.ndarray, pyarrow: Any, *, fixed: bool = True) -> Any:
    """Rows as a column: numbers, or nested lists, whose types state their lengths with ``fixed``; a row of one number is that
    number."""
    shape = () if rows.shape[1:] == (1,) else rows.shape[1:]
    column = pyarrow.array(np.ascontiguousarray(rows).reshape(-1))
    for length in reversed(shape):
        if fixed:
            column = pyarrow.FixedSizeListArray.from_arrays(column, length)
        else:
            column = pyarrow.ListArray.from_arrays(np.arange(0, len(column) + 1, length, dtype=np.int32), column)
    return column


def is_number(types: Any, kind: Any) -> bool:
    """Whether an Arrow type, by pyarrow's module ``types``, is numeric or boolean."""
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def number_dtype(kind: Any) -> np.dtype:
    """NumPy's type of an Arrow number. Arrow's own conversion needs pandas before version 15."""
    try:
        return np.dtype(_FLOATS.get(str(kind), str(kind)))
    except TypeError as error:
        raise CorruptSourceError(f"values of type {str(kind)[:40]} are not numbers") from error


def number_rows(arrays: Iterable[Any], kind: Any, shape: tuple[int, ...], where: str) -> np.ndarray:
    """Arrays of numbers of an Arrow type, or of lists of them, as rows ``[n, *shape]``.

    Raises CorruptSourceError for empty cells, and if a row has a different number of values.
    """
    dtype = number_dtype(kind)
    blocks = [np.empty((0, *shape), dtype)]
    for array in arrays:
        flat = array
        while not flat.null_count and hasattr(flat, "flatten") and flat.type != kind:
            flat = flat.flatten()
        if flat.null_count or len(flat) != len(array) * int(np.prod(shape)):
            raise CorruptSourceError(f"{where} has empty cells, or not {list(shape)} values a row")
        blocks.append(flat.to_numpy(zero_copy_only=False).astype(dtype, copy=False).reshape(-1, *shape))
    return np.concatenate(blocks)
