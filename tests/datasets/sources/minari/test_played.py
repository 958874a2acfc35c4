"""Minari datasets of environments that no fixture has, in every format, against Minari's own reader."""

from __future__ import annotations

import gymnasium
import gymnasium_envs
import numpy as np
import pytest
from minari_tools import compare, convert, play, save, truth, with_root
from minari_tools import minari as require_minari

minari = require_minari()

gymnasium_envs.register()
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

#: Environment and arguments: scalars, matrices, a Tuple, a time limit, frames, and every kind of space at once.
ENVS = {
    "Acrobot-v1": {"max_episode_steps": 40},
    "Pendulum-v1": {"max_episode_steps": 35},
    "Blackjack-v1": {},
    "FrozenLake-v1": {},
    "tests/Limited-v0": {},
    "tests/Frames-v0": {"lengths": (5, 9)},
    "tests/Everything-v0": {"lengths": (5, 9, 14)},
}


@pytest.fixture(autouse=True)
def minari_root(tmp_path, monkeypatch):
    return with_root(monkeypatch, tmp_path / "minari")


def by_minari(name: str) -> list:
    """What its reader gives; `Everything` has a name with a dot, which keys cannot have."""
    episodes = truth(name)
    for episode in episodes:
        inner = episode.observations.get("inner") if isinstance(episode.observations, dict) else None
        if inner is not None:
            inner["a_b"] = inner.pop("a.b")
    return episodes


@pytest.mark.parametrize("data_format", ["hdf5", "arrow", "parquet"])
@pytest.mark.parametrize("env_id", ENVS)
def test_every_value_as_minari_reads_it(tmp_path, env_id, data_format):
    env = gymnasium.make(env_id, **ENVS[env_id])
    made = play(env, 4, seed=3)
    save("tests/played-v0", made, env, data_format)
    dataset = convert(tmp_path / "root", "tests/played-v0")
    compare(dataset, by_minari("tests/played-v0"))
    assert dataset.episodes.lengths.tolist() == [len(buffer.rewards) for buffer in made]


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_recorded_by_its_collector(tmp_path, data_format):
    """The collector itself, where what it needs (jax) is installed: `pip install "minari[create]"`."""
    pytest.importorskip("jax")
    env = gymnasium.make("tests/Everything-v0", lengths=(6, 3, 17))
    collector = minari.DataCollector(env, record_infos=True, data_format=data_format)
    for episode in range(11):
        collector.reset(seed=episode)
        while not np.any(collector.step(collector.action_space.sample())[2:4]):
            pass
    collector.create_dataset("tests/collected-v0", author="a", author_email="a@b", code_permalink="https://x")
    collector.close()
    dataset = convert(tmp_path / "root", "tests/collected-v0")
    compare(dataset, by_minari("tests/collected-v0"))
