"""Run tasks that do themselves: here, in processes for these tasks alone, or by an engine that is open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..pool import Workers, run_here, usable_cpus
from ..task import Report, Task, do_task, modules_of
from .engine import Engine


def run_tasks(
    tasks: Sequence[Task], procs: int, report: Report, engine: Engine | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield ``(task index, record)`` as tasks finish, in any order: in ``procs`` processes, or by an ``engine``.

    The first failure stops the rest and is raised, and so is KeyboardInterrupt. What was yielded before stays done.
    """
    if engine is not None:
        yield from engine.run(do_task, tasks, report)
        return
    if procs <= 1 or len(tasks) <= 1:
        yield from run_here(do_task, tasks, report)
        return
    with Workers(min(procs, len(tasks)), modules=modules_of(tasks[0])) as workers:
        yield from workers.run(do_task, tasks, report)


def threads_of_task(procs: int, engine: Engine | None) -> int:
    """How many threads each of ``procs`` tasks may use side by side; on a cluster a task has one processor."""
    return 1 if engine is not None else max(1, usable_cpus() // procs)
