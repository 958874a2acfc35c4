"""The cache of blocks: shared by threads and processes, killed, damaged, full."""

from __future__ import annotations

import gc
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from rbdata.errors import ChecksumError, DamagedDatasetError, DiskError
from rbdata.storage.dataset import Dataset
from rbdata.storage.manifest import read_manifest
from rbdata.storage.remote import cache as block_cache
from rbdata.storage.remote.remote_dataset import RemoteDataset
from storage_tools import add_block_table, make_episodes, write_dataset

BLOCK = 4096


@dataclass
class Folder:
    """Remote files that are a folder here. ``log``: a file with a line for every read; ``flip``: bytes that arrive wrong."""

    path: Path
    log: Path
    flip: str = ""
    times: int = 0
    seconds: float = 0.0
    replaced: bool = False
    url = "store://lab/set"

    def read(self, path: str, start: int, stop: int) -> bytes:
        with self.log.open("a") as file:
            file.write(f"{path} {start}\n")
        time.sleep(self.seconds)
        data = (self.path / path).read_bytes()[start:stop]
        if path == self.flip and self.times:
            self.times -= 1
            data = bytes([data[0] ^ 1]) + data[1:]
        return data

    def check(self) -> None:
        if self.replaced:
            raise ChecksumError("replaced")

    @property
    def reads(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Path:
    """A dataset with a table of checksums by block."""
    episodes = make_episodes([60, 3, 80], shape=(2048,), dtype="uint8")
    folder = write_dataset(tmp_path_factory.mktemp("store"), episodes, "zstd", dictionary=False)
    add_block_table(folder, BLOCK)
    return folder


@pytest.fixture
def files(stored, tmp_path) -> Folder:
    return Folder(stored, tmp_path / "log")


def opened(files: Folder, cache: Path, *, limit: int | None = None) -> RemoteDataset:
    text, table = (files.path / "rbdata.json").read_bytes(), files.path / "blocks.crc32c"
    blocks = table.read_bytes() if table.exists() else None
    return RemoteDataset(cache, read_manifest(files.path), text, files, table=blocks, limit=limit)


def test_each_block_is_fetched_once_by_several_processes(files, tmp_path):
    files.seconds = 0.01
    children = []
    for _ in range(3):
        child = os.fork()
        if not child:
            torch.set_num_threads(1)
            whole = opened(files, tmp_path / "cache").read(torch.arange(143))
            same = (whole == Dataset(files.path).read(torch.arange(143))).all()
            os._exit(0 if same else 1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    assert len(files.reads) == len(set(files.reads)) > 20


def test_a_killed_process_leaves_a_sound_cache(files, tmp_path):
    files.seconds = 0.02
    child = os.fork()
    if not child:
        torch.set_num_threads(1)
        opened(files, tmp_path / "cache").read(torch.arange(143))
        os._exit(0)
    while not files.log.exists() or len(files.reads) < 30:
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    files.seconds = 0.0
    dataset = opened(files, tmp_path / "cache")
    assert (dataset.read(torch.arange(143)) == Dataset(files.path).read(torch.arange(143))).all()
    dataset.fetch()
    assert Dataset(tmp_path / "cache").id == "my/test"


def test_processes_with_a_limit_read_what_is_right(files, tmp_path):
    """Each evicts what the others fetched; no read may see the hole."""
    limit = Dataset(files.path).manifest.bytes // 2
    children = []
    for number in range(2):
        child = os.fork()
        if not child:
            torch.set_num_threads(1)
            dataset, truth = opened(files, tmp_path / "cache", limit=limit), Dataset(files.path)
            generator = torch.Generator().manual_seed(number)
            draws = [torch.randint(143, (6,), generator=generator) for _ in range(25)]
            os._exit(0 if all((dataset.read(one) == truth.read(one)).all() for one in draws) else 1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]


def test_a_damaged_block_is_fetched_again_and_then_named(files, tmp_path):
    files.flip, files.times = "observation/blob", 1
    dataset = opened(files, tmp_path / "cache")
    steps = torch.tensor([5, 6])
    assert (dataset.read(steps) == Dataset(files.path).read(steps)).all()
    files.times = 99
    with pytest.raises(DamagedDatasetError, match=r"observation/blob: block \d+, bytes \d+-\d+ arrived damaged, twice"):
        dataset.read(torch.tensor([100]))
    files.replaced = True
    with pytest.raises(ChecksumError):
        dataset.read(torch.tensor([100]))


def test_threads_of_a_forked_process_begin_at_once(files, tmp_path):
    """They once met what the parent's threads had under way, and waited for it for ever."""
    files.seconds = 0.02
    dataset, truth = opened(files, tmp_path / "cache"), Dataset(files.path)
    dataset.plan_steps()  # under way in the parent
    child = os.fork()
    if not child:
        torch.set_num_threads(1)
        with ThreadPoolExecutor(4) as pool:
            right = pool.map(lambda step: bool((dataset.read([step]) == truth.read([step])).all()), range(0, 143, 9))
            os._exit(0 if all(right) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_what_is_planned_arrives_and_completes_the_dataset(files, tmp_path):
    dataset = opened(files, tmp_path / "cache")
    dataset.plan_steps([(100, 120)])
    deadline = time.monotonic() + 600
    while not dataset.cache.finished and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (
        dataset.cache.finished
        and (dataset.read(torch.arange(143)) == Dataset(files.path).read(torch.arange(143))).all()
    )


def test_a_full_disk(files, tmp_path, monkeypatch):
    monkeypatch.setattr(block_cache, "free_bytes", lambda path: 1000)
    with pytest.raises(DiskError, match="more on") as failure:
        opened(files, tmp_path / "cache")
    assert "cache_limit" in str(failure.value.hint)


def test_a_disk_that_is_full_meanwhile(files, tmp_path, monkeypatch):
    def write(*_: object) -> None:
        raise OSError(28, "No space left on device")

    dataset = opened(files, tmp_path / "cache")
    monkeypatch.setattr(block_cache, "write_at", write)
    with pytest.raises(DiskError, match="No space left"):
        dataset.read(torch.tensor([0]))


def test_a_disk_that_is_full_before(files, tmp_path, monkeypatch):
    def write(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(block_cache, "write_atomically", write)
    with pytest.raises(DiskError, match="No space left") as failure:
        opened(files, tmp_path / "cache")
    assert "free some space" in str(failure.value.hint)


def test_the_states_of_blocks_have_no_holes(files, tmp_path):
    """Which would be filled through a map: without room on the disk that ends the process."""
    opened(files, tmp_path / "cache")
    with (tmp_path / "cache/.rbdata-blocks").open("rb") as file:
        assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == os.fstat(file.fileno()).st_size > 4096


def test_a_cache_that_another_machine_uses(files, tmp_path, monkeypatch):
    dataset = opened(files, tmp_path / "cache")
    monkeypatch.setattr(block_cache, "_boot", lambda: "another start of another machine")
    with pytest.raises(DiskError, match="another machine"):
        opened(files, tmp_path / "cache")
    assert len(dataset) == 143


def test_a_block_is_on_the_disk_before_it_counts_as_resident(files, tmp_path, monkeypatch):
    """So that a loss of power makes no hole of a block: it may lose what is not resident."""
    dataset, synced = opened(files, tmp_path / "cache"), []

    def sync(descriptor: int) -> None:
        synced.append(int((dataset.cache.states & 1).sum()))
        if len(synced) > 3:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", sync)
    dataset.cache._pool = ThreadPoolExecutor(1)  # one block after the other
    with pytest.raises(DiskError, match="Input/output error"):
        dataset.fetch()
    assert synced[0] == 0 and synced[1] > 0
    assert int((dataset.cache.states & 1).sum()) == synced[3]


@pytest.mark.parametrize("left", [0, 100_000])
def test_files_that_a_loss_of_power_has_cut(files, tmp_path, monkeypatch, left):
    cache, rows = tmp_path / "cache", torch.arange(143)
    dataset = opened(files, cache)
    expected = dataset.read(rows[:5]).clone()
    there = dataset.cache.states.copy()
    del dataset  # and with it its use of the cache
    gc.collect()
    for path in (*cache.rglob("*.memmap"), *cache.rglob("blob")):
        if not path.stat().st_blocks:  # nothing of it was synced
            os.truncate(path, left)
    monkeypatch.setattr(block_cache, "_boot", lambda: "the next start of the machine")
    again = opened(files, cache)
    assert (again.cache.states == there).all() and there.any()
    assert (again.read(rows[:5]) == expected).all()
    assert (again.read(rows) == Dataset(files.path).read(rows)).all()


@pytest.mark.parametrize("planted", ["next", "episodes"])
def test_nothing_is_written_through_a_linked_folder(files, tmp_path, planted):
    outside, cache = tmp_path / "outside", tmp_path / "cache"
    outside.mkdir()
    cache.mkdir()
    for name in ("reward.memmap", "length.memmap"):
        (outside / name).write_bytes(b"precious")
    (cache / planted).symlink_to(outside)
    with pytest.raises(DiskError, match=f"{planted} is a link"):
        opened(files, cache).read(torch.arange(143))
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == dict.fromkeys(
        ("reward.memmap", "length.memmap"), b"precious"
    )


@pytest.mark.parametrize("name", ["session", "claim-0"])
def test_no_file_of_the_cache_is_made_behind_a_link(files, tmp_path, name):
    cache, outside = tmp_path / "cache", tmp_path / "outside"
    cache.mkdir()
    (cache / f".rbdata-{name}").symlink_to(outside)
    with suppress(DiskError, OSError):
        opened(files, cache).read(torch.arange(143))
    assert not outside.exists()
