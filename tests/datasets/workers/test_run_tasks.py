"""Tasks run in worker processes, or in this one."""

from __future__ import annotations

import operator
import os

from rbdata.datasets.workers import open_local
from worker_tasks import TASKS, Standalone


def test_tasks_run_in_processes_or_here():
    tasks = [Standalone(n, TASKS[n]) for n in range(3)]
    with open_local(0) as engine:
        here = dict(engine.run(operator.call, tasks, lambda progress: None))
        assert list(engine.run(operator.call, list[Standalone](), lambda progress: None)) == []
    with open_local(2, ["worker_tasks"]) as engine:
        elsewhere = dict(engine.run(operator.call, tasks, lambda progress: None))
    assert sorted(here) == sorted(elsewhere) == [0, 1, 2]
    assert {record["pid"] for record in here.values()} == {os.getpid()}
    assert os.getpid() not in {record["pid"] for record in elsewhere.values()}
