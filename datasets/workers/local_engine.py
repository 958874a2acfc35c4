"""The local engine: runs tasks in worker processes of this machine, or in this process, and reports their progress.

`concurrent.futures` manages the processes and detects when one dies. On Linux they are forked from `multiprocessing`'s fork
server, which imports what they need once: torch takes three seconds. Elsewhere they are fresh interpreters. Progress is
reported through shared counters, a slot for each task in work: no queue can fill up, and a slot says which task a worker held
when it died. With no processes (``procs=0``) tasks run in the calling process.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Any

from ... import settings
from ...errors import CorruptSourceError, WorkerLostError
from ..fetch import retries
from .task import (
    Engine,
    OnBlock,
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
from .worker_process import OutputPipe, begin, flush_output

if TYPE_CHECKING or sys.platform == "linux":
    from multiprocessing.context import ForkServerContext as _Base
    from multiprocessing.context import ForkServerProcess as _BaseProcess
else:  # Windows has no fork, and on macOS a process that has loaded system frameworks is not safe to fork
    from multiprocessing.context import SpawnContext as _Base
    from multiprocessing.context import SpawnProcess as _BaseProcess

#: Seconds between two reads of the counters.
POLL = 0.2
#: Processes, unless another number is asked for: more make a disk or a server no faster.
MAX_PROCS = 8
#: Tasks submitted per process: one to run and one to wait, so that no worker waits for the parent.
AHEAD = 2
#: Memory that C libraries may take for files of a size: a base, and bytes per byte.
_MEMORY, _MEMORY_A_BYTE = 2 << 30, 4


def usual_procs(tasks: int, asked: int | None = None) -> int:
    """The number of worker processes for so many tasks: as asked for, as the settings say, or one per processor, at most 8."""
    procs = settings.procs(asked)
    return min(min(MAX_PROCS, usable_cpus()) if procs is None else procs, max(1, tasks))


def memory_for(size: int) -> int:
    """Bytes of memory that a worker may take in which C libraries read files of ``size`` bytes: they trust what files state."""
    return _MEMORY + _MEMORY_A_BYTE * size


class _Context(_Base):
    """Starts workers, and knows them. They do not run the program's main module again: scripts need no
    ``if __name__ == "__main__"``."""

    def __init__(self, modules: Sequence[str]) -> None:
        super().__init__()
        self._modules = modules
        self.workers: list[Any] = []

    def prepare(self) -> None:
        """Start the fork server, which imports ``modules`` (unless the program has one already), and return at once."""
        if sys.platform == "linux":
            from multiprocessing import forkserver, resource_tracker

            _forget_server_after_fork()
            resource_tracker.ensure_running()  # here, as it unblocks signals
            multiprocessing.set_forkserver_preload([*self._modules])
            # Ctrl-C is for this process. The server takes no modules from the current directory: a json.py may be there.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            safe_path = os.environ.get("PYTHONSAFEPATH")
            os.environ["PYTHONSAFEPATH"] = "1"
            try:
                forkserver.ensure_running()
            finally:
                if safe_path is None:
                    del os.environ["PYTHONSAFEPATH"]
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def Process(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        worker = _Process(*args, **kwargs)
        self.workers.append(worker)
        self.prepare()
        return worker


@cache
def _forget_server_after_fork() -> None:
    """In forked processes there is no fork server at first: their parent's is no child of theirs, as `forkserver` expects."""

    def forget() -> None:
        from multiprocessing import forkserver

        server: Any = forkserver._forkserver
        if server._forkserver_alive_fd is not None:
            os.close(server._forkserver_alive_fd)
        server._forkserver_pid = server._forkserver_alive_fd = server._forkserver_address = None

    os.register_at_fork(after_in_child=forget)


class _Process(_BaseProcess):
    def start(self) -> None:
        main = vars(sys.modules["__main__"])
        hidden: dict[str, Any] = {name: main.pop(name) for name in ("__spec__", "__file__") if name in main}
        main["__spec__"] = None  # which `multiprocessing` reads as an attribute
        try:
            with _interrupted_later():
                super().start()
        finally:
            del main["__spec__"]
            main.update(hidden)


