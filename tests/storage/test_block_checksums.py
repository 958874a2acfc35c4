"""The table of checksums by block: written on the way, by every way of writing, and what it says of which bytes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from folder_faults import change_manifest
from rbdata.errors import DamagedDatasetError
from rbdata.storage import checksums, integrity
from rbdata.storage.checksums import crc32c
from rbdata.storage.integrity import BlockChecksums, read_block_checksums, verify
from rbdata.storage.manifest import BLOCK_TABLE, FILENAME, read_manifest, write_manifest
from storage_tools import LAYOUTS, Recipe, Stopped, contents, make_episodes, write_dataset

SIZE = 4096
EPISODES = make_episodes([50, 1, 90, 20, 620, 1], shape=(61,), dtype="uint8")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    for module in (checksums, integrity):
        monkeypatch.setattr(module, "BLOCK", SIZE)


def check_table(folder: Path) -> BlockChecksums:
    """The table covers every file larger than a block, with the checksums of its bytes."""
    manifest = read_manifest(folder)
    files = {path: data for path, data in contents(folder).items() if path != FILENAME}
    assert manifest.blocks == {"size": SIZE, "files": sorted(path for path, data in files.items() if len(data) > SIZE)}
    table = read_block_checksums(folder, manifest)
    for path, data in files.items():
        blocks = list(table.all(path))
        assert len(blocks) == table.count(path)
        assert b"".join(data[block.begin : block.end] for block in blocks) == data
        assert [crc32c(data[block.begin : block.end]) for block in blocks] == [block.crc32c for block in blocks]
        if path in manifest.blocks["files"]:
            assert all(block.length == SIZE for block in blocks[:-1])
    return table


@pytest.mark.parametrize("layout", LAYOUTS)
def test_written_by_every_layout(layout, tmp_path):
    one = Recipe(EPISODES, layout, parts=4, order=[2, 0, 3, 1], block=13)
    folder = one.write(tmp_path / "one")
    check_table(folder)
    assert verify(folder).problems == []
    if layout != "flat":
        with pytest.raises(Stopped):
            Recipe(EPISODES, layout, parts=4, order=[1, 3, 0, 2], stop_after=2).write(tmp_path / "two")
    again = Recipe(EPISODES, layout, parts=4, block=77)
    assert contents(again.write(tmp_path / "two"))[BLOCK_TABLE] == contents(folder)[BLOCK_TABLE]


def test_small_datasets_have_none(tmp_path):
    folder = write_dataset(tmp_path, make_episodes([3, 4]), "raw")
    manifest = read_manifest(folder)
    assert manifest.blocks is None and BLOCK_TABLE not in contents(folder)
    assert "blocks" not in json.loads((folder / FILENAME).read_text())
    assert [block.length for block in read_block_checksums(folder, manifest).all("action.memmap")] == [7 * 8]


def test_damaged_tables(tmp_path):
    folder = write_dataset(tmp_path, EPISODES, "raw")
    path, manifest = folder / BLOCK_TABLE, read_manifest(folder)
    good = path.read_bytes()
    path.write_bytes(bytes([good[0] ^ 1]) + good[1:])
    with pytest.raises(DamagedDatasetError, match=r"blocks\.crc32c of my/test has a checksum mismatch"):
        read_block_checksums(folder, manifest)
    path.unlink()
    with pytest.raises(DamagedDatasetError, match="is missing"):
        read_block_checksums(folder, manifest)
    swapped = good[4:8] + good[:4] + good[8:]
    manifest.files[BLOCK_TABLE] = [[len(swapped), crc32c(swapped)]]
    with pytest.raises(DamagedDatasetError, match=r"contradicts its manifest about"):
        BlockChecksums(manifest, swapped)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 0}, "size"),
        ({"size": "4096"}, "size"),
        ({"size": SIZE * 2}, "4 bytes for every block"),
        ({"files": []}, "files"),
        ({"files": ["observation.memmap"] * 2}, "twice"),
        ({"files": [BLOCK_TABLE]}, "not in files"),
        ({"files": ["../x"]}, "not in files"),
    ],
)
def test_malformed_manifests(change, message, tmp_path):
    folder = write_dataset(tmp_path, EPISODES, "raw")
    manifest = read_manifest(folder)
    assert manifest.blocks is not None
    manifest.blocks |= change
    write_manifest(folder, manifest)
    with pytest.raises(DamagedDatasetError, match=message):
        read_manifest(folder)


def test_short_ranges_are_read_together_and_named_one_by_one(tmp_path, monkeypatch):
    folder = write_dataset(tmp_path, EPISODES, "raw")
    path = next(
        path for path, ranges in read_manifest(folder).files.items() if ranges[0][0] > 3000 and path != BLOCK_TABLE
    )
    data = (folder / path).read_bytes()

    def cut(manifest):
        pieces = [data[at : at + 10] for at in range(0, 3000, 10)] + [b"", data[3000:]]
        manifest["files"][path] = [[len(piece), crc32c(piece)] for piece in pieces]
        manifest.pop("blocks", None)
        return manifest

    change_manifest(folder, cut)
    read, asked = integrity.sum_pieces, []
    monkeypatch.setattr(integrity, "sum_pieces", lambda *given: [asked.append(given[0].name), read(*given)][1])
    assert verify(folder).ok
    assert asked.count((folder / path).name) < 20

    (folder / path).write_bytes(data[:1234] + bytes([data[1234] ^ 1]) + data[1235:])
    found = verify(folder).problems
    assert [(one.path, one.begin, one.length) for one in found] == [(path, 1230, 10)]

    def fail(file, begin, lengths):
        if begin <= 700 < begin + sum(lengths):
            raise OSError(5, "Input/output error")
        return read(file, begin, lengths)

    monkeypatch.setattr(integrity, "sum_pieces", fail)
    found = [one for one in verify(folder).problems if one.path == path]
    assert [one.begin for one in found] == [700, 1230] and "Input/output error" in found[0].what
