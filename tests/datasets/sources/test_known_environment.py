"""Environments made from what a dataset states: never from what it names, unless it is trusted."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import gymnasium
import gymnasium_envs
import pytest
import rbdata
from paths import DATA
from rbdata.datasets.sources.known_environment import stated_environment
from rbdata.errors import MissingExtraError, UsageError
from rbdata.storage.plugins import load

gymnasium_envs.register()


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("RBDATA_ROOT", str(tmp_path / "root"))


def test_a_recorded_environment():
    rbdata.record("FrozenLake-v1", steps=20, env_args={"is_slippery": False, "map_name": "8x8"})
    dataset = rbdata.open_dataset("FrozenLake-v1")
    env = dataset.make_env(render_mode="rgb_array")
    assert env.observation_space == gymnasium.spaces.Discrete(64) and env.action_space == dataset.action_space
    assert env.spec.kwargs["is_slippery"] is False and env.render_mode == "rgb_array"
    assert env.spec.max_episode_steps == dataset.manifest.source["environment"]["max_episode_steps"]
    made = rbdata.preprocess(dataset.path, "rbdata:clip_rewards", dest="my/clipped", procs=1)
    assert rbdata.open_dataset(made).make_env().spec.id == "FrozenLake-v1"


def test_nothing_that_a_file_names_is_imported(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for stated in (
        {"id": "evil:Thing-v0"},
        {"id": "CartPole-v1", "additional_wrappers": [{"name": "W", "entry_point": "evil:W", "kwargs": {}}]},
        {"id": "CartPole-v1", "kwargs": {"env_id": "evil:Thing-v0"}},
        {"id": "CartPole-v1", "kwargs": {"xml_file": ["/etc/passwd"]}},
    ):
        with pytest.raises(UsageError, match="needs") as caught:
            stated_environment({"environment": stated}).make()
        assert "trust=True" in caught.value.hint
    # An entry point that the file states is not that of the registry, which is the one used.
    stated = {"id": "CartPole-v1", "entry_point": "evil:Thing", "kwargs": {}, "max_episode_steps": 7}
    assert stated_environment({"environment": stated}).make().spec.max_episode_steps == 7
    assert "evil" not in sys.modules
    for odd in (None, 3, {"id": 7}, {"kwargs": {}}):
        assert stated_environment({"environment": odd}) is None


def test_a_trusted_file(tmp_path):
    wrapped = gymnasium.wrappers.TimeLimit(gymnasium.make("tests/Counter-v0"), 4)
    rbdata.record(wrapped, steps=9, name="wrapped")
    dataset = rbdata.open_dataset("gymnasium/tests/Counter-v0@wrapped")
    env = dataset.make_env(trust=True)
    env.reset()
    assert isinstance(env.unwrapped, gymnasium_envs.Counter)


def test_packages_that_are_missing():
    with pytest.raises(MissingExtraError) as caught:
        stated_environment({"environment": "MiniGrid-Nowhere-v0"}).make()
    assert "minigrid" in caught.value.hint
    record = {"environment": {"id": "Own/Thing-v3"}, "metadata": {"requirements": ["own-things>=2"]}}
    with pytest.raises(MissingExtraError, match="Own/Thing-v3") as caught:
        stated_environment(record).make()
    assert "own-things>=2" in caught.value.hint
    hopper = load("d4rl").environment({"dataset": "hopper-medium-v2"})
    assert hopper.id == "Hopper-v4" and "mujoco" in hopper.requirements
    assert load("d4rl").environment({"dataset": "kitchen-mixed-v0"}) is None


def test_a_game():
    known = load("atari").environment({"dataset": "Pong/5"})
    assert known.id == "ALE/Pong-v5" and known.arguments["repeat_action_probability"] == 0.25
    if find_spec("cv2") is None:
        with pytest.raises(MissingExtraError) as caught:
            known.make()
        assert "opencv" in caught.value.hint
    else:
        assert known.make().observation_space.shape == (84, 84)


def test_no_environment(tmp_path):
    rbdata.record(gymnasium_envs.Counter, steps=5, name="own")
    with pytest.raises(UsageError, match="my/own does not state an environment"):
        rbdata.open_dataset("my/own").make_env()
    rbdata.download("minari/cartpole/random-v0", mirror=str(DATA / "minari"), procs=1)
    dataset = rbdata.open_dataset("minari/cartpole/random-v0")
    assert dataset.make_env().observation_space.shape == dataset.observation_space.shape
