"""Specs and spaces of datasets, against those of TorchRL's environments and Gymnasium's own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gymnasium
import minari_tools
import numpy as np
import pytest
import rbdata
import torch
from effort import examples
from gymnasium import spaces
from gymnasium_envs import Everything
from hypothesis import given, settings
from rbdata import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    Unbounded,
)
from rbdata.datasets.ingest.spaces import space_json, space_leaves, text_rows
from rbdata.errors import MissingExtraError, RbdataError, UnknownKeyError
from rbdata.storage.bounds import leaf_bounds
from rbdata.storage.leaf import Leaf
from rbdata.storage.manifest import Manifest, read_manifest, write_manifest
from rbdata.storage.schema import Schema, ted_flags
from rbdata.storage.specs import gymnasium_space, make_spec
from rbdata.storage.window import nest
from space_strategies import ANY_SPACE
from storage_tools import Episode, make_episodes, write_dataset
from torchrl.envs import GymEnv

FROZEN = Path(__file__).parents[1] / "data" / "frozen" / "folders"


def stated(leaves, **of) -> Manifest:
    """A manifest with these leaves and spaces; there is no folder."""
    return Manifest("my/test", Schema((*leaves, *ted_flags())), 0, 0, {"name": "test"}, spaces=of)


def action(space, dtype="int64", shape=()) -> Manifest:
    return stated([Leaf("action", "step", dtype, shape)], action=space)


def no_count(name):
    raise AssertionError(f"{name} was read")


KINDS = [
    (spaces.Discrete(5), Categorical(5), OneHot(5, dtype=torch.int64)),
    (spaces.Discrete(5, start=-2), Bounded(-2, 2, shape=(), dtype=torch.int64), None),
    (spaces.MultiDiscrete([3, 5]), MultiCategorical([3, 5]), MultiOneHot([3, 5], dtype=torch.int64)),
    (spaces.MultiDiscrete([3, 5], start=[0, 1]), Bounded([0, 1], [2, 5], dtype=torch.int64), None),
    (spaces.MultiDiscrete([[3, 5]]), Bounded([[0, 0]], [[2, 4]], dtype=torch.int64), None),
    (spaces.MultiBinary([2, 3]), Binary(shape=(2, 3), dtype=torch.int8), None),
    (spaces.Box(-1, 2, (2,)), Bounded(-1, 2, shape=(2,)), None),
    (spaces.Box(-np.inf, np.inf, (2,)), Unbounded((2,)), None),
    (spaces.Box(0, 255, (2, 2), np.uint8), Unbounded((2, 2), dtype=torch.uint8), None),
    (spaces.Text(3, charset="abc"), Unbounded((3,), dtype=torch.uint8), None),
]


@pytest.mark.parametrize(("space", "spec", "one_hot"), KINDS, ids=[str(kind[0]) for kind in KINDS])
def test_kinds(space, spec, one_hot):
    leaves, _ = space_leaves(space_json(space), "action")
    manifest = action(space_json(space), leaves[0].dtype, leaves[0].shape)
    made = make_spec(manifest, no_count)
    assert type(made) is Composite and made.shape == torch.Size([])
    assert made["action"] == spec and made["next", "done"] == Categorical(2, shape=(1,), dtype=torch.bool)
    assert make_spec(manifest, no_count, categorical=False)["action"] == (spec if one_hot is None else one_hot)
    assert gymnasium_space(manifest, "action", no_count) == space


def test_spaces_that_say_less():
    """As OpenML and D4RL state them."""
    several = {"type": "MultiDiscrete", "nvec": [3, 5], "labels": {"a": ["x"]}, "columns": ["a", "b"]}
    manifest = action(several, shape=(2,))
    assert make_spec(manifest, no_count)["action"] == MultiCategorical([3, 5])
    assert gymnasium_space(manifest, "action", no_count) == spaces.MultiDiscrete([3, 5])
    box = action({"type": "Box", "shape": [3], "dtype": "float32"}, "float32", (3,))
    assert make_spec(box, no_count)["action"] == Unbounded((3,))
    assert gymnasium_space(box, "action", no_count) == spaces.Box(-np.inf, np.inf, (3,))


@settings(max_examples=examples(40), deadline=None)
@given(space=ANY_SPACE)
def test_values_of_any_space_are_in_its_spec(space):
    record = json.loads(json.dumps(space_json(space)))
    found, _ = space_leaves(record, "observation")
    manifest = stated([Leaf(one.key, "state", one.dtype, one.shape) for one in found], observation=record)
    spec = make_spec(manifest, no_count)
    assert gymnasium_space(manifest, "observation", no_count) == space
    space.seed(0)
    values = [space.sample() for _ in range(3)]
    columns = {leaf.name: torch.zeros(3, 1, dtype=getattr(torch, leaf.dtype)) for leaf in ted_flags()}
    for one in found:
        picked = [one.pick(value) for value in values]
        rows = text_rows(picked, one.shape[0], one.key) if one.is_text else np.stack(picked).astype(one.dtype)
        columns[one.key] = columns["next/" + one.key] = torch.from_numpy(rows.reshape(3, *one.shape))
    batch = nest(columns, (3,))
    assert spec.is_in(batch) and spec.expand(3).is_in(batch) and spec.is_in(spec.rand((2, 4)))
    for bounds in leaf_bounds(manifest.schema, manifest.spaces).values():
        if bounds.high is None or bounds.leaf.dtype == "uint8":
            continue
        key = tuple(bounds.leaf.name.split("/"))
        outside = batch.clone()
        outside[key] = torch.from_numpy(np.broadcast_to(bounds.high, (3, *bounds.leaf.shape)) + 1).to(batch[key].dtype)
        assert not spec.is_in(outside), key


@pytest.mark.parametrize("encoding", [True, False])
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "MountainCar-v0", "Acrobot-v1"])
def test_like_the_environments_spec(name, encoding):
    env = GymEnv(name, categorical_action_encoding=encoding)
    plain = gymnasium.make(name)
    record = {"observation": space_json(plain.observation_space), "action": space_json(plain.action_space)}
    leaves = [one for base, space in record.items() for one in space_leaves(space, base)[0]]
    manifest = stated([Leaf(one.key, "step", one.dtype, one.shape) for one in leaves], **record)
    ours = make_spec(manifest, no_count, encoding)
    spec = ours.to_torchrl()
    assert spec["observation"] == env.observation_spec["observation"] and spec["action"] == env.action_spec
    for key in ("done", "terminated", "truncated"):
        assert spec["next", key] == env.full_done_spec[key]
    assert spec["next", "reward"] == env.reward_spec


@pytest.mark.parametrize("folder", ["low", "frames"])
def test_batches_of_old_folders(folder):
    dataset = rbdata.open_dataset(FROZEN / folder)
    spec = dataset.spec
    for options in ({}, {"frame_stack": 3}, {"slice_len": 4}):
        batch = rbdata.load(dataset.path, batch_size=8, seed=0, **options).sample()
        assert spec.is_in(batch), options
    assert spec.expand(20).is_in(dataset[:20]) and spec.is_in(dataset[3]) and spec.is_in(spec.zero())
    batch["action"] += 9
    assert not spec.is_in(batch)
    assert dataset.action_space == spaces.Discrete(2 if folder == "low" else 4)
    assert dataset[0]["observation"].numpy() in dataset.observation_space


def test_a_minari_dataset_of_every_space(tmp_path, monkeypatch):
    minari_tools.with_root(monkeypatch, tmp_path / "minari")
    observation = spaces.Dict({**Everything.observation_space.spaces, "camera": spaces.Box(0, 9, (3, 2), np.uint8)})
    minari_tools.write("all/kinds-v0", observation, Everything.action_space, [4, 3])
    dataset = minari_tools.convert(tmp_path / "root", "all/kinds-v0")
    spec = dataset.spec
    assert spec.is_in(dataset[:])
    assert dataset.observation_space == observation and dataset.action_space == Everything.action_space
    assert spec["observation", "camera"] == Bounded(0, 9, shape=(3, 2), dtype=torch.uint8)
    assert spec["next", "observation", "inner", "kind"] == Bounded(3, 11, shape=(1,), dtype=torch.int64)
    assert spec["observation", "pair", "1"] == Categorical(2, shape=(1,))
    assert isinstance(spec["action", "pick"], MultiCategorical)


# -- what is not stated ----------------------------------------------------------------------------------------------


def test_without_spaces(tmp_path):
    episodes = make_episodes([3, 5], image=((4, 4), "uint8"), observation__a=((2,), "float32"))
    dataset = rbdata.Dataset(write_dataset(tmp_path, episodes, {"image": "zstd", "observation/a": "flat"}))
    spec = dataset.spec
    assert spec["next", "image"] == Unbounded((4, 4), dtype=torch.uint8) and spec.is_in(dataset[:])
    assert spec["action"] == Unbounded((), dtype=torch.int64)
    assert dataset.observation_space == spaces.Dict({"a": spaces.Box(-np.inf, np.inf, (2,))})
    ends = np.iinfo(np.int64)
    assert dataset.action_space == spaces.Box(ends.min, ends.max, (), np.int64)
    with pytest.raises(UnknownKeyError):
        gymnasium_space(dataset.manifest, "goal", no_count)


def test_a_number_that_is_not_stated(tmp_path):
    """Atari's manifests leave open how many actions a game has."""
    dataset = with_spaces(tmp_path, [6, 6], action={"type": "Discrete", "n": None, "note": "the minimal action set"})
    last = int(dataset["action"].max())
    assert dataset.spec["action"] == Categorical(last + 1) and dataset.action_space == spaces.Discrete(last + 1)


