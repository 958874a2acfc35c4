"""Storages of tensors: records of any kind, and data that do not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rbdata.errors import SchemaError, UnknownKeyError, UsageError
from rbdata.storage.replay import (
    Around,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    TensorStorage,
)
from replay_tools import equal, rollout
from tensordict import TensorDict, tensorclass


@pytest.mark.parametrize(
    "change,words",
    [
        (lambda data: data.set("action", data["action"].int()), "key action: got int32 .*, the storage holds int64"),
        (lambda data: data.set("observation", torch.zeros(len(data), 3)), r"float32 \[3\].*float32 \[2\]"),
        (lambda data: data[:0], "no records"),
    ],
    ids=["dtype", "shape", "empty"],
)
@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_data_that_do_not_fit(storage, change, words):
    buffer = ReplayBuffer(storage=storage(10), batch_size=2)
    buffer.extend(rollout([4]))
    with pytest.raises(SchemaError, match=words):
        buffer.extend(change(rollout([3])))
    assert equal(buffer[:], rollout([4]))
    assert buffer.extend(rollout([2])).tolist() == [4, 5]


def test_other_bad_input():
    with pytest.raises(SchemaError, match="takes TensorDicts"):
        TensorDictReplayBuffer(storage=LazyTensorStorage(5)).extend({"x": torch.zeros(3)})
    with pytest.raises(SchemaError, match="not alike"):
        ReplayBuffer(storage=LazyTensorStorage(5)).extend([torch.zeros(3), torch.zeros(2)])
    with pytest.raises(SchemaError, match="no dimension 1"):
        ReplayBuffer(storage=LazyTensorStorage(5, ndim=2)).extend(rollout([3]))
    with pytest.raises(UsageError, match="max_size"):
        LazyTensorStorage(0)
    with pytest.raises(UsageError, match="a storage is wanted"):
        ReplayBuffer(storage=7)
    with pytest.raises(SchemaError, match="sequence of records"):
        ReplayBuffer(storage=ListStorage(5)).extend({"x": 2})
    with pytest.raises(UsageError, match="one dimension"):
        ListStorage(5, ndim=2)
    with pytest.raises(UsageError, match="one dimension"):
        ReplayBuffer(storage=LazyTensorStorage(5, ndim=2), writer=TensorDictMaxValueWriter())
    with pytest.raises(SchemaError, match="no next/reward"):
        ReplayBuffer(storage=LazyTensorStorage(5), writer=TensorDictMaxValueWriter()).extend(
            TensorDict({"x": torch.zeros(3)}, [3])
        )
    with pytest.raises(UsageError, match="CPU"):
        LazyMemmapStorage(5, device="cuda")


@tensorclass
class Step:
    observation: torch.Tensor
    reward: torch.Tensor


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage, ListStorage])
def test_tensorclasses(storage):
    buffer = ReplayBuffer(storage=storage(6), batch_size=4)
    data = Step(observation=torch.arange(8.0).view(8, 1), reward=torch.arange(8), batch_size=[8])  # type: ignore[call-arg]
    buffer.extend(data)
    batch = buffer.sample()
    assert isinstance(batch, Step)
    assert torch.equal(batch.observation.squeeze(1), batch.reward.float())


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_checkpoints_of_tensorclasses_have_their_class(storage, tmp_path):
    """A buffer without records, as in the process that goes on, gives records of the class as well."""
    data = Step(observation=torch.arange(8.0).view(8, 1), reward=torch.arange(8), batch_size=[8])  # type: ignore[call-arg]
    ReplayBuffer(storage=storage(8)).extend(data)
    buffer, again = (ReplayBuffer(storage=storage(8), batch_size=4) for _ in range(2))
    buffer.extend(data)
    buffer.dumps(tmp_path / "checkpoint")
    again.loads(tmp_path / "checkpoint")
    assert isinstance(again.sample(), Step)
    assert again[:].reward.tolist() == list(range(8))
    again.extend(data[:2])


def test_trajectories_as_records():
    """One record may be a whole trajectory: what lies beyond the rows stays a batch dimension."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(5), batch_size=3)
    buffer.extend(torch.stack([rollout([6], first=100 * env) for env in range(4)]))
    batch = buffer.sample()
    assert batch.batch_size == (3, 6)
    assert batch["observation"].shape == (3, 6, 2)
    assert torch.equal(batch["action"][:, 0], 100 * batch["index"].reshape(3, -1)[:, 0])


