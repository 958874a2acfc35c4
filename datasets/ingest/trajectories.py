"""Steps to TED: episodes of n steps with n + 1 observations, and tables of transitions.

Where every observation is known, the last one included, a trajectory lies in memory as two kinds of columns:

    per state   s0  s1  s2  s3        n + 1 rows: observations
    per step    a0  a1  a2            n rows: actions, rewards, flags

A small per-state column becomes two step leaves, ``key`` (its rows but the last) and ``next/key`` (its rows but the first).
A large one (frames) becomes one state leaf, filled part by part, or with layout ``ted`` two large step leaves.

A row of a table of transitions is (observation, action, reward, terminal, time-out). Where the table does not state its
successor, that is the observation of the next row, as long as it belongs to the same trajectory:

    row          0    1    2    3  |  4    5    6  |  7    8
    ends with                   T                C              the table
    observation  s0   s1   s2   s3    t0   t1   t2    u0   u1
    successor    s1   s2   s3   0     t1   t2   ?     u1   ?

T, a terminal: nothing follows, the successor is zeros. C, a time-out by the clock, and the last row of the table: something
follows, but the table does not say what. Such a row is given up: its observation is the final one of the row before, which
is truncated (or, asked for ``unknown_next`` zero, it is kept, truncated, with a successor of zeros). `resolve_transitions`
does that on flags alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ...errors import CorruptSourceError
from ...storage.codecs import resolve_choice
from ...storage.episodes import CUT, TERMINATED, TRUNCATED
from ...storage.schema import LARGE_ROW, Leaf, Schema, ted_flags
from .block import END_CUT, END_TERMINATED, END_TRUNCATED
from .spaces import LossyCastError, cast

#: Steps that are made into columns at a time, unless their rows are large.
BLOCK_STEPS, BLOCK_BYTES = 1 << 16, 8 << 20

#: How far a stated successor may be from the observation of the following row and still be the same, rounded.
_ROUNDED: dict[str, float] = {"rtol": 1e-5, "atol": 1e-6}


@dataclass(frozen=True)
class Column:
    """One tensor of a trajectory. A per-state column is named by its root key, a per-step one by its own."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    per: Literal["state", "step"]

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    @property
    def large(self) -> bool:
        """Whether it is worth storing once per state."""
        return self.per == "state" and self.row_bytes >= LARGE_ROW


def schema_of(columns: Sequence[Column], codec: str = "auto", layout: str = "auto") -> tuple[Schema, tuple[str, ...]]:
    """The schema of a dataset with these columns, and the names of its bulk leaves.

    Raises SchemaError for keys that exclude each other.
    """
    codec = resolve_choice(codec)
    leaves: list[Leaf] = []
    bulk: list[str] = []
    for column in columns:
        if column.per == "step":
            leaves.append(Leaf(column.key, "step", column.dtype, column.shape))
        elif column.large and layout != "ted":
            leaves.append(Leaf(column.key, "state", column.dtype, column.shape, codec=codec))
            bulk.append(column.key)
        else:
            twins = [column.key, "next/" + column.key]
            leaves += [Leaf(key, "step", column.dtype, column.shape) for key in twins]
            bulk += twins if column.large else []
    return Schema((*leaves, *ted_flags())), tuple(bulk)


def columns_of(schema: Schema) -> list[Column]:
    """The columns that became the leaves of a schema (`schema_of`)."""
    flags = {leaf.name for leaf in ted_flags()}
    twins = {leaf.name for leaf in schema.steps if f"next/{leaf.name}" in schema} - flags
    after = flags | {f"next/{name}" for name in twins}
    return [
        Column(leaf.name, leaf.dtype, leaf.shape, "state" if leaf.kind == "state" or leaf.name in twins else "step")
        for leaf in schema
        if leaf.name not in after
    ]


def column_difference(columns: Sequence[Column], wanted: Sequence[Column]) -> str:
    """What differs between columns, for people."""
    here, there = ({column.key: column for column in some} for some in (columns, wanted))
    odd = [key for key in {**there, **here} if here.get(key) != there.get(key)]
    odd = [key for key in odd if _described(here.get(key)) != _described(there.get(key))] or odd
    shown = [f"{key} is {_described(here.get(key))}, and {_described(there.get(key))} there" for key in odd[:4]]
    return "; ".join(shown) or "its arrays come in another order"


def _described(column: Column | None) -> str:
    return "missing" if column is None else f"{column.dtype} {list(column.shape)}"


