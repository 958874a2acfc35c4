"""Rows of a table as episodes: what ends them, and the blocks of steps and states that are recorded.

A row is (observation, action, reward, flags). What followed it is its ``next_observation`` where the data have one, the next
row of the state where observations have a row more per episode, and else the observation of the next row of its episode.
`ingest.trajectories.resolve_transitions` decides what becomes of rows whose successor is not in the data, as for D4RL.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ....errors import UsageError
from ....storage.schema import LARGE_ROW
from ...ingest.spaces import stored_dtype
from ...ingest.trajectories import Column, TransitionRows, resolve_transitions, to_flags
from ...ingest.transition_blocks import TransitionTable
from .roles import ArrayInfo, Roles
from .tables import Table


def columns_of(roles: Roles, arrays: Mapping[str, ArrayInfo]) -> list[Column]:
    """The columns of a dataset: observations per state, all other columns per step.

    Small observations of fractions are two columns per step where their successors are stated, as these may differ from the
    observation of the next row in rounding, or in the sign of a zero.
    """
    columns = []
    for key, name in {**roles.observation, **roles.action, **roles.extra}.items():
        column = Column(key, stored_dtype(arrays[name].dtype, key), arrays[name].shape[1:], "step")
        if key not in roles.observation:
            columns.append(column)
        elif key in roles.next_observation and column.dtype.startswith("float") and column.row_bytes < LARGE_ROW:
            columns += [column, Column("next/" + key, column.dtype, column.shape, "step")]
        else:
            columns.append(Column(key, column.dtype, column.shape, "state"))
    return columns


def end_episodes(table: Table, roles: Roles, *, unknown_next: str, whole: bool = False) -> TransitionRows:
    """What becomes of the rows; ``whole``: they are one episode.

    Where numbers, counts or ``whole`` state the episodes, flags inside them end nothing, and are counted as ``inner_flags``.
    Raises UsageError where nothing says where episodes end, or two statements contradict each other.
    """
    rows = roles.rows(table.arrays)
    if not rows:
        raise UsageError(f"{table.name} has no rows")
    terminated, truncated = flags_of(table, roles, rows)
    stated = [_last_rows(table, role, name, rows) for role, name in roles.boundaries.items()]
    if whole or stated:
        last = stated[0] if stated else np.zeros(rows, bool)
    elif roles.flags or roles.next_observation:
        last = terminated | truncated
    else:
        message = f"{table.name}: nothing says where episodes end"
        hint = "map terminated, truncated, done, episode, episode_lengths or episode_ends"
        raise UsageError(message, hint=f"{hint}; or episode=0, where a file is one episode")
    last[-1] = True
    for name in roles.masks:
        _check_masks(table, roles, terminated & last, name)
    inner = int(((terminated | truncated) & ~last).sum())
    has_next = bool(roles.next_observation)
    if not has_next:
        states, episodes = roles.states(table.arrays), int(last.sum())
        if states not in (rows, rows + episodes):
            name = next(iter(roles.observation.values()))
            message = f"{table.name}: {name} has {states} rows, which is neither the {rows} of the steps nor "
            hint = f"observations have a row per step, or one more for each of the {episodes} episodes"
            raise UsageError(f"{message}{rows + episodes}", hint=hint)
        has_next = states != rows
    transitions = resolve_transitions(
        last, terminated & last, truncated & last, has_next=has_next, unknown_next=unknown_next
    )
    transitions.counts |= {"inner_flags": inner} if inner else {}
    return transitions


def _check_masks(table: Table, roles: Roles, terminated: np.ndarray, name: str) -> None:
    """Raise UsageError where steps are terminated whose mask is not 0, as in OGBench's agents: a time limit ended these."""
    odd = int((terminated & (table.read_all(name).reshape(len(terminated), -1) != 0).any(1)).sum())
    if odd:
        flag = roles.terminated
        message = (
            f"{table.name}: {odd} of {int(terminated.sum())} steps that are terminated by {flag} are not by {name}"
        )
        hint = f"if {name} are 0 where an episode terminated, and {flag} end it at time limits, too, give in place of {flag}: "
        hint += f"terminated = {name} == 0; truncated = ({flag} == 1) & ({name} == 1)"
        raise UsageError(message, hint=f"{hint}. If {name} mean something else: --map info/{name}={name}")


def flags_of(table: Table, roles: Roles, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """``terminated`` and ``truncated``, bool ``[rows]``; from ``done`` where only one of them is given.

    Raises UsageError where ``done`` says otherwise than they do.
    """
    flags = {role: _flag(table, name, rows) for role, name in roles.flags.items()}
    missing = [role for role in ("terminated", "truncated") if role not in flags]
    flags |= {role: np.zeros(rows, bool) for role in missing}
    terminated, truncated = flags["terminated"], flags["truncated"]
    if "done" in flags:
        differs = (terminated | truncated) & ~flags["done"] if missing else (terminated | truncated) != flags["done"]
        if differs.any():
            others = " and ".join(name for role, name in roles.flags.items() if role != "done")
            message = f"{table.name}: row {int(differs.argmax())}: {roles.done} is not what {others} say"
            raise UsageError(message, hint=f"leave {roles.done} out of the map")
        for role in missing:
            flags[role] = flags["done"] & ~(terminated | truncated)
    return flags["terminated"], flags["truncated"]


def _flag(table: Table, name: str, rows: int) -> np.ndarray:
    """One flag, bool ``[rows]``; a single value is that of the last row."""
    values = to_flags(table.read_all(name), f"{table.name}: {name}")
    return values if len(values) == rows else np.append(np.zeros(rows - 1, bool), values)


def _last_rows(table: Table, role: str, name: str, rows: int) -> np.ndarray:
    """The last rows of episodes by an array that numbers or counts them, bool ``[rows]``. Raises UsageError."""
    values = table.read_all(name).reshape(-1)
    if role == "episode":
        last = np.append(values[1:] != values[:-1], True)
        several, counts = np.unique(values[last], return_counts=True)
        if (counts > 1).any():
            message = f"{table.name}: the rows of episode {several[counts > 1][0]} ({name}) are not next to each other"
            raise UsageError(message, hint=f"sort the rows by {name}, or state the ends by flags")
        return last
    ends = np.cumsum(values, dtype=np.int64) if role == "episode_lengths" else values.astype(np.int64)
    stated = int(ends[-1]) if len(ends) else 0
    if (np.diff(ends, prepend=0) < 1).any() or stated != rows:
        message = f"{table.name}: {name} accounts for {stated} of {rows} rows"
        raise UsageError(message, hint="each episode has one step or more, and the rows of all are those of the action")
    last = np.zeros(rows, bool)
    last[ends - 1] = True
    return last


def transition_table(table: Table, roles: Roles, rows: int) -> TransitionTable:
    """The table of so many steps, for its rows to be read as blocks."""
    names = {**roles.observation, **roles.action, **roles.extra}
    final = bool(rows) and roles.states(table.arrays) != rows
    return TransitionTable(table.name, table.read, names, roles.next_observation, roles.reward, final)
