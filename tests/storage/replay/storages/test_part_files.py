"""Parts saved on their own: storages and writers in folders and states, also those that TorchRL wrote."""

from __future__ import annotations

import json

import pytest
import torch
import torchrl.data as torchrl
from rbdata.errors import DamagedDatasetError, SchemaError, UsageError
from rbdata.storage.replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    RoundRobinWriter,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    TensorStorage,
)
from replay_tools import equal, rollout
from tensordict import TensorDict
from torch.utils import _pytree as pytree


def tree(count: int) -> dict:
    rows = torch.arange(count)
    return {"a": rows.float(), "b": [rows.view(-1, 1).expand(-1, 3).clone(), (rows == 2,)], 30: {"c/d": rows.double()}}


DATA = {
    "tensor": torch.arange(12).view(6, 2),
    "tree": tree(6),
    "tuple": (torch.arange(6), torch.rand(6, 2)),
    "td": rollout([6]),
}


def same(one, other) -> bool:
    if isinstance(one, TensorDict):
        return equal(one, other)
    return pytree.tree_structure(one) == pytree.tree_structure(other) and all(
        torch.equal(left, right) for left, right in zip(pytree.tree_leaves(one), pytree.tree_leaves(other))
    )


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("make", [LazyTensorStorage, LazyMemmapStorage])
def test_storages_of_any_structure(make, kind, tmp_path):
    """Written as a ring, saved, loaded into a storage that has nothing yet, and into one that has."""
    storage, data = make(4), DATA[kind]
    buffer = ReplayBuffer(storage=storage, batch_size=3)
    buffer.extend(data)
    expected = storage.get(torch.tensor([2, 3, 0, 1]))
    rows = data[2:] if isinstance(data, (torch.Tensor, TensorDict)) else pytree.tree_map(lambda leaf: leaf[2:], data)
    assert same(expected, rows)
    storage.dumps(tmp_path / "part")
    storage.save(tmp_path / "part")
    for other in (LazyTensorStorage(4), LazyMemmapStorage(4), make(4)):
        if other.max_size == 4 and make is type(other):
            other.set(slice(0, 1), storage.get(slice(0, 1)))
        other.load(tmp_path / "part")
        assert same(other.get(torch.tensor([2, 3, 0, 1])), expected)
        assert (other.cursor, len(other)) == (2, 4)
    again = make(4)
    again.load_state_dict(storage.state_dict())
    assert same(again.get(torch.tensor([2, 3, 0, 1])), expected)
    buffer.dumps(tmp_path / "whole")
    whole = ReplayBuffer(storage=make(4), batch_size=3)
    whole.loads(tmp_path / "whole")
    assert same(whole.storage.get(slice(0, 4)), storage.get(slice(0, 4)))


@pytest.mark.parametrize("kind", DATA)
def test_a_folder_opened_again(kind, tmp_path):
    storage = LazyMemmapStorage(4, scratch_dir=tmp_path / "ring")
    ReplayBuffer(storage=storage).extend(DATA[kind])
    again = LazyMemmapStorage(4, scratch_dir=tmp_path / "ring", existsok=True)
    assert same(again.get(slice(0, 4)), storage.get(slice(0, 4)))
    assert again.cursor == 2
    assert storage.cleanup()
    assert not storage.cleanup()


def test_trees_that_files_cannot_hold():
    for bad in ({30: torch.zeros(2), "30": torch.zeros(2)}, {1.5: torch.zeros(2)}):
        with pytest.raises(SchemaError, match="eys"):
            ReplayBuffer(storage=LazyMemmapStorage(4)).extend(bad)


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.update(len=99),
        lambda record: record.update(newest=7),
        lambda record: record["tree"]["dict"][0][1].update(dtype="load"),
        lambda record: record["tree"]["dict"][0][1].update(shape=[10**6]),
        lambda record: record["tree"]["dict"].append(["../../x", {"dtype": "int64", "shape": [6]}]),
        lambda record: record.update(tree=[1]),
        lambda record: record.update(tree={"dict": 5}),
    ],
)
def test_hostile_trees(change, tmp_path):
    storage = LazyTensorStorage(6)
    ReplayBuffer(storage=storage).extend(tree(6))
    storage.dumps(tmp_path)
    record = json.loads((tmp_path / "storage_metadata.json").read_text())
    change(record)
    (tmp_path / "storage_metadata.json").write_text(json.dumps(record))
    with pytest.raises(DamagedDatasetError):
        LazyTensorStorage(6).loads(tmp_path)


