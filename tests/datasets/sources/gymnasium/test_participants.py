"""A recording is of its policy and its environment: another one is never taken for it."""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import gymnasium_envs
import numpy as np
import pytest
import rbdata
import torch
from gymnasium.wrappers import TimeLimit, TransformReward
from rbdata.datasets.sources.gymnasium.policy_recording import RecordingJob
from rbdata.errors import DatasetExistsError, FunctionError, UnfinishedDatasetError, UsageError

gymnasium_envs.register()


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("RBDATA_ROOT", str(tmp_path / "root"))
    monkeypatch.chdir(tmp_path)
    before = {*sys.modules}
    yield tmp_path
    for name in {*sys.modules} - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def record(env="CartPole-v1", policy="random", name="x", **options) -> np.ndarray:
    dataset = rbdata.open_dataset(rbdata.record(env, policy, name=name, steps=30, **options))
    return dataset["action"].numpy()


def refused(match: str, *given, **options) -> None:
    with pytest.raises(DatasetExistsError, match=match) as caught:
        record(*given, **options)
    assert "name=" in caught.value.hint and "force=True" in caught.value.hint


class Always:
    def __init__(self, action):
        self.action = action

    def __call__(self, observation):
        return self.action


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)

    def act(self, observation):
        with torch.no_grad():
            return int(self.linear(torch.as_tensor(observation)).argmax())


def always(action):
    return lambda observation: action


# -- policies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Always, always, lambda action: Always(np.int64(action)).__call__])
def test_another_policy_object(make):
    assert not record(policy=make(0)).any()
    assert not record(policy=make(0)).any()
    refused("with another policy .*there.*here", policy=make(1))
    assert record(policy=make(1), name="y").all()
    assert record(policy=make(1), force=True).all()


def test_a_value_that_the_program_set_in_the_module_of_a_policy(here, monkeypatch):
    """However the policy comes to it; the message names it."""
    monkeypatch.syspath_prepend(here)
    Path("settings.py").write_text("ACTION = int(0)\nFILLED = []\n")
    Path("pol.py").write_text(
        "import settings\ndef first(values):\n    return values[0]\n"
        "def act(observation):\n    from settings import ACTION\n    return ACTION + first(settings.FILLED)\n"
    )
    pol, settings = (importlib.import_module(name) for name in ("pol", "settings"))
    vars(settings)["FILLED"].append(0)
    assert not record(policy=pol.act).any()
    assert not record(policy=pol.act).any()
    vars(settings)["FILLED"][0] = 1
    refused(r"another policy .* here: settings\.FILLED\)", policy=pol.act)
    assert record(policy=pol.act, force=True).all()
    vars(settings).update(ACTION=1, FILLED=[0])
    refused(r"another policy .* here: settings\.ACTION, settings\.FILLED\)", policy=pol.act)
    assert record(policy=pol.act, name="y").all()


def test_a_policy_that_was_trained(here):
    net = Net()
    record(policy=net)
    record(policy=net)
    with torch.no_grad():
        net.linear.weight.add_(1)
    refused("with another policy", policy=net)
    again = Net()
    again.load_state_dict(net.state_dict())
    record(policy=net, force=True)
    record(policy=again)  # the same weights


def test_a_policy_with_state_is_itself_after_it_acted():
    class Counting:
        calls = 0

        def __call__(self, observation):
            self.calls += 1
            return self.calls % 2

    policy = Counting()
    record(policy=policy)
    record(policy=policy)
    record(policy=Counting())
    policy(None)
    refused("with another policy", policy=policy)


def test_a_policy_that_cannot_be_told_apart():
    policy = Always(0)
    vars(policy)["lock"] = threading.Lock()
    record(policy=policy)
    refused(r"policy, as far as can be told \(the policy.lock is a _thread.lock", policy=policy)


def test_a_policy_file_and_what_it_imports(here):
    Path("h2.py").write_text("ACTION = 0\n")
    Path("pol.py").write_text(
        "import h2\ncalls = []\ndef act(observation):\n    calls.append(1)\n    return h2.ACTION\n"
    )
    assert not record(policy="pol.py").any()
    assert not record(policy="pol.py").any()
    Path("h2.py").write_text("ACTION = 1\n")
    refused("another contents of h2.py", policy="pol.py")
    assert record(policy="pol.py", force=True).all()
    Path("pol.py").write_text("def act(observation):\n    return 0\n")
    refused("another contents of the policy's file", policy="pol.py")
    assert not record(policy="pol.py", force=True).any()


def test_a_file_is_run_again_for_every_recording(here):
    source = "calls = 0\ndef act(observation):\n    global calls\n    calls += 1\n    return int(calls > 15)\n"
    Path("pol.py").write_text(source)
    assert [*record(policy="pol.py", name="one")] == [*record(policy="pol.py", name="two")]


