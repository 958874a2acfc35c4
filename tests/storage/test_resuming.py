"""Working folders that changed between two runs: the same dataset as without, and nothing outside is touched."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from rbdata.datasets.local import deletable, delete
from rbdata.storage.folder import JOURNAL, DatasetPlace
from rbdata.storage.integrity import verify
from rbdata.storage.manifest import FILENAME, write_manifest
from rbdata.storage.writer import DatasetWriter, open_sink
from storage_tools import LAYOUTS, Recipe, Stopped, contents, make_episodes, names, write_dataset

EPISODES = make_episodes([5, 1, 9, 2, 12, 1], shape=(30,), dtype="uint8")
RECIPE = {"parts": 4, "order": [0, 1, 3, 2], "scrambled": True}


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def replace(path: Path, outside: Path) -> None:
    path.unlink()
    path.symlink_to(outside)


DAMAGE = {
    "flipped": flip,
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "short": lambda path: os.truncate(path, path.stat().st_size // 2),
    "long": lambda path: path.write_bytes(path.read_bytes() + b"more"),
    "gone": Path.unlink,
    "folder": lambda path: (path.unlink(), path.mkdir(), (path / "x").touch()),
    "pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "dangling": lambda path: replace(path, Path("nowhere")),
}


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    return {
        layout: contents(write_dataset(tmp_path_factory.mktemp("truth"), EPISODES, layout, **RECIPE))
        for layout in LAYOUTS
    }


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Roots with unfinished datasets: parts 0 and 1 are appended, 3 is finished."""
    roots = {}
    for layout in LAYOUTS:
        roots[layout] = tmp_path_factory.mktemp("stopped") / "root"
        with pytest.raises(Stopped):
            Recipe(EPISODES, layout, **RECIPE, stop_after=3).write(roots[layout])
    return roots


def begun(stopped: dict[str, Path], layout: str, root: Path) -> DatasetPlace:
    shutil.copytree(stopped[layout], root)
    return DatasetPlace(root, "my/test")


