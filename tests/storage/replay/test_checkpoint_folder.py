"""Folders of checkpoints: interrupted writes, damage, and what is refused."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

import pytest
from checkpoint_tools import filled, make
from rbdata.errors import DatasetExistsError, DatasetNotFoundError, DiskError, RbdataError
from replay_tools import equal, rollout
from storage_tools import contents


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    """What is written through maps of files would end the process: their space is asked for before."""
    buffer = filled()
    buffer.dumps(tmp_path / "checkpoint")
    before = contents(tmp_path / "checkpoint")

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.raises(DiskError, match=r"the checkpoint .* was not written"):
        buffer.dumps(tmp_path / "checkpoint")
    assert contents(tmp_path / "checkpoint") == before and len(list(tmp_path.iterdir())) == 1


def test_killed_between_both_renames(tmp_path):
    """The checkpoint before has made room for the new one, which has not taken its place."""
    filled().dumps(tmp_path / "checkpoint")
    wanted = make()
    wanted.loads(tmp_path / "checkpoint")
    child = os.fork()
    if not child:
        rename = Path.rename
        Path.rename = lambda path, target: (rename(path, target), os._exit(0))  # type: ignore[method-assign, assignment]
        with suppress(BaseException):
            make().dumps(tmp_path / "checkpoint")
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0 and not (tmp_path / "checkpoint").exists()
    other = make()
    other.loads(tmp_path / "checkpoint")
    assert equal(other[:], wanted[:])


def test_not_a_checkpoint(tmp_path):
    with pytest.raises(DatasetNotFoundError):
        make().loads(tmp_path / "nothing")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with pytest.raises(DatasetNotFoundError):
        make().loads(tmp_path / "full")
    with pytest.raises(DatasetExistsError, match="not a checkpoint"):
        filled().dumps(tmp_path / "full")
    assert (tmp_path / "full" / "file").read_text() == "mine"


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_damaged(tmp_path, damage):
    """Whichever file it is: an error that is typed, and the buffer is as it was."""
    filled().dumps(tmp_path / "checkpoint")
    victims = [path for path in sorted((tmp_path / "checkpoint").rglob("*")) if path.is_file() and path.stat().st_size]
    assert len(victims) > 3
    for victim in victims:
        data = victim.read_bytes()
        if damage == "missing":
            victim.unlink()
        else:
            victim.write_bytes(data[:-3])
        other = make()
        other.extend(rollout([3]))
        before = other[:].clone()
        if victim.name == "rbdata_checkpoint.json" and damage == "missing":
            with suppress(RbdataError):
                other.loads(tmp_path / "checkpoint")
        else:
            with pytest.raises(RbdataError):
                other.loads(tmp_path / "checkpoint")
            assert equal(other[:], before), victim
        other.sample()
        victim.write_bytes(data)
