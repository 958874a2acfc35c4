"""The writer's lock: one owner at a time, whoever was killed, stopped or on another machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import wait_until
from rbdata.errors import DatasetBusyError
from rbdata.storage import lock as locks
from rbdata.storage.lock import WriterLock
from storage_tools import names


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from pathlib import Path\nimport sys, time\n" + code, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


HOLD = """
from rbdata.storage.lock import WriterLock
with WriterLock(Path(sys.argv[1]), "my/test"):
    print("held", flush=True)
    sys.stdin.readline()
print("released", flush=True)
"""


def dead_owner(path: Path, **changes: object) -> None:
    """A lock left by a process of this machine that is gone."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    with WriterLock(path, "x"):
        record = json.loads(path.read_bytes())
    path.write_text(json.dumps({**record, "pid": gone.pid, "started": "1", "token": "dead", **changes}))


def test_exclusive_in_one_process(tmp_path):
    path = tmp_path / "a" / ".b.lock"
    with WriterLock(path, "my/b"):
        with pytest.raises(DatasetBusyError, match=f"my/b is being written by process {os.getpid()} on ") as caught:
            WriterLock(path, "my/b").__enter__()
        assert str(path) in (caught.value.hint or "")
    assert names(path.parent) == []


def test_the_folder_goes_while_it_is_locked(tmp_path, monkeypatch):
    """Another process deletes the last dataset of the folder between the making of folder and lock."""
    path, real, removed = tmp_path / "a" / "b" / ".x.lock", Path.write_bytes, []

    def write_bytes(self, data):
        if not removed:
            removed.append(self.parent.rmdir())
        return real(self, data)

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    with WriterLock(path, "x"):
        assert path.is_file() and removed
    path.parent.rmdir()
    path.parent.touch()
    with pytest.raises(FileExistsError):
        WriterLock(path, "x").__enter__()


def test_an_owner_killed_before_it_wrote_its_lock_leaves_nothing(tmp_path):
    path, gone = tmp_path / ".x.lock", subprocess.Popen(["true"])
    gone.wait()
    with WriterLock(path, "x") as lock:
        mine = path.with_name(f"{path.name}.{lock._token}")
        its = path.with_name(f"{path.name}.{lock._token[:8]}{gone.pid:08x}{0:016x}")
        mine.touch()
        its.touch()
        assert lock.is_stale(its) and not lock.is_stale(mine)
    with WriterLock(path, "x"):
        assert not its.exists() and mine.exists()


def test_used_again(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "TOUCH_EVERY", 0.01)
    lock = WriterLock(tmp_path / "lock", "x")
    for _ in range(2):
        with lock:
            os.utime(lock.path, (0, 0))
            wait_until(lambda: lock.path.stat().st_mtime > 0)  # the heartbeat runs the second time, too
        assert not lock.path.exists()


def test_released_when_the_body_fails(tmp_path):
    with pytest.raises(ZeroDivisionError), WriterLock(tmp_path / "lock", "x"):
        raise ZeroDivisionError
    assert names(tmp_path) == []


def test_exclusive_between_processes_and_stale_after_kill(tmp_path):
    path = tmp_path / "lock"
    with start(HOLD, path) as owner:
        assert owner.stdout.readline() == "held\n"
        with pytest.raises(DatasetBusyError, match=f"process {owner.pid} "):
            WriterLock(path, "my/test").__enter__()
        owner.send_signal(signal.SIGSTOP)  # stopped for long, but alive: its lock holds
        os.utime(path, (0, 0))
        with pytest.raises(DatasetBusyError):
            WriterLock(path, "my/test").__enter__()
        owner.kill()
        while Path(f"/proc/{owner.pid}").exists() and f"{locks._started(owner.pid)}":
            time.sleep(0.01)
        # Not waited for yet: a zombie still has its process number.
        with WriterLock(path, "my/test"):
            assert json.loads(path.read_bytes())["pid"] == os.getpid()
    assert names(tmp_path) == []


def test_process_number_used_again(tmp_path):
    """The owner is gone, and its number now belongs to another process: this one."""
    path = tmp_path / "lock"
    dead_owner(path, pid=os.getpid())
    with WriterLock(path, "x"):
        pass


