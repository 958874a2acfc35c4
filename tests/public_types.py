"""The public functions as a user calls them: never run, `make types` checks what they take and return."""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import gymnasium
import rbdata
import torch
from rbdata.datasets.card.overview import Overview
from rbdata.datasets.local import LocalDataset
from rbdata.storage.episodes import EpisodeTable
from rbdata.storage.integrity import Report
from tensordict import TensorDict


def acquire(root: Path) -> None:
    assert_type(rbdata.download("Pong/5", root=root, mirror="/data/dqn", procs=8, shards="0-4", progress=True), Path)
    assert_type(rbdata.download("gymnasium/CartPole-v1", steps=500, seed=1, env_args={"a": 1}, codec="raw"), Path)
    assert_type(rbdata.download("csvlog/mine", options={"actions": "continuous"}), Path)
    assert_type(rbdata.convert("raw", "my/hopper", source="d4rl", dataset="hopper-medium-v2", shards=[0, 1]), Path)
    assert_type(rbdata.preprocess("Pong/5", ["rbdata:to_float", abs], dest="my/pong", args={"scale": 2}), Path)
    assert_type(rbdata.list_datasets(root=root), list[LocalDataset])
    assert_type(rbdata.verify("Pong/5", quick=True), Report)
    assert_type(rbdata.inspect(root / "my/pong"), Overview)
    rbdata.delete("Pong/5", root=str(root))


def discover() -> None:
    assert_type(rbdata.catalogue("atari"), rbdata.Catalogue)
    assert_type(rbdata.search("hopper medium", actions="continuous", max_size="2GB"), rbdata.Catalogue)
    assert_type(rbdata.info("Pong/5"), rbdata.CatalogueEntry)


def read(root: Path) -> None:
    dataset = assert_type(rbdata.open_dataset("Pong/5", root=root), rbdata.Dataset)
    assert_type(dataset["next/reward"], torch.Tensor)
    assert_type(dataset["next", "reward"], torch.Tensor)
    assert_type(dataset[3], TensorDict)
    assert_type(dataset[10:20], TensorDict)
    assert_type(dataset[torch.arange(4)], TensorDict)
    assert_type(dataset.read([1, 2], before=3), TensorDict)
    assert_type(dataset.episode(0), TensorDict)
    assert_type(dataset.episodes, EpisodeTable)
    assert_type(dataset.to_tensordict(), TensorDict)


def specs(dataset: rbdata.Dataset) -> None:
    spec = assert_type(dataset.spec, rbdata.Composite)
    assert_type(spec.rand((3,)), TensorDict)
    assert_type(spec.expand(4)["action"], Any)  # a spec, or the spec of a part
    action = rbdata.Categorical(4)
    assert_type(action.rand(), torch.Tensor)
    assert_type(action.dtype, torch.dtype)
    assert_type(action.expand(2, 3), rbdata.Categorical)
    assert_type(action.is_in(torch.tensor(3)), bool)
    assert_type(rbdata.Bounded(-1, 1, 3, dtype=torch.float64).low, torch.Tensor)
    spec["action"], spec["next"] = action, rbdata.Composite(reward=rbdata.Unbounded(()), shape=())
    rbdata.Bounded(0, 1, domain="whole")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def sample(dataset: rbdata.Dataset) -> None:
    buffer = rbdata.load(dataset, batch_size=256, frame_stack=4, n_step=3, prefetch=2, seed=0, device="cpu")
    assert_type(buffer, rbdata.TensorDictReplayBuffer)
    assert_type(buffer.sample(), Any)  # what the transforms make of it
    assert_type(len(buffer), int)
    rbdata.load("Pong/5", slice_len=16, uniform_over="transitions", span=(True, False), device=torch.device("cuda", 0))
    rbdata.load("Pong/5", sampler=rbdata.SliceSampler(slice_len=8))
    memory = rbdata.TensorDictReplayBuffer(storage=rbdata.LazyTensorStorage(1000), batch_size=32)
    assert_type(memory.storage, rbdata.Storage)


def construct(root: Path) -> None:
    """Constructors take what `load` and `download` take, and nothing else (`unused` comments are errors here)."""
    slices = assert_type(rbdata.SliceSampler(slice_len=8, replacement=True), rbdata.SliceSampler)
    rbdata.SliceSamplerWithoutReplacement(num_slices=4, drop_last=True, strict_length=False)
    rbdata.PrioritizedSliceSampler(100, 0.6, 0.4, slice_len=8)
    rbdata.PrioritizedReplayBuffer(alpha=0.6, beta=0.4, batch_size=8, seed=0)
    rbdata.TensorDictPrioritizedReplayBuffer(alpha=0.6, beta=0.4, priority_key="p", storage=rbdata.ListStorage(9))
    rbdata.TensorDictReplayBuffer(sampler=slices, rank=1, world_size=2, around=rbdata.Around(frame_stack=4, n_step=3))
    pong = rbdata.AtariDQNExperienceReplay("Pong/5", 32, root=root, shards=[0], n_step=3, upstream="auto")
    assert_type(pong, rbdata.AtariDQNExperienceReplay)
    rbdata.D4RLExperienceReplay("hopper-medium-v2", 32, slice_len=8, horizon=1000, device="cpu")
    rbdata.MinariExperienceReplay("D4RL/door/human-v2", text="omit", num_slices=4)
    rbdata.OpenMLExperienceReplay("iris", target="class", download=False)
    rbdata.LeRobotExperienceReplay("lerobot/pusht", 32, episodes="0-9", size="96x96", num_slices=4)
    rbdata.OpenXExperienceReplay("bridge", 32, last_row="step", leave_out="observation/depth", num_slices=4)
    rbdata.VD4RLExperienceReplay("main/walker_walk/random/64px", 32, image_size=50, num_slices=4)
    rbdata.RobosetExperienceReplay("DAPG(human)/door_v2d-v1", 32, split_trajs=True, download=False)


def play(root: Path) -> None:
    assert_type(rbdata.record("CartPole-v1", name="a", episodes=3, progress=True), Path)
    with rbdata.Recorder(gymnasium.make("CartPole-v1"), name="b", root=root) as env:
        assert_type(env, rbdata.Recorder)
    several = gymnasium.make_vec("CartPole-v1", num_envs=2)
    assert_type(rbdata.Recorder(several, name="c").path, Path | None)
