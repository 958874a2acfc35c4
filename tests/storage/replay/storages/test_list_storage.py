"""Storages of lists."""

from __future__ import annotations

import sys
import threading
from collections import UserDict
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from rbdata.errors import SchemaError
from rbdata.storage.replay import (
    CompressedListStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
)
from replay_tools import equal, rollout
from tensordict import TensorDict
from torch.utils import _pytree as pytree


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


def test_lazy_stacks():
    buffer = ReplayBuffer(storage=LazyStackStorage(5, stack_dim=-1), batch_size=6)
    for size in (10, 11):
        buffer.add(TensorDict({"a": torch.rand(size), "b": torch.full((4,), size), "c": f"{size} values"}))
    batch = buffer.sample()
    assert batch.batch_size == (6,)
    assert batch["c"] == [f"{int(row[0])} values" for row in batch["b"]]
    assert batch.densify(layout=torch.jagged)["a"].shape[0] == 6
    assert buffer.storage.get([0, 1]).batch_size == (2,)


@pytest.mark.parametrize("how", ["stack", "unlike", "collated"])
def test_what_is_set_in_a_batch_is_not_set_in_the_records(how):
    storage = LazyStackStorage(20) if how == "stack" else ListStorage(20)
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


@pytest.mark.parametrize("storage", [ListStorage, LazyStackStorage])
def test_records_are_copied_when_written(storage):
    """An environment, or a loop, uses its memory again for the next record."""
    buffer, record = TensorDictReplayBuffer(storage=storage(10)), TensorDict({"x": torch.zeros(1, 2)}, [1])
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


@dataclass
class Transition:
    obs: Any
    action: int


@dataclass(frozen=True)
class Nested:
    first: Transition


class Record(dict):
    """As the batches of tianshou, which pytree does not know."""


class Plain:
    def __init__(self, obs):
        self.obs = obs

    def __repr__(self):
        return f"Plain({self.obs})"


@pytest.mark.parametrize("storage", [ListStorage, LazyStackStorage, CompressedListStorage])
@pytest.mark.parametrize(
    "kind",
    [
        lambda obs: (obs, 1),
        lambda obs: {"x": [obs]},
        lambda obs: Transition(obs, 1),
        lambda obs: SimpleNamespace(obs=obs),
        lambda obs: Nested(Transition(obs, 1)),
        lambda obs: TensorDict({"o": torch.zeros(2)}).set_non_tensor("meta", {"x": obs}),
        lambda obs: TensorDict({"o": torch.zeros(2)}, device="cpu").set_non_tensor("meta", {"x": obs}),
        lambda obs: TensorDict({"o": {"p": torch.zeros(2)}}, device="cpu").set_non_tensor(("o", "meta"), [obs]),
        lambda obs: Record(obs=obs),
        lambda obs: {"x": [Record(obs=Record(obs=obs))]},
        lambda obs: UserDict(obs=obs),
        lambda obs: {"x": np.array([obs, None], dtype=object)},
        lambda obs: {"x": Plain(obs)},
    ],
)
def test_no_record_shares_memory_with_what_was_written(storage, kind):
    obs = np.zeros(2)
    buffer = ReplayBuffer(storage=storage(8), batch_size=4)
    buffer.add(kind(obs))
    buffer.extend([kind(obs)])
    obs[:] = 7
    assert all("7" not in repr(buffer.storage.get(row)) for row in range(2))


@pytest.mark.parametrize("storage", [ListStorage, CompressedListStorage])
def test_rows_of_an_array_are_copied(storage):
    rows = np.zeros((4, 2))
    buffer = ReplayBuffer(storage=storage(8), batch_size=4)
    buffer.extend(rows)
    rows[:] = 7
    assert bool((buffer[:] == 0).all())


def test_records_in_files_stay_there(tmp_path):
    record = TensorDict({"x": torch.arange(4)}, []).memmap_(tmp_path / "record")
    buffer = TensorDictReplayBuffer(storage=ListStorage(4))
    buffer.add(record)
    assert buffer.storage.get(0)["x"].filename == record["x"].filename


