"""Working folders that changed between two runs: the same dataset as without, and nothing outside is touched."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from given_reader import Making
from rbdata import cli
from rbdata.storage.checksums import crc32c
from rbdata.storage.folder import RUN, DatasetPlace
from rbdata.storage.integrity import verify
from rbdata.storage.manifest import FILENAME, read_manifest, write_manifest
from rbdata.storage.work import PARTS
from storage_tools import LAYOUTS, Recipe, contents, make_episodes, names

EPISODES = make_episodes([5, 1, 9, 2, 12, 1], shape=(30,), dtype="uint8")


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


def making(layout: str, root: Path) -> Making:
    return Making(Recipe(EPISODES, layout, parts=4), root)


def data_of(folder: Path) -> dict[str, bytes]:
    """The files, without the manifest, which says when it was written."""
    return {path: data for path, data in contents(folder).items() if path != FILENAME}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


DAMAGE = {
    "flipped": flip,
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "short": lambda path: os.truncate(path, path.stat().st_size // 2),
    "long": lambda path: path.write_bytes(path.read_bytes() + b"more"),
    "gone": Path.unlink,
}


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    return {layout: data_of(making(layout, tmp_path_factory.mktemp("truth")).make()) for layout in LAYOUTS}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Roots with unfinished datasets: parts 0 to 2 are finished."""
    roots = {}
    for layout in LAYOUTS[1:]:
        roots[layout] = tmp_path_factory.mktemp("stopped") / "root"
        with pytest.raises(KeyboardInterrupt):
            making(layout, roots[layout]).make(stop_after=3)
    return roots


def begun(stopped: dict[str, Path], layout: str, root: Path) -> Making:
    shutil.copytree(stopped[layout], root)
    return making(layout, root)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_pipeline_makes_what_the_tests_make(layout, truth, tmp_path):
    """So that tests of readers hold for what sources make."""
    assert truth[layout] == data_of(Recipe(EPISODES, layout, parts=4).write(tmp_path))


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_sound_parts_are_kept(layout, stopped, truth, tmp_path):
    run = begun(stopped, layout, tmp_path / "root")
    assert data_of(run.make()) == truth[layout]
    assert run.made == [3]
    assert verify(run.place.path).ok


@pytest.mark.parametrize(
    ("layout", "damage"),
    [("zstd", "flipped"), ("zstd", "long"), ("raw", "short"), ("raw", "zeroed"), ("ted", "gone")],
)
def test_every_file_damaged(layout, damage, stopped, truth, tmp_path):
    files = contents(DatasetPlace(stopped[layout], "my/test").working)
    assert RUN in files and f"{PARTS}/00001.0/part.json" in files
    for number, name in enumerate(files):
        run = begun(stopped, layout, tmp_path / str(number))
        if files[name]:
            DAMAGE[damage](run.place.working / name)
        assert data_of(run.make()) == truth[layout], name
        assert names(run.place.path.parent) == ["test"]
        if name.startswith(f"{PARTS}/00001.0/") and name.endswith((".rows", ".lengths")) and damage != "long":
            assert run.made == [1, 3]  # the others are kept


def test_the_record_of_the_run_cut_short(stopped, truth, tmp_path):
    """Nothing states then what the parts are of: they are made again."""
    layout = "raw"
    record = contents(DatasetPlace(stopped[layout], "my/test").working)[RUN]
    for kept in (b"", record[:-1], record + b"\0" * 10):
        run = begun(stopped, layout, tmp_path / "root")
        (run.place.working / RUN).write_bytes(kept)
        assert data_of(run.make()) == truth[layout], kept
        assert run.made == [0, 1, 2, 3]
        shutil.rmtree(run.root)


@pytest.mark.parametrize("record", [b"", b"[]", b"{}", b'{"unit": 1, "sections": 3}'])
def test_records_of_parts_that_no_run_writes(record, stopped, truth, tmp_path):
    run = begun(stopped, "zstd", tmp_path / "root")
    sealed = f"{crc32c(record)} ".encode() + record
    (run.place.working / PARTS / "00001.0" / "part.json").write_bytes(sealed)
    assert data_of(run.make()) == truth["zstd"]
    assert run.made == [1, 3]


def test_what_does_not_belong_to_the_dataset_does_not_stay_in_it(stopped, truth, tmp_path):
    run = begun(stopped, "raw", tmp_path / "root")
    left = f"{PARTS}/00003.0.{'0' * 32}/observation.0.rows"  # of a worker that was killed
    for name in ("action.memmap.part.json", "evil.memmap", "deep/er/file", ".raw/kept", left):
        (run.place.working / name).parent.mkdir(parents=True, exist_ok=True)
        (run.place.working / name).write_text("x")
    (run.place.working / "link").symlink_to("/")
    (run.place.working / "empty").mkdir()
    folder = run.make()
    assert data_of(folder) == truth["raw"]
    assert {path.name for path in folder.rglob("*") if path.is_dir()} == {"episodes", "next"}


def test_a_working_folder_without_the_record_of_a_run_is_begun_anew(truth, tmp_path):
    run = making("raw", tmp_path)
    run.place.working.mkdir(parents=True)
    (run.place.working / "leftover.memmap").touch()
    assert data_of(run.make()) == truth["raw"]


def test_a_finished_folder_is_installed(tmp_path):
    """Killed after the record of the run was removed."""
    run = making("raw", tmp_path)
    run.make().rename(run.place.working)
    with run.place.lock():
        run.place.recover()
        assert run.place.exists() and not run.place.working.exists()


def test_a_manifest_in_a_working_folder_of_a_run_is_not_believed(stopped, truth, tmp_path):
    run = begun(stopped, "raw", tmp_path / "root")
    write_manifest(run.place.working, read_manifest(making("raw", tmp_path / "other").make()))
    assert FILENAME in names(run.place.working)
    assert data_of(run.make()) == truth["raw"]


def test_parts_of_another_dictionary_are_made_again(stopped, truth, tmp_path):
    run = begun(stopped, "zstd", tmp_path / "root")
    (run.place.working / "observation" / "dictionary").write_bytes(b"another")
    assert data_of(run.make()) == truth["zstd"]
    assert run.made == [0, 1, 2, 3]


def test_parts_are_read_once_to_be_checked(stopped, tmp_path, monkeypatch):
    from rbdata.datasets.ingest import unit

    read: list[str] = []
    inner = unit.sum_cells
    monkeypatch.setattr(unit, "sum_cells", lambda path, *which: read.append(path.parent.name) or inner(path, *which))
    begun(stopped, "zstd", tmp_path / "root").make()
    assert sorted(read) == ["00000.0", "00001.0", "00002.0"]


def test_prune_ends_a_deletion_that_failed_half_way(tmp_path):
    run = making("raw", tmp_path)
    run.make().rename(run.place.old)
    (run.place.old / FILENAME).unlink()
    assert cli.run(["prune", "--yes", "--root", str(tmp_path)]) == 0
    assert not (tmp_path / "my").exists()
