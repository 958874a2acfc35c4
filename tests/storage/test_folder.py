"""Where datasets lie: places, ids, the writer's lock, the renames of a commit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import pytest
from rbdata.errors import DatasetBusyError, DatasetExistsError, DiskSpaceError, RootNotWritableError, UsageError
from rbdata.storage import folder as folders
from rbdata.storage import lock as locks
from rbdata.storage.dataset import Dataset
from rbdata.storage.folder import (
    DatasetPlace,
    check_id,
    check_space,
    find_datasets,
    free_bytes,
    make_writable,
    remove_tree,
)
from rbdata.storage.lock import WriterLock
from rbdata.storage.manifest import FILENAME
from storage_tools import Recipe, Stopped, contents, make_episodes, names, write_dataset


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


# -- the lock -------------------------------------------------------------------------------------------------------


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


def test_used_again(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "TOUCH_EVERY", 0.01)
    lock = WriterLock(tmp_path / "lock", "x")
    for _ in range(2):
        with lock:
            os.utime(lock.path, (0, 0))
            time.sleep(0.1)
            assert time.time() - lock.path.stat().st_mtime < 10  # the heartbeat runs the second time, too
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
    with pytest.raises(DatasetBusyError):
        WriterLock(path, "x").__enter__()
    os.utime(path, (0, 0))
    with WriterLock(path, "x"):
        pass


def test_killed_while_taking_a_stale_lock_away(tmp_path):
    path = tmp_path / "lock"
    dead_owner(path)
    breaking = tmp_path / "lock.breaking"
    breaking.touch()
    os.utime(breaking, (0, 0))
    with WriterLock(path, "x"):
        pass
    assert names(tmp_path) == []


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


def test_paths_of_a_place(tmp_path):
    place = DatasetPlace(tmp_path, "atari/Pong/5")
    assert place.path == tmp_path / "atari" / "Pong" / "5"
    assert {place.working.name, place.old.name, place.lock().path.name} == {".5.writing", ".5.old", ".5.lock"}
    assert {place.working.parent, place.old.parent, place.lock().path.parent} == {place.path.parent}


# -- the renames of a commit ----------------------------------------------------------------------------------------

OLD, NEW = make_episodes([3, 4]), make_episodes([5, 6, 7], seed=1)


def steps_at(place: DatasetPlace) -> int | None:
    return len(Dataset(place.path)) if place.exists() else None


class Killed(BaseException):
    pass


@pytest.mark.parametrize("layout", ["flat", "zstd"])
@pytest.mark.parametrize("replacing", [False, True])
def test_killed_at_every_point_of_a_commit(tmp_path, monkeypatch, layout, replacing):
    """Kill before each file-system call of commit; then the old dataset is there, or the new one, and a rerun ends well."""
    truth = contents(write_dataset(tmp_path / "truth", NEW, layout, parts=2))
    calls = {(folders.os, "fsync"), (Path, "rename"), (Path, "replace"), (Path, "unlink"), (folders.shutil, "rmtree")}
    at = outcomes = 0
    while True:
        root = tmp_path / str(at)
        place = DatasetPlace(root, "my/test")
        if replacing:
            write_dataset(root, OLD)
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
    with pytest.raises(DatasetExistsError, match="in the way"):
        write_dataset(tmp_path, NEW)


def test_no_dataset_inside_another_nor_over_other_files(tmp_path):
    write_dataset(tmp_path, OLD, id="my/test")
    with pytest.raises(DatasetExistsError, match="inside another dataset"):
        write_dataset(tmp_path, NEW, id="my/test/deeper")
    write_dataset(tmp_path, OLD, id="your/a/b")
    with pytest.raises(DatasetExistsError, match="in the way"):
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


def test_remove_tree(tmp_path):
    remove_tree(tmp_path / "nothing")
    precious = outside(tmp_path)
    link = tmp_path / "link"
    link.symlink_to(precious)
    remove_tree(link)
    assert (precious / "deep" / "file").exists() and not os.path.lexists(link)


def test_prune_parents_stops_at_the_root_and_at_neighbours(tmp_path):
    root = tmp_path / "root"
    place = DatasetPlace(root, "a/b/c/d")
    place.path.parent.mkdir(parents=True)
    (root / "a" / "file").touch()
    place.prune_parents()
    assert names(root / "a") == ["file"]
    (root / "a" / "file").unlink()
    place.prune_parents()
    assert names(tmp_path) == ["root"] and names(root) in ([], ["a"])


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
    with pytest.raises(DiskSpaceError, match=r"my/test needs about 9\.90 GB .* 10\.00 GB are free") as caught:
        check_space(deep, 9_900_000_000, "my/test")
    assert "--root" in (caught.value.hint or "")
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda _: usage(0, 0, 60 << 20))
    with pytest.raises(DiskSpaceError):
        check_space(deep, 1, "my/test")


def test_make_writable(tmp_path):
    root = tmp_path / "a" / "b"
    make_writable(root)
    assert names(root) == []
    file = tmp_path / "file"
    file.touch()
    for bad in (file, file / "below"):
        with pytest.raises(RootNotWritableError) as caught:
            make_writable(bad)
        assert "--root" in (caught.value.hint or "")
    with pytest.raises(RootNotWritableError):
        make_writable(Path("/proc/rbdata"))


def test_a_lock_that_was_lost_is_noticed(tmp_path):
    """An owner that stood still long enough to be taken for dead must not commit beside the new one."""
    from rbdata.storage.lock import WriterLock

    with WriterLock(tmp_path / ".x.lock", "my/x") as lock:
        lock.check()
        (tmp_path / ".x.lock").unlink()
        with WriterLock(tmp_path / ".x.lock", "my/x"), pytest.raises(DatasetBusyError, match="took over"):
            lock.check()
