"""Run a job's tasks in worker processes, and hear how far they are.

Processes come from ``loky`` (fresh interpreters that do not run the caller's main module again, and that are noticed when
they die). Progress crosses process borders through a small mapped file of counters: no queue to fill up, nothing to
drain after a crash. With one process the tasks run right here.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from ..errors import WorkerLostError
from .source import Job, Task

#: Seconds between two looks at the counters.
POLL = 0.2


@dataclass(frozen=True)
class TaskProgress:
    """How far one task is."""

    index: int
    rows: int
    total: int
    fetched: int
    retries: int


Report = Callable[[list[TaskProgress]], None]


def run_tasks(job: Job, tasks: Sequence[Task], procs: int, report: Report) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield ``(task index, record)`` as tasks finish, in any order.

    The first failure stops the rest and is raised; so is Ctrl-C. What was yielded before stays done.
    """
    if not tasks:
        return
    if procs <= 1 or len(tasks) == 1:
        yield from run_here(job.fill, tasks, report)
    else:
        yield from _run_in_processes(job, tasks, min(procs, len(tasks)), report)


def usable_cpus() -> int:
    """Processors this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def run_here(
    fill: Callable[..., dict[str, Any]], tasks: Sequence[Task], report: Report
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The same in this process, one task after the other."""
    for task in tasks:
        last = monotonic()

        def on_block(rows: int, fetched: int, retries: int, task: Task = task) -> None:
            nonlocal last
            if monotonic() - last >= POLL or rows == task.rows:
                last = monotonic()
                report([TaskProgress(task.index, rows, task.rows, fetched, retries)])

        yield task.index, fill(task, on_block)


def _run_in_processes(
    job: Job, tasks: Sequence[Task], procs: int, report: Report
) -> Iterator[tuple[int, dict[str, Any]]]:
    with Workers(procs) as workers:
        yield from workers.run(job.fill, tasks, report)


class Workers:
    """Worker processes, kept from one ``run`` to the next; leave the block, and they are gone.

    ``in_flight`` tasks at most are given out at a time (None: all of them).
    """

    def __init__(self, procs: int, in_flight: int | None = None) -> None:
        self._procs, self._in_flight = procs, in_flight
        self._executor: Any = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def prepare(self, get_ready: Callable[[], None]) -> None:
        """Start the processes, and let each of them get ready while this one does something else."""
        executor = self._open()
        for _ in range(self._procs):
            executor.submit(get_ready)

    def _open(self) -> Any:
        if self._executor is None:
            from loky import ProcessPoolExecutor

            # Work comes from our own code, but the workers must not outlive Ctrl-C: the parent alone answers to it.
            self._executor = ProcessPoolExecutor(self._procs, timeout=None, initializer=_ignore_interrupt)
        return self._executor

    def run(
        self, fill: Callable[..., dict[str, Any]], tasks: Sequence[Task], report: Report
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield ``(task index, record)`` as tasks finish. The first failure stops all processes."""
        from loky.process_executor import TerminatedWorkerError

        executor = self._open()
        descriptor, name = tempfile.mkstemp(prefix="rbdata-progress-")
        os.ftruncate(descriptor, max(1, len(tasks)) * 3 * 8)
        os.close(descriptor)
        path = Path(name)
        counters = np.memmap(path, np.int64, "r+", shape=(max(1, len(tasks)), 3))
        idle = not tasks
        try:
            at_most = self._in_flight or len(tasks)
            given = 0
            futures: dict[Any, int] = {}
            waiting: set[Any] = set()
            while waiting or given < len(tasks):
                while given < len(tasks) and len(waiting) < at_most:
                    future = executor.submit(_work, fill, tasks[given], path, given)
                    futures[future] = given
                    waiting.add(future)
                    given += 1
                done, waiting = wait(waiting, timeout=POLL, return_when=FIRST_COMPLETED)
                begun = sorted(slot for slot in futures.values() if counters[slot, 0])
                report([TaskProgress(tasks[i].index, *_counts(counters, i, tasks[i].rows)) for i in begun])
                idle = not waiting and given == len(tasks)
                for future in done:
                    slot = futures.pop(future)
                    try:
                        record = future.result()
                    except TerminatedWorkerError as error:
                        raise _lost() from error
                    yield tasks[slot].index, record
        finally:
            if not idle:
                self.close()  # nothing may still be writing when the lock is released
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """End the processes, at work or not: those that are idle have nothing left to do, and take a second over it."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=True, kill_workers=True)


def _lost() -> WorkerLostError:
    message = "a worker process was killed, perhaps by the system for want of memory"
    return WorkerLostError(
        message, hint="run the command again: finished parts are kept; fewer --procs need less memory"
    )


def _counts(counters: np.ndarray, slot: int, total: int) -> tuple[int, int, int, int]:
    rows, fetched, retries = counters[slot].tolist()
    return rows, total, fetched, retries


def _work(fill: Callable[..., dict[str, Any]], task: Task, path: Path, slot: int) -> dict[str, Any]:
    counters = np.memmap(path, np.int64, "r+", shape=(slot + 1, 3))

    def on_block(rows: int, fetched: int, retries: int) -> None:
        counters[slot] = (rows, fetched, retries)

    return fill(task, on_block)


def _ignore_interrupt() -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
