"""Folders of checkpoints: interrupted writes, damage, and what is refused."""

from __future__ import annotations

import errno
import json
import os

import pytest
from checkpoint_tools import filled, make
from rbdata.errors import DamagedDatasetError, DatasetExistsError, DiskSpaceError, NotADatasetError, UsageError
from rbdata.storage.replay import (
    LazyMemmapStorage,
    ReplayBuffer,
)
from replay_tools import equal, rollout
from storage_tools import contents


@pytest.mark.parametrize("how", ["files", "maps"])
def test_a_full_disk_leaves_the_old_checkpoint(tmp_path, monkeypatch, how):
    """What is written through maps of files would end the process: their space is asked for before."""
    from rbdata.storage.replay import checkpoint

    buffer = filled()
    buffer.dumps(tmp_path / "checkpoint")
    before = contents(tmp_path / "checkpoint")

    def fail(*_):
        if how == "maps":
            raise OSError(errno.ENOSPC, "No space left on device")
        raise RuntimeError("unable to write to file </x>: No space left on device (28)")

    if how == "maps":
        monkeypatch.setattr(os, "posix_fallocate", fail)
    else:
        monkeypatch.setattr(checkpoint, "write_state", fail)
    with pytest.raises(DiskSpaceError, match=r"the disk is full: the checkpoint .* was not written"):
        buffer.dumps(tmp_path / "checkpoint")
    assert contents(tmp_path / "checkpoint") == before and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("when", ["storage", "sampler", "describe", "rename"])
def test_a_failed_write_leaves_the_old_checkpoint(tmp_path, monkeypatch, when):
    from rbdata.storage.replay import checkpoint

    buffer = filled()
    buffer.dumps(tmp_path / "checkpoint")
    before = contents(tmp_path / "checkpoint")
    wanted = buffer[:].clone()
    buffer.extend(rollout([7], first=900))

    def fail(*_, **__):
        raise OSError("disk full")

    if when == "storage":
        monkeypatch.setattr(type(buffer.storage), "dumps", fail)
    elif when == "sampler":
        monkeypatch.setattr(checkpoint, "write_state", fail)
    elif when == "describe":
        monkeypatch.setattr(checkpoint, "write_atomically", fail)
    else:
        monkeypatch.setattr(checkpoint, "_sync", fail)
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
