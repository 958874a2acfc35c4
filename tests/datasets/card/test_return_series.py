import numpy as np
import pytest
from rbdata.datasets.card import overview
from rbdata.storage.episodes import EpisodeTable


def table(count: int) -> EpisodeTable:
    returns = np.arange(count, dtype="float64")
    returns[::7] = np.nan
    return EpisodeTable(
        np.arange(count) * 2,
        np.full(count, 2),
        returns,
        np.resize([1, 2, 3], count).astype("uint8"),
        np.zeros(count, bool),
    )


def test_each_episode_by_itself():
    found = overview.return_series(table(30), 100)
    assert found.single and found.steps.tolist() == list(range(2, 62, 2))
    assert np.isnan(found.mean[::7]).all() and np.nanmax(found.high) == 29
    assert found.cut_steps.tolist() == list(range(6, 62, 6))
    assert len(found.running_mean()[0]) == 0
    steps, mean = overview.return_series(table(100), 100).running_mean()
    assert len(steps) == len(mean) > 60 and np.isfinite(mean).all()


@pytest.mark.parametrize("most", [1 << 18, 512])
def test_pieces_of_many(most, monkeypatch):
    monkeypatch.setattr(overview, "MAX_EPISODES", most)
    found = overview.return_series(table(1000), 100)
    assert not found.single and len(found.steps) <= overview.SAMPLE_RANGES
    assert (found.low <= found.mean).all() and (found.mean <= found.high).all()
    assert len(found.cut_steps) == overview.MAX_CUTS
    assert found.steps[-1] == 2000