def test_a_policy_edited_during_the_recording(here, monkeypatch):
    """What was imported acts to the end; then it is another one."""
    monkeypatch.syspath_prepend(here)
    Path("pol.py").write_text(
        "from pathlib import Path\nclass Edits:\n    def act(self, observation):\n"
        "        Path(__file__).write_text('class Edits: pass')\n        return 1\n"
    )
    policy = importlib.import_module("pol").Edits()
    assert record(policy=policy).all()
    with pytest.raises(UsageError, match=r"pol\.py was edited after pol was imported"):
        record(policy=policy)


# -- files that they read ----------------------------------------------------------------------------------------------

READS = """
import functools
import numpy as np

@functools.cache
def cached():
    return int(np.load("action.npy"))

FIRST = [cached()]

class Made:
    def __init__(self):
        self.action = int(np.load("action.npy"))

    def act(self, observation):
        return self.action

def called(observation):
    return int(np.load("action.npy"))

def kept(observation):
    return cached()

def at_import(observation):
    return FIRST[0]
"""


@pytest.mark.parametrize("name", ["Made", "called", "kept", "at_import", "helped"])
def test_a_policy_that_reads_a_file(name):
    Path("reads.py").write_text(READS)
    Path("pol.py").write_text("import reads\n\ndef helped(observation):\n    return reads.cached()\n")
    policy = "pol.py:helped" if name == "helped" else f"reads.py:{name}"
    np.save("action.npy", 0)
    assert not record(policy=policy).any()
    assert not record(policy=policy).any()
    np.save("action.npy", 1)
    refused("another contents of action.npy", policy=policy)
    assert record(policy=policy, force=True).all()
    assert record(policy=policy, name="other").all()


def test_a_file_that_changes_while_it_is_recorded():
    calls = []

    def policy(observation):
        calls.append(1)
        if len(calls) == 20:
            import subprocess

            subprocess.run([sys.executable, "-c", "import numpy; numpy.save('action.npy', 1)"], check=True)
        return int(np.load("action.npy"))

    np.save("action.npy", 0)
    with pytest.raises(FunctionError, match=r"action.npy was changed while your code read it"):
        record(policy=policy)


def test_an_environment_that_reads_a_file():
    class Map(gymnasium_envs.Counter):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, float(np.load("reward.npy")), *rest

    np.save("reward.npy", 2.0)
    record(Map())
    record(Map())
    np.save("reward.npy", 3.0)
    refused("another contents of reward.npy", Map())


def test_a_recording_that_was_interrupted_before_it_became_a_dataset(monkeypatch):
    """It is not finished with a file that has changed."""

    def policy(observation):
        return int(np.load("action.npy"))

    def fails(*given):
        raise KeyboardInterrupt

    np.save("action.npy", 0)
    with monkeypatch.context() as patch:
        patch.setattr(RecordingJob, "describe", fails)
        with pytest.raises(KeyboardInterrupt):
            record(policy=policy)
    np.save("action.npy", 1)
    with pytest.raises(UnfinishedDatasetError, match=r"files that it read have changed since \(action.npy\)"):
        record(policy=policy)
    assert record(policy=policy, force=True).all()


# -- environments ------------------------------------------------------------------------------------------------------


class Gain(gymnasium.Wrapper):
    def __init__(self, env, gain):
        super().__init__(env)
        self.gain, self.steps = gain, 0

    def step(self, action):
        self.steps += 1
        observation, reward, *rest = self.env.step(action)
        return observation, reward * self.gain, *rest


def cart():
    return gymnasium.make("CartPole-v1")


def gained(gain):
    return Gain(cart(), gain)


ENVIRONMENTS = {
    "arguments": (lambda: gymnasium_envs.Counter((2,)), lambda: gymnasium_envs.Counter((3,)), "Counter.lengths"),
    "wrappers": (cart, lambda: Gain(cart(), 2.0), "CartPoleEnv there, .*Gain"),
    "settings": (lambda: Gain(cart(), 2.0), lambda: Gain(cart(), 3.0), "Gain.gain is 2.0 there, 3.0 here"),
    "limits": (lambda: TimeLimit(cart(), 5), lambda: TimeLimit(cart(), 6), "TimeLimit.max_episode_steps is 5 there"),
    "functions": (
        lambda: TransformReward(cart(), lambda r: r * 2),
        lambda: TransformReward(cart(), lambda r: r * 3),
        "TransformReward.func",
    ),
    "keyword arguments": (
        lambda: gymnasium.make("tests/Counter-v0", lengths=(2,)),
        lambda: gymnasium.make("tests/Counter-v0", lengths=(3,)),
        "Counter.lengths",
    ),
}


