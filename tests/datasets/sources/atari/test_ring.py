"""The planner on rings of nine rows, written by hand. Actions count the steps of the run: episode a, then b.

file 0    row   0    1    2    3    4    5    6    7  |  8        lap 0: the last slot is junk
               pad  pad  pad  a0   a1   a2   a3   a4  |  ?
file 1    row   8 |  0    1    2    3    4    5    6    7         lap 1: the last slot comes first
               a5 | a6   a7=T pad  pad  pad  b0   b1   b2
"""

from __future__ import annotations

import numpy as np
import pytest
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


class Planned:
    """What a planner emits for some files."""

    def __init__(self, rings, *, blank=(), **options):
        self.steps = []
        self.planner = RingPlanner(self.emit, lambda number, rows: [row in blank for row in rows], **options)
        for one in rings:
            self.planner.add(one)
        self.planner.finish()
        self.parts, self.counts = self.planner.parts, self.planner.counts
        self.episodes = self.planner.episodes.table()

    def emit(self, action, reward, terminated, truncated):
        assert np.allclose(reward, action / 10)
        self.steps += zip(action.tolist(), terminated.tolist(), truncated.tolist())

    @property
    def actions(self):
        return [action for action, _, _ in self.steps]

    def flagged(self):
        """Actions of the steps that are terminated, and of those that are truncated."""
        return [action for action, end, _ in self.steps if end], [action for action, _, end in self.steps if end]

    def placed(self):
        return [(part.first, part.states, part.segments.tolist()) for part in self.parts]


def test_damaged_rings_are_refused():
    with pytest.raises(CorruptSourceError, match="fits no lap"):
        find_lap(ring(1, [0] * CAPACITY, add_count=30), None)
    with pytest.raises(CorruptSourceError, match="should be padding"):
        Planned([FIRST, ring(1, [7, 8, 5, 0, 0, 9, 10, 11, 6], terminal=[1])])
    with pytest.raises(CorruptSourceError, match="no complete step"):
        Planned([ring(0, [0] * CAPACITY, add_count=3)])
