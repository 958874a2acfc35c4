"""Files that may have been put in the place of others."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from rbdata.datasets.sources import catalogue_entry
from rbdata.storage.durable import open_plain, read_plain


def test_reads_whole_files_up_to_a_size(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    assert read_plain(tmp_path / "file", 5) == read_plain(tmp_path / "link", 5) == b"12345"
    with pytest.raises(OSError, match="it has 5 bytes, more than 4") as caught:
        read_plain(tmp_path / "file", 4)
    assert caught.value.errno == errno.EFBIG
    with pytest.raises(OSError, match="link"):
        open_plain(tmp_path / "link", "rb")
    with pytest.raises(FileNotFoundError):
        read_plain(tmp_path / "none", 5)


@pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="Linux")  # noqa: PTH110
def test_a_file_is_as_long_as_it_says():
    assert read_plain(Path("/proc/self/environ"), 1 << 20) == b""


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_waits_for_nothing_that_is_no_file(tmp_path: Path, kind: str) -> None:
    path = catalogue_entry._cache_path("minari", "hf://x", tmp_path)
    path.parent.mkdir()
    {"pipe": os.mkfifo, "folder": Path.mkdir, "device": lambda path: path.symlink_to("/dev/zero")}[kind](path)
    with pytest.raises(OSError, match="not a file"):
        read_plain(path, 5)
    assert catalogue_entry.read_listing("minari", "hf://x", tmp_path) is None
