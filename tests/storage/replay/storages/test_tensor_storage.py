"""Storages of tensors: records of any kind, and data that do not fit."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from rbdata.errors import RbdataError, SchemaError, UnknownKeyError, UsageError
from rbdata.storage.replay import (
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    RoundRobinWriter,
    SliceSampler,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    TensorStorage,
)
from replay_tools import equal, rollout
from tensordict import TensorDict, tensorclass


@pytest.mark.parametrize(
    "change,words",
    [
        (lambda data: data.set("action", data["action"].int()), "key action: got int32 .*, the storage holds int64"),
        (lambda data: data.set("observation", torch.zeros(len(data), 3)), r"float32 \[3\].*float32 \[2\]"),
        (lambda data: {"action": data["action"]}, "not a dict"),
        (lambda data: data[:0], "no records"),
    ],
    ids=["dtype", "shape", "kind", "empty"],
)
@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_data_that_do_not_fit(storage, change, words):
    buffer = ReplayBuffer(storage=storage(10), batch_size=2)
    buffer.extend(rollout([4]))
    with pytest.raises(SchemaError, match=words):
        buffer.extend(change(rollout([3])))
    assert equal(buffer[:], rollout([4]))
    assert buffer.extend(rollout([2])).tolist() == [4, 5]


@pytest.mark.filterwarnings("ignore:.*(zeros are|is not) stored")
@pytest.mark.parametrize("kind", ["lazy", "given", "memmap"])
def test_other_keys_later(kind):
    """A collector's first batches lack what the policy writes: later leaves find room in memory, and are left out in files."""
    first = TensorDict({"x": torch.ones(3), ("b", "c"): torch.ones(3, 2)}, [3])
    given = TensorStorage(torch.cat([first, first]))
    buffer = ReplayBuffer(
        storage={"lazy": LazyTensorStorage(6), "memmap": LazyMemmapStorage(6), "given": given}[kind], batch_size=4
    )
    buffer.empty()
    buffer.extend(first)
    buffer.extend(TensorDict({"x": torch.full((2,), 2.0), ("b", "d"): torch.ones(2, dtype=torch.int64)}, [2]))
    buffer[0] = TensorDict({"x": torch.tensor(5.0)}, [])
    assert buffer["x"].tolist() == [5, 1, 1, 2, 2]
    assert buffer["b", "c"][:, 0].tolist() == [1, 1, 1, 0, 0]
    if kind == "memmap":
        assert ("b", "d") not in buffer[:].keys(True)
    else:
        assert buffer["b", "d"].tolist() == [0, 0, 0, 1, 1]
        assert buffer.sample()["b", "d"].shape == (4,)


def test_a_tensordict_without_leaves_takes_those_of_the_first_record():
    buffer = ReplayBuffer(storage=TensorStorage(TensorDict(batch_size=[9])), batch_size=4)
    buffer.extend(rollout([5]))
    assert len(buffer) == 9 and equal(buffer[:5], rollout([5]))  # the given rows count, as in TorchRL


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


def test_checkpoints_of_tensorclasses_that_the_program_does_not_have(storage_folder):
    """Nothing is imported because a folder names it; a buffer that has a record of the class needs no name."""
    folder, record = storage_folder
    for name in ("nowhere.Step", "nowhere", "os.system", "json.decoder.JSONDecoder", "", 3):
        (folder / "storage_metadata.json").write_text(json.dumps({**record, "class": name}))
        storage = LazyTensorStorage(8)
        with pytest.raises(RbdataError):
            storage.loads(folder)
        assert len(storage) == 0
        storage.set(0, Step(observation=torch.zeros(1), reward=torch.tensor(0), batch_size=[]))  # type: ignore[call-arg]
        storage.loads(folder)
        assert isinstance(storage.get(slice(None)), Step)
    assert "nowhere" not in sys.modules


@tensorclass
class Pair:
    step: Step
    text: str


def test_checkpoints_of_tensorclasses_within_tensorclasses_are_refused(tmp_path):
    """They would be TensorDicts afterwards."""
    step = Step(observation=torch.rand(3, 1), reward=torch.arange(3), batch_size=[3])  # type: ignore[call-arg]
    storage = LazyTensorStorage(3)
    storage.set(range(3), Pair(step=step, text="x", batch_size=[3]))  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="step is a Step"):
        storage.dumps(tmp_path)


@pytest.fixture
def storage_folder(tmp_path):
    storage = LazyTensorStorage(8)
    storage.set(range(3), Step(observation=torch.rand(3, 1), reward=torch.arange(3), batch_size=[3]))  # type: ignore[call-arg]
    storage.dumps(tmp_path)
    return tmp_path, json.loads((tmp_path / "storage_metadata.json").read_text())


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