def test_process_number_that_no_process_can_have(tmp_path):
    path = tmp_path / "lock"
    dead_owner(path, pid=1 << 70)
    with WriterLock(path, "x"):
        pass


@pytest.mark.parametrize("change", [{"host": "elsewhere"}, {"space": "pid:[1]"}, {"pid": None}, {"pid": "x"}])
def test_owner_that_cannot_be_asked(tmp_path, change):
    """On another machine, or in another container, only age tells."""
    path = tmp_path / "lock"
    dead_owner(path, **change)
    with pytest.raises(DatasetBusyError):
        WriterLock(path, "x").__enter__()
    old = time.time() - locks.STALE_AFTER - 1
    os.utime(path, (old, old))
    with WriterLock(path, "x"):
        pass
    assert names(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff"])
def test_unreadable_lock(tmp_path, content):
    path = tmp_path / "lock"
    path.write_bytes(content)
    os.utime(path, (time.time() - 60,) * 2)
    with pytest.raises(DatasetBusyError, match=r"x is locked by .*lock, which does not say") as caught:
        WriterLock(path, "x").__enter__()
    assert re.search(r"again in 1(20|19) s.* or remove it now", str(caught.value.hint))
    os.utime(path, (0, 0))
    with WriterLock(path, "x"):
        pass


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, *(lambda path, to=to: path.symlink_to(to) for to in ("no", "/dev/zero"))]
)
@pytest.mark.parametrize("name", ["lock", "lock.breaking"])
def test_what_is_no_file_is_no_lock(tmp_path, make, name):
    path = tmp_path / "lock"
    if name != "lock":
        dead_owner(path)
    make(tmp_path / name)
    with WriterLock(path, "x"):
        assert json.loads(path.read_bytes())["pid"] == os.getpid()
    assert names(tmp_path) == []


def test_a_lock_that_cannot_be_taken_away(tmp_path):
    path = tmp_path / "lock"
    (path / "full").mkdir(parents=True)
    with pytest.raises(DatasetBusyError, match="is a folder where a lock should be"):
        WriterLock(path, "x").__enter__()
    assert names(tmp_path) == ["lock"]


def test_odd_owners_are_named_without_escape_sequences(tmp_path):
    path = tmp_path / "lock"
    for odd in ({"since": "x"}, {"since": 1e300}, {"since": None}, {"host": "\x1b[2J\n" + "h" * 1000}, {"pid": [[]]}):
        odd = {"pid": 1, **odd}
        path.write_text(json.dumps(odd))
        with pytest.raises(DatasetBusyError, match="being written by") as caught:
            WriterLock(path, "x").__enter__()
        assert caught.value.message.isprintable() and len(caught.value.message) < 300


def test_a_full_disk_leaves_nothing_beside_the_lock(tmp_path, monkeypatch):
    def full(path, data):
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        WriterLock(tmp_path / "lock", "x").__enter__()
    assert names(tmp_path) == []


def test_killed_while_taking_a_stale_lock_away(tmp_path):
    path = tmp_path / "lock"
    dead_owner(path)
    breaking = tmp_path / "lock.breaking"
    breaking.touch()
    os.utime(breaking, (0, 0))
    with WriterLock(path, "x"):
        pass
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("module", "step"), [(json, "dumps"), (Path, "write_bytes"), (os, "link"), (locks, "_read"), (locks, "_remove")]
)
def test_killed_at_any_step_of_taking_a_stale_lock_away(tmp_path, module, step):
    lock = WriterLock(tmp_path / ".b.lock", "x")
    dead_owner(lock.path)
    child = os.fork()
    if child == 0:
        lock._token = f"{locks.machine()}{os.getpid():08x}{'0' * 16}"
        owner = json.loads(lock.path.read_bytes())
        setattr(module, step, lambda *_, **__: os._exit(7))
        lock._break(owner)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert all(map(lock.is_stale, tmp_path.iterdir()))
    with lock:
        pass
    assert names(tmp_path) == []


