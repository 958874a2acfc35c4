"""Storages in files: opened again, killed, damaged, temporary."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from rbdata.errors import DamagedDatasetError, DatasetExistsError, DiskSpaceError, UsageError
from rbdata.storage.replay import (
    LazyMemmapStorage,
    ReplayBuffer,
)
from rbdata.storage.replay.storages import memmap_storage
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
    assert again.storage.oldest == 3
    assert again.extend(rollout([2], first=90)).tolist() == [3, 4]
    assert first["action"].tolist()[3:5] == [90, 91]  # both are the same files
    assert equal(TensorDict.load_memmap(tmp_path / "ring"), first[:])


@pytest.mark.parametrize("of_tensors", [False, True])
def test_a_disk_that_fills_up(tmp_path, monkeypatch, of_tensors):
    """Writing into holes of files on a full disk would end the process: the space is asked for before."""
    disk = [1 << 20]

    def allocate(descriptor, offset, size):
        if size > disk[0]:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    storage = LazyMemmapStorage(1 << 16, scratch_dir=tmp_path / "ring")
    records = torch.arange(2048.0).reshape(256, 8)
    records = {"a": records} if of_tensors else TensorDict({"a": records}, [256])
    with pytest.raises(DiskSpaceError, match="is full: there is no room for 33024 records") as failure:
        for start in range(0, 1 << 16, 256):
            storage.set(range(start, start + 256), records)
    assert "scratch_dir" in str(failure.value.hint)
    assert len(storage) == 1 << 15 and torch.equal(storage.get((1 << 15) - 1)["a"], records["a"][255])
    disk[0] <<= 8
    storage.set(range(1 << 15, (1 << 15) + 256), records)
    assert len(storage) == (1 << 15) + 256 and torch.equal(storage.get(1 << 15)["a"], records["a"][0])


@pytest.mark.parametrize("what", ["lock", "leaf", "counters", "description"])
@pytest.mark.parametrize("of_tensors", [False, True])
def test_a_disk_too_full_for_the_first_record(tmp_path, monkeypatch, of_tensors, what):
    """Then later records find the storage as if it had never been tried."""
    storage = LazyMemmapStorage(20, scratch_dir=tmp_path / "ring")
    records = torch.arange(80.0).reshape(10, 8)
    records = {"a": records} if of_tensors else TensorDict({"a": records}, [10])

    def fail(*_, **__):
        if what == "leaf":
            raise RuntimeError("unable to write to file </x>: No space left on device (28)")
        raise OSError(errno.ENOSPC, "No space left on device")

    owner, name = {
        "lock": (Path, "mkdir"),
        "leaf": (torch, "from_file"),
        "counters": (Path, "write_bytes"),
        "description": (memmap_storage, "write_atomically"),
    }[what]
    for _ in range(2):
        with monkeypatch.context() as patch, pytest.raises(DiskSpaceError, match="is full: there is no room"):
            patch.setattr(owner, name, fail)
            storage.set(range(10), records)
        assert len(storage) == 0 and storage.cursor == 0
    storage.set(range(10), records)
    again = LazyMemmapStorage(20, scratch_dir=tmp_path / "ring", existsok=True)
    assert len(again) == 10 and torch.equal(again.get(9)["a"], records["a"][9])


def test_a_storage_that_does_not_fit_on_the_disk_is_not_loaded(tmp_path, monkeypatch):
    first = ReplayBuffer(storage=LazyMemmapStorage(10), batch_size=4)
    first.extend(rollout([7]))
    first.dumps(tmp_path / "saved")

    def allocate(*_):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    again = ReplayBuffer(storage=LazyMemmapStorage(10), batch_size=4)
    monkeypatch.setattr(os, "posix_fallocate", allocate)
    with pytest.raises(DiskSpaceError, match="there is no room for 7 records"):
        again.loads(tmp_path / "saved")
    assert len(again) == 0


def test_what_was_written_survives_a_kill(tmp_path):
    """A process that writes and dies without a word leaves all rows of its finished writes."""
    process = multiprocessing.get_context("forkserver").Process(target=write_and_die, args=(tmp_path / "ring",))
    process.start()
    process.join(60)
    assert process.exitcode == 9
    again = ReplayBuffer(storage=LazyMemmapStorage(100, scratch_dir=tmp_path / "ring", existsok=True), batch_size=4)
    assert equal(again[:], rollout([30]))


@pytest.mark.parametrize("damage", ["counters", "json", "leaf", "ndim"])
def test_a_damaged_folder(tmp_path, damage):
    buffer = ReplayBuffer(storage=LazyMemmapStorage(10, scratch_dir=tmp_path / "ring"), batch_size=4)
    buffer.extend(rollout([7]))
    if damage == "counters":
        (tmp_path / "ring" / "rbdata_counters.memmap").write_bytes(b"")
    elif damage == "json":
        (tmp_path / "ring" / "rbdata_storage.json").write_text("{")
    elif damage == "leaf":
        (tmp_path / "ring" / "action.memmap").unlink()
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


def test_temporary_files_of_a_killed_process_go_with_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    process = multiprocessing.get_context("fork").Process(target=write_and_die, args=(None,))
    process.start()
    process.join(60)
    assert process.exitcode == 9
    (left,) = tmp_path.glob("rbdata-*")
    storage = LazyMemmapStorage(10)
    assert list(tmp_path.glob("rbdata-*")) == [storage.scratch_dir] != [left]


@pytest.mark.parametrize("written", [True, False])
def test_a_fork_that_outlives_the_maker_is_told_that_the_files_are_gone(tmp_path, monkeypatch, written):
    """It made a folder of its own, and its rows were nobody else's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    storage = LazyMemmapStorage(10)
    if written:
        storage.set(slice(0, 3), rollout([3]))
    child = os.fork()
    if not child:
        with suppress(BaseException):
            while storage.scratch_dir.exists():
                time.sleep(0.01)
            with pytest.raises(UsageError, match="go with the process that made them"):
                storage.set(slice(3, 6), rollout([3]))
            os._exit(0)
        os._exit(1)
    del storage
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not list(tmp_path.glob("rbdata-*"))


