"""States, forks, pickles and shared memory of buffers."""

from __future__ import annotations

import os
import pickle

import pytest
import rbdata
import torch
from checkpoint_tools import SAMPLERS, filled, make
from rbdata.errors import RbdataError, UsageError
from rbdata.storage.replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    TensorDictReplayBuffer,
)
from replay_tools import equal, rollout
from storage_tools import make_episodes, write_dataset
from tensordict import TensorDict


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("buffer"), make_episodes([10, 30, 7, 20]))


def test_what_a_state_is_made_of():
    """The records as a TensorDict or a list of those, all else numbers, text and tensors."""
    for storage in (LazyTensorStorage(20), ListStorage(20)):
        buffer = TensorDictReplayBuffer(storage=storage, batch_size=4)
        buffer.extend(rollout([5]))
        state = buffer.state_dict()
        records = state["_storage"].pop("_storage")
        assert isinstance(records if isinstance(storage, LazyTensorStorage) else records[0], TensorDict)
        left = [state]
        while left:
            value = left.pop()
            assert value is None or isinstance(value, (dict, list, tuple, int, float, str, torch.Tensor))
            left += value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()


def test_an_empty_state(folder):
    with pytest.raises(UsageError, match="lacks storage"):
        rbdata.load(folder, batch_size=4).load_state_dict({})


WRONG = {"_batch_size": 0, "_storage": {}}


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("wrong", [*WRONG, "rows"])
def test_a_state_that_is_refused_changes_nothing(sampler, wrong):
    buffer, same, source = filled(sampler=sampler), filled(sampler=sampler), make(sampler=sampler, seed=9)
    if wrong == "rows":
        source.extend(rollout([12]).exclude("observation"))
    else:
        source.extend(rollout([12], first=50))
    for each in (buffer, same) if sampler == "priorities" else ():
        each.update_priority(torch.arange(20), torch.linspace(0, 2, 20))
    state = source.state_dict()
    with pytest.raises(RbdataError):
        buffer.load_state_dict({**state, **({} if wrong == "rows" else {wrong: WRONG[wrong]})})
    assert equal(buffer[:], same[:]) and buffer.batch_size == 4 and buffer.write_count == same.write_count
    assert all(equal(buffer.sample(), same.sample()) for _ in range(6))
    assert torch.equal(buffer.extend(rollout([3])), same.extend(rollout([3])))


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


@pytest.mark.parametrize("how", ["state", "folder"])
def test_the_end_of_a_pass_of_next_is_saved(folder, how, tmp_path):
    """`next` says that a pass has ended after its last batch: a run that is resumed there does not join two passes."""
    options = {"batch_size": 40, "seed": 2, "replacement": False}
    buffer, other = (rbdata.load(folder, **options) for _ in range(2))
    start = buffer.state_dict()
    assert [len(buffer.next()) for _ in range(2)] == [40, 27]
    if how == "state":
        other.load_state_dict(buffer.state_dict())
    else:
        buffer.dumps(tmp_path / "checkpoint")
        other.loads(tmp_path / "checkpoint")
    assert [batch if batch is None else len(batch) for batch in (other.next(), other.next())] == [None, 40]
    buffer.load_state_dict(start)  # which is not the end of a pass
    assert [len(buffer.next()) for _ in range(2)] == [40, 27]
    buffer.set_seed(1)
    assert len(buffer.next()) == 40


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_the_state_of_an_emptied_buffer(storage):
    buffer, other = (ReplayBuffer(storage=storage(10), batch_size=2) for _ in range(2))
    buffer.extend(rollout([5]))
    buffer.empty()
    other.load_state_dict(buffer.state_dict())
    assert len(other) == 0
    other.extend(rollout([3], first=40))
    assert other["action"].tolist() == [40, 41, 42]
