"""What is one episode of several tables, and whether the last episode of a file goes on in the next file.

    a numbered group (demo_0), one of several files episode_3.npz, a map with episode=0     one episode, whatever its flags are
    a row of observations more than steps, in one of several files                          one episode
    a file without a flag, or whose flag stays set once it is, beside others                one episode, as is assumed
    train-00000-of-00002, or files of which any has a flag inside                           parts of one table
    rows that are numbered on from those of the file before                                 parts of one table

Parts of one table are read as one: whatever says where episodes end says it there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ....errors import UsageError
from .files import SHARD
from .roles import Roles
from .rows import flags_of, step_number
from .stored import Concatenated
from .tables import Table


@dataclass(frozen=True)
class Section:
    """A table, or several that are parts of one; ``whole``: it is one episode, in which flags end nothing."""

    table: Table
    whole: bool


@dataclass(eq=False)
class _File:
    """How one table begins and ends."""

    table: Table
    #: Whether it is one episode, and whether it says itself which rows are an episode.
    whole: bool
    sure: bool
    #: Whether a flag ends an episode before the last row; whether one is set in the last row.
    inner: bool = False
    ended: bool = False
    #: The numbers of the episode and of the step in the first row, and those that go on from the last row.
    first: tuple[Any, Any] = (None, None)
    after: tuple[Any, Any] = (None, None)


def sections_of(tables: Sequence[Table], roles: Roles, whole: bool) -> tuple[list[Section], list[str]]:
    """The sections of tables, in order, and sentences that say what was assumed; ``whole``: the map says that each table is
    an episode."""
    files = [_look(table, roles, whole) for table in tables]
    loose = [file for file in files if not file.sure and file.table.kind != "table"]
    names = [file.table.name.rpartition("/")[2] for file in loose if file.table.kind == "file"]
    parts = any(map(SHARD.search, names)) or any(file.inner for file in loose if file.table.kind == "file")
    for file in loose:
        file.whole = not (parts if file.table.kind == "file" else file.inner)
    # Where each file numbers its only episode alike, it counts its own.
    numbered = any(file.first[0] != file.after[0] for file in files)
    groups = [[files[0]]]
    for before, file in pairwise(files):
        if _goes_on(before, file, parts=parts, numbered=numbered):
            groups[-1].append(file)
        else:
            groups.append([file])
    notes = []
    if joined := len(files) - len(groups):
        notes.append(f"Files in which the last episode of the file before goes on: {joined}.")
    alone = {group[0] for group in groups if len(group) == 1}
    if (episodes := sum(file.whole and not file.ended and file in alone for file in loose)) > 1:
        notes.append(f"Files that are taken as one episode each, since no flag in them is set: {episodes}.")
    return [Section(_joined(group, roles), all(file.whole for file in group)) for group in groups], notes


def _look(table: Table, roles: Roles, whole: bool) -> _File:
    arrays = table.arrays
    rows = roles.rows(arrays)
    if not rows:
        raise UsageError(f"{table.name} has no rows")
    whole |= table.kind == "episode" or (rows > 1 and any(arrays[name].is_one_value for name in roles.flags.values()))
    if whole or roles.episode_lengths is not None or roles.episode_ends is not None:
        return _File(table, whole, sure=True)
    several, more_states = table.kind != "table", roles.states(arrays) - rows
    file = _File(table, whole, sure=more_states > 1)
    terminated, truncated = flags_of(table, roles, rows)
    flagged = terminated | truncated
    if flagged.any():
        first = int(flagged.argmax())
        stays_set = first > 0 and bool(flagged[first:].all())
        is_one = stays_set and (more_states == 1 or (several and not more_states))
        file.inner, file.ended = bool(flagged[:-1].any()) and not is_one, bool(flagged[-1])
    if isinstance(roles.episode, str):
        file.sure = True
    elif more_states == 1 and (several or not file.inner):
        file.whole = file.sure = True
    file.first, file.after = _numbers(table, roles, 0), _numbers(table, roles, rows - 1)
    if file.after[1] is not None:
        step = file.after[1] - (_numbers(table, roles, max(0, rows - 2))[1])
        file.after = (file.after[0], file.after[1] + (step if step > 0 else 1))
    return file


def _numbers(table: Table, roles: Roles, row: int) -> tuple[Any, Any]:
    """The numbers of a row's episode and step; None where nothing numbers them."""
    names = (roles.episode if isinstance(roles.episode, str) else None, step_number(table, roles))
    episode, step = (None if name is None else table.read(name, row, row + 1).item() for name in names)
    return episode, step


def _goes_on(before: _File, file: _File, *, parts: bool, numbered: bool) -> bool:
    """Whether a file begins in the episode in which the one before ends.

    ``parts``: files are parts of one table; ``numbered``: numbers of episodes are those of all files.
    """
    (episode, step), (first_episode, first_step) = before.after, file.first
    follows = step is not None and step == first_step
    if episode is not None:
        return bool(episode == first_episode) and (numbered or follows)
    if before.sure or file.sure or before.ended or {before.table.kind, file.table.kind} != {"file"}:
        return False
    return parts if step is None else follows


def _joined(files: Sequence[_File], roles: Roles) -> Table:
    """Files as one table of the arrays that have roles."""
    first = files[0].table
    if len(files) == 1:
        return first
    used = set(roles.to_map().values()) & set(first.values)
    values: dict[str, Any] = {name: Concatenated([file.table.values[name] for file in files]) for name in used}
    return Table(f"{first.name} to {files[-1].table.name.rpartition('/')[2]}", values)
