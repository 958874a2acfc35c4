"""Worker processes: forked from one that has loaded what they need, and gone when they are not wanted any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from multiprocessing import forkserver
from typing import Any

import psutil
import pytest
from paths import SUPPORT
from preprocess_tools import make_input
from processes import RBDATA, is_gone, start_interruptible, wait_until
from rbdata.datasets.workers import local_engine
from rbdata.datasets.workers.local_engine import LocalEngine
from rbdata.datasets.workers.worker_process import fork_server_is_available
from rbdata.errors import WorkerLostError
from rbdata.storage.scratch import ScratchFolder
from worker_tasks import TASKS, about, wait_for_the_network

pytestmark = pytest.mark.skipif(not fork_server_is_available(), reason="processes are forked on Linux only")


def records(workers):
    return [record for _, record in workers.run(about, TASKS, lambda progress: None)]


def test_forked_from_one_that_has_loaded_the_modules():
    with closing(LocalEngine(2, modules=["h5py"])) as workers:
        workers.prepare()
        found = records(workers)
        again = {record["pid"] for record in records(workers)}
    pids = {record["pid"] for record in found}
    assert len(pids | again) <= 2
    assert len({record["parent"] for record in found}) == 1
    assert found[0]["parent"] != os.getpid()
    assert all("h5py" in record["loaded"] for record in found)
    assert all(record["interrupt"] and not record["blocked"] for record in found)
    assert all(is_gone(pid) for pid in (*pids, found[0]["parent"]))


def test_the_parent_hears_why_they_wait():
    heard: set[str] = set()
    with closing(LocalEngine(2)) as workers:
        list(workers.run(wait_for_the_network, TASKS[:2], lambda tasks: heard.update(task.wait for task in tasks)))
    assert "HTTP 503: retry 1 of 4" in heard


def test_the_servers_of_others_are_left_alone():
    theirs: Any = forkserver._forkserver
    before = theirs._forkserver_pid
    with closing(LocalEngine(2)) as one, closing(LocalEngine(2)) as other:
        parents = {record["parent"] for workers in (one, other) for record in records(workers)}
    assert len(parents) == 2
    assert theirs._forkserver_pid == before


def test_a_worker_that_is_killed_is_noticed():
    with closing(LocalEngine(2)) as workers:
        (record, *_) = records(workers)
        os.kill(record["pid"], signal.SIGKILL)
        with pytest.raises(WorkerLostError):
            for _ in range(50):
                records(workers)
        assert len(records(workers)) == len(TASKS)  # with new ones


def test_a_server_that_is_killed_is_replaced():
    with closing(LocalEngine(2)) as workers:
        workers.prepare()
        server = workers._server._forkserver_pid
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: is_gone(server))
        assert {record["parent"] for record in records(workers)} != {server}


def test_fresh_interpreters_where_there_is_no_fork_server(monkeypatch):
    monkeypatch.setattr(local_engine, "fork_server_is_available", lambda: False)
    with closing(LocalEngine(2, modules=["h5py"])) as workers:
        workers.prepare()
        found = records(workers)
    assert {record["parent"] for record in found} == {os.getpid()}
    assert all(record["interrupt"] for record in found)
    assert any("h5py" in record["loaded"] for record in found)  # one that started first may have been told twice
    wait_until(lambda: all(is_gone(record["pid"]) for record in found))


SCRIPT = """
import os, sys
print("script", flush=True)
from rbdata.datasets.workers.local_engine import LocalEngine
sys.path.insert(0, {tests!r})
from worker_tasks import TASKS, about, never_done
workers = LocalEngine(2)
records = [record for _, record in workers.run(about, TASKS, lambda progress: None)]
print(*{{record["pid"] for record in records}}, records[0]["parent"], flush=True)
if {at_work}:
    list(workers.run(never_done, TASKS, lambda progress: None))
input()
"""


@pytest.mark.parametrize("at_work", [False, True])
def test_a_killed_parent_takes_its_workers_with_it(at_work, tmp_path):
    """Idle or at work; and the script, which guards nothing, runs once."""
    script, temporary = tmp_path / "script.py", tmp_path / "temporary"
    script.write_text(SCRIPT.format(tests=str(SUPPORT), at_work=at_work))
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(temporary)},
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "script\n"
    pids = [int(word) for word in process.stdout.readline().split()]
    if at_work:
        time.sleep(0.5)
    assert not any(is_gone(pid) for pid in pids)
    process.kill()
    assert process.communicate() == ("", "")  # nor does Python's resource tracker complain
    wait_until(lambda: all(is_gone(pid) for pid in pids))
    ScratchFolder(temporary).remove()  # as the next run that needs one
    assert not list(temporary.iterdir())


def test_a_killed_parent_takes_a_server_with_it_that_still_imports(tmp_path):
    (tmp_path / "endless.py").write_text("import time\nopen('importing', 'w').close()\ntime.sleep(600)\n")
    code = "from rbdata.datasets.workers.local_engine import LocalEngine as E; E(2, modules=['endless']).prepare(); input()"
    # By PYTHONPATH: the server takes no modules from the current directory.
    found = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = {**os.environ, "PYTHONPATH": found}
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, cwd=tmp_path, env=environment)
    wait_until((tmp_path / "importing").exists)
    children = psutil.Process(process.pid).children()
    process.kill()
    process.communicate()
    wait_until(lambda: all(is_gone(child.pid) for child in children))


def test_who_hands_out_the_work_loads_no_torch(tmp_path):
    make_input(tmp_path, "zstd")
    code = (
        "import sys, rbdata;"
        "rbdata.preprocess('my/input', 'rbdata:clip_rewards', dest='my/out', procs=2, batch_size=16);"
        "print([name for name in ('torch', 'tensordict') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "RBDATA_ROOT": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"
    assert done.stderr == ""


def test_ctrl_c_while_they_load_is_quiet(tmp_path):
    """The terminal sends it to the server as well, which is in the middle of importing torch."""
    make_input(tmp_path, "zstd")
    words = ["preprocess", "my/input", "--fn", "rbdata:clip_rewards", "--dest", "my/out", "--procs", "2"]
    process = start_interruptible(
        [*RBDATA, *words, "--batch-size", "16"],
        env={**os.environ, "RBDATA_ROOT": str(tmp_path)},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_until(lambda: len(psutil.Process(process.pid).children()) >= 2)  # resource tracker and server
    time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in told
    assert "interrupted" in told
