"""Slices that begin by priority."""

from __future__ import annotations

import pytest
import rbdata
import torch
from rbdata.errors import SamplingError, UsageError
from rbdata.storage.replay import (
    LazyTensorStorage,
    PrioritizedSliceSampler,
    TensorDictReplayBuffer,
)
from replay_tools import chi_square, rollout
from storage_tools import make_episodes, write_dataset


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
    sampler = PrioritizedSliceSampler(18, 1.0, 0.4, eps=0, slice_len=4)
    buffer = rbdata.load(folder, batch_size=40, sampler=sampler, frame_stack=2, n_step=2, seed=0)
    batch = buffer.sample()
    assert batch["observation"].shape == (40, 2, 4)
    assert batch["priority_weight"].shape == (40,)
    nothing = torch.zeros(18)
    buffer.update_priority(torch.arange(18), nothing)
    with pytest.raises(SamplingError, match="priority above zero"):
        buffer.sample()


@pytest.mark.parametrize("span", [2, True, [False, 2], (0, 2)], ids=str)
@pytest.mark.parametrize("strict", [True, False])
def test_spans(span, strict):
    """A single value is the right span: slices begin where their priority lies."""
    sampler = PrioritizedSliceSampler(40, 1, 1, slice_len=4, span=span, strict_length=strict)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(40), sampler=sampler, batch_size=8)
    buffer.extend(rollout([5, 7, 6]))
    lengths = set()
    for _ in range(50):
        batch = buffer.sample()
        ends = batch["next", "truncated"].squeeze(-1).nonzero().squeeze(1)
        lengths |= set(ends.diff(prepend=torch.tensor([-1])).tolist())
    assert lengths == ({1, 2, 3, 4} if span is True else {2, 3, 4})
    with pytest.warns(UserWarning, match="left span is turned off"):
        assert PrioritizedSliceSampler(40, 1, 1, slice_len=4, span=(1, 2)).span == (False, 2)
    for bad in ((1, 2, 3), "two", -1):
        with pytest.raises(UsageError):
            PrioritizedSliceSampler(40, 1, 1, slice_len=4, span=bad)


def test_short_episodes_with_a_span():
    """An episode is long enough if no more steps are missing than the span allows."""
    for span, starts in ((2, {0, 1, 2, 3, 4, 5}), (1, {0, 1, 2, 3, 4}), (False, {0, 1, 2, 3})):
        sampler = PrioritizedSliceSampler(40, 1, 1, slice_len=4, span=span)
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(40), sampler=sampler, batch_size=4)
        buffer.extend(rollout([7, 3]))
        found = {int(buffer.sample()["index"][0]) for _ in range(60)}
        assert found == starts | ({7, 8} if span == 2 else {7} if span else set())
