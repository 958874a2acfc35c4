"""Queries: predicates against a plain loop and TorchRL's own, over memory, rings, environments side by side, and datasets."""

from __future__ import annotations

import numpy as np
import pytest
import rbdata
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.errors import SchemaError, UnknownKeyError, UsageError
from rbdata.storage.dataset import Dataset
from rbdata.storage.replay import (
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    TensorDictReplayBuffer,
    Trajectory,
    filter_trajectories,
    iter_trajectories,
    traj,
)
from replay_tools import equal, rollout
from storage_tools import make_episodes, write_dataset
from tensordict import TensorDict, lazy_stack

PREDICATES = [
    lambda traj: traj.length >= 4,
    lambda traj: traj.reward.sum() > 5,
    lambda traj: (traj.reward.mean() > 1) & ~(traj.length == 3),
    lambda traj: (traj.observation > 9).any() | (traj["collector", "traj_ids"] == 0).all(),
    lambda traj: (
        (traj.reward.max() >= 2) & (traj.reward.min() < 1) & (traj.action.first() != 0) & (traj.step_count.last() <= 5)
    ),
    lambda traj: traj.total_reward < 3,
]


@settings(max_examples=20, deadline=None)
@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=6), which=st.sampled_from(range(len(PREDICATES))))
def test_predicates_are_torchrls(lengths, which):
    theirs = pytest.importorskip("torchrl.data")
    data = rollout(lengths)
    expected = [found.data for found in theirs.filter_trajectories(data, PREDICATES[which](theirs.traj))]
    own = PREDICATES[which](traj)
    buffer = ReplayBuffer(storage=LazyTensorStorage(len(data)))
    buffer.extend(data)
    for found in (filter_trajectories(data, own), buffer.query(own), buffer.query(lambda trajectory: own(trajectory))):
        assert len(found) == len(expected) and all(equal(one.data, other) for one, other in zip(found, expected))
    assert own.required_keys() == PREDICATES[which](theirs.traj).required_keys()


def test_a_trajectory_has_its_keys_as_attributes():
    trajectory = next(iter_trajectories(rollout([5, 3])))
    assert trajectory.length == len(trajectory) == 5 and trajectory.total_reward == 15
    assert trajectory.reward.shape == (5, 1) and trajectory["next", "done"][-1] and trajectory.get("colour") is None
    assert isinstance(trajectory[1:3], Trajectory) and trajectory[1:3].length == 2 and "length=5" in repr(trajectory)
    assert isinstance(trajectory[0], Trajectory) and isinstance(trajectory.clone(), Trajectory)
    assert lazy_stack([trajectory, trajectory[:2]])[1].length == 2
    with pytest.raises(AttributeError, match=r"colour.*next/reward"):
        _ = trajectory.colour


def test_rings_and_environments_side_by_side():
    ring = ReplayBuffer(storage=LazyTensorStorage(10))
    ring.extend(rollout([5, 3]))
    ring.extend(rollout([4], first=100))
    assert [found.length for found in ring.query()] == [3, 3, 4]
    assert ring.query(traj.action.first() == 100)[0].action.tolist() == [100, 101, 102, 103]
    beside = ReplayBuffer(storage=LazyTensorStorage(16, ndim=2))
    beside.extend(torch.stack([rollout([2, 6]), rollout([7, 1], first=50)]))
    assert [found.action.tolist()[0] for found in beside.query()] == [0, 2, 50, 57]
    assert beside.query(traj.length == 7)[0].reward.shape == (7, 1)
    listed = ReplayBuffer(storage=ListStorage(9))
    listed.extend(list(rollout([5, 3]).unbind(0)))
    assert [found.length for found in listed.query(traj.length < 4)] == [3]


def test_where_trajectories_end():
    data = rollout([5, 3], extra=False)
    with pytest.warns(UserWarning, match="flags"):
        assert [found.length for found in iter_trajectories(data)] == [5, 3]
    data["number"] = torch.arange(8) // 2
    assert len(list(iter_trajectories(data, "number"))) == 4
    for bad in (data.exclude("next", "done", "terminated", "truncated"), rollout([4]).unsqueeze(0), torch.zeros(3)):
        with pytest.raises((UsageError, SchemaError)):
            list(iter_trajectories(bad))
    with pytest.raises(UnknownKeyError, match="colour"):
        list(iter_trajectories(data, "colour"))
    with pytest.raises(UnknownKeyError, match="colour"):
        filter_trajectories(rollout([4]), traj.colour.sum() > 0)
    with pytest.raises(TypeError, match="any"):
        filter_trajectories(rollout([4]), traj.reward > 1)
    buffer = ReplayBuffer(storage=LazyTensorStorage(4))
    assert buffer.query() == []
    buffer.extend(torch.arange(4))
    with pytest.raises(TypeError, match="TensorDicts"):
        buffer.query()


