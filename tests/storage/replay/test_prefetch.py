"""Prefetching: errors, threads and writes in between. That batches are the same: test_order.py."""

from __future__ import annotations

import threading
import time

import pytest
import rbdata
import torch
from rbdata.errors import SamplingError
from rbdata.storage.replay import (
    LazyTensorStorage,
    TensorDictReplayBuffer,
)
from replay_tools import equal, rollout
from storage_tools import make_episodes, write_dataset


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("buffer"), make_episodes([10, 30, 7, 20]))


def test_a_closed_buffer_goes_on_where_it_stopped(folder):
    plain = rbdata.load(folder, batch_size=8, seed=1)
    with rbdata.load(folder, batch_size=8, seed=1, prefetch=3) as buffer:
        assert all(equal(plain.sample(), buffer.sample()) for _ in range(4))
    assert all(equal(plain.sample(), buffer.sample()) for _ in range(5))
    buffer.close()


def test_transforms_with_a_state_stay_in_order(folder):
    """Reading may overtake, what comes after it may not: a counter counts the batches as they are delivered."""

    class Counter:
        number = 0

        def __call__(self, batch):
            self.number += 1
            return batch.set("number", torch.full((8,), self.number))

    with rbdata.load(folder, batch_size=8, seed=1, prefetch=4, transform=Counter()) as buffer:
        assert [int(buffer.sample()["number"][0]) for _ in range(30)] == list(range(1, 31))


def test_errors_in_threads_are_raised_here(folder):
    class Breaks:
        number = 0

        def __call__(self, batch):
            self.number += 1
            if self.number == 5:
                raise KeyError("broken")
            return batch

    with rbdata.load(folder, batch_size=8, seed=1, prefetch=3, transform=Breaks()) as buffer:
        for _ in range(4):
            buffer.sample()
        with pytest.raises(KeyError, match="broken"):
            buffer.sample()
        for _ in range(10):  # the rest goes on
            buffer.sample()


def test_no_thread_outlives_its_buffer(folder):
    def mine():
        return {thread for thread in threading.enumerate() if thread.name.startswith("rbdata-prefetch")} - before

    before = set(threading.enumerate())
    for end in ("closed", "forgotten"):
        buffer = rbdata.load(folder, batch_size=8, prefetch=3)
        buffer.sample()
        assert mine()
        if end == "closed":
            buffer.close()
        del buffer
        for _ in range(200):
            if not mine():
                break
            time.sleep(0.01)
        assert not mine()


def test_writes_and_prefetching():
    """A ring that is written while batches are on their way: whole rows only."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(64), batch_size=32, prefetch=2)
    with buffer:
        buffer.extend(rollout([64]))
        for number in range(40):
            data = rollout([32], first=1000 * number)
            data["observation"][:, 1] = data["action"].float()
            buffer.extend(data)
            batch = buffer.sample()
            assert batch.batch_size == (32,)
        buffer.empty()
        with pytest.raises(SamplingError):
            buffer.sample()
