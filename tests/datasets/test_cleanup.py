"""Left-overs of interrupted work: found, removed when nothing uses them, and never a dataset."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from paths import DATA
from rbdata import cli
from rbdata.datasets.acquire import download
from rbdata.datasets.cleanup import find_leftovers, leftovers_of, remove_leftovers
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.ingest.request import Request
from rbdata.datasets.local import deletable, delete
from rbdata.storage.folder import DatasetPlace
from storage_tools import contents, make_episodes, write_dataset

ID = "my/test"
#: No process has this number.
GONE = json.dumps({"pid": 1 << 30, "host": os.uname().nodename, "space": str(Path("/proc/self/ns/pid").readlink())})


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("sound"), make_episodes([3, 5]), "raw")


@pytest.fixture
def place(sound, tmp_path) -> DatasetPlace:
    """A dataset with one left-over of each kind."""
    place = DatasetPlace(tmp_path / "root", ID)
    shutil.copytree(sound, place.path)
    shutil.copytree(sound, place.old)
    for name in (".test.lock", ".test.lock.0123456789abcdef0123456789abcdef"):
        (place.path.parent / name).write_text(GONE)
    other = place.path.parent / ".other.writing"
    other.mkdir()
    (other / "run.json").write_text('{"fingerprint": "x"}')
    return place


def test_all_are_found_and_removed_and_the_dataset_stays(place, sound):
    found = find_leftovers(place.root)
    assert sorted(one.kind for one in found) == ["lock", "lock", "replaced", "unfinished"]
    assert remove_leftovers(found, place.root) == []
    assert [path.name for path in place.path.parent.iterdir()] == ["test"]
    assert contents(place.path) == contents(sound)
    assert find_leftovers(place.root) == []


def test_what_a_process_uses_stays(place):
    found = find_leftovers(place.root)
    (place.path.parent / ".test.lock").unlink()
    with place.lock():
        assert [one.kind for one in find_leftovers(place.root)] == ["unfinished"]
        busy = remove_leftovers(found, place.root)
    assert {one.id for one in busy} == {ID}
    assert place.old.is_dir() and not (place.path.parent / ".other.writing").exists()


def test_the_only_copy_of_a_dataset_is_put_back(place, sound):
    """A process was killed between the two renames of a replacement."""
    shutil.rmtree(place.path)
    assert "replaced" not in {one.kind for one in find_leftovers(place.root)}
    remove_leftovers(find_leftovers(place.root), place.root)
    assert contents(place.path) == contents(sound)


def test_the_next_download_of_a_complete_dataset_cleans_up(tmp_path):
    request = Request("d4rl/hopper-full-replay-v2", root=tmp_path, mirror=str(DATA / "d4rl"), procs=1, keep_raw=True)
    path = download(request).path
    place = DatasetPlace(tmp_path, request.id)
    shutil.copytree(path, place.old)
    assert download(request).action == "complete"
    assert leftovers_of(place) == [] and [one.name for one in path.parent.iterdir()] == [path.name]
    assert (tmp_path / ".raw").is_dir()
    delete(deletable(request.id, tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_the_command_asks_shows_and_deletes(place, capsys, monkeypatch):
    def call(*words: str) -> tuple[int, str, str]:
        code = cli.run(["prune", "--root", str(place.root), *words])
        return code, *capsys.readouterr()

    monkeypatch.setattr("sys.stdin", None)
    code, answer, notes = call()
    assert (code, answer) == (2, "") and "--yes" in notes
    code, answer, notes = call("--dry-run")
    assert code == 0 and len(answer.splitlines()) == 5 and "would delete 4 left-overs" in notes
    code, answer, _ = call("--yes", "--json")
    assert code == 0 and all(one["deleted"] for one in json.loads(answer)["leftovers"])
    assert call("--yes")[2].splitlines()[-1] == "nothing to delete"


def test_prune_ends_a_deletion_that_was_killed(place):
    """Its last moments: the dataset is gone, the lock and the folder are still there."""
    shutil.rmtree(place.path.parent)
    place.path.parent.mkdir(parents=True)
    (place.path.parent / ".test.lock").write_text(GONE)
    assert cli.run(["delete", ID, "--yes", "--root", str(place.root)]) == 2
    assert cli.run(["prune", "--yes", "--root", str(place.root)]) == 0
    assert list(place.root.iterdir()) == []


def test_empty_folders_are_left_overs(place, sound):
    (place.root / "lab" / "deep" / "empty").mkdir(parents=True)
    assert [str(one.path.relative_to(place.root)) for one in find_leftovers(place.root) if one.kind == "empty"] == [
        "lab/deep/empty"
    ]
    remove_leftovers(find_leftovers(place.root), place.root)
    assert [path.name for path in place.root.iterdir()] == ["my"] and contents(place.path) == contents(sound)


def test_a_deletion_with_raw_files_that_was_killed_is_ended_by_the_next(tmp_path, monkeypatch):
    request = Request(
        "atari/Pong/5", tmp_path, str(DATA / "atari"), procs=1, keep_raw=True, options=ConvertOptions("raw", parts=(0,))
    )
    download(request)
    real, gone = Path.unlink, []

    def unlink(self, missing_ok=False):
        if len(gone) == 2:
            raise KeyboardInterrupt
        gone.extend([self] * (".raw" in self.parts))
        real(self, missing_ok)

    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        context.setattr(Path, "unlink", unlink)
        delete(deletable(request.id, tmp_path))
    (tmp_path / "atari" / "Pong" / ".5.lock").unlink()
    delete(deletable(request.id, tmp_path))
    assert list(tmp_path.iterdir()) == []
