"""Temporary folders: gone with their process, however it ends."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rbdata.storage import scratch
from rbdata.storage.scratch import ScratchFolder

CODE = """
import sys, time
from pathlib import Path
from rbdata.storage.scratch import ScratchFolder
folder = ScratchFolder(Path(sys.argv[1]))
(folder.path / "rows").write_bytes(bytes(1000))
print(folder.path, flush=True)
time.sleep(100)
"""


@pytest.fixture
def other(tmp_path):
    """Another process with a folder."""
    process = subprocess.Popen([sys.executable, "-c", CODE, tmp_path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process, Path(process.stdout.readline().strip())
    process.kill()
    process.communicate()


def test_it_goes_with_the_block(tmp_path):
    with ScratchFolder(tmp_path) as folder:
        (folder / "a").mkdir()
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not list(tmp_path.iterdir())


def test_of_a_process_that_runs_it_stays(other, tmp_path):
    _, folder = other
    ScratchFolder(tmp_path).remove()
    assert (folder / "rows").exists()


def test_of_a_killed_process_the_next_one_removes_it(other, tmp_path):
    process, folder = other
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert folder.exists()
    with ScratchFolder(tmp_path) as mine:
        assert list(tmp_path.iterdir()) == [mine]


def test_a_fork_removes_nothing(tmp_path):
    folder = ScratchFolder(tmp_path)
    child = os.fork()
    if not child:
        folder.remove()
        os._exit(0)
    os.waitpid(child, 0)
    assert folder.path.exists()
    folder.remove()
    folder.remove()
    assert not list(tmp_path.iterdir())


def test_other_names_links_and_files_are_left_alone(tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    name = f"rbdata-{scratch.machine()}-"
    (tmp_path / f"{name}link").symlink_to(precious)
    (tmp_path / f"{name}file").touch()
    (tmp_path / "rbdata-of-others").mkdir()
    ScratchFolder(tmp_path).remove()
    assert len(list(tmp_path.iterdir())) == 4


def test_where_folders_cannot_be_locked_the_number_of_the_process_tells(other, tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(95, "not supported")

    process, running = other
    left = tmp_path / f"rbdata-{scratch.machine()}-{1 << 30}-left"
    unnamed = tmp_path / f"rbdata-{scratch.machine()}-left"
    left.mkdir()
    unnamed.mkdir()
    monkeypatch.setattr(fcntl, "flock", refuse)
    with ScratchFolder(tmp_path) as folder:
        assert sorted(tmp_path.iterdir()) == sorted([folder, running, unnamed])
    process.kill()
    process.wait()
    with ScratchFolder(tmp_path) as folder:
        assert sorted(tmp_path.iterdir()) == sorted([folder, unnamed])
    monkeypatch.undo()
    ScratchFolder(tmp_path).remove()
    assert not list(tmp_path.iterdir())


def test_one_that_is_swept_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    """Another process looks between the making of the folder and its lock."""
    made: list[Path] = []
    make, lock = scratch.tempfile.mkdtemp, fcntl.flock

    def make_and_sweep(**options: Any) -> str:
        made.append(Path(make(**options)))
        if len(made) == 1:
            made[0].rmdir()
        return str(made[-1])

    def lock_when_swept(descriptor: int, how: int) -> None:
        if len(made) == 2:
            made[1].rmdir()
        lock(descriptor, how)

    monkeypatch.setattr(scratch.tempfile, "mkdtemp", make_and_sweep)
    monkeypatch.setattr(fcntl, "flock", lock_when_swept)
    with ScratchFolder(tmp_path) as folder:
        assert folder.is_dir()
        assert folder == made[2]
    assert not list(tmp_path.iterdir())


def test_many_processes_at_once(tmp_path):
    """Each keeps its own, whatever the others remove."""
    code = """
import sys
from pathlib import Path
from rbdata.storage.scratch import ScratchFolder
for _ in range(200):
    with ScratchFolder(Path(sys.argv[1])) as folder:
        (folder / "a").touch()
        assert (folder / "a").exists()
"""
    processes = [subprocess.Popen([sys.executable, "-c", code, tmp_path]) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    assert not list(tmp_path.iterdir())
