"""Datasets that check what they read: every byte that is used, once, and nothing else."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import rbdata
import torch
from rbdata.errors import DamagedDatasetError, UsageError
from rbdata.storage import checksums, integrity
from rbdata.storage.integrity import BlockChecks
from storage_tools import LAYOUTS, make_episodes, write_dataset

SIZE = 4096
EPISODES = make_episodes([50, 1, 90, 20, 300], shape=(61,), dtype="uint8")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    for module in (checksums, integrity):
        monkeypatch.setattr(module, "BLOCK", SIZE)


@pytest.fixture
def checked(monkeypatch) -> list[tuple[str, int]]:
    """The blocks that were checked, in order."""
    found: list[tuple[str, int]] = []
    check = BlockChecks._check
    monkeypatch.setattr(
        BlockChecks, "_check", lambda self, one: (found.append((one.path, one.number)), check(self, one))
    )
    return found


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def same(one, other) -> bool:
    return bool((one == other).all())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_batches_and_every_block_once(layout, tmp_path, checked):
    folder = write_dataset(tmp_path, EPISODES, layout, parts=3)
    plain, careful = rbdata.open_dataset(folder), rbdata.open_dataset(folder, check=True)
    steps = torch.randint(len(plain), (40,), generator=torch.Generator().manual_seed(0))
    before = len(checked)
    assert same(careful.read(steps, before=2, length=3), plain.read(steps, before=2, length=3))
    assert len(checked) > before
    assert same(careful.to_tensordict(), plain.to_tensordict())
    assert same(careful.episode(4), plain.episode(4)) and same(careful[5], plain[5])
    assert len(set(checked)) == len(checked)
    manifest = plain.manifest
    table = integrity.read_block_checksums(folder, manifest)
    constant = {leaf.memmap for leaf in manifest.schema if leaf.constant is not None}
    assert set(checked) == {
        (path, block.number) for path in manifest.files.keys() - constant for block in table.all(path)
    }
    again = pickle.loads(pickle.dumps(careful))
    assert type(again) is type(careful) and same(again.read(steps), plain.read(steps))


def test_a_buffer_checks_only_what_it_reads(tmp_path, checked):
    folder = write_dataset(tmp_path, EPISODES, "raw")
    buffer = rbdata.load(folder, check=True, batch_size=4, frame_stack=2, seed=1)
    plain = rbdata.load(folder, batch_size=4, frame_stack=2, seed=1)
    assert same(buffer.sample(), plain.sample())
    frames = [number for path, number in checked if path == "observation.memmap"]
    assert 0 < len(frames) <= 8
    for _ in range(100):
        assert same(buffer.sample(), plain.sample())


@pytest.mark.parametrize("layout", ["raw", "zstd"])
def test_damage_is_named_when_it_is_read(layout, tmp_path):
    folder = write_dataset(tmp_path, EPISODES, layout)
    path = "observation.memmap" if layout == "raw" else "observation/blob"
    flip(folder / path, SIZE + 7)
    dataset = rbdata.open_dataset(folder, check=True)
    row = len(dataset) - 1  # in another block
    assert dataset[row]["observation"].shape == (61,)
    with pytest.raises(DamagedDatasetError, match=rf"{path}: checksum mismatch in block 1, bytes 4096-8192") as error:
        dataset.to_tensordict()
    assert f"rbdata verify {folder}" in error.value.hint
    with pytest.raises(DamagedDatasetError, match="in block 1"):  # and again
        dataset["observation"]


@pytest.mark.parametrize(
    "path", ["observation/offsets", "observation/dictionary", "episodes/start.memmap", "blocks.crc32c"]
)
def test_damage_that_shows_on_opening(path, tmp_path):
    folder = write_dataset(tmp_path, EPISODES, "zstd")
    flip(folder / path, (folder / path).stat().st_size - 1)
    with pytest.raises(DamagedDatasetError, match=Path(path).name):
        rbdata.open_dataset(folder, check=True)


def test_without_a_table_blocks_are_ranges(tmp_path, monkeypatch):
    monkeypatch.setattr(integrity, "BLOCK", 1 << 22)
    folder = write_dataset(tmp_path, EPISODES, "raw", parts=3)
    flip(folder / "observation.memmap", 3)
    dataset = rbdata.open_dataset(folder, check=True)
    assert dataset[len(dataset) - 1]["observation"].shape == (61,)
    first = dataset.manifest.files["observation.memmap"][0][0]
    with pytest.raises(DamagedDatasetError, match=rf"observation.memmap: checksum mismatch, bytes 0-{first}"):
        dataset[0]


def test_an_open_dataset_is_as_it_was_opened(tmp_path):
    dataset = rbdata.open_dataset(write_dataset(tmp_path, EPISODES, "raw"))
    for option in ({"check": True}, {"download": True}, {"download": {}}, {"cache_dir": "x"}, {"cache_limit": 0}):
        with pytest.raises(UsageError, match=f"{next(iter(option))} is for ids, paths and URLs, not for a dataset"):
            rbdata.load(dataset, **option)