def test_leaves_that_are_missing_are_zero_in_all_rows_written():
    writer = TensorDictRoundRobinWriter()
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(4), writer=writer)
    buffer.extend(TensorDict({"a": torch.ones(3), "b": torch.ones(3)}, [3]))
    with pytest.warns(UserWarning, match="without b"):
        rows = buffer.extend(TensorDict({"a": torch.full((3,), 2.0)}, [3]))
    assert rows.tolist() == [3, 0, 1]
    assert buffer[:]["b"].tolist() == [0, 0, 1, 0]
    assert (writer.cursor, buffer.storage.newest) == (2, 1)
    writer.write_at(torch.tensor([2]), TensorDict({"a": torch.zeros(1)}, [1]))
    assert buffer[:]["b"].tolist() == [0, 0, 0, 0]
    assert (writer.cursor, buffer.storage.newest) == (2, 1)


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
    for index, data in (
        (6, counts(0, 1)[0]),
        (slice(5, 7), counts(0, 2)),
        ([4, 6], counts(0, 2)),
        (-5, counts(0, 1)[0]),
    ):
        made = buffer()
        with pytest.raises(SchemaError):
            made[index] = data
        assert made[:]["a"].tolist() == [0, 1, 2, 3], index
    made = buffer()
    with pytest.raises(SchemaError):
        made.writer.write_at(torch.tensor([6]), counts(0, 1))
    assert len(made) == 4


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
        writer = RoundRobinWriter(track_generations=True)
        buffer = TensorDictReplayBuffer(storage=storage(8), batch_size=4, writer=writer)
        buffer.extend(TensorDict({"x": torch.zeros(4)}, [4]))
    buffer.extend(TensorDict({"x": torch.ones(4)}, [4]))
    assert buffer["x"].tolist() == [0] * 4 + [1] * 4


class Half(LazyTensorStorage):
    """Records are decoded when they are read."""

    def get(self, index):
        data = super().get(index).copy()
        return data.set("o", data["o"] / 2)


@pytest.mark.parametrize(
    "write",
    [
        lambda buffer: buffer.__setitem__("a", torch.tensor([0, 7, 8, 3])),
        lambda buffer: buffer.set_at_("a", torch.tensor([7, 8]), [1, 2]),
        lambda buffer: buffer.set_at_("a", torch.tensor([8, 7]), torch.tensor([-2, 1])),
        lambda buffer: buffer.update_({"a": torch.tensor([0, 7, 8, 3])}),
    ],
)
def test_a_column_is_written_alone(write):
    buffer = TensorDictReplayBuffer(storage=Half(4), batch_size=4)
    buffer.extend(TensorDict({"a": torch.arange(4), "o": torch.arange(4.0)}, [4]))
    write(buffer)
    assert buffer[:]["o"].tolist() == [0, 0.5, 1, 1.5]
    assert buffer[:]["a"].tolist() == [0, 7, 8, 3]


@pytest.mark.parametrize("value", [np.array([5.7, 1, 2, 3]), torch.tensor(0.5), torch.full((4,), float("nan"))])
def test_values_that_a_column_cannot_hold_are_refused(value):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(4), batch_size=4)
    buffer.extend(TensorDict({"a": torch.arange(4), "o": torch.arange(4.0)}, [4]))
    with pytest.raises(SchemaError, match="a does not fit"):
        buffer["a"] = value
    with pytest.raises(SchemaError, match="a does not fit"):
        buffer.set_at_("a", value, slice(None))
    with pytest.raises(UnknownKeyError):
        buffer.set_at_("b", value, [0])
    buffer["a"], buffer["o"] = np.array([5.0, 1, 2, 3]), np.array([0.1, 1, 2, 3])
    assert buffer["a"].tolist() == [5, 1, 2, 3]
    assert buffer["o"].tolist() == torch.tensor([0.1, 1, 2, 3]).tolist()


def test_leaves_of_lists():
    records = TensorDict({"a": torch.arange(4), "o": torch.arange(4.0)}, [4])
    buffer = TensorDictReplayBuffer(storage=LazyStackStorage(8), batch_size=4)
    buffer.extend(records)
    buffer["a"] = torch.tensor([5, 6, 7, 8])
    buffer.set_at_("a", 0, [-1])
    assert [buffer[row]["a"].item() for row in range(4)] == [5, 6, 7, 0]
    buffer = TensorDictReplayBuffer(storage=ListStorage(8), batch_size=4)
    buffer.extend(records)
    with pytest.raises(UsageError, match="no columns"):
        buffer.set_at_("a", 0, [1])
    with pytest.raises(UsageError, match="no columns"):
        buffer["a"] = 0

    class Decoded(LazyStackStorage):
        def get(self, index):
            records = super().get(index)
            return records.set("o", records["o"] / 2)

    buffer = TensorDictReplayBuffer(storage=Decoded(8), batch_size=4)
    buffer.extend(records)
    with pytest.raises(UsageError, match="your own"):
        buffer.set_at_("a", 0, [1])


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
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(6), batch_size=2, n_step=2, gamma=1.0, frame_stack=2)
    if how == "extend":
        buffer.extend(data)
    else:
        for record in data:
            buffer.add(record)
    batch = buffer.sample_at([3])
    assert torch.equal(batch["pixels"][0], frames[2:4])
    assert batch["next", "reward"].item() == 2
    given = ReplayBuffer(storage=TensorStorage(data), batch_size=2, n_step=2)
    with pytest.raises(UsageError, match="contiguous"):
        given.sample()
