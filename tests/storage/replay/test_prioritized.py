"""Priorities: the tree against plain sums, distributions, weights by formula, slices, bad input."""

from __future__ import annotations

import pickle

import pytest
import rbdata
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.errors import SamplingError, UsageError
from rbdata.storage.replay import (
    LazyTensorStorage,
    PrioritizedReplayBuffer,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    TensorDictMaxValueWriter,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from rbdata.storage.replay.samplers.sum_tree import SumTree
from replay_tools import chi_square, equal, rollout
from storage_tools import make_episodes, write_dataset


@settings(max_examples=50, deadline=None)
@given(
    size=st.sampled_from([1, 2, 15, 16, 17, 1000, 4096, 4097, 65_536, 70_000]),  # one, two, three levels
    rounds=st.lists(st.tuples(st.integers(1, 300), st.integers(0, 99)), max_size=5),
)
def test_the_tree_is_a_list_of_sums(size, rounds):
    tree, plain = SumTree(size), torch.zeros(size, dtype=torch.float64)
    assert tree.total == 0 and tree.smallest == torch.inf
    for count, seed in rounds:
        generator = torch.Generator().manual_seed(seed)
        index = torch.randint(size, (count,), generator=generator)
        values = torch.rand(count, dtype=torch.float64, generator=generator)
        values *= torch.rand(count, generator=generator) > 0.2
        tree.update(index.numpy(), values.numpy())
        for place, value in zip(index.tolist(), values.tolist()):
            plain[place] = value
        assert torch.equal(tree.values, plain)
        assert tree.total == pytest.approx(float(plain.sum()), rel=1e-12)
        positive = plain[plain > 0]
        assert tree.smallest == (float(positive.min()) if len(positive) else torch.inf)
        if len(positive):
            running = plain.cumsum(0)
            mass = torch.rand(200, dtype=torch.float64, generator=generator) * running[-1] * (1 - 1e-9)
            found = torch.from_numpy(tree.find(mass.numpy()))
            wanted = torch.searchsorted(running, mass, right=True)
            assert int((found != wanted).sum()) <= 1  # a mass on an edge may fall either way
            assert bool((plain[tree.draw(200, generator)[0]] > 0).all())
    filled = SumTree(size)
    filled.fill(plain)
    assert filled.total == pytest.approx(tree.total) and filled.smallest == tree.smallest


def test_draws_from_a_million():
    """Four levels deep, most of the mass in few places: the draws of every part are as many as they should be."""
    size = 1_200_000
    tree, generator = SumTree(size), torch.Generator().manual_seed(0)
    values = torch.rand(size, dtype=torch.float64, generator=generator) ** 8
    tree.fill(values)
    index = torch.randperm(size, generator=generator)[:5000]
    values[index] = 20 * torch.rand(5000, dtype=torch.float64, generator=generator)
    for part in index.split(100):
        tree.update(part.numpy(), values[part].numpy())
    counts = torch.zeros(1000)
    for _ in range(100):
        found, drawn = tree.draw(2000, generator)
        assert torch.equal(values[found], torch.from_numpy(drawn))
        counts.index_add_(0, torch.from_numpy(found) % 1000, torch.ones(2000))
    expected = torch.zeros(1000, dtype=torch.float64).index_add_(0, torch.arange(size) % 1000, values)
    assert chi_square(counts, expected / expected.sum() * 200_000) < 5
    # Draws are in no order: a part of a batch is a batch.
    assert not bool((torch.from_numpy(found).diff() >= 0).all())


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
    sampler = buffer.sampler
    assert sampler.default_priority == 1
    buffer.update_priority(torch.tensor([3, 4]), torch.tensor([5.0, 0.1]))
    buffer.extend(rollout([5], first=50))
    stored = sampler._priorities[:15].tolist()
    assert stored[10:] == [5.0] * 5 and stored[3:5] == [5.0, pytest.approx(0.1)]
    buffer.update_priority(torch.tensor([3]), torch.tensor([0.5]))
    assert sampler.default_priority == 5  # once seen, for ever
    within = PrioritizedSampler(10, 1, 1, max_priority_within_buffer=True)
    within.add(torch.arange(4))
    within.update_priority(torch.tensor([0]), 9.0)
    assert within.default_priority == 9
    within.extend(torch.tensor([0]))  # written over
    assert within.default_priority == 1


def test_priorities_in_the_data():
    buffer = TensorDictPrioritizedReplayBuffer(alpha=1, beta=1, eps=0, storage=LazyTensorStorage(8), batch_size=4)
    data = rollout([6])
    data["td_error"] = torch.arange(1.0, 7).unsqueeze(1)
    buffer.extend(data)
    assert buffer.sampler._priorities[:6].tolist() == [1, 2, 3, 4, 5, 6]
    batch = buffer.sample()
    batch["td_error"] = torch.full((4, 1), 0.5)
    buffer.update_tensordict_priority(batch)
    assert set(buffer.sampler._priorities[batch["index"]].tolist()) == {0.5}
    several = TensorDictPrioritizedReplayBuffer(
        alpha=1, beta=1, eps=0, storage=LazyTensorStorage(8), batch_size=4, priority_key="error", reduction="mean"
    )
    several.extend(rollout([6]))
    batch = several.sample()
    batch["error"] = torch.tensor([[1.0, 3.0]] * 4)
    several.update_tensordict_priority(batch)
    assert set(several.sampler._priorities[batch["index"]].tolist()) == {2.0}
    with pytest.raises(UsageError, match="no error"):
        several.update_tensordict_priority(several.sample())


def test_alpha_can_change():
    buffer = prioritized(alpha=1.0)
    priority = torch.linspace(0.1, 3, 100)
    buffer.update_priority(torch.arange(100), priority)
    sampler = buffer.sampler
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
    before = buffer.sampler._priorities.clone()
    with pytest.raises(SamplingError, match=words):
        buffer.update_priority(torch.tensor(index), torch.tensor(priority))
    assert torch.equal(before, buffer.sampler._priorities)


@pytest.mark.parametrize(
    "options",
    [{"alpha": -1}, {"beta": -0.1}, {"eps": -1}, {"max_capacity": 0}, {"reduction": "best"}, {"alpha": float("nan")}],
)
def test_bad_samplers(options):
    with pytest.raises(UsageError):
        PrioritizedSampler(**{"max_capacity": 10, "alpha": 0.5, "beta": 0.5, **options})


def test_too_little_room():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), sampler=PrioritizedSampler(5, 1, 1), batch_size=2)
    with pytest.raises(UsageError, match="room for 5"):
        buffer.extend(rollout([6]))


