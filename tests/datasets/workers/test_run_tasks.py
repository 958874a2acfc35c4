"""What a task says of itself."""

from __future__ import annotations

import os
from contextlib import closing

from rbdata.datasets.workers.here import open_local
from rbdata.datasets.workers.task import do_task, modules_of
from worker_tasks import TASKS, Standalone


def test_workers_import_the_modules_of_a_task_and_of_what_it_holds():
    assert modules_of(Standalone(0, TASKS[0])) == ["rbdata.preprocess.chunks", "worker_tasks"]


def test_tasks_run_in_processes_or_here():
    tasks = [Standalone(n, TASKS[n]) for n in range(3)]
    with closing(open_local(0)) as engine:
        here = dict(engine.run(do_task, tasks, lambda progress: None))
        assert list(engine.run(do_task, list[Standalone](), lambda progress: None)) == []
    with closing(open_local(2, modules_of(tasks[0]))) as engine:
        elsewhere = dict(engine.run(do_task, tasks, lambda progress: None))
    assert sorted(here) == sorted(elsewhere) == [0, 1, 2]
    assert {record["pid"] for record in here.values()} == {os.getpid()}
    assert os.getpid() not in {record["pid"] for record in elsewhere.values()}