def test_records_of_unlike_kinds_are_refused():
    buffer = ReplayBuffer(storage=ListStorage(4), batch_size=16)
    buffer.extend([TensorDict({"x": torch.zeros(2)}, []), None, 3])
    with pytest.raises(SchemaError, match="not alike"):
        buffer.sample()


@pytest.mark.parametrize("prefetch", [0, 1])
def test_records_are_not_handed_to_a_collate_fn_of_the_users(prefetch):
    options = {"batch_size": 1, "collate_fn": lambda records: records[0], "seed": 0, "prefetch": prefetch}
    buffer = TensorDictReplayBuffer(storage=ListStorage(4), **options)
    buffer.extend(TensorDict({"o": torch.ones(4)}, [4]))
    for batch in [*(buffer.sample() for _ in range(5)), buffer[:], buffer.sample_at([0])]:
        batch["o"] *= 2
        batch["loss"] = torch.zeros(())
    assert all(record["o"] == 1 and "loss" not in record for record in buffer.storage[:])


@pytest.mark.parametrize("form", [list, np.array, torch.tensor])
def test_masks_choose_records(form):
    buffer = ReplayBuffer(storage=ListStorage(8))
    buffer.extend([torch.tensor(number) for number in range(4)])
    mask = form([False, False, True, True])
    assert buffer[mask].tolist() == [2, 3]
    buffer[mask] = [torch.tensor(12), torch.tensor(13)]
    assert buffer[:].tolist() == [0, 1, 12, 13]
    with pytest.raises(SchemaError, match="mask of 2 for 4"):
        buffer[form([True, False])]


class Columns(NamedTuple):
    obs: Any
    reward: Any


@pytest.mark.parametrize("storage", [ListStorage, CompressedListStorage])
@pytest.mark.parametrize("count", [2, 3, 11])
def test_a_tuple_of_columns_is_a_list_of_tuples(storage, count):
    buffer = ReplayBuffer(storage=storage(8), batch_size=4)
    rows = buffer.extend(Columns(np.arange(2.0 * count).reshape(count, 2), torch.arange(count)))
    for number, row in list(enumerate(rows.tolist()))[-8:]:
        record = buffer.storage.get(row)
        assert isinstance(record, Columns)
        assert record.obs.tolist() == [2 * number, 2 * number + 1]
        assert int(record.reward) == number
    assert len(buffer) == min(count, 8)
    assert buffer.sample().obs.shape == (4, 2)
    buffer[0:2] = Columns(np.zeros((2, 2)), torch.tensor([7, 9]))
    assert buffer[:2].reward.tolist() == [7, 9]


def test_columns_may_be_trees_and_tensordicts():
    buffer = ReplayBuffer(storage=ListStorage(8), batch_size=4)
    buffer.extend(({"o": torch.arange(2)}, TensorDict({"a": torch.arange(2)}, [2])))
    first, second = buffer[:]
    assert first["o"].tolist() == [0, 1]
    assert second.batch_size == (2,)
    assert second["a"].tolist() == [0, 1]


@pytest.mark.parametrize("storage", [ListStorage, LazyTensorStorage])
@pytest.mark.parametrize("lengths", [(2, 3), (3, 2)])
def test_columns_of_different_length_are_refused(storage, lengths):
    buffer = ReplayBuffer(storage=storage(8))
    with pytest.raises(SchemaError, match="2 and 3 rows"):
        buffer.extend(tuple(map(torch.arange, lengths)))
    assert not len(buffer)


@pytest.mark.parametrize("storage", [ListStorage, LazyStackStorage, CompressedListStorage])
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
def test_an_index_counts_from_the_records_that_are_there(storage, index, expected):
    buffer = ReplayBuffer(storage=storage(8))
    buffer.extend(TensorDict({"a": torch.arange(4)}, [4]))
    written = sum(number >= 50 for number in expected)
    records = TensorDict({"a": torch.arange(50, 50 + written)}, [written])
    buffer[index] = records[0] if isinstance(index, int) else records
    assert buffer[:]["a"].tolist() == expected
    assert buffer[index]["a"].reshape(-1).tolist() == (50 + torch.arange(written)).tolist()
    with pytest.raises(SchemaError):
        buffer[[-5]] = records[:1]
    with pytest.raises(SchemaError):
        buffer[[True, False]] = records[:1]


