"""Loops recorded by a wrapper: equal to what `download` records, and to what Minari's collector has."""

from __future__ import annotations

import gc
import os
import signal
import struct
import subprocess
import sys

import gymnasium
import gymnasium_envs
import numpy as np
import pytest
import rbdata
from gymnasium.vector import AutoresetMode
from minari_tools import minari, with_root
from minari_tools import play as play_for_minari
from paths import SUPPORT
from rbdata.datasets.sources.gymnasium import recorder
from rbdata.errors import DatasetBusyError, DatasetExistsError, RbdataError, UsageError
from rbdata.storage.episodes import CUT, TERMINATED, TRUNCATED
from rbdata.storage.integrity import verify
from text_rows import text_of

gymnasium_envs.register()


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("RBDATA_ROOT", str(tmp_path / "root"))
    return tmp_path / "root"


def play(env, steps: int, seed: int = 3) -> None:
    """As `download` plays: random actions, resets but after the last step."""
    env.action_space.seed(seed)
    env.reset(seed=seed)
    for step in range(1, steps + 1):
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        if (terminated or truncated) and step < steps:
            env.reset()


@pytest.mark.parametrize(
    ("name", "piece"),
    [
        ("CartPole-v1", 1 << 24),
        ("Pendulum-v1", 100),
        ("tests/Everything-v0", 100),
        ("tests/Frames-v0", 1 << 24),
        ("tests/Doubles-v0", 1),
    ],
)
def test_equals_what_download_records(name, piece, monkeypatch, tmp_path):
    monkeypatch.setattr(recorder, "_PIECE_BYTES", piece)
    wanted = rbdata.open_dataset(rbdata.record(name, steps=120, seed=3, procs=0, root=tmp_path / "downloaded")).manifest
    with rbdata.Recorder(gymnasium.make(name)) as env:
        play(env, 120)
    found = rbdata.open_dataset(env.path).manifest
    assert verify(env.path).ok
    assert (found.id, found.files, found.counts, found.notes) == (wanted.id, wanted.files, wanted.counts, wanted.notes)
    assert (found.spaces, found.parts) == (wanted.spaces, wanted.parts)
    assert found.source["environment"] == wanted.source["environment"]
    assert found.source["recorded_by"] == "rbdata.Recorder"


def test_equals_what_minari_stores(tmp_path, monkeypatch):
    """The same loop, stacked and written by Minari and read by it: value by value, every kind of space.

    (Minari's own collector needs jax, and does the same stacking.)
    """
    with_root(monkeypatch, tmp_path / "minari")
    env = rbdata.Recorder(gymnasium.make("tests/Everything-v0", lengths=(4, 6, 3)), name="both")
    buffers = play_for_minari(env, 6)
    env.close()
    about = {"author": "x", "author_email": "x@example.org", "algorithm_name": "x", "code_permalink": "https://x.org"}
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    minari().create_dataset_from_buffers(
        "toy/both-v0", buffers, description="x", jpeg_encoding=False, **spaces, **about
    )
    theirs = minari().load_dataset("toy/both-v0")
    dataset = rbdata.open_dataset("gymnasium/tests/Everything-v0@both")
    assert len(dataset.episodes) == theirs.total_episodes == 6
    for number, episode in enumerate(theirs.iterate_episodes()):
        mine = dataset.episode(number)
        for path in (("camera",), ("inner", "a.b"), ("inner", "kind"), ("many",), ("bits",), ("pair", 0), ("pair", 1)):
            value = episode.observations
            for step in path:
                value = value[step]
            key = ("observation", *(str(step).replace(".", "_") for step in path))
            rows = np.concatenate([mine[key], mine["next"][key][-1:]])
            assert np.array_equal(rows.reshape(np.shape(value)), value), path
        words = np.concatenate([mine["observation", "words"], mine["next", "observation", "words"][-1:]])
        assert [text_of(word) for word in words] == list(episode.observations["words"])
        for name in ("move", "pick"):
            assert np.array_equal(mine["action", name], episode.actions[name])
        assert mine["next", "reward"][:, 0].tolist() == episode.rewards.tolist()
        assert mine["next", "terminated"][:, 0].tolist() == episode.terminations.tolist()
        assert mine["next", "truncated"][:, 0].tolist() == episode.truncations.tolist()


