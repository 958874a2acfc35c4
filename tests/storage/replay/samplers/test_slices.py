"""Slices: distributions, passes and shares."""

from __future__ import annotations

import pytest
import rbdata
import torch
from rbdata.errors import SamplingError
from rbdata.storage.replay import (
    LazyTensorStorage,
    RandomSampler,
    ReplayBuffer,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
)
from replay_tools import chi_square, equal, rollout
from storage_tools import make_episodes, write_dataset

LENGTHS = [10, 100, 3, 40]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("samplers"), make_episodes(LENGTHS))


def test_slices_are_uniform_over_trajectories(folder):
    """Each episode that is long enough gets as many slices, and in it every start."""
    buffer = rbdata.load(folder, batch_size=400, slice_len=4, seed=1)
    starts = torch.zeros(153)
    for _ in range(100):
        starts.index_add_(0, buffer.sample()["index"][::4], torch.ones(100))
    expected = torch.zeros(153)
    for first, length in ((0, 10), (10, 100), (113, 40)):
        expected[first : first + length - 3] = 100 * 100 / 3 / (length - 3)
    assert starts[expected == 0].sum() == 0
    assert chi_square(starts[expected > 0], expected[expected > 0]) < 5


def test_slices_uniform_over_transitions(folder):
    buffer = rbdata.load(folder, batch_size=400, slice_len=4, seed=2, uniform_over="transitions")
    starts = torch.zeros(153)
    for _ in range(100):
        starts.index_add_(0, buffer.sample()["index"][::4], torch.ones(100))
    possible = starts > 0
    assert possible.sum() == 7 + 97 + 37
    assert chi_square(starts[possible], torch.full((141,), 100 * 100 / 141)) < 5


def test_slices_without_replacement_take_each_episode_once(folder):
    buffer = rbdata.load(folder, batch_size=8, slice_len=4, replacement=False, seed=3)
    for _ in range(3):
        batches = list(buffer)
        assert [len(batch) for batch in batches] == [8, 4]
        starts = torch.cat([batch["index"][::4] for batch in batches])
        assert sorted(torch.bucketize(starts, torch.tensor([10, 110, 113]), right=True).tolist()) == [0, 1, 3]


def test_shares_of_slices_are_disjoint(folder):
    owned = []
    for rank in range(2):
        buffer = rbdata.load(folder, batch_size=3, slice_len=3, replacement=False, seed=3, rank=rank, world_size=2)
        for _ in range(2):  # the shares of a later pass fit together as well
            starts = torch.cat([batch["index"][::3] for batch in buffer])
            owned.append(torch.bucketize(starts, torch.tensor([10, 110, 113]), right=True).tolist())
    assert sorted(owned[0] + owned[2]) == [0, 1, 2, 3]
    assert sorted(owned[1] + owned[3]) == [0, 1, 2, 3]


def test_a_sampler_of_ones_own():
    class Newest(RandomSampler):
        def sample(self, storage, batch_size):
            return torch.arange(len(storage) - batch_size, len(storage)), {}

        draw = Sampler.draw

    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), sampler=Newest(), batch_size=3)
    buffer.extend(rollout([8]))
    assert buffer.sample()["action"].tolist() == [5, 6, 7]


@pytest.mark.parametrize(
    "sampler",
    [
        RandomSampler(),
        SamplerWithoutReplacement(),
        SliceSampler(slice_len=2),
        SliceSamplerWithoutReplacement(slice_len=2),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_an_empty_buffer(sampler):
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), sampler=sampler, batch_size=2)
    with pytest.raises(SamplingError, match="empty"):
        buffer.sample()
    buffer.extend(rollout([4]))
    buffer.sample()
    buffer.empty()
    with pytest.raises(SamplingError, match="empty"):
        buffer.sample()


def test_flags_of_a_sampler_by_hand():
    """What `sample` of a sampler returns beside the rows, and nothing in the storage is changed."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(30), batch_size=6)
    buffer.extend(rollout([5, 7]))
    before = buffer[:].clone()
    index, info = SliceSampler(slice_len=3).sample(buffer.storage, 6)
    assert info["next", "truncated"].squeeze(-1).tolist() == [False, False, True] * 2
    assert bool(info["next", "done"][2::3].all()) and info["next", "terminated"].shape == (6, 1)
    assert torch.equal(index.view(2, 3).diff(dim=1), torch.ones(2, 2, dtype=torch.int64))
    assert equal(before, buffer[:])
