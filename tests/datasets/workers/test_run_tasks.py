"""What a task says of itself."""

from __future__ import annotations

import os

from rbdata.datasets.workers.local_engine import run_tasks
from rbdata.datasets.workers.task import modules_of
from worker_tasks import TASKS, Standalone


def test_workers_import_the_modules_of_a_task_and_of_what_it_holds():
    assert modules_of(Standalone(0, TASKS[0])) == ["rbdata.preprocess.chunks", "worker_tasks"]


def test_tasks_run_in_processes_or_here():
    tasks = [Standalone(n, TASKS[n]) for n in range(3)]
    here = dict(run_tasks(tasks, 0, lambda progress: None))
    elsewhere = dict(run_tasks(tasks, 2, lambda progress: None))
    assert sorted(here) == sorted(elsewhere) == [0, 1, 2]
    assert {record["pid"] for record in here.values()} == {os.getpid()}
    assert os.getpid() not in {record["pid"] for record in elsewhere.values()}
    assert list(run_tasks([], 2, lambda progress: None)) == []
