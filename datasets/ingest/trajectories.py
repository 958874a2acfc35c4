"""Episodes of n steps with n + 1 observations, as TED.

Where every observation is known, the last one included, a trajectory lies in memory as two kinds of columns:

    per state   s0  s1  s2  s3        n + 1 rows: observations
    per step    a0  a1  a2            n rows: actions, rewards, flags

A small per-state column becomes two step leaves, ``key`` (its rows but the last) and ``next/key`` (its rows but the first).
A large one (frames) becomes one state leaf, filled part by part, or with layout ``ted`` two large step leaves.

Trajectories are handed over in *segments*: whole episodes, or pieces of long ones. A segment of m steps has m + 1 state rows,
so that the last state row of a piece is the first one of the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ...errors import CorruptSourceError, SchemaError
from ...storage.codecs import resolve_choice
from ...storage.episodes import CUT, TERMINATED, TRUNCATED, EpisodeTable
from ...storage.schema import LARGE_ROW, Leaf, Schema, ted_flags
from ...storage.writer import ColumnWriter
from .job import ConvertOptions

#: Steps that are made into columns at a time, unless their rows are large.
BLOCK_STEPS, BLOCK_BYTES = 1 << 16, 8 << 20


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


def lay_out(columns: Sequence[Column], options: ConvertOptions) -> tuple[Schema, tuple[str, ...]]:
    """The schema of a dataset with these columns, and the names of its bulk leaves.

    Raises SchemaError for keys that exclude each other.
    """
    codec = resolve_choice(options.codec)
    leaves: list[Leaf] = []
    bulk: list[str] = []
    for column in columns:
        if column.per == "step":
            leaves.append(Leaf(column.key, "step", column.dtype, column.shape))
        elif column.large and options.layout != "ted":
            leaves.append(Leaf(column.key, "state", column.dtype, column.shape, codec=codec))
            bulk.append(column.key)
        else:
            twins = [column.key, "next/" + column.key]
            leaves += [Leaf(key, "step", column.dtype, column.shape) for key in twins]
            bulk += twins if column.large else []
    return Schema((*leaves, *ted_flags())), tuple(bulk)


def results(rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> dict[str, np.ndarray]:
    """The rows of reward and flags under ``next``, as every dataset has them, of steps ``[n]``."""
    columns = {"reward": rewards, "done": terminated | truncated, "terminated": terminated, "truncated": truncated}
    return {f"next/{name}": values[:, None] for name, values in columns.items()}


# -- segments ----------------------------------------------------------------------------------------------------------


def split_states(rows: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Root and successor rows of segments of ``lengths`` steps, whose state rows ``[sum(lengths + 1), ...]`` are joined."""
    if len(lengths) == 1:
        return rows[:-1], rows[1:]
    ends = np.cumsum(lengths + 1) - 1
    root, after = np.ones(len(rows), bool), np.ones(len(rows), bool)
    root[ends] = False
    after[ends - lengths] = False
    return rows[root], rows[after]


@dataclass(frozen=True)
class Cut:
    """A run of steps out of a sequence of episodes: ``steps`` and ``states`` are (low, high), ``lengths`` its segments'."""

    steps: tuple[int, int]
    states: tuple[int, int]
    lengths: np.ndarray


