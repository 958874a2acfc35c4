"""Datasets of arrays and episodes in memory: every value against the arrays, and what happens where something is wrong."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
import rbdata
import torch
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import csv, parquet
from rbdata.datasets import acquire, own_data
from rbdata.datasets.ingest.request import Listener
from rbdata.datasets.sources.arrays.reader import TablesUnit
from rbdata.errors import CorruptSourceError, DatasetExistsError, UsageError
from tensordict import TensorDict

N = 300


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RBDATA_ROOT", str(tmp_path / "root"))
    monkeypatch.setattr(own_data, "_TOGETHER_EPISODES", 64)  # few episodes are several tables
    return tmp_path / "root"


def transitions() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    states = rng.normal(size=(N + 1, 3)).astype(np.float32)
    terminals, timeouts = rng.random(N) < 0.05, rng.random(N) < 0.05
    terminals[-1], timeouts[-1] = False, True
    return {
        "observations": states[:-1],
        "actions": rng.integers(0, 4, N),
        "rewards": rng.normal(size=N).astype(np.float32),
        "terminals": terminals,
        "timeouts": timeouts & ~terminals,
        "next_observations": states[1:],
    }


NO_NEXT = {"next_observations": None, "terminals": np.zeros(1, bool)}
NAMES: dict[str, dict[str, Any]] = {
    "d4rl": {},
    "ted": {
        "observations": "observation",
        "actions": "action",
        "rewards": ("next", "reward"),
        "terminals": ("next", "terminated"),
        "timeouts": ("next", "truncated"),
        "next_observations": ("next", "observation"),
    },
    "spinning up": {"observations": "obs", "actions": "act", "rewards": "rew", "next_observations": "obs2"},
    "own": {key: f"my_{key}" for key in transitions()},
}
OWN = {
    "observation": "my_observations",
    "action": "my_actions",
    "reward": "my_rewards",
    "terminated": "my_terminals",
    "truncated": "my_timeouts",
    "next_observation": "my_next_observations",
}


@pytest.mark.parametrize(("names", "kind"), [*((name, np.asarray) for name in NAMES), ("d4rl", torch.as_tensor)])
def test_values_and_flags_are_those_of_the_arrays(names: str, kind: Any) -> None:
    data = transitions()
    named: Any = {NAMES[names].get(key, key): kind(values) for key, values in data.items()}
    if names == "ted":
        named = TensorDict({key: torch.as_tensor(np.asarray(values)) for key, values in named.items()}, [N])
    path = rbdata.from_arrays(named, "my/x", map=OWN if names == "own" else None)
    steps = rbdata.open_dataset(path)[:]
    np.testing.assert_array_equal(steps["observation"], data["observations"])
    np.testing.assert_array_equal(steps["next", "observation"], data["next_observations"])
    np.testing.assert_array_equal(steps["action"], data["actions"])
    np.testing.assert_array_equal(steps["next", "reward"][:, 0], data["rewards"])
    np.testing.assert_array_equal(steps["next", "terminated"][:, 0], data["terminals"])
    np.testing.assert_array_equal(steps["next", "truncated"][:, 0], data["timeouts"])
    assert rbdata.verify("my/x").ok


def test_stated_successors_keep_their_bits() -> None:
    """The sign of a zero, the payload of a NaN, and what differs from the next row by rounding."""
    states = np.zeros((N + 1, 3), np.float32)
    states[:, 0] = np.arange(N + 1)
    data = {**transitions(), "observations": states[:-1], "next_observations": states[1:].copy()}
    data["next_observations"][:, 1] = -0.0
    data["next_observations"][100, 0] = np.nextafter(np.float32(101), np.float32(0))
    nans = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)
    data["observations"][51, 2], data["next_observations"][50, 2] = nans
    whole = rbdata.open_dataset(rbdata.from_arrays(data, "my/whole"))[:]
    episode = {
        "observation": data["observations"],
        "action": data["actions"],
        "reward": data["rewards"],
        "next_observation": data["next_observations"],
        "truncated": True,
    }
    paths = [rbdata.from_episodes([episode, episode], "my/list")]
    paths.append(rbdata.from_episodes((one for one in (episode, episode)), "my/generated"))
    wanted = data["next_observations"].view(np.uint32)
    assert (whole["next", "observation"].numpy().view(np.uint32) == wanted).all()
    assert (whole["observation"].numpy().view(np.uint32) == data["observations"].view(np.uint32)).all()
    for path in paths:
        dataset = rbdata.open_dataset(path)
        assert (dataset[:]["next", "observation"][:N].numpy().view(np.uint32) == wanted).all()
    assert (rbdata.open_dataset("my/list").episodes.lengths == [N, N]).all()


def test_tensors_that_numpy_lacks_are_stored_by_value() -> None:
    """What torch puts off, and fractions of few bits."""
    data: dict[str, Any] = transitions()
    values = torch.as_tensor(data["observations"])
    pairs = torch.complex(values, values + 1)
    data |= {"negated": torch._neg_view(values), "conjugated": pairs.conj().imag}
    data |= {"brain": values.bfloat16(), "eight": values.to(torch.float8_e5m2), "half": values.half()}
    extra = ("negated", "conjugated", "brain", "eight", "half")
    steps = rbdata.open_dataset(rbdata.from_arrays(data, "my/lazy", map={name: name for name in extra}))[:]
    for name in extra:
        np.testing.assert_array_equal(steps[name].float(), data[name].float().resolve_neg(), name)
    assert steps["brain"].dtype == torch.float32
    assert steps["half"].dtype == torch.float16


@pytest.mark.parametrize("given", ["goal", "goal/text", "goal/*", ["goal/x", "goal/text"]])
def test_an_array_of_the_map_that_cannot_be_read_says_why(given: Any) -> None:
    """Also one of a group, which had the others alone."""
    goal = {"x": np.zeros(N), "text": np.array(["a"] * N, object)}
    with pytest.raises(UsageError, match="goal/text cannot be read: its elements are Python objects"):
        rbdata.from_arrays({**transitions(), "goal": goal}, "my/x", map={"action": given})


@pytest.mark.parametrize("name", ["episode", "episode_lengths", "episode_ends"])
def test_episodes_of_a_generator_have_no_other_ends(name: str, root: Path) -> None:
    """Where observations have a row per step, the numbers split an episode without a word; lengths were lost."""
    one = {"observation": np.zeros((4, 2)), "action": np.zeros(4), "reward": np.zeros(4), "terminated": True}
    with pytest.raises(UsageError, match=f"its key {name} would say where episodes end"):
        rbdata.from_episodes([{**one, name: np.arange(4) // 2}], "my/x")
    assert not list(root.glob("my/*"))


def test_a_reward_that_is_given_twice_is_refused() -> None:
    one = {"observation": np.zeros((4, 2)), "action": np.zeros(4), "reward": np.zeros(4), "terminated": True}
    with pytest.raises(UsageError, match="the map gives the reward twice"):
        rbdata.from_episodes([{**one, "next": {"reward": np.ones(4)}}], "my/x")


@pytest.mark.parametrize("name", ["my key", "mask"])
def test_a_key_of_an_episode_that_cannot_be_stored_is_not_said_to_be_of_a_map(name: str) -> None:
    one = {"observation": np.zeros((5, 2)), "action": np.zeros(4), "reward": np.zeros(4), "terminated": True}
    with pytest.raises(UsageError, match=f"^episode 0: key '{name}' is"):
        rbdata.from_episodes([{**one, name: np.arange(4)}], "my/x")


def test_a_leaf_of_ted_that_is_named_step_is_kept() -> None:
    steps = {"observation": torch.rand(4, 2), "action": torch.zeros(4), "step": torch.arange(4) * 2}
    steps["next"] = {"reward": torch.zeros(4, 1), "done": torch.tensor([0, 0, 0, 1])[:, None]}
    assert rbdata.open_dataset(rbdata.from_arrays(steps, "my/x"))["step"].tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize(
    ("names", "given"),
    [
        (["x", "x/y"], {"info/z": "x"}),
        (["observation", "observation/pos"], {"observation": "observation"}),
        (["X", "x/y"], {"info/z": "X"}),
    ],
)
def test_two_keys_of_which_one_is_a_folder_say_what_to_do(
    names: list[str], given: dict[str, str], tmp_path: Path
) -> None:
    arrays = {"observation": np.zeros(4), "action": np.zeros(4), "reward": np.zeros(4), "done": np.arange(4) == 3}
    np.savez(tmp_path / "x.npz", **{**arrays, **dict.fromkeys(names, np.arange(4.0))})
    with pytest.raises(UsageError, match=r"both a tensor and a folder|only in case") as refused:
        rbdata.convert(tmp_path / "x.npz", "my/x")
    assert f"{names[1]} float64 [4]" in str(refused.value.hint)
    rbdata.convert(tmp_path / "x.npz", "my/x", map=given)


def test_a_checkpoint_of_records_says_how_to_read_it(tmp_path: Path) -> None:
    buffer = rbdata.TensorDictReplayBuffer(storage=rbdata.ListStorage(9), batch_size=2)
    buffer.extend(TensorDict({"observation": torch.zeros(4, 2)}, [4]))
    buffer.dumps(tmp_path / "ck")
    with pytest.raises(UsageError, match="holds records of their own"):
        rbdata.convert(tmp_path / "ck", "my/x")


def test_rounded_successors_of_frames_that_come_later_are_said() -> None:
    first = {"observation": np.zeros((4, 300), np.float32), "action": np.zeros(4), "reward": np.zeros(4)}
    first |= {"next_observation": np.zeros((4, 300), np.float32), "terminated": True}
    later = {**first, "next_observation": np.full((4, 300), -0.0, np.float32)}
    dataset = rbdata.open_dataset(rbdata.from_episodes((one for one in (first, later)), "my/frames"))
    assert any("sign of a zero" in note and ": 3 " in note for note in dataset.manifest.notes)


@pytest.mark.parametrize(
    ("suffix", "given", "observation", "info"),
    [
        (".csv", {"observation": "joint_*"}, [0, 1, 2], []),
        (".parquet", {"observation": "joint_0,joint_1,joint_2"}, [0, 1, 2], []),
        (".csv", {"observation": ["joint_2", "joint_0"]}, [2, 0], ["info/joint_1"]),
        (".parquet", {"observation": "joint_1", "goal": "joint_*"}, 1, []),
    ],
)
def test_a_map_may_name_numbered_columns_of_a_table(
    suffix: str, given: Any, observation: Any, info: list[str], tmp_path: Path
) -> None:
    columns = {f"joint_{i}": np.arange(4) * 10.0 + i for i in range(3)}
    table = pa.table({**columns, "act": np.arange(4), "rew": np.ones(4), "terminated": np.arange(4) == 3})
    write = csv.write_csv if suffix == ".csv" else parquet.write_table
    write(table, tmp_path / f"own{suffix}")
    dataset = rbdata.open_dataset(rbdata.convert(tmp_path / f"own{suffix}", "my/x", map=given))
    wanted = np.stack(list(columns.values()), -1)
    np.testing.assert_array_equal(dataset["observation"], wanted[:, observation])
    assert [name for name in dataset.schema.names if name.startswith("info")] == info
    if "goal" in given:
        np.testing.assert_array_equal(dataset["goal"], wanted)


def test_columns_that_a_map_joins_are_not_stored_twice() -> None:
    columns = {name: np.arange(4.0) for name in ("x", "y", "act", "rew", "more")}
    arrays = {**columns, "terminated": np.array([False, False, False, True])}
    dataset = rbdata.open_dataset(rbdata.from_arrays(arrays, "my/joined", map={"observation": "x,y"}, progress=False))
    assert [leaf.name for leaf in dataset.schema if leaf.name.startswith("info")] == ["info/more"]
    rbdata.from_arrays(arrays, "my/flag", map={"observation": "x,y,terminated"}, progress=False)
    assert rbdata.open_dataset("my/flag")["next", "terminated"].flatten().tolist() == [False, False, False, True]


def test_a_mixture_has_the_environment_of_its_members() -> None:
    episode = {"observation": np.zeros((4, 3)), "action": np.zeros((3, 1)), "reward": np.zeros(3), "terminated": True}
    for name, environment in (("a", "Pendulum-v1"), ("b", "Pendulum-v1"), ("c", "MountainCarContinuous-v0")):
        rbdata.from_episodes([episode], f"my/{name}", environment=environment, progress=False)
    assert rbdata.load(["my/a", "my/b"]).dataset.make_env().spec.id == "Pendulum-v1"
    with pytest.raises(UsageError, match="does not state an environment") as refused:
        rbdata.load(["my/a", "my/c"]).dataset.make_env()
    assert "--environment" in str(refused.value.hint)


def test_a_map_joins_vectors_and_numbers_of_a_robot(tmp_path: Path) -> None:
    """LeRobot's observation.state, of what robomimic has in several arrays."""
    position = np.arange(24, dtype=np.float32).reshape(8, 3)
    gripper, frames = np.arange(8, dtype=np.float32).reshape(8, 1), np.zeros((8, 4, 4, 3), np.uint8)
    with h5py.File(tmp_path / "own.hdf5", "w") as file:
        for number, rows in enumerate((slice(0, 5), slice(5, 8))):
            group = file.create_group(f"data/demo_{number}")
            group["obs/eef_pos"], group["obs/gripper"], group["obs/view"] = position[rows], gripper[rows], frames[rows]
            group["actions"], group["speed"] = position[rows], gripper[rows, 0]
    given: dict[str, Any] = {
        "reward": 0,
        "observation/state": "obs/eef_pos,obs/gripper,speed",
        "observation/view": "obs/view",
    }
    dataset = rbdata.open_dataset(rbdata.convert(tmp_path / "own.hdf5", "my/robot", map=given, unknown_next="zero"))
    np.testing.assert_array_equal(dataset["observation", "state"], np.concatenate([position, gripper, gripper], 1))
    assert [len(dataset.episodes), dataset.schema["observation/view"].shape] == [2, (4, 4, 3)]
    for entry, problem in (
        ("obs/eef_pos,obs/view", r"joins obs/view, whose rows have the shape \[4, 4, 3\]"),
        ("obs/eef_pos,obs/nothing", "there is no array obs/nothing"),
    ):
        with pytest.raises(UsageError, match=problem):
            rbdata.convert(tmp_path / "own.hdf5", "my/other", map={**given, "observation/state": entry})


