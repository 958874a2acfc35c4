"""Rows of a table as episodes: what ends them, and the blocks of steps and states that are recorded.

A row is (observation, action, reward, flags). What followed it is its ``next_observation`` where the data have one, the next
row of the state where observations have a row more per episode, and else the observation of the next row of its episode.
`ingest.trajectories.resolve_transitions` decides what becomes of rows whose successor is not in the data, as for D4RL.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ....errors import UsageError
from ....storage.schema import LARGE_ROW
from ...ingest.spaces import stored_dtype
from ...ingest.trajectories import Column, TransitionRows, compare_successors, resolve_transitions, to_flags
from ...ingest.transition_blocks import TransitionTable
from .roles import ArrayInfo, Roles, is_one_value
from .tables import Table

#: The names of arrays that number the steps of an episode.
_STEPS = ("step", "steps", "step_id", "step_index", "step_count", "timestep", "timesteps", "time_step", "frame_index")
#: Bytes of rows that are compared at a time.
_BLOCK_BYTES = 16 << 20


def columns_of(roles: Roles, arrays: Mapping[str, ArrayInfo], apart: Collection[str] = ()) -> list[Column]:
    """The columns of a dataset: observations per state, all other columns per step.

    Observations that are ``apart`` are two columns per step, with the stated successors as they are.
    """
    columns = []
    for key, name in {**roles.observation, **roles.action, **roles.extra}.items():
        if key in apart and key in roles.next_observation:
            columns += [_column(one, arrays[name], "step") for one in (key, "next/" + key)]
        else:
            columns.append(_column(key, arrays[name], "state" if key in roles.observation else "step"))
    return columns


def stored_apart(tables: Sequence[tuple[Table, Roles]]) -> set[str]:
    """The observations whose successors are stored as they are stated, beside the observation of the next row.

    Those are fractions, which may differ in rounding, or in the sign of a zero. Small rows have two leaves anyway; large ones
    are stored once per state unless a successor in ``tables`` differs so.
    """
    if not all(roles.next_observation for _, roles in tables):
        return set()
    first, roles = tables[0]
    columns = [_column(key, first.arrays[name], "state") for key, name in roles.observation.items()]
    return {
        column.key
        for column in columns
        if column.dtype.startswith("float")
        and (column.row_bytes < LARGE_ROW or any(_has_rounded(*table, column) for table in tables))
    }


def _has_rounded(table: Table, roles: Roles, column: Column) -> bool:
    """Whether a stated successor equals the observation of the next row within rounding, but not bit by bit."""
    if column.key not in roles.next_observation:
        return False
    rows = table.arrays[roles.observation[column.key]].shape[0]
    size = max(1, _BLOCK_BYTES // column.row_bytes)
    for low in range(0, rows - 1, size):
        high = min(low + size, rows - 1)
        after = table.read(roles.observation[column.key], low + 1, high + 1)
        if compare_successors(after, table.read(roles.next_observation[column.key], low, high))[1].any():
            return True
    return False


def _column(key: str, array: ArrayInfo, per: str) -> Column:
    return Column(key, stored_dtype(array.dtype, key), array.shape[1:], per)  # type: ignore[arg-type]


def end_episodes(table: Table, roles: Roles, *, unknown_next: str, whole: bool = False) -> TransitionRows:
    """What becomes of the rows; ``whole``: they are one episode.

    Where numbers, counts or ``whole`` state the episodes, flags inside them end nothing, and are counted as ``inner_flags``.
    Raises UsageError where nothing says where episodes end, or two statements contradict each other.
    """
    rows = table.arrays[next(iter(roles.action.values()))].shape[0]
    if not rows:
        raise UsageError(f"{table.name} has no rows")
    terminated, truncated = flags_of(table, roles, rows)
    bounds = _boundaries(table, roles, rows)
    if bounds is None and whole:
        bounds = np.zeros(rows, bool)
    if bounds is None and terminated is None and truncated is None and not roles.next_observation:
        message = f"{table.name}: nothing says where episodes end"
        hint = "map terminated, truncated, done, episode, episode_lengths or episode_ends"
        raise UsageError(message, hint=f"{hint}; or episode=0, where a file is one episode")
    terminated = np.zeros(rows, bool) if terminated is None else terminated
    truncated = np.zeros(rows, bool) if truncated is None else truncated
    flagged = terminated | truncated
    last = flagged.copy() if bounds is None else bounds
    last[-1] = True
    inner = int((flagged & ~last).sum())
    jumps = 0 if roles.next_observation else _count_jumps(table, roles, last)
    has_next = bool(roles.next_observation) or _has_final_states(table, roles, rows, int(last.sum()))
    transitions = resolve_transitions(
        last, terminated & last, truncated & last, has_next=has_next, unknown_next=unknown_next
    )
    transitions.counts |= {name: count for name, count in (("jumps", jumps), ("inner_flags", inner)) if count}
    return transitions


def step_names(table: Table, roles: Roles) -> list[str]:
    """The arrays that number the steps of an episode."""
    keys = {key.lower().rpartition("/")[2]: name for key, name in roles.extra.items()}
    return [name for key, name in keys.items() if key in _STEPS and table.arrays[name].shape[1:] in ((), (1,))]


def _count_jumps(table: Table, roles: Roles, last: np.ndarray) -> int:
    """How many rows have a number of their step that is not the next one after that of the row before, in one episode.

    Raises UsageError where the numbers run backwards inside an episode: the next row is not what followed.
    """
    jumps = 0
    for name in step_names(table, roles):
        steps = table.read(name, 0, len(last)).reshape(-1).astype(np.float64)
        inside = np.flatnonzero(~last[:-1])
        growth = steps[inside + 1] - steps[inside]
        if (growth < 0).any():
            row = int(inside[growth < 0][0])
            message = f"{table.name}: {name} goes from {steps[row]:g} to {steps[row + 1]:g} after row {row}, inside an "
            message += "episode: the rows are in another order, or the episode ends there"
            hint = f"sort the rows, or mark the ends; where it does not number the steps: --map info/other={name}"
            raise UsageError(message, hint=hint)
        jumps += len(growth) - int(np.unique(growth, return_counts=True)[1].max(initial=0))
    return jumps


def flags_of(table: Table, roles: Roles, rows: int) -> tuple[np.ndarray | None, np.ndarray | None]:
    """``terminated`` and ``truncated``, bool ``[rows]``, from ``done`` where only one of them is given."""
    terminated, truncated, done = (
        None if name is None else _flag(table, name, rows) for name in (roles.terminated, roles.truncated, roles.done)
    )
    if done is None:
        return terminated, truncated
    if terminated is not None and truncated is not None:
        differs = done != (terminated | truncated)
        if differs.any():
            row = int(differs.argmax())
            message = f"{table.name}: row {row}: {roles.done} is not what {roles.terminated} and {roles.truncated} say"
            raise UsageError(message, hint=f"leave {roles.done} out of the map")
        return terminated, truncated
    other = terminated if terminated is not None else truncated
    assert other is not None
    if (other & ~done).any():
        row = int((other & ~done).argmax())
        message = f"{table.name}: row {row} is {roles.terminated or roles.truncated}, and not {roles.done}"
        raise UsageError(message, hint="leave one of the two out of the map")
    return (terminated, done & ~terminated) if terminated is not None else (done & ~other, truncated)


def _flag(table: Table, name: str, rows: int) -> np.ndarray:
    """One flag, bool ``[rows]``; a single value is that of the last row."""
    if is_one_value(table.arrays[name]):
        values = np.zeros(rows, bool)
        values[-1:] = to_flags(table.read_all(name), f"{table.name}: {name}")
        return values
    return to_flags(table.read(name, 0, rows), f"{table.name}: {name}")


def _boundaries(table: Table, roles: Roles, rows: int) -> np.ndarray | None:
    """The last rows of episodes by what numbers or counts them, bool ``[rows]``; None where nothing does.

    Raises UsageError where two arrays state different episodes.
    """
    stated = {role: getattr(roles, role) for role in ("episode", "episode_lengths", "episode_ends")}
    names = {role: name for role, name in stated.items() if isinstance(name, str)}
    names.update(roles.more_ends)
    try:
        found = [(name, _last_rows(table, role, name, rows)) for role, name in names.items()]
    except UsageError as error:
        if roles.more_ends:
            error.hint = f"{error.hint}; or state the right one alone in the map, such as --map episode_ends=NAME"
        raise
    for name, last in found[1:]:
        first, wanted = found[0]
        if (last != wanted).any():
            row = int((last != wanted).argmax())
            message = f"{table.name}: by {first} and by {name}, the episodes differ: row {row} is the last one of its "
            message += f"episode only by {first if wanted[row] else name}"
            raise UsageError(message, hint="state the right one alone in the map, such as --map episode_ends=NAME")
    return found[0][1] if found else None


def _last_rows(table: Table, role: str, name: str, rows: int) -> np.ndarray:
    """The last rows of episodes by one array, bool ``[rows]``."""
    values = table.read(name, 0, table.arrays[name].shape[0]).reshape(-1)
    if role == "episode":
        last = np.ones(rows, bool)
        last[:-1] = values[1:] != values[:-1]
        several, counts = np.unique(values[np.concatenate([[True], last[:-1]])], return_counts=True)
        if (counts > 1).any():
            message = f"{table.name}: the rows of episode {several[counts > 1][0]} ({name}) are not next to each other"
            raise UsageError(message, hint=f"sort the rows by {name}, or state the ends by flags")
        return last
    values = values.astype(np.int64)
    ends = np.cumsum(values) if role == "episode_lengths" else values
    stated = int(ends[-1]) if len(ends) else 0
    if (np.diff(ends, prepend=0) < 1).any() or stated != rows:
        message = f"{table.name}: {name} accounts for {stated} of {rows} rows"
        raise UsageError(message, hint="each episode has one step or more, and the rows of all are those of the action")
    last = np.zeros(rows, bool)
    last[ends - 1] = True
    return last


def _has_final_states(table: Table, roles: Roles, rows: int, episodes: int) -> bool:
    """Whether observations have a row per state. Raises UsageError for another number of rows."""
    name = next(iter(roles.observation.values()))
    there = table.arrays[name].shape[0]
    if there not in (rows, rows + episodes):
        message = (
            f"{table.name}: {name} has {there} rows, which is neither the {rows} of the steps nor {rows + episodes}"
        )
        hint = f"observations have a row per step, or one more for each of the {episodes} episodes"
        raise UsageError(message, hint=hint)
    return there != rows


def transition_table(table: Table, roles: Roles, rows: int) -> TransitionTable:
    """The table of so many steps, for its rows to be read as blocks."""
    names = {**roles.observation, **roles.action, **roles.extra}
    states = table.arrays[next(iter(roles.observation.values()))].shape[0]
    final = bool(rows) and states != rows
    return TransitionTable(table.name, table.read, names, roles.next_observation, roles.reward, final)
