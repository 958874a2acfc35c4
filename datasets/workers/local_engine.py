"""The local engine: tasks in worker processes of this machine.

`concurrent.futures` manages the processes and detects when one dies. On Linux they are forked from `multiprocessing`'s fork
server, which imports what they need once: torch takes three seconds. Elsewhere they are fresh interpreters. Progress is
reported through shared counters, a slot for each task in work: no queue can fill up, and a slot says which task a worker held
when it died. What workers print arrives through one pipe, and the main process prints it line by line, so that it neither
breaks a progress bar nor ends up in the JSON that a command prints.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from ...errors import CorruptSourceError, WorkerLostError
from ..fetch import retries
from .task import Engine, Report, T, Task, TaskProgress, Work, progress_of

#: Seconds between two reads of the counters.
POLL = 0.2
#: Tasks submitted per process: one to run and one to wait, so that no worker waits for the parent.
AHEAD = 2
#: Windows has no fork, and on macOS a process that has loaded system frameworks is not safe to fork.
METHOD = "forkserver" if sys.platform == "linux" else "spawn"

_AGAIN = "run the command again: finished parts are kept"
_REPLACE = "fetch it again, or use another mirror (--mirror)"


class _Slot(ctypes.Structure):
    """What a worker says of a task in work."""

    _fields_ = [
        ("worker", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("fetched", ctypes.c_int64),
        ("retries", ctypes.c_int64),
        ("wait", ctypes.c_char * 200),
    ]


class LocalEngine(Engine):
    """An `Engine` of ``procs`` worker processes, kept from one ``run`` that does not fail to the next, and ended by `close`.

    ``modules``, which the work needs, are imported before workers are forked. ``memory``: bytes that a worker may take where C
    libraries read files in it (`memory_for`); a worker that takes more, or crashes, is then an error of the file.
    """

    def __init__(self, procs: int, modules: Sequence[str] = (), *, memory: int | None = None) -> None:
        self.parallel, self.name = procs, f"local, {procs} process{'' if procs == 1 else 'es'}"
        self._modules, self._memory = [__name__, *modules], memory
        self._executor: ProcessPoolExecutor | None = None

    def run(self, work: Work[T], tasks: Sequence[T], report: Report) -> Iterator[tuple[int, Any]]:
        """See `Engine.run`. The first failure ends all processes."""
        if self._executor is None:
            self._executor = self._start()
        try:
            yield from self._run(self._executor, work, iter(tasks), report)
        except BaseException:
            self.close()  # none may still write when the dataset's lock is released
            raise

    def close(self) -> None:
        """Kill the workers, idle ones too: a regular exit takes a second. The next ``run`` starts new ones."""
        executor, self._executor = self._executor, None
        if executor is None:
            return
        for worker in [*self._workers.values()]:
            worker.kill()
        executor.shutdown(cancel_futures=True)
        self._forward_output()
        if self._line:
            self.on_output(self._line.decode(errors="replace"))
        self._printed.close()

    def _start(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context(METHOD)
        if METHOD == "forkserver":
            _start_server(self._modules)
        self._slots: Any = context.RawArray(_Slot, AHEAD * self.parallel)
        self._printed, sender = context.Pipe(duplex=False)
        os.set_blocking(self._printed.fileno(), False)
        self._line = b""
        begin = self._slots, sender, dict(os.environ), self._memory
        executor = ProcessPoolExecutor(self.parallel, context, _begin, begin)
        #: By process id; they are kept here when the executor is broken.
        self._workers = executor._processes
        return executor

    def _run(
        self, executor: ProcessPoolExecutor, work: Work[T], left: Iterator[T], report: Report
    ) -> Iterator[tuple[int, Any]]:
        import cloudpickle  # functions of scripts and notebooks travel by value

        free = list(range(len(self._slots)))
        running: dict[Future[Any], tuple[T, int]] = {}
        while True:
            try:
                while free and (task := next(left, None)) is not None:
                    payload, slot = cloudpickle.dumps((work, task)), free.pop()
                    self._slots[slot] = _Slot()
                    with _starting():
                        running[executor.submit(_do, payload, slot)] = task, slot
                if not running:
                    return
                done, _ = wait(running, timeout=POLL, return_when=FIRST_COMPLETED)
                self._forward_output()
                report(self._progress(running.values()))
                records = {future: future.result() for future in done}
            except BrokenProcessPool as error:
                executor.shutdown()
                raise self._lost([held for future, held in running.items() if future.exception()]) from error
            for future, record in records.items():
                task, slot = running.pop(future)
                free.append(slot)
                yield task.index, record

    def _progress(self, running: Iterable[tuple[Task, int]]) -> list[TaskProgress]:
        said = ((task, self._slots[slot]) for task, slot in running)
        return [
            progress_of(task, slot.rows, slot.fetched, slot.retries, slot.wait.decode(errors="replace"))
            for task, slot in said
            if slot.rows or slot.wait
        ]

    def _forward_output(self) -> None:
        """Pass on the whole lines that have been printed. A progress bar rewrites its line after a carriage return."""
        with suppress(BlockingIOError):
            while block := os.read(self._printed.fileno(), 1 << 16):
                *lines, self._line = (self._line + block).split(b"\n")
                for line in lines:
                    self.on_output(line.decode(errors="replace").rstrip("\r").rpartition("\r")[2])

    def _lost(self, running: Iterable[tuple[Task, int]]) -> Exception:
        """The error for a worker that died."""
        # The executor ends the others by SIGTERM.
        codes = {worker.pid: worker.exitcode or 0 for worker in self._workers.values()}
        pid, code = next((one for one in codes.items() if one[1] not in (0, -signal.SIGTERM)), (None, -signal.SIGTERM))
        labels = [task.label for task, slot in running if self._slots[slot].worker == pid]
        what = " or ".join(labels or [task.label for task, _ in running])
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        if code in (-signal.SIGTERM, -signal.SIGKILL):
            message = (
                f"the process that worked on {what} was killed ({how}), perhaps by the system because memory ran out"
            )
            return WorkerLostError(message, hint=f"{_AGAIN}; fewer --procs need less memory")
        if self._memory is not None:
            return CorruptSourceError(f"{what} cannot be read: its reader crashed ({how})", hint=_REPLACE)
        return WorkerLostError(f"the process that worked on {what} crashed ({how})", hint=_AGAIN)


# -- starting workers --------------------------------------------------------------------------------------------------


@contextmanager
def _starting() -> Iterator[None]:
    """Start the fork server, or workers, in this block.

    They see an empty main module, and so do not run the program's again: scripts need no ``if __name__ == "__main__"``. Ctrl-C
    acts at the end of the block, and never on the server: what it finds half started would print a traceback. So does an alarm:
    the command line sets one when Ctrl-C comes during an import. The mask is for the server, which inherits it; here, another
    thread may get the signal.
    """
    main, handlers, interrupts = sys.modules["__main__"], dict[int, Any](), list[int]()
    if threading.current_thread() is threading.main_thread():
        for late in (signal.SIGINT, signal.SIGALRM):
            handlers[late] = signal.signal(late, lambda number, frame: interrupts.append(number))
    mask, sys.modules["__main__"] = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}), ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in interrupts:
            signal.raise_signal(number)


def _start_server(modules: Sequence[str]) -> None:
    from multiprocessing import forkserver, resource_tracker

    multiprocessing.set_forkserver_preload([*modules])
    is_unset = "PYTHONSAFEPATH" not in os.environ
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # both are a `python -c`: the current directory may have a random.py
    try:
        resource_tracker.ensure_running()  # before the block, whose mask it would undo
        with _starting():
            try:
                forkserver.ensure_running()
            except ChildProcessError:  # in a forked process: the server is its parent's
                server: Any = forkserver._forkserver
                server._forkserver_pid = server._forkserver_address = None
                forkserver.ensure_running()
    finally:
        if is_unset:
            del os.environ["PYTHONSAFEPATH"]


# -- in a worker -------------------------------------------------------------------------------------------------------

_slots: Any = None
_memory: int | None = None


def _begin(slots: Any, output: Any, environment: dict[str, str], memory: int | None) -> None:
    """The initializer of a worker. ``environment`` is the program's today, which that of its fork server may not be."""
    global _slots, _memory
    _slots, _memory = slots, memory
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    output.close()
    # A line of up to 4,096 bytes is written to a pipe atomically (POSIX, ``PIPE_BUF``): lines of several workers do not mix.
    sys.stdout = sys.stderr = open(1, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    if memory is not None and sys.platform == "linux":
        import resource

        taken = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        limits = resource.getrlimit(resource.RLIMIT_DATA)
        least = min(limit for limit in (taken + memory, *limits) if limit != resource.RLIM_INFINITY)
        resource.setrlimit(resource.RLIMIT_DATA, (least, limits[1]))


def _end_with_parent() -> None:
    """End this process with the one that started it, busy or not: nobody reads the results."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _do(payload: bytes, number: int) -> Any:
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
            return work(task, on_block)
    except MemoryError as error:
        if _memory is None:
            raise
        message = f"{task.label} cannot be read: that takes more than {_memory >> 20} MiB of memory"
        raise CorruptSourceError(message, hint=_REPLACE) from error
    finally:
        with suppress(OSError, ValueError):  # a function may have closed it
            sys.stdout.flush()
        ctypes.CDLL(None).fflush(None)  # what C code has printed
