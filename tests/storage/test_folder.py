"""Where datasets lie: places, ids, the renames of a commit."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from rbdata.errors import DatasetExistsError, DiskError, UsageError
from rbdata.storage import folder as folders
from rbdata.storage.dataset import Dataset
from rbdata.storage.folder import (
    DatasetPlace,
    check_id,
    check_space,
    disk_use,
    files_below,
    find_datasets,
    free_bytes,
    is_empty_folder,
    make_writable,
    remove_tree,
)
from rbdata.storage.manifest import FILENAME
from storage_tools import Recipe, Stopped, contents, make_episodes, names, write_dataset


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


# -- ids and places -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("good", ["my/pong", "atari/Pong/5", "minari/D4RL/door/human-v2", "my/a.b", "my/a b", "a/é"])
def test_ids(good):
    check_id(good)


@pytest.mark.parametrize(
    "bad",
    [
        *("", "pong", "/my/pong", "my/pong/", "my//pong", "my/../pong", "../my/pong", "my/..", "./my/pong", "my/."),
        *("my/.hidden", "~/pong", "my/~", "-rf/x", "my\\pong/x", "my/po\0ng", "my/ pong", "my/pong ", "my/a\n"),
        *("/etc/passwd", "my/a\x1b[2Jb", "my/a\nb"),
    ],
)
def test_ids_that_are_none(bad, tmp_path):
    with pytest.raises(UsageError) as caught:
        DatasetPlace(tmp_path, bad)
    assert caught.value.hint


# -- the renames of a commit ----------------------------------------------------------------------------------------

OLD, NEW = make_episodes([3, 4]), make_episodes([5, 6, 7], seed=1)


def steps_at(place: DatasetPlace) -> int | None:
    return len(Dataset(place.path)) if place.exists() else None


class Killed(BaseException):
    pass


# What is in the folder and whether it replaces another one are decided in different places: each once, not in all pairs.
@pytest.mark.parametrize(("layout", "replacing"), [("flat", False), ("zstd", True)])
def test_killed_at_every_point_of_a_commit(tmp_path, monkeypatch, layout, replacing):
    """Kill before each change of a name in a commit; then the old dataset is there, or the new one, and a rerun ends well."""
    truth = contents(write_dataset(tmp_path / "truth", NEW, layout, parts=2))
    prepared = tmp_path / "prepared"
    if replacing:
        write_dataset(prepared, OLD)
    with pytest.raises(Stopped):
        Recipe(NEW, layout, parts=2, stop_after=2 if layout == "zstd" else 0).write(prepared)
    # A sync changes nothing in the folder: killed before one, it is as it is before the next of these.
    calls = {(Path, "rename"), (Path, "replace"), (Path, "unlink"), (folders.shutil, "rmtree")}
    at = outcomes = 0
    while True:
        root = tmp_path / str(at)
        place = DatasetPlace(root, "my/test")
        shutil.copytree(prepared, root)
        left = at
        with monkeypatch.context() as patch:

            def counting(real):
                def call(*arguments, **options):
                    nonlocal left
                    if left == 0:
                        raise Killed
                    left -= 1
                    return real(*arguments, **options)

                return call

            for owner, name in calls:
                patch.setattr(owner, name, counting(getattr(owner, name)))
            try:
                Recipe(NEW, layout, parts=2).run(place)
                killed = False
            except Killed:
                killed = True
        if killed:
            expected = {7, 18} if replacing else {None, 18}
            between = replacing and place.old.exists() and not place.path.exists()
            assert between or steps_at(place) in expected
            place.recover()
            assert steps_at(place) in expected
            outcomes |= 1 << (steps_at(place) == 18)
            assert not place.old.exists()
        Recipe(NEW, layout, parts=2).write(root)
        assert contents(place.path) == truth
        assert names(place.path.parent) == ["test"]
        shutil.rmtree(root)
        if not killed:
            break
        at += 1
    assert at > 10 and outcomes == 3


@pytest.mark.parametrize("complete", [True, False])
def test_recover_leaves_unfinished_work(tmp_path, complete):
    place = DatasetPlace(tmp_path, "my/test")
    if complete:
        write_dataset(tmp_path, OLD)
    with pytest.raises(Stopped):
        Recipe(NEW, "raw", parts=2, stop_after=1).write(tmp_path)
    place.recover()
    assert steps_at(place) == (7 if complete else None)
    assert place.working.is_dir()


def test_recover_takes_back_what_was_set_aside(tmp_path):
    """A removal, or a replacement, that was killed after its first rename."""
    place = DatasetPlace(tmp_path, "my/test")
    before = contents(write_dataset(tmp_path, OLD))
    place.path.rename(place.old)
    place.recover()
    assert contents(place.path) == before and not place.old.exists()


def test_replacing_a_link_leaves_what_it_points_to(tmp_path):
    """A dataset moved to another disk and linked: the link is replaced, the other disk is not touched."""
    moved = write_dataset(tmp_path / "big disk", OLD)
    place = DatasetPlace(tmp_path / "root", "my/test")
    place.path.parent.mkdir(parents=True)
    place.path.symlink_to(moved)
    write_dataset(place.root, NEW)
    assert steps_at(place) == 18 and not place.path.is_symlink()
    assert len(Dataset(moved)) == 7


def test_a_dangling_link_is_in_the_way(tmp_path):
    """A dataset linked from a disk that is not there at the moment."""
    place = DatasetPlace(tmp_path, "my/test")
    place.path.parent.mkdir(parents=True)
    place.path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(DatasetExistsError, match="is not a dataset"):
        write_dataset(tmp_path, NEW)


def test_no_dataset_inside_another_nor_over_other_files(tmp_path):
    write_dataset(tmp_path, OLD, id="my/test")
    with pytest.raises(DatasetExistsError, match="inside another dataset"):
        write_dataset(tmp_path, NEW, id="my/test/deeper")
    write_dataset(tmp_path, OLD, id="your/a/b")
    with pytest.raises(DatasetExistsError, match="is not a dataset"):
        write_dataset(tmp_path, NEW, id="your/a")  # installing it would remove your/a/b
    assert len(Dataset(tmp_path / "your" / "a" / "b")) == 7
    empty = tmp_path / "my" / "empty"
    empty.mkdir()
    assert len(Dataset(write_dataset(tmp_path, NEW, id="my/empty"))) == 18


# -- removal --------------------------------------------------------------------------------------------------------


def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "precious"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").write_text("keep me")
    return folder


def test_remove_never_follows_links(tmp_path):
    precious = outside(tmp_path)
    place = DatasetPlace(tmp_path / "root", "my/test")
    write_dataset(place.root, OLD)
    (place.path / "link").symlink_to(precious)
    (place.path / "next" / "link").symlink_to(precious / "deep" / "file")
    for path in (place.working, place.old):
        path.symlink_to(precious)
    (precious / FILENAME).write_text("keep me, too")
    place.remove()
    assert (precious / FILENAME).exists()
    place.prune_parents()
    assert (precious / "deep" / "file").read_text() == "keep me"
    assert names(place.root) == []


def test_remove_a_linked_dataset_removes_the_link_only(tmp_path):
    moved = write_dataset(tmp_path / "big disk", OLD)
    place = DatasetPlace(tmp_path / "root", "my/test")
    place.path.parent.mkdir(parents=True)
    place.path.symlink_to(moved)
    place.remove()
    assert not os.path.lexists(place.path)
    assert len(Dataset(moved)) == 7


def test_remove_takes_everything_and_leaves_neighbours(tmp_path):
    place = DatasetPlace(tmp_path, "my/test")
    write_dataset(tmp_path, OLD)
    write_dataset(tmp_path, OLD, id="my/test2")
    with pytest.raises(Stopped):
        Recipe(NEW, "zstd", parts=2, stop_after=1).write(tmp_path)
    place.remove()
    place.prune_parents()
    assert names(tmp_path / "my") == ["test2"]
    place.remove()  # nothing there: nothing happens


def test_half_removed_is_no_dataset(tmp_path, monkeypatch):
    place = DatasetPlace(tmp_path, "my/test")
    write_dataset(tmp_path, OLD)

    def fail(path):
        if path == place.path:
            raise OSError("killed")

    monkeypatch.setattr(folders, "remove_tree", fail)
    with pytest.raises(OSError, match="killed"):
        place.remove()
    assert not place.exists()


def test_another_process_removes_what_is_walked(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / "top" / name).mkdir(parents=True)
        (tmp_path / "top" / name / "file").touch()
    found = files_below(tmp_path / "top")
    first = next(found)
    shutil.rmtree(tmp_path / "top")
    assert list(found) == [] and first.name == "file"
    assert not is_empty_folder(tmp_path / "top") and disk_use(tmp_path / "top") == 0
    remove_tree(tmp_path / "top")


# -- finding --------------------------------------------------------------------------------------------------------


def test_find_datasets(tmp_path):
    for dataset_id in ("my/b", "my/a", "atari/Pong/5"):
        write_dataset(tmp_path, OLD, id=dataset_id)
    for dataset_id in ("my/a", "my/unfinished"):
        with pytest.raises(Stopped):
            Recipe(NEW, "raw", parts=2, stop_after=1, id=dataset_id).write(tmp_path)
    (tmp_path / "my" / "other").mkdir()
    (tmp_path / "my" / "other" / "file").touch()
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / FILENAME).touch()  # one name is no id
    (tmp_path / ".raw" / "atari").mkdir(parents=True)
    (tmp_path / ".raw" / "atari" / FILENAME).touch()
    moved = write_dataset(tmp_path / ".elsewhere", OLD)
    (tmp_path / "my" / "linked").symlink_to(moved)
    (tmp_path / "my" / "loop").symlink_to(tmp_path / "my")
    (tmp_path / "my" / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "my" / "other" / "link").symlink_to(tmp_path / "my" / "other" / "file")
    found = list(find_datasets(tmp_path))
    assert [(dataset_id, complete) for dataset_id, _, complete in found] == [
        ("atari/Pong/5", True),
        ("my/a", True),
        ("my/b", True),
        ("my/linked", True),
        ("my/unfinished", False),
    ]
    assert found[0][1] == tmp_path / "atari" / "Pong" / "5"
    assert found[-1][1] == tmp_path / "my" / ".unfinished.writing"
    assert list(find_datasets(tmp_path / "nothing")) == []


# -- disk -----------------------------------------------------------------------------------------------------------


def test_disk_space(tmp_path, monkeypatch):
    deep = tmp_path / "not" / "yet" / "there"
    assert free_bytes(deep) > 0
    usage = namedtuple("usage", "total used free")
    asked = []

    def disk_usage(path):
        asked.append(path)
        return usage(0, 0, 10 * 10**9)

    monkeypatch.setattr(folders.shutil, "disk_usage", disk_usage)
    check_space(deep, 9_700_000_000, "my/test")
    assert asked == [tmp_path]
    with pytest.raises(DiskError, match=r"my/test needs about 9\.90 GB .* 10\.0 GB are free") as caught:
        check_space(deep, 9_900_000_000, "my/test")
    assert "--root" in (caught.value.hint or "")
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda _: usage(0, 0, 60 << 20))
    with pytest.raises(DiskError, match=r"needs about 1 byte on .* 62\.9 MB are free \(67\.1 MB are kept in reserve"):
        check_space(deep, 1, "my/test")


def test_make_writable(tmp_path):
    root = tmp_path / "a" / "b"
    make_writable(root)
    assert names(root) == []
    file = tmp_path / "file"
    file.touch()
    for bad in (file, file / "below"):
        with pytest.raises(DiskError) as caught:
            make_writable(bad)
        assert "--root" in (caught.value.hint or "")
    with pytest.raises(DiskError):
        make_writable(Path("/proc/rbdata"))