def test_columns_are_joined_in_every_file_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for number in range(12):
        lines = [f"{number},{row},0,{row}" for row in range(3)]
        (tmp_path / "runs" / f"run{number}.csv").write_text("\n".join(["left,right,act,rew", *lines]))
    given = {"observation": "left,right", "episode": 0}
    stored = rbdata.open_dataset(rbdata.convert(tmp_path / "runs", "my/runs", map=given))
    assert stored["observation"].tolist() == [[number, row] for number in range(12) for row in range(2)]


def test_arrays_with_a_dimension_of_episodes_say_how_to_give_them() -> None:
    arrays = {"obs": np.zeros((3, 5, 2)), "act": np.zeros((3, 5)), "rew": np.zeros((3, 5))}
    with pytest.raises(UsageError) as caught:
        rbdata.from_arrays(arrays | {"done": np.zeros((3, 5), bool)}, "my/x")
    assert caught.value.hint is not None and "episode_lengths" in caught.value.hint


def test_a_map_may_name_what_ted_has_under_next() -> None:
    data = transitions()
    names = {"next/reward": "r", "next/terminated": "t", "next/observation": "n"}
    theirs = {"r": data.pop("rewards"), "t": data.pop("terminals"), "n": data.pop("next_observations")}
    dataset = rbdata.open_dataset(rbdata.from_arrays(data | theirs, "my/x", map=names))
    np.testing.assert_array_equal(dataset["next/reward"][:, 0], theirs["r"])
    np.testing.assert_array_equal(dataset["next/observation"], theirs["n"])


