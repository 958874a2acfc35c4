"""Priorities: distributions, weights by formula, states, bad input."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import rbdata
import torch
from rbdata.errors import SamplingError, UsageError
from rbdata.storage.replay import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedReplayBuffer,
    PrioritizedSampler,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from replay_tools import chi_square, equal, priorities, rollout
from storage_tools import make_episodes, write_dataset
from tensordict import TensorDict


def prioritized(size=100, alpha=0.7, beta=0.9, capacity=None, **more) -> TensorDictReplayBuffer:
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=alpha, beta=beta, eps=1e-6, storage=LazyTensorStorage(capacity or size), batch_size=500, seed=0, **more
    )
    buffer.extend(rollout([size]))
    return buffer


def test_draws_follow_priorities():
    buffer = prioritized()
    priority = torch.rand(100, generator=torch.Generator().manual_seed(1)) + 0.05
    buffer.update_priority(torch.arange(100), priority)
    counts = torch.zeros(100)
    for _ in range(200):
        counts.index_add_(0, buffer.sample()["index"], torch.ones(500))
    expected = (priority + 1e-6) ** 0.7
    assert chi_square(counts, expected / expected.sum() * 500 * 200) < 5


@pytest.mark.parametrize("change", ["update_priority", "mark_update", "alpha"])
def test_a_change_reaches_the_next_batch(change):
    """Batches are drawn ahead where nothing changes between them."""
    buffer = prioritized(alpha=1.0)
    buffer.update_priority(torch.arange(100), torch.where(torch.arange(100) == 7, 1e9, 1e-9))
    for _ in range(5):
        assert buffer.sample()["index"].unique().tolist() == [7]
    if change == "update_priority":
        buffer.update_priority(torch.tensor([7, 3]), torch.tensor([0.0, 1e20]))
        assert buffer.sample()["index"].unique().tolist() == [3]
    elif change == "mark_update":
        buffer.sampler.mark_update(torch.tensor([3]))
        assert buffer.sample()["index"].unique().tolist() == [3, 7]
    else:
        buffer.sampler.alpha = 0.0
        assert len(buffer.sample()["index"].unique()) > 80


def test_weights_are_those_of_the_formula():
    """(p_i / p_min)^-beta over the whole buffer: TorchRL's and the paper's, up to the scale."""
    buffer = prioritized(beta=0.6)
    priority = torch.linspace(0.1, 3, 100)
    buffer.update_priority(torch.arange(100), priority)
    batch = buffer.sample()
    stored = (priority.double() + 1e-6) ** 0.7
    wanted = (stored[batch["index"]] / stored.min()) ** -0.6
    assert torch.allclose(batch["priority_weight"], wanted.float())
    assert batch["priority_weight"].dtype == torch.float32
    assert torch.equal(batch["_weight"], batch["priority_weight"])
    probability = stored / stored.sum()
    paper = (100 * probability) ** -0.6
    assert torch.allclose(batch["priority_weight"], (paper / paper.max())[batch["index"]].float())


def test_new_records_get_the_largest_priority():
    buffer = prioritized(10, capacity=20)
    buffer.update_priority(torch.tensor([3, 4]), torch.tensor([5.0, 0.1]))
    buffer.extend(rollout([5], first=50))
    stored = priorities(buffer)[:15].tolist()
    assert stored[10:] == [5.0] * 5 and stored[3:5] == [5.0, pytest.approx(0.1)]
    buffer.update_priority(torch.tensor([3]), torch.tensor([0.5]))
    buffer.extend(rollout([5], first=80))
    assert priorities(buffer)[15:].tolist() == [5.0] * 5  # once seen, for ever


def test_alpha_can_change():
    buffer = prioritized(alpha=1.0)
    priority = torch.linspace(0.1, 3, 100)
    buffer.update_priority(torch.arange(100), priority)
    sampler: Any = buffer.sampler
    for alpha in (0.0, 0.5, 1.0):
        sampler.alpha = alpha
        batch = buffer.sample()
        stored = (priority.double() + 1e-6) ** alpha
        assert torch.allclose(batch["priority_weight"], (stored[batch["index"]] / stored.min()).float() ** -0.9)
    with pytest.raises(UsageError):
        sampler.alpha = -1


def test_several_dimensions():
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=1, beta=1, eps=0, storage=LazyTensorStorage(21, ndim=2), batch_size=400, seed=0
    )
    buffer.extend(torch.stack([rollout([6], first=100 * env) for env in range(3)]))
    batch = buffer.sample()
    assert batch["index"].shape == (400, 2)
    priority = torch.where(batch["index"][:, 1] == 1, 1.0, 0.0)
    buffer.update_priority(batch["index"], priority)
    while not bool(((index := buffer.sample()["index"])[:, 1] == 1).all()):
        buffer.update_priority(index, torch.where(index[:, 1] == 1, 1.0, 0.0))
    buffer.extend(torch.stack([rollout([1], first=100 * env) for env in range(3)]))
    assert set(buffer.sample()["index"][:, 1].tolist()) == {0, 1, 2}


@pytest.mark.parametrize(
    "index,priority,words",
    [
        ([0, 1], [1.0, -0.5], "-0.5"),
        ([0, 1], [1.0, float("nan")], "nan"),
        ([0, 1], [float("inf"), 1.0], "inf"),
        ([0, 100], [1.0, 1.0], "row 100"),
        ([0, -2], [1.0, 1.0], "row -2"),
        ([0, 1, 2], [1.0, 1.0], "2 priorities for 3 rows"),
    ],
    ids=str,
)
def test_bad_priorities(index, priority, words):
    buffer = prioritized()
    before = priorities(buffer).clone()
    with pytest.raises(SamplingError, match=words):
        buffer.update_priority(torch.tensor(index), torch.tensor(priority))
    assert torch.equal(before, priorities(buffer))


@pytest.mark.parametrize(
    "options",
    [{"alpha": -1}, {"beta": -0.1}, {"eps": -1}, {"max_capacity": 0}, {"reduction": "best"}, {"alpha": float("nan")}],
)
def test_bad_samplers(options):
    with pytest.raises(UsageError):
        PrioritizedSampler(**{"max_capacity": 10, "alpha": 0.5, "beta": 0.5, **options})


def test_over_a_dataset(tmp_path):
    folder = write_dataset(tmp_path, make_episodes([30, 20]))
    first, second = (rbdata.load(folder, batch_size=16, alpha=0.8, beta=0.4, seed=3) for _ in range(2))
    for _ in range(20):
        left, right = first.sample(), second.sample()
        assert equal(left, right)
        for buffer, batch in ((first, left), (second, right)):
            buffer.update_priority(batch["index"], batch["next", "reward"].abs())


def test_pickled_and_saved():
    buffer = prioritized()
    buffer.update_priority(torch.arange(100), torch.linspace(0, 3, 100))
    other, third = pickle.loads(pickle.dumps(buffer)), prioritized()
    third.load_state_dict(buffer.state_dict())
    for _ in range(5):
        batch = buffer.sample()
        assert equal(batch, other.sample()) and equal(batch, third.sample())
    with pytest.raises(UsageError, match="100 priorities, the sampler 50"):
        prioritized(50).sampler.load_state_dict(buffer.sampler.state_dict())


class TestRowsThatAreGone:
    """A row beyond the storage is never drawn: what would be read there is whatever lay in memory, or nothing."""

    @pytest.fixture(params=[LazyTensorStorage, ListStorage])
    def buffer(self, request) -> TensorDictReplayBuffer:
        buffer = TensorDictReplayBuffer(
            storage=request.param(50), sampler=PrioritizedSampler(50, 0.7, 0.5), batch_size=200, seed=0
        )
        buffer.extend(rollout([40]))
        return buffer

    def test_marked_after_emptying(self, buffer):
        old = buffer.sample()["index"]
        buffer.empty()
        buffer.extend(rollout([3]))
        with pytest.raises(SamplingError, match="has no priority: there are 3"):
            buffer.mark_update(old)
        assert buffer.sample()["index"].max() < 3

    def test_a_smaller_storage(self, buffer):
        buffer.sample()
        smaller = TensorDictReplayBuffer(storage=type(buffer.storage)(50), batch_size=4)
        smaller.extend(rollout([2]))
        buffer.set_storage(smaller.storage)
        batch = buffer.sample()
        assert batch["index"].max() < 2 and torch.all(batch["priority_weight"] == 1)


def test_another_storage_has_priorities_of_its_own():
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(4), sampler=PrioritizedSampler(4, 1.0, 1.0), batch_size=64
    )
    buffer.extend(TensorDict({"a": torch.arange(4)}, [4]))
    buffer.update_priority(torch.arange(4), torch.tensor([1e-6, 1e-6, 1e-6, 1.0]))
    other = LazyTensorStorage(4)
    other.set(range(4), TensorDict({"a": torch.arange(4)}, [4]))
    buffer.set_storage(other)
    assert set(buffer.sample()["a"].tolist()) == {0, 1, 2, 3}


def test_draws_from_a_million():
    """Most of the mass in few places: the draws of every part are as many as they should be."""
    size, generator = 1_200_000, torch.Generator().manual_seed(0)
    buffer = PrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, eps=0.0, storage=LazyTensorStorage(size), batch_size=2000, seed=0
    )
    buffer.extend(torch.arange(size))
    values = torch.rand(size, generator=generator) ** 8
    buffer.update_priority(torch.arange(size), values)
    index = torch.randperm(size, generator=generator)[:5000]
    values[index] = 20 * torch.rand(5000, generator=generator)
    for part in index.split(100):
        buffer.update_priority(part, values[part])
    counts = torch.zeros(1000)
    for _ in range(100):
        found = buffer.sample()
        counts.index_add_(0, found % 1000, torch.ones(2000))
    expected = torch.zeros(1000, dtype=torch.float64).index_add_(0, torch.arange(size) % 1000, values.double())
    assert chi_square(counts, expected / expected.sum() * 200_000) < 5
    # Draws are in no order: a part of a batch is a batch.
    assert not bool((found.diff() >= 0).all())
