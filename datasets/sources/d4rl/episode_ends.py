"""Which rows of a file end a trajectory, and what becomes of every row. Pure functions on flags.

A row of D4RL is (observation, action, reward, terminal, timeout); without ``next_observations`` its successor is the
observation of the next row, as long as that belongs to the same trajectory:

    row          0    1    2    3  |  4    5    6  |  7    8
    ends with                   T                C              the file
    observation  s0   s1   s2   s3    t0   t1   t2    u0   u1
    successor    s1   s2   s3   0     t1   t2   ?     u1   ?

T, a terminal: nothing follows, the successor is zeros. C, a time-out by the clock, and the last row of the file: something
follows, but the file does not say what. Such a row is given up: its observation is the final one of the row before, which
is truncated (or, asked for ``unknown_next`` zero, it is kept, truncated, with a successor of zeros).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ....errors import UsageError
from ....storage.episodes import CUT, TERMINATED, TRUNCATED, EpisodeTable

By = Literal["timeouts", "terminals", "both", "horizon"]


@dataclass(frozen=True)
class Flags:
    """The flags of a file's rows, bool ``[N]``: ``timeouts`` where it has them.

    ``terminals_end``: a terminal is the last row of its trajectory. ``horizon``: the time limit, where it is known.
    """

    terminals: np.ndarray
    timeouts: np.ndarray | None
    terminals_end: bool
    horizon: int | None


@dataclass
class Layout:
    """What becomes of every row; arrays ``[N]``.

    ``end``: the last row of its trajectory. ``by_clock``: it ends there by a time-out or the horizon. ``keep``: it becomes
    a step. ``last``: that step is the last of its episode, with the flags ``terminated`` and ``truncated`` (false on all
    others). ``blank``: its successor is zeros. ``inner``: flagged terminal inside a trajectory.
    """

    by: By
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

    def cut_after(self, rows: np.ndarray) -> None:
        """End episodes after these rows as well: what follows them in the file is not their successor."""
        self.last[rows] = self.truncated[rows] = True

    def episodes(self, rewards: np.ndarray) -> EpisodeTable:
        """The table of the episodes; ``rewards`` are those of the steps, float32 ``[steps]``."""
        kept = self.keep if not self.keep.all() else slice(None)
        ends = np.flatnonzero(self.last[kept])
        start = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
        outcome = np.where(self.by_clock[kept][ends], TRUNCATED, CUT)
        outcome[self.terminated[kept][ends]] = TERMINATED
        returns = np.add.reduceat(rewards, start, dtype=np.float64) if len(ends) else np.zeros(0)
        return EpisodeTable(start, ends + 1 - start, returns, outcome.astype(np.uint8), np.zeros(len(ends), bool))


def choose(asked: str, flags: Flags, name: str) -> By:
    """What ends trajectories in a file: as asked, or, asked ``auto``, what the file has.

    Time-outs where they are flagged, together with terminals where these end a trajectory; where time-outs are missing
    (or never flagged in a file with trajectories beyond the horizon), the horizon, counted from the last boundary.
    Raises UsageError when what is asked for is not there.
    """
    terminals, timeouts, horizon = flags.terminals, flags.timeouts, flags.horizon
    if asked in ("timeouts", "both") and timeouts is None:
        message = f"{name} flags no time-outs, so they cannot end its episodes"
        raise UsageError(message, hint="use --episodes-by terminals or horizon")
    if asked == "horizon" and horizon is None:
        raise UsageError(f"the horizon of {name} is not known", hint="give it: --horizon N")
    if asked != "auto":
        return asked  # type: ignore[return-value]
    flagged: By = "both" if flags.terminals_end else "timeouts"
    if timeouts is not None and timeouts.any():
        return flagged
    if timeouts is not None:
        ends = terminals.copy() if flags.terminals_end else np.zeros_like(terminals)
        ends[-1] = True
        if horizon is None or longest(ends) <= horizon + 1:
            return flagged
    if horizon is not None:
        return "horizon"
    if terminals.any() and flags.terminals_end:
        return "terminals"
    message = f"nothing in {name} says where its trajectories end: no time-outs, no terminals, no known horizon"
    raise UsageError(message, hint="give the horizon: --horizon N")


def lay_out(by: By, flags: Flags, *, has_next: bool, unknown_next: str) -> Layout:
    """What becomes of every row. ``has_next``: the file states the successor of every row."""
    terminals = flags.terminals
    clock = np.zeros_like(terminals)
    ends_here = np.zeros_like(terminals)
    if by in ("timeouts", "both"):
        assert flags.timeouts is not None
        clock = flags.timeouts.copy()
    if by in ("terminals", "both") or (by == "horizon" and flags.terminals_end):
        ends_here = terminals.copy()
    if by == "horizon":
        assert flags.horizon is not None
        clock = _every(flags.horizon, ends_here)
    end = ends_here | clock
    end[-1] = True
    terminated = terminals & end
    truncated = end & (clock | ~terminated)
    unknown = np.zeros_like(end) if has_next else end & ~terminated
    layout = Layout(
        by, end, clock, np.ones_like(end), end.copy(), terminated, truncated, np.zeros_like(end), terminals & ~end
    )
    if not has_next:
        layout.blank = terminated | unknown
    if unknown_next == "truncate":
        _give_up(layout, unknown, terminals)
    layout.counts = {
        "rows": len(end),
        "given_up_steps": int(np.count_nonzero(~layout.keep)),
        "lost_trajectories": int(np.count_nonzero(unknown & ~layout.keep & _starts(end))),
        "unknown_next_steps": int(np.count_nonzero(unknown & layout.keep)),
        "inner_terminals": int(np.count_nonzero(layout.inner & layout.keep)),
    }
    return layout


def longest(end: np.ndarray) -> int:
    """Rows of the longest trajectory."""
    return int(np.diff(np.flatnonzero(end), prepend=-1).max(initial=0))


def _give_up(layout: Layout, unknown: np.ndarray, terminals: np.ndarray) -> None:
    rows = np.flatnonzero(unknown)
    layout.keep[rows] = False
    before = rows - 1
    has_before = before >= 0
    has_before[has_before] = ~layout.end[before[has_before]]
    rows, before = rows[has_before], before[has_before]
    layout.last[before] = layout.truncated[before] = True
    layout.by_clock[before] = layout.by_clock[rows]
    # Where terminals do not end trajectories, the row before may carry one: now it is the last, and has no more to come.
    layout.terminated[before] = terminals[before]
    layout.inner[before] = False


def _every(horizon: int, resets: np.ndarray) -> np.ndarray:
    """Every horizon-th row, counted from 0 after each row that resets the count."""
    rows = np.arange(len(resets))
    begins = np.zeros(len(resets), np.int64)
    begins[1:] = np.where(resets[:-1], rows[1:], 0)
    position = rows - np.maximum.accumulate(begins)
    return position % horizon == horizon - 1


def _starts(end: np.ndarray) -> np.ndarray:
    """The first rows of trajectories."""
    starts = np.ones_like(end)
    starts[1:] = end[:-1]
    return starts
