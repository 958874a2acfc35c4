"""What reads a file crashes, hangs, or takes all memory: an error that names the file, in a process that goes on."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import sandbox_readers
from rbdata.datasets.workers import sandbox
from rbdata.datasets.workers.local_engine import WorkerFaultError, run_tasks
from rbdata.datasets.workers.sandbox import RawFiles, Sandbox, limited
from rbdata.errors import CorruptSourceError, UsageError, WorkerLostError
from sandbox_readers import (
    ReadingTask,
    abort,
    add,
    answer_at_length,
    be_killed,
    be_wrong,
    crash,
    hang,
    leave,
    raise_what_cannot_be_sent,
    refuse,
    sleep,
    swallow,
)

FILES = RawFiles("https://a.example/x.hdf5", 1000)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")


@pytest.fixture(params=["fork", "fork server"])
def start(request, monkeypatch):
    """Either way in which the child is started."""
    monkeypatch.setattr(sandbox, "_may_fork", lambda: request.param == "fork")


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(sandbox, "_PATIENCE", 0.5)


def test_calls_answer_and_report(start):
    seen = []
    with Sandbox(5, FILES) as box:
        assert box.call(add, 2, on_progress=lambda *numbers: seen.append(numbers)) == 7
        assert box.call(add, 3) == 8
    assert seen == [(2, 10)]


def test_a_process_that_has_loaded_pyarrow_reads_small_files(tmp_path):
    """What Arrow reserves at its first allocation is not counted as memory of the file."""
    program = f"""
import pyarrow, pyarrow.parquet as parquet
from pathlib import Path
from rbdata.datasets.workers import sandbox
from rbdata.datasets.workers.sandbox import RawFiles, Sandbox
from sandbox_readers import read_parquet
sandbox._may_fork = lambda: True
path = Path({str(tmp_path / "x.parquet")!r})
with Sandbox(path, RawFiles("x.parquet", 1000)) as box:
    print(box.call(read_parquet))
"""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"a": list(range(25))}), tmp_path / "x.parquet")
    support = str(Path(sandbox_readers.__file__).parent)
    paths = os.pathsep.join([support, *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "25", done.stderr


@pytest.mark.parametrize(("reader", "how"), [(crash, "SIGSEGV"), (abort, "SIGABRT"), (leave, "exit status 3")])
def test_a_reader_that_crashes(start, reader, how):
    with Sandbox(None, FILES) as box, pytest.raises(CorruptSourceError, match=how) as caught:
        box.call(reader)
    assert FILES.name in caught.value.message


@pytest.mark.parametrize("reader", [hang, sleep])
def test_a_reader_that_hangs(hasty, reader):
    began = time.monotonic()
    with Sandbox(None, FILES) as box, pytest.raises(CorruptSourceError, match="no progress") as caught:
        box.call(reader)
    assert FILES.name in caught.value.message and time.monotonic() - began < 30


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_DATA"), reason="no limit of memory")
def test_a_reader_that_takes_all_memory(start):
    with Sandbox(1, FILES) as box:
        with pytest.raises(CorruptSourceError, match="memory") as caught:
            box.call(swallow)
        assert box.call(add, 1) == 2  # the limit was enough
    assert FILES.name in caught.value.message


def test_an_answer_that_would_take_the_memory_of_the_caller(start):
    with Sandbox(None, FILES) as box, pytest.raises(CorruptSourceError, match="memory"):
        box.call(answer_at_length)


def test_who_kills_it_does_not_accuse_the_file(start):
    with Sandbox(None, FILES) as box, pytest.raises(WorkerLostError, match="killed"):
        box.call(be_killed)


def test_errors_come_as_they_are(start):
    with Sandbox(None, FILES) as box:
        with pytest.raises(UsageError) as caught:
            box.call(refuse)
        assert (caught.value.message, caught.value.hint) == ("no", "yes")
        with pytest.raises(ZeroDivisionError, match="a fault of ours") as wrong:
            box.call(be_wrong)
        assert "in be_wrong" in str(wrong.value.__cause__)
        with pytest.raises(RuntimeError, match="Local: no"):
            box.call(raise_what_cannot_be_sent)


def test_the_child_ends_with_the_block(hasty):
    with pytest.raises(KeyboardInterrupt), Sandbox(None, FILES) as box:
        box.call(add, 1) if False else box._start()
        process = box._process
        raise KeyboardInterrupt
    assert not process.is_alive()


def test_limits_end_with_the_block():
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with limited(FILES), limited(FILES):
        pass
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_another_thread_that_may_hold_a_lock_forbids_forking(monkeypatch):
    monkeypatch.undo()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="rbdata-lock")
    thread.start()
    other = threading.Thread(target=stop.wait)
    try:
        before = {one.name for one in threading.enumerate()} - {"MainThread"} <= sandbox._HARMLESS
        assert sandbox._may_fork() is before
        other.start()
        assert not sandbox._may_fork()
    finally:
        stop.set()
        thread.join()
        other.join()


@pytest.mark.parametrize("how", [crash, hang])
def test_worker_processes_that_crash_or_hang(how):
    with pytest.raises(WorkerFaultError):
        list(run_tasks([ReadingTask(0, FILES, how), ReadingTask(1, FILES, how)], 2, lambda _: None, patience=2.0))


def test_worker_processes_that_take_all_memory():
    with pytest.raises(CorruptSourceError, match="memory"):
        list(run_tasks([ReadingTask(0, FILES, swallow), ReadingTask(1, FILES, swallow)], 2, lambda _: None))
