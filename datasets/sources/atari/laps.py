"""Which rows of a ring buffer file are new, and in which order.

The writer (google-research/batch_rl on Dopamine's circular buffer) logs the whole ring from inside ``add``, when the
cursor is at the last slot. For capacity C, file of lap L:

    row        0    1    2   ...   C-2  |  C-1
    lap        L    L    L   ...    L   |  L-1      the last slot still holds what came right before row 0

so in time order a file reads C-1, 0, 1, ..., C-2, and C-1 is left out in lap 0, where it is uninitialised memory. What
follows row C-2 is row C-1 of the next file, if that one is of lap L+1. ``add_count`` states which lap it is: (L + 1) C - 1.
Laps can be missing: at an episode start four rows are added at once, and when they jump over the last slot nothing is
logged. At the end of training the ring is dumped once more, with the cursor c in place of add_count: rows 0..c-1 are new,
c..C-2 are left over from the lap before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....errors import CorruptSourceError

#: Rows of zeros before the first step of a run and after every terminal row.
PADS = 3
MIXED = "files of different shards or runs are mixed; check the mirror"


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
            raise CorruptSourceError(message, hint=MIXED)

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
        raise CorruptSourceError(message, hint=MIXED)
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


def pads_after(ring: RingArrays) -> tuple[int, bool]:
    """Padding rows still to come after a file's newest row, and whether what follows them continues an episode."""
    tail = ring.terminal[ring.capacity - 1 - (PADS + 1) : ring.capacity - 1][::-1]
    ends = np.flatnonzero(tail == 1)
    return (PADS - int(ends[0]), False) if len(ends) else (0, True)
