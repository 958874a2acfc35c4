"""Priorities: distributions, weights by formula, states, bad input."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
import rbdata
import torch
from rbdata.errors import DamagedDatasetError, SamplingError, UsageError
from rbdata.storage.replay import (
    LazyTensorStorage,
    ListStorage,
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
    sampler: Any = buffer.sampler
    assert sampler.default_priority == 1
    buffer.update_priority(torch.tensor([3, 4]), torch.tensor([5.0, 0.1]))
    buffer.extend(rollout([5], first=50))
    stored = sampler.state_dict()["priorities"][:15].tolist()
    assert stored[10:] == [5.0] * 5 and stored[3:5] == [5.0, pytest.approx(0.1)]
    buffer.update_priority(torch.tensor([3]), torch.tensor([0.5]))
    assert sampler.default_priority == 5  # once seen, for ever
    within = PrioritizedSampler(10, 1, 1, max_priority_within_buffer=True)
    within.add(torch.arange(4))
    within.update_priority(torch.tensor([0]), 9.0)
    assert within.default_priority == 9
    within.extend(torch.tensor([0]))  # written over
    assert within.default_priority == 1


def test_alpha_can_change():
    buffer = prioritized(alpha=1.0)
    priority = torch.linspace(0.1, 3, 100)
    buffer.update_priority(torch.arange(100), priority)
    sampler: Any = buffer.sampler
    for alpha in (0.0, 0.5, 1.0):
        sampler.alpha = alpha
        assert torch.allclose(sampler.tree.values, (priority.double() + 1e-6) ** alpha)
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


def test_more_rows_than_the_sampler_was_made_for():
    """Room is made for them, and a state of it can be loaded by a sampler made alike."""
    make = lambda: TensorDictReplayBuffer(  # noqa: E731
        storage=LazyTensorStorage(20), sampler=PrioritizedSampler(5, 1, 1), batch_size=200, seed=0
    )
    buffer, other = make(), make()
    buffer.extend(rollout([6, 12]))
    buffer.update_priority(torch.arange(18), torch.arange(18) % 2)
    assert set(buffer.sample()["index"].tolist()) == set(range(1, 18, 2))
    other.load_state_dict(buffer.state_dict())
    assert equal(buffer.sample(), other.sample())
    empty = make().sampler.state_dict()
    PrioritizedSampler(5, 1, 1).load_state_dict(empty)
    with pytest.raises(UsageError, match="5 priorities, the sampler 6"):
        PrioritizedSampler(6, 1, 1).load_state_dict(empty)


def test_exponents_as_tensors():
    plain, tensors = prioritized(alpha=0.5, beta=0.25), prioritized(alpha=torch.tensor(0.5), beta=torch.tensor(0.25))
    for buffer in (plain, tensors):
        buffer.update_priority(torch.arange(100), torch.linspace(0.1, 3, 100))
    assert equal(plain.sample(), tensors.sample())
    sampler: Any = tensors.sampler
    assert isinstance(sampler.alpha, torch.Tensor) and sampler.device == torch.device("cpu")


class Tree:
    """What TorchRL's compiled trees offer."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values.numpy()

    def __getitem__(self, index):
        return self.values[index]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("within", [True, False])
@pytest.mark.parametrize("version", [None, 1])
def test_states_of_torchrl(tmp_path, alpha, within, version):
    """As a state and as a folder; without a version the largest priority within the buffer is that of the tree."""
    priority = torch.tensor([1.0, 6.0, 2.0, 0.5], dtype=torch.float64)
    tree = torch.zeros(10, dtype=torch.float64)
    tree[:4] = (priority + 1e-8) ** alpha
    largest = 6.0 if version else float(tree.max())
    state = {"_alpha": alpha, "_beta": 0.4, "_eps": 1e-8, "_max_priority": (largest, 1)}
    if version:
        state["_schema_version"] = version
    (tmp_path / "sumtree.memmap").write_bytes(tree.numpy().tobytes())
    (tmp_path / "sampler_metadata.json").write_text(json.dumps({**state, "_max_capacity": 10}))
    first, second = (PrioritizedSampler(10, 0.9, 0.9, max_priority_within_buffer=within) for _ in range(2))
    first.load_state_dict({**state, "_sum_tree": Tree(tree)})
    second.loads(tmp_path)
    for sampler in (first, second):
        assert torch.allclose(sampler.tree.values, tree) and (sampler.alpha, sampler.beta) == (alpha, 0.4)
        assert sampler.default_priority == pytest.approx(6.0 if version or (within and alpha) else largest, rel=1e-6)
    second.dumps(tmp_path / "own")
    third = PrioritizedSampler(10, 0.9, 0.9)
    third.loads(tmp_path / "own")
    assert torch.equal(third.tree.values, second.tree.values)
    with pytest.raises(UsageError):
        first.load_state_dict({"_sum_tree": Tree(tree)})
    (tmp_path / "sumtree.memmap").write_bytes(b"short")
    with pytest.raises(DamagedDatasetError):
        second.loads(tmp_path)


def test_over_a_dataset(tmp_path):
    folder = write_dataset(tmp_path, make_episodes([30, 20]))
    first, second = (rbdata.load(folder, batch_size=16, alpha=0.8, beta=0.4, seed=3) for _ in range(2))
    for _ in range(20):
        left, right = first.sample(), second.sample()
        assert equal(left, right)
        for buffer, batch in ((first, left), (second, right)):
            buffer.update_priority(batch["index"], batch["next", "reward"].abs())


def test_prefetching_keeps_the_order_of_updates_irrelevant_to_errors(tmp_path):
    folder = write_dataset(tmp_path, make_episodes([30, 20]))
    with rbdata.load(folder, batch_size=16, alpha=0.8, seed=3, prefetch=2) as buffer:
        for _ in range(50):
            batch = buffer.sample()
            buffer.update_priority(batch["index"], torch.rand(16))


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

    def test_marked_without_the_storage(self, buffer):
        buffer.empty()
        buffer.extend(rollout([3]))
        buffer.sampler.mark_update(torch.tensor([40]))
        batch = buffer.sample()
        assert batch["index"].max() < 3 and buffer.sample()["index"].max() < 3

    def test_a_smaller_storage(self, buffer):
        buffer.sample()
        smaller = TensorDictReplayBuffer(storage=type(buffer.storage)(50), batch_size=4)
        smaller.extend(rollout([2]))
        buffer.set_storage(smaller.storage)
        batch = buffer.sample()
        assert batch["index"].max() < 2 and torch.all(batch["priority_weight"] == 1)

    def test_emptied_behind_the_buffer(self, buffer):
        buffer.storage.empty()
        buffer.extend(rollout([2]))
        assert buffer.sample()["index"].max() < 2


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
