"""The local engine: runs tasks in this process, or in worker processes, and reports their progress.

``loky`` manages the processes and detects when one dies. They are forked from a process that has imported what they need
(`fork_server`); where that is not available they are fresh interpreters. Neither runs the caller's main module again.
Progress is reported through a small mapped file of counters: no queue can fill up, and nothing has to be drained after a
crash. With one process the tasks run in the calling process. `run_tasks` runs tasks on a new local engine, or on an engine
that is already open.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import closing, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from ...errors import WorkerLostError
from ...storage.scratch import ScratchFolder
from ..fetch import retries
from .task import (
    Engine,
    OnOutput,
    Report,
    T,
    Task,
    TaskProgress,
    Work,
    WorkUnit,
    do_task,
    modules_of,
    usable_cpus,
    write_to_stderr,
)
from .worker_process import OutputPipe, begin, begin_forked, flush_output, fork_server_is_available

#: Seconds between two reads of the counters.
POLL = 0.2
#: Tasks submitted per process: one to run and one to wait, so that no worker waits for the parent.
AHEAD = 2


def _run_here(work: Work[T], tasks: Sequence[T], report: Report) -> Iterator[tuple[int, dict[str, Any]]]:
    """Run tasks in this process, one after the other."""
    for task in tasks:
        last = monotonic()

        def on_block(rows: int, fetched: int, retries: int, task: T = task) -> None:
            nonlocal last
            if monotonic() - last >= POLL or rows == task.rows:
                last = monotonic()
                report([TaskProgress(task.index, rows, task.rows, fetched, retries)])

        yield task.index, work(task, on_block)


class LocalEngine:
    """An `Engine` of ``procs`` worker processes, kept from one ``run`` that does not fail to the next, and ended by `close`.

    ``modules``, which the work needs, are imported before workers are forked. At most ``in_flight`` tasks are submitted at a
    time (None: AHEAD per process). ``patience``: seconds within which some task must make progress (None: no limit). With one
    process the work is done in the calling process, unless it is to be ``separate``; with none it always is.
    """

    def __init__(
        self,
        procs: int,
        modules: Sequence[str] = (),
        *,
        in_flight: int | None = None,
        patience: float | None = None,
        separate: bool = False,
    ) -> None:
        self.parallel, self.separate = max(1, procs), procs > (0 if separate else 1)
        self.name = f"local, {procs} process{'' if procs == 1 else 'es'}"
        self.on_output: OnOutput = write_to_stderr
        self._modules, self._in_flight, self._patience = modules, in_flight or AHEAD * procs, patience
        self._output: OutputPipe | None = None
        self._executor: Any = None
        self._server: Any = None

    def prepare(self) -> None:
        """Start importing ``modules``, which takes seconds, in the background."""
        if not self.separate:
            return
        if fork_server_is_available():
            self._open_server()
        else:
            executor = self._open()
            for _ in range(self.parallel):
                executor.submit(_load, self._modules)

    def _open_server(self) -> Any:
        if self._server is None:
            from .fork_server import ForkServer

            # The module that loky's workers import first, this one, and those of the caller.
            self._server = ForkServer(["loky.process_executor", __name__, *self._modules])
            self._server.ensure_running()
        return self._server

    def _open(self) -> Any:
        if self._executor is None:
            from loky import ProcessPoolExecutor

            settings: dict[str, Any] = {"initializer": begin, "initargs": (os.getpid(),)}
            if fork_server_is_available():
                self._output = OutputPipe(lambda line: self.on_output(line))
                settings = {"context": self._open_server().context, "initializer": begin_forked}
                settings["initargs"] = (self._output.sender,)
            self._executor = ProcessPoolExecutor(self.parallel, timeout=None, **settings)
        return self._executor

    def run(self, work: Work[T], tasks: Sequence[T], report: Report) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield ``(task index, record)`` as tasks finish. The first failure stops all processes."""
        if self.separate:
            return self._run(work, tasks, report)
        return _run_here(work, tasks, report)

    def _run(self, work: Work[T], tasks: Sequence[T], report: Report) -> Iterator[tuple[int, dict[str, Any]]]:
        from loky.process_executor import TerminatedWorkerError

        executor, kills = self._open(), _count_memory_kills()
        scratch, idle = ScratchFolder(), not tasks
        path, shape = scratch.path / "progress", (max(1, len(tasks)),)
        try:
            # Written in full: on a full disk, writing to the map of a hole would kill the process.
            path.write_bytes(np.zeros(shape, _COUNTERS).tobytes())
            counters = np.memmap(path, _COUNTERS, "r+", shape=shape)
            submitted = 0
            waiting: dict[Any, int] = {}
            before, since = b"", monotonic()
            while waiting or submitted < len(tasks):
                while submitted < len(tasks) and len(waiting) < self._in_flight:
                    try:
                        future = executor.submit(_do, work, tasks[submitted], path, submitted)
                    except (TerminatedWorkerError, EOFError, ConnectionError) as error:  # or the fork server was killed
                        raise _lost(error, kills) from error
                    waiting[future] = submitted
                    submitted += 1
                done, _ = wait(waiting, timeout=POLL, return_when=FIRST_COMPLETED)
                self._forward()
                begun = sorted(slot for slot in waiting.values() if counters[slot]["rows"] or counters[slot]["wait"])
                report([_progress(tasks[slot], counters[slot]) for slot in begun])
                slots = [(future, waiting.pop(future)) for future in done]
                idle = not waiting and submitted == len(tasks)
                if slots or before != counters.tobytes():
                    before, since = counters.tobytes(), monotonic()
                elif self._patience is not None and monotonic() - since > self._patience:
                    raise WorkerFaultError(f"no worker process made progress for {self._patience:.0f} s")
                for future, slot in slots:
                    try:
                        record = future.result()
                    except TerminatedWorkerError as error:
                        idle = False  # the executor is broken
                        raise _lost(error, kills) from error
                    yield tasks[slot].index, record
        finally:
            if not idle:
                self.end_workers()  # none may still write when the dataset's lock is released
            scratch.remove()

    def _forward(self) -> None:
        if self._output is not None:
            self._output.forward()

    def end_workers(self) -> None:
        """Kill the workers, idle ones too: a regular exit takes a second. The next ``run`` forks new ones from the same
        server."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=True, kill_workers=True)
        output, self._output = self._output, None
        if output is not None:
            output.close()

    def close(self) -> None:
        self.end_workers()
        server, self._server = self._server, None
        if server is not None:
            server.stop()


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

    ``alone`` is the `Work` used if one process is enough. ``patience``: see `LocalEngine`. The first failure stops the rest
    and is raised, and so is KeyboardInterrupt; tasks yielded before that stay done.
    """
    if engine is not None:
        yield from engine.run(do_task, tasks, report)
        return
    if procs <= 1 or len(tasks) <= 1:
        yield from _run_here(alone, tasks, report)
        return
    procs = min(procs, len(tasks))
    workers = LocalEngine(procs, modules_of(tasks[0]), in_flight=len(tasks), patience=patience)
    with closing(workers):
        yield from workers.run(do_task, tasks, report)


