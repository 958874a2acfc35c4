"""The planner on rings of nine rows, written by hand. Actions count the steps of the run: episode a, then b.

file 0    row   0    1    2    3    4    5    6    7  |  8        lap 0: the last slot is junk
               pad  pad  pad  a0   a1   a2   a3   a4  |  ?
file 1    row   8 |  0    1    2    3    4    5    6    7         lap 1: the last slot comes first
               a5 | a6   a7=T pad  pad  pad  b0   b1   b2
"""

from __future__ import annotations

import numpy as np
import pytest
from rbdata.datasets.sources.atari.ring import Lap, RingArrays, RingPlanner, find_lap
from rbdata.errors import CorruptSourceError
from rbdata.storage.episodes import CUT, TERMINATED, TRUNCATED

CAPACITY = 9


def ring(number, action, *, terminal=(), add_count=None):
    """A file whose reward is a tenth of the action; ``terminal`` are its terminal rows."""
    flags = np.zeros(CAPACITY, np.uint8)
    flags[list(terminal)] = 1
    actions = np.array(action, np.int32)
    count = (number + 1) * CAPACITY - 1 if add_count is None else add_count
    return RingArrays(number, f"file {number}", actions, (actions / 10).astype(np.float32), flags, count)


FIRST = ring(0, [0, 0, 0, 1, 2, 3, 4, 5, 17])
SECOND = ring(1, [7, 8, 0, 0, 0, 9, 10, 11, 6], terminal=[1])


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


def test_the_drawing():
    found = Planned([FIRST, SECOND])
    assert found.actions == [*range(1, 9), 9, 10]  # b2 is given up: its successor is not in the data
    assert found.flagged() == ([8], [10])
    assert found.episodes.length.tolist() == [8, 2]
    assert found.episodes.outcome.tolist() == [TERMINATED, CUT]
    assert found.episodes.returns == pytest.approx([3.6, 1.9])
    assert found.placed() == [
        (0, 5, [[3, 5, 0, 0]]),
        (5, 7, [[8, 1, 0, 0], [0, 2, 1, 1], [5, 3, 4, 0]]),  # a5, then a6 a7 and zeros, then b0 b1 b2
    ]
    assert (found.counts["rows_read"], found.counts["pad_rows"], found.counts["given_up_steps"]) == (17, 6, 1)


def test_unknown_successors_as_zeros():
    found = Planned([FIRST, SECOND], unknown_next="zero")
    assert found.actions == list(range(1, 12))
    assert found.flagged() == ([8], [11])
    assert found.placed()[1] == (5, 8, [[8, 1, 0, 0], [0, 2, 1, 1], [5, 3, 4, 1]])
    assert found.counts["given_up_steps"] == 0


def test_time_limit():
    """Eight rows are the limit here: a7 is flagged terminal by the clock, and its successor is not in the data."""
    found = Planned([FIRST, SECOND], time_limit=8)
    assert found.actions == [*range(1, 8), 9, 10]
    assert found.flagged() == ([], [7, 10])
    assert found.episodes.outcome.tolist() == [TRUNCATED, CUT]
    assert found.placed()[1] == (5, 6, [[8, 1, 0, 0], [0, 2, 1, 0], [5, 3, 3, 0]])  # no zeros after a7
    assert found.counts["time_limit_episodes"] == 1


def test_the_second_file_alone_begins_midway():
    found = Planned([SECOND])
    assert found.actions == [6, 7, 8, 9, 10]
    assert found.episodes.midway.tolist() == [True, False]
    assert found.placed() == [(0, 7, [[8, 1, 0, 0], [0, 2, 1, 1], [5, 3, 4, 0]])]


def test_a_missing_file_is_a_gap():
    third = ring(2, [1, 2, 3, 4, 5, 6, 7, 8, 0], terminal=[7])
    found = Planned([FIRST, third], blank=[8])
    assert found.counts["gaps"] == [{"before_shard": 2, "laps_missing": 1}]
    assert found.actions == [1, 2, 3, 4, *range(1, 9)]  # a4 is given up; row 8 is blank, thus padding
    assert found.placed()[1] == (5, 9, [[0, 8, 0, 1]])


def test_a_final_dump_has_new_rows_up_to_its_cursor():
    final = ring(2, [12, 13, 0, 0, 0, 9, 10, 11, 0], add_count=2)
    assert find_lap(final, (ring(1, [7, 8, 0, 0, 0, 9, 10, 11, 6]), 1)) == Lap(2, 2, seam=True)
    # Rows from the cursor on that differ from the file before show that it does not continue that file.
    assert find_lap(final, (ring(1, [7, 8, 0, 0, 0, 9, 10, 3, 6]), 1)) == Lap(None, 2, seam=True)


def test_damaged_rings_are_refused():
    with pytest.raises(CorruptSourceError, match="fits no lap"):
        find_lap(ring(1, [0] * CAPACITY, add_count=30), None)
    with pytest.raises(CorruptSourceError, match="should be padding"):
        Planned([FIRST, ring(1, [7, 8, 5, 0, 0, 9, 10, 11, 6], terminal=[1])])
    with pytest.raises(CorruptSourceError, match="no complete step"):
        Planned([ring(0, [0] * CAPACITY, add_count=3)])
