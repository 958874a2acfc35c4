import numpy as np
from rbdata.datasets.card.figure import MAX_DOTS, drawn_episodes
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
    assert drawn_episodes(table(30)).tolist() == [number for number in range(30) if number % 7]
    assert not len(drawn_episodes(table(1)))


def test_some_of_many():
    drawn = drawn_episodes(table(20_000))
    assert len(drawn) == MAX_DOTS and (np.diff(drawn) > 0).all()
    assert (drawn % 7 > 0).all() and drawn[-1] == 19_998
