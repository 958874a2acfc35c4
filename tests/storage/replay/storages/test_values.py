"""Values that are not tensors: lists keep those of each record, tensor storages refuse them."""

from __future__ import annotations

import pytest
import torch
from rbdata.errors import SchemaError
from rbdata.storage.replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    TensorDictReplayBuffer,
)
from tensordict import NonTensorData, TensorDict, lazy_stack

TENSORS = [LazyTensorStorage, LazyMemmapStorage]


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
def test_lists_keep_the_values_of_each_record(how):
    buffer = TensorDictReplayBuffer(storage=ListStorage(9), batch_size=16, seed=0)
    write(buffer, [record(number, **told(number)) for number in range(5)], how)
    other = TensorDictReplayBuffer(storage=ListStorage(9), batch_size=16, seed=1)
    other.load_state_dict(buffer.state_dict())
    for each in (buffer, other):
        batch = each.sample()
        for row, number in enumerate(batch["x"].int().tolist()):
            assert batch["text"][row] == f"record {number}"
            assert batch[row]["info", "tags"] == {"number": number}


@pytest.mark.parametrize("how", ["add", "stack", "lazy stack", "batches"])
@pytest.mark.parametrize("storage", TENSORS)
@pytest.mark.parametrize("key", ["text", "info"])
def test_tensor_storages_refuse_what_is_no_tensor(storage, key, how):
    buffer = TensorDictReplayBuffer(storage=storage(9), batch_size=4)
    name = {"text": "text", "info": "info/tags"}[key]
    with pytest.raises(SchemaError, match=f"{name} is a .*, no tensor") as error:
        write(buffer, [record(number, **{key: told(number)[key]}) for number in range(5)], how)
    assert "ListStorage" in error.value.hint
    assert len(buffer) == 0
    other = TensorDictReplayBuffer(storage=storage(9), batch_size=4)
    write(other, [record(number) for number in range(5)], how)  # as the hint says
    assert len(other) == 5
