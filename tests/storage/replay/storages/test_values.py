"""Values that are not tensors: stored for each record, the same for all records, or refused; never those of another record."""

from __future__ import annotations

import pytest
import torch
from rbdata.errors import SchemaError, UsageError
from rbdata.storage.replay import (
    CompressedListStorage,
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    TensorDictReplayBuffer,
    TensorStorage,
)
from tensordict import NonTensorData, TensorDict, lazy_stack, tensorclass

TENSORS = [LazyTensorStorage, LazyMemmapStorage]
LISTS = [ListStorage, LazyStackStorage, CompressedListStorage]


def record(number, **values):
    return TensorDict({"x": torch.tensor(float(number)), **values}, [])


def told(number):
    """Values by which a record can be told."""
    return {"text": f"record {number}", "info": {"tags": NonTensorData({"number": number})}}


def write(buffer, records, how):
    if how == "add":
        for each in records:
            buffer.add(each)
    elif how == "stack":
        buffer.extend(torch.stack(records))
    elif how == "lazy stack":
        buffer.extend(lazy_stack(records))
    else:
        buffer.extend(torch.stack(records[:2]))
        buffer.extend(torch.stack(records[2:]))


@pytest.mark.parametrize("how", ["add", "stack", "lazy stack", "batches"])
@pytest.mark.parametrize("storage", LISTS)
def test_lists_keep_the_values_of_each_record(storage, how, tmp_path):
    buffer = TensorDictReplayBuffer(storage=storage(9), batch_size=16, seed=0)
    write(buffer, [record(number, **told(number)) for number in range(5)], how)
    buffer.dumps(tmp_path / "checkpoint")
    other = TensorDictReplayBuffer(storage=storage(9), batch_size=16, seed=1)
    other.loads(tmp_path / "checkpoint")
    third = TensorDictReplayBuffer(storage=storage(9), batch_size=16, seed=1)
    third.load_state_dict(buffer.state_dict())
    for each in (buffer, other, third):
        batch = each.sample()
        for row, number in enumerate(batch["x"].int().tolist()):
            assert batch["text"][row] == f"record {number}"
            assert batch[row]["info", "tags"] == {"number": number}


@pytest.mark.parametrize("how", ["add", "stack", "lazy stack", "batches"])
@pytest.mark.parametrize("storage", TENSORS)
@pytest.mark.parametrize("key", ["text", "info"])
def test_tensor_storages_refuse_values_that_differ(storage, key, how):
    buffer = TensorDictReplayBuffer(storage=storage(9), batch_size=4)
    name = {"text": "text", "info": "info/tags"}[key]
    with pytest.raises(SchemaError, match=f"key {name}: the records have .*0.* and .*1") as error:
        write(buffer, [record(number, **{key: told(number)[key]}) for number in range(5)], how)
    assert "ListStorage" in error.value.hint
    assert len(buffer) == (1 if how == "add" else 0)
    other = TensorDictReplayBuffer(storage=storage(9), batch_size=4)
    write(other, [record(number) for number in range(5)], how)  # as the hint says
    assert len(other) == 5


@pytest.mark.parametrize("storage", TENSORS)
def test_a_value_that_all_records_have(storage, tmp_path):
    values = {"text": "same", "info": {"tags": NonTensorData({"a": [1, 2.5, None]})}}
    buffer = TensorDictReplayBuffer(storage=storage(100_000), batch_size=4)
    write(buffer, [record(number, **values) for number in range(5)], "batches")
    buffer.dumps(tmp_path / "checkpoint")
    other = TensorDictReplayBuffer(storage=storage(100_000), batch_size=4)
    other.loads(tmp_path / "checkpoint")
    third = TensorDictReplayBuffer(storage=LazyTensorStorage(100_000), batch_size=4)
    third.load_state_dict(buffer.state_dict())
    for each in (buffer, other, third):
        assert each.sample()["text"] == ["same"] * 4
        assert each[:]["text"] == ["same"] * 5
        assert each[3]["text"] == "same"
        assert each[3]["info", "tags"] == {"a": [1, 2.5, None]}


