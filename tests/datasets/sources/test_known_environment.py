"""Environments made from what a dataset states: never from what it names, unless it is trusted."""

from __future__ import annotations

import functools
import sys
from importlib.util import find_spec

import gymnasium
import gymnasium_envs
import numpy as np
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
    rbdata.record("FrozenLake-v1", steps=20, procs=0, env_args={"is_slippery": False, "map_name": "8x8"})
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


class Walk(gymnasium.Env):
    """Observes ``slope`` times the number of steps; ``shown`` makes the reward of it."""

    observation_space = gymnasium.spaces.Box(-1e6, 1e6, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, slope=1.0, shown=float):
        self.slope, self.shown = slope, shown

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        value = self.slope * self.time
        return np.full(1, value, np.float32), self.shown(value), self.time == 50, False, {}


@pytest.fixture(params=[Walk, lambda **arguments: Walk(**arguments), f"{__name__}:Walk"])
def walk(request):
    name = "tests/Walk-v0"
    gymnasium.register(name, request.param, max_episode_steps=20, disable_env_checker=True)
    yield functools.partial(gymnasium.make, name)
    gymnasium.registry.pop(name)


def recorded(env):
    vectors = hasattr(env, "single_action_space")
    with rbdata.Recorder(env, name="own") as recorder:
        recorder.reset(seed=0)
        for _ in range(60):
            *_, terminated, truncated, _ = recorder.step(recorder.action_space.sample())
            if not vectors and (terminated or truncated):
                recorder.reset()
    return rbdata.open_dataset(recorder.path)


def assert_same(dataset, env):
    """The first recorded episode is what the environment gives for its actions."""
    env.reset(seed=0)
    for row in dataset.episode(0):
        observation, reward, terminated, truncated, _ = env.step(int(row["action"]))
        assert np.array_equal(row["next", "observation"], observation) and float(row["next", "reward"]) == reward
        ends = bool(row["next", "terminated"]), bool(row["next", "truncated"])
        assert ends == (terminated, truncated)


@pytest.mark.parametrize(
    "make",
    [
        lambda make: make(slope=3.0),
        lambda make: make(slope=3.0, max_episode_steps=6),
        lambda make: make(max_episode_steps=-1),
        lambda make: gymnasium.wrappers.TimeLimit(make(slope=3.0), 6),
        lambda make: gymnasium.wrappers.TimeLimit(make(max_episode_steps=5), 10),
        lambda make: gymnasium.make_vec(make.args[0], 2, "sync", slope=3.0, max_episode_steps=6),
    ],
)
def test_an_environment_is_made_as_it_was_recorded(walk, make):
    dataset = recorded(make(walk))
    for trust in (False, True):
        assert_same(dataset, dataset.make_env(trust=trust))


def test_wrappers_of_an_environment_that_is_registered_by_an_object(walk):
    dataset = recorded(gymnasium.wrappers.FlattenObservation(walk(slope=3.0)))
    with pytest.raises(UsageError, match="needs wrappers: FlattenObservation"):
        dataset.make_env()
    env = dataset.make_env(trust=True)
    assert isinstance(env, gymnasium.wrappers.FlattenObservation)
    assert_same(dataset, env)


class Holder(gymnasium.Env):
    """Holds an environment, and passes for it."""

    def __init__(self, env):
        self.env, self.spec = env, env.spec
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.reset, self.step = env.reset, lambda action: env.step(1 - action)


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize(
    ("wrap", "names"),
    [
        (lambda: gymnasium.wrappers.TransformReward(gymnasium.make("CartPole-v1"), lambda _: 3), "TransformReward"),
        (
            lambda: gymnasium.wrappers.vector.ClipReward(gymnasium.make_vec("CartPole-v1", 2, "sync"), 0, 0.5),
            "ClipReward",
        ),
        (lambda: gymnasium.make_vec("CartPole-v1", 2, "sync", wrappers=[gymnasium.wrappers.NormalizeReward]), "Norm"),
        (lambda: Holder(gymnasium.make("CartPole-v1")), "Holder"),
    ],
)
def test_wrappers_that_a_manifest_cannot_hold(wrap, names, trust):
    with pytest.raises(UsageError, match=f"wrappers that the manifest cannot hold: {names}"):
        recorded(wrap()).make_env(trust=trust)


@pytest.mark.parametrize("trust", [False, True])
def test_arguments_that_a_manifest_cannot_hold(walk, trust):
    dataset = recorded(walk(slope=2.0, shown=abs))
    with pytest.raises(UsageError, match="arguments that the manifest cannot hold: shown"):
        dataset.make_env(trust=trust)
    assert_same(dataset, dataset.make_env(trust=trust, shown=abs))


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
