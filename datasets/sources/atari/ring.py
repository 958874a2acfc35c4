"""From the rows of ring buffer files to transitions in time order: `find_lap` for one file, `RingPlanner` for a run.

The writer (google-research/batch_rl on Dopamine's circular buffer) logs the whole ring from inside ``add``, when the
cursor is at the last slot. For capacity C, file of lap L:

    row        0    1    2   ...   C-2  |  C-1
    lap        L    L    L   ...    L   |  L-1      the last slot still holds what came right before row 0

so in time order a file reads C-1, 0, 1, ..., C-2, and C-1 is left out in lap 0, where it is uninitialised memory. What
follows row C-2 is row C-1 of the next file, if that one is of lap L+1. ``add_count`` states which lap it is: (L + 1) C - 1.
Laps can be missing: at an episode start four rows are added at once, and when they jump over the last slot nothing is
logged. At the end of training the ring is dumped once more, with the cursor c in place of add_count: rows 0..c-1 are new,
c..C-2 are left over from the lap before.

Before the first step of a run and after every terminal row are three rows of zeros (padding for the frame stack). They are
found by position: by content they cannot be distinguished from a black frame.

    file row    8 |  0    1    2    3    4    5    6    7       lap 1 of capacity 9: row 8 is the seam to lap 0
    row        a5 | a6   a7=T pad  pad  pad  b0   b1   b2       T: terminal
    step        5 |  6    7                   0   held back
    state      s5 | s6   s7    0             s0   s1   s2       after T comes a state of zeros

The planner reads the small arrays only (9 bytes a row), is pure, and works shard by shard: the newest two rows of the open
episode are held back until the rows after them are read, so that a run of 50 M steps needs the memory of one shard.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from ....errors import CorruptSourceError
from ....storage.amounts import listed
from ...ingest.block import END_CUT, END_MIDWAY, END_TERMINATED, END_TRUNCATED

#: Rows of zeros before the first step of a run and after every terminal row.
_PADS = 3
_MIXED = "files of different shards or runs are mixed; check the mirror"


@dataclass(frozen=True)
class RingArrays:
    """The small arrays of one file, in file order, each ``[capacity]``."""

    number: int
    name: str
    action: np.ndarray
    reward: np.ndarray
    terminal: np.ndarray
    add_count: int

    def __post_init__(self) -> None:
        sizes = {len(self.action), len(self.reward), len(self.terminal)}
        if len(sizes) > 1:
            message = f"{self.name}: {len(self.action)} actions, {len(self.reward)} rewards and {len(self.terminal)} terminals"
            raise CorruptSourceError(message, hint=_MIXED)

    @property
    def capacity(self) -> int:
        return len(self.action)


@dataclass(frozen=True)
class Lap:
    """Which rows of a file are to be read: rows ``0..valid-1``, and before them the last slot if ``seam``.

    ``lap`` is None for a final dump that does not continue the file before it.
    """

    lap: int | None
    valid: int
    seam: bool

    def order(self, capacity: int) -> np.ndarray:
        """File rows in time order, int64."""
        rows = np.arange(self.valid, dtype=np.int64)
        return np.concatenate([[capacity - 1], rows]) if self.seam else rows


def find_lap(ring: RingArrays, previous: tuple[RingArrays, int | None] | None) -> Lap:
    """Which lap a file holds, and which of its rows are new.

    ``previous`` is the file before it with its lap, where there is one. Raises CorruptSourceError when ``add_count`` fits
    no lap.
    """
    capacity, count = ring.capacity, ring.add_count
    logged = count % capacity == capacity - 1
    if logged and (count >= capacity or ring.number == 0 or previous is None):
        lap = count // capacity
        return Lap(lap, capacity - 1, seam=lap > 0)
    if not 0 <= count < capacity:
        message = f"{ring.name}: add_count {count} fits no lap of a ring of {capacity} rows"
        raise CorruptSourceError(message, hint=_MIXED)
    if ring.number == 0:
        return Lap(0, count, seam=False)  # training ended before the first lap did
    if previous is None:
        return Lap(None, count, seam=True)
    before, last = previous
    if before.capacity == capacity and logged:
        # Dumped at the very step that logged a lap: of that lap's file it is a copy, and nothing in it is new. (The last
        # slot is not compared: after the first lap it is junk, perhaps NaN.)
        if _same_rows(before, ring, slice(0, capacity - 1)):
            return Lap(last, 0, seam=False)
    elif before.capacity == capacity and _same_rows(before, ring, slice(count, capacity - 1)):
        return Lap(None if last is None else last + 1, count, seam=True)
    return Lap(None, count, seam=True)


def _same_rows(one: RingArrays, other: RingArrays, rows: slice) -> bool:
    return all(
        np.array_equal(getattr(one, name)[rows], getattr(other, name)[rows])
        for name in ("action", "reward", "terminal")
    )


def _pads_after(ring: RingArrays) -> tuple[int, bool]:
    """Padding rows still to come after a file's newest row, and whether what follows them continues an episode."""
    tail = ring.terminal[ring.capacity - 1 - (_PADS + 1) : ring.capacity - 1][::-1]
    ends = np.flatnonzero(tail == 1)
    return (_PADS - int(ends[0]), False) if len(ends) else (0, True)


