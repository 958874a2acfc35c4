"""Records are written that lie in the buffer's own rows: what is stored is what they were before the write."""

from __future__ import annotations

import pytest
import torch
from rbdata.storage.replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ReplayBuffer,
    RoundRobinWriter,
    TensorDictReplayBuffer,
    TensorStorage,
)
from tensordict import TensorDict, lazy_stack


def buffer_of(count, storage=LazyTensorStorage):
    buffer = ReplayBuffer(storage=storage(8), batch_size=4)
    buffer.extend(TensorDict({"a": torch.arange(count), "next": {"b": torch.arange(count) + 100}}, [count]))
    return buffer


def column(buffer):
    data = buffer[:]
    assert data["next", "b"].tolist() == (data["a"] + 100).tolist()
    return data["a"].tolist()


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
@pytest.mark.parametrize(
    "form", [lambda data: data, lambda data: list(data.unbind(0)), lambda data: lazy_stack(list(data))]
)
def test_own_rows_are_written_round_the_end_of_the_ring(storage, form):
    buffer = buffer_of(14, storage)
    buffer.extend(form(buffer[0:4]))
    assert column(buffer) == [10, 11, 10, 11, 12, 13, 8, 9]
    buffer = buffer_of(11, storage)
    buffer.extend(form(buffer[:]))
    assert column(buffer) == [5, 6, 7, 8, 9, 10, 3, 4]


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_own_rows_are_written_where_they_overlap(storage):
    buffer = buffer_of(8, storage)
    buffer.extend(buffer[1:6])
    assert column(buffer) == [1, 2, 3, 4, 5, 5, 6, 7]
    buffer[2:7] = buffer[1:6]
    assert column(buffer) == [1, 2, 2, 3, 4, 5, 5, 7]


def test_trees_and_arrays_of_own_rows():
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), batch_size=4)
    buffer.extend((torch.arange(11), {"b": torch.arange(11)}))
    a, b = buffer[:][0].numpy(), buffer[:][1]["b"]
    buffer.extend((a, {"b": b}))
    assert buffer[:][0].tolist() == buffer[:][1]["b"].tolist() == [5, 6, 7, 8, 9, 10, 3, 4]


def test_memory_that_holds_the_storage_as_well():
    memory = torch.arange(12)
    buffer = ReplayBuffer(storage=TensorStorage(memory[2:10]), batch_size=4)
    buffer[:] = memory[3:11]
    assert buffer[:].tolist() == [3, 4, 5, 6, 7, 8, 9, 10]


def test_leaves_change_places():
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(4), writer=RoundRobinWriter(track_generations=True), batch_size=2
    )
    index = buffer.extend(TensorDict({"a": torch.arange(4), "b": torch.arange(4) + 4}, [4]))
    buffer.update_({"a": buffer["b"], "b": buffer["a"]})
    assert (buffer["a"].tolist(), buffer["b"].tolist()) == ([4, 5, 6, 7], [0, 1, 2, 3])
    stamps, patch = buffer.writer.generations_of(index), {"a": buffer["b"], "b": buffer["a"]}
    buffer.update_if_present(index=index, generation=stamps, patch=patch)
    assert (buffer["a"].tolist(), buffer["b"].tolist()) == ([0, 1, 2, 3], [4, 5, 6, 7])