@pytest.mark.parametrize("kind", ENVIRONMENTS)
@pytest.mark.parametrize("form", ["factory", "object"])
def test_another_environment(kind, form):
    one, other, told = ENVIRONMENTS[kind]
    made = one if form == "factory" else one()
    record(made)
    record(made)
    record(one())
    refused(f"with another environment .*{told}", other if form == "factory" else other())
    record(other(), force=True)


def test_an_environment_by_id_and_as_an_object():
    record()
    record(cart())
    refused("another environment", gymnasium.make("CartPole-v1", max_episode_steps=7))
    record(cart(), name="y")
    record(name="y")


def test_the_code_of_an_environment(here, monkeypatch):
    monkeypatch.syspath_prepend(here)
    source = "import gymnasium, gymnasium_envs\nclass Mine(gymnasium_envs.Counter):\n    pace = {}\n"
    source += "    def step(self, action):\n        return super().step(action * self.pace)\n"
    source += "gymnasium.register('Mine-v0', Mine, disable_env_checker=True)\n"
    Path("my_envs.py").write_text(source.format(1))
    record("my_envs:Mine-v0")
    record("my_envs:Mine-v0")
    Path("my_envs.py").write_text(source.format(2) + "# more\n")
    sys.modules.pop("my_envs")
    refused("another environment .*the code of Mine", "my_envs:Mine-v0")


class Named(NamedTuple):
    scale: float


@dataclass(slots=True)
class Slotted:
    scale: float


class Own:
    """An object with attributes that it changes and others."""

    def __init__(self, inner):
        self.inner, self.steps = inner, 0

    def step(self):
        self.steps += 1


class OwnDict(dict):
    pass


class OwnList(list):
    pass


class OwnFloat(float):
    pass


class OwnArray(np.ndarray):
    scale: float


class OwnMode(Enum):
    ONE, TWO = 1.0, 2.0

    def __repr__(self):
        return "a mode"


class Limit(TimeLimit):
    def __init__(self, env, bonus):
        super().__init__(env, 100)
        self.bonus = bonus


def weights(scale):
    net = torch.nn.Linear(1, 1)
    net.load_state_dict({"weight": torch.full((1, 1), scale), "bias": torch.zeros(1)})
    return net


def array_with(scale):
    array = np.zeros(2).view(OwnArray)
    array.scale = scale
    return array


def by_hand(name, value):
    env = TransformReward(TimeLimit(gymnasium_envs.Counter(), 50), lambda reward: reward)
    wrapper = env if name == "func" else env.env
    setattr(wrapper, name, value)
    return env


def using(value):
    env: Any = Gain(gymnasium_envs.Counter(), 1.0)
    env.own = value
    return env


