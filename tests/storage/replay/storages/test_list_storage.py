"""Storages of lists."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rbdata.errors import UnknownKeyError
from rbdata.storage.replay import (
    ListStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
)
from replay_tools import equal, rollout
from tensordict import TensorDict


def test_lists_hold_anything():
    buffer = ReplayBuffer(storage=ListStorage(4), batch_size=3)
    buffer.extend([1, 2, 3])
    assert set(buffer.sample().tolist()) <= {1, 2, 3}
    ragged = ReplayBuffer(storage=ListStorage(4), batch_size=8)
    ragged.extend([TensorDict({"x": torch.zeros(n)}, []) for n in (1, 2, 3)])
    assert ragged.sample().batch_size == (8,)
    words = ReplayBuffer(storage=ListStorage(4), batch_size=2, collate_fn=lambda records: records)
    words.extend(["a", "b"])
    assert set(words.sample()) <= {"a", "b"}


@pytest.mark.parametrize("how", ["unlike", "collated"])
def test_what_is_set_in_a_batch_is_not_set_in_the_records(how):
    storage = ListStorage(20)
    collate = TensorDict.lazy_stack if how == "collated" else None
    options = {"sampler": SliceSampler(slice_len=2), "collate_fn": collate, "batch_size": 8, "seed": 0}
    buffer = TensorDictReplayBuffer(storage=storage, **options)
    buffer.append_transform(lambda batch: batch.set("seen", torch.ones(8)).set(("next", "reward"), torch.ones(8, 1)))
    records = list(rollout([5, 6]).unbind(0))
    if how == "unlike":
        for number, record in enumerate(records):
            record["extra"] = torch.zeros(1 + number % 3)
    for record in records:
        buffer.add(record)
    before = [record.clone() for record in records]
    for _ in range(4):
        assert bool(buffer.sample()["next", "truncated"].any())
    assert all(equal(storage.get(number).exclude("index"), record) for number, record in enumerate(before))


def test_records_are_copied_when_written():
    """An environment, or a loop, uses its memory again for the next record."""
    buffer, record = TensorDictReplayBuffer(storage=ListStorage(10)), TensorDict({"x": torch.zeros(1, 2)}, [1])
    for number in range(6):
        record["x"].fill_(number)
        if number % 3 == 0:
            buffer.extend(record)
        elif number % 3 == 1:
            buffer.add(record[0])
        else:
            buffer.extend([record[0]])
    assert [buffer.storage.get(row)["x"].tolist() for row in range(6)] == [[row, row] for row in range(6)]
    trees = ReplayBuffer(storage=ListStorage(10))
    room = np.zeros(2)
    for number in range(3):
        room[:] = number
        trees.add({"x": room, "number": number})
    assert [trees.storage.get(row)["x"].tolist() for row in range(3)] == [[row, row] for row in range(3)]


@pytest.mark.parametrize("form", [list, np.array, torch.tensor])
def test_masks_choose_records(form):
    buffer = ReplayBuffer(storage=ListStorage(8))
    buffer.extend([torch.tensor(number) for number in range(4)])
    mask = form([False, False, True, True])
    assert buffer[mask].tolist() == [2, 3]
    buffer[mask] = [torch.tensor(12), torch.tensor(13)]
    assert buffer[:].tolist() == [0, 1, 12, 13]
    with pytest.raises(UnknownKeyError, match="mask of 2 for 4"):
        buffer[form([True, False])]


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (slice(None), [50, 51, 52, 53]),
        (..., [50, 51, 52, 53]),
        (slice(-2, None), [0, 1, 50, 51]),
        (slice(None, None, 2), [50, 1, 51, 3]),
        ([-1], [0, 1, 2, 50]),
        (torch.tensor([-1, -2]), [0, 1, 51, 50]),
        (np.array([True, False, True, False]), [50, 1, 51, 3]),
        ((torch.tensor([0, -1]),), [50, 1, 2, 51]),
        (-2, [0, 1, 50, 3]),
    ],
)
def test_an_index_counts_from_the_records_that_are_there(index, expected):
    buffer = ReplayBuffer(storage=ListStorage(8))
    buffer.extend(TensorDict({"a": torch.arange(4)}, [4]))
    written = sum(number >= 50 for number in expected)
    records = TensorDict({"a": torch.arange(50, 50 + written)}, [written])
    buffer[index] = records[0] if isinstance(index, int) else records
    assert buffer[:]["a"].tolist() == expected
    assert buffer[index]["a"].reshape(-1).tolist() == (50 + torch.arange(written)).tolist()
    with pytest.raises(UnknownKeyError):
        buffer[[-5]] = records[:1]
    with pytest.raises(UnknownKeyError):
        buffer[[True, False]] = records[:1]