def test_how_a_loop_ends_its_episodes():
    env = rbdata.Recorder(gymnasium.make("tests/Counter-v0", lengths=(7,)), name="ends")
    with pytest.raises(UsageError, match="no episode"):
        env.step(0)
    env.reset()
    for _ in range(2):
        env.reset()  # of an episode without a step nothing remains, the others are truncated
        env.step(0)
    env.reset()
    for _ in range(7):
        env.step(1)
    env.reset()
    assert env.counts == (2 + 7, 3) and env.path is None
    env.step(1)
    with pytest.raises(UsageError, match="cannot be recorded") as caught:
        env.step(7)
    assert "Discrete" in caught.value.hint
    env.close()
    dataset = rbdata.open_dataset("gymnasium/tests/Counter-v0@ends")
    assert dataset.episodes.outcomes.tolist() == [TRUNCATED, TRUNCATED, TERMINATED, CUT]
    env.close()  # a second time does nothing
    with pytest.raises(DatasetExistsError, match="there already"):
        rbdata.Recorder(gymnasium.make("tests/Counter-v0"), name="ends")
    with rbdata.Recorder(gymnasium.make("tests/Counter-v0"), name="ends", force=True) as env:
        play(env, 5)
    assert len(rbdata.open_dataset(env.dataset_id)) == 5


def test_a_loop_without_a_step_leaves_nothing(root):
    with rbdata.Recorder(gymnasium.make("CartPole-v1")) as env:
        env.reset()
    assert env.path is None and not [*root.rglob("*")]


def test_an_environment_without_an_id(root):
    with pytest.raises(UsageError, match="needs a name"):
        rbdata.Recorder(gymnasium_envs.Counter())
    with rbdata.Recorder(gymnasium_envs.Counter(), name="robot") as env:
        play(env, 9)
    assert env.path == root / "my" / "robot" and len(rbdata.open_dataset("my/robot")) == 9


def test_a_killed_loop_keeps_its_finished_episodes(root):
    """SIGKILL in the middle of the 6th episode; the next recorder of the name adds to the five before it."""
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); import gymnasium, gymnasium_envs, rbdata\n"
        "gymnasium_envs.register()\n"
        "env = rbdata.Recorder(gymnasium.make('tests/Frames-v0'), name='killed')\n"
        "env.reset()\n"
        "for step in range(3 + 1 + 7 + 2 + 12 + 2):\n"
        "    if any(env.step(1)[2:4]): env.reset()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(SUPPORT)], env=os.environ, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (log,) = root.rglob("episodes.log")
    with log.open("ab") as file:
        file.write(log.read_bytes()[:50])  # and what a kill in the middle of a write leaves
    assert [entry.state for entry in rbdata.list_datasets()] == ["partial"]
    with pytest.raises(DatasetExistsError):
        rbdata.Recorder(gymnasium.make("tests/Frames-v0"), name="killed", text="omit")
    env = rbdata.Recorder(gymnasium.make("tests/Frames-v0"), name="killed")
    assert env.counts == (25, 5)
    play(env, 3)
    env.close()
    dataset = rbdata.open_dataset(env.path)
    assert dataset.episodes.lengths.tolist() == [3, 1, 7, 2, 12, 3] and verify(env.path).ok
    truth = gymnasium_envs.Frames()
    for number, length in enumerate([3, 1, 7, 2, 12]):
        truth.reset()
        for step in range(length):
            assert np.array_equal(dataset.episode(number)["observation"][step], truth._observe(0))
            truth.step(1)


@pytest.mark.parametrize("stored", [100, 1 << 63])  # all there, with another checksum; beyond the file
def test_a_damaged_log_keeps_the_episodes_before_the_damage(root, stored):
    with pytest.raises(ZeroDivisionError), rbdata.Recorder(gymnasium.make("tests/Counter-v0"), name="x") as env:
        play(env, 5)
        raise ZeroDivisionError
    (log,) = root.rglob("episodes.log")
    with log.open("ab") as file:
        file.write(struct.pack("<8sIIQBB", b"00000000", 0, 5, stored, 1, 1) + bytes(100))
    env = rbdata.Recorder(gymnasium.make("tests/Counter-v0"), name="x")
    assert env.counts == (4, 2)
    env.close()


def test_an_exception_keeps_the_episodes_for_the_next_loop():
    with pytest.raises(ZeroDivisionError), rbdata.Recorder(gymnasium.make("tests/Counter-v0"), name="x") as env:
        play(env, 5)
        raise ZeroDivisionError
    assert env.path is None
    env = rbdata.Recorder(gymnasium.make("tests/Counter-v0"), name="x")
    env.close()
    assert rbdata.open_dataset(env.path).episodes.lengths.tolist() == [3, 1]


