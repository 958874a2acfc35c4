"""Buffers of TensorDicts: priorities in the data."""

from __future__ import annotations

import pytest
import torch
from rbdata.errors import SamplingError, SchemaError, UsageError
from rbdata.storage.replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedReplayBuffer,
    PrioritizedSampler,
    TensorDictMaxValueWriter,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from replay_tools import priorities, rollout
from tensordict import TensorDict


def test_priorities_in_the_data():
    buffer = TensorDictPrioritizedReplayBuffer(alpha=1, beta=1, eps=0, storage=LazyTensorStorage(8), batch_size=4)
    data = rollout([6])
    data["td_error"] = torch.arange(1.0, 7).unsqueeze(1)
    buffer.extend(data)
    assert priorities(buffer)[:6].tolist() == [1, 2, 3, 4, 5, 6]
    batch = buffer.sample()
    batch["td_error"] = torch.full((4, 1), 0.5)
    buffer.update_tensordict_priority(batch)
    assert set(priorities(buffer)[batch["index"]].tolist()) == {0.5}
    several = TensorDictPrioritizedReplayBuffer(
        alpha=1, beta=1, eps=0, storage=LazyTensorStorage(8), batch_size=4, priority_key="error", reduction="mean"
    )
    several.extend(rollout([6]))
    batch = several.sample()
    batch["error"] = torch.tensor([[1.0, 3.0]] * 4)
    several.update_tensordict_priority(batch)
    assert set(priorities(several)[batch["index"]].tolist()) == {2.0}
    batch = several.sample()
    with pytest.warns(UserWarning, match="no error: its rows get the priority of new records"):
        several.update_tensordict_priority(batch)
    assert set(priorities(several)[batch["index"]].tolist()) == {2.0}  # the largest there was
    with pytest.raises(UsageError, match="no index"):
        several.update_tensordict_priority(batch.exclude("index"))


def test_records_that_were_not_kept():
    """A writer that drops records tells so with -1, and no priority is set for them."""
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=1, beta=1, storage=LazyTensorStorage(4), writer=TensorDictMaxValueWriter(), batch_size=3
    )
    data = rollout([9])
    data["td_error"] = torch.arange(1.0, 10)
    index = buffer.extend(data)
    assert (index == -1).sum() == 5
    assert sorted(priorities(buffer).tolist()) == [6, 7, 8, 9]


def prioritized(capacity, ndim=1, **more):
    storage = LazyTensorStorage(capacity, ndim=ndim)
    return TensorDictPrioritizedReplayBuffer(alpha=1, beta=1, eps=0, storage=storage, batch_size=4, **more)


@pytest.mark.parametrize("ndim", [1, 2])
def test_records_of_another_buffer_bring_their_priorities(ndim):
    """Although they have an ``index``, as batches do."""
    old, new = prioritized(20, ndim), prioritized(20, ndim)
    shape = (10,) if ndim == 1 else (2, 5)
    error = torch.arange(1.0, 11).view(shape)
    old.extend(TensorDict({"x": error, "td_error": error}, shape))
    new.extend(old[:])
    assert torch.equal(priorities(new)[:10], priorities(old)[:10])
    assert torch.equal(new[:]["x"], error)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), "text"])
def test_nothing_is_written_beside_what_is_no_priority(bad):
    buffer = prioritized(20)
    data = TensorDict({"x": torch.arange(3), "td_error": torch.ones(3)}, [3])
    buffer.extend(data)
    one = data[0].clone()
    if isinstance(bad, str):
        data, one = data.exclude("td_error"), one.exclude("td_error")
        data.set_non_tensor("td_error", bad)
        one.set_non_tensor("td_error", bad)
    else:
        data["td_error"][1] = bad
        one["td_error"].fill_(bad)
    for write, given in ((buffer.extend, data), (buffer.add, one)):
        with pytest.raises((SamplingError, SchemaError)):
            write(given)
    assert len(buffer) == buffer.write_count == 3


