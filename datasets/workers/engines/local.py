"""The local engine: this process, or several worker processes. `run_tasks` runs tasks with it or on an engine that is open.

Workers (`pool`) import the user's code themselves; they are kept from one ``run`` to the next, and end when this process
does. With one process the work is done in the calling process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..pool import Workers, run_here, usable_cpus
from ..task import Report, T, Task, Work, do_task, modules_of
from ..worker_process import OnOutput, write_to_stderr
from .engine import Engine

#: Tasks submitted for each process: one that runs and one that waits, so that no worker waits for the parent.
AHEAD = 2


class LocalEngine:
    """``procs`` worker processes, forked after the modules ``preload`` have been imported; see `engine.Engine`."""

    def __init__(self, procs: int, preload: Sequence[str] = ()) -> None:
        self.parallel, self.separate = procs, procs > 1
        self.name = f"local, {procs} process{'' if procs == 1 else 'es'}"
        self.on_output: OnOutput = write_to_stderr
        self._workers = Workers(procs, AHEAD * procs, preload, self._pass_on) if procs > 1 else None

    def _pass_on(self, line: str) -> None:
        self.on_output(line)

    def prepare(self) -> None:
        """Start importing what the workers need, which takes seconds, while the caller goes on."""
        if self._workers is not None:
            self._workers.prepare()

    def run(self, work: Work[T], tasks: Sequence[T], report: Report) -> Iterator[tuple[int, dict[str, Any]]]:
        if self._workers is None:
            return run_here(work, tasks, report)
        return self._workers.run(work, tasks, report)

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()


def run_tasks(
    tasks: Sequence[Task],
    procs: int,
    report: Report,
    engine: Engine | None = None,
    *,
    alone: Work[Any] = do_task,
    patience: float | None = None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield ``(task index, record)`` as tasks finish, in any order: in ``procs`` processes, or by an ``engine``.

    ``alone`` does them where one process is enough. ``patience``: see `Workers`. The first failure stops the rest and is
    raised, and so is KeyboardInterrupt. What was yielded before stays done.
    """
    if engine is not None:
        yield from engine.run(do_task, tasks, report)
        return
    if procs <= 1 or len(tasks) <= 1:
        yield from run_here(alone, tasks, report)
        return
    with Workers(min(procs, len(tasks)), modules=modules_of(tasks[0]), patience=patience) as workers:
        yield from workers.run(do_task, tasks, report)


def threads_of_task(procs: int, engine: Engine | None) -> int:
    """How many threads each of ``procs`` tasks may use side by side; on a cluster a task has one processor."""
    return 1 if engine is not None else max(1, usable_cpus() // procs)
