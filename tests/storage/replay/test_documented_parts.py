"""The examples of TorchRL's pages on what its buffers learned last: hindsight, offline to online, queries, sample units.

As test_documented.py: the same calls in both libraries, the same outcome, unless TorchRL cannot run the example here.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import rbdata
import torch
from replay_tools import rollout
from tensordict import TensorDict

pytest.importorskip("torchrl.data")
import torchrl.data.datasets as their_datasets
import torchrl.data.replay_buffers as their_buffers
import torchrl.data.replay_buffers.offline_to_online as their_mix
import torchrl.data.replay_buffers.query as their_query
import torchrl.data.replay_buffers.samplers as their_samplers
import torchrl.data.replay_buffers.scheduler as their_schedulers

logging.getLogger("torchrl").setLevel(logging.ERROR)
pytestmark = pytest.mark.filterwarnings("ignore")

THEIRS = SimpleNamespace()
for _module in (their_mix, their_query, their_schedulers, their_datasets, their_samplers, their_buffers):
    THEIRS.__dict__.update({name: getattr(_module, name) for name in dir(_module) if name[0] != "_"})


def hindsight(lib):
    def reached(batch):
        return ((batch["achieved_goal"] - batch["desired_goal"]).norm(dim=-1, keepdim=True) < 0.05).float()

    buffer = lib.HERReplayBuffer(reward_fn=reached, storage=lib.LazyMemmapStorage(100), batch_size=256)
    for step in range(4):
        goal = {"desired_goal": torch.zeros(3), "achieved_goal": torch.full((3,), step + 1.0)}
        after = goal | {"achieved_goal": torch.full((3,), step + 2.0), "reward": torch.zeros(1)}
        after["done"] = torch.tensor([step == 3])
        buffer.add(TensorDict(goal | {"observation": torch.randn(4), "next": TensorDict(after, [])}, []))
    batch = buffer.sample()
    goals = set(batch["desired_goal"][:, 0].tolist())
    return (
        batch["desired_goal"].shape,
        batch["next", "reward"].shape,
        goals <= {0.0, 2.0, 3.0, 4.0, 5.0},
        len(goals) > 2,
    )


def from_offline_to_online(lib):
    offline = lib.ReplayBuffer(storage=lib.LazyTensorStorage(1000))
    offline.extend(TensorDict({"observation": torch.zeros(1000, 4)}, [1000]))
    mixed = lib.OfflineToOnlineReplayBuffer(
        offline_dataset=offline, online_capacity=500, offline_fraction=0.25, batch_size=32
    )
    mixed.extend(TensorDict({"observation": torch.ones(10, 4)}, [10]))
    batch = mixed.sample(32)
    return batch.batch_size, batch["observation"].mean().item()


def prefilled(lib):
    dataset = lib.ReplayBuffer(storage=lib.LazyTensorStorage(500))
    dataset.extend(TensorDict({"obs": torch.arange(500)}, [500]))
    online = lib.ReplayBuffer(storage=lib.LazyTensorStorage(10_000))
    lib.prefill_replay_buffer(online, dataset, n_samples=200)
    return len(online), online[:]["obs"].shape


def queries(lib):
    buffer = lib.TensorDictReplayBuffer(storage=lib.LazyTensorStorage(100), batch_size=4)
    buffer.extend(rollout([5, 9, 7]))
    long = (lib.traj.length >= 6) & (lib.traj.reward.sum() > 10)
    found = buffer.query(long)
    whole = lib.filter_trajectories(rollout([5, 9, 7]), lib.traj.length == 7)
    return (
        [len(trajectory) for trajectory in found],
        found[0].observation.shape,
        found[0].action.tolist(),
        found[0].reward.sum().item(),
        long(found[0]),
        [len(trajectory) for trajectory in whole],
    )


def transitions(lib):
    buffer = lib.ReplayBuffer(storage=lib.LazyTensorStorage(10), batch_size=4, sample_unit=lib.Transition())
    buffer.extend(torch.arange(10))
    return buffer.sample().shape


def sequences(lib):
    buffer = lib.ReplayBuffer(storage=lib.LazyTensorStorage(10), batch_size=2, sample_unit=lib.Sequence(length=3))
    done = torch.zeros(10, 1, dtype=torch.bool)
    done[4] = done[9] = True
    buffer.extend(TensorDict({"obs": torch.arange(10.0), "next": {"done": done}}, [10]))
    batch, info = buffer.sample(return_info=True)
    expanded, masks = lib.Sequence(length=2, burn_in=1, bootstrap=1).expand(torch.tensor([5]), {}, buffer.storage)
    dilated, _ = lib.Sequence(length=3, dilation=2).expand(torch.tensor([0]), {}, buffer.storage)
    seen = [expanded.tolist(), dilated.tolist(), masks["learning_mask"].tolist(), masks["validity_mask"].tolist()]
    return batch["obs"].shape, sorted(map(str, info)), seen


def padded_sequences(lib):
    unit = lib.Sequence(length=8, burn_in=2, bootstrap=3, dilation=1, episode_boundary="pad")
    buffer = lib.ReplayBuffer(storage=lib.LazyTensorStorage(100), batch_size=6, sample_unit=unit)
    buffer.extend(rollout([20, 20]))
    batch, info = buffer.sample(return_info=True)
    return batch.shape, info["learning_mask"].shape, info["learning_mask"].sum().item() <= 48


def samplers_by_argument(lib):
    made = [
        lib.RandomSampler(),
        lib.RandomSampler(replacement=False),
        lib.RandomSampler(replacement=False, drop_last=True),
    ]
    return [type(sampler).__name__ for sampler in made]


def staleness(lib):
    sampler = lib.StalenessAwareSampler(max_staleness=5)
    buffer = lib.TensorDictReplayBuffer(storage=lib.LazyTensorStorage(1000), sampler=sampler, batch_size=32)
    buffer.extend(TensorDict({"obs": torch.arange(20), "policy_version": torch.arange(20) // 2}, [20]))
    sampler.consumer_version = 9
    return bool((buffer.sample()["obs"] >= 8).all())


def schedules(lib):
    sampler = lib.PrioritizedSampler(100, 0.7, 0.6)
    linear = lib.LinearScheduler(sampler, param_name="beta", final_value=1.0, num_steps=4)
    seen = []
    for _ in range(5):
        linear.step()
        seen.append(round(float(sampler.beta), 6))
    steps = lib.StepScheduler(sampler, param_name="alpha", gamma=0.1, mode="additive", max_value=0.9)
    for _ in range(3):
        steps.step()
    assert seen == [0.7, 0.8, 0.9, 1.0, 1.0]
    assert float(sampler.alpha) > 0.7


def registered_datasets(lib):
    class Toy:
        def __init__(self, dataset_id: str, *, batch_size: int = 0) -> None:
            self.said = dataset_id, batch_size

    lib.register_dataset("documented", Toy, replace=True)
    lib.register_dataset("documented_lazily", "collections:Counter", replace=True)
    return lib.load_dataset("documented:task-v0", batch_size=8).said, lib.load_dataset("documented_lazily:aab")["a"]


ALONE = {schedules}
EXAMPLES = [value for value in list(globals().values()) if getattr(value, "__module__", None) == __name__]


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    from rbdata.datasets.torchrl_classes import dataset_classes

    monkeypatch.setattr(dataset_classes, "_REGISTRY", dict(dataset_classes._REGISTRY))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.__name__)
def test_example(example):
    torch.manual_seed(0)
    outcome = example(rbdata)
    assert example in ALONE or outcome == example(THEIRS)
