"""The planner on rings of nine rows, written by hand. Actions count the steps of the run: episode a, then b.

file 0    row   0    1    2    3    4    5    6    7  |  8        lap 0: the last slot is junk
               pad  pad  pad  a0   a1   a2   a3   a4  |  ?
file 1    row   8 |  0    1    2    3    4    5    6    7         lap 1: the last slot comes first
               a5 | a6   a7=T pad  pad  pad  b0   b1   b2
"""

from __future__ import annotations

import numpy as np
import pytest
from rbdata.datasets.ingest.block import END_CUT, END_TERMINATED, END_TRUNCATED
from rbdata.datasets.sources.atari.ring import RingArrays, RingPlanner, find_lap
from rbdata.errors import CorruptSourceError

CAPACITY = 9


def ring(number, action, *, terminal=(), add_count=None):
    """A file whose reward is a tenth of the action; ``terminal`` are its terminal rows."""
    flags = np.zeros(CAPACITY, np.uint8)
    flags[list(terminal)] = 1
    actions = np.array(action, np.int32)
    count = (number + 1) * CAPACITY - 1 if add_count is None else add_count
    return RingArrays(number, f"file {number}", actions, (actions / 10).astype(np.float32), flags, count)


FIRST = ring(0, [0, 0, 0, 1, 2, 3, 4, 5, 17])


def planned(rings):
    planner = RingPlanner(lambda number, rows: [False for _ in rows])
    for one in rings:
        planner.add(one)
    planner.finish()


def test_the_time_limit_of_the_data():
    """27 000 rows are truncated, 26 999 and 27 001 are terminated."""
    terminal = np.zeros(90_000, np.uint8)
    terminal[np.cumsum([3 + 27_000, 3 + 26_999, 3 + 27_001]) - 1] = 1
    zeros = np.zeros(90_000, np.float32)
    planner = RingPlanner(lambda number, rows: [False for _ in rows])
    steps = planner.add(RingArrays(0, "file 0", zeros.astype(np.int32), zeros, terminal, 89_999)) + planner.finish()
    bits = np.concatenate([bits for *_, bits in steps])
    ends = np.flatnonzero(bits)
    assert np.diff(ends, prepend=-1).tolist()[:3] == [26_999, 26_999, 27_001]
    assert bits[ends].tolist() == [END_TRUNCATED, END_TERMINATED, END_TERMINATED, END_CUT]


def test_damaged_rings_are_refused():
    with pytest.raises(CorruptSourceError, match="fits no lap"):
        find_lap(ring(1, [0] * CAPACITY, add_count=30), None)
    with pytest.raises(CorruptSourceError, match="should be padding"):
        planned([FIRST, ring(1, [7, 8, 5, 0, 0, 9, 10, 11, 6], terminal=[1])])
    with pytest.raises(CorruptSourceError, match="no complete step"):
        planned([ring(0, [0] * CAPACITY, add_count=3)])