TIME_LIMIT = 27_000
MAX_ACTION = 17

UnknownNext = Literal["truncate", "zero"]

_DAMAGED = "the file was not written by the DQN Replay logger, or is damaged; try another mirror"


@dataclass
class PartPlan:
    """Where the frames of one file go.

    ``segments`` is int64 ``[n, 4]``: (file row, rows, position, zero). ``rows`` frames from ``file row`` on are state
    rows from ``position`` on (relative to the part); ``zero`` is 1 where a row of zeros follows, the unknown frame
    after a terminal one. ``first``, known when the plan is finished, and ``states`` are the part's state rows in the
    dataset. Rows of the file that are in no segment but below ``valid`` (or the last, if ``seam``) are padding, except
    ``dropped``: the only row of an episode whose continuation is not in the data.
    """

    number: int
    name: str
    capacity: int
    valid: int
    seam: bool
    states: int
    segments: np.ndarray
    dropped: int = -1
    first: int = 0

    def sources(self) -> tuple[np.ndarray, np.ndarray]:
        """Of each state of the part: its file row, int64, and whether it is the row of zeros after that, bool."""
        row, rows, _, zero = self.segments.T
        last = np.cumsum(rows + zero) - 1
        blank = np.zeros(self.states, bool)
        blank[last[zero == 1]] = True
        within = np.arange(self.states) - np.repeat(last - rows - zero + 1, rows + zero)
        return np.repeat(row, rows + zero) + within - blank, blank

    def padding(self, rows: np.ndarray) -> np.ndarray:
        """Which rows of the file are padding, bool ``[capacity]``; ``rows`` are those of the states."""
        padding = np.arange(self.capacity) < self.valid
        padding[-1] = self.seam
        padding[rows] = False
        if self.dropped >= 0:
            padding[self.dropped] = False
        return padding

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "segments": self.segments.tolist()}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> PartPlan:
        return cls(**{**record, "segments": np.array(record["segments"], np.int64).reshape(-1, 4)})


#: What is counted for the manifest: what the files hold, what the plan does with it, and how episodes end.
_COUNTED = ("rows_read", "pad_rows", "stale_rows", "given_up_steps", "given_up_episodes")
_ENDS = {
    "terminated_episodes": END_TERMINATED,
    "time_limit_episodes": END_TRUNCATED,
    "cut_episodes": END_CUT,
    "midway_episodes": END_MIDWAY,
}

#: Given a file's number and file rows, says which of those frames are all zero.
Peek = Callable[[int, list[int]], list[bool]]

#: Consecutive steps: action, reward, and how each ends (`ingest.block`), ``[n]`` each.
Steps = tuple[np.ndarray, np.ndarray, np.ndarray]


