"""Dataset folders from elsewhere: whatever is in them, they are read as they state, or refused with a typed error."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import rbdata
from folder_faults import change_manifest, damage
from rbdata.cli.inspect import run as inspect
from rbdata.datasets.local import list_local
from rbdata.errors import DamagedDatasetError, RbdataError
from rbdata.storage.dataset import Dataset
from rbdata.storage.integrity import verify
from rbdata.storage.manifest import read_manifest
from storage_tools import LAYOUTS, make_episodes, write_dataset

#: Folders to try; a campaign sets more.
COUNT = int(os.environ.get("RBDATA_FUZZED_FOLDERS", "40"))


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    root = tmp_path_factory.mktemp("sound")
    return [write_dataset(root / layout, make_episodes([3, 5, 1, 7]), layout, parts=2) for layout in LAYOUTS]


@pytest.fixture
def folder(tmp_path, sound):
    target = tmp_path / "root" / "my" / "test"
    shutil.copytree(sound[2], target)
    return target


def read_rows(folder: Path) -> None:
    dataset = Dataset(folder)
    repr(dataset), dataset.statistics, dataset[0], dataset[:3], dataset.episode(0), dataset["next/reward"]
    dataset.read([0, 1], before=2, length=2)


def read_spaces(folder: Path) -> None:
    dataset = Dataset(folder)
    for name in ("observation_space", "action_space", "spec"):
        with suppress(RbdataError):
            getattr(dataset, name)


def sample(folder: Path) -> None:
    dataset = Dataset(folder)
    rbdata.load(dataset, batch_size=4, seed=0).sample()
    rbdata.load(dataset, batch_size=4, slice_len=2, strict_length=False, seed=0).sample()
    rbdata.load(dataset, batch_size=4, frame_stack=2, n_step=2, seed=0).sample()


READERS = {
    "rows": read_rows,
    "spaces": read_spaces,
    "sample": sample,
    "verify": verify,
    "inspect": lambda folder: (inspect(str(folder)), inspect(str(folder), episodes=True)),
    "list": lambda folder: list_local(folder.parents[1]),
}


def test_fuzzed_folders(tmp_path, sound, capsys):
    """Every reader raises a typed error, or reads; nothing hangs, and no escape sequence is printed."""
    folder, failed = tmp_path / "root" / "my" / "test", []
    for seed in range(COUNT):
        shutil.rmtree(tmp_path / "root", ignore_errors=True)
        shutil.copytree(sound[seed % len(sound)], folder)
        what = damage(folder, seed)
        for name, use in READERS.items():
            try:
                with suppress(RbdataError):
                    use(folder)
            except Exception as error:
                failed.append(f"seed {seed} ({what}), {name}: {error!r}")
        assert "\x1b" not in capsys.readouterr().out
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("steps", -1, "steps"),
        ("steps", True, "steps"),
        ("steps", 1e400, "steps"),
        ("files", {"x": [[1]]}, "files"),
        ("files", {"../x": [[1, "00000000"]]}, "files"),
        ("files", {"/x": [[1, "00000000"]]}, "files"),
        ("returns", {"mean": 1.0}, "returns"),
        ("lineage", 5, "lineage"),
        ("notes", "text", "notes"),
        ("spaces", {"observation": 5}, "spaces"),
        ("id", "my/\x1b[31mtest", "id"),
        ("leaves", [], "every leaf"),
        ("leaves", [{"name": "x", "kind": "step", "dtype": "int8", "codec": "raw", "shape": [1e400]}], "leaves"),
    ],
)
def test_the_error_names_the_field(folder, field, value, named):
    change_manifest(folder, lambda record: record.update({field: value}))
    with pytest.raises(DamagedDatasetError, match=named):
        read_manifest(folder)


def test_claimed_rows_must_be_there(folder):
    """Rows of a constant are made in memory: a forged count must not decide how many."""
    change_manifest(folder, lambda record: record.update(steps=1 << 40, episodes=4))
    with pytest.raises(DamagedDatasetError):
        Dataset(folder).read([0])
    with pytest.raises(DamagedDatasetError):
        _ = Dataset(folder).episodes


def test_notes_cannot_speak_to_the_terminal(folder, capsys):
    change_manifest(
        folder, lambda record: record.update(notes=["\x1b]0;title\x07\x9b31m", "two\nlines"], licence="\x1b[2J")
    )
    inspect(str(folder))
    printed = capsys.readouterr().out
    assert not {"\x1b", "\x07", "\x9b"} & set(printed)
    assert "\\x1b]0;title" in printed and "two\\nlines" in printed


def test_no_rows(folder):
    change_manifest(folder, lambda record: record.update(steps=0, episodes=0))
    dataset = Dataset(folder)
    assert len(dataset) == len(dataset.episodes) == len(dataset[:]) == 0
