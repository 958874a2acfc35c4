"""The writer's lock: one owner at a time, whoever was killed or stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import wait_until
from rbdata.errors import DatasetBusyError
from rbdata.storage.lock import WriterLock
from storage_tools import names

HOLD = """
import sys
from pathlib import Path
from rbdata.storage.lock import WriterLock
with WriterLock(Path(sys.argv[1]), "my/test"):
    print("held", flush=True)
    sys.stdin.readline()
print("released", flush=True)
"""


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", HOLD, *map(str, arguments)], stdin=-1, stdout=-1, text=True)


def test_exclusive_in_one_process(tmp_path):
    path = tmp_path / "a" / ".b.lock"
    with WriterLock(path, "my/b") as lock:
        with pytest.raises(DatasetBusyError, match=f"my/b is being written by process {os.getpid()} on ") as caught:
            WriterLock(path, "my/b").__enter__()
        assert caught.value.hint and caught.value.is_held is None  # this thread would wait for itself
        assert lock.is_held()
    assert names(path.parent) == [] and not lock.is_held()


def test_the_folder_goes_while_it_is_locked(tmp_path, monkeypatch):
    """Another process deletes the last dataset of the folder between the making of folder and lock."""
    path, real, removed = tmp_path / "a" / "b" / ".x.lock", Path.mkdir, []

    def mkdir(self, *args, **options):
        real(self, *args, **options)
        if not removed:
            removed.append(self.rmdir())

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with WriterLock(path, "x"):
        assert path.is_file() and removed
    path.parent.rmdir()
    path.parent.touch()
    with pytest.raises(FileExistsError):
        WriterLock(path, "x").__enter__()


def test_used_again_and_released_when_the_body_fails(tmp_path):
    lock = WriterLock(tmp_path / "lock", "x")
    with lock:
        assert lock.path.exists()
    with pytest.raises(ZeroDivisionError), lock:
        raise ZeroDivisionError
    assert names(tmp_path) == []


def test_exclusive_between_processes_and_free_after_a_kill(tmp_path):
    path = tmp_path / "lock"
    with start(path) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == "held\n"
        with pytest.raises(DatasetBusyError, match=f"process {owner.pid} ") as caught:
            WriterLock(path, "my/test").__enter__()
        owner.send_signal(signal.SIGSTOP)  # stopped for long, but alive: its lock holds
        with pytest.raises(DatasetBusyError):
            WriterLock(path, "my/test").check_free()
        assert caught.value.is_held is not None and caught.value.is_held()
        owner.kill()
        wait_until(lambda: not caught.value.is_held())
        with WriterLock(path, "my/test"):
            assert path.read_text().startswith(f"process {os.getpid()} ")
    assert names(tmp_path) == []


RACE = """
import sys, time
from pathlib import Path
from rbdata.errors import DatasetBusyError
from rbdata.storage.lock import WriterLock
path, done = Path(sys.argv[1]), 0
while done < 20:
    try:
        with WriterLock(path, "x"):
            (path.parent / "inside").touch(exist_ok=False)  # fails where two are inside
            time.sleep(0.001)
            (path.parent / "inside").unlink()
        done += 1
    except DatasetBusyError:
        time.sleep(0.0005)
"""


def test_race(tmp_path):
    """Locks are taken, released and removed by several processes at once; one of them is inside at a time."""
    racers = [subprocess.Popen([sys.executable, "-c", RACE, tmp_path / "lock"]) for _ in range(4)]
    assert [racer.wait() for racer in racers] == [0] * 4
    assert names(tmp_path) == []