def threads_of_task(procs: int, engine: Engine | None) -> int:
    """How many threads each of ``procs`` tasks may use side by side; on a cluster a task has one processor."""
    return 1 if engine is not None else max(1, usable_cpus() // max(1, procs))


class WorkerFaultError(WorkerLostError):
    """A worker process crashed in C code or hangs, perhaps because of the file it reads."""


def _lost(error: BaseException, kills: int) -> WorkerLostError:
    """The error for a lost worker; ``kills``: what `_count_memory_kills` returned before."""
    found = re.search(r"exit codes of the workers are \{(.*?)\}", str(error))
    signals = sorted(set(re.findall(r"SIG[A-Z]+", found[1]))) if found else []
    how = f"killed by {' and '.join(signals)}" if signals else "killed"
    kind = WorkerLostError
    if _count_memory_kills() > kills:
        why = ": the system ran out of memory"
    elif set(signals) - {"SIGKILL", "SIGTERM"}:
        how, why = f"ended by {' and '.join(signals)}", ", perhaps by a fault in C code"
        kind = WorkerFaultError
    else:
        why = ", perhaps by the system because memory ran out"
    hint = "run the command again: finished parts are kept; fewer --procs need less memory"
    return kind(f"a worker process was {how}{why}", hint=hint)


def _count_memory_kills() -> int:
    """How many processes the kernel has killed since it started because memory ran out; 0 if unknown."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


#: The progress record that a worker writes about its task.
_COUNTERS = np.dtype([("rows", "<i8"), ("fetched", "<i8"), ("retries", "<i8"), ("wait", "S200")])


def _progress(task: WorkUnit, counters: np.void) -> TaskProgress:
    rows, fetched, retries = (int(counters[name]) for name in ("rows", "fetched", "retries"))
    return TaskProgress(task.index, rows, task.rows, fetched, retries, bytes(counters["wait"]).decode(errors="replace"))


def _do(work: Work[T], task: T, path: Path, slot: int) -> dict[str, Any]:
    """In a worker: do one task, and write its progress into row ``slot`` of the counters."""
    counters = np.memmap(path, _COUNTERS, "r+", shape=(slot + 1,))

    def on_block(rows: int, fetched: int, retries: int) -> None:
        counters[slot] = (rows, fetched, retries, b"")

    def on_wait(text: str, seconds: float) -> None:
        counters[slot]["wait"] = text.encode()[:200]

    try:
        with retries.listen(on_wait):
            return work(task, on_block)
    finally:
        flush_output()


def _load(modules: Sequence[str]) -> None:
    from importlib import import_module

    for name in modules:
        import_module(name)
