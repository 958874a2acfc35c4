"""Uniform samplers: distributions, passes, shares of processes."""

from __future__ import annotations

import math
from collections import Counter
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import rbdata
import torch
from effort import examples
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
from tensordict import TensorDict

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


@settings(max_examples=examples(60), deadline=None)
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
        if (drop_last and batch > size // world) or rank >= size:
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
    with pytest.warns(UserWarning, match="started the pass again") as warned:
        for number, _ in enumerate(buffer):
            if number == 1:
                buffer.set_storage(LazyTensorStorage(20))
                buffer.extend(rollout([15]))
    assert [one.filename for one in warned] == [__file__]  # the loop, which is the caller's


def test_without_replacement_by_argument():
    kind: Any = RandomSampler
    made = kind(replacement=False, drop_last=True)
    assert type(made) is SamplerWithoutReplacement and made.drop_last and type(kind(replacement=True)) is RandomSampler
    kind = SliceSampler
    sliced = kind(slice_len=2, replacement=False, shuffle=False)
    assert type(sliced) is SliceSamplerWithoutReplacement and sliced.slice_len == 2 and not sliced.shuffle
    with pytest.raises(UsageError, match="drop_last goes with replacement=False"):
        RandomSampler(drop_last=True)


def standard_scores(counts: np.ndarray, expected: float) -> float:
    """How many standard deviations chi-square lies above what it should be."""
    free = len(counts) - 1
    return float((((counts - expected) ** 2).sum() / expected - free) / np.sqrt(2 * free))


def passes(size: int, count: int) -> np.ndarray:
    """The orders of ``count`` passes over ``size`` records, one after another."""
    buffer = ReplayBuffer(storage=LazyTensorStorage(size), sampler=SamplerWithoutReplacement(), batch_size=size, seed=0)
    buffer.extend(torch.arange(size))
    return np.stack([buffer.sample().numpy() for _ in range(count)])


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_orders_of_a_few_come_alike(size):
    orders = Counter(map(tuple, passes(size, 20 * math.factorial(size)).tolist()))
    found = np.array([orders[order] for order in permutations(range(size))])
    assert abs(standard_scores(found, 20)) < 4


@pytest.mark.parametrize("size", [8, 64])
def test_orders_of_some_are_random(size):
    """Pairs of places, elements that stay where they are, and neighbours that stay neighbours."""
    count = 1000
    orders = passes(size, count)
    assert (np.sort(orders) == np.arange(size)).all()
    for first, second in ((0, 1), (0, size // 2), (size - 2, size - 1)):
        pairs = np.bincount(orders[:, first] * size + orders[:, second], minlength=size**2).reshape(size, size)
        found = pairs[~np.eye(size, dtype=bool)]
        assert abs(standard_scores(found, count / len(found))) < 4
    fixed, followed = (orders == np.arange(size)).sum(1), (np.diff(orders) == 1).sum(1)
    assert abs(fixed.mean() - 1) < 4 / np.sqrt(count)
    assert abs(followed.mean() - (size - 1) / size) < 4 / np.sqrt(count)


def test_passes_over_a_few_episodes_come_in_all_orders(tmp_path):
    folder = write_dataset(tmp_path, make_episodes([4] * 4))
    options: dict[str, Any] = {"batch_size": 4, "slice_len": 4, "replacement": False}
    buffer = rbdata.load(folder, seed=0, **options)
    orders = Counter(tuple(int(batch["index"][0]) // 4 for batch in buffer) for _ in range(300))
    found = np.array([orders[order] for order in permutations(range(4))])
    assert abs(standard_scores(found, 12.5)) < 4


def test_arguments_assigned_in_use():
    sampler = SamplerWithoutReplacement()
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(64), sampler=sampler, batch_size=10, seed=0)
    buffer.extend(TensorDict({"a": torch.arange(64)}, [64]))
    buffer.sample()
    sampler.shuffle, sampler.drop_last = False, True
    assert torch.cat([batch["a"] for batch in buffer]).tolist() == list(range(60))


@settings(max_examples=examples(60), deadline=None)
@given(
    size=st.integers(1, 60),
    before=st.integers(1, 4),
    after=st.integers(1, 5),
    taken=st.integers(0, 8),
    batch=st.integers(1, 7),
)
def test_another_number_of_processes_takes_the_rest_of_a_pass(size, before, after, taken, batch):
    """Also where some of them find no step left: each step comes once, as in the run that was not interrupted."""
    taken = min(taken, size // before // batch)  # full batches of every process
    if taken * batch * before == size:  # the next pass begins
        taken = 0

    def made(rank, world):
        sampler = SamplerWithoutReplacement()
        buffer = ReplayBuffer(
            storage=LazyTensorStorage(size), sampler=sampler, batch_size=batch, seed=0, rank=rank, world_size=world
        )
        buffer.extend(torch.arange(size))
        return buffer

    drawn = []
    for rank in reversed(range(min(before, size))):  # the state of rank 0 goes on: others may have fewer steps
        buffer = made(rank, before)
        for _ in range(taken):
            drawn += buffer.sample().tolist()
        state = buffer.state_dict()
    for rank in range(min(after, size)):
        resumed = made(rank, after)
        resumed.load_state_dict(state)
        for part in resumed:
            drawn += part.tolist()
    assert sorted(drawn) == list(range(size))
