"""Uniform samplers: distributions, passes, shares of processes."""

from __future__ import annotations

import pytest
import rbdata
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.errors import SamplingError
from rbdata.storage.replay import (
    LazyTensorStorage,
    SamplerWithoutReplacement,
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