@pytest.mark.parametrize("what", ["meta.json", "rbdata_counters.memmap", "action.memmap", "next", "pipe"])
def test_nothing_is_written_through_links_of_a_folder(tmp_path, what):
    """A stranger's folder without a storage, which ``existsok`` allows to write to."""
    (tmp_path / "ring").mkdir()
    (tmp_path / "outside").mkdir() if what == "next" else (tmp_path / "outside").write_bytes(bytes(24))
    if what == "pipe":
        os.mkfifo(tmp_path / "ring" / "meta.json")
    else:
        (tmp_path / "ring" / what).symlink_to(tmp_path / "outside")
    storage = LazyMemmapStorage(10, scratch_dir=tmp_path / "ring", existsok=True)
    with pytest.raises(DatasetExistsError, match="neither a file nor a folder"):
        ReplayBuffer(storage=storage, batch_size=4).extend(rollout([7]))
    assert not any((tmp_path / "outside").iterdir()) if what == "next" else (tmp_path / "outside").stat().st_size == 24


def test_the_files_of_a_tree_behind_a_link_are_not_mapped(tmp_path):
    buffer = ReplayBuffer(storage=LazyMemmapStorage(10, scratch_dir=tmp_path / "ring"), batch_size=4)
    buffer.add({"a": {"b": torch.zeros(3)}})
    (tmp_path / "ring" / "a").rename(tmp_path / "outside")
    (tmp_path / "ring" / "a").symlink_to(tmp_path / "outside")
    with pytest.raises(DamagedDatasetError, match="a is a link"):
        LazyMemmapStorage(10, scratch_dir=tmp_path / "ring", existsok=True)


def test_no_checkpoint_in_place_is_written_through_a_link(tmp_path):
    storage = LazyMemmapStorage(10, scratch_dir=tmp_path / "checkpoint" / "storage")
    buffer = ReplayBuffer(storage=storage, batch_size=4)
    buffer.extend(rollout([7]))
    (tmp_path / "outside").mkdir()
    (tmp_path / "checkpoint" / "writer").symlink_to(tmp_path / "outside")
    with pytest.raises(DatasetExistsError, match="neither a file nor a folder"):
        buffer.dumps(tmp_path / "checkpoint")
    assert not any((tmp_path / "outside").iterdir())


def test_files_of_another_size_are_refused(tmp_path):
    made = ReplayBuffer(storage=LazyMemmapStorage(10, scratch_dir=tmp_path), batch_size=4)
    made.extend(TensorDict({"a": torch.arange(10)}, [10]))
    with pytest.raises(UsageError, match="10 records, and max_size is 20"):
        LazyMemmapStorage(20, scratch_dir=tmp_path, existsok=True)
    assert len(LazyMemmapStorage(10, scratch_dir=tmp_path, existsok=True)) == 10