def test_an_open_slice_of_an_empty_list_is_as_long_as_the_records():
    buffer = ReplayBuffer(storage=ListStorage(8))
    buffer[:] = [torch.tensor(number) for number in range(3)]
    assert buffer[:].tolist() == [0, 1, 2]


@pytest.mark.parametrize("storage", [ListStorage, LazyStackStorage, CompressedListStorage])
def test_a_batch_of_unlike_records_is_written_to_another_list(storage):
    """A batch of records of unlike shapes is a lazy stack, whose leaves cannot be stacked."""
    records = [TensorDict({"x": torch.full((number % 3 + 1,), number)}, []) for number in range(5)]
    source = ReplayBuffer(storage=ListStorage(5), batch_size=5, sampler=SamplerWithoutReplacement(shuffle=False))
    source.extend(records)
    buffer = ReplayBuffer(storage=storage(4), batch_size=2)
    buffer.extend(source.sample())
    assert [record["x"].tolist() for record in buffer.storage] == [records[row]["x"].tolist() for row in (4, 1, 2, 3)]
    with pytest.raises(SchemaError, match="not alike"):
        ReplayBuffer(storage=LazyTensorStorage(4)).extend(source.sample())


@pytest.mark.parametrize("storage", [ListStorage, LazyStackStorage])
@pytest.mark.parametrize("width", [3, 4])
def test_records_with_and_without_a_device_are_read_together(storage, width):
    """The state of a storage of tensors has a device, an environment's records often none."""
    buffer = TensorDictReplayBuffer(storage=storage(4), batch_size=8, seed=0)
    buffer.extend(TensorDict({"x": torch.zeros(2, 3)}, [2], device="cpu"))
    buffer.extend(TensorDict({"x": torch.ones(2, width)}, [2]))
    for batch in (buffer.sample(), buffer[:], buffer.sample_at([0, 3])):
        assert [record["x"].unique().tolist() for record in batch] == [[float(row > 1)] for row in _rows(batch)]


def _rows(batch):
    return batch.get("index", torch.arange(len(batch))).tolist()


class Attributes(dict):
    __getattr__ = dict.__getitem__


def test_states_with_records_of_a_class_that_raises_key_errors():
    buffer, other = (ReplayBuffer(storage=ListStorage(4), batch_size=2, collate_fn=list) for _ in range(2))
    buffer.extend([Attributes(obs=1), Attributes(obs=2)])
    other.load_state_dict(buffer.state_dict())
    assert other.storage.get(range(2)) == [{"obs": 1}, {"obs": 2}]


def test_what_cannot_be_copied_is_kept_at_once():
    """A module leads to everything there is."""
    kept = [sys, (number for number in range(3)), threading.Lock()]
    buffer = ReplayBuffer(storage=ListStorage(4), batch_size=2, collate_fn=list)
    buffer.add({"kept": kept})
    assert all(one is other for one, other in zip(buffer.storage.get(0)["kept"], kept))


@pytest.mark.parametrize("record", [3, {"x": torch.ones(2)}, (torch.ones(1), torch.ones(2)), np.ones(3)], ids=str)
def test_records_that_make_no_lazy_stack(record):
    """They are read as those of a ListStorage."""
    buffers = [ReplayBuffer(storage=kind(5), batch_size=3, seed=0) for kind in (LazyStackStorage, ListStorage)]
    for buffer in buffers:
        buffer.extend([record, record])
    lazy, plain = (pytree.tree_leaves([buffer.sample(), buffer[:2], buffer[1]]) for buffer in buffers)
    assert len(lazy) == len(plain)
    assert all(np.array_equal(one, other) for one, other in zip(lazy, plain))