@pytest.mark.parametrize("rewards", [[2**24 + 1, 5], [0.1, 1e-50], [True, False]])
def test_rewards_are_float32(rewards: list[float]) -> None:
    arrays = {"obs": np.zeros((2, 2)), "act": np.zeros(2), "rew": np.array(rewards), "terminated": np.arange(2) == 1}
    dataset = rbdata.open_dataset(rbdata.from_arrays(arrays, "my/rounded"))
    np.testing.assert_array_equal(dataset["next/reward"].view(-1), np.float32(rewards))


def test_data_without_rewards_state_a_number() -> None:
    data = transitions()
    del data["rewards"]
    with pytest.raises(UsageError, match="reward=0"):
        rbdata.from_arrays(data, "my/x")
    dataset = rbdata.open_dataset(rbdata.from_arrays(data, "my/x", map={"reward": -1}))
    assert (dataset["next/reward"] == -1).all()
    assert "no rewards" in " ".join(dataset.manifest.notes)


def test_an_environment_by_id() -> None:
    rng = np.random.default_rng(0)
    data = {
        "obs": rng.random((9, 4), np.float32),
        "act": np.zeros(9, int),
        "rew": np.ones(9),
        "done": np.arange(9) % 3 == 2,
    }
    dataset = rbdata.open_dataset(rbdata.from_arrays(data, "my/x", environment="CartPole-v1"))
    assert dataset.make_env().spec.id == "CartPole-v1"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"observations": None}, "observation"),
        ({"actions": None}, "action"),
        ({"rewards": np.zeros(5)}, "differ in length"),
        ({"terminals": True}, "terminals has one value, not one per step"),
        ({"obs": np.zeros((N, 3))}, "may each be the observation"),
        ({"next_observations": np.zeros((N, 2), np.float32)}, "next_observations"),
        ({"observations": np.array([["a"] * 3] * N)}, "observations"),
        ({"observations": torch.zeros(N, 3).to_sparse()}, "observations is not read"),
        ({"observations": np.ma.masked_less(np.zeros((N, 3)), 1)}, "masked"),
        (dict.fromkeys(transitions(), np.zeros(0)), "no rows"),
        ({key: values[:1] for key, values in transitions().items() if key != "next_observations"} | NO_NEXT, "no step"),
    ],
)
def test_what_is_missing_or_ambiguous_is_said_with_the_arrays(change: dict[str, Any], text: str, root: Path) -> None:
    data = {key: values for key, values in {**transitions(), **change}.items() if values is not None}
    with pytest.raises(UsageError, match=text):
        rbdata.from_arrays(data, "my/x")
    assert not (root / "my").exists()


@pytest.mark.parametrize(
    "extra",
    [
        {"info/x": np.arange(N), "info": {"x": np.arange(N) * 2}},
        {"info": {1: np.arange(N), "1": np.arange(N) * 2}},
    ],
    ids=["nested", "number"],
)
def test_two_arrays_of_one_name_are_refused(extra: dict[str, Any], root: Path) -> None:
    with pytest.raises(UsageError, match=r"two arrays are named info/[x1]"):
        rbdata.from_arrays({**transitions(), **extra}, "my/twice")
    assert not (root / "my").exists()