def test_numpy_and_ranges():
    storage = LazyTensorStorage(10)
    storage.set(range(10), rollout([10]))
    assert equal(storage.get(np.array([3, 4])), rollout([10])[3:5])
    assert equal(storage.get(range(2)), rollout([10])[:2])


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_rows_are_written_where_there_are_records(storage):
    """Negative numbers, open slices and masks count from the records that are there, and no row is left out."""

    def counts(first, count):
        return TensorDict({"a": torch.arange(first, first + count)}, [count])

    def buffer():
        made = TensorDictReplayBuffer(storage=storage(10), batch_size=4)
        made.extend(counts(0, 4))
        return made

    writes = [
        (slice(-2, None), counts(50, 2), [0, 1, 50, 51]),
        (-1, counts(50, 1)[0], [0, 1, 2, 50]),
        ([-2], counts(60, 1), [0, 1, 60, 3]),
        (torch.tensor([False, True, False, True]), counts(70, 2), [0, 70, 2, 71]),
        (slice(None), counts(80, 4), [80, 81, 82, 83]),
        (..., counts(80, 4), [80, 81, 82, 83]),
        (slice(4, 6), counts(90, 2), [0, 1, 2, 3, 90, 91]),
        ([4, 5], counts(90, 2), [0, 1, 2, 3, 90, 91]),
    ]
    for index, data, wanted in writes:
        made = buffer()
        made[index] = data
        assert made[:]["a"].tolist() == wanted, index
    for index, data, error in (
        (6, counts(0, 1)[0], SchemaError),
        (slice(5, 7), counts(0, 2), SchemaError),
        ([4, 6], counts(0, 2), SchemaError),
        (-5, counts(0, 1)[0], UnknownKeyError),
    ):
        made = buffer()
        with pytest.raises(error):
            made[index] = data
        assert made[:]["a"].tolist() == [0, 1, 2, 3], index


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_changes_through_views(storage):
    """What is changed in ``buffer[:]`` is in the next batch, and episodes end where the flags say so now."""
    steps = torch.arange(64)
    sampler = SliceSampler(slice_len=4, end_key=("next", "done"))
    buffer = TensorDictReplayBuffer(storage=storage(64), sampler=sampler, batch_size=8, seed=0)
    after = {"reward": torch.ones(64, 1), "done": (steps % 8 == 7)[:, None]}
    buffer.extend(TensorDict({"a": steps, "next": after}, [64]))
    for _ in range(5):
        buffer.sample()
    view = buffer[:]
    view["next", "reward"].mul_(10)
    view["next", "done"].copy_((steps % 4 == 3)[:, None])
    for _ in range(20):
        batch = buffer.sample()
        assert (batch["next", "reward"] == 10).all() and (batch["a"][::4] % 4 == 0).all()


def test_what_requires_grad_is_stored_without():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(8), batch_size=4)
    weights = torch.arange(4.0, requires_grad=True)
    buffer.extend(TensorDict({"x": weights * 2}, [4]))
    buffer["x"] = weights * 3
    buffer[0] = TensorDict({"x": weights[3] * 3})
    assert not buffer.sample()["x"].requires_grad
    assert buffer["x"].tolist() == [9, 3, 6, 9]
    assert not ReplayBuffer(storage=TensorStorage(weights * 1), batch_size=2).sample().requires_grad


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_the_first_record_is_written_in_inference_mode(storage):
    with torch.inference_mode():
        buffer = TensorDictReplayBuffer(storage=storage(8), batch_size=4)
        buffer.extend(TensorDict({"x": torch.zeros(4)}, [4]))
    buffer.extend(TensorDict({"x": torch.ones(4)}, [4]))
    assert buffer["x"].tolist() == [0] * 4 + [1] * 4


@pytest.mark.parametrize("value", [np.array([5.7, 1, 2, 3]), torch.tensor(0.5), torch.arange(3)])
def test_values_that_a_column_cannot_hold_are_refused(value):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(4), batch_size=4)
    buffer.extend(TensorDict({"a": torch.arange(4), "o": torch.arange(4.0)}, [4]))
    with pytest.raises(SchemaError, match=r"a does not fit|key a: got float64"):
        buffer["a"] = value
    with pytest.raises(UnknownKeyError):
        buffer["b"] = value
    buffer["a"], buffer["o"] = np.array([5, 1, 2, 3]), torch.tensor([0.1, 1, 2, 3])
    assert buffer["a"].tolist() == [5, 1, 2, 3]
    assert buffer["o"].tolist() == torch.tensor([0.1, 1, 2, 3]).tolist()


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_a_slice_that_ends_behind_the_last_record_adds_none(storage):
    """``[0:6:2]`` of five records is 0, 2 and 4: a sixth was there afterwards, with whatever was in memory."""
    buffer = ReplayBuffer(storage=storage(10))
    records = TensorDict({"value": torch.arange(8)}, [8])
    buffer.extend(records[:5])
    buffer[0:6:2] = records[5:]
    assert buffer[:]["value"].tolist() == [5, 1, 6, 3, 7]


@pytest.mark.parametrize("how", ["add", "extend"])
def test_rows_are_in_order_whatever_the_first_record_is(how):
    """A frame permuted to CHW: leaves have the order of their rows in memory, and windows can be read."""
    frames = torch.arange(6 * 60).view(6, 4, 5, 3).permute(0, 3, 1, 2)
    done = torch.zeros(6, 1, dtype=torch.bool)
    data = TensorDict({"pixels": frames, "next": {"pixels": frames, "reward": torch.ones(6, 1), "done": done}}, [6])
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(6), batch_size=2, around=Around(n_step=2, gamma=1.0, frame_stack=2)
    )
    if how == "extend":
        buffer.extend(data)
    else:
        for record in data:
            buffer.add(record)
    batch = buffer.sample_at([3])
    assert torch.equal(batch["pixels"][0], frames[2:4])
    assert batch["next", "reward"].item() == 2
    given = ReplayBuffer(storage=TensorStorage(data), batch_size=2, around=Around(n_step=2))
    with pytest.raises(UsageError, match="contiguous"):
        given.sample()