@pytest.mark.parametrize("kind", ["td", "tree", "tensor"])
def test_folders_of_torchrl(kind, tmp_path):
    theirs = torchrl.ReplayBuffer(storage=torchrl.LazyTensorStorage(4), batch_size=3)
    data = tree(6) if kind != "td" else rollout([6])
    data = {key: part for key, part in data.items() if key != 30} if kind == "tree" else data
    data = torch.arange(6) if kind == "tensor" else data
    theirs.extend(data)
    theirs.storage.dumps(tmp_path / "storage")
    theirs.writer.dumps(tmp_path / "writer")
    ours = ReplayBuffer(storage=LazyTensorStorage(4), batch_size=3)
    if kind != "td":  # TorchRL writes no structure
        with pytest.raises(UsageError, match="structure"):
            ours.storage.loads(tmp_path / "storage")
        ours.add(pytree.tree_map(lambda leaf: leaf[0], data))
    ours.storage.loads(tmp_path / "storage")
    ours.writer.loads(tmp_path / "writer")
    assert same(ours.storage.get(slice(0, 4)), theirs.storage.get(slice(0, 4)))
    assert (ours.storage.cursor, ours.write_count) == (2, 6)
    back = torchrl.LazyTensorStorage(4)
    if kind != "td":
        back.set(slice(0, 4), ours.storage.get(slice(0, 4)))
    ours.storage.dumps(tmp_path / "ours")
    back.loads(tmp_path / "ours")
    assert same(back.get(slice(0, 4)), ours.storage.get(slice(0, 4)))


@pytest.mark.parametrize("kind", ["lazy", "memmap", "list"])
def test_states_of_torchrl(kind):
    theirs = torchrl.TensorDictReplayBuffer(
        storage={"lazy": torchrl.LazyTensorStorage, "memmap": torchrl.LazyMemmapStorage, "list": torchrl.ListStorage}[
            kind
        ](4),
        batch_size=3,
    )
    theirs.extend(rollout([6]))
    theirs.extend(rollout([1], first=50))
    state = theirs.state_dict()
    make = {"lazy": LazyTensorStorage, "memmap": LazyMemmapStorage, "list": ListStorage}[kind]
    ours = TensorDictReplayBuffer(storage=make(4), batch_size=3)
    ours.load_state_dict(state)
    assert ours["action"].tolist() == theirs["action"].tolist()
    assert ours.extend(rollout([1])).tolist() == theirs.extend(rollout([1])).tolist()
    assert ours.sample().batch_size == (3,)


def test_writers_on_their_own(tmp_path):
    buffer = ReplayBuffer(storage=LazyTensorStorage(4), writer=RoundRobinWriter(track_generations=True))
    buffer.extend(torch.arange(6))
    buffer.writer.dumps(tmp_path)
    for other in (RoundRobinWriter(track_generations=True), torchrl.RoundRobinWriter(track_generations=True)):
        other.loads(tmp_path)
        assert other._cursor == 2
        assert other.state_dict()["_generation"].tolist()[:4] == [1, 1, 0, 0]
    (tmp_path / "metadata.json").write_text(
        '{"cursor": 0, "write_count": 1, "generation_shape": [9], "generation_dtype": "load"}'
    )
    with pytest.raises(DamagedDatasetError):
        RoundRobinWriter(track_generations=True).loads(tmp_path)
    best = ReplayBuffer(storage=LazyTensorStorage(2), writer=TensorDictMaxValueWriter("x"))
    best.extend(TensorDict({"x": torch.tensor([3.0, 1.0, 2.0])}, [3]))
    best.writer.dumps(tmp_path / "best")
    for other in (TensorDictMaxValueWriter("x"), torchrl.TensorDictMaxValueWriter("x")):
        other.loads(tmp_path / "best")
        assert sorted(map(tuple, other._current_top_values)) == [(2.0, 1.0), (3.0, 0.0)]


def test_contains_and_flatten():
    storage = LazyTensorStorage(12, ndim=2)
    data = TensorDict({"x": torch.arange(6).view(2, 3)}, [2, 3])
    storage.set(slice(0, 2), data)
    theirs = torchrl.LazyTensorStorage(12, ndim=2)
    theirs.set(slice(0, 2), data)
    for item in (0, 2, -2, -3, torch.tensor([1, 2, -1])):
        assert torch.equal(torch.as_tensor(storage.contains(item)), torch.as_tensor(theirs.contains(item)))
    assert 1 in storage
    assert storage.contains(torch.tensor([[1, 2], [0, 3]])).tolist() == [True, False]
    flat = storage.flatten()
    assert isinstance(flat, TensorStorage)
    assert torch.equal(flat[:]["x"], theirs.flatten()[:]["x"])
    assert [int(row["x"]) for row in flat] == list(range(6))
