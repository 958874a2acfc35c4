import numpy as np
from rbdata.datasets.card.overview import MAX_CUTS, MAX_DOTS, return_series
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
    steps, returns, cuts = return_series(table(30))
    assert steps.tolist() == [2 * number + 2 for number in range(30) if number % 7]
    assert returns.tolist() == [number for number in range(30) if number % 7]
    assert cuts.tolist() == list(range(2, 30, 3))


def test_some_of_many():
    steps, returns, cuts = return_series(table(20_000))
    assert len(steps) == len(returns) == MAX_DOTS and len(cuts) == MAX_CUTS
    assert np.isfinite(returns).all() and (returns * 2 + 2 == steps).all() and steps[-1] == 39_998