@pytest.mark.parametrize("name", ["terminals", "next_observations"])
def test_flags_and_successors_that_cannot_be_read_are_not_left_out(name: str, root: Path) -> None:
    arrays: dict[str, Any] = {**transitions(), "episode_lengths": [100, 200]} if name == "terminals" else transitions()
    arrays[name] = arrays[name].astype(object)
    with pytest.raises(UsageError, match=f"{name} may be the .*, and is not read") as error:
        rbdata.from_arrays(arrays, "my/objects")
    assert "Python objects" in str(error.value.hint)
    assert not (root / "my").exists()


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("masks", {}),
        ("not_done", {"timeouts": transitions()["timeouts"]}),
        ("dones_float", {"episode_lengths": [100, 200]}),
        ("Is_Terminal", {}),
        ("discount", {"episode_lengths": [100, 200]}),
        ("data/is_last", {}),
    ],
)
def test_flags_of_other_libraries_are_not_left_out(name: str, ends: dict[str, Any], root: Path) -> None:
    arrays = {key: values for key, values in transitions().items() if key not in ("terminals", "timeouts")}
    arrays |= {**ends, name: transitions()["terminals"]}
    with pytest.raises(UsageError, match=f"{name} may say where episodes end"):
        rbdata.from_arrays(arrays, "my/flags")
    assert not (root / "my").exists()
    rbdata.from_arrays(arrays, "my/kept", map={"info/flag": name})
    rbdata.from_arrays({**arrays, "terminals": np.zeros(N, bool)}, "my/stated")


@pytest.mark.parametrize(
    ("name", "end"),
    [("masks", "terminals"), ("not_done", "dones"), ("discounts", "dones"), ("data/Masks", "terminals")],
)
def test_ends_of_time_limits_are_not_taken_as_terminated(name: str, end: str, tmp_path: Path) -> None:
    """OGBench's agents: terminals end trajectories, also by time limits, and masks are 0 where one terminated."""
    ends, masks = (np.arange(20) % 5 == 4).astype(np.float32), np.ones(20, np.float32)
    masks[9] = 0
    arrays = {"obs": np.arange(20.0), "act": np.zeros(20), "rew": np.zeros(20), end: ends, name: masks}
    np.savez(tmp_path / "maze.npz", **arrays)
    for make in (lambda: rbdata.convert(tmp_path / "maze.npz", "my/x"), lambda: rbdata.from_arrays(arrays, "my/x")):
        with pytest.raises(UsageError, match=f"3 of 4 steps that are terminated by {end} are not by {name}") as error:
            make()
        assert f"terminated = {name} == 0; truncated = ({end} == 1) & ({name} == 1)" in str(error.value.hint)
    both = {"terminated": masks == 0, "truncated": (ends == 1) & (masks == 1)}
    stated = rbdata.from_arrays({**{key: arrays[key] for key in ("obs", "act", "rew", name)}, **both}, "my/stated")
    assert rbdata.open_dataset(stated).episodes.outcomes.tolist() == [2, 1, 2, 2]
    for stated_map in ({"terminated": end}, {"info/valid": name}):  # the map says what they mean
        made = rbdata.open_dataset(rbdata.from_arrays(arrays, "my/mapped", map=stated_map, force=True))
        assert made.episodes.outcomes.tolist() == [1] * 4
    rbdata.from_arrays({**arrays, name: 1 - ends}, "my/d4rl")


def test_files_in_the_order_of_dm_env_are_not_taken_for_steps(tmp_path: Path) -> None:
    rows = np.arange(6, dtype=np.float32)[:, None]
    for number in range(2):
        names = ("observation", "action", "reward", "discount")
        np.savez(tmp_path / f"20261126_{number}_5.npz", **dict.fromkeys(names, rows))
    with pytest.raises(UsageError, match="discount may say where episodes end") as error:
        rbdata.convert(tmp_path, "my/drq")
    assert "action[1:]" in str(error.value.hint)


def test_the_ends_of_d3rlpy_1_and_successors_of_rllib(tmp_path: Path) -> None:
    ends, there = np.isin(np.arange(9), [2, 5, 8]), np.arange(9.0)[:, None]
    steps = {"actions": there, "rewards": there, "terminals": np.arange(9) == 2}
    with h5py.File(tmp_path / "d3rlpy.h5", "w") as file:
        for key, values in {**steps, "observations": there, "episode_terminals": ends, "version": np.zeros(1)}.items():
            file[key] = values
    dataset = rbdata.open_dataset(rbdata.convert(tmp_path / "d3rlpy.h5", "my/d3rlpy"))
    assert dataset.episodes.outcomes.tolist() == [1, 2, 2]
    assert dataset[:]["next", "observation"].squeeze(-1).tolist() == [1, 2, 0, 4, 5, 7, 8]
    arrays = {**steps, "obs": there, "new_obs": there + 1, "truncateds": ends & ~steps["terminals"]}
    assert len(rbdata.open_dataset(rbdata.from_arrays(arrays, "my/rllib"))) == 9


def test_files_of_several_kinds_are_converted_one_by_one_and_joined(tmp_path: Path) -> None:
    arrays = {"obs": np.arange(4.0), "act": np.zeros(4), "rew": np.zeros(4), "done": np.arange(4) == 3}
    np.savez(tmp_path / "a.npz", **arrays)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.update(arrays)
    with pytest.raises(UsageError, match=r"holds \.h5, \.npz") as error:
        rbdata.convert(tmp_path, "my/all")
    assert 'rbdata.concat(["my/a", "my/b"]).save("my/all")' in str(error.value.hint)
    for name in ("a.npz", "b.h5"):
        rbdata.convert(tmp_path / name, f"my/{name[0]}")
    rbdata.concat(["my/a", "my/b"]).save("my/all")
    assert len(rbdata.open_dataset("my/all")) == 8


def test_a_file_whose_flags_have_other_names_is_refused(tmp_path: Path) -> None:
    steps = {"obs": np.arange(4.0), "act": np.zeros(4), "rew": np.zeros(4)}
    np.savez(tmp_path / "a.npz", **steps, terminated=np.zeros(4, bool), truncated=np.arange(4) == 3)
    np.savez(tmp_path / "b.npz", **steps, dones=np.arange(4) == 3)
    with pytest.raises(UsageError, match=r"b\.npz is unlike a\.npz: terminated is dones, and terminated there"):
        rbdata.convert(tmp_path, "my/mixed")


def test_whole_numbers_and_fractions_of_several_files_are_fractions(tmp_path: Path) -> None:
    """Rewards of the second file were cut to whole numbers."""
    for number, rewards in enumerate(([0, 1, 0, 1], [0.5, 0.25, 0, 1])):
        lines = [f"{row},{row},{reward},{int(number == 1 and row == 3)}" for row, reward in enumerate(rewards)]
        (tmp_path / f"part-{number}.csv").write_text("\n".join(["obs,act,rew,done", *lines]))
    stored = rbdata.open_dataset(rbdata.convert(tmp_path, "my/csv"))
    assert stored["next", "reward"].flatten().tolist() == [0, 1, 0, 1, 0.5, 0.25, 0, 1]


