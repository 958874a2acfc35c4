"""The first parts of the dataset about to be replaced are copied from it, as far as the plan begins with them, if undamaged."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rbdata.storage.dataset import Dataset
from rbdata.storage.folder import DatasetPlace
from rbdata.storage.integrity import verify
from rbdata.storage.leaf import Leaf
from rbdata.storage.manifest import FILENAME, Manifest
from rbdata.storage.parts import PARTS, part_path
from rbdata.storage.writer import DatasetWriter, OldDataset
from storage_tools import Recipe, columns, contents, make_episodes, names, schema_of

EPISODES = make_episodes([5, 1, 9, 2, 12, 1, 6, 6], shape=(30,), dtype="uint8")
#: Episodes of the old dataset, and the state rows at which the parts of both end.
FEW, CUTS = 4, [6, 18, 21, 35]

each_codec = pytest.mark.parametrize("codec", ["raw", "zstd"])


@dataclass
class Growing(Recipe):
    """A dataset whose parts come from numbered objects, and are taken over from the one that is there."""

    grow: bool = True
    changed: dict[int, dict[str, Any]] = field(default_factory=dict)
    taken: list[int] = field(default_factory=list)
    old: OldDataset | None = None

    def plan(self) -> list[dict[str, Any]]:
        parts = []
        for number, (low, high) in enumerate(pairwise(self.bounds)):
            obj = {"name": f"object {number}", "size": 100 + number, "crc32c": f"{number:08x}"}
            change = self.changed.get(number, {})
            part = {"name": f"part {number}", "layout": f"rows {low}", "first_state": low, "states": high - low}
            parts.append({**part, "layout": change.get("layout", part["layout"]), "object": {**obj, **change}})
        return parts

    def train(self, leaf: Leaf, rows: np.ndarray) -> bytes:
        return self.old.dictionary(leaf) if self.old else super().train(leaf, rows)

    def before_filling(self, writer: DatasetWriter) -> None:
        if self.old is None:
            return
        for index in range(self.old.common(self.plan())):
            record = None if index in writer.parts_done() else self.old.take_over(writer, index)
            if record is not None:
                writer.part_done(index, record)
                self.taken.append(index)

    def run(self, place: DatasetPlace) -> Path:
        self.old = OldDataset.open(place.path, self.schema) if self.grow else None
        return super().run(place)

    def manifest(self) -> Manifest:
        manifest = super().manifest()
        manifest.parts = self.plan()
        return manifest


@pytest.fixture
def old(tmp_path, request):
    """A dataset of the first episodes, in three parts; the codec is the test's."""
    codec = request.node.callspec.params["codec"]
    return Growing(EPISODES[:FEW], codec, cuts=CUTS[:2]).write(tmp_path / "root")


def grow(root: Path, codec: str, **options: Any) -> Growing:
    recipe = Growing(EPISODES, codec, cuts=CUTS, **options)
    recipe.write(root)
    return recipe


def holds_all(folder: Path) -> bool:
    loaded = Dataset(folder).to_tensordict()
    same = [np.array_equal(loaded[tuple(name.split("/"))], array) for name, array in columns(EPISODES).items()]
    return all(same) and verify(folder).ok


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


@each_codec
def test_parts_of_the_same_objects_are_copied(codec, old, tmp_path):
    before = contents(old)
    recipe = grow(tmp_path / "root", codec)
    assert recipe.taken == [0, 1, 2] and recipe.filled == [3, 4]
    assert holds_all(old)
    after = contents(old)
    for path, data in before.items():
        if path.startswith("observation"):
            assert after[path].startswith(data), path
    assert names(old.parent) == ["test"]


@each_codec
@pytest.mark.parametrize(
    "change", [{"layout": "other rows"}, {"name": "another"}, {"size": 7}, {"crc32c": "ffffffff"}], ids=str
)
def test_parts_of_other_objects_are_not_nor_those_after_them(codec, change, old, tmp_path):
    recipe = grow(tmp_path / "root", codec, changed={1: change})
    assert recipe.taken == [0] and recipe.filled == [1, 2, 3, 4]
    assert holds_all(old)


@each_codec
def test_what_a_place_does_not_state_is_not_compared(codec, old, tmp_path):
    assert grow(tmp_path / "root", codec, changed={1: {"size": None, "crc32c": None}}).taken == [0, 1, 2]


@each_codec
def test_a_damaged_part_is_not_copied(codec, old, tmp_path):
    """And those beside it in the same file are."""
    if codec == "raw":
        flip(old / "observation.memmap", 3)
    else:
        flip(old / "observation" / "blob", int(np.fromfile(old / "observation" / "offsets", "<i8")[CUTS[0] + 1]))
    recipe = grow(tmp_path / "root", codec)
    assert recipe.taken == ([1, 2] if codec == "raw" else [0, 2])
    assert holds_all(old)


@each_codec
def test_missing_files(codec, old, tmp_path):
    (old / ("observation.memmap" if codec == "raw" else "observation/blob")).unlink()
    assert grow(tmp_path / "root", codec).taken == []
    assert holds_all(old)


@each_codec
def test_what_can_be_opened(codec, old, tmp_path):
    schema = schema_of(EPISODES, codec)
    assert OldDataset.open(old, schema) is not None
    assert OldDataset.open(tmp_path / "nowhere", schema) is None
    assert OldDataset.open(old, schema_of(EPISODES, "raw" if codec == "zstd" else "zstd")) is None
    flat = Recipe(EPISODES, "flat", id="my/flat").write(tmp_path / "root")
    assert OldDataset.open(flat, schema_of(EPISODES, "flat")) is None
    (old / FILENAME).unlink()
    assert OldDataset.open(old, schema) is None


@each_codec
def test_a_copied_part_is_synced_before_it_is_recorded(codec, old, tmp_path, monkeypatch):
    synced: set[str] = set()
    recorded: dict[int, set[str]] = {}
    fsync, part_done = os.fsync, DatasetWriter.part_done

    def note(descriptor: int) -> None:
        status = os.fstat(descriptor)
        synced.add(f"{status.st_dev} {status.st_ino}")
        fsync(descriptor)

    def record(writer: DatasetWriter, number: int, content: Any) -> None:
        leaf = writer.schema["observation"]
        part = part_path(writer.folder, leaf, number)
        files = [writer.folder / leaf.memmap] if codec == "raw" else [part, part.with_suffix(".lengths"), part.parent]
        wanted = {f"{path.stat().st_dev} {path.stat().st_ino}" for path in files}
        recorded[number] = wanted - synced
        part_done(writer, number, content)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(DatasetWriter, "part_done", record)
    assert grow(tmp_path / "root", codec).taken == [0, 1, 2]
    assert len(recorded) == 5 and not any(recorded.values())


def test_parts_taken_over_have_checksums(tmp_path):
    """So a run that goes on after a power cut does not take zeros for rows."""
    Growing(EPISODES[:FEW], "zstd", cuts=CUTS[:2]).write(tmp_path)
    place = DatasetPlace(tmp_path, "my/test")
    recipe = Growing(EPISODES, "zstd", cuts=CUTS)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):

        def stop(_: DatasetWriter) -> None:
            raise KeyboardInterrupt

        patch.setattr(DatasetWriter, "merge", stop)
        recipe.write(tmp_path)
    (part,) = (place.working / PARTS).glob("observation.1.blob")
    part.write_bytes(bytes(part.stat().st_size))
    again = Growing(EPISODES, "zstd", cuts=CUTS)
    again.write(tmp_path)
    assert again.taken == [1] and again.filled == [3, 4]
    assert holds_all(place.path)
