"""Slices: distributions, passes and shares."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import rbdata
import torch
from rbdata.errors import SamplingError, UnknownKeyError, UsageError
from rbdata.storage.replay import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedSliceSampler,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
)
from replay_tools import chi_square, equal, rollout
from storage_tools import make_episodes, write_dataset
from tensordict import TensorDict

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


@pytest.mark.parametrize(
    "keys,found",
    [
        ([("collector", "traj_ids"), "episode"], ("collector", "traj_ids")),
        (["episode"], "episode"),
        ([("next", "done")], None),
    ],
    ids=str,
)
def test_the_key_of_trajectories_is_found(keys, found):
    data = rollout([5, 7])
    data["episode"] = data["collector", "traj_ids"]
    sampler = SliceSampler(slice_len=3)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), sampler=sampler, batch_size=6)
    buffer.extend(data.select(*keys, "action"))
    assert sampler.traj_key is None
    buffer.sample()
    assert sampler.traj_key == found


@pytest.mark.parametrize("lengths", [[8, 9], [8, 2]], ids=str)
def test_a_mask_only_where_episodes_are_short(lengths):
    sampler = SliceSampler(slice_len=4, strict_length=False, pad_output=True)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), sampler=sampler, batch_size=8)
    buffer.extend(rollout(lengths))
    for _ in range(8):
        assert (("collector", "mask") in buffer.sample().keys(True)) == (lengths[1] == 2)


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("collector", {"strict_length": False, "pad_output": True}),
    ],
)
def test_a_leaf_of_the_users_own_is_not_replaced(storage, name, options):
    sampler = SliceSampler(slice_len=4, **options)
    data = rollout([8, 2])
    data[name] = torch.arange(10)

    def made(kind):
        buffer = kind(storage=storage(20), sampler=sampler, batch_size=40)
        buffer.extend(data)
        return buffer

    with pytest.raises(UsageError, match=f"have a leaf {name}"):
        made(TensorDictReplayBuffer).sample()
    batch, info = made(ReplayBuffer).sample(return_info=True)  # apart from the records
    assert torch.equal(batch[name], info["index"])


@pytest.mark.parametrize(
    "kind", [SliceSampler, SliceSamplerWithoutReplacement, partial(PrioritizedSliceSampler, 64, 0.6, 0.4)]
)
def test_arguments_assigned_in_use(kind):
    """They act on the next batch, also where batches were drawn ahead, and are checked like the constructor's."""
    steps = torch.arange(64)
    data = TensorDict(
        {"a": steps, "next": {"done": (steps % 8 == 7)[:, None], "other": (steps % 4 == 3)[:, None]}}, [64]
    )

    def made():
        sampler = kind(slice_len=4)
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(64), sampler=sampler, batch_size=8, seed=0)
        buffer.extend(data)
        for _ in range(10):
            buffer.sample()
        return sampler, buffer

    sampler, buffer = made()
    sampler.slice_len = 2
    assert [int(buffer.sample()["next", "truncated"].sum()) for _ in range(4)] == [4] * 4
    sampler, buffer = made()
    sampler.end_key = ("next", "other")
    assert all(int(first) % 4 == 0 for _ in range(10) for first in buffer.sample()["a"][::4])
    sampler, buffer = made()
    sampler.truncated_key = None
    assert ("next", "truncated") not in buffer.sample().keys(True)
    sampler.slice_len = 0
    with pytest.raises(UsageError, match="slice_len must be"):
        buffer.sample()


@pytest.mark.parametrize("options", [{}, {"strict_length": False, "pad_output": True}, {"n_step": 2}], ids=str)
def test_a_process_without_a_slice_of_the_pass_gets_an_empty_batch(folder, options):
    """Four episodes, six processes: as without slices, all of them have as many batches."""
    counts = []
    for rank in range(6):
        own = {"slice_len": 3, "replacement": False, "seed": 3, "rank": rank, "world_size": 6, **options}
        batches = list(rbdata.load(folder, batch_size=3, **own))
        assert len(batches) == 1
        counts.append(len(batches[0]))
    assert counts == [3, 3, 3, 3, 0, 0]


@pytest.mark.parametrize("more", [{}, {"replacement": False}, {"alpha": 0.5, "beta": 0.5}], ids=str)
def test_slices_end_where_load_is_told(tmp_path, more):
    """Steps that go on over a time limit, or that belong together by another leaf."""
    count = 60
    number = np.arange(count)
    arrays = {
        "observation": number.astype(np.float32)[:, None],
        "next_observation": number.astype(np.float32)[:, None] + 1,
        "action": number // 15,
        "reward": number * 1.0,
        "terminated": number % 20 == 19,
        "truncated": number % 5 == 4,
    }
    folder = rbdata.from_arrays(arrays, "my/limits", root=tmp_path)
    for named, length in (({}, 5), ({"end_key": ("next", "terminated")}, 20), ({"traj_key": "action"}, 15)):
        options = {"batch_size": 2 * length, "seed": 0, **named, **more}
        buffer = rbdata.load(folder, slice_len=length, **options)
        for _ in range(3):
            starts = buffer.sample()["index"].view(-1, length)
            assert bool((starts.diff(dim=1) == 1).all()) and bool((starts[:, 0] % length == 0).all())
        with pytest.raises(SamplingError, match=f"the longest has {length}"):
            rbdata.load(folder, slice_len=length + 1, **{**options, "batch_size": 2 * length + 2}).sample()
    with pytest.raises(UnknownKeyError, match="no nothing"):
        rbdata.load(folder, slice_len=2, batch_size=4, end_key="nothing", **more).sample()