SETTINGS: dict[str, Callable[[Any], Any]] = {
    "a NamedTuple": Named,
    "slots": Slotted,
    "an object in an object": lambda scale: Own(Own(scale)),
    "an object in a list in an object": lambda scale: Own([threading.Lock(), Own(scale)]),
    "a module in an object": lambda scale: Own(weights(scale)),
    "a tensor in an object": lambda scale: Own(torch.tensor(scale)),
    "a function in an object": lambda scale: Own(lambda reward: reward * scale),
    "a dict": lambda scale: OwnDict(scale=scale),
    "a list": lambda scale: OwnList([scale]),
    "a float": OwnFloat,
    "an array": lambda scale: np.full(2, scale).view(OwnArray),
    "an attribute of an array": array_with,
    "an enumeration": OwnMode,
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_settings_in_objects_of_local_classes(kind):
    make = SETTINGS[kind]
    record(lambda: using(make(1.0)))
    record(lambda: using(make(1.0)))
    refused(r"another environment \(Gain.own is ", lambda: using(make(2.0)))


class Level(gymnasium_envs.Counter):
    """A level that is an argument and rises with every episode, and a state that is drawn when it is made."""

    def __init__(self, level=1.0, options=None, source=None):
        super().__init__((3,))
        self.level, self.options, self.start = level, options, np.random.default_rng().random()
        self.source = source

    def reset(self, **arguments):
        self.start, self.level = np.random.default_rng(0).random(), self.level + 1
        return super().reset(**arguments)


HELD: dict[str, tuple[Callable[[Any], Any], str]] = {
    "an attribute": (Level, "Level.level is 1.0 there, 2.0 here"),
    "an attribute of an object": (lambda level: using(Own(Level(level))), "Gain.own is "),
    "of a wrapper's attribute": (lambda level: Gain(Level(level), 1.0), "Level.level is 1.0 there"),
    "statistics of a wrapper of Gymnasium": (lambda scale: normalized(scale), "NormalizeReward.return_rms is "),
}


def normalized(scale):
    env = gymnasium.wrappers.NormalizeReward(cart())
    env.return_rms.update(np.array([scale, -scale]))
    return env


@pytest.mark.parametrize("kind", HELD)
def test_settings_that_a_step_or_reset_changes(kind):
    make, told = HELD[kind]
    record(lambda: make(1.0))
    if "object" not in kind:
        record(lambda: make(1.0))  # what it draws when it is made is no difference
    refused(f"with another environment .*{told}", lambda: make(2.0))


def test_an_environment_object_is_what_it_holds_before_the_first_step():
    env = using(Own(1.0))
    record(env)
    record(env)
    record(using(Own(1.0)))
    env.own.step()
    refused(r"another environment \(Gain.own is ", env)


def test_an_environment_with_a_generator_cannot_be_told_apart():
    record(lambda: Level(source=threading.Lock()))
    record(lambda: Level(source=threading.Lock()))
    record(lambda: Level(source=(one for one in "ab")), name="y")
    refused(
        r"environment, as far as can be told \(builtins:generator is a builtins.generator of .*Level",
        lambda: Level(source=(one for one in "ac")),
        name="y",
    )


WRAPPED = {
    "an attribute of a local wrapper": (lambda bonus: Limit(gymnasium_envs.Counter(), bonus), "Limit.bonus is 1 there"),
    "an attribute set by hand": (
        lambda limit: by_hand("_max_episode_steps", limit),
        "TimeLimit._max_episode_steps is 1",
    ),
    "a function set by hand": (lambda gain: by_hand("func", lambda reward: reward * gain), "TransformReward.func is "),
    "another environment of several": (
        lambda gain: gymnasium.vector.SyncVectorEnv([functools.partial(gained, one) for one in (1, gain)]),
        "SyncVectorEnv.others is ",
    ),
}


@pytest.mark.parametrize("kind", WRAPPED)
def test_settings_of_wrappers(kind):
    make, told = WRAPPED[kind]
    with pytest.raises(ZeroDivisionError), rbdata.Recorder(make(1), name="loop") as env:
        env.reset()
        for _ in range(20):
            env.step(np.array([1, 1]) if "several" in kind else 1)
            env.reset()
        raise ZeroDivisionError
    with pytest.raises(UnfinishedDatasetError, match=told):
        rbdata.Recorder(make(2), name="loop")
    with rbdata.Recorder(make(1), name="loop") as env:
        assert env.counts[0] > 0


# -- loops -------------------------------------------------------------------------------------------------------------


def interrupted(env) -> None:
    with pytest.raises(ZeroDivisionError), rbdata.Recorder(env, name="loop") as recorder:
        play(recorder, 7)
        raise ZeroDivisionError


def play(env, steps: int) -> None:
    env.reset()
    for _ in range(steps):
        if any(env.step(1)[2:4]):
            env.reset()


@pytest.mark.parametrize("kind", ["arguments", "settings", "keyword arguments", "wrappers"])
def test_a_loop_is_not_continued_in_another_environment(kind):
    one, other, told = ENVIRONMENTS[kind]
    one, other = (lambda make=make: TimeLimit(make(), 3) for make in (one, other))
    interrupted(one())
    with pytest.raises(UnfinishedDatasetError, match=f"episodes of another environment .*{told}") as caught:
        rbdata.Recorder(other(), name="loop")
    assert "force=True" in caught.value.hint
    with rbdata.Recorder(one(), name="loop") as env:
        play(env, 4)
    assert len(rbdata.open_dataset(env.path).episodes) >= 3


def test_a_loop_is_continued_with_the_environment_that_it_left():
    env = Gain(gymnasium_envs.Counter((3,)), 2.0)
    interrupted(env)
    with rbdata.Recorder(env, name="loop") as recorder:
        play(recorder, 3)
    assert len(rbdata.open_dataset(recorder.path).episodes) == 3


def test_several_environments_in_a_loop():
    for gain, fits in ((2.0, True), (3.0, False)):
        made = gymnasium.vector.SyncVectorEnv([functools.partial(gained, gain)] * 2)
        if fits:
            with pytest.raises(ZeroDivisionError), rbdata.Recorder(made, name="loop") as env:
                env.reset()
                for _ in range(60):
                    env.step(np.array([1, 1]))
                raise ZeroDivisionError
        else:
            with pytest.raises(UnfinishedDatasetError, match=r"Gain.gain is 2.0 there, 3.0 here"):
                rbdata.Recorder(made, name="loop")
