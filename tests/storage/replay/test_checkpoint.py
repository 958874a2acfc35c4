"""Checkpoints: what comes back, what survives, and what is refused."""

from __future__ import annotations

import json

import pytest
import rbdata
import torch
from rbdata.errors import DamagedDatasetError, DatasetExistsError, NotADatasetError, SchemaError, UsageError
from rbdata.storage.replay import (
    Flat2TED,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TED2Flat,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
)
from replay_tools import equal, rollout
from storage_tools import contents, make_episodes, write_dataset
from tensordict import TensorDict

SAMPLERS = {
    "random": RandomSampler,
    "passes": SamplerWithoutReplacement,
    "slices": lambda: SliceSampler(slice_len=2),
    "slice-passes": lambda: SliceSamplerWithoutReplacement(slice_len=2),
    "priorities": lambda: PrioritizedSampler(20, 0.7, 0.5),
}


def make(sampler="random", storage=LazyTensorStorage, seed=0, **more) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(storage=storage(20), sampler=SAMPLERS[sampler](), batch_size=4, seed=seed, **more)


def filled(**more) -> TensorDictReplayBuffer:
    buffer = make(**more)
    buffer.extend(rollout([5, 6, 3]))
    buffer.extend(rollout([4, 5], first=100))
    for _ in range(3):
        buffer.sample()
    return buffer


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


@pytest.mark.parametrize("ndim", [1, 2])
def test_flattened(tmp_path, ndim):
    make = lambda: ReplayBuffer(storage=LazyTensorStorage(14 * ndim, ndim=ndim), batch_size=4)  # noqa: E731
    for batches in ([[3, 4]], [[3, 4], [5, 6]]):
        buffer = make()
        for number, lengths in enumerate(batches):
            open_end = number == len(batches) - 1
            data = [rollout(lengths, first=100 * number + 1000 * env, open_end=open_end) for env in range(ndim)]
            buffer.extend(data[0] if ndim == 1 else torch.stack(data))
        buffer.register_save_hook(TED2Flat())
        buffer.dumps(tmp_path / "checkpoint")
        stored = TensorDict.load_memmap(tmp_path / "checkpoint" / "storage")
        assert "next" not in stored.keys()  # noqa: SIM118
        other = make()
        with pytest.raises(UsageError, match="save hook"):
            other.loads(tmp_path / "checkpoint")
        other.register_load_hook(Flat2TED())
        other.loads(tmp_path / "checkpoint")
        assert equal(other[:], buffer[:])
        assert other.storage.oldest == buffer.storage.oldest


def test_what_cannot_be_flattened(tmp_path):
    buffer = ReplayBuffer(storage=LazyTensorStorage(20), batch_size=4)
    buffer.extend(rollout([5], open_end=True))
    buffer.extend(rollout([5], first=100))  # the step before it is not done, and not followed by its successor
    buffer.register_save_hook(TED2Flat())
    with pytest.raises(SchemaError, match="not the following observation"):
        buffer.dumps(tmp_path / "checkpoint")
    assert not list(tmp_path.iterdir())


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
    with pytest.raises(UsageError, match="knows its structure"):
        other.loads(tmp_path / "tree")
    other.extend((torch.arange(1), {"x": torch.ones(1, 2)}))
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
    buffer.extend([{1, 2}])
    with pytest.raises(UsageError, match="only pickle could write"):
        buffer.dumps(tmp_path / "list")
    other.loads(tmp_path / "list")  # the one before is still there
    assert len(other) == 4


