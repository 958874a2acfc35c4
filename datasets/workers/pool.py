"""Run a job's tasks in worker processes, and hear how far they are.

Processes are managed by ``loky``, which notices when one dies. They are forked from a process that has loaded what they need
(`fork_server`), or where that is not possible fresh interpreters; neither runs the caller's main module again. Progress
crosses process borders through a small mapped file of counters: no queue to fill up, nothing to drain after a crash. With
one process the tasks run right here.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np

from ...errors import WorkerLostError
from ..ingest.protocol import Job, Task


def fork_server_is_available() -> bool:
    """Whether workers can be forked from a process made for it: on Linux. There is no forking on Windows, and on macOS a
    process that has loaded system frameworks is not safe to fork."""
    return sys.platform == "linux"


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
    with Workers(procs, modules=[type(job).__module__]) as workers:
        yield from workers.run(job.fill, tasks, report)


class Workers:
    """Worker processes, kept from one ``run`` to the next; leave the block, and they are gone.

    ``modules`` are those that the work needs. ``in_flight`` tasks at most are given out at a time (None: all of them).
    """

    def __init__(self, procs: int, in_flight: int | None = None, modules: Sequence[str] = ()) -> None:
        self._procs, self._in_flight, self._modules = procs, in_flight, modules
        self._executor: Any = None
        self._server: Any = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def prepare(self) -> None:
        """Begin to load what the processes need, while this one does something else."""
        if fork_server_is_available():
            self._open_server()
        else:
            executor = self._open()
            for _ in range(self._procs):
                executor.submit(_load, self._modules)

    def _open_server(self) -> Any:
        if self._server is None:
            from .fork_server import ForkServer

            # What loky's workers run first, and their part of this module, beside what the caller needs.
            self._server = ForkServer(["loky.process_executor", __name__, *self._modules])
            self._server.ensure_running()
        return self._server

    def _open(self) -> Any:
        if self._executor is None:
            from loky import ProcessPoolExecutor

            context = self._open_server().context if fork_server_is_available() else None
            begin = _begin if context is None else _begin_forked
            self._executor = ProcessPoolExecutor(
                self._procs, timeout=None, context=context, initializer=begin, initargs=(os.getpid(),)
            )
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
                    try:
                        future = executor.submit(_work, fill, tasks[given], path, given)
                    except (TerminatedWorkerError, EOFError, ConnectionError) as error:  # or the fork server was killed
                        raise _lost() from error
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
                        idle = False  # all of them are of no use any more
                        raise _lost() from error
                    yield tasks[slot].index, record
        finally:
            if not idle:
                self.close()  # nothing may still be writing when the lock is released
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """End the processes, at work or not: those that are idle have nothing left to do, and take a second over it."""
        executor, self._executor = self._executor, None
        server, self._server = self._server, None
        if executor is not None:
            executor.shutdown(wait=True, kill_workers=True)
        if server is not None:
            server.stop()


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


def _load(modules: Sequence[str]) -> None:
    from importlib import import_module

    for name in modules:
        import_module(name)


def _begin(parent: int) -> None:
    """In a worker that is a child of its parent: leave Ctrl-C to it, and end when it has ended."""

    def is_over() -> None:
        while os.getppid() == parent:
            sleep(1.0)

    _end_after(is_over)


def _begin_forked(parent: int) -> None:
    """The same in a child of the fork server."""
    import gc
    import multiprocessing

    gc.freeze()  # what was loaded before the fork stays, and its pages stay shared
    gc.enable()
    process = multiprocessing.parent_process()
    assert process is not None and process.pid == parent
    _end_after(process.join)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the server's block; it is ignored by now


def _end_after(is_over: Callable[[], None]) -> None:
    """End this process, whatever it is at, when ``is_over`` returns: nobody takes what it makes, and another run may begin."""

    def watch() -> None:
        is_over()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=watch, name="rbdata-watch", daemon=True).start()