class Doubled:
    """A transform that says what it makes, and counts how often it is asked to."""

    in_keys = out_keys = ["observation"]
    calls = 0

    def __call__(self, batch):
        self.calls += 1
        return batch.set("observation", batch["observation"] * 2)


def test_predicates_see_what_transforms_make():
    """Only transforms that make what is asked for are applied, and none changes what is stored."""
    double = Doubled()
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), transform=double)
    buffer.extend(rollout([5, 3]))
    assert buffer.query(traj.reward.sum() > 100) == [] and double.calls == 0
    found = buffer.query(traj.observation.max() > 10)
    assert [one.length for one in found] == [3] and torch.equal(
        found[0].observation, 2 * rollout([5, 3])["observation"][5:]
    )
    buffer.append_transform(lambda batch: batch.set("reward", batch["next", "reward"] * 0))
    assert buffer.query(traj.reward.sum() > 0) == [] and float(buffer.query()[0].total_reward) == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("query"), make_episodes([10, 30, 7, 20]), "zstd")


def test_a_dataset_answers_from_its_table(folder, monkeypatch):
    buffer = rbdata.load(folder)
    table = buffer.dataset.episodes
    with monkeypatch.context() as patch:
        for name in ("read", "__getitem__", "_range"):
            patch.setattr(Dataset, name, lambda *args, **options: pytest.fail("read"))
        found = buffer.query((traj.length > 9) & (traj.reward.sum() < float(table.returns.max())))
    expected = np.flatnonzero((table.length > 9) & (table.returns < table.returns.max()))
    assert found.episodes.tolist() == expected.tolist() and len(found) == len(expected)
    assert equal(found[0].data, buffer.dataset.episode(int(expected[0]))) and len(found[1:]) == len(expected) - 1
    read: list[str] = []
    original = Dataset.read
    monkeypatch.setattr(
        Dataset, "read", lambda self, steps, keys=None: read.extend(keys) or original(self, steps, keys=keys)
    )
    assert len(buffer.query((traj.action >= 0).all())) == 4 and set(read) == {"action"}


def test_a_dataset_is_asked_like_memory(folder):
    buffer, memory = rbdata.load(folder), ReplayBuffer(storage=LazyTensorStorage(67))
    memory.extend(buffer.dataset.to_tensordict())
    opaque = lambda trajectory: bool(trajectory.observation[1:3].sum() > 300 and trajectory["next", "done"][-1])  # noqa: E731
    for transform in (None, Doubled()):
        for predicate in (None, traj.observation.mean() > 49.5, (traj[("next", "observation")] > 98).any(), opaque):
            found = buffer.query(predicate)
            with pytest.warns(UserWarning, match="flags"):
                expected = memory.query(predicate)
            assert len(found) == len(expected) and all(equal(a.data, b.data) for a, b in zip(found, expected))
        if transform is None:
            for one in (buffer, memory):
                one.append_transform(Doubled())
    with pytest.raises(UsageError, match="its own episodes"):
        buffer.query(trajectory_key="action")


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("storage", [ListStorage, LazyStackStorage])
def test_records_of_a_lazy_stack(storage, ragged):
    """Records that are read as a lazy stack, unlike shapes among them, are trajectories like others."""
    buffer = TensorDictReplayBuffer(storage=storage(10), batch_size=2)
    for number in range(6):
        done = torch.tensor([number % 3 == 2])
        values = torch.full((number + 1 if ragged else 1,), number)
        buffer.add(
            TensorDict({"x": values, "collector": {"traj_ids": torch.tensor(number // 3)}, ("next", "done"): done})
        )
    first, second = buffer.query(traj.length == 3)
    assert [step["x"].max().item() for step in second.data.unbind(0)] == [3, 4, 5]
    assert [step["x"].numel() for step in first[1:].data.unbind(0)] == ([2, 3] if ragged else [1, 1])
