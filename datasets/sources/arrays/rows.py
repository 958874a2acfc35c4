"""Rows of a table as episodes: which of them become steps, and the state rows of these. Nothing is invented.

A row is (observation, action, reward, flags). What followed it is its ``next_observation`` where the data have one, the next
row of the state where observations have a row more per episode, and else the observation of the next row of its episode:

    row          0    1    2    3  |  4    5    6  |  7    8
    ends with                   T                t              the table
    observation  s0   s1   s2   s3    t0   t1   t2    u0   u1
    successor    s1   s2   s3   0     t1   t2   ?     u1   ?

T, terminated: nothing follows, the successor is zeros. t, truncated, and the last row of a table: something follows that the
data do not hold. Such a row is given up: its observation is the final one of the row before, which ends the episode (or, with
``unknown_next`` zero, it is kept, truncated, with a successor of zeros). `sources.d4rl.episode_ends` has the same rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ....errors import CorruptSourceError, UsageError
from ...ingest.spaces import LossyCastError, cast
from ...ingest.trajectories import Column, to_rewards
from .roles import ArrayInfo, Roles
from .tables import Table

#: How an episode ends with a row, as a recording has it (`ingest.recording`).
TERMINATED, TRUNCATED, BOTH, CUT = 1, 2, 3, 4
#: Bytes and rows of a block.
_BLOCK_BYTES, _BLOCK_ROWS = 16 << 20, 1 << 16
#: How far a stated successor may be from the observation of the following row and still be the same, rounded.
_RTOL, _ATOL = 1e-5, 1e-6


@dataclass
class Layout:
    """What becomes of the rows of a table; arrays ``[n]``. ``end``: how the episode ends with the row, 0 where it goes on."""

    keep: np.ndarray
    end: np.ndarray
    #: The final state of the episode is not in the data: zeros.
    blank: np.ndarray
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def episodes(self) -> int:
        return int(np.count_nonzero(self.end[self.keep]))


@dataclass(frozen=True)
class Block:
    """Consecutive steps: ``rows`` of each column, of a state column one more for each episode that ends in them."""

    rows: list[np.ndarray]
    rewards: np.ndarray
    end: np.ndarray


def columns_of(roles: Roles, arrays: Mapping[str, ArrayInfo]) -> list[Column]:
    """The columns of a dataset: observations per state, all else per step."""
    states = [_column(key, arrays[name], "state") for key, name in roles.observation.items()]
    steps = {**roles.action, **roles.extra}
    return states + [_column(key, arrays[name], "step") for key, name in steps.items()]


def _column(key: str, array: ArrayInfo, per: str) -> Column:
    return Column(key, array.dtype.newbyteorder("=").name, array.shape[1:], per)  # type: ignore[arg-type]


def lay_out(table: Table, roles: Roles, *, unknown_next: str, one_episode: bool = False) -> Layout:
    """What becomes of the rows; ``one_episode``: the table is one of several, and one episode unless it says otherwise.

    Raises UsageError where nothing says where episodes end, or two statements contradict each other.
    """
    rows = table.arrays[next(iter(roles.action.values()))].shape[0]
    terminated, truncated = _flags(table, roles, rows)
    bounds = _boundaries(table, roles, rows)
    flags = [flag for flag in (terminated, truncated) if flag is not None]
    if bounds is None and one_episode and not any(flag[:-1].any() for flag in flags):
        bounds = np.zeros(rows, bool)
    if bounds is None and not flags and not roles.next_observation:
        message = f"{table.name}: nothing says where episodes end"
        raise UsageError(message, hint="map terminated, truncated, done, episode, episode_lengths or episode_ends")
    terminated = np.zeros(rows, bool) if terminated is None else terminated
    truncated = np.zeros(rows, bool) if truncated is None else truncated
    flagged = terminated | truncated
    if bounds is None:
        last = flagged.copy()
    else:
        last = bounds
    last[-1:] = True
    if bounds is not None and (flagged & ~last).any():
        row = int((flagged & ~last).argmax())
        message = f"{table.name}: row {row} is flagged as the end of an episode, and its episode goes on"
        raise UsageError(message, hint="leave the flag, or what states the episodes, out of the map")
    end = np.where(
        last, np.where(terminated, np.where(truncated, BOTH, TERMINATED), np.where(truncated, TRUNCATED, CUT)), 0
    )
    layout = Layout(np.ones(rows, bool), end.astype(np.uint8), np.zeros(rows, bool))
    unknown = np.zeros(rows, bool)
    if not roles.next_observation and not _has_final_states(table, roles, layout):
        unknown = last & ~terminated
        layout.blank = last.copy()
    if unknown_next == "truncate":
        _give_up(layout, unknown)
    else:
        layout.end[unknown & (layout.end == CUT)] = TRUNCATED
    layout.counts = {
        "rows": rows,
        "given_up_steps": int(np.count_nonzero(~layout.keep)),
        "unknown_next_steps": int(np.count_nonzero(unknown & layout.keep)),
    }
    return layout


def _flags(table: Table, roles: Roles, rows: int) -> tuple[np.ndarray | None, np.ndarray | None]:
    """``terminated`` and ``truncated``, bool ``[rows]``, with what ``done`` says beside one of them."""
    terminated, truncated, done = (
        _bools(table, name, rows) for name in (roles.terminated, roles.truncated, roles.done)
    )
    if done is None:
        return terminated, truncated
    if terminated is not None and truncated is not None:
        if (done != (terminated | truncated)).any():
            row = int((done != (terminated | truncated)).argmax())
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


def _bools(table: Table, name: str | None, rows: int) -> np.ndarray | None:
    if name is None:
        return None
    try:
        return cast(table.read(name, 0, rows).reshape(-1), bool)
    except LossyCastError as error:
        raise CorruptSourceError(f"{table.name}: {name} of row {error.row} is {error.value}, not 0 or 1") from error


def _boundaries(table: Table, roles: Roles, rows: int) -> np.ndarray | None:
    """The last rows of episodes by what numbers or counts them, bool ``[rows]``; None where nothing does."""
    if roles.episode is not None:
        numbers = table.read(roles.episode, 0, rows).reshape(-1)
        last = np.ones(rows, bool)
        last[:-1] = numbers[1:] != numbers[:-1]
        begins = numbers[np.flatnonzero(np.concatenate([[True], last[:-1]]))] if rows else numbers
        if len(np.unique(begins)) < len(begins):
            values, counts = np.unique(begins, return_counts=True)
            twice = values[counts > 1][0]
            message = f"{table.name}: the rows of episode {twice} ({roles.episode}) are not next to each other"
            raise UsageError(message, hint=f"sort the rows by {roles.episode}, or state the ends by flags")
        return last
    name = roles.episode_lengths or roles.episode_ends
    if name is None:
        return None
    values = table.read(name, 0, table.arrays[name].shape[0]).reshape(-1).astype(np.int64)
    ends = np.cumsum(values) if roles.episode_lengths else values
    if (np.diff(ends, prepend=0) < 1).any() or (ends[-1] if len(ends) else 0) != rows:
        message = f"{table.name}: {name} accounts for {int(ends[-1]) if len(ends) else 0} of {rows} rows"
        raise UsageError(message, hint="each episode has one step or more, and the rows of all are those of the action")
    last = np.zeros(rows, bool)
    last[ends - 1] = True
    return last


def _has_final_states(table: Table, roles: Roles, layout: Layout) -> bool:
    """Whether observations have a row per state. Raises UsageError for another number of rows."""
    names = list(roles.observation.values())
    there, rows = table.arrays[names[0]].shape[0], len(layout.keep)
    if there == rows:
        return False
    episodes = layout.episodes
    if there == rows + episodes:
        return True
    message = (
        f"{table.name}: {names[0]} has {there} rows, which is neither the {rows} of the steps nor {rows + episodes}"
    )
    raise UsageError(message, hint=f"observations have a row per step, or one more for each of the {episodes} episodes")


def _give_up(layout: Layout, unknown: np.ndarray) -> None:
    """Leave out rows whose successor is unknown; the row before, if it is of the same episode, is the last one then."""
    rows = np.flatnonzero(unknown)
    layout.keep[rows] = False
    layout.blank[rows] = False
    before = rows - 1
    inside = before >= 0
    inside[inside] = layout.end[before[inside]] == 0
    layout.end[before[inside]] = layout.end[rows[inside]]


def blocks(
    table: Table, roles: Roles, columns: Sequence[Column], layout: Layout, most_rows: int = _BLOCK_ROWS
) -> Iterator[Block]:
    """The steps of a table in order, from so many rows at a time."""
    rows = len(layout.keep)
    size = max(1, min(most_rows, _BLOCK_BYTES // max(1, sum(column.row_bytes for column in columns))))
    names = {**roles.observation, **roles.action, **roles.extra}
    per_state = bool(rows) and table.arrays[next(iter(roles.observation.values()))].shape[0] != rows
    first_state = 0
    for low in range(0, rows, size):
        high = min(low + size, rows)
        if roles.next_observation:
            _find_seams(table, roles, layout, low, high)
        states = high - low + int(np.count_nonzero(layout.end[low:high]))
        kept = layout.keep[low:high]
        block = []
        for column in columns:
            name = names[column.key]
            if column.per == "step":
                values = table.read(name, low, high)[kept]
            elif per_state:
                values = table.read(name, first_state, first_state + states)
            else:
                values = _states(table, roles, layout, column.key, low, high)
            block.append(np.ascontiguousarray(values, column.dtype).reshape(-1, *column.shape))
        yield Block(block, _rewards(table, roles, low, high)[kept], layout.end[low:high][kept])
        first_state += states


def _states(table: Table, roles: Roles, layout: Layout, key: str, low: int, high: int) -> np.ndarray:
    """The state rows of rows ``low`` to ``high - 1``: their observations, and the final states of episodes that end there."""
    name, count = roles.observation[key], high - low
    rows = len(layout.keep)
    here = table.read(name, low, min(high + 1, rows))
    kept, end = np.flatnonzero(layout.keep[low:high]), layout.end[low:high]
    if roles.next_observation:
        pool = np.concatenate([here[:count], table.read(roles.next_observation[key], low, high)])
        final = count + kept
    else:
        pool = np.concatenate([here, np.zeros_like(here[:1])])
        final = np.where(layout.blank[low:high][kept], len(here), kept + 1)
    pairs = np.stack([kept, final], 1)
    used = np.stack([np.ones(len(kept), bool), end[kept] > 0], 1)
    return pool[pairs[used]]


def _find_seams(table: Table, roles: Roles, layout: Layout, low: int, high: int) -> None:
    """Inside an episode the successor of a row is the next row's observation; where it is not, the episode is cut."""
    goes_on = np.flatnonzero(layout.end[low : min(high, len(layout.end) - 1)] == 0)
    differs = np.zeros(len(goes_on), bool)
    for key, name in roles.observation.items():
        after = table.read(name, low + 1, min(high + 1, len(layout.end)))[goes_on]
        stated = table.read(roles.next_observation[key], low, high)[goes_on]
        same = after == stated
        if after.dtype.kind == "f":
            same |= np.isclose(after, stated, rtol=_RTOL, atol=_ATOL, equal_nan=True)
        differs |= ~same.all(tuple(range(1, same.ndim)))
    cut = low + goes_on[differs]
    layout.end[cut] = CUT
    layout.counts["seams"] = layout.counts.get("seams", 0) + len(cut)


def _rewards(table: Table, roles: Roles, low: int, high: int) -> np.ndarray:
    if not isinstance(roles.reward, str):
        return np.full(high - low, roles.reward, np.float32)
    return to_rewards(table.read(roles.reward, low, high), f"{table.name}: {roles.reward}", "row", low)