def test_a_trajectory_is_one_record_with_one_priority():
    buffer = prioritized(20)
    with pytest.warns(UserWarning, match="becomes one record"):
        buffer.add(TensorDict({"x": torch.arange(4), "td_error": torch.tensor([1.0, 5, 2, 3])}, [4]))
    assert priorities(buffer)[0] == 5 and len(buffer) == 1


def test_plain_prioritized_buffer():
    buffer = PrioritizedReplayBuffer(alpha=1, beta=0.5, storage=LazyTensorStorage(10), batch_size=4)
    buffer.extend(torch.arange(10))
    batch, info = buffer.sample(return_info=True)
    assert torch.equal(batch, info["index"]) and info["priority_weight"].shape == (4,)


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage, ListStorage])
def test_single_records(storage):
    """`add` of a TensorDict without batch dimensions, and of whole trajectories."""
    buffer = TensorDictReplayBuffer(storage=storage(10), batch_size=4)
    assert [buffer.add(TensorDict({"x": torch.tensor(float(number))}, [])) for number in range(12)] == [
        *range(10),
        0,
        1,
    ]
    batch = buffer.sample()
    assert batch.batch_size == (4,) and torch.equal(batch["index"], batch["x"].long() % 10)


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage, ListStorage])
@pytest.mark.parametrize("prioritized", [False, True])
def test_trajectories_are_records(storage, prioritized):
    """Records with a time dimension: ``index`` and weights come for every step."""
    data = TensorDict({"x": torch.arange(50).view(5, 10)}, [5, 10])
    options = {"sampler": PrioritizedSampler(20, 1, 1, eps=0)} if prioritized else {}
    buffer = TensorDictReplayBuffer(storage=storage(20), batch_size=4, **options)
    for trajectory in data:
        buffer.add(trajectory)
    buffer.extend(data)
    batch = buffer.sample()
    assert batch.batch_size == batch["index"].shape == (4, 10)
    assert torch.equal(batch["x"] // 10, batch["index"] % 5)
    assert batch.reshape(-1).batch_size == (40,)
    if prioritized:
        assert batch["priority_weight"].shape == (4, 10)
        batch["td_error"] = torch.arange(10.0).expand(4, 10).unsqueeze(-1) + batch["index"].unsqueeze(-1)
        buffer.update_tensordict_priority(batch)
        rows = batch["index"][:, 0]
        assert torch.equal(priorities(buffer)[rows], rows.double() + 9)


@pytest.mark.parametrize("dim_extend", [None, 0])
@pytest.mark.parametrize("capacity", [15, 40])
def test_indices_of_several_dimensions(dim_extend, capacity):
    """Records are read and written in the order of dimensions in which `extend` is given them."""
    data = TensorDict({"x": torch.arange(15).view(3, 5), "y": torch.zeros(3, 5, 2)}, [3, 5])
    options = {} if dim_extend is None else {"dim_extend": dim_extend}
    for index in (slice(None), 0, -1, (1, 2), (0, slice(3, 6)), (slice(None), 1), slice(1, 3), torch.tensor([0, 2])):
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(capacity, ndim=2), batch_size=4, **options)
        buffer.extend(data)
        expected = data.clone()
        assert torch.equal(buffer[index]["x"], expected["x"][index])
        value = expected[index].clone()
        value["x"] = -value["x"]
        buffer[index] = value
        expected["x"][index] = value["x"]
        assert torch.equal(buffer["x"], expected["x"])
        buffer["x"] = data["x"] * 2
        assert torch.equal(buffer["x"], data["x"] * 2)
        with pytest.raises(SchemaError):
            buffer[index] = TensorDict({"x": value["x"], "y": torch.zeros(*value.batch_size, 3)}, value.batch_size)


@pytest.mark.parametrize("size", [149, 7])
def test_priorities_of_a_storage_that_is_rounded_up(size):
    """Of 149 rows in threes there are 150."""
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(size, ndim=2), sampler=PrioritizedSampler(size, 0.7, 0.5), batch_size=4
    )
    for _ in range(4):
        buffer.extend(TensorDict({"x": torch.zeros(3, 50)}, [3, 50]))
    batch = buffer.sample()
    buffer.update_priority(batch["index"], torch.rand(4))
    assert len(buffer) == -(-size // 3) * 3
