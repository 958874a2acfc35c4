"""A table: a user's arrays by name, whose rows are read in blocks; `opening` makes them of files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ....errors import UsageError, reason
from ...ingest.spaces import as_array
from .files import natural
from .roles import ArrayInfo, Given, is_named
from .stored import Columns


@dataclass
class Table:
    """Arrays by name, each with a row per step, state or episode; ``values`` can be sliced by rows (`stored`)."""

    name: str
    values: dict[str, Any]
    #: Arrays that are not read, and why.
    unreadable: dict[str, str] = field(default_factory=dict)
    #: What it is in its file: one episode; a group, or one of the files of a folder, which may be one; or the only table.
    kind: Literal["table", "file", "group", "episode"] = "table"

    @property
    def arrays(self) -> dict[str, ArrayInfo]:
        return {
            name: ArrayInfo(tuple(value.shape), value.dtype, value.names if isinstance(value, Columns) else ())
            for name, value in self.values.items()
        }

    def read(self, array: str, low: int, high: int) -> np.ndarray:
        """Rows ``low`` to ``high - 1`` of an array. Raises CorruptSourceError."""
        return np.asarray(self.values[array][low:high])

    def read_all(self, array: str) -> np.ndarray:
        """An array of a few values, or of one. Raises CorruptSourceError."""
        values = self.values[array]
        return np.asarray(values[: values.shape[0]] if values.shape else values[()])


def memory_table(arrays: Any, name: str = "the arrays") -> Table:
    """A table of arrays in memory: a mapping of NumPy arrays or tensors, perhaps nested, or a TensorDict.

    Raises UsageError for other values.
    """
    if len(getattr(arrays, "batch_size", ())) > 1:
        message = f"{name} are a TensorDict of batch size {list(arrays.batch_size)}, and a dataset has one row per step"
        hint = "where its last dimension is time: mark the last step of each trajectory as truncated, then reshape(-1)"
        raise UsageError(message, hint=hint)
    if not hasattr(arrays, "items"):
        hint = "of an array with fields: {name: array[name] for name in array.dtype.names}"
        raise UsageError(f"{name} are a {type(arrays).__name__}, not a mapping of names to arrays", hint=hint)
    table = Table(name, {})
    for key, value in flat_arrays(arrays):
        if key in table.values or key in table.unreadable:
            raise UsageError(f"{name}: two arrays are named {key}", hint="rename one of them")
        if np.ma.is_masked(value):
            raise UsageError(f"{name}: {key} has masked elements", hint="fill them, or leave their rows out")
        try:
            plain = as_array(value)
        except (TypeError, ValueError, RuntimeError) as error:
            table.unreadable[key] = reason(error)
            continue
        if plain.dtype.hasobject:
            table.unreadable[key] = "its elements are Python objects"
        else:
            table.values[key] = plain
    return table


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
        found = {array for table in tables for array in (*table.values, *table.unreadable) if is_named(array, name)}
        if not found:
            message = f"{tables[0].name}: there is no array {name} to leave out"
            raise UsageError(message, hint=f"the arrays are {', '.join(tables[0].values)}")
        left |= dict.fromkeys(sorted(found), "as asked")
    for table in tables:
        for array in left:
            table.values.pop(array, None)
            table.unreadable.pop(array, None)
    return left


def join_columns(table: Table, given: Mapping[str, Given]) -> dict[str, str | float]:
    """A map without entries of several arrays: ``["x", "y"]``, ``"x,y"`` and ``"joint_*"`` become one array ``[n, width]``,
    which the table gets. Names join numbers and vectors; a pattern joins numbers, and what else it stands for stays apart.

    Raises UsageError for arrays with other shapes, or with different numbers of rows, and for entries of other types.
    """
    _split_columns(table, given)
    plain: dict[str, str | float] = {}
    for key, value in given.items():
        if isinstance(value, bytes) or not isinstance(value, (str, int, float, Sequence)):
            message = f"{table.name}: the map gives {key} as {value!r}"
            raise UsageError(message, hint="an entry is the name of an array, several names, or a number (reward=0)")
        if isinstance(value, (int, float)) or (isinstance(value, str) and value in table.values):
            plain[key] = value
            continue
        names = _names(value)
        if isinstance(value, str) and "*" in value:  # one that cannot be read stays, and is refused by its name
            every = (*table.values, *table.unreadable)
            names = sorted((name for name in every if is_named(name, value)), key=natural)
        columns = {name: table.values[name] for name in names if name in table.values}
        is_pattern = isinstance(value, str) and "*" in value
        is_several = is_pattern or not isinstance(value, str) or len(names) > 1
        stays = (is_pattern or len(names) == 1) and any(one.shape[1:] not in ((), (1,)) for one in columns.values())
        if not is_several or len(columns) < len(names) or stays:
            plain[key] = ",".join(names) if not isinstance(value, str) else value
            continue
        for name in (name for name, one in columns.items() if len(one.shape) > 2):
            message = f"{table.name}: {key} joins {name}, whose rows have the shape {list(columns[name].shape[1:])}"
            raise UsageError(
                message, hint="numbers and vectors are joined; give others a key each, such as observation/NAME"
            )
        if len({column.shape[:1] for column in columns.values()}) > 1:
            rows = ", ".join(f"{name} {column.shape[0]}" for name, column in columns.items())
            message = f"{table.name}: {key} joins arrays of different lengths: {rows}"
            raise UsageError(message, hint="give each its own key, such as observation/NAME")
        plain[key] = ",".join(names)
        if columns:
            table.values[",".join(names)] = Columns(tuple(names), list(columns.values()))
    return plain


def _names(value: str | Sequence[str]) -> list[str]:
    return [name.strip() for name in value.split(",")] if isinstance(value, str) else [str(name) for name in value]


def _split_columns(table: Table, given: Mapping[str, Given]) -> None:
    """Take joined columns (`column_tables`) apart where the map names some of them, and not the array that they are."""
    entries = [entry for value in given.values() if isinstance(value, (str, Sequence)) for entry in _names(value)]
    for array, value in list(table.values.items()):
        if not isinstance(value, Columns) or any(is_named(array, entry) for entry in entries):
            continue
        if any(is_named(column, entry) for column in value.names for entry in entries):
            del table.values[array]
            table.values |= zip(value.names, value.columns)
