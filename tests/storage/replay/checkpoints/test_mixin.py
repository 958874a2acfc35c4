"""States, forks, pickles and shared memory of buffers."""

from __future__ import annotations

import os
import pickle

import pytest
import rbdata
from rbdata.errors import UsageError
from rbdata.storage.replay import (
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    TensorDictReplayBuffer,
)
from replay_tools import equal, rollout
from storage_tools import make_episodes, write_dataset


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("buffer"), make_episodes([10, 30, 7, 20]))


@pytest.mark.parametrize("prefetch", [None, 3])
@pytest.mark.parametrize("options", [{}, {"replacement": False}, {"slice_len": 2, "replacement": False}], ids=str)
def test_a_state_is_a_place_in_the_order(folder, options, prefetch):
    with rbdata.load(folder, batch_size=4, seed=2, prefetch=prefetch, **options) as buffer:
        for _ in range(5):
            buffer.sample()
        state = buffer.state_dict()
        wanted = [buffer.sample() for _ in range(10)]
        buffer.load_state_dict(state)
        assert all(equal(buffer.sample(), batch) for batch in wanted)
    other = rbdata.load(folder, batch_size=4, seed=99, **options)
    other.load_state_dict(state)
    assert all(equal(other.sample(), batch) for batch in wanted)
    with pytest.raises(UsageError, match="lacks storage"):
        other.load_state_dict({})


def test_a_fork_with_batches_on_their_way(folder):
    """The threads stay with the parent; the child goes on with the same batches."""
    with rbdata.load(folder, batch_size=8, seed=1, prefetch=2) as buffer:
        plain = rbdata.load(folder, batch_size=8, seed=1)
        buffer.sample(), plain.sample()
        wanted = plain.sample()["index"].sum()
        child = os.fork()
        if not child:
            os._exit(0 if buffer.sample()["index"].sum() == wanted else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert buffer.sample()["index"].sum() == wanted


def test_pickling_a_dataset_buffer_carries_no_data(folder):
    buffer = rbdata.load(folder, batch_size=8, seed=1, prefetch=2)
    buffer.sample()
    data = pickle.dumps(buffer)
    assert len(data) < 20_000
    with pickle.loads(data) as other:
        assert all(equal(buffer.sample(), other.sample()) for _ in range(5))
    buffer.close()


def test_shared_memory():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=4)
    buffer.extend(rollout([5]))
    buffer.share()
    child = os.fork()
    if not child:
        buffer.extend(rollout([3], first=40))
        os._exit(0)
    os.waitpid(child, 0)
    assert len(buffer) == 8
    assert buffer["action"].tolist() == [0, 1, 2, 3, 4, 40, 41, 42]
    with pytest.warns(UserWarning, match="copied to other processes"):
        assert ReplayBuffer(storage=ListStorage(5), shared=True).shared