@pytest.mark.parametrize("storage", TENSORS)
def test_values_that_only_some_records_have(storage):
    plain, told_ = [record(0), record(1)], [record(2, text="a"), record(3, text="a")]
    for first, then in ((plain, told_), (told_, plain)):
        buffer = ReplayBuffer(storage=storage(9), batch_size=4)
        buffer.extend(torch.stack(first))
        with pytest.raises(SchemaError, match=r"records come with(out)? text"):
            buffer.extend(torch.stack(then))
    buffer = ReplayBuffer(storage=storage(9), batch_size=4)
    # tensordict drops what only some have: as in TorchRL, but not without a word.
    with pytest.warns(UserWarning, match="only some of the records have info/y, text"):
        buffer.extend(lazy_stack([record(0, info={"y": torch.zeros(2)}), record(1, info={}, text="a")]))
    buffer = ReplayBuffer(storage=storage(9), batch_size=4)
    buffer.extend(torch.stack([record(0, text="a")]))
    with pytest.raises(SchemaError, match="key text"):
        buffer.extend(torch.stack([record(0, text=torch.zeros(()))]))


def test_a_batch_that_has_a_value_for_each_record_already():
    data = torch.stack([record(number, text=f"record {number}") for number in range(5)])
    buffer = ReplayBuffer(storage=TensorStorage(data), batch_size=20)
    buffer.extend(torch.stack([record(7, text="record 7"), record(8, text="record 8")]))
    buffer.set_("x", buffer[:]["x"] + 10)
    buffer[4] = buffer[2]
    batch = buffer.sample()
    assert batch["text"] == [f"record {int(x) - 10}" for x in batch["x"]]
    assert buffer[:]["text"] == ["record 7", "record 8", "record 2", "record 3", "record 2"]
    with pytest.raises(UsageError, match="text: values that are not tensors cannot be shared"):
        buffer.share()


@tensorclass
class Named:
    x: torch.Tensor
    name: str


@pytest.mark.parametrize("storage", TENSORS)
def test_tensorclasses_with_text(storage):
    def named(number, name):
        return Named(x=torch.tensor(float(number)), name=name, batch_size=[])  # type: ignore[call-arg]

    buffer = ReplayBuffer(storage=storage(9), batch_size=4)
    buffer.extend(torch.stack([named(number, "same") for number in range(3)]))
    assert buffer.sample().name == ["same"] * 4
    with pytest.raises(SchemaError, match="key name: the records have 'same' and 'other'"):
        buffer.extend(torch.stack([named(number, "other") for number in range(3)]))


@pytest.mark.parametrize("value", [(1, 2), {1: 2}, object(), float("nan"), b"bytes", 1 << 70])
def test_values_that_files_cannot_hold_are_refused_when_they_are_written(value, tmp_path):
    memory = ReplayBuffer(storage=LazyTensorStorage(9), batch_size=4)
    memory.extend(TensorDict({"x": torch.zeros(2), "value": NonTensorData(value, batch_size=[2])}, [2]))
    assert memory.sample()["value"] == [value] * 4
    with pytest.raises(UsageError, match=r"value is a .* that JSON cannot hold"):
        memory.dumps(tmp_path / "checkpoint")
    files = ReplayBuffer(storage=LazyMemmapStorage(9), batch_size=4)
    with pytest.raises(UsageError, match=r"value is a .* that JSON cannot hold"):
        files.extend(memory[:])


@pytest.mark.parametrize("storage", LISTS)
def test_lists_of_records_of_which_some_have_a_value(storage, tmp_path):
    buffer = TensorDictReplayBuffer(storage=storage(9), batch_size=16, seed=0)
    for number in range(4):
        buffer.add(record(number, **({"text": f"record {number}"} if number % 2 else {})))
    buffer.dumps(tmp_path / "checkpoint")
    other = TensorDictReplayBuffer(storage=storage(9), batch_size=16, seed=0)
    other.loads(tmp_path / "checkpoint")
    for batch in (buffer.sample(), buffer[:], other.sample(), other[:]):
        for row in batch.unbind(0):
            number = int(row["x"])
            assert row.get_non_tensor("text", default=None) == (f"record {number}" if number % 2 else None)


def test_a_value_is_not_that_of_the_record_given():
    meta = {"level": [1]}
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(4), batch_size=2)
    buffer.add(TensorDict({"a": torch.zeros(())}).set_non_tensor("meta", meta))
    meta["level"].append(2)
    assert buffer[0]["meta"] == {"level": [1]}
