"""A recording is of its policy and its environment: text is known by its files, an object by the user's word or not at all."""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium
import gymnasium_envs
import numpy as np
import pytest
import rbdata
from gymnasium.wrappers import TimeLimit
from rbdata.datasets.sources.gymnasium.reader import PolicyReader
from rbdata.errors import DatasetExistsError, UsageError

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


def record(env="CartPole-v1", policy="random", name="x", procs=0, **options) -> np.ndarray:
    dataset = rbdata.open_dataset(rbdata.record(env, policy, name=name, steps=30, procs=procs, **options))
    return dataset["action"].numpy()


def refused(match: str, *given, **options) -> None:
    with pytest.raises(DatasetExistsError, match=match) as caught:
        record(*given, **options)
    assert "name" in caught.value.hint and "force" in caught.value.hint


def always(action):
    return lambda observation: action


def cart():
    return gymnasium.make("CartPole-v1")


# -- text --------------------------------------------------------------------------------------------------------------


def test_a_policy_file_and_what_it_imports(here):
    Path("h2.py").write_text("ACTION = 0\n")
    Path("pol.py").write_text(
        "import h2\ncalls = []\ndef act(observation):\n    calls.append(1)\n    return h2.ACTION\n"
    )
    assert not record(policy="pol.py").any()
    assert not record(policy="pol.py").any()
    Path("h2.py").write_text("ACTION = 1\n")
    refused("a different version of h2.py", policy="pol.py")
    assert record(policy="pol.py", force=True).all()
    Path("pol.py").write_text("def act(observation):\n    return 0\n")
    refused("a different version of the policy's file", policy="pol.py")
    assert not record(policy="pol.py", force=True).any()


def test_a_file_is_run_again_for_every_recording(here):
    source = "calls = 0\ndef act(observation):\n    global calls\n    calls += 1\n    return int(calls > 15)\n"
    Path("pol.py").write_text(source)
    assert [*record(policy="pol.py", name="one", procs=1)] == [*record(policy="pol.py", name="two", procs=1)]


def test_text_acts_in_a_worker_process_or_here(here, monkeypatch):
    Path("pol.py").write_text(
        "import os\ndef act(observation):\n    return int(os.getpid() == int(os.environ['PARENT']))\n"
    )
    monkeypatch.setenv("PARENT", str(__import__("os").getpid()))
    assert not record(policy="pol.py", procs=1).any()
    assert record(policy="pol.py", name="here").all()


# -- objects -----------------------------------------------------------------------------------------------------------

OBJECTS = {
    "policy": lambda: {"policy": always(0)},
    "factory": lambda: {"env": cart},
    "environment": lambda: {"env": cart()},
    "spec": lambda: {"env": gymnasium.spec("CartPole-v1")},
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_an_object_does_not_say_what_it_is(kind):
    made = OBJECTS[kind]()
    record(**made)
    refused("is there already, and an object does not tell whether it is the same", **made)
    record(**made, force=True)
    record(**made, name="y")
    with pytest.raises(DatasetExistsError, match=r"with the (policy|environment) as an object|different options"):
        record(policy="random")


def test_a_version_is_the_word_of_the_user(here):
    assert not record(policy=always(0), version="1").any()
    assert not record(policy=always(1), version="1").any()  # it is there
    refused("is there already, as version '1'", policy=always(1), version="2")
    refused("is there already, as version '1'", policy=always(1))
    assert record(policy=always(1), version="2", force=True).all()
    assert rbdata.open_dataset("gymnasium/CartPole-v1@x").manifest.source["version"] == "2"
    with pytest.raises(UsageError, match="version is for objects"):
        record(version="1", name="text")


def test_what_an_interrupted_recording_left(monkeypatch):
    """It is finished for text and versions; an object begins again."""
    calls: list[int] = []

    def policy(observation):
        calls.append(1)
        return 1

    def fails(*given):
        raise KeyboardInterrupt

    for version, made in ((None, 60), ("1", 30)):
        calls.clear()
        with monkeypatch.context() as patch:
            patch.setattr(PolicyReader, "describe", fails)
            with pytest.raises(KeyboardInterrupt):
                record(policy=policy, version=version, name=f"v{version}")
        assert record(policy=policy, version=version, name=f"v{version}").all() and len(calls) == made


# -- loops -------------------------------------------------------------------------------------------------------------

ENVIRONMENTS = {
    "wrappers": (lambda: gymnasium_envs.Counter((2,)), lambda: TimeLimit(gymnasium_envs.Counter((2,)), 9)),
    "keyword arguments": (
        lambda: gymnasium.make("tests/Counter-v0", lengths=(2,)),
        lambda: gymnasium.make("tests/Counter-v0", lengths=(3,)),
    ),
}


def play(env, steps: int) -> None:
    env.reset()
    for _ in range(steps):
        if any(env.step(1)[2:4]):
            env.reset()


@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_a_loop_is_not_continued_in_another_environment(kind):
    one, other = ENVIRONMENTS[kind]
    with pytest.raises(ZeroDivisionError), rbdata.Recorder(one(), name="loop") as env:
        play(env, 7)
        raise ZeroDivisionError
    with pytest.raises(DatasetExistsError):
        rbdata.Recorder(other(), name="loop")
    with rbdata.Recorder(one(), name="loop") as env:
        play(env, 4)
    assert len(rbdata.open_dataset(env.path).episodes) >= 3