def cuts(lengths: np.ndarray, size: int) -> Iterator[Cut]:
    """Episodes of these lengths (all at least 1) in runs of ``size`` steps, long ones in pieces."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    for low in range(0, total, size):
        high = min(low + size, total)
        first = int(np.searchsorted(ends, low, "right"))
        last = int(np.searchsorted(ends, high, "left"))
        edges = np.concatenate([[low], ends[first:last], [high]])
        yield Cut((low, high), (low + first, high + last + 1), np.diff(edges))


def block_steps(columns: Sequence[Column]) -> int:
    """How many steps of these columns make a block."""
    row = sum(column.row_bytes for column in columns if not column.large)
    return max(1, min(BLOCK_STEPS, BLOCK_BYTES // max(1, row)))


class TrajectoryWriter:
    """Appends segments to the step leaves of a dataset, and keeps the episodes."""

    def __init__(self, columns: ColumnWriter, small: Sequence[Column]) -> None:
        self._columns = columns
        self._small = [column for column in small if not column.large]
        self._episodes: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # lengths, returns, outcomes
        self._open = (0, 0.0)  # steps and rewards so far of the episode that goes on
        self.counts: dict[str, int] = {}

    def append(
        self,
        rows: Mapping[str, np.ndarray],
        lengths: np.ndarray,
        rewards: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        outcome: np.ndarray,
    ) -> None:
        """Append segments of ``lengths`` steps.

        ``rows`` holds the rows of every small column: ``sum(lengths + 1)`` of a per-state one, ``sum(lengths)`` of a per-step
        one. ``rewards`` (float32), the flags (bool) and ``outcome`` (uint8) are ``[sum(lengths)]``; all three of the latter
        are zero but at the last step of an episode, where ``outcome`` says how it ended. Raises SchemaError where flags and
        outcomes disagree.
        """
        if not len(rewards):
            return
        done = np.asarray(terminated | truncated, bool)
        wrong = (done != (outcome != 0)) | (done & (np.asarray(terminated, bool) != (outcome == TERMINATED)))
        if wrong.any():
            row = int(wrong.argmax())
            said = f"terminated {bool(terminated[row])}, truncated {bool(truncated[row])}, outcome {int(outcome[row])}"
            message = f"step {self._columns.rows + row} has {said}: flags and outcome must say the same"
            raise SchemaError(message, hint="where an episode ends, outcome is TERMINATED, TRUNCATED or CUT; else 0")
        block: dict[str, np.ndarray] = {}
        for column in self._small:
            if column.per == "state":
                block[column.key], block["next/" + column.key] = split_states(rows[column.key], lengths)
            else:
                block[column.key] = rows[column.key]
        self._columns.append({**block, **results(rewards, terminated, truncated)})
        self._count(rewards, outcome)

    def _count(self, rewards: np.ndarray, outcome: np.ndarray) -> None:
        """Take the episodes that end in a block; what is behind the last of them goes on in the next block."""
        ends = np.flatnonzero(outcome)
        starts = np.concatenate([np.zeros(1, np.int64), ends + 1])
        lengths = np.diff(np.append(starts, len(rewards)))
        returns = np.zeros(len(starts))
        filled = lengths > 0
        returns[filled] = np.add.reduceat(rewards, starts[filled], dtype=np.float64)
        lengths[0] += self._open[0]
        returns[0] += self._open[1]
        self._open = (int(lengths[-1]), float(returns[-1]))
        self._episodes.append((lengths[:-1], returns[:-1], outcome[ends]))

    def episodes(self) -> EpisodeTable:
        """The table of all episodes appended. Raises SchemaError where the last one has no end."""
        if self._open[0]:
            message = f"the last {self._open[0]} of {self._columns.rows} steps belong to an episode without an end"
            raise SchemaError(
                message, hint="the last step of an episode has an outcome: CUT where the data end inside it"
            )
        columns = list(zip(*self._episodes)) or [[], [], []]
        length = np.concatenate([np.zeros(0, np.int64), *columns[0]])
        returns = np.concatenate([np.zeros(0), *columns[1]])
        outcome = np.concatenate([np.zeros(0, np.uint8), *columns[2]]).astype(np.uint8)
        table = EpisodeTable(np.cumsum(length) - length, length, returns, outcome, np.zeros(len(length), bool))
        self.counts = count_outcomes(table.outcome)
        return table


def count_outcomes(outcome: np.ndarray) -> dict[str, int]:
    """How many episodes ended in which way, for the counts of the manifest; ``outcome`` is that of the episode table."""
    ends = {"terminated_episodes": TERMINATED, "time_limit_episodes": TRUNCATED, "cut_episodes": CUT}
    return {name: int((outcome == value).sum()) for name, value in ends.items()}


def outcome_of(terminated: bool, truncated: bool) -> int:
    """How an episode whose last step has these flags ended; with neither of them, the data were cut there."""
    return TERMINATED if terminated else TRUNCATED if truncated else CUT


def as_reward(values: Any, where: str, unit: str = "step", first: int = 0) -> np.ndarray:
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
