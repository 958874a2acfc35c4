"""Checkpoints of buffers: all parts come back, and those of other buffers are refused."""

from __future__ import annotations

import pytest
import rbdata
import torch
from checkpoint_tools import SAMPLERS, filled, make
from rbdata.errors import SchemaError, UsageError
from rbdata.storage.replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
)
from replay_tools import equal, rollout
from storage_tools import contents, make_episodes, write_dataset
from tensordict import TensorDict


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage, ListStorage])
def test_everything_comes_back(tmp_path, sampler, storage):
    net = torch.nn.Linear(2, 2)
    buffer = filled(sampler=sampler, storage=storage, transform=lambda batch: batch)
    buffer.transform.append(_Module(net))
    if sampler == "priorities":
        buffer.update_priority(torch.arange(20), torch.linspace(0, 2, 20))
    buffer.dumps(tmp_path / "checkpoint")
    other = make(sampler=sampler, storage=storage, seed=1, transform=lambda batch: batch)
    other.transform.append(_Module(torch.nn.Linear(2, 2)))
    other.loads(tmp_path / "checkpoint")
    assert all(equal(buffer.sample(), other.sample()) for _ in range(15))
    data = rollout([4], first=500)
    assert torch.equal(buffer.extend(data.clone()), other.extend(data.clone()))
    assert all(equal(buffer.sample(), other.sample()) for _ in range(5))
    assert not [name for name in contents(tmp_path) if name.endswith((".pickle", ".pkl", ".pt"))]


class _Module(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, batch):
        return batch.set("value", self.net(batch["observation"]).detach())


def test_between_kinds_of_tensor_storages(tmp_path):
    buffer = filled()
    buffer.dumps(tmp_path / "checkpoint")
    other = make(storage=LazyMemmapStorage)
    other.loads(tmp_path / "checkpoint")
    assert equal(other[:], buffer[:])


def test_a_buffer_on_a_dataset(tmp_path):
    folder = write_dataset(tmp_path, make_episodes([9, 8]))
    buffer = rbdata.load(folder, batch_size=3, seed=1, replacement=False)
    buffer.sample()
    buffer.dumps(tmp_path / "checkpoint")
    assert sum(map(len, contents(tmp_path / "checkpoint").values())) < 20_000
    other = rbdata.load(folder, batch_size=3, seed=5, replacement=False)
    other.loads(tmp_path / "checkpoint")
    assert all(equal(buffer.sample(), other.sample()) for _ in range(9))
    elsewhere = rbdata.load(write_dataset(tmp_path, make_episodes([5]), id="my/other"), batch_size=3, replacement=False)
    with pytest.raises(UsageError, match="belongs to my/test"):
        elsewhere.loads(tmp_path / "checkpoint")


def test_trees_and_other_writers(tmp_path):
    tree = ReplayBuffer(storage=LazyTensorStorage(6), batch_size=2, seed=0)
    tree.extend((torch.arange(4), {"x": torch.ones(4, 2)}))
    tree.dumps(tmp_path / "tree")
    other = ReplayBuffer(storage=LazyTensorStorage(6), batch_size=2, seed=1)
    other.loads(tmp_path / "tree")
    assert len(other) == 4 and torch.equal(other[:][0], torch.arange(4))

    def best():
        writer = TensorDictMaxValueWriter("score")
        return ReplayBuffer(storage=LazyTensorStorage(3), writer=writer, batch_size=2, seed=0)

    first, second = best(), best()
    first.extend(TensorDict({"score": torch.arange(8.0)}, [8]))
    first.dumps(tmp_path / "best")
    second.loads(tmp_path / "best")
    more = TensorDict({"score": torch.tensor([6.5, 1.0, 9.0])}, [3])
    assert torch.equal(first.extend(more.clone()), second.extend(more.clone()))
    assert equal(first[:], second[:])


def test_lists_of_what_is_no_data(tmp_path):
    buffer = ReplayBuffer(storage=ListStorage(6), batch_size=2)
    buffer.extend([1, 2.5, "text", torch.ones(2)])
    buffer.dumps(tmp_path / "list")
    other = ReplayBuffer(storage=ListStorage(6), batch_size=2)
    other.loads(tmp_path / "list")
    assert other.storage.get(slice(0, 3)) == [1, 2.5, "text"]
    buffer.extend([object()])
    with pytest.raises(UsageError, match="only pickle could write"):
        buffer.dumps(tmp_path / "list")
    other.loads(tmp_path / "list")  # the one before is still there
    assert len(other) == 4


@pytest.mark.parametrize(
    "other,kind,words",
    [
        (
            lambda: make(sampler="passes"),
            UsageError,
            "sampler is a RandomSampler, the buffer's a SamplerWithoutReplacement",
        ),
        (lambda: make(storage=ListStorage), UsageError, "storage is a LazyTensorStorage, the buffer's a ListStorage"),
        (
            lambda: ReplayBuffer(storage=LazyTensorStorage(20)),
            UsageError,
            "TensorDictReplayBuffer, not of a ReplayBuffer",
        ),
        (lambda: TensorDictReplayBuffer(storage=LazyTensorStorage(5), batch_size=2), SchemaError, "do not fit"),
    ],
    ids=["sampler", "storage", "buffer", "size"],
)
def test_mismatched(tmp_path, other, kind, words):
    filled().dumps(tmp_path / "checkpoint")
    buffer = other()
    if words == "do not fit":
        buffer.extend(rollout([3]))
    with pytest.raises(kind, match=words):
        buffer.loads(tmp_path / "checkpoint")


def test_other_keys(tmp_path):
    filled().dumps(tmp_path / "checkpoint")
    buffer = make()
    buffer.extend(rollout([3]).exclude("action"))
    before = buffer[:]
    with pytest.raises(SchemaError, match="with action"):
        buffer.loads(tmp_path / "checkpoint")
    assert equal(buffer[:], before)


class TestListsGrowAtTheirEnd:
    @pytest.mark.parametrize("newest", [5, 8, -2, "2", None], ids=repr)
    def test_a_place_that_is_not_there(self, newest):
        storage = ListStorage(8)
        storage.set([0, 1, 2], [1, 2, 3])
        with pytest.raises(SchemaError, match="record written last"):
            storage.load_state_dict({"_storage": [4, 5], "newest": newest})
        assert storage.get([0, 1, 2]) == [1, 2, 3]

    def test_a_cursor_beyond_the_end(self):
        buffer = ReplayBuffer(storage=ListStorage(8), batch_size=2)
        buffer.extend([1, 2, 3])
        buffer.load_state_dict({**buffer.state_dict(), "_writer": {"_cursor": 6, "_write_count": 6}})
        buffer.extend([4, 5])
        assert buffer.storage.get(slice(None)) == [1, 2, 3, 4, 5]

    def test_a_cursor_at_the_beginning(self):
        buffer = ReplayBuffer(storage=ListStorage(8), batch_size=2)
        buffer.extend([1, 2, 3])
        buffer.load_state_dict({**buffer.state_dict(), "_writer": {"_cursor": 0, "_write_count": 3}})
        buffer.load_state_dict(buffer.state_dict())
        buffer.extend([4])
        assert buffer.storage.get(slice(None)) == [4, 2, 3]
