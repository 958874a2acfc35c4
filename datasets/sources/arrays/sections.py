"""Which tables are one episode each, and which are parts of one.

A group ``demo_0``, one of several files ``episode_3.npz``, a map with ``episode=0``: one episode, whatever flags are in it. So
is one of several tables whose flags have one value, or that has one observation more than it has steps. Files
``train-00000-of-00002``, and files whose steps are numbered on from those of the file before, are parts of one table, in which
an episode may go on from file to file. Any other table ends with an episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ....errors import UsageError
from .roles import Roles
from .rows import flags_of
from .stored import Concatenated
from .tables import Table

#: The names of arrays that number the steps of an episode.
_STEPS = ("step", "steps", "step_id", "step_index", "step_count", "timestep", "timesteps", "time_step", "frame_index")


@dataclass(frozen=True)
class Section:
    """A table, or several that are parts of one; ``whole``: it is one episode, in which flags end nothing."""

    table: Table
    whole: bool


def sections_of(tables: Sequence[Table], roles: Roles, whole: bool) -> list[Section]:
    """The sections of tables, in order; ``whole``: the map says that each table is an episode. Raises UsageError for a table
    without rows."""
    groups = list[list[Table]]()
    for table in tables:
        if not roles.rows(table.arrays):
            raise UsageError(f"{table.name} has no rows")
        if groups and not whole and _goes_on(groups[-1][-1], table, roles):
            groups[-1].append(table)
        else:
            groups.append([table])
    several = len(tables) > 1
    return [Section(_joined(group, roles), whole or _is_episode(group[0], roles, several)) for group in groups]


def _goes_on(before: Table, table: Table, roles: Roles) -> bool:
    """Whether two files are parts of one table, by their names or the numbers of the steps at their edges."""
    for one in (before, table):
        has_end = roles.states(one.arrays) > roles.rows(one.arrays) or _single_flags(one, roles)
        if one.is_episode or has_end:
            return False
    if before.is_part and table.is_part:
        return True
    keys = {key.lower().rpartition("/")[2]: name for key, name in roles.extra.items()}
    number = next(
        (name for key, name in keys.items() if key in _STEPS and table.arrays[name].shape[1:] in ((), (1,))), None
    )
    if number is None:
        return False
    last = before.arrays[number].shape[0]
    return bool(table.read(number, 0, 1).item() > before.read(number, last - 1, last).item())


def _is_episode(table: Table, roles: Roles, several: bool) -> bool:
    """Whether a table is one episode; ``several``: it is not the only one. Raises UsageError."""
    if table.is_episode:
        return True
    arrays = table.arrays
    rows = roles.rows(arrays)
    if single := _single_flags(table, roles):
        if not several:
            hint = "give a row per step; or episode=0 in the map, where all steps are one episode"
            raise UsageError(f"{table.name}: {single[0]} has one value, not one per step", hint=hint)
        return True
    if roles.states(arrays) != rows + 1:
        return False
    terminated, truncated = flags_of(table, roles, rows)
    return several or not (terminated | truncated)[:-1].any()


def _single_flags(table: Table, roles: Roles) -> list[str]:
    """The flags that have one value for all steps: that of the last."""
    arrays = table.arrays
    return [name for name in roles.flags.values() if arrays[name].is_one_value and roles.rows(arrays) > 1]


def _joined(tables: Sequence[Table], roles: Roles) -> Table:
    """Tables as one of the arrays that have roles."""
    first = tables[0]
    if len(tables) == 1:
        return first
    used = set(roles.to_map().values()) & set(first.values)
    values: dict[str, Any] = {name: Concatenated([table.values[name] for table in tables]) for name in used}
    return Table(f"{first.name} to {tables[-1].name.rpartition('/')[2]}", values)
