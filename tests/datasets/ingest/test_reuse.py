"""The first parts of the dataset about to be replaced are copied from it, as far as the plan begins with them, if undamaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from given_reader import Making
from rbdata.storage.dataset import Dataset
from rbdata.storage.integrity import verify
from rbdata.storage.manifest import FILENAME
from rbdata.storage.old_dataset import OldDataset
from rbdata.storage.work import PARTS
from storage_tools import Recipe, columns, contents, make_episodes, names, schema_of

EPISODES = make_episodes([5, 1, 9, 2, 12, 1, 6, 6], shape=(30,), dtype="uint8")
#: Episodes of the old dataset, and the state rows at which the parts of both end.
FEW, CUTS = 4, [6, 18, 21, 35]

each_codec = pytest.mark.parametrize("codec", ["raw", "zstd"])


@pytest.fixture
def old(tmp_path, request):
    """A dataset of the first episodes, in three parts; the codec is the test's."""
    codec = request.node.callspec.params["codec"]
    return Making(Recipe(EPISODES[:FEW], codec, cuts=CUTS[:2]), tmp_path / "root").make()


def growing(root: Path, codec: str, **options: Any) -> Making:
    return Making(Recipe(EPISODES, codec, cuts=CUTS), root, **options)


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
    run = growing(tmp_path / "root", codec)
    run.make()
    assert run.made == [3, 4]
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
    run = growing(tmp_path / "root", codec, changed={1: change})
    run.make()
    assert run.made == [1, 2, 3, 4]
    assert holds_all(old)


@each_codec
def test_what_a_place_does_not_state_is_not_compared(codec, old, tmp_path):
    run = growing(tmp_path / "root", codec, changed={1: {"size": None, "crc32c": None}})
    run.make()
    assert run.made == [3, 4]


@each_codec
def test_a_damaged_part_is_not_copied(codec, old, tmp_path):
    """And those beside it in the same file are."""
    if codec == "raw":
        flip(old / "observation.memmap", 3)
    else:
        flip(old / "observation" / "blob", int(np.fromfile(old / "observation" / "offsets", "<i8")[CUTS[0] + 1]))
    run = growing(tmp_path / "root", codec)
    run.make()
    assert run.made == ([0, 3, 4] if codec == "raw" else [1, 3, 4])
    assert holds_all(old)


def test_damaged_offsets_are_not_copied(tmp_path):
    old = Making(Recipe(EPISODES[:FEW], "zstd", cuts=CUTS[:2]), tmp_path).make()
    flip(old / "observation" / "offsets", 8 * (CUTS[0] + 1))
    run = growing(tmp_path, "zstd")
    run.make()
    assert 1 in run.made and {3, 4} <= set(run.made)
    assert holds_all(old)


@each_codec
def test_missing_files(codec, old, tmp_path):
    (old / ("observation.memmap" if codec == "raw" else "observation/blob")).unlink()
    run = growing(tmp_path / "root", codec)
    run.make()
    assert run.made == [0, 1, 2, 3, 4]
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
def test_an_interrupted_run_copies_them_all_the_same(codec, old, tmp_path):
    run = growing(tmp_path / "root", codec)
    with pytest.raises(KeyboardInterrupt):
        run.make(stop_after=1)
    assert len(Dataset(old)) == sum(map(len, EPISODES[:FEW]))
    assert "00003.0" in names(run.place.working / PARTS)
    run.make()
    assert run.made == [3, 4]
    assert holds_all(old)