class RingPlanner:
    """Takes the files of a run in order, and gives every step once it is known how it ends.

    ``unknown_next`` says what becomes of a row whose successor is not in the data: ``truncate`` gives it up and makes
    its frame the final observation of the step before it, which is truncated; ``zero`` keeps it, truncated, with a
    successor of zeros. ``time_limit`` is the number of rows of an episode that ended by the clock (0: none did).
    """

    def __init__(self, peek: Peek, *, unknown_next: UnknownNext = "truncate", time_limit: int = TIME_LIMIT) -> None:
        self.parts: list[PartPlan] = []
        self.counts: dict[str, Any] = {**dict.fromkeys((*_COUNTED, *_ENDS, "unclipped_rewards"), 0), "gaps": []}
        self._peek, self._zero, self._limit = peek, unknown_next == "zero", time_limit
        self._previous: tuple[RingArrays, int | None] | None = None
        self._pads_left = 0
        self._open = _OpenEpisode()
        self._known: list[Steps] = []

    def add(self, ring: RingArrays, before: RingArrays | None = None) -> list[Steps]:
        """Take the next file. ``before`` is the file right before it, if the source has that but it is not selected."""
        previous = self._previous
        if previous is None and before is not None:
            previous = (before, find_lap(before, None).lap)
        if self._previous is not None and self._previous[0].capacity != ring.capacity:
            message = f"{ring.name} has {ring.capacity} rows, {self._previous[0].name} has {self._previous[0].capacity}"
            raise CorruptSourceError(message, hint=_MIXED)
        lap = find_lap(ring, previous)
        last = previous[1] if previous is not None else None
        if lap.lap is not None and last is not None and lap.valid and lap.lap <= last:
            message = f"{ring.name} is of lap {lap.lap}, the file before it of lap {last}"
            raise CorruptSourceError(message, hint=_MIXED)
        continues = last is not None and lap.lap == last + 1
        if not lap.valid and not lap.seam:
            continues = True  # no new rows: an open episode stays open
        elif self._previous is None or not continues:
            self._begin_stretch(ring, lap, previous if continues else None)
        self._take(ring, lap)
        self._previous = (ring, lap.lap)
        return self._given()

    def finish(self) -> list[Steps]:
        """End of the data: the open episode, if any, is cut here."""
        self._cut()
        if not any(self.counts[name] for name in _ENDS):
            message = f"no complete step in {listed([part.name for part in self.parts], 1)}"
            raise CorruptSourceError(message, hint="choose more shards, or another mirror")
        for before, part in pairwise(self.parts):
            part.first = before.first + before.states
        return self._given()

    def _emit(self, action: np.ndarray, reward: np.ndarray, bits: np.ndarray) -> None:
        self._known.append((action, reward, bits))
        for name, bit in _ENDS.items():
            self.counts[name] += int(np.count_nonzero(bits & bit))

    def _given(self) -> list[Steps]:
        given, self._known = self._known, []
        return given

    # -- beginnings ------------------------------------------------------------------------------------------------

    def _begin_stretch(self, ring: RingArrays, lap: Lap, neighbour: tuple[RingArrays, int | None] | None) -> None:
        """Start reading where nothing before it was read: at the run's start, at a gap, or in the middle by choice."""
        if self._previous is not None:
            self._cut()
            lost = None if lap.lap is None or self._previous[1] is None else lap.lap - self._previous[1] - 1
            self.counts["gaps"].append({"before_shard": ring.number, "laps_missing": lost})
        if lap.lap == 0:
            self._pads_left, midway = _PADS, False
        elif neighbour is not None:
            self._pads_left, midway = _pads_after(neighbour[0])
        else:
            self._pads_left = self._blank_rows(ring, lap)
            # The writer loses a lap only when an episode's first rows jump over the last slot: what follows a lap
            # lost by the writer begins an episode.
            follows = self._previous is not None and ring.number == self._previous[0].number + 1
            midway = not (follows and lap.lap is not None) and not self._pads_left
        self._open = _OpenEpisode(midway=midway)

    def _blank_rows(self, ring: RingArrays, lap: Lap) -> int:
        """How many of the first rows are padding, by their content because what came before is not known."""
        first = lap.order(ring.capacity)[:_PADS]
        quiet = (ring.action[first] == 0) & (ring.reward[first] == 0) & (ring.terminal[first] == 0)
        candidates = first[np.logical_and.accumulate(quiet)].tolist()
        blank = self._peek(ring.number, candidates) if candidates else []
        return int(np.logical_and.accumulate(np.array(blank, bool)).sum())

    # -- rows ------------------------------------------------------------------------------------------------------

    def _take(self, ring: RingArrays, lap: Lap) -> None:
        order = lap.order(ring.capacity)
        action, reward, terminal = ring.action[order], ring.reward[order], ring.terminal[order]
        if (terminal > 1).any():
            message = f"{ring.name}: terminal is {int(terminal.max())} in row {_where(order, terminal > 1)}"
            raise CorruptSourceError(message, hint=_DAMAGED)
        pad = self._mark_pads(ring, order, terminal.astype(bool))
        loud = pad & ((action != 0) | (reward != 0))
        if loud.any():
            row = _where(order, loud)
            message = f"{ring.name}: row {row} should be padding (it follows a terminal row) but is not zero"
            raise CorruptSourceError(message, hint=_DAMAGED)
        real = np.flatnonzero(~pad)
        action, reward, terminal = action[real], reward[real], terminal[real].astype(bool)
        wild = (action < 0) | (action > MAX_ACTION) | ~np.isfinite(reward)
        if wild.any():
            index = int(np.argmax(wild))
            message = f"{ring.name}: row {order[real][index]} has action {action[index]} and reward {reward[index]}"
            raise CorruptSourceError(message, hint=_DAMAGED)
        self.counts["rows_read"] += len(order)
        self.counts["pad_rows"] += int(pad.sum())
        self.counts["stale_rows"] += ring.capacity - 1 - lap.valid
        self.counts["unclipped_rewards"] += int((np.abs(reward) > 1).sum())
        blank_after = self._steps(action, reward, terminal)
        self._place_states(ring, lap, order[real], blank_after)

    def _mark_pads(self, ring: RingArrays, order: np.ndarray, terminal: np.ndarray) -> np.ndarray:
        pad = np.zeros(len(terminal), bool)
        pad[: self._pads_left] = True
        ends = np.flatnonzero(terminal & ~pad)
        for distance in range(1, _PADS + 1):
            at = ends + distance
            pad[at[at < len(pad)]] = True
        # A terminal flag inside padding is impossible: it would itself be followed by padding.
        if (terminal & pad).any():
            message = f"{ring.name}: row {_where(order, terminal & pad)} should be padding, but is terminal"
            raise CorruptSourceError(message, hint=_DAMAGED)
        left = _PADS + 1 + int(ends[-1]) if len(ends) else self._pads_left
        self._pads_left = max(0, left - len(terminal))
        return pad

    def _steps(self, action: np.ndarray, reward: np.ndarray, terminal: np.ndarray) -> np.ndarray:
        """Give the steps of these rows, after those held back, and hold back the newest two of the open episode.

        Returns for each new row whether a state of zeros follows it.
        """
        held, old = self._open, len(self._open.action)
        action, reward = np.concatenate([held.action, action]), np.concatenate([held.reward, reward])
        blank = np.concatenate([np.zeros(old, bool), terminal])
        ends, keep = np.flatnonzero(blank), np.ones(len(blank), bool)
        bits = (blank * END_TERMINATED).astype(np.uint8)
        if len(ends):
            rows = np.diff(ends, prepend=-1)
            rows[0] += held.emitted
            clocked = rows == self._limit
            clocked[0] &= not held.midway
            late = ends[clocked]
            bits[late] = END_TRUNCATED if self._zero else 0
            if not self._zero:
                keep[late] = blank[late] = False
                bits[late - 1] = END_TRUNCATED
                self.counts["given_up_steps"] += len(late)
            bits[ends[0]] |= END_MIDWAY * held.midway
            held = _OpenEpisode()
        begin = int(ends[-1]) + 1 if len(ends) else 0
        hold = max(begin, len(action) - 2)
        out = np.flatnonzero(keep[:hold])
        self._emit(action[out], reward[out], bits[out])
        self._open = _OpenEpisode(action[hold:], reward[hold:], held.emitted + hold - begin, held.midway)
        return blank[old:]

    def _cut(self) -> None:
        """Close the open episode where the data end."""
        held, self._open = self._open, _OpenEpisode()
        rows = held.emitted + len(held.action)
        if not rows:
            return
        # The part with the newest state row (later ones may be empty).
        part, count = next(part for part in reversed(self.parts) if part.states), len(held.action)
        if self._zero:
            part.segments[-1, 3] = 1
            part.states += 1
        else:
            count -= 1
            self.counts["given_up_steps"] += 1
            if rows == 1:
                self.counts["given_up_episodes"] += 1
                part.segments[-1, 1] -= 1
                part.dropped = int(part.segments[-1, 0] + part.segments[-1, 1])
                if not part.segments[-1, 1]:
                    part.segments = part.segments[:-1]
                part.states -= 1
                return
        bits = np.zeros(count, np.uint8)
        bits[-1] = END_CUT | END_MIDWAY * held.midway
        self._emit(held.action[:count], held.reward[:count], bits)

    # -- states ----------------------------------------------------------------------------------------------------

    def _place_states(self, ring: RingArrays, lap: Lap, file_rows: np.ndarray, blank_after: np.ndarray) -> None:
        position = np.arange(len(file_rows)) + np.cumsum(blank_after) - blank_after
        first = np.concatenate([[True], (np.diff(file_rows) != 1) | (np.diff(position) != 1)])[: len(file_rows)]
        begin = np.flatnonzero(first)
        rows = np.diff(np.append(begin, len(file_rows)))
        segments = np.stack([file_rows[begin], rows, position[begin], blank_after[begin + rows - 1]], 1)
        states = len(file_rows) + int(blank_after.sum())
        part = PartPlan(ring.number, ring.name, ring.capacity, lap.valid, lap.seam, states, segments.astype(np.int64))
        self.parts.append(part)


@dataclass(frozen=True)
class _OpenEpisode:
    """The episode whose end is not yet seen: its newest rows are held back, until what follows them is known.

    ``emitted`` rows have gone out already; ``midway`` says that its beginning is not in the data.
    """

    action: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    reward: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))
    emitted: int = 0
    midway: bool = False


def _where(order: np.ndarray, mask: np.ndarray) -> int:
    return int(order[np.argmax(mask)])