def test_an_episode_whose_number_goes_on_in_the_next_file_goes_on(tmp_path: Path) -> None:
    def write(*numbers: list[int]) -> None:
        for part, episode in enumerate(numbers):
            steps = np.arange(len(episode), dtype=np.float32)
            table = {"obs": steps, "act": steps, "next.reward": steps, "next.done": np.diff([*episode, -1]) != 0}
            parquet.write_table(pa.table({**table, "episode": episode}), tmp_path / f"part-{part}.parquet")

    write([0, 0, 0, 1], [1, 1, 2, 2])
    assert rbdata.open_dataset(rbdata.convert(tmp_path, "my/split", source="arrays")).episodes.lengths.tolist() == [
        3,
        3,
        2,
    ]
    write([0, 0, 0, 1], [2, 2, 3, 3])
    assert len(rbdata.open_dataset(rbdata.convert(tmp_path, "my/whole", source="arrays")).episodes) == 4


@pytest.mark.parametrize("done", [True, np.arange(4) == 3, [[0], [0], [0], [1]]])
@pytest.mark.parametrize(("flags", "outcome"), [({}, 1), ({"terminated": False}, 2), ({"truncated": False}, 1)])
def test_done_of_an_episode_is_what_it_is_in_arrays(done: Any, flags: dict[str, Any], outcome: int) -> None:
    episode = {"observation": np.arange(5.0), "action": np.zeros(4), "reward": np.zeros(4), "done": done, **flags}
    dataset = rbdata.open_dataset(rbdata.from_episodes([episode, episode], "my/done"))
    assert dataset.episodes.outcomes.tolist() == [outcome, outcome]


@pytest.mark.parametrize("names", NAMES)
def test_episodes_may_have_the_names_that_arrays_may_have(names: str) -> None:
    theirs = {key: NAMES[names].get(key, key) for key in transitions()} if names != "own" else {}
    data = {theirs.get(key, key): value for key, value in transitions().items()}
    ends = np.flatnonzero(transitions()["terminals"] | transitions()["timeouts"]) + 1
    parts = [slice(low, high) for low, high in zip([0, *ends[:-1]], ends)]
    episodes = [TensorDict({key: torch.as_tensor(value[part]) for key, value in data.items()}) for part in parts]
    arrays = rbdata.open_dataset(rbdata.from_arrays(data, "my/arrays"))
    dataset = rbdata.open_dataset(rbdata.from_episodes(episodes, "my/episodes"))
    assert dataset.episodes.outcomes.tolist() == arrays.episodes.outcomes.tolist()
    assert (dataset[:] == arrays[:]).all()


def test_two_names_of_one_role_and_flags_of_other_libraries_in_episodes_are_refused(root: Path) -> None:
    episode = {"observation": np.arange(4.0), "action": np.zeros(4), "reward": np.zeros(4)}
    for more, text in (
        ({"is_terminal": np.zeros(4)}, "is_terminal may say where"),
        ({"dones": True, "Done": True}, "dones, Done may each be the done"),
        ({"obs": np.zeros(4), "done": {"a": 1}}, "done is a dictionary"),
    ):
        with pytest.raises(UsageError, match=f"episode 0: {text}"):
            rbdata.from_episodes([{**episode, **more}], "my/x")
    assert not (root / "my").exists()


def test_a_value_that_cannot_be_stored_leaves_nothing(root: Path) -> None:
    data = transitions()
    data["rewards"][7] = np.inf
    with pytest.raises(CorruptSourceError, match="row 7"):
        rbdata.from_arrays(data, "my/x")
    assert not list(root.rglob("*.memmap"))
    rbdata.from_arrays(transitions(), "my/x")


def test_a_dataset_that_is_there_is_replaced_when_asked() -> None:
    rbdata.from_arrays(transitions(), "my/x")
    with pytest.raises(DatasetExistsError):
        rbdata.from_arrays(transitions(), "my/x")
    short = {key: values[-40:] for key, values in transitions().items()}
    assert len(rbdata.open_dataset(rbdata.from_arrays(short, "my/x", force=True))) == 40


def test_the_arrays_of_the_caller_stay_as_they_are_and_may_be_changed_afterwards() -> None:
    data = transitions()
    del data["next_observations"]
    before = {key: values.copy() for key, values in data.items()}
    path = rbdata.from_arrays(data, "my/x")
    for key, values in before.items():
        np.testing.assert_array_equal(data[key], values)
    stored = rbdata.open_dataset(path)["observation"].clone()
    data["observations"][:] = 0
    np.testing.assert_array_equal(rbdata.open_dataset(path)["observation"], stored)


@pytest.mark.parametrize("dataset_id", ["atari/Pong/5", "gymnasium/mine", "arrays/x"])
def test_own_data_do_not_take_the_id_of_a_source(dataset_id: str, tmp_path: Path, root: Path) -> None:
    with pytest.raises(UsageError, match="is the id of a dataset of the source"):
        rbdata.from_arrays(transitions(), dataset_id)
    with pytest.raises(UsageError, match="is the id of a dataset of the source"):
        rbdata.from_episodes(episodes([3]), dataset_id)
    np.savez(tmp_path / "own.npz", **transitions())
    with pytest.raises(UsageError, match="is the id of a dataset of the source"):
        rbdata.convert(tmp_path / "own.npz", dataset_id)
    assert not root.exists()
    rbdata.from_arrays(transitions(), "lab/x")


def test_what_is_unpacked_lies_below_the_root(tmp_path: Path, root: Path) -> None:
    np.savez_compressed(tmp_path / "own.npz", **transitions())
    unpacked: list[str] = []
    seen = Listener(on_stage=lambda stage: unpacked.extend(path.name for path in root.glob(".unpacked-*/*")))
    rbdata.convert(tmp_path / "own.npz", "my/x", listener=seen)
    assert unpacked and not list(root.glob(".unpacked-*"))


# -- episodes ------------------------------------------------------------------------------------------------------------


def episodes(lengths: list[int], frames: bool = False) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    made = []
    for number, length in enumerate(lengths):
        states = rng.normal(size=(length + 1, 2))
        pixels = rng.integers(0, 9, (length + 1, 40, 40), np.uint8)
        made.append(
            {
                "observation": {"pixels": pixels, "state": states} if frames else states,
                "action": rng.normal(size=(length, 1)).astype(np.float32),
                "reward": np.arange(length) + number,
                "terminated": number % 2 == 0,
                "truncated": number % 2 == 1,
                "goal": np.full((length, 2), number),
            }
        )
    return made


