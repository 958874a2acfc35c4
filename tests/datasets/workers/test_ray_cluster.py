"""The Ray engine, on a Ray that is started here: same bytes, lost workers, errors, back-pressure.

A process of Ray that imports torch takes six seconds of a processor, and each connection has workers of its own. So what ends a
connection, or a worker, comes before what imports torch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import psutil
import pytest
import rbdata
from paths import DATA
from preprocess_tools import check_files, every_other, lasting, make_input, noisy, plain, run, smaller
from processes import RBDATA, is_gone, start_interruptible, wait_until
from ray_work import Dying, Slow, Task, Tasks, Ticking, breaks, doubled, fails, raises, square
from rbdata.datasets.acquire import Listener, Request, download
from rbdata.datasets.workers import open_cluster, ray_cluster
from rbdata.datasets.workers.ray_cluster import AHEAD, RayEngine
from rbdata.errors import FunctionError, MissingExtraError, RbdataError, UsageError, WorkerLostError
from rbdata.storage.dataset import Dataset
from ted_rules import check_invariants

pytest.importorskip("ray")

#: A node without log monitor and autoscaler, and without workers before there are tasks.
NODE: dict[str, Any] = {
    "object_store_memory": 80 << 20,
    "include_dashboard": False,
    "include_log_monitor": False,
    "no_monitor": True,
    "env_vars": {"RAY_enable_worker_prestart": "0"},
}


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # A lost node is noticed within a second, not 15; a slow one has as long to answer as ever.
        made = Cluster(
            initialize_head=True,
            head_node_args={**NODE, "num_cpus": 2, "_system_config": {"health_check_period_ms": 200}},
        )
        yield made
        made.shutdown()


@pytest.fixture(scope="module")
def engine(cluster):
    made = RayEngine(address=cluster.address)
    yield made
    made.close()


def unseen(progress):
    pass


# -- the engine by itself --------------------------------------------------------------------------------------------------


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


def test_a_ray_that_the_program_uses_stays(cluster, engine, tmp_path):
    """Also when a download is interrupted, which then goes on."""
    import ray

    def interrupt(index):
        raise KeyboardInterrupt

    engine.close()
    with pytest.raises(UsageError, match=r"no Ray cluster answers at 127\.0\.0\.1:9"):
        list(RayEngine(address="127.0.0.1:9").run(square, [Task(0)], unseen))
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        with RayEngine() as guest, pytest.raises(KeyboardInterrupt):
            get(tmp_path / "far", "atari", guest, on_part_done=interrupt)
        assert ray.is_initialized()
        far = get(tmp_path / "far", "atari", RayEngine())
    finally:
        ray.shutdown()
    assert lasting(far) == lasting(get(tmp_path / "near", "atari"))


def test_nothing_writes_when_a_run_was_left(engine, tmp_path):
    running: Any = engine.run(Ticking(tmp_path), [Task(n) for n in range(9)], unseen)
    assert next(running)[0] == 0
    running.close()
    left = time.time()
    time.sleep(1)
    files = list(tmp_path.iterdir())
    assert files
    assert all(float(file.read_text() or 0) <= left for file in files)


def get(root, mirror, engine=None, **callbacks):
    """Breakout, run 1, from a folder of raw files: shards of a replay buffer, or episodes that are staged."""
    request = Request("atari/Breakout/1", root=root, mirror=str(DATA / mirror), procs=0, engine=engine)
    return download(request, Listener(**callbacks)).path


def test_staged_episodes_are_the_same_bytes(engine, tmp_path):
    near = get(tmp_path / "near", "rl_unplugged")
    assert lasting(get(tmp_path / "far", "rl_unplugged", engine)) == lasting(near)


def test_runs_tasks_where_the_command_was_given(engine, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    assert len(list(engine.run(square, [Task(n) for n in range(4)], unseen))) == 4
    monkeypatch.chdir(tmp_path)
    gone.rmdir()  # where the workers are
    tasks, told, found = Tasks(Task(n) for n in range(30)), [], {}
    for index, record in engine.run(square, tasks, told.extend):
        assert tasks.taken - len(found) <= AHEAD * engine.parallel
        found[index] = record
    assert {index: record["square"] for index, record in found.items()} == {n: n * n for n in range(30)}
    assert {record["folder"] for record in found.values()} == {str(tmp_path)}
    assert os.getpid() not in {record["pid"] for record in found.values()}
    assert sorted((one.index, one.rows, one.total) for one in told) == [(n, 1, 1) for n in range(30)]
    assert list(engine.run(square, [], told.extend)) == []
    assert engine.parallel == 2
    assert engine.name.startswith("ray 2") and engine.name.endswith("2 processors")


def test_procs_limit_what_a_cluster_is_given(cluster, engine):
    one, tasks = RayEngine(1, address=cluster.address), Tasks(Task(n) for n in range(9))
    for seen, _ in enumerate(one.run(square, tasks, unseen)):
        assert tasks.taken - seen <= 1
    one.close()  # but not the connection, which is the other one's
    assert dict(engine.run(square, [Task(2)], unseen))[2]["square"] == 4


def test_errors_come_back_as_they_were(engine):
    with pytest.raises(FunctionError, match="no") as caught:
        list(engine.run(fails, [Task(3)], unseen))
    assert (caught.value.hint, caught.value.detail) == ("try another", "Traceback ...")
    with pytest.raises(RbdataError, match=r"a Ray worker failed: FileNotFoundError: /no/such/folder") as found:
        list(engine.run(breaks, [Task(0)], unseen))
    assert "every node" in found.value.hint


def test_a_task_that_kills_its_worker(engine, tmp_path, monkeypatch, capfd):
    assert dict(engine.run(Dying(tmp_path / "once"), [Task(0)], unseen)) == {0: {}}
    monkeypatch.setattr(ray_cluster, "RETRIES", 0)
    with pytest.raises(WorkerLostError, match="lost 1 times"):
        list(engine.run(Dying(tmp_path / "again"), [Task(0)], unseen))
    assert len(list(engine.run(square, [Task(n) for n in range(4)], unseen))) == 4
    assert capfd.readouterr().out == ""  # where Ray itself would tell of it


def test_a_node_that_goes_away(cluster, engine, tmp_path):
    list(engine.run(square, [Task(0)], unseen))
    work = Slow(tmp_path, cluster.head_node.node_id)
    node = cluster.add_node(**NODE, num_cpus=1)
    gone, found = False, []
    for index, record in engine.run(work, [Task(n) for n in range(20)], unseen):
        found.append(index)
        assert record == {"index": index}
        if not gone:
            cluster.remove_node(node, allow_graceful=False)
            gone = True
    assert sorted(found) == list(range(20))
    starts = [path.name.split(".")[1] for path in tmp_path.iterdir()]
    assert len(starts) > len(set(starts))  # what the node was at was done again


# -- preprocessing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fn", "per", "layout"), [(smaller, "batch", "zstd"), (every_other, "episode", "raw")])
def test_bytes_of_a_plain_loop(engine, tmp_path, fn, per, layout):
    make_input(tmp_path, layout)
    options = {"per": per, "batch_size": 7, "codec": "zstd" if layout == "zstd" else "auto"}
    far = run(tmp_path, fn, "my/far", open_engine=engine, **options)
    near = run(tmp_path, fn, "my/near", **options)
    files, same = lasting(far.path), lasting(near.path)
    for record in (files, same):
        record["rbdata.json"].pop("id")
        record["rbdata.json"]["lineage"].pop("fingerprint", None)
    assert files == same
    check_files(far.path, *plain(Dataset(tmp_path / "my/input"), fn, per, 7))


def test_random_numbers_and_first_passes(engine, tmp_path):
    make_input(tmp_path)
    functions = ["rbdata:normalize_observations", noisy, "rbdata:filter_episodes"]
    options = {"batch_size": 16, "args": {"min_quantile": 0.5}, "seed": 3, "per": "episode"}
    far = run(tmp_path, functions, "my/far", open_engine=engine, **options)
    near = run(tmp_path, functions, "my/near", **options)
    assert far.manifest.lineage["statistics"] == near.manifest.lineage["statistics"]
    assert (far.to_tensordict() == near.to_tensordict()).all()
    assert check_invariants(far.path, far.manifest) == []
    assert far.manifest.provenance["engine"].startswith("ray")


def test_the_functions_error_with_its_rows(engine, tmp_path):
    make_input(tmp_path)
    with pytest.raises(FunctionError, match=r"ValueError: no fives at .*, for steps? .* of my/input") as caught:
        run(tmp_path, raises, "my/far", open_engine=engine, batch_size=1000)
    assert "raise ValueError" in caught.value.detail


FUNCTION = """
import os, pathlib, time