@contextmanager
def _interrupted_later() -> Iterator[None]:
    """Let Ctrl-C act at the end of the block: a fork server that still imports would start a worker that finds nobody."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    calls: list[tuple[Any, ...]] = []
    handler = signal.signal(signal.SIGINT, lambda *call: calls.append(call))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if calls and callable(handler):
        handler(*calls[0])


class _Slot(ctypes.Structure):
    """What a worker says of a task in work."""

    _fields_ = [
        ("worker", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("fetched", ctypes.c_int64),
        ("retries", ctypes.c_int64),
        ("wait", ctypes.c_char * 200),
    ]


class LocalEngine:
    """An `Engine` of ``procs`` worker processes, kept from one ``run`` that does not fail to the next, and ended by `close`.

    ``modules``, which the work needs, are imported before workers are forked. ``memory``: bytes that a worker may take where C
    libraries read files in it (`memory_for`); a worker that takes more, or crashes, is then an error of the file. ``procs`` 0:
    the work is done in the calling process.
    """

    def __init__(self, procs: int, modules: Sequence[str] = (), *, memory: int | None = None) -> None:
        self.parallel, self.separate = max(1, procs), procs > 0
        self.name = f"local, {self.parallel} process{'' if self.parallel == 1 else 'es'}"
        self.on_output: OnOutput = write_to_stderr
        self._memory = memory
        self._context = _Context([__name__, *modules]) if procs else None
        self._pool: _Pool | None = None

    def prepare(self) -> None:
        """Start importing ``modules``, which takes seconds, in the background."""
        if self._context is not None:
            self._context.prepare()

    def run(self, work: Work[T], tasks: Sequence[T], report: Report) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield ``(task index, record)`` as tasks finish. The first failure stops all processes."""
        if self._context is None:
            yield from _run_here(work, tasks, report)
            return
        if self._pool is None:
            self._pool = _Pool(self._context, self.parallel, self._memory, lambda line: self.on_output(line))
        idle = False
        try:
            yield from self._pool.run(work, tasks, report)
            idle = True
        finally:
            if not idle:
                self.close()  # none may still write when the dataset's lock is released

    def close(self) -> None:
        """Kill the workers, idle ones too: a regular exit takes a second. The next ``run`` starts new ones."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()


class _Pool:
    """The executor of a `LocalEngine`, with the slots of its tasks."""

    def __init__(self, context: _Context, procs: int, memory: int | None, on_output: OnOutput) -> None:
        self._context, self._memory = context, memory
        self._slots = context.RawArray(_Slot, AHEAD * procs)
        self._output = OutputPipe(on_output)
        context.workers.clear()
        self._executor = ProcessPoolExecutor(
            procs, context, _begin, (self._slots, self._output.sender, dict(os.environ), memory)
        )

    def run(self, work: Work[T], tasks: Sequence[T], report: Report) -> Iterator[tuple[int, dict[str, Any]]]:
        import cloudpickle  # functions of scripts and notebooks travel by value

        left = iter(tasks)
        free = list(range(len(self._slots)))
        running: dict[Future[dict[str, Any]], tuple[int, T]] = {}
        try:
            while True:
                while free and (task := next(left, None)) is not None:
                    slot = free.pop()
                    self._slots[slot] = _Slot()
                    running[self._executor.submit(_do, cloudpickle.dumps((work, task)), slot)] = slot, task
                if not running:
                    return
                done, _ = wait(running, timeout=POLL, return_when=FIRST_COMPLETED)
                self._output.forward()
                report([_progress(task, self._slots[slot]) for slot, task in running.values() if self._is_begun(slot)])
                for future in done:
                    record = future.result()
                    slot, task = running.pop(future)
                    free.append(slot)
                    yield task.index, record
        except BrokenProcessPool as error:
            self._executor.shutdown(wait=True)
            raise self._lost(dict(running.values())) from error

    def _is_begun(self, slot: int) -> bool:
        return bool(self._slots[slot].rows or self._slots[slot].wait)

    def _lost(self, held: dict[int, Any]) -> Exception:
        """The error for a worker that died; ``held`` are the tasks by their slots."""
        codes = {worker.pid: worker.exitcode for worker in self._context.workers if worker.pid is not None}
        # The executor ends the others by SIGTERM.
        first = next((pid for pid, code in codes.items() if code not in (None, 0, -signal.SIGTERM)), None)
        code = -signal.SIGTERM if first is None else codes[first]
        labels = [task.label for slot, task in held.items() if self._slots[slot].worker == first]
        labels = labels or [task.label for task in held.values()]
        what = labels[0] + (f", or on one of {len(labels) - 1} others" if len(labels) > 1 else "")
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        if code in (-signal.SIGTERM, -getattr(signal, "SIGKILL", 9), 255):  # 255: its fork server was killed
            message = (
                f"the process that worked on {what} was killed ({how}), perhaps by the system because memory ran out"
            )
            return WorkerLostError(message, hint=f"{_AGAIN}; fewer --procs need less memory")
        if self._memory is not None:
            return CorruptSourceError(f"{what} cannot be read: its reader crashed ({how})", hint=_REPLACE)
        return WorkerLostError(f"the process that worked on {what} crashed ({how})", hint=_AGAIN)

    def close(self) -> None:
        for worker in self._context.workers:
            if worker.pid is not None:
                worker.kill()
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._output.close()


_AGAIN = "run the command again: finished parts are kept"
_REPLACE = "fetch it again, or use another mirror (--mirror)"


def _progress(task: WorkUnit, slot: Any) -> TaskProgress:
    waits = slot.wait.decode(errors="replace")
    return TaskProgress(task.index, slot.rows, task.rows, slot.fetched, slot.retries, waits)


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


# -- in a worker -------------------------------------------------------------------------------------------------------

_slots: Any = None
_memory: int | None = None


def _begin(slots: Any, output: Any, environment: dict[str, str], memory: int | None) -> None:
    global _slots, _memory
    _slots, _memory = slots, memory
    begin(output, environment, memory)


def _do(payload: bytes, number: int) -> dict[str, Any]:
    """Do one task, pickled by the program itself, and write its progress into a slot."""
    slot = _slots[number]
    slot.worker = os.getpid()
    work, task = pickle.loads(payload)

    def on_block(rows: int, fetched: int, retries: int) -> None:
        slot.rows, slot.fetched, slot.retries, slot.wait = rows, fetched, retries, b""

    def on_wait(text: str, seconds: float) -> None:
        slot.wait = text.encode()[:200]

    try:
        with retries.listen(on_wait):
            record: dict[str, Any] = work(task, on_block)
            return record
    except MemoryError as error:
        if _memory is None:
            raise
        message = f"{task.label} cannot be read: that takes more than {_memory >> 20} MiB of memory"
        raise CorruptSourceError(message, hint=_REPLACE) from error
    finally:
        flush_output()


# -- tasks -------------------------------------------------------------------------------------------------------------


def run_tasks(
    tasks: Sequence[Task], procs: int, report: Report, engine: Engine | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield ``(task index, record)`` as tasks finish, in any order: by an ``engine``, or in ``procs`` processes (0: here).

    An exception of a task ends the others and is raised, and so is KeyboardInterrupt; tasks yielded before that stay done.
    """
    if engine is not None:
        yield from engine.run(do_task, tasks, report)
    elif tasks:
        with closing(LocalEngine(min(procs, len(tasks)), modules_of(tasks[0]))) as workers:
            yield from workers.run(do_task, tasks, report)


@dataclass(frozen=True)
class _Call:
    """A call of a function, as a task."""

    label: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    index: int = 0
    rows: int = -1

    def __call__(self, on_block: OnBlock) -> dict[str, Any]:
        return {"result": self.function(*self.args, lambda done, total: on_block(done, total, 0))}


def call(
    engine: LocalEngine,
    label: str,
    function: Callable[..., Any],
    *args: Any,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Any:
    """``function(*args, on_progress)`` on an engine; ``label`` is what it reads."""

    def report(tasks: list[TaskProgress]) -> None:
        for one in tasks:
            on_progress(one.rows, one.fetched)

    if not engine.separate:
        return function(*args, on_progress)
    ((_, record),) = engine.run(do_task, [_Call(label, function, args)], report)
    return record["result"]


def threads_of_task(procs: int, engine: Engine | None) -> int:
    """How many threads each of ``procs`` tasks may use side by side; on a cluster a task has one processor."""
    return 1 if engine is not None else max(1, usable_cpus() // max(1, procs))
