"""The Ray engine, on a Ray of two nodes that is started here: same bytes, lost workers, errors, back-pressure."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import rbdata
from paths import DATA, SUPPORT
from preprocess_tools import check_files, every_other, lasting, make_input, noisy, plain, run, smaller
from processes import RBDATA
from ray_work import Slow, Task, Tasks, always_dies, breaks, dies_once, doubled, fails, leave_a_run, raises, square
from rbdata.datasets.acquire import Listener, Request, download
from rbdata.datasets.workers import open_cluster
from rbdata.datasets.workers.ray_cluster import AHEAD, RETRIES, RayEngine
from rbdata.errors import FunctionError, MissingExtraError, RbdataError, UsageError, WorkerLostError
from rbdata.storage.dataset import Dataset
from ted_rules import check_invariants

pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "include_dashboard": False, "object_store_memory": 80 << 20},
    )
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def engine(cluster):
    made = RayEngine(address=cluster.address)
    yield made
    made.close()


def indices(found):
    return sorted(index for index, _ in found)


# -- the engine by itself --------------------------------------------------------------------------------------------------


def test_runs_tasks_where_the_command_was_given(engine, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    assert len(list(engine.run(square, [Task(n) for n in range(4)], lambda progress: None))) == 4
    monkeypatch.chdir(tmp_path)
    gone.rmdir()  # where the workers are
    told = []
    found = dict(engine.run(square, [Task(n) for n in range(30)], told.extend))
    assert {index: record["square"] for index, record in found.items()} == {n: n * n for n in range(30)}
    assert {record["folder"] for record in found.values()} == {str(tmp_path)}
    assert os.getpid() not in {record["pid"] for record in found.values()}
    assert sorted((one.index, one.rows, one.total) for one in told) == [(n, 1, 1) for n in range(30)]
    assert list(engine.run(square, [], told.extend)) == []
    assert engine.parallel == 2
    assert engine.name.startswith("ray 2") and engine.name.endswith("2 processors")


def test_few_tasks_are_on_their_way(engine):
    tasks = Tasks(Task(n) for n in range(300))
    for seen, _ in enumerate(engine.run(square, tasks, lambda progress: None)):
        assert tasks.taken - seen <= AHEAD * engine.parallel
    assert tasks.taken == 300


def test_procs_limit_what_a_cluster_is_given(cluster, engine):
    one, tasks = RayEngine(1, address=cluster.address), Tasks(Task(n) for n in range(20))
    for seen, _ in enumerate(one.run(square, tasks, lambda progress: None)):
        assert tasks.taken - seen <= 1
    one.close()  # but not the connection, which is the other one's
    assert dict(engine.run(square, [Task(2)], lambda progress: None))[2]["square"] == 4


def test_errors_come_back_as_they_were(engine):
    with pytest.raises(FunctionError, match="no") as caught:
        list(engine.run(fails, [Task(n) for n in range(50)], lambda progress: None))
    assert (caught.value.hint, caught.value.detail) == ("try another", "Traceback ...")
    with pytest.raises(RbdataError, match=r"a Ray worker failed: FileNotFoundError: /no/such/folder") as found:
        list(engine.run(breaks, [Task(0)], lambda progress: None))
    assert "every node" in found.value.hint


def test_a_task_that_kills_every_worker(engine, capfd):
    with pytest.raises(WorkerLostError, match=f"lost {RETRIES + 1} times"):
        list(engine.run(always_dies, [Task(n) for n in range(6)], lambda progress: None))
    assert indices(engine.run(square, [Task(n) for n in range(4)], lambda progress: None)) == [0, 1, 2, 3]
    assert capfd.readouterr().out == ""  # where Ray itself would tell of it


def test_nothing_writes_when_a_run_was_left(engine, tmp_path):
    leave_a_run(engine, tmp_path)
    assert indices(engine.run(square, [Task(1)], lambda progress: None)) == [1]  # it connects again


def test_nothing_writes_when_a_ray_of_its_own_was_left(tmp_path):
    # In another process: one program cannot be at home in two clusters, each with a token of its own.
    code = "from pathlib import Path; import sys, ray_work; ray_work.leave_a_run_of_its_own(Path(sys.argv[1]))"
    here = os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": here, "RAY_ADDRESS": "local"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=1200, env=environment)


def test_a_ray_that_the_program_uses_stays(cluster, engine):
    import ray

    engine.close()
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        guest = RayEngine()
        running: Any = guest.run(square, [Task(n) for n in range(50)], lambda progress: None)
        next(running)
        running.close()
        guest.close()
        assert ray.is_initialized()
    finally:
        ray.shutdown()


def test_nobody_there():
    code = (
        "from rbdata.datasets.workers.ray_cluster import RayEngine as E; "
        "list(E(address='127.0.0.1:9').run(print, [1], print))"
    )
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1200)
    assert "UsageError: no Ray cluster answers at 127.0.0.1:9" in ended.stderr
    assert time.monotonic() - began < 600  # Ray itself would try for much longer


def test_no_ray_no_engine(monkeypatch):
    with pytest.raises(UsageError, match="there is no engine 'spark'"):
        open_cluster("spark", procs=1, address=None)
    with pytest.raises(UsageError, match="an address is only for the engine ray"):
        open_cluster("local", procs=1, address="auto")
    with pytest.raises(UsageError, match="an address is only for the engine ray"):
        rbdata.download("Pong/1", address="auto")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError) as caught:
        RayEngine()
    assert "pip install 'rbdata[ray]'" in caught.value.hint


def test_a_node_that_goes_away(cluster, engine, tmp_path):
    list(engine.run(square, [Task(0)], lambda progress: None))
    work = Slow(tmp_path, cluster.head_node.node_id)
    node = cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
    gone, found = False, []
    for index, record in engine.run(work, [Task(n) for n in range(40)], lambda progress: None):
        found.append(index)
        assert record == {"index": index}
        if not gone:
            cluster.remove_node(node, allow_graceful=False)
            gone = True
    assert sorted(found) == list(range(40))
    starts = [path.name.split(".")[1] for path in tmp_path.iterdir()]
    assert len(starts) > len(set(starts))  # what the node was at was done again


# -- datasets ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "per", "layout"),
    [
        (smaller, "batch", "zstd"),
        (every_other, "episode", "raw"),
        (doubled, "sample", "flat"),
    ],
)
def test_bytes_of_a_plain_loop(engine, tmp_path, fn, per, layout):
    make_input(tmp_path, layout)
    options = {"per": per, "batch_size": 7, "codec": "zstd" if layout == "zstd" else "auto"}
    far = run(tmp_path, fn, "my/far", open_engine=engine, **options)
    near = run(tmp_path, fn, "my/near", procs=1, **options)
    files, same = lasting(far.path), lasting(near.path)
    for record in (files, same):
        record["rbdata.json"].pop("id")
        record["rbdata.json"]["lineage"].pop("fingerprint", None)
    assert files == same
    check_files(far.path, *plain(Dataset(tmp_path / "my/input"), fn, per, 7))


def get(root, mirror, engine=None, **callbacks):
    """Breakout, run 1, from a folder of raw files: shards of a replay buffer, or episodes that are staged."""
    request = Request("atari/Breakout/1", root=root, mirror=str(DATA / mirror), procs=1, engine=engine)
    return download(request, Listener(**callbacks)).path


@pytest.mark.parametrize("mirror", ["atari", "rl_unplugged"])
def test_downloads_are_the_same_bytes_also_when_interrupted(engine, tmp_path, mirror):
    near = lasting(get(tmp_path / "near", mirror))

    def interrupt(index):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get(tmp_path / "far", mirror, engine, on_part_done=interrupt)
    assert lasting(get(tmp_path / "far", mirror, engine)) == near


def test_random_numbers_and_first_passes(engine, tmp_path):
    make_input(tmp_path)
    functions = ["rbdata:normalize_observations", noisy, "rbdata:filter_episodes"]
    options = {"batch_size": 16, "args": {"min_quantile": 0.5}, "seed": 3, "per": "episode"}
    far = run(tmp_path, functions, "my/far", open_engine=engine, **options)
    near = run(tmp_path, functions, "my/near", procs=2, **options)
    assert far.manifest.lineage["statistics"] == near.manifest.lineage["statistics"]
    assert (far.to_tensordict() == near.to_tensordict()).all()
    assert check_invariants(far.path, far.manifest) == []
    assert far.manifest.provenance["engine"].startswith("ray")


def test_workers_killed_in_mid_task(engine, tmp_path):
    make_input(tmp_path)
    (tmp_path / "killed").mkdir()
    args = {"folder": str(tmp_path / "killed")}
    far = run(tmp_path, dies_once, "my/far", open_engine=engine, batch_size=7, args=args)
    assert len(list((tmp_path / "killed").iterdir())) == 2
    near = run(tmp_path, doubled, "my/near", procs=1, batch_size=7)
    assert (far.to_tensordict() == near.to_tensordict()).all()


def test_the_functions_error_with_its_rows(engine, tmp_path):
    make_input(tmp_path)
    with pytest.raises(FunctionError, match=r"ValueError: no fives at .*, for steps? .* of my/input") as caught:
        run(tmp_path, raises, "my/far", open_engine=engine, batch_size=7)
    assert "raise ValueError" in caught.value.detail


def test_command_line_starts_and_ends_its_own_ray(tmp_path):
    make_input(tmp_path)
    (tmp_path / "mine.py").write_text(
        "def twice(td):\n    td['next', 'reward'] = td['next', 'reward'] * 2\n    return td\n"
    )
    command = [*RBDATA, "preprocess", "my/input", "--fn", "mine.py:twice", "--dest", "my/twice"]
    options = ["--engine", "ray", "--procs", "1", "--batch-size", "7", "--json", "--root", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    # Ray starts half a dozen processes, which takes minutes where other tests run.
    ended = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=12000, cwd=tmp_path, env=environment
    )
    assert ended.returncode == 0, ended.stderr
    json.loads(ended.stdout)
    assert "ray" not in ended.stderr.lower(), ended.stderr
    assert "queue" not in ended.stderr.lower(), ended.stderr
    near = run(tmp_path, doubled, "my/near", procs=1, batch_size=7)
    manifest = json.loads((tmp_path / "my/twice/rbdata.json").read_text())
    assert manifest["provenance"]["engine"].startswith("ray")
    reward = Path("next/reward.memmap")
    assert (tmp_path / "my/twice" / reward).read_bytes() == (near.path / reward).read_bytes()
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(tmp_path) in " ".join(process.cmdline()):
                left.append(process)
    assert left == []
