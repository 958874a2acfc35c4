"""The episode table: what it derives, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from rbdata.errors import SchemaError
from rbdata.storage.episodes import EpisodeTable
from storage_tools import make_episodes, table


def test_episode_table():
    episodes = table(make_episodes([5, 1, 9, 2, 12, 1]))
    assert episodes.starts.tolist() == [0, 5, 6, 15, 17, 29]
    assert episodes.state_starts.tolist() == [0, 6, 8, 18, 21, 34]
    assert episodes.steps == 30
    returns, lengths = episodes.summary()
    assert lengths == {"mean": 5.0, "std": pytest.approx(np.std([5, 1, 9, 2, 12, 1])), "min": 1.0, "max": 12.0}
    assert returns["max"] == episodes.returns.max()


def test_empty_episode_table(tmp_path):
    empty = table([])
    empty.check()
    assert empty.steps == 0 and empty.summary() == ({}, {})
    empty.write(tmp_path)


@pytest.mark.parametrize(
    ("start", "length"), [([1, 3], [2, 2]), ([0, 3], [2, 2]), ([0, 1], [2, 2]), ([0, 2], [2, 0]), ([2, 0], [2, 2])]
)
def test_bad_episode_tables(tmp_path, start, length):
    episodes = EpisodeTable(np.array(start), np.array(length), np.zeros(2), np.ones(2, "uint8"), np.zeros(2, bool))
    with pytest.raises(SchemaError):
        episodes.write(tmp_path)


def test_names_of_earlier_versions_are_read() -> None:
    """Programs in the field have ``episodes.length``."""
    episodes = EpisodeTable(
        np.array([0, 3]), np.array([3, 2]), np.zeros(2), np.array([1, 2], np.uint8), np.zeros(2, bool)
    )
    assert episodes.length is episodes.lengths and episodes.start is episodes.starts
    assert episodes.outcome is episodes.outcomes
