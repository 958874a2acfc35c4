"""Datasets that are replaced, grown or deleted while they are opened and read."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
from rbdata.datasets import local
from rbdata.datasets.local import list_local
from rbdata.errors import DamagedDatasetError, DatasetBusyError, DatasetNotFoundError, UsageError
from rbdata.storage import folder as folders
from rbdata.storage import integrity, snapshot
from rbdata.storage.dataset import Dataset
from rbdata.storage.derived_leaves import DerivedDataset, add_episode
from rbdata.storage.folder import DatasetPlace
from rbdata.storage.integrity import verify
from rbdata.storage.manifest import FILENAME
from rbdata.storage.snapshot import read_snapshot
from storage_tools import LAYOUTS, columns, make_episodes, write_dataset

OLD, NEW = make_episodes([3, 5, 1], seed=1), make_episodes([4, 2, 6, 2], seed=2)


def replace(root, layout, episodes=NEW):
    """Put another dataset in the place of the one that is there, as a download with --force does."""
    other = write_dataset(root / "aside", episodes, layout)
    place = DatasetPlace(root, "my/test")
    other.rename(place.working)
    with place.lock():
        place.install()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("how", ["replaced", "deleted"])
def test_what_was_opened_is_read_on(tmp_path, layout, how):
    folder = write_dataset(tmp_path, OLD, layout, parts=2)
    opened, derived = Dataset(folder), DerivedDataset(Dataset(folder), add_episode)
    if how == "replaced":
        replace(tmp_path, layout)
        assert len(Dataset(folder)) == 14
    else:
        DatasetPlace(tmp_path, "my/test").remove()
        assert not folder.exists()
    for dataset in (opened, derived):
        for name, rows in columns(OLD).items():
            np.testing.assert_array_equal(dataset[name].numpy(), rows)
        assert dataset.episodes.lengths.tolist() == [3, 5, 1]
    assert derived[:]["episode"].tolist() == [0] * 3 + [1] * 5 + [2]


def test_replaced_while_it_is_opened(tmp_path, monkeypatch):
    """All files come from one folder, and a sound dataset is not called damaged."""
    folder = write_dataset(tmp_path, OLD, "zstd")
    times, map_episodes = [], snapshot_reads(monkeypatch)

    def swap(*arguments):
        if not times:
            replace(tmp_path, "flat")  # without the files that the manifest read before lists
        times.append(1)
        return map_episodes(*arguments)

    monkeypatch.setattr("rbdata.storage.dataset.map_episodes", swap)
    np.testing.assert_array_equal(Dataset(folder)["observation"].numpy(), columns(NEW)["observation"])
    assert len(times) == 2


def snapshot_reads(monkeypatch):
    from rbdata.storage.episodes import map_episodes

    monkeypatch.setattr(snapshot, "_WAITS", (0.0, 0.0, 0.0))
    return map_episodes


def test_replaced_again_and_again(tmp_path, monkeypatch):
    snapshot_reads(monkeypatch)
    folder = write_dataset(tmp_path, OLD, "flat")
    with pytest.raises(DatasetBusyError, match="again and again"):
        read_snapshot(folder, lambda manifest: replace(tmp_path, "flat"))


def test_between_two_renames(tmp_path, monkeypatch):
    """A replacement that was killed: the dataset is looked for a while, and what is missing is called so."""
    snapshot_reads(monkeypatch)
    folder = write_dataset(tmp_path, OLD, "flat")
    folder.rename(folder.with_name(".test.old"))
    with pytest.raises(DatasetBusyError):
        Dataset(folder)
    back = []

    def wait(seconds):
        back.append(seconds)
        if len(back) == 2:
            folder.with_name(".test.old").rename(folder)

    monkeypatch.setattr(snapshot.time, "sleep", wait)
    assert len(Dataset(folder)) == 9


def test_replaced_while_it_is_looked_for(tmp_path, monkeypatch):
    """The folder is there when it is looked for, and not when its manifest is; then another one is."""
    folder = write_dataset(tmp_path, OLD, "flat")
    other = write_dataset(tmp_path / "aside", OLD, "flat")
    is_file, looked = Path.is_file, []

    def look(path):
        if path == folder / "rbdata.json" and not looked:
            looked.append(path)
            folder.rename(tmp_path / "gone")
            found = is_file(path)
            other.rename(folder)
            return found
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", look)
    assert snapshot.holds_dataset(folder) and looked


def test_the_second_of_two_renames_while_it_is_looked_for(tmp_path, monkeypatch):
    """The folder is not there, and then is, between any two looks at it."""
    folder = write_dataset(tmp_path, OLD, "flat")
    is_being_replaced = snapshot._is_being_replaced

    def look(path):
        if not folder.exists():
            away.rename(folder)
        return is_being_replaced(path)

    away = tmp_path / "away"
    monkeypatch.setattr(snapshot, "_is_being_replaced", look)
    for find in (snapshot.holds_dataset, Dataset):
        folder.rename(away)
        assert find(folder)


def test_damage_and_absence_are_told_at_once(tmp_path, monkeypatch):
    waited = []
    monkeypatch.setattr(snapshot.time, "sleep", waited.append)
    folder = write_dataset(tmp_path, OLD, "raw")
    (folder / "next" / "reward.memmap").unlink()
    with pytest.raises(DamagedDatasetError, match=r"reward.memmap is missing"):
        Dataset(folder)
    (folder / FILENAME).unlink()
    with pytest.raises(DatasetNotFoundError):
        Dataset(folder)
    with pytest.raises(DatasetNotFoundError):
        Dataset(tmp_path / "nowhere")
    assert waited == [0.0] * 3


def test_a_pickle_is_of_one_dataset(tmp_path):
    """In a worker that begins later, rows of another dataset must not stand for those that were opened."""
    folder = write_dataset(tmp_path, OLD, "flat")
    data = [pickle.dumps(Dataset(folder)), pickle.dumps(DerivedDataset(Dataset(folder), add_episode))]
    assert [len(pickle.loads(one)) for one in data] == [9, 9]
    replace(tmp_path, "flat", OLD)  # the same rows
    assert [len(pickle.loads(one)) for one in data] == [9, 9]
    replace(tmp_path, "flat")
    for one in data:
        with pytest.raises(UsageError, match="replaced"):
            pickle.loads(one)


def test_deleted_as_a_whole(tmp_path, monkeypatch):
    """Nobody sees a dataset without its manifest, and a deletion that was killed does not come back."""
    from rbdata.datasets.cleanup import find_leftovers, remove_leftovers

    folder = write_dataset(tmp_path, OLD, "flat")
    seen, remove_tree = [], folders.remove_tree

    def killed(path):
        seen.append((folder.exists(), list_local(tmp_path)))
        if path.name == ".test.old" and path.exists():
            raise KeyboardInterrupt
        remove_tree(path)

    monkeypatch.setattr(folders, "remove_tree", killed)
    with pytest.raises(KeyboardInterrupt):
        local.delete(local.deletable("my/test", tmp_path))
    assert seen[-1] == (False, [])
    assert [one.kind for one in find_leftovers(tmp_path)] == ["replaced"]
    monkeypatch.undo()
    remove_leftovers(find_leftovers(tmp_path), tmp_path)
    assert not (tmp_path / "my").exists()


def test_replaced_while_it_is_verified(tmp_path, monkeypatch):
    folder = write_dataset(tmp_path, OLD, "raw")
    sum_pieces, first, lock = integrity.sum_pieces, [1], threading.Lock()

    def swap(*arguments):
        with lock:
            if first and first.pop():
                replace(tmp_path, "raw")
        return sum_pieces(*arguments)

    monkeypatch.setattr(integrity, "sum_pieces", swap)
    with pytest.raises(DatasetBusyError, match="while it was verified"):
        verify(folder)
    assert verify(folder).ok