def test_interrupted_twice_while_taking_a_stale_lock_away(tmp_path):
    lock = WriterLock(tmp_path / ".b.lock", "x")
    dead_owner(lock.path)

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    child = os.fork()
    if child == 0:
        locks._remove = Path.unlink = interrupt
        try:
            lock._break(json.loads(lock.path.read_bytes()))
        finally:
            os._exit(0)
    left = tmp_path / ".b.lock.breaking"
    os.waitpid(child, 0)
    assert left.exists() and lock.is_stale(left)


def test_without_hard_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError("no hard links here")

    monkeypatch.setattr(locks.os, "link", refuse)
    path = tmp_path / "lock"
    dead_owner(path)
    with WriterLock(path, "x"):
        with pytest.raises(DatasetBusyError):
            WriterLock(path, "x").__enter__()
        assert json.loads(path.read_bytes())["pid"] == os.getpid()
    assert names(tmp_path) == []


def test_what_killed_processes_left_beside_a_lock_is_swept_away(tmp_path):
    path = tmp_path / ".b.lock"
    old = time.time() - locks.STALE_AFTER - 1
    left = [tmp_path / f".b.lock.{'0' * 32}", tmp_path / ".b.lock.breaking"]
    kept = [tmp_path / f".b.lock.{'1' * 32}", tmp_path / ".b.lock.x.lock", tmp_path / f".bb.lock.{'0' * 32}"]
    for file in (*left, *kept):
        file.write_text("{}")
        os.utime(file, (old, old))
    kept[0].touch()  # somebody waits for the lock right now
    with WriterLock(path, "x"):
        assert not any(file.exists() for file in left)
    assert sorted(tmp_path.iterdir()) == sorted(kept)


def test_a_lock_that_was_taken_over_is_not_removed(tmp_path):
    path = tmp_path / "lock"
    lock = WriterLock(path, "x")
    with lock:
        path.write_text(json.dumps({"token": "another's"}))
    assert json.loads(path.read_bytes()) == {"token": "another's"}


RACE = """
from rbdata.errors import DatasetBusyError
from rbdata.storage.lock import WriterLock
for line in sys.stdin:
    path = Path(line.strip())
    go = path.with_name("go")
    while not go.exists():
        pass
    try:
        with WriterLock(path, "x"):
            print("won", flush=True)
            sys.stdin.readline()
    except DatasetBusyError:
        print("busy", flush=True)
        sys.stdin.readline()
    print("over", flush=True)
"""


@pytest.mark.parametrize("stale", [True, False])
def test_race(tmp_path, stale):
    """Several processes at once, with a stale lock in place or none: exactly one wins, every time."""
    racers = [start(RACE) for _ in range(4)]
    try:
        for number in range(25):
            path = tmp_path / str(number) / "lock"
            path.parent.mkdir()
            if stale:
                dead_owner(path)
            for racer in racers:
                print(path, file=racer.stdin, flush=True)
            (path.parent / "go").touch()
            results = [racer.stdout.readline() for racer in racers]
            assert sorted(results) == ["busy\n"] * 3 + ["won\n"], number
            for racer in racers:
                print(file=racer.stdin, flush=True)
            assert [racer.stdout.readline() for racer in racers] == ["over\n"] * 4
            assert names(path.parent) == ["go"]
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()


def test_slow_taker_does_not_take_a_fresh_lock(tmp_path, monkeypatch):
    """One process has seen the stale lock, and pauses; meanwhile another takes it over; the first must not win, too."""
    path = tmp_path / "lock"
    dead_owner(path)
    first, second = WriterLock(path, "x"), WriterLock(path, "x")
    real, paused = locks._is_stale, []

    def pause(*arguments):
        answer = real(*arguments)
        if not paused:
            paused.append(True)
            second.__enter__()
        return answer

    monkeypatch.setattr(locks, "_is_stale", pause)
    with pytest.raises(DatasetBusyError):
        first.__enter__()
    assert json.loads(path.read_bytes())["token"] == second._token
    second.__exit__()


def test_a_lock_that_was_lost_is_noticed(tmp_path):
    """An owner that stood still long enough to be taken for dead must not commit beside the new one."""
    with WriterLock(tmp_path / ".x.lock", "my/x") as lock:
        lock.check()
        (tmp_path / ".x.lock").unlink()
        with WriterLock(tmp_path / ".x.lock", "my/x"), pytest.raises(DatasetBusyError, match="took over"):
            lock.check()