def block_steps(columns: Sequence[Column]) -> int:
    """How many steps of these columns make a block."""
    row = sum(column.row_bytes for column in columns if not column.large)
    return max(1, min(BLOCK_STEPS, BLOCK_BYTES // max(1, row)))


# -- tables of transitions ----------------------------------------------------------------------------------------------


@dataclass
class TransitionRows:
    """What becomes of every row of a table of transitions; bool ``[N]``.

    ``end``: the last row of its trajectory. ``by_clock``: it ends there by a time limit. ``keep``: it becomes
    a step. ``last``: that step is the last of its episode, with the flags ``terminated`` and ``truncated`` (false on all
    others). ``blank``: its successor is zeros. ``inner``: flagged terminal inside a trajectory.
    """

    end: np.ndarray
    by_clock: np.ndarray
    keep: np.ndarray
    last: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    blank: np.ndarray
    inner: np.ndarray
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        return int(np.count_nonzero(self.keep))

    def bits(self, low: int, high: int) -> np.ndarray:
        """The bits of the ends (`block`) of the rows ``low`` to ``high - 1``, uint8."""
        terminated, truncated, by_clock = (flag[low:high] for flag in (self.terminated, self.truncated, self.by_clock))
        over = [terminated & truncated, terminated, truncated & by_clock, truncated]
        both = END_TERMINATED | END_TRUNCATED
        return np.select(over, [both, END_TERMINATED, END_TRUNCATED, END_CUT], 0).astype(np.uint8)

    def cut_after(self, rows: np.ndarray) -> None:
        """End episodes after these rows as well: what follows them in the file is not their successor."""
        self.last[rows] = self.truncated[rows] = True

    def state_rows(self, low: int, high: int, observations: int, *, has_next: bool) -> np.ndarray:
        """Which rows of a buffer are the states of the rows ``low..high-1``, in order.

        The buffer holds ``observations`` observations from row ``low`` on, then, with ``has_next``, the successors of the rows,
        then a row of zeros.
        """
        kept = np.flatnonzero(self.keep[low:high])
        zeros = observations + (high - low if has_next else 0)
        final = observations + kept if has_next else np.where(self.blank[low:high][kept], zeros, kept + 1)
        pairs = np.stack([kept, final], 1)
        used = np.stack([np.ones(len(kept), bool), self.last[low:high][kept]], 1)
        return pairs[used]


def resolve_transitions(
    ends: np.ndarray, terminals: np.ndarray, by_clock: np.ndarray, *, has_next: bool, unknown_next: str
) -> TransitionRows:
    """What becomes of every row. ``ends``, ``terminals``, ``by_clock``, bool ``[N]``: which rows end a trajectory, are flagged
    terminal, end it by a time limit.

    ``has_next``: the table states the successor of every row. ``unknown_next``: see `ConvertOptions`.
    """
    end = ends | by_clock
    end[-1] = True
    terminated = terminals & end
    truncated = end & (by_clock | ~terminated)
    unknown = np.zeros_like(end) if has_next else end & ~terminated
    rows = TransitionRows(
        end, by_clock.copy(), np.ones_like(end), end.copy(), terminated, truncated, np.zeros_like(end), terminals & ~end
    )
    if not has_next:
        rows.blank = terminated | unknown
    if unknown_next == "truncate":
        given_up = np.flatnonzero(unknown)
        rows.keep[given_up] = False
        given_up = given_up[given_up > 0]
        given_up = given_up[~end[given_up - 1]]  # those with a row before
        before = given_up - 1
        rows.last[before] = rows.truncated[before] = True
        rows.by_clock[before] = rows.by_clock[given_up]
        # Where terminals do not end trajectories, the row before may be flagged terminal: it is now the last row, and nothing
        # follows it.
        rows.terminated[before] = terminals[before]
        rows.inner[before] = False
    starts = np.ones_like(end)
    starts[1:] = end[:-1]
    rows.counts = {
        "rows": len(end),
        "given_up_steps": int(np.count_nonzero(~rows.keep)),
        "lost_trajectories": int(np.count_nonzero(unknown & ~rows.keep & starts)),
        "unknown_next_steps": int(np.count_nonzero(unknown & rows.keep)),
        "inner_terminals": int(np.count_nonzero(rows.inner & rows.keep)),
    }
    return rows


def compare_successors(after: np.ndarray, stated: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Stated successors ``[n, ...]`` and the observations of the rows ``after`` them, of one dtype in any order of bytes: which
    are others, and which differ by rounding, or by the sign of a zero, alone; bool ``[n]`` each."""
    count, size = len(after), int(np.prod(after.shape[1:]))
    native = after.dtype.newbyteorder("=")
    one, two = (np.ascontiguousarray(some, native).reshape(count, size) for some in (after, stated))
    word = f"u{after.dtype.itemsize}"
    rows = np.flatnonzero((one.view(word) != two.view(word)).any(1))
    other, rounded = np.zeros(count, bool), np.zeros(count, bool)
    other[rows] = True
    if after.dtype.kind == "f":
        rounded[rows] = np.isclose(one[rows], two[rows], **_ROUNDED, equal_nan=True).all(1)
    return other & ~rounded, rounded


def longest(end: np.ndarray) -> int:
    """Rows of the longest trajectory."""
    return int(np.diff(np.flatnonzero(end), prepend=-1).max(initial=0))


# -- outcomes and rewards ----------------------------------------------------------------------------------------------


def count_outcomes(outcome: np.ndarray) -> dict[str, int]:
    """How many episodes ended in which way, for the counts of the manifest; ``outcome`` is that of the episode table."""
    ends = {"terminated_episodes": TERMINATED, "time_limit_episodes": TRUNCATED, "cut_episodes": CUT}
    return {name: int((outcome == value).sum()) for name, value in ends.items()}


def to_rewards(values: Any, where: str, unit: str = "step", first: int = 0) -> np.ndarray:
    """Rewards as float32; ``first`` is the number of the first.

    Raises CorruptSourceError for one that is not finite, or that float32 does not hold.
    """
    given = np.asarray(values)
    with np.errstate(over="ignore"):
        rewards = given.astype(np.float32).reshape(-1)
    if not np.isfinite(rewards).all():
        row = int((~np.isfinite(rewards)).argmax())
        value = given.reshape(-1)[row]
        problem = "which float32 does not hold" if np.isfinite(value) else "not a finite number"
        raise CorruptSourceError(f"{where}: the reward of {unit} {first + row} is {value}, {problem}")
    return rewards


def to_flags(values: Any, where: str, unit: str = "row") -> np.ndarray:
    """Flags of any numeric dtype as bool ``[n]``; ``where`` names them in errors.

    Raises CorruptSourceError for other values than 0 and 1.
    """
    try:
        return cast(np.asarray(values).reshape(-1), bool)
    except LossyCastError as error:
        raise CorruptSourceError(f"{where} of {unit} {error.row} is {error.value}, not 0 or 1") from error
