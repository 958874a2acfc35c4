"""A table: a user's arrays by name, whose rows are read in blocks; `opening` makes them of files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

import numpy as np

from ....errors import UsageError, reason
from ...ingest.spaces import as_array
from .files import natural
from .roles import NAMES, ArrayInfo, Given, is_named
from .stored import Joined, Part

Kind = Literal["table", "file", "group", "episode"]


@dataclass
class Table:
    """Arrays by name, each with a row per step, state or episode; ``values`` can be sliced by rows."""

    name: str
    values: dict[str, Any]
    #: Arrays that are not numeric, and why they are not read.
    unreadable: dict[str, str] = field(default_factory=dict)
    #: Arrays that were made of numbered columns, and the names of these, in order.
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: The names by which the roles of arrays are known (`roles`).
    names: Mapping[str, Sequence[str]] = field(default_factory=lambda: NAMES)
    #: What it is in its file: one episode; a group, or one of the files of a folder, which may be one; or the only table.
    kind: Kind = "table"

    @property
    def arrays(self) -> dict[str, ArrayInfo]:
        return {
            name: ArrayInfo(tuple(value.shape), value.dtype, value.names if isinstance(value, Joined) else ())
            for name, value in self.values.items()
        }

    def read(self, array: str, low: int, high: int) -> np.ndarray:
        """Rows ``low`` to ``high - 1`` of an array. Raises CorruptSourceError."""
        return np.asarray(self.values[array][low:high])

    def read_all(self, array: str) -> np.ndarray:
        """An array of a few values, or of one. Raises CorruptSourceError."""
        values = self.values[array]
        return np.asarray(values[: values.shape[0]] if values.shape else values[()])


def memory_table(arrays: Any, name: str = "the arrays", names: Mapping[str, Sequence[str]] = NAMES) -> Table:
    """A table of arrays in memory: a mapping of NumPy arrays or tensors, perhaps nested, a TensorDict, or an array with fields.

    ``names`` are those of the roles. Raises UsageError for other values.
    """
    if isinstance(arrays, np.ndarray) and arrays.dtype.names:
        arrays = {field: arrays[field] for field in arrays.dtype.names}
    if len(getattr(arrays, "batch_size", ())) > 1:
        message = f"{name} are a TensorDict of batch size {list(arrays.batch_size)}, and a dataset has one row per step"
        hint = "where its last dimension is time: mark the last step of each trajectory as truncated, then reshape(-1)"
        raise UsageError(message, hint=hint)
    if not hasattr(arrays, "items"):
        message = f"{name} are a {type(arrays).__name__}, not a mapping of names to arrays, or an array with fields"
        raise UsageError(message)
    table = Table(name, {}, names=names)
    for key, value in flat_arrays(arrays):
        if np.ma.is_masked(value):
            raise UsageError(f"{name}: {key} has masked elements", hint="fill them, or leave their rows out")
        found: Iterable[tuple[str, np.ndarray | str]]
        try:
            found = _fields(key, as_array(value))
        except (TypeError, ValueError, RuntimeError) as error:
            found = [(key, reason(error))]
        for inner, plain in found:
            if inner in table.values or inner in table.unreadable:
                raise UsageError(f"{name}: two arrays are named {inner}", hint="rename one of them")
            if isinstance(plain, str):
                table.unreadable[inner] = plain
            elif plain.dtype.hasobject:
                table.unreadable[inner] = "its elements are Python objects"
            else:
                table.values[inner] = plain
    return table


def _fields(key: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of an array with fields, which may have fields themselves."""
    if not array.dtype.names:
        yield key, array
    for inner in array.dtype.names or ():
        yield from _fields(f"{key}/{inner}", array[inner])


def flat_arrays(arrays: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The arrays of nested mappings by their names, with slashes."""
    for key, value in arrays.items():
        name = prefix + ("/".join(map(str, key)) if isinstance(key, tuple) else str(key))
        if (hasattr(value, "items") and not hasattr(value, "dtype")) or hasattr(value, "batch_size"):
            yield from flat_arrays(value, name + "/")
        else:
            yield name, value


def leave_out(tables: Sequence[Table], names: str) -> dict[str, str]:
    """Take arrays out of tables, by ``names`` separated by commas: arrays, groups, patterns with ``*``; returns them, and why.

    Raises UsageError for a name that no table has.
    """
    left: dict[str, str] = {}
    for name in filter(None, (name.strip().strip("/") for name in names.split(","))):
        found = [
            (table, array) for table in tables for array in (*table.values, *table.unreadable) if is_named(array, name)
        ]
        if not found:
            message = f"{tables[0].name}: there is no array {name} to leave out"
            raise UsageError(message, hint=f"the arrays are {', '.join(tables[0].values)}")
        for table, array in found:
            table.values.pop(array, None)
            table.unreadable.pop(array, None)
            left[array] = "as asked"
    return left


def join_columns(table: Table, given: Mapping[str, Given]) -> dict[str, str | float]:
    """A map without entries of several arrays: ``["x", "y"]``, ``"x,y"`` and ``"joint_*"`` become one array ``[n, how many]``.

    The table gets these arrays. Entries stay as they are where the arrays are not of one number per row.
    Raises UsageError for arrays with different numbers of rows, and for entries of other types.
    """
    plain: dict[str, str | float] = {}
    _split_columns(table, given)
    for key, value in given.items():
        if isinstance(value, bytes) or not isinstance(value, (str, int, float, Sequence)):
            message = f"{table.name}: the map gives {key} as {value!r}"
            raise UsageError(message, hint="an entry is the name of an array, several names, or a number (reward=0)")
        names = [] if isinstance(value, (int, float)) else _several(table, value)
        columns = [table.values[name] for name in names if name in table.values]
        if names and len(columns) == len(names) and all(column.shape[1:] in ((), (1,)) for column in columns):
            if len({column.shape[:1] for column in columns}) > 1:
                rows = ", ".join(f"{name} {column.shape[0]}" for name, column in zip(names, columns))
                message = f"{table.name}: {key} joins arrays of different lengths: {rows}"
                raise UsageError(message, hint="give each its own key, such as observation/NAME")
            joined = plain[key] = ",".join(names)
            table.values[joined] = Joined(tuple(names), columns)
        else:
            plain[key] = value if isinstance(value, (str, int, float)) else ",".join(map(str, value))
    return plain


def _split_columns(table: Table, given: Mapping[str, Given]) -> None:
    """Numbered columns that a map names, rather than the array that they were made into, become separate arrays."""
    entries = [value if isinstance(value, (list, tuple)) else [value] for value in given.values()]
    names = {name.strip() for entry in entries for one in entry if isinstance(one, str) for name in one.split(",")}

    def is_stated(array: str) -> bool:
        return any(array == name or ("*" in name and fnmatchcase(array, name)) for name in names)

    for array, columns in table.columns.items():
        named = [column for column in columns if is_stated(column)]
        if not named or is_stated(array):
            continue
        values = table.values[array]
        for column in named:
            table.values[column] = Part(values, (..., columns.index(column))) if len(columns) > 1 else values
        if len(named) == len(columns):
            del table.values[array]


def _several(table: Table, value: str | Sequence[str]) -> list[str]:
    """The names in an entry of a map, if it gives several."""
    if not isinstance(value, str):
        return list(value)
    if value in table.values:
        return []
    if "*" in value:
        every = (*table.values, *table.unreadable)  # where one cannot be read, they are not joined, and `roles` refuses
        return sorted((name for name in every if fnmatchcase(name, value)), key=natural)
    return [name.strip() for name in value.split(",")] if "," in value else []