def assert_episodes(dataset: Any, wanted: list[dict[str, Any]]) -> None:
    assert len(dataset.episodes) == len(wanted)
    for number, one in enumerate(wanted):
        steps = dataset.episode(number)
        leaves = one["observation"] if isinstance(one["observation"], dict) else {None: one["observation"]}
        for name, states in leaves.items():
            key = ("observation",) if name is None else ("observation", name)
            np.testing.assert_array_equal(steps[key], states[:-1])
            after = ("next", *key)
            np.testing.assert_array_equal(steps[after], states[1:])
        np.testing.assert_array_equal(steps["action"], one["action"])
        np.testing.assert_array_equal(steps["goal"], one["goal"])
        np.testing.assert_array_equal(steps["next", "reward"][:, 0], one["reward"])
        for flag in ("terminated", "truncated"):
            assert steps["next", flag][:, 0].tolist() == [False] * (len(steps) - 1) + [one[flag]]


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 5), min_size=1, max_size=20), st.booleans())
def test_episodes_are_stored_as_they_come(lengths: list[int], frames: bool) -> None:
    made = episodes(lengths, frames)
    assert_episodes(rbdata.open_dataset(rbdata.from_episodes(iter(made), "my/x", force=True)), made)


def test_a_generator_may_use_its_memory_again() -> None:
    made = episodes([4, 4, 4])

    def reusing() -> Iterator[dict[str, Any]]:
        buffer = {key: np.array(value) for key, value in made[0].items() if isinstance(value, np.ndarray)}
        for one in made:
            for key, memory in buffer.items():
                memory[:] = one[key]
            yield {**one, **buffer}

    assert_episodes(rbdata.open_dataset(rbdata.from_episodes(reusing(), "my/x")), made)


def test_flags_may_be_missing_or_per_step_and_a_last_observation_too() -> None:
    states = np.arange(8.0).reshape(4, 2)
    plain = {"observation": states, "action": np.zeros(4), "reward": np.zeros(4)}
    dataset = rbdata.open_dataset(
        rbdata.from_episodes([plain, {**plain, "terminated": np.array([0, 0, 0, 1])}], "my/x")
    )
    assert dataset.episodes.lengths.tolist() == [3, 4]  # what follows the first one's last step is not known
    assert dataset["next/truncated"].reshape(-1).tolist() == [False, False, True, False, False, False, False]
    assert dataset["next/terminated"].reshape(-1).tolist() == [False] * 6 + [True]
    assert "Dropped: 1 of 8" in " ".join(dataset.manifest.notes)


def test_flags_may_have_a_dimension_of_one_in_episodes_of_any_length() -> None:
    def episode(steps: int) -> dict[str, Any]:
        rows = {"observation": np.zeros((steps + 1, 2)), "action": np.zeros(steps), "reward": np.zeros((steps, 1))}
        return {**rows, "terminated": np.arange(steps)[:, None] == steps - 1, "truncated": np.zeros((steps, 1), bool)}

    lengths = [3, 1, 2, 1, 1, 4]
    dataset = rbdata.open_dataset(rbdata.from_episodes(map(episode, lengths), "my/flags", progress=False))
    assert dataset.episodes.lengths.tolist() == lengths
    assert dataset["next", "terminated"].sum() == len(lengths)


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ({"action": np.zeros((3, 2), np.float32)}, "episode 70 is unlike"),
        ({"reward": [0.0, np.nan, 0.0]}, "reward"),
        ({"reward": 1.0}, "episode 70: reward has one value"),
        ({"terminated": np.ma.masked_array([0, 0, 0], [0, 0, 1])}, "episode 70: terminated has masked elements"),
        ({"observation": np.zeros((7, 2))}, "observation"),
        ({"goal": None}, "episode 70"),
        ({"action": "left"}, "action"),
    ],
)
def test_an_episode_that_does_not_fit_is_named_and_leaves_nothing(bad: dict[str, Any], text: str, root: Path) -> None:
    good = episodes([3] * 70)
    with pytest.raises(rbdata.RbdataError, match=text):
        rbdata.from_episodes([*good, {**good[0], **bad}], "my/x")
    assert not list(root.rglob("*.memmap"))


def test_what_a_generator_raises_is_raised_and_leaves_nothing(root: Path) -> None:
    def failing() -> Iterator[dict[str, Any]]:
        yield from episodes([3] * 90)
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        rbdata.from_episodes(failing(), "my/x")
    assert not list(root.rglob("*.memmap"))
    with pytest.raises(UsageError, match="no episodes"):
        rbdata.from_episodes([], "my/x")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"observation": np.zeros((3, 2))}, "observation has 3 rows, and the episode 4 steps"),
        ({"observation": np.zeros((6, 2))}, "observation has 6 rows"),
        ({"goal": np.zeros((5, 2))}, "goal has 5 rows"),
        ({"seed": 3}, "seed has one value"),
    ],
)
def test_rows_that_are_not_those_of_the_steps_are_refused_though_another_episode_makes_up_for_them(
    change: dict[str, Any], text: str
) -> None:
    first, second = episodes([4, 4])
    second["observation"] = np.zeros((6 if len(change.get("observation", ())) == 3 else 4, 2))
    with pytest.raises(UsageError, match=text):
        rbdata.from_episodes([{**first, **change}, second], "my/x")


def test_episodes_with_and_without_a_final_observation() -> None:
    first, second, third = episodes([4, 4, 4])
    second["observation"], second["terminated"] = second["observation"][:4], True
    dataset = rbdata.open_dataset(rbdata.from_episodes([first, second, third], "my/x"))
    assert dataset.episodes.lengths.tolist() == [4, 4, 4]
    np.testing.assert_array_equal(dataset.episode(2)["next", "observation"], third["observation"][1:])


# -- continued -----------------------------------------------------------------------------------------------------------

