"""Recordings of environments: every row is what the environment said, in any number of copies."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium
import gymnasium_envs
import numpy as np
import pytest
from contents import content
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paths import SUPPORT
from rbdata.datasets.acquire import download
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.ingest.request import Listener, Request
from rbdata.storage.dataset import Dataset
from rbdata.storage.episodes import CUT, TERMINATED, TRUNCATED
from rbdata.storage.integrity import verify
from text_rows import text_of

gymnasium_envs.register()


def record(root: Path, name: str, *, codec="auto", layout="auto", force=False, procs=0, **extra) -> Dataset:
    options = ConvertOptions(codec=codec, layout=layout, extra=extra)
    outcome = download(Request(f"gymnasium/{name}", root=root, options=options, procs=procs, force=force))
    report = verify(outcome.path)
    assert report.ok, report.problems
    return Dataset(outcome.path)


def leaf(dataset: Dataset, name: str) -> np.ndarray:
    return dataset[name].numpy()


# -- the same as stepping by hand ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "MountainCarContinuous-v0"])
def test_is_what_the_environment_says(tmp_path, name):
    dataset = record(tmp_path, name, steps=300, seed=3)
    env = gymnasium.make(name)
    env.action_space.seed(3)
    observation, _ = env.reset(seed=3)
    done = False
    for step in range(300):
        assert np.array_equal(leaf(dataset, "observation")[step].squeeze(), observation), step
        action = env.action_space.sample()
        observation, reward, terminated, truncated, _ = env.step(action)
        done = terminated or truncated
        assert np.array_equal(leaf(dataset, "action")[step], action)
        assert np.array_equal(leaf(dataset, "next/observation")[step].squeeze(), observation)
        assert leaf(dataset, "next/reward")[step] == np.float32(reward)
        assert leaf(dataset, "next/terminated")[step] == terminated
        assert leaf(dataset, "next/truncated")[step] == (truncated or (step == 299 and not done))
        if done:
            observation, _ = env.reset()
    assert dataset.episodes.outcomes[-1] == (TRUNCATED if done and truncated else TERMINATED if done else CUT)
    assert dataset.manifest.counts["cut_episodes"] == (0 if done else 1)


def replay(dataset: Dataset, name: str, count: int, seed: int, **arguments) -> None:
    """Every environment by itself, with the actions of the dataset, gives the rows of the dataset, in order."""
    steps = len(dataset)
    step = 0
    for number in range(count):
        env = gymnasium.make(name, **arguments)
        observation, _ = env.reset(seed=seed + number)
        mine = steps // count + (number < steps % count)
        for at in range(mine):
            action = leaf(dataset, "action")[step]
            assert np.array_equal(leaf(dataset, "observation")[step], observation), (number, at)
            observation, reward, terminated, truncated, _ = env.step(action)
            assert np.array_equal(leaf(dataset, "next/observation")[step], observation), (number, at)
            assert leaf(dataset, "next/reward")[step] == np.float32(reward)
            assert leaf(dataset, "next/terminated")[step] == terminated
            is_cut = at == mine - 1 and not (terminated or truncated)
            assert leaf(dataset, "next/truncated")[step] == (truncated or is_cut)
            if terminated or truncated:
                observation, _ = env.reset()
            step += 1
    assert step == steps


@pytest.mark.parametrize(("name", "steps"), [("CartPole-v1", 200), ("Pendulum-v1", 601), ("tests/Limited-v0", 100)])
def test_several_environments_lose_and_invent_nothing(tmp_path, name, steps):
    replay(record(tmp_path, name, steps=steps, num_envs=3, seed=5), name, 3, 5)


@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    count=st.integers(1, 4),
    more=st.integers(0, 40),
    buffer=st.sampled_from([200, 1 << 20]),
)
def test_counts_for_any_lengths(tmp_path_factory, monkeypatch, lengths, count, more, buffer):
    monkeypatch.setattr("rbdata.datasets.sources.gymnasium.lanes._BUFFER_BYTES", buffer)
    root = tmp_path_factory.mktemp("root")
    steps = count + more
    dataset = record(root, "tests/Counter-v0", steps=steps, num_envs=count, env_args={"lengths": lengths})
    assert len(dataset) == steps
    replay(dataset, "tests/Counter-v0", count, 0, lengths=lengths)
    time, after = leaf(dataset, "observation")[:, 1], leaf(dataset, "next/observation")[:, 1]
    assert np.array_equal(after, time + 1)
    assert np.array_equal(time == 0, np.isin(np.arange(steps), dataset.episodes.starts))


def test_how_episodes_end(tmp_path):
    dataset = record(tmp_path, "tests/Counter-v0", steps=3 + 1 + 7 + 2 + 12 + 2)
    assert dataset.episodes.outcomes.tolist() == [TERMINATED, TERMINATED, TRUNCATED, TERMINATED, TERMINATED, CUT]
    ends = dataset.episodes.starts + dataset.episodes.lengths - 1
    assert leaf(dataset, "next/truncated")[ends, 0].tolist() == [False, False, True, False, True, True]
    assert leaf(dataset, "next/terminated")[ends, 0].tolist() == [True, True, False, True, True, False]
    counts = dataset.manifest.counts
    assert (counts["terminated_episodes"], counts["time_limit_episodes"], counts["cut_episodes"]) == (4, 1, 1)
    # The cut episode's last successor is what the environment said, not a copy and not zeros.
    assert leaf(dataset, "next/observation")[-1, :2].tolist() == [5, 2]
    assert any("cut by the end" in note for note in dataset.manifest.notes)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("text", ["bytes", "omit"])
def test_every_kind_of_space(tmp_path, count, text):
    dataset = record(tmp_path, "tests/Everything-v0", steps=30, num_envs=count, text=text)
    each = 30 // count
    for number in range(count):
        env = gymnasium.make("tests/Everything-v0")
        env.reset()
        truth: Any = env.unwrapped
        for step in range(number * each, (number + 1) * each):
            values = truth._observe(0)
            for name, value in {
                "camera": values["camera"],
                "inner/a_b": values["inner"]["a.b"],
                "inner/kind": values["inner"]["kind"],
                "many": values["many"],
                "bits": values["bits"],
                "pair/0": values["pair"][0],
                "pair/1": values["pair"][1],
            }.items():
                assert np.array_equal(
                    leaf(dataset, f"observation/{name}")[step], np.reshape(value, np.shape(value) or 1)
                )
            if text == "bytes":
                assert text_of(leaf(dataset, "observation/words")[step]) == values["words"]
            *_, terminated, truncated, _ = env.step(None)
            after = truth._observe(0)
            assert leaf(dataset, "next/observation/pair/0")[step].tolist() == after["pair"][0].tolist()
            assert np.array_equal(leaf(dataset, "next/observation/camera")[step], after["camera"])
            if terminated or truncated:
                env.reset()
    schema = dataset.schema
    assert schema["observation/camera"].kind == "state" and schema["observation/camera"].codec == "zstd"
    assert schema["observation/bits"].dtype == "int8" and schema["observation/pair/0"].dtype == "int32"
    assert schema["action/move"].shape == (2,) and schema["action/pick"].dtype == "int64"
    source = dataset.manifest.source
    assert source["keys"] == {"observation/inner/a_b": "observation/inner/a.b"}
    assert ("observation/words" in schema) == (text == "bytes")
    assert ("observation/words" in source["left_out"]) == (text == "omit")
    space = dataset.manifest.spaces["observation"]["spaces"]
    assert space["inner"]["spaces"]["kind"] == {"type": "Discrete", "n": 9, "start": 3}
    assert space["camera"] == {"type": "Box", "dtype": "uint8", "shape": [40, 32, 3], "low": 0, "high": 255}


@pytest.mark.parametrize(
    ("count", "options"), [(1, {}), (3, {"codec": "raw"}), (3, {"layout": "ted"})], ids=["zstd", "raw", "ted"]
)
def test_frames(tmp_path, options, count):
    dataset = record(tmp_path, "tests/Frames-v0", steps=120, num_envs=count, **options)
    replay(dataset, "tests/Frames-v0", count, 0)
    if not options:
        assert dataset.schema["observation"].codec == "zstd"
        size = (dataset.path / "observation" / "blob").stat().st_size
        assert size < 0.1 * dataset.manifest.states * 84 * 84


def test_atari(tmp_path):
    pytest.importorskip("ale_py")
    dataset = record(tmp_path, "ALE/Pong-v5", steps=10, codec="raw")
    env = gymnasium.make("ALE/Pong-v5")
    env.action_space.seed(0)
    observation, _ = env.reset(seed=0)
    for step in range(10):
        assert np.array_equal(dataset[step]["observation"].numpy(), observation)
        observation, *_ = env.step(env.action_space.sample())
    assert dataset.manifest.source["environment"]["kwargs"]["game"] == "pong"


def test_environment_arguments(tmp_path):
    dataset = record(tmp_path, "FrozenLake-v1", steps=50, env_args={"map_name": "8x8", "is_slippery": False})
    assert dataset.manifest.spaces["observation"]["n"] == 64
    assert dataset.manifest.source["environment"]["kwargs"]["map_name"] == "8x8"


def test_doubles_are_stored_as_the_space_says(tmp_path):
    dataset = record(tmp_path, "tests/Doubles-v0", steps=20)
    assert dataset["observation"].numpy().dtype == np.float32


# -- the same again ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2])
def test_a_seed_repeats_everything(tmp_path, count):
    def made(name, seed, procs=0):
        return content(record(tmp_path / name, "CartPole-v1", steps=300, num_envs=count, seed=seed, procs=procs).path)

    assert made("a", 7) == made("b", 7, procs=None)
    assert made("c", 8)["observation.memmap"] != made("a", 7)["observation.memmap"]


def test_memory_is_bounded(tmp_path):
    """14,000 frames of 7 KB are 98 MB; what is kept of them at a time is a few blocks."""
    code = """
