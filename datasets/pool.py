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

from ..errors import RbdataError
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
        yield from _run_here(job, tasks, report)
    else:
        yield from _run_in_processes(job, tasks, min(procs, len(tasks)), report)


def usable_cpus() -> int:
    """Processors this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def _run_here(job: Job, tasks: Sequence[Task], report: Report) -> Iterator[tuple[int, dict[str, Any]]]:
    for task in tasks:
        last = monotonic()

        def on_block(rows: int, fetched: int, retries: int, task: Task = task) -> None:
            nonlocal last
            if monotonic() - last >= POLL or rows == task.rows:
                last = monotonic()
                report([TaskProgress(task.index, rows, task.rows, fetched, retries)])

        yield task.index, job.fill(task, on_block)


def _run_in_processes(
    job: Job, tasks: Sequence[Task], procs: int, report: Report
) -> Iterator[tuple[int, dict[str, Any]]]:
    from loky import ProcessPoolExecutor
    from loky.process_executor import TerminatedWorkerError

    descriptor, name = tempfile.mkstemp(prefix="rbdata-progress-")
    os.ftruncate(descriptor, len(tasks) * 3 * 8)
    os.close(descriptor)
    path = Path(name)
    counters = np.memmap(path, np.int64, "r+", shape=(len(tasks), 3))
    # Work comes from our own code, but the workers must not outlive Ctrl-C: the parent alone answers to it.
    executor = ProcessPoolExecutor(procs, timeout=None, initializer=_ignore_interrupt)
    finished = False
    try:
        futures = {executor.submit(_work, job.fill, task, path, slot): slot for slot, task in enumerate(tasks)}
        waiting = set(futures)
        while waiting:
            done, waiting = wait(waiting, timeout=POLL, return_when=FIRST_COMPLETED)
            active = [slot for slot in range(len(tasks)) if counters[slot, 0]]
            report([TaskProgress(tasks[i].index, *_counts(counters, i, tasks[i].rows)) for i in active])
            for future in done:
                try:
                    record = future.result()
                except TerminatedWorkerError as error:
                    message = "a worker process was killed, perhaps by the system for want of memory"
                    hint = "run the command again: finished parts are kept; fewer --procs need less memory"
                    raise RbdataError(message, hint=hint) from error
                yield tasks[futures[future]].index, record
        finished = True
    finally:
        executor.shutdown(
            wait=True, kill_workers=not finished
        )  # nothing may still be writing when the lock is released
        path.unlink(missing_ok=True)


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
