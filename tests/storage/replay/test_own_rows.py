"""Records are written that lie in the buffer's own rows: what is stored is what they were before the write."""

from __future__ import annotations

import pytest
import torch
from rbdata.storage.replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ReplayBuffer,
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
