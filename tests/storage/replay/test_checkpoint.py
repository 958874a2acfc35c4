"""Checkpoints of buffers: all parts come back, and those of other buffers are refused."""

from __future__ import annotations

import pytest
import rbdata
import torch
from checkpoint_tools import SAMPLERS, filled, make
from rbdata.errors import RbdataError, SchemaError, UsageError
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
    assert all(equal(buffer.sample(), other.sample()) for _ in range(6))
    data = rollout([4], first=500)
    assert torch.equal(buffer.extend(data.clone()), other.extend(data.clone()))
    assert all(equal(buffer.sample(), other.sample()) for _ in range(2))
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


def test_the_batch_size_of_the_buffer_stays_and_the_pass_goes_on(tmp_path):
    """A pass that continues with larger batches draws each of its remaining steps once."""
    folder = write_dataset(tmp_path, make_episodes([9, 8]))
    before = rbdata.load(folder, batch_size=3, seed=1, replacement=False)
    seen = [before.sample()["index"] for _ in range(2)]
    before.dumps(tmp_path / "checkpoint")
    after = rbdata.load(folder, batch_size=5, replacement=False)
    after.loads(tmp_path / "checkpoint")
    rest = [batch["index"] for batch in after]
    assert (after.batch_size, [len(index) for index in rest]) == (5, [5, 5, 1])
    assert torch.equal(torch.cat([*seen, *rest]).sort().values, torch.arange(17))
    unsized = TensorDictReplayBuffer(storage=after.storage, sampler=after.sampler)
    unsized.load_state_dict(after.state_dict())
    assert unsized.batch_size == 5


def test_the_highest_values(tmp_path):
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


def test_objects_that_only_pickle_could_write_are_refused(tmp_path):
    buffer, other = (ReplayBuffer(storage=ListStorage(6), batch_size=2) for _ in range(2))
    buffer.extend(rollout([3]))
    buffer.dumps(tmp_path / "list")
    buffer.extend([object()])
    with pytest.raises(UsageError, match="pickle"):
        buffer.dumps(tmp_path / "list")
    other.loads(tmp_path / "list")  # the one before is still there
    assert len(other) == 3


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_a_ring_that_has_wrapped_in_a_larger_storage(storage, tmp_path):
    """Its oldest row is in the middle: rows are put in order, or refused; never taken for rows in order of time."""
    small = TensorDictReplayBuffer(storage=storage(7), batch_size=2, around=rbdata.Around(n_step=2, gamma=1.0))
    small.extend(rollout([9], open_end=True))
    small.dumps(tmp_path / "checkpoint")
    large = TensorDictReplayBuffer(storage=storage(12), batch_size=2, around=rbdata.Around(n_step=2, gamma=1.0))
    try:
        large.loads(tmp_path / "checkpoint")
        batch = large.sample_at(range(7))
    except RbdataError:
        return
    last = batch["action"] == 8
    assert batch["steps_to_next_obs"].tolist() == (2 - last.long()).tolist()
    assert torch.equal(batch["next", "observation"][:, 0], batch["observation"][:, 0] + batch["steps_to_next_obs"])


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