def twice(td):
    while (folder := pathlib.Path("ticks")).exists():
        (folder / str(os.getpid())).write_text(repr(time.time()))
        time.sleep(0.001)
    td["next", "reward"] = td["next", "reward"] * 2
    return td
"""


def test_a_command_ends_its_own_ray_when_it_is_interrupted(engine, tmp_path, monkeypatch):
    """And is continued on a cluster."""
    make_input(tmp_path)
    (tmp_path / "mine.py").write_text(FUNCTION)
    ticks = tmp_path / "ticks"
    ticks.mkdir()
    command = [*RBDATA, "preprocess", "my/input", "--fn", "mine.py:twice", "--dest", "my/twice"]
    options = ["--engine", "ray", "--procs", "1", "--batch-size", "100", "--root", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    process = start_interruptible(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, env=environment
    )
    wait_until(lambda: any(ticks.iterdir()))
    started = psutil.Process(process.pid).children(recursive=True)
    assert any(int(file.name) in {one.pid for one in started} for file in ticks.iterdir())
    process.send_signal(signal.SIGINT)
    said, told = process.communicate()
    left = time.time()
    assert process.returncode == 130, told
    assert said == ""
    assert "error: interrupted" in told
    assert "ray" not in told.partition("hint: ")[0].lower(), told
    wait_until(lambda: all(is_gone(one.pid) for one in started))
    assert all(float(file.read_text() or 0) <= left for file in ticks.iterdir())
    ticks.rename(tmp_path / "no-ticks")
    monkeypatch.chdir(tmp_path)
    far = run(tmp_path, "mine.py:twice", "my/twice", open_engine=engine, batch_size=100)
    near = run(tmp_path, doubled, "my/near", batch_size=100)
    assert (far.to_tensordict() == near.to_tensordict()).all()
