"""Hidden files of a folder are no data of any source."""

from __future__ import annotations

from pathlib import Path

from rbdata.datasets.fetch import open_location
from rbdata.datasets.sources.source import files_below, only_file, only_object


def test_hidden_files_and_folders_are_not_listed(tmp_path: Path) -> None:
    (tmp_path / ".ipynb_checkpoints").mkdir()
    (tmp_path / "inside").mkdir()
    for name in ("a.npz", "._a.npz", ".ipynb_checkpoints/a-checkpoint.npz", "inside/b.npz", "inside/.b.npz"):
        (tmp_path / name).write_bytes(b"x")
    location = open_location(str(tmp_path))
    assert [item.name for item in location.list()] == ["a.npz"]
    assert location.folders() == ["inside"]
    assert [path for path, _ in files_below(location, "", ".npz")] == ["a.npz", "inside/b.npz"]
    assert only_object(location, "npz", ".npz").name == "a.npz"
    assert only_file(tmp_path, ".npz") == tmp_path / "a.npz"