#: A program whose episodes are told where to begin; it writes where, and kills itself at the episode that a file names.
PROGRAM = """
import os, sys
from pathlib import Path
import numpy as np
import rbdata
from rbdata.datasets import own_data
from rbdata.datasets.ingest import part
from rbdata.datasets.ingest.request import Listener
from rbdata.datasets.sources.arrays.reader import TablesUnit

TablesUnit.keep_seconds = 0
own_data._TOGETHER_EPISODES, own_data._TOGETHER_BYTES, part.SAMPLE_BYTES = 64, 1 << 18, 1 << 20
kind, here = sys.argv[1], Path(sys.argv[2])


def episodes(first):
    with open(here / "asked", "a") as file:
        file.write(f"{first} ")
    kill = int((here / "kill").read_text())
    for number in range(first, 90 if kind == "frames" else 190):
        if number == kill:
            os.kill(os.getpid(), 9)
        rng = np.random.default_rng(number)
        length = 1 + number % 30
        states = rng.normal(size=(length + 1, 3))
        if kind == "frames":
            states = rng.integers(0, 9, (length + 1, 40, 40), np.uint8)
        elif number % 50 == 1:
            states = states[:-1]
        yield {"observation": states, "action": rng.normal(size=length), "reward": rng.normal(size=length),
               "terminated": number % 2}


generated = {"episodes": episodes(0) if kind == "identity" else episodes, "identity": "mine"}
notes = []
if kind == "plain":
    generated = {"episodes": episodes(0)}
rbdata.from_episodes(dataset_id="my/x", listener=Listener(on_note=notes.append), **generated)
print(*notes)
"""


def run_program(kind: str, folder: Path, root: Path, kill: int = -1) -> str:
    """Run the program in a forked child, which need not import everything again, and return what it printed."""
    program, printed = folder / "program.py", folder / "printed"
    program.write_text(PROGRAM)
    (folder / "kill").write_text(str(kill))
    pid = os.fork()
    if pid == 0:
        try:
            os.environ["RBDATA_ROOT"] = str(root)
            sys.argv[:] = [str(program), kind, str(folder)]
            with printed.open("w") as file, redirect_stdout(file):
                runpy.run_path(str(program), run_name="__main__")
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == (0 if kill < 0 else -signal.SIGKILL)
    return printed.read_text()


