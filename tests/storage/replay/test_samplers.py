"""Samplers: distributions, passes, shares, seeds."""

from __future__ import annotations

import pytest
import rbdata
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.errors import SamplingError, UsageError
from rbdata.storage.replay import (
    LazyTensorStorage,
    RandomSampler,
    ReplayBuffer,
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


def counted(buffer, batches: int, size: int) -> torch.Tensor:
    counts = torch.zeros(size)
    for _ in range(batches):
        index = buffer.sample()["index"]
        counts.index_add_(0, index, torch.ones(len(index)))
    return counts


def test_random_is_uniform(folder):
    counts = counted(rbdata.load(folder, batch_size=512, seed=0), 100, 153)
    assert chi_square(counts, torch.full((153,), 512 * 100 / 153)) < 5


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


@pytest.mark.parametrize(
    "options", [{}, {"slice_len": 4}, {"replacement": False}, {"alpha": 0.7, "beta": 0.5}], ids=str
)
def test_one_seed_repeats_everything(folder, options):
    first, second = (rbdata.load(folder, batch_size=8, seed=7, **options) for _ in range(2))
    other = rbdata.load(folder, batch_size=8, seed=8, **options)
    ours, theirs, others = ([buffer.sample() for _ in range(30)] for buffer in (first, second, other))
    assert all(map(equal, ours, theirs))
    assert not all(map(equal, ours, others))


def test_the_global_seed_counts_without_one(folder):
    torch.manual_seed(5)
    first = rbdata.load(folder, batch_size=8).sample()
    torch.manual_seed(5)
    assert equal(first, rbdata.load(folder, batch_size=8).sample())


def test_a_generator_of_your_own(folder):
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    buffers = [rbdata.load(folder, batch_size=8, generator=generator) for generator in generators]
    assert all(equal(buffers[0].sample(), buffers[1].sample()) for _ in range(20))


def test_reading_ahead_does_not_show(folder):
    """Batches of other sizes in between get what they would have got, and so do those after them."""
    steady = TensorDictReplayBuffer(storage=folder, batch_size=4, seed=1)
    mixed = TensorDictReplayBuffer(storage=folder, batch_size=4, seed=1)
    first, second = [], []
    with pytest.warns(UserWarning, match="the argument wins"):
        for number in range(40):
            first.append(steady.sample())
            if number % 7 == 3:
                steady._pipeline.rewind()  # never ahead by more than this
                steady.sample(5)
        for number in range(40):
            second.append(mixed.sample())
            if number % 7 == 3:
                mixed.sample(5)
    assert all(map(equal, first, second))


# -- passes ------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 60),
    batch=st.integers(1, 60),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    world=st.integers(1, 4),
)
def test_a_pass_has_every_step_once(size, batch, shuffle, drop_last, world):
    data = rollout([size])
    taken, lengths = [], []
    for rank in range(world):
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(size),
            sampler=SamplerWithoutReplacement(drop_last=drop_last, shuffle=shuffle),
            batch_size=batch,
            seed=1,
            rank=rank,
            world_size=world,
        )
        buffer.extend(data.clone())
        if batch > size or (drop_last and batch > size // world) or rank >= size:
            with pytest.raises(SamplingError):
                buffer.sample()
                if rank >= size:
                    raise SamplingError("nothing for this rank")
            return
        batches = [batch["action"] for batch in buffer]
        again = [batch["action"] for batch in buffer]
        lengths.append(len(batches))
        assert sorted(torch.cat(batches).tolist()) == sorted(torch.cat(again).tolist()) or drop_last or world > 1
        taken += torch.cat(batches).tolist()
        assert all(len(part) == batch for part in batches[:-1])
        assert len(batches[-1]) == batch or not drop_last
    assert len(set(taken)) == len(taken)
    if drop_last:
        assert len(set(lengths)) == 1
    else:
        assert sorted(taken) == list(range(size))
    if not shuffle and world == 1:
        assert taken == list(range(len(taken)))


def test_ten_in_fours():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), sampler=SamplerWithoutReplacement(), batch_size=4)
    buffer.extend(rollout([10]))
    assert [len(batch) for batch in buffer] == [4, 4, 2]


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


def test_processes_draw_differently_with_replacement(folder):
    batches = [rbdata.load(folder, batch_size=50, seed=3, rank=rank, world_size=2).sample() for rank in range(2)]
    assert not equal(*batches)


def test_a_growing_storage_starts_the_pass_anew():
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20), sampler=SamplerWithoutReplacement(), batch_size=5, seed=0
    )
    buffer.extend(rollout([10]))
    buffer.sample()
    buffer.extend(rollout([10], first=100))
    assert len({int(step) for batch in buffer for step in batch["index"]}) == 20


# -- storages without edges, samplers of one's own ----------------------------------------------------------------------


def test_no_edges_to_be_found():
    buffer = ReplayBuffer(storage=LazyTensorStorage(20), sampler=SliceSampler(slice_len=2), batch_size=4)
    buffer.extend(rollout([10]).select("action"))
    with pytest.raises(UsageError, match="does not say where episodes end"):
        buffer.sample()


@pytest.mark.parametrize(
    "where",
    [
        {"end_key": ("next", "done")},
        {"end_keys": [("next", "terminated"), ("next", "truncated")]},
        {"traj_key": ("collector", "traj_ids")},
        {"traj_key": "episode_id"},
        {"ends": torch.tensor([0, 0, 1, 0, 0, 0, 1, 0, 1, 1], dtype=torch.bool)},
        {"trajectories": torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2, 3])},
        {},
    ],
    ids=lambda where: "-".join(where) or "usual",
)
def test_edges_from_everywhere(where):
    data = rollout([3, 4, 2, 1])
    data["episode_id"] = data["collector", "traj_ids"] + 5
    if set(where) - {"traj_key"}:
        data = data.exclude("collector")
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(10), sampler=SliceSampler(slice_len=3, **where), batch_size=30
    )
    buffer.extend(data)
    starts = {int(start) for _ in range(20) for start in buffer.sample()["index"][::3]}
    assert starts == {0, 3, 4}


def test_interleaved_pieces():
    """Two environments write by turns; the step counter puts their trajectories together."""
    left, right = rollout([6], first=0), rollout([5], first=100)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20),
        sampler=SliceSampler(slice_len=3, traj_key=("collector", "traj_ids"), fragmented=True),
        batch_size=30,
    )
    for low in range(0, 6, 2):
        buffer.extend(left[low : low + 2])
        buffer.extend(right[low : low + 2])
    seen = set()
    for _ in range(20):
        for slice_ in buffer.sample()["observation"].view(-1, 3, 2)[..., 0].tolist():
            assert slice_ == [slice_[0], slice_[0] + 1, slice_[0] + 2]
            seen.add(slice_[0])
    assert seen == {0, 1, 2, 3, 100, 101, 102}


def test_a_sampler_of_ones_own():
    class Newest(RandomSampler):
        def sample(self, storage, batch_size):
            return torch.arange(len(storage) - batch_size, len(storage)), {}

        draw = RandomSampler.__mro__[1].draw

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