# -- crashes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["storage", "sampler", "describe", "rename"])
def test_a_failed_write_leaves_the_old_checkpoint(tmp_path, monkeypatch, when):
    from rbdata.storage.replay.checkpoints import checkpoint, checkpoint_folder

    buffer = filled()
    buffer.dumps(tmp_path / "checkpoint")
    before = contents(tmp_path / "checkpoint")
    wanted = buffer[:].clone()
    buffer.extend(rollout([7], first=900))

    def fail(*_, **__):
        raise OSError("disk full")

    if when == "storage":
        monkeypatch.setattr(checkpoint, "_dump_storage", fail)
    elif when == "sampler":
        monkeypatch.setattr(checkpoint, "write_state", fail)
    elif when == "describe":
        monkeypatch.setattr(checkpoint_folder, "write_atomically", fail)
    else:
        monkeypatch.setattr(checkpoint_folder, "_sync", fail)
    with pytest.raises(OSError, match="disk full"):
        buffer.dumps(tmp_path / "checkpoint")
    monkeypatch.undo()
    assert contents(tmp_path / "checkpoint") == before
    other = make()
    other.loads(tmp_path / "checkpoint")
    assert equal(other[:], wanted)
    buffer.dumps(tmp_path / "checkpoint")  # and the next one works
    other.loads(tmp_path / "checkpoint")
    assert equal(other[:], buffer[:])
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_killed_between_two_renames(tmp_path):
    buffer = filled()
    buffer.dumps(tmp_path / "checkpoint")
    (tmp_path / "checkpoint").rename(tmp_path / ".checkpoint.old")
    other = make()
    other.loads(tmp_path / "checkpoint")
    assert equal(other[:], buffer[:])


def test_data_that_lie_in_the_checkpoint_already(tmp_path):
    make = lambda: ReplayBuffer(  # noqa: E731
        storage=LazyMemmapStorage(20, scratch_dir=tmp_path / "run" / "storage", existsok=True), batch_size=4, seed=1
    )
    buffer = make()
    buffer.extend(rollout([9]))
    buffer.dumps(tmp_path / "run")
    wanted = [buffer.sample() for _ in range(5)]
    other = make()
    other.loads(tmp_path / "run")
    assert all(equal(other.sample(), batch) for batch in wanted)
    assert other.extend(rollout([2])).tolist() == [9, 10]
    other.dumps(tmp_path / "run")
    third = make()
    third.loads(tmp_path / "run")
    assert len(third) == 11


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_not_a_checkpoint(tmp_path):
    with pytest.raises(NotADatasetError):
        make().loads(tmp_path / "nothing")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with pytest.raises(NotADatasetError):
        make().loads(tmp_path / "full")
    with pytest.raises(DatasetExistsError, match="not a checkpoint"):
        filled().dumps(tmp_path / "full")
    assert (tmp_path / "full" / "file").read_text() == "mine"


@pytest.mark.parametrize(
    "victim",
    sorted(
        [
            "storage/action.memmap",
            "storage/meta.json",
            "storage/next/reward.memmap",
            "sampler/state.json",
            "position/0.memmap",
            "writer/metadata.json",
            "rbdata_checkpoint.json",
            "buffer_metadata.json",
        ]
    ),
)
@pytest.mark.parametrize("damage", ["missing", "short", "changed"])
def test_damaged(tmp_path, victim, damage):
    filled().dumps(tmp_path / "checkpoint")
    path = tmp_path / "checkpoint" / victim
    data = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "short":
        path.write_bytes(data[:-3])
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    other = make()
    other.extend(rollout([3]))
    before = other[:]
    # Without its description the folder is what TorchRL would have written, and data without flags are refused then.
    if victim == "rbdata_checkpoint.json" and damage == "missing":
        other.loads(tmp_path / "checkpoint")
        return
    with pytest.raises(DamagedDatasetError):
        other.loads(tmp_path / "checkpoint")
    assert equal(other[:], before)
    other.sample()


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


def test_newer_and_pickled(tmp_path):
    from rbdata.storage.checksums import crc32c

    filled().dumps(tmp_path / "checkpoint")
    path = tmp_path / "checkpoint" / "rbdata_checkpoint.json"
    record = json.loads(path.read_text())
    record.pop("checksum")
    record["format_version"] = 99
    record["checksum"] = crc32c(json.dumps(record, sort_keys=True).encode())
    path.write_text(json.dumps(record))
    with pytest.raises(UsageError, match="newer rbdata"):
        make().loads(tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "storage" / "other.pickle").write_bytes(b"x")
    with pytest.raises(UsageError, match="pickled"):
        make().loads(tmp_path / "checkpoint")