def contents(root: Path) -> dict[str, Any]:
    files = {path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*")) if path.is_file()}
    made = "my/x/rbdata.json"
    found = {name: path.read_bytes() for name, path in files.items() if name != made}
    return {
        **found,
        made: [line for line in files[made].open() if '"created"' not in line and '"checksum"' not in line],
    }


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize(("kind", "kills"), [("rows", [3, 140, 189]), ("frames", [89]), ("identity", [140])])
def test_a_killed_run_continues_with_the_same_bytes(kind: str, kills: list[int], tmp_path: Path) -> None:
    run_program(kind, tmp_path, tmp_path / "whole")
    (tmp_path / "asked").unlink()
    for kill in kills:
        run_program(kind, tmp_path, tmp_path / "root", kill)
    run_program(kind, tmp_path, tmp_path / "root")
    assert contents(tmp_path / "root") == contents(tmp_path / "whole")
    asked = [int(number) for number in (tmp_path / "asked").read_text().split()]
    if kind == "identity":
        return
    later = [number for number in asked if number]  # each run looks at the first episode again
    assert len(asked) - len(later) == len(kills) + 1
    assert later and kills[-1] - 64 < later[-1] <= kills[-1]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_killed_generator_starts_over_and_says_so(tmp_path: Path) -> None:
    run_program("plain", tmp_path, tmp_path / "root", 140)
    assert "is made from the beginning" in run_program("plain", tmp_path, tmp_path / "root")
    assert len(rbdata.open_dataset("my/x").episodes) == 190


class Begun:
    """Episodes that can be begun again, and fail at one of them."""

    def __init__(self, made: list[dict[str, Any]], fails: int | None = None) -> None:
        self.made, self.fails, self.asked = made, fails, list[int]()

    def __call__(self, first: int) -> Iterator[dict[str, Any]]:
        self.asked.append(first)
        for number in range(first, len(self.made)):
            if number == self.fails:
                raise ZeroDivisionError("mine")
            yield self.made[number]


def test_what_was_made_before_an_error_is_kept() -> None:
    made = episodes([3] * 90)
    with pytest.raises(ZeroDivisionError):
        rbdata.from_episodes(Begun(made, fails=80), "my/x", identity="v1")
    assert [entry.state for entry in rbdata.list_datasets()] == ["partial"]
    again = Begun(made)
    assert_episodes(rbdata.open_dataset(rbdata.from_episodes(again, "my/x", identity="v1")), made)
    assert again.asked == [0, 65]
    assert rbdata.open_dataset("my/x").manifest.source["identity"] == "v1"


@pytest.mark.parametrize("damage", ["observation.0.rows", "part.json"])
def test_what_changed_since_it_was_kept_is_made_again(damage: str, root: Path) -> None:
    made = episodes([3] * 90)
    with pytest.raises(ZeroDivisionError):
        rbdata.from_episodes(Begun(made, fails=80), "my/x", identity="v1")
    (found,) = root.rglob(damage)
    content = found.read_bytes()
    found.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
    again = Begun(made)
    assert_episodes(rbdata.open_dataset(rbdata.from_episodes(again, "my/x", identity="v1")), made)
    assert again.asked == [0]


@pytest.mark.parametrize("damage", ["next.reward.0.rows", "part.json"])
def test_parts_after_a_changed_one_are_made_again(damage: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They go on from where it ended, and the one that takes its place may end elsewhere."""
    made = episodes([3] * 280)
    monkeypatch.setattr(TablesUnit, "keep_seconds", 0)
    with pytest.raises(ZeroDivisionError):
        rbdata.from_episodes(Begun(made, fails=270), "my/x", identity="v1")
    found = next(path for path in sorted(root.rglob(damage)) if path.parent.name == "00000.0")
    assert (found.parent.with_name("00000.1") / "part.json").exists()
    found.write_bytes(found.read_bytes()[:-1])
    monkeypatch.setattr(TablesUnit, "keep_seconds", 1e9)
    with pytest.raises(ZeroDivisionError):
        rbdata.from_episodes(Begun(made, fails=200), "my/x", identity="v1")
    assert_episodes(rbdata.open_dataset(rbdata.from_episodes(Begun(made), "my/x", identity="v1")), made)


def test_other_episodes_are_not_added_to_those_that_are_there() -> None:
    made = episodes([3] * 90)
    with pytest.raises(ZeroDivisionError):
        rbdata.from_episodes(Begun(made, fails=80), "my/x", identity="v1")
    for other, identity in ((made, "v2"), (episodes([4] * 90), "v1")):
        with pytest.raises(DatasetExistsError, match="begun with other episodes"):
            rbdata.from_episodes(Begun(other), "my/x", identity=identity)
    with pytest.raises(DatasetExistsError):
        rbdata.from_episodes(made, "my/x")
    assert_episodes(rbdata.open_dataset(rbdata.from_episodes(made, "my/x", force=True)), made)


def test_a_function_without_an_identity_starts_over() -> None:
    made = episodes([3] * 90)
    with pytest.raises(ZeroDivisionError):
        rbdata.from_episodes(Begun(made, fails=80), "my/x")
    again = Begun(made)
    assert_episodes(rbdata.open_dataset(rbdata.from_episodes(again, "my/x")), made)
    assert again.asked == [0]


def test_a_function_without_an_argument_is_told_which_one_it_gets() -> None:
    with pytest.raises(UsageError, match="the number of the first episode wanted"):
        rbdata.from_episodes(lambda: episodes([3]), "my/x", identity="v1")  # type: ignore[misc]


def test_a_function_that_gives_no_episodes() -> None:
    with pytest.raises(UsageError, match="returned a NoneType"):
        rbdata.from_episodes(lambda first: None, "my/x", identity="v1")


@pytest.mark.parametrize(
    "names",
    [
        {"observation": "observations", "action": "actions", "reward": "rewards", "terminated": "terminals"},
        {"observation": "image", "action": "action", "reward": "reward", "terminated": "done"},
        {"observation": "observation", "action": "action", "reward": "reward", "terminated": "is_terminal"},
    ],
)
def test_own_files_are_not_taken_for_those_of_a_provider(tmp_path: Path, root: Path, names: dict[str, str]) -> None:
    """Keys that providers use too: they mean something else by an episode's last row."""
    rows = 6
    arrays = {
        "observation": np.arange(2.0 * rows, dtype=np.float32).reshape(rows, 2),
        "action": np.zeros((rows, 1), np.float32),
        "reward": np.arange(rows, dtype=np.float32),
        "terminated": np.arange(rows) % 3 == 2,
    }
    np.savez(tmp_path / "own.npz", **{names[key]: values for key, values in arrays.items()})
    dataset = rbdata.open_dataset(rbdata.convert(tmp_path / "own.npz", "my/own", map=names))
    assert dataset.manifest.source["name"] == "arrays"
    assert len(dataset) == rows and dataset["next", "terminated"].sum() == 2


def test_the_plan_says_what_is_assumed_and_left_out(tmp_path: Path) -> None:
    """As `convert --dry-run` shows it; only the dataset said it."""
    arrays = transitions()
    arrays["done"] = arrays.pop("terminals") | arrays.pop("timeouts")
    np.savez(tmp_path / "own.npz", **arrays, names=np.array(["a"] * N))
    plans: list[Any] = []
    made = rbdata.convert(tmp_path / "own.npz", "my/own", listener=Listener(on_estimate=plans.append))
    assumed, left_out = plans[0].notes
    assert assumed.startswith("done is taken as terminated") and left_out.startswith("Left out: names")
    assert set(plans[0].notes) <= set(rbdata.open_dataset(made).manifest.notes)
    assert plans[0].location == str(tmp_path / "own.npz")


@pytest.mark.parametrize("name", ["own.pkl", "own.pt"])
def test_a_pickle_is_refused_by_its_name(name: str, tmp_path: Path, root: Path) -> None:
    """Without a source it "does not say which source it is from", and not how to get rid of it."""
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(UsageError, match=f"{name} is a pickle") as caught:
        rbdata.convert(tmp_path / name, "my/own")
    assert "save the arrays" in str(caught.value.hint)
    assert not root.exists() or not list(root.rglob("rbdata.json"))


def test_another_map_or_changed_files_are_not_taken_for_the_dataset_that_is_there(tmp_path, monkeypatch):
    """They were "complete", with the arrays of the first request."""
    monkeypatch.setenv("RBDATA_ROOT", str(tmp_path / "root"))
    rows = {
        "x": np.ones((6, 2)),
        "y": np.zeros((6, 2)),
        "action": np.ones(6),
        "rewards": np.ones(6),
        "done": np.ones(6),
    }
    path = tmp_path / "own.npz"
    np.savez(path, **rows)
    first = {"observation": "x"}
    folder = rbdata.convert(path, "my/own", map=first)
    assert rbdata.convert(path, "my/own", map=first) == folder  # complete
    with pytest.raises(DatasetExistsError, match=r"my/own already exists, made with another map"):
        rbdata.convert(path, "my/own", map={"observation": "y"})
    with pytest.raises(DatasetExistsError, match="another map"):
        rbdata.convert(path, "my/own", map={**first, "reward": 0})
    made = path.stat().st_mtime_ns
    for time_ns in (made + 1, made - 10**12):  # in the same second; a file of the same name that was made earlier
        os.utime(path, ns=(time_ns, time_ns))
        with pytest.raises(DatasetExistsError, match="files that were changed since") as caught:
            rbdata.convert(path, "my/own", map=first)
        assert "append=True" in (caught.value.hint or "")
    with monkeypatch.context() as patch:
        patch.setattr(acquire, "find_existing", lambda *_: None)  # another process finished it in the meantime
        with pytest.raises(DatasetExistsError, match="another map"):
            rbdata.convert(path, "my/own", map={"observation": "y"})
    rbdata.convert(path, "my/own", map={"observation": "y"}, force=True)
    assert not rbdata.open_dataset("my/own")["observation"].any()


@pytest.mark.parametrize("made_of", ["arrays", "episodes"])
def test_what_another_process_made_meanwhile_is_not_taken_for_the_dataset_of_these_arrays(made_of, monkeypatch):
    """The call that waited for it returned its folder, with the other arrays."""

    def make(value):
        rows = {"action": np.full(4, value), "reward": np.ones(4)}
        if made_of == "arrays":
            return rbdata.from_arrays({"observation": np.zeros((4, 2)), **rows, "terminated": np.ones(4)}, "my/own")
        return rbdata.from_episodes([{"observation": np.zeros((5, 2)), **rows, "terminated": True}], "my/own")

    folder = make(1)
    monkeypatch.setattr(own_data, "find_existing", lambda *_: None)  # it was not there at first
    with pytest.raises(DatasetExistsError, match="my/own is there already"):
        make(2)
    assert rbdata.open_dataset(folder)["action"].unique().tolist() == [1]


@pytest.mark.parametrize("flag", [None, [None, True], {"a": 1}, float("nan"), "False", 2])
def test_a_flag_that_is_neither_true_nor_false_is_refused(flag):
    """None, as of a field that was left empty, was an AttributeError."""
    episode = {"observation": np.zeros((3, 2)), "action": np.ones(2), "reward": np.ones(2), "terminated": flag}
    with pytest.raises(UsageError, match=r"episode 0: terminated is .*, not true or false"):
        rbdata.from_episodes([episode], "my/flag")