@pytest.mark.parametrize("package", ["torchrl.data", "gymnasium"])
def test_without_the_package(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    dataset = rbdata.open_dataset(FROZEN / "low")
    assert dataset.spec.is_in(dataset[:3])
    with pytest.raises(MissingExtraError) as caught:
        _ = dataset.spec.to_torchrl() if package == "torchrl.data" else dataset.action_space
    assert caught.value.hint == f"pip install {package.partition('.')[0]}"


HOSTILE = [
    {"type": "Box", "low": "nan", "high": 1},
    {"type": "Box", "low": 0, "high": "1; import os"},
    {"type": "Box", "low": [0, 1], "high": [1, 2, 3]},
    {"type": "Box", "low": [[0], [1, 2]], "high": 3},
    {"type": "Box", "low": 2, "high": 1},
    {"type": "Box", "low": {}, "high": 1},
    {"type": "Box", "shape": [10**12]},
    {"type": "Box", "shape": "[]"},
    {"type": "Discrete", "n": 10**30},
    {"type": "Discrete", "n": 0},
    {"type": "Discrete", "n": "five"},
    {"type": "Discrete", "n": 5, "start": "inf"},
    {"type": "Discrete", "n": 5, "start": None},
    {"type": "Discrete", "n": [5]},
    {"type": "MultiDiscrete", "nvec": [3, 4]},
    {"type": "MultiDiscrete"},
    {"type": "MultiBinary", "shape": [1 << 50]},
    {"type": "Dict"},
    {"type": "Dict", "spaces": {"": None}},
    {"type": "Tuple", "spaces": {}},
    {"type": ["Box"]},
    {},
    "Box",
    None,
    {"type": "Dict", "spaces": {"../a": {"type": "Text"}}},
]


@pytest.mark.parametrize("space", HOSTILE, ids=str)
def test_hostile_manifests(space):
    manifest = action(space)
    for use in (
        lambda: make_spec(manifest, no_count),
        lambda: gymnasium_space(manifest, "action", no_count),
    ):
        with pytest.raises(RbdataError):
            use()


@pytest.mark.parametrize(
    "space", [{"type": "Text", "max_length": "long"}, {"type": "Graph"}, {"type": "Text"}], ids=str
)
def test_spaces_that_gymnasium_does_not_have(space):
    manifest = action(space, "uint8", (4,))
    assert make_spec(manifest, no_count)["action"] == Unbounded((4,), dtype=torch.uint8)
    with pytest.raises(RbdataError):
        gymnasium_space(manifest, "action", no_count)


# -- values outside --------------------------------------------------------------------------------------------------


def with_spaces(tmp_path, lengths, layout="flat", **of) -> rbdata.Dataset:
    """A dataset whose observations count the state rows: 0, 1, 2, ..."""
    episodes: list[Episode] = make_episodes(lengths)
    row = 0
    for episode in episodes:
        observation = episode.states["observation"]
        observation[:] = np.arange(row, row + len(observation))[:, None]
        row += len(observation)
    folder = write_dataset(tmp_path, episodes, layout)
    manifest = read_manifest(folder)
    manifest.spaces = of
    write_manifest(folder, manifest)
    return rbdata.Dataset(folder)
