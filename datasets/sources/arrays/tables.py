"""A table: a user's arrays by name, whose rows are read in blocks; `opening` makes them of files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from ....errors import UsageError, reason
from ...ingest.spaces import as_array
from .files import natural
from .roles import ArrayInfo, Given, is_named, numbered_columns
from .stored import Columns


@dataclass
class Table:
    """Arrays by name, each with a row per step, state or episode; ``values`` can be sliced by rows (`stored`)."""

    name: str
    values: dict[str, Any]
    #: Arrays that are not read, and why.
    unreadable: dict[str, str] = field(default_factory=dict)
    #: By the name of its file or group: whether it is one episode, or a part of a table that goes on in other files.
    is_episode: bool = False
    is_part: bool = False

    @property
    def arrays(self) -> dict[str, ArrayInfo]:
        return {name: ArrayInfo(tuple(value.shape), value.dtype) for name, value in self.values.items()}

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
        hint = "the arrays come first, then the id" if isinstance(arrays, str) else hint
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
    """A map without entries of several arrays: the numbers and vectors of ``["x", "y"]``, ``"x,y"`` or ``"joint_*"`` become one
    array ``[n, width]``, which the table gets. So do ``obs_0``, ``obs_1`` ... without a map.

    Raises UsageError for arrays with other shapes, or with different numbers of rows, and for entries of other types.
    """
    plain: dict[str, str | float] = {}
    named = {name for value in given.values() if isinstance(value, (str, Sequence)) for name in _names(table, value)}
    numbered = numbered_columns([name for name in table.values if name not in named], given)
    for key, value in {**{role: sorted(names, key=natural) for role, names in numbered.items()}, **given}.items():
        if isinstance(value, bytes) or not isinstance(value, (str, int, float, Sequence)):
            message = f"{table.name}: the map gives {key} as {value!r}"
            raise UsageError(message, hint="an entry is the name of an array, several names, or a number (reward=0)")
        if isinstance(value, (int, float)) or (isinstance(value, str) and value in table.values):
            plain[key] = value
            continue
        names = _names(table, value)
        columns = {name: table.values[name] for name in names if name in table.values}
        plain[key] = together = ",".join(names)
        if len(names) < 2 or len(columns) < len(names):  # `find_roles` says which is missing, or not read
            continue
        for name in (name for name, one in columns.items() if len(one.shape) > 2):
            message = f"{table.name}: {key} joins {name}, whose rows have the shape {list(columns[name].shape[1:])}"
            hint = "numbers and vectors are joined; give others a key each, such as observation/NAME"
            raise UsageError(message, hint=hint)
        if len({column.shape[:1] for column in columns.values()}) > 1:
            rows = ", ".join(f"{name} {column.shape[0]}" for name, column in columns.items())
            message = f"{table.name}: {key} joins arrays of different lengths: {rows}"
            raise UsageError(message, hint="give each its own key, such as observation/NAME")
        table.values[together] = Columns(list(columns.values()))
    return plain


def _names(table: Table, value: str | Sequence[str]) -> list[str]:
    """The arrays that an entry of a map names, those of a pattern in the order of the numbers in their names."""
    if not isinstance(value, str):
        return [str(name) for name in value]
    every = (*table.values, *table.unreadable)
    matching = [name for name in every if fnmatchcase(name, value)] if "*" in value else []
    return sorted(matching, key=natural) or [name.strip() for name in value.split(",")]
