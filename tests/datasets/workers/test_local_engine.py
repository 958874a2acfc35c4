"""Worker processes: forked from one that has loaded what they need, and gone when they are not wanted any more."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from contextlib import closing
from multiprocessing import forkserver
from multiprocessing.popen_forkserver import Popen
from tempfile import TemporaryDirectory

import pytest
from paths import SUPPORT
from preprocess_tools import make_input
from processes import is_gone, start_interruptible, wait_until
from rbdata.datasets.workers import open_local
from rbdata.datasets.workers.local_engine import LocalEngine
from rbdata.datasets.workers.task import call
from rbdata.errors import CorruptSourceError, UsageError, WorkerLostError
from worker_tasks import (
    TASKS,
    Reading,
    WaitingUntil,
    abort,
    about,
    be_killed,
    be_wrong,
    crash,
    crash_at_30,
    in_worker,
    leave,
    refuse,
    swallow,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")


def records(workers):
    return [record for _, record in workers.run(about, TASKS, lambda progress: None)]


def test_forked_from_one_that_has_loaded_the_modules():
    with closing(LocalEngine(2, modules=["h5py"])) as workers:
        found = records(workers)
        again = {record["pid"] for record in records(workers)}
    pids = {record["pid"] for record in found}
    assert len(pids | again) <= 2
    assert len({record["parent"] for record in found}) == 1
    assert found[0]["parent"] != os.getpid()
    assert all("h5py" in record["loaded"] for record in found)
    assert all(record["interrupt"] and not record["blocked"] for record in found)
    assert all(is_gone(pid) for pid in pids)


def test_a_forked_program_has_a_server_of_its_own(monkeypatch):
    """`SourceTests` forks processes that are killed; so do servers of the web."""
    monkeypatch.delattr(forkserver._forkserver, "ensure_running")  # which the suite replaces
    monkeypatch.setattr(forkserver, "ensure_running", forkserver._forkserver.ensure_running)
    with closing(LocalEngine(1)) as workers:
        records(workers)
    pid = os.fork()
    if not pid:
        multiprocessing.set_forkserver_preload = forkserver.set_forkserver_preload  # the suite's adds torch
        with closing(LocalEngine(1)) as workers:
            os._exit(0 if len(records(workers)) == len(TASKS) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with closing(LocalEngine(1)) as workers:
        assert len(records(workers)) == len(TASKS)


def test_the_parent_hears_why_they_wait(tmp_path):
    def report(tasks):
        if any(task.wait == "HTTP 503: retry 1 of 4" for task in tasks):
            (tmp_path / "heard").touch()

    with closing(LocalEngine(2)) as workers:
        list(workers.run(WaitingUntil(tmp_path / "heard"), TASKS[:2], report))


def test_a_worker_that_is_killed_is_noticed():
    with closing(LocalEngine(2)) as workers:
        (record, *_) = records(workers)
        os.kill(record["pid"], signal.SIGKILL)
        with pytest.raises(WorkerLostError):
            for _ in range(50):
                records(workers)
        assert len(records(workers)) == len(TASKS)  # with new ones


@pytest.mark.parametrize(("how", "told"), [(crash, "SIGSEGV"), (abort, "SIGABRT"), (leave, "exit status 3")])
def test_a_reader_that_crashes(how, told):
    """The error names the file that the worker read, of those that are in work."""
    with closing(LocalEngine(2, memory=1 << 30)) as workers:
        with pytest.raises(CorruptSourceError, match=told) as caught:
            list(workers.run(Reading.__call__, [Reading(number, how) for number in range(6)], lambda progress: None))
        assert "https://a.example/3.hdf5 cannot be read" in caught.value.message
        assert len(records(workers)) == len(TASKS)


def test_a_function_that_crashes():
    with (
        closing(LocalEngine(2)) as workers,
        pytest.raises(WorkerLostError, match=r"steps 30\.\.39 crashed \(SIGSEGV\)"),
    ):
        list(workers.run(crash_at_30, TASKS, lambda progress: None))


def test_a_reader_that_takes_all_memory():
    with pytest.raises(CorruptSourceError, match=r"x\.hdf5 cannot be read: that takes more than 256 MiB"):
        in_worker(swallow, label="x.hdf5", memory=256 << 20)


def test_who_kills_it_does_not_accuse_the_file():
    with pytest.raises(WorkerLostError, match=r"worked on x\.hdf5 was killed \(SIGKILL\)"):
        in_worker(be_killed, label="x.hdf5")


def test_errors_come_as_they_are():
    with closing(LocalEngine(1)) as workers:
        with pytest.raises(UsageError) as caught:
            call(workers, "x.hdf5", refuse)
        assert (caught.value.message, caught.value.hint) == ("no", "yes")
        with pytest.raises(ZeroDivisionError, match="a fault of ours") as wrong:
            call(workers, "x.hdf5", be_wrong)
        assert "in be_wrong" in str(wrong.value.__cause__)


def test_no_process_is_this_one():
    with closing(open_local(0)) as workers:
        assert {record["pid"] for record in records(workers)} == {os.getpid()}
        assert list(workers.run(about, [], lambda progress: None)) == []


def test_fresh_interpreters_where_there_is_no_fork_server(tmp_path):
    """As on macOS and Windows."""
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.platform = 'darwin'; sys.path.insert(0, {str(SUPPORT)!r})\n"
        "from rbdata.datasets.workers.local_engine import LocalEngine; from worker_tasks import TASKS, about\n"
        "workers = LocalEngine(2); found = list(workers.run(about, TASKS, lambda progress: None)); workers.close()\n"
        "import os; print({record['parent'] for _, record in found} == {os.getpid()})\n"
    )
    assert subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True, check=True).stdout == "True\n"


def test_the_main_module_is_as_before(tmp_path):
    """In `python -c` and notebooks it has no ``__file__``; with one of None, Ray fails to connect."""
    code = (
        f"import sys; sys.path.insert(0, {str(SUPPORT)!r}); names = {{*vars(sys.modules['__main__'])}}\n"
        "from rbdata.datasets.workers.local_engine import LocalEngine; from worker_tasks import TASKS, about\n"
        "workers = LocalEngine(1); list(workers.run(about, TASKS, lambda progress: None)); workers.close()\n"
        "new = {*vars(sys.modules['__main__'])} - names; print(sorted(new), __spec__)"
    )
    ran = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert ran.stdout == "['LocalEngine', 'TASKS', 'about', 'names', 'workers'] None\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGALRM])
def test_an_interrupt_waits_until_a_worker_has_started(number, monkeypatch):
    """One that is asked for and not waited for is forked after the program's end, and prints a traceback."""
    launch, started = Popen._launch, []

    def interrupted(self, process):
        signal.raise_signal(number)
        launch(self, process)
        started.append(self.pid)

    def interrupt(number, frame):
        raise KeyboardInterrupt

    monkeypatch.setattr(Popen, "_launch", interrupted)
    before = signal.signal(number, interrupt)
    try:
        with closing(LocalEngine(2)) as workers, pytest.raises(KeyboardInterrupt):
            records(workers)
    finally:
        signal.signal(number, before)
    assert len(started) == 1
    assert is_gone(started[0])