def test_records_that_were_not_kept():
    """A writer that drops records tells so with -1, and no priority is set for them."""
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=1, beta=1, storage=LazyTensorStorage(4), writer=TensorDictMaxValueWriter(), batch_size=3
    )
    data = rollout([9])
    data["td_error"] = torch.arange(1.0, 10)
    index = buffer.extend(data)
    assert (index == -1).sum() == 5
    assert sorted(buffer.sampler._priorities.tolist()) == [6, 7, 8, 9]


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


def test_plain_prioritized_buffer():
    buffer = PrioritizedReplayBuffer(alpha=1, beta=0.5, storage=LazyTensorStorage(10), batch_size=4)
    buffer.extend(torch.arange(10))
    batch, info = buffer.sample(return_info=True)
    assert torch.equal(batch, info["index"]) and info["priority_weight"].shape == (4,)


# -- slices ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [True, False])
def test_slices_begin_by_priority(strict):
    lengths = [5, 2, 8]
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20),
        sampler=PrioritizedSliceSampler(20, 1.0, 0.5, eps=0, slice_len=3, strict_length=strict),
        batch_size=300,
        seed=0,
    )
    buffer.extend(rollout(lengths))
    priority = torch.rand(15, generator=torch.Generator().manual_seed(2)) + 0.1
    buffer.update_priority(torch.arange(15), priority)
    possible = [0, 1, 2, 7, 8, 9, 10, 11, 12] + ([] if strict else [5])
    counts = torch.zeros(15)
    for _ in range(100):
        batch = buffer.sample()
        ends = batch["next", "truncated"].squeeze(1).nonzero().squeeze(1)
        starts = torch.cat([torch.tensor([0]), ends[:-1] + 1])
        counts.index_add_(0, batch["index"][starts], torch.ones(len(starts)))
        weights = batch["priority_weight"]
        stored = priority.double()
        wanted = (stored[batch["index"][starts]] / stored.min()) ** -0.5
        assert torch.allclose(weights[starts], wanted.float())
        assert torch.equal(weights[starts], weights[ends])
        assert len(batch["collector", "traj_ids"][starts[0] : ends[0] + 1].unique()) == 1
    expected = torch.zeros(15)
    expected[possible] = priority[possible]
    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    assert chi_square(counts[kept], (expected / expected.sum() * 100 * 100)[kept]) < 5


def test_slices_of_a_ring_that_grows():
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(12), sampler=PrioritizedSliceSampler(12, 1.0, 1.0, slice_len=3), batch_size=60
    )
    for number in range(6):
        buffer.extend(rollout([4, 3], first=100 * number, open_end=True))
        batch = buffer.sample()
        actions = batch["action"].view(-1, 3)
        assert bool((actions.diff(dim=1) == 1).all())
        ids = batch["collector", "traj_ids"].view(-1, 3)
        assert bool((ids == ids[:, :1]).all())
        buffer.update_priority(batch["index"], torch.rand(60))


def test_slices_over_a_dataset(tmp_path):
    folder = write_dataset(tmp_path, make_episodes([6, 3, 9]))
    buffer = rbdata.load(folder, batch_size=40, slice_len=4, alpha=1.0, frame_stack=2, n_step=2, seed=0)
    batch = buffer.sample()
    assert batch["observation"].shape == (40, 2, 4)
    assert batch["priority_weight"].shape == (40,)
    with pytest.raises(UsageError, match="right span"):
        PrioritizedSliceSampler(10, 1, 1, slice_len=2, span=True)
    nothing = torch.zeros(18)
    buffer.sampler.eps = 0
    buffer.update_priority(torch.arange(18), nothing)
    with pytest.raises(SamplingError, match="priority above zero"):
        buffer.sample()