def test_a_vector_environment_that_resets_in_the_same_step_is_refused():
    made = gymnasium.make_vec("CartPole-v1", 2, "sync", {"autoreset_mode": AutoresetMode.SAME_STEP})
    with pytest.raises(UsageError, match="hides or overwrites final observations") as caught:
        rbdata.Recorder(made, name="several")
    assert "NEXT_STEP" in caught.value.hint


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_several_environments_in_every_autoreset_mode(mode, tmp_path):
    """Each environment alone, with the same actions, gives its rows: no reset is a step, no final observation is lost."""
    made = gymnasium.make_vec("CartPole-v1", 3, "sync", {"autoreset_mode": mode})
    with rbdata.Recorder(made, name="several") as env:
        env.action_space.seed(5)
        env.reset(seed=5)
        for _ in range(60):
            *_, terminated, truncated, _ = env.step(env.action_space.sample())
            over = np.logical_or(terminated, truncated)
            if mode == AutoresetMode.DISABLED and over.any():
                env.reset(options={"reset_mask": over})
    dataset = rbdata.open_dataset(env.path)
    assert verify(env.path).ok
    number, cut = -1, True
    for episode in map(dataset.episode, range(len(dataset.episodes))):
        if cut:
            number += 1
            alone = gymnasium.make("CartPole-v1")
            observation, _ = alone.reset(seed=5 + number)
        for step in episode:
            assert np.array_equal(step["observation"], observation)
            observation, _, terminated, _, _ = alone.step(int(step["action"]))
            assert np.array_equal(step["next", "observation"], observation)
            assert bool(step["next", "terminated"]) == terminated
        cut = not terminated  # by the end of the loop: the next episode is of the next environment
        observation, _ = alone.reset()
    assert (dataset.episodes.outcomes != TRUNCATED).all()
    if mode != AutoresetMode.NEXT_STEP:
        assert len(dataset) == 180


class Unreliable(gymnasium_envs.Counter):
    """Counts its steps; the one after ``fails`` raises when it has been made, and so does ``reset`` from the second one on."""

    def __init__(self, fails: str) -> None:
        super().__init__((9,))
        self._fails, self.resets, self.steps = fails, 0, 0

    def reset(self, **options):
        self.resets += 1
        self.steps = 100 * self.resets
        returned = super().reset(**options)
        if self._fails == "reset" and self.resets == 2:
            raise TimeoutError("sensor")
        return returned

    def step(self, action):
        self.steps += 1
        returned = super().step(action)
        if self._fails == "step" and self.steps == 103:
            raise TimeoutError("sensor")
        return returned


@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize("fails", ["step", "reset"])
def test_an_error_of_the_environment_cuts_the_episode(fails, vectors):
    """No transition spans two steps of the environment, no episode a reset."""
    made = gymnasium.vector.SyncVectorEnv([lambda: Unreliable(fails)]) if vectors else Unreliable(fails)
    action = np.array([1]) if vectors else 1
    env = rbdata.Recorder(made, name="fails")
    env.reset()
    for _ in range(2):
        env.step(action)
    with pytest.raises(TimeoutError):
        env.step(action)
        env.reset()
    with pytest.raises(UsageError, match=r"no episodes? to step in"):
        env.step(action)
    env.reset()
    env.step(action)
    env.close()
    episodes = rbdata.open_dataset(env.path).episodes
    assert episodes.lengths.tolist() == ([2, 1] if fails == "step" else [3, 1])
    assert episodes.outcomes.tolist() == [CUT, CUT]


@pytest.mark.parametrize("vectors", [False, True])
def test_a_recorder_that_is_still_open(vectors):
    def make():
        return rbdata.Recorder(
            gymnasium.make_vec("CartPole-v1", 2) if vectors else gymnasium.make("CartPole-v1"), name="open"
        )

    env = make()
    with pytest.raises(DatasetBusyError, match="is being written by process"):
        make()
    env.reset()
    del env
    gc.collect()  # it was not closed, and nobody can close it any more
    make().close()


@pytest.mark.parametrize("reward", [10**30 * 10**30, -(10**400)])
def test_a_reward_that_cannot_be_stored(reward):
    env = rbdata.Recorder(gymnasium.wrappers.TransformReward(gymnasium_envs.Counter(), lambda _: reward), name="x")
    env.reset()
    with pytest.raises(RbdataError, match="not one finite number that float32 holds"):
        env.step(1)
    env.close()