SCRIPT = """
import os, sys
print("script", flush=True)
from rbdata.datasets.workers.local_engine import LocalEngine
sys.path.insert(0, {tests!r})
from worker_tasks import TASKS, WaitingUntil, about
workers = LocalEngine(2)
records = [record for _, record in workers.run(about, TASKS, lambda progress: None)]
print(*{{record["pid"] for record in records}}, records[0]["parent"], flush=True)
list(workers.run(WaitingUntil("never"), TASKS, lambda progress: None))
"""


def test_a_killed_parent_takes_its_workers_with_it(tmp_path):
    """And the script, which guards nothing, runs once."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(tests=str(SUPPORT)))
    with TemporaryDirectory() as temporary:  # what is killed leaves its socket, whose path is to be short
        process = subprocess.Popen(
            [sys.executable, script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": temporary},
            cwd=tmp_path,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "script\n"
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) > 1, process.communicate()
        wait_until((tmp_path / "never.waiting").exists)
        assert not any(is_gone(pid) for pid in pids)
        process.kill()
        assert process.communicate()[0] == ""
        wait_until(lambda: all(is_gone(pid) for pid in pids))


def test_who_hands_out_the_work_loads_no_torch_and_no_file_of_the_current_directory(tmp_path):
    """A random policy is in a random.py, and processes are started there."""
    make_input(tmp_path, "zstd")
    for name in ("random.py", "socket.py", "queue.py"):
        (tmp_path / name).write_text("raise RuntimeError('hidden')\n")
    code = (
        "import sys; sys.path.remove(''); import rbdata;"
        "rbdata.preprocess('my/input', 'rbdata:clip_rewards', dest='my/out', procs=2, batch_size=16);"
        "print([name for name in ('torch', 'tensordict') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "RBDATA_ROOT": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


LOADING = """
from rbdata.datasets.workers.local_engine import LocalEngine
workers = LocalEngine(2, ["slow_to_load"])
try:
    list(workers.run(print, [1], print))
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_while_they_load_is_quiet(tmp_path):
    """The terminal sends it to the server as well, which is in the middle of an import."""
    (tmp_path / "slow_to_load.py").write_text("import time; open('loading', 'x'); time.sleep(1)")
    process = start_interruptible(
        [sys.executable, "-c", LOADING],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_until((tmp_path / "loading").exists)
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate() == ("interrupted\n", "")