import resource, sys
import gymnasium_envs
from pathlib import Path
from rbdata.datasets.acquire import download
from rbdata.datasets.ingest.request import Request
from rbdata.datasets.ingest.records import ConvertOptions
gymnasium_envs.register()
def go(name, steps):
    options = ConvertOptions("raw", extra={"steps": steps})
    download(Request("gymnasium/tests/Frames-v0", root=Path(sys.argv[1]) / name, options=options, procs=0))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
few = go("few", 2_000)
print(go("many", 14_000) - few)
"""
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=SUPPORT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) < 30  # MiB more for 84 MB more of frames


@pytest.mark.parametrize("name", ["CartPole-v1", "tests/Frames-v0"])
def test_a_recording_that_is_complete_is_not_made_again(tmp_path, monkeypatch, name):
    (tmp_path / "counting.py").write_text(
        "calls = 0\ndef act(observation):\n    global calls\n    calls += 1\n    return calls % 2\n"
    )
    monkeypatch.chdir(tmp_path)
    extra = {"steps": 90, "policy": "counting:act"}

    def stop(index):
        raise KeyboardInterrupt

    options = ConvertOptions(extra=extra)
    request = Request(f"gymnasium/{name}", root=tmp_path / "root", options=options, procs=0)
    with pytest.raises(KeyboardInterrupt):
        download(request, Listener(on_part_done=stop))
    again = record(tmp_path / "root", name, **extra)
    counting: Any = import_module("counting")

    assert counting.calls == 90 and again["action"].tolist() == [1, 0] * 45
    sys.modules.pop("counting")
    assert content(again.path) == content(record(tmp_path / "fresh", name, **extra).path)
    sys.modules.pop("counting")