@pytest.mark.parametrize(
    ("layout", "damage"),
    [*((layout, damage) for layout in ("raw", "zstd") for damage in DAMAGE), ("flat", "flipped"), ("ted", "flipped")],
)
def test_every_file_damaged(layout, damage, stopped, truth, tmp_path):
    files = contents(DatasetPlace(stopped[layout], "my/test").working)
    assert JOURNAL in files
    for number, name in enumerate(files):
        place = begun(stopped, layout, tmp_path / str(number))
        if files[name]:
            DAMAGE[damage](place.working / name)
        again = Recipe(EPISODES, layout, **RECIPE)
        assert contents(again.write(place.root)) == truth[layout], name
        assert names(place.path.parent) == ["test"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_added_when_all_is_appended_goes(layout, truth, tmp_path):
    recipe = {**RECIPE, "stop_after": RECIPE["parts"]}
    with pytest.raises(Stopped):
        Recipe(EPISODES, layout, **recipe).write(tmp_path)
    place = DatasetPlace(tmp_path, "my/test")
    for name in contents(place.working):
        DAMAGE["long"](place.working / name)
    path = Recipe(EPISODES, layout, **RECIPE).write(tmp_path)
    assert contents(path) == truth[layout] and verify(path).ok


@pytest.mark.parametrize("layout", ["raw", "zstd"])
def test_nothing_is_written_through_links(layout, stopped, truth, tmp_path):
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    for number, name in enumerate(contents(DatasetPlace(stopped[layout], "my/test").working)):
        for how in (replace, lambda path, target: (path.unlink(), os.link(target, path))):
            place = begun(stopped, layout, tmp_path / str(number))
            how(place.working / name, outside)
            assert contents(Recipe(EPISODES, layout, **RECIPE).write(place.root)) == truth[layout], name
            assert outside.read_bytes() == b"precious"
            shutil.rmtree(place.root)
    elsewhere = tmp_path / "elsewhere"
    place = begun(stopped, layout, tmp_path / "linked")
    shutil.move(place.working, elsewhere)
    before = contents(elsewhere)
    place.working.symlink_to(elsewhere)
    assert contents(Recipe(EPISODES, layout, **RECIPE).write(place.root)) == truth[layout]
    assert contents(elsewhere) == before and not place.path.is_symlink()


def test_a_folder_that_became_a_link(stopped, truth, tmp_path):
    place = begun(stopped, "zstd", tmp_path / "root")
    elsewhere = tmp_path / "elsewhere"
    shutil.move(place.working / "observation", elsewhere)
    (place.working / "observation").symlink_to(elsewhere)
    before = contents(elsewhere)
    assert contents(Recipe(EPISODES, "zstd", **RECIPE).write(place.root)) == truth["zstd"]
    assert contents(elsewhere) == before


def test_a_lost_part_between_others_is_filled_again_alone(stopped, truth, tmp_path):
    """Parts 0 and 1 are appended; a bit of 0 flips: 1 and 3 are kept."""
    place = begun(stopped, "zstd", tmp_path / "root")
    with (place.working / "observation" / "blob").open("r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))
    again = Recipe(EPISODES, "zstd", **{**RECIPE, "order": [2, 0]})
    assert contents(again.write(place.root)) == truth["zstd"]
    assert again.filled == [2, 0]


def test_a_part_with_other_bytes_than_before_takes_those_behind_it_along(stopped, tmp_path):
    place = begun(stopped, "zstd", tmp_path / "root")
    flip_first = place.working / "observation" / "blob"
    data = flip_first.read_bytes()
    flip_first.write_bytes(bytes([data[0] ^ 1]) + data[1:])

    class Other(Recipe):
        def fill(self, writer, name, number, low, high):
            if number:
                return super().fill(writer, name, number, low, high)
            sink = open_sink(writer.folder, writer.schema[name], number, low, high - low, writer.states)
            sink.write(0, bytes(30), np.zeros(high - low, np.int64))  # blank rows are short
            return sink.finish()

    other = Other(EPISODES, "zstd", **{**RECIPE, "order": range(4)})
    assert verify(other.write(place.root)).ok
    assert other.filled == [0, 1, 2, 3]


def test_what_does_not_belong_to_the_dataset_does_not_stay_in_it(stopped, truth, tmp_path):
    place = begun(stopped, "raw", tmp_path / "root")
    for name in ("action.memmap.part.json", "evil.memmap", "deep/er/file", ".raw/kept"):
        (place.working / name).parent.mkdir(parents=True, exist_ok=True)
        (place.working / name).write_text("x")
    (place.working / "link").symlink_to("/")
    (place.working / "empty").mkdir()
    folder = Recipe(EPISODES, "raw", **RECIPE).write(place.root)
    assert contents(folder) == truth["raw"]
    assert {path.name for path in folder.rglob("*") if path.is_dir()} == {"episodes", "next"}


def test_a_finished_folder_that_changed_before_it_was_installed(stopped, truth, tmp_path):
    """Killed between the end of the journal and the rename, then a bit flips: it is made again, and never installed."""
    for changed in (False, True):
        place = begun(stopped, "raw", tmp_path / str(changed))
        folder = write_dataset(tmp_path / f"whole{changed}", EPISODES, "raw", **RECIPE)
        shutil.rmtree(place.working)
        shutil.copytree(folder, place.working)
        if changed:
            flip(place.working / "observation.memmap")
        again = Recipe(EPISODES, "raw", **RECIPE)
        with place.lock():
            place.recover()
            assert place.exists() != changed and not place.working.exists()
        if changed:
            assert contents(again.write(place.root)) == truth["raw"]


def test_records_with_true_seals_but_odd_contents(stopped, truth, tmp_path):
    for number, odd in enumerate(
        ({"leaves": []}, {"leaves": {"observation": 3}}, {}, {"leaves": {"observation": {"ranges": []}}})
    ):
        for layout in ("raw", "zstd"):
            place = begun(stopped, layout, tmp_path / f"{layout}{number}")
            writer = DatasetWriter(place, Recipe(EPISODES, layout).schema, "print", bulk=("observation",), parts=4)
            writer.remember("part", odd, 1)
            writer.remember("merged", odd, 1)
            writer.remember("part", odd, "x")
            assert contents(Recipe(EPISODES, layout, **RECIPE).write(place.root)) == truth[layout]


def test_a_manifest_in_a_working_folder_with_a_journal_is_not_believed(stopped, truth, tmp_path):
    place = begun(stopped, "raw", tmp_path / "root")
    write_manifest(place.working, Recipe(EPISODES, "raw", **RECIPE).manifest())
    assert FILENAME in names(place.working)
    assert contents(Recipe(EPISODES, "raw", **RECIPE).write(place.root)) == truth["raw"]


def test_a_deletion_that_failed_half_way_is_brought_to_its_end(tmp_path):
    folder = write_dataset(tmp_path, EPISODES, "raw")
    place = DatasetPlace(tmp_path, "my/test")
    folder.rename(place.old)
    (place.old / FILENAME).unlink()
    delete(deletable("my/test", tmp_path))
    assert not (tmp_path / "my").exists()
