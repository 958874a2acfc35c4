"""The local engine: runs tasks in worker processes of this machine, or in this process, and reports their progress.

`concurrent.futures` manages the processes and detects when one dies. On Linux they are forked from `multiprocessing`'s fork
server, which imports what they need once: torch takes three seconds. Elsewhere they are fresh interpreters. Progress is
reported through shared counters, a slot for each task in work: no queue can fill up, and a slot says which task a worker held
when it died. What workers print arrives through one pipe, and the main process prints it line by line, so that it neither
breaks a progress bar nor ends up in the JSON that a command prints.
"""

from __future__ import annotations

import copy
import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from ...errors import CorruptSourceError, WorkerLostError
from ..fetch import retries
from .task import OnOutput, Report, T, Work, progress_of, write_to_stderr

#: Seconds between two reads of the counters.
POLL = 0.2
#: Tasks submitted per process: one to run and one to wait, so that no worker waits for the parent.
AHEAD = 2

_AGAIN = "run the command again: finished parts are kept"
_REPLACE = "fetch it again, or use another mirror (--mirror)"


class LocalEngine:
    """An `Engine` of ``procs`` worker processes, kept from one ``run`` that does not fail to the next, and ended by `close`.

    ``modules``, which the work needs, are imported before workers are forked. ``memory``: bytes that a worker may take where C
    libraries read files in it (`memory_for`); a worker that takes more, or crashes, is then an error of the file.
    """

    def __init__(self, procs: int, modules: Sequence[str] = (), *, memory: int | None = None) -> None:
        self.parallel = procs
        self.name = f"local, {self.parallel} process{'' if self.parallel == 1 else 'es'}"
        self.on_output: OnOutput = write_to_stderr
        self._modules, self._memory = [__name__, *modules], memory
        self._pool: _Pool | None = None

    def run(self, work: Work[T], tasks: Sequence[T], report: Report) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield ``(task index, record)`` as tasks finish. The first failure stops all processes."""
        if self._pool is None:
            if _METHOD == "forkserver":
                _start_server(self._modules)
            self._pool = _Pool(self.parallel, self._memory, lambda line: self.on_output(line))
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


# -- starting workers --------------------------------------------------------------------------------------------------

# Windows has no fork, and on macOS a process that has loaded system frameworks is not safe to fork.
_METHOD = "forkserver" if sys.platform == "linux" else "spawn"


@contextmanager
def _starting() -> Iterator[None]:
    """Start the fork server, or workers, in this block.

    They see an empty main module, and so do not run the program's again: scripts need no ``if __name__ == "__main__"``. Ctrl-C
    acts at the end of the block, and never on the server: what it finds half started would print a traceback.
    """
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _start_server(modules: Sequence[str]) -> None:
    from multiprocessing import forkserver, resource_tracker

    resource_tracker.ensure_running()  # before the block, whose mask it would undo
    multiprocessing.set_forkserver_preload([*modules])
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"  # the server is a `python -c`: a json.py may be in the current directory
    try:
        with _starting():
            try:
                forkserver.ensure_running()
            except ChildProcessError:  # in a forked process: the server is its parent's
                server: Any = forkserver._forkserver
                os.close(server._forkserver_alive_fd)
                server._forkserver_pid = server._forkserver_alive_fd = server._forkserver_address = None
                forkserver.ensure_running()
    finally:
        del os.environ["PYTHONSAFEPATH"]
        if before is not None:
            os.environ["PYTHONSAFEPATH"] = before


class _Slot(ctypes.Structure):
    """What a worker says of a task in work."""

    _fields_ = [
        ("worker", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("fetched", ctypes.c_int64),
        ("retries", ctypes.c_int64),
        ("wait", ctypes.c_char * 200),
    ]


class _Pool:
    """The executor of a `LocalEngine`, with its processes, the slots of its tasks, and the pipe of what they print."""

    def __init__(self, procs: int, memory: int | None, on_output: OnOutput) -> None:
        self._memory, self._on_output = memory, on_output
        self._workers: list[Any] = []
        context: Any = copy.copy(multiprocessing.get_context(_METHOD))
        make = context.Process

        def make_and_keep(*args: Any, **kwargs: Any) -> Any:
            self._workers.append(make(*args, **kwargs))
            return self._workers[-1]

        context.Process = make_and_keep
        self._slots = context.RawArray(_Slot, AHEAD * procs)
        self._receiver, self._sender = multiprocessing.Pipe(duplex=False)
        os.set_blocking(self._receiver.fileno(), False)
        self._line = b""
        arguments = self._slots, self._sender, dict(os.environ), memory
        self._executor = ProcessPoolExecutor(procs, context, _begin, arguments)

    def run(self, work: Work[T], tasks: Sequence[T], report: Report) -> Iterator[tuple[int, dict[str, Any]]]:
        import cloudpickle  # functions of scripts and notebooks travel by value

        left = iter(tasks)
        free = list(range(len(self._slots)))
        running: dict[Future[dict[str, Any]], tuple[int, T]] = {}
        try:
            while True:
                while free and (task := next(left, None)) is not None:
                    slot, payload = free.pop(), cloudpickle.dumps((work, task))
                    self._slots[slot] = _Slot()
                    with _starting():
                        running[self._executor.submit(_do, payload, slot)] = slot, task
                if not running:
                    return
                done, _ = wait(running, timeout=POLL, return_when=FIRST_COMPLETED)
                self._forward_output()
                held = [(task, self._slots[slot]) for slot, task in running.values()]
                report(
                    [
                        progress_of(task, slot.rows, slot.fetched, slot.retries, slot.wait.decode(errors="replace"))
                        for task, slot in held
                        if slot.rows or slot.wait
                    ]
                )
                for future in done:
                    record = future.result()
                    slot, task = running.pop(future)
                    free.append(slot)
                    yield task.index, record
        except BrokenProcessPool as error:
            self._executor.shutdown(wait=True)
            raise self._lost(dict(running.values())) from error

    def _forward_output(self) -> None:
        """Pass on the whole lines that have been printed. A progress bar rewrites its line after a carriage return."""
        with suppress(BlockingIOError):
            while block := os.read(self._receiver.fileno(), 1 << 16):
                *lines, self._line = (self._line + block).split(b"\n")
                for line in lines:
                    self._on_output(line.decode(errors="replace").rstrip("\r").rpartition("\r")[2])

    def _lost(self, held: dict[int, Any]) -> Exception:
        """The error for a worker that died; ``held`` are the tasks by their slots."""
        codes = {worker.pid: worker.exitcode for worker in self._workers}
        # The executor ends the others by SIGTERM.
        first = next((pid for pid, code in codes.items() if code not in (None, 0, -signal.SIGTERM)), None)
        code = -signal.SIGTERM if first is None else codes[first]
        labels = [task.label for slot, task in held.items() if self._slots[slot].worker == first]
        labels = labels or [task.label for task in held.values()]
        what = labels[0] + (f", or on one of {len(labels) - 1} others" if len(labels) > 1 else "")
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        if code in (-signal.SIGTERM, -signal.SIGKILL):
            message = (
                f"the process that worked on {what} was killed ({how}), perhaps by the system because memory ran out"
            )
            return WorkerLostError(message, hint=f"{_AGAIN}; fewer --procs need less memory")
        if self._memory is not None:
            return CorruptSourceError(f"{what} cannot be read: its reader crashed ({how})", hint=_REPLACE)
        return WorkerLostError(f"the process that worked on {what} crashed ({how})", hint=_AGAIN)

    def close(self) -> None:
        for worker in self._workers:
            if worker.pid is not None:
                worker.kill()
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._forward_output()
        if self._line:
            self._on_output(self._line.decode(errors="replace"))
        self._receiver.close()
        self._sender.close()


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
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limits = [limit for limit in (taken + memory, soft, hard) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))


def _end_with_parent() -> None:
    """End this process with the one that started it, busy or not: nobody reads the results."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


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
        with suppress(OSError, ValueError):  # a function may have closed it
            sys.stdout.flush()
        ctypes.CDLL(None).fflush(None)  # what C code has printed
