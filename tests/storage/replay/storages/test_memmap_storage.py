"""Storages in files: opened again, killed, damaged, temporary."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import shutil

import pytest
import torch
from rbdata.errors import DamagedDatasetError, DatasetExistsError, DiskError, UsageError
from rbdata.storage.replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ReplayBuffer,
)
from replay_tools import equal, rollout, write_and_die
from tensordict import TensorDict


def test_a_folder_opened_again(tmp_path):
    first = ReplayBuffer(storage=LazyMemmapStorage(10, scratch_dir=tmp_path / "ring"), batch_size=4)
    first.extend(rollout([7]))
    first.extend(rollout([6], first=50))
    with pytest.raises(DatasetExistsError, match="not empty"):
        LazyMemmapStorage(10, scratch_dir=tmp_path / "ring").set(slice(0, 1), rollout([1]))
    again = ReplayBuffer(storage=LazyMemmapStorage(10, scratch_dir=tmp_path / "ring", existsok=True), batch_size=4)
    assert equal(again[:], first[:])
    assert again.extend(rollout([2], first=90)).tolist() == [3, 4]
    assert first["action"].tolist()[3:5] == [90, 91]  # both are the same files
    assert equal(TensorDict.load_memmap(tmp_path / "ring"), first[:])


def test_a_disk_that_fills_up(tmp_path, monkeypatch):
    """Writing into holes of files on a full disk would end the process: the space is asked for before."""
    disk = [1 << 20]

    def allocate(descriptor, offset, size):
        if size > disk[0]:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    storage = LazyMemmapStorage(1 << 16, scratch_dir=tmp_path / "ring")
    records = TensorDict({"a": torch.arange(2048.0).reshape(256, 8)}, [256])
    with pytest.raises(DiskError, match="is full: there is no room for 33024 records") as failure:
        for start in range(0, 1 << 16, 256):
            storage.set(range(start, start + 256), records)
    assert "scratch_dir" in str(failure.value.hint)
    assert len(storage) == 1 << 15 and torch.equal(storage.get((1 << 15) - 1)["a"], records["a"][255])
    disk[0] <<= 8
    storage.set(range(1 << 15, (1 << 15) + 256), records)
    assert len(storage) == (1 << 15) + 256 and torch.equal(storage.get(1 << 15)["a"], records["a"][0])


def test_a_storage_that_does_not_fit_on_the_disk_is_not_loaded(tmp_path, monkeypatch):
    first = ReplayBuffer(storage=LazyMemmapStorage(10), batch_size=4)
    first.extend(rollout([7]))
    first.dumps(tmp_path / "saved")

    def allocate(*_):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    again = ReplayBuffer(storage=LazyMemmapStorage(10), batch_size=4)
    monkeypatch.setattr(os, "posix_fallocate", allocate)
    with pytest.raises(DiskError, match="there is no room for 7 records"):
        again.loads(tmp_path / "saved")
    assert len(again) == 0


def test_what_was_written_survives_a_kill(tmp_path):
    """A process that writes and dies without a word leaves all rows of its finished writes."""
    process = multiprocessing.get_context("forkserver").Process(target=write_and_die, args=(tmp_path / "ring",))
    process.start()
    process.join(600)
    assert process.exitcode == 9
    again = ReplayBuffer(storage=LazyMemmapStorage(100, scratch_dir=tmp_path / "ring", existsok=True), batch_size=4)
    assert equal(again[:], rollout([30]))


@pytest.mark.parametrize("damage", ["leaf", "link", "ndim"])
def test_a_damaged_folder(tmp_path, damage):
    buffer = ReplayBuffer(storage=LazyMemmapStorage(10, scratch_dir=tmp_path / "ring"), batch_size=4)
    buffer.extend(rollout([7]))
    if damage == "leaf":
        (tmp_path / "ring" / "action.memmap").unlink()
    elif damage == "link":
        (tmp_path / "ring" / "next").rename(tmp_path / "outside")
        (tmp_path / "ring" / "next").symlink_to(tmp_path / "outside")
    kind = UsageError if damage == "ndim" else DamagedDatasetError
    with pytest.raises(kind):
        LazyMemmapStorage(10, scratch_dir=tmp_path / "ring", existsok=True, ndim=2 if damage == "ndim" else 1)


def test_temporary_files_go_with_the_storage(tmp_path):
    storage = LazyMemmapStorage(10)
    storage.set(slice(0, 3), rollout([3]))
    folder = storage.scratch_dir
    child = os.fork()
    if not child:
        del storage  # of the parent
        os._exit(0)
    os.waitpid(child, 0)
    assert folder.is_dir()
    del storage
    assert not folder.exists()
    for wanted in (True, False):
        storage = LazyMemmapStorage(10, scratch_dir=tmp_path / "named" if wanted else None, auto_cleanup=wanted)
        storage.set(slice(0, 3), rollout([3]))
        folder = storage.scratch_dir
        del storage
        assert folder.exists() is not wanted
    shutil.rmtree(folder)


def test_files_of_another_size_are_refused(tmp_path):
    made = ReplayBuffer(storage=LazyMemmapStorage(10, scratch_dir=tmp_path), batch_size=4)
    made.extend(TensorDict({"a": torch.arange(10)}, [10]))
    with pytest.raises(UsageError, match="10 records, and max_size is 20"):
        LazyMemmapStorage(20, scratch_dir=tmp_path, existsok=True)
    assert len(LazyMemmapStorage(10, scratch_dir=tmp_path, existsok=True)) == 10


@pytest.mark.parametrize("ndim", [1, 2])
def test_plain_tensors(tmp_path, ndim):
    """As TorchRL's storage takes them: in files, and opened again."""
    buffer = ReplayBuffer(storage=LazyMemmapStorage(6, scratch_dir=tmp_path / "ring", ndim=ndim), batch_size=4, seed=0)
    memory = ReplayBuffer(storage=LazyTensorStorage(6, ndim=ndim), batch_size=4, seed=0)
    for first in (0.0, 100.0):
        rows = torch.arange(8).view((4, 2) if ndim == 1 else (2, 2, 2)) + first
        assert torch.equal(buffer.extend(rows), memory.extend(rows))
    assert torch.equal(buffer[:], memory[:]) and torch.equal(buffer.sample(), memory.sample())
    again = LazyMemmapStorage(6, scratch_dir=tmp_path / "ring", ndim=ndim, existsok=True)
    assert torch.equal(again[:], memory.storage[:]) and len(again) == 6
    assert torch.equal(pickle.loads(pickle.dumps(again))[:], memory.storage[:])
