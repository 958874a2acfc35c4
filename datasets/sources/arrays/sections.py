"""Tables as sections: what is one episode, and whether the last one of a file goes on in the next file.

    a numbered group (demo_0), one of several files episode_3.npz, a map with episode=0     one episode, whatever its flags are
    a row of observations more than steps, in one of several files                          one episode
    a file without a flag, or whose flag stays set once it is, beside others                one episode, as is assumed
    train-00000-of-00002, or files of which any has a flag inside                           parts of one table
    rows that are numbered on from those of the file before                                 parts of one table

Parts of one table are read as one: whatever says where episodes end says it there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ....errors import UsageError
from .roles import Roles, is_one_value
from .rows import flags_of, step_names
from .tables import Table

#: Names of files that are a part of one table.
_PART = re.compile(r"\d+-of-\d+|(?:^|[^a-z])(?:shard|part|chunk)[^a-z]", re.IGNORECASE)


@dataclass(frozen=True)
class Section:
    """A table, or several that are parts of one; ``whole``: it is one episode, in which flags end nothing."""

    table: Table
    roles: Roles
    whole: bool


@dataclass
class _File:
    """How one table begins and ends."""

    table: Table
    roles: Roles
    whole: bool = False
    #: Whether it says itself which rows are an episode.
    sure: bool = False
    #: Whether a flag is set that ends an episode before the last row; whether one is set in the last row.
    inner: bool = False
    ended: bool = False
    #: Numbers of the episodes of the first and the last row.
    episodes: tuple[Any, Any] | None = None
    #: The number of the first step, and the one that follows the last.
    first_step: float | None = None
    next_step: float | None = None


def sections_of(tables: Sequence[tuple[Table, Roles]], whole: bool) -> tuple[list[Section], list[str]]:
    """The sections of tables, in order, and sentences that say what was assumed; ``whole``: the map says that each table is
    an episode.

    Raises UsageError for files of which one goes on in the other, and that differ in what says where episodes end.
    """
    files = [_look(table, roles, whole) for table, roles in tables]
    loose = [file for file in files if not file.sure and file.table.kind != "table"]
    parts = any(file.table.kind == "file" and (file.inner or _PART.search(_stem(file.table))) for file in loose)
    for file in loose:
        file.whole = not (parts if file.table.kind == "file" else file.inner)
    numbered = any(file.episodes is not None and file.episodes[0] != file.episodes[1] for file in files)
    groups = [[files[0]]]
    for before, file in pairwise(files):
        if _goes_on(before, file, parts=parts, numbered=numbered):
            groups[-1].append(file)
        else:
            groups.append([file])
    sections = [Section(*_joined(group), all(file.whole for file in group)) for group in groups]
    return sections, _assumed(groups, loose)


def _assumed(groups: Sequence[Sequence[_File]], loose: Sequence[_File]) -> list[str]:
    """What was assumed of files, in sentences."""
    alone = {id(group[0]) for group in groups if len(group) == 1}
    episodes = sum(file.whole and not file.ended and id(file) in alone for file in loose)
    joined = sum(len(group) - 1 for group in groups)
    notes = []
    if joined:
        pairs = [pair for group in groups for pair in pairwise(group)]
        stated = all(before.episodes or before.next_step is not None for before, _ in pairs)
        why = "as the numbers of its rows say" if stated else "since nothing says that it ended"
        notes.append(f"Files in which the last episode of the file before goes on, {why}: {joined}.")
    if episodes > 1:
        notes.append(f"Files that are taken as one episode each, since no flag in them is set: {episodes}.")
    return notes


def _stem(table: Table) -> str:
    return table.name.rpartition("/")[2]


def _look(table: Table, roles: Roles, whole: bool) -> _File:
    rows = table.arrays[next(iter(roles.action.values()))].shape[0]
    if not rows:
        raise UsageError(f"{table.name} has no rows")
    more_states = table.arrays[next(iter(roles.observation.values()))].shape[0] - rows
    several, whole = table.kind != "table", whole or table.kind == "episode"
    flags = (roles.terminated, roles.truncated, roles.done)
    whole |= rows > 1 and any(name is not None and is_one_value(table.arrays[name]) for name in flags)
    if whole or roles.episode_lengths is not None or roles.episode_ends is not None:
        return _File(table, roles, whole, sure=True)
    file = _File(table, roles, sure=more_states > 1)
    set_in = [flag for flag in flags_of(table, roles, rows) if flag is not None]
    if set_in:
        flagged = np.logical_or.reduce(set_in)
        first = int(flagged.argmax())
        stays_set = first > 0 and bool(flagged[first:].all())
        is_one = stays_set and (more_states == 1 or (several and not more_states))
        file.inner, file.ended = bool(flagged[:-1].any()) and not is_one, bool(flagged[-1])
    if isinstance(roles.episode, str):
        file.sure, file.episodes = True, (_value(table, roles.episode, 0), _value(table, roles.episode, rows - 1))
    elif more_states == 1 and (several or not file.inner):
        file.whole = file.sure = True
    for name in step_names(table, roles)[:1]:
        last, before = (float(_value(table, name, row)) for row in (rows - 1, max(0, rows - 2)))
        file.first_step = float(_value(table, name, 0))
        file.next_step = last + (last - before if last > before else 1)
    return file


def _value(table: Table, name: str, row: int) -> Any:
    return table.read(name, row, row + 1).reshape(-1)[0]


def _goes_on(before: _File, file: _File, *, parts: bool, numbered: bool) -> bool:
    """Whether a file begins in the episode in which the one before ends.

    ``parts``: files are parts of one table; ``numbered``: numbers of episodes are those of all files.
    """
    goes_on = before.next_step is not None and before.next_step == file.first_step
    if before.episodes is not None and file.episodes is not None:
        return bool(before.episodes[1] == file.episodes[0]) and (numbered or goes_on)
    if before.sure or file.sure or before.ended or {before.table.kind, file.table.kind} != {"file"}:
        return False
    if before.next_step is not None and file.first_step is not None:
        return goes_on
    return parts


# -- parts of one table -------------------------------------------------------------------------------------------------


class _Rows:
    """The rows of one array in several tables, one after the other."""

    def __init__(self, parts: Sequence[tuple[Table, str]]) -> None:
        self._parts = parts
        values = [table.values[name] for table, name in parts]
        self._ends = np.cumsum([value.shape[0] for value in values])
        self.dtype = values[0].dtype.newbyteorder("=")
        self.shape = (int(self._ends[-1]), *values[0].shape[1:])

    def __getitem__(self, rows: slice) -> np.ndarray:
        low, high, _ = rows.indices(self.shape[0])
        first, last = np.searchsorted(self._ends, [low, high - 1], "right")
        read = [np.zeros((0, *self.shape[1:]), self.dtype)]
        for part in range(first, last + 1 if low < high else first):
            (table, name), begin = self._parts[part], int(self._ends[part - 1]) if part else 0
            end = int(self._ends[part])
            read.append(table.read(name, max(low, begin) - begin, min(high, end) - begin))
        return np.concatenate(read).astype(self.dtype, copy=False)


def _joined(files: Sequence[_File]) -> tuple[Table, Roles]:
    """Files as one table. Raises UsageError where they differ in what says where episodes end."""
    first = files[0]
    if len(files) == 1:
        return first.table, first.roles
    named = [_names(file.roles) for file in files]
    for file, names in zip(files, named):
        if set(names) != set(named[0]):
            odd = sorted(set(names) ^ set(named[0]))
            message = (
                f"{file.table.name} goes on where {first.table.name} ends, and only one of them has {', '.join(odd)}"
            )
            raise UsageError(message, hint="all files have the same arrays")
    values = {
        name: _Rows([(file.table, names[key]) for file, names in zip(files, named)]) for key, name in named[0].items()
    }
    title = f"{first.table.name} to {_stem(files[-1].table)}"
    unreadable = {name: why for file in reversed(files) for name, why in file.table.unreadable.items()}
    left_out = {name: why for file in reversed(files) for name, why in file.roles.left_out.items()}
    return Table(title, dict(values), unreadable, names=first.table.names), replace(first.roles, left_out=left_out)


def _names(roles: Roles) -> Mapping[str, str]:
    """The arrays of roles, by what they are."""
    numbers = ("reward", "episode")
    return {
        key: name for key, name in roles.to_map().items() if key not in numbers or isinstance(getattr(roles, key), str)
    }
