"""A child process for C libraries that read a provider's files: a crash, excessive memory or a hang becomes an error.

Libraries that read HDF5, Arrow and Parquet trust their input. A damaged or hostile file makes them end the process, allocate
whatever size it states, or loop forever. So their part of a job runs in a child process (`Sandbox`) with a memory limit and a
deadline; if the child ends, a CorruptSourceError names the file. Worker processes (`local_engine`) have the same limit
(`limited`) and deadline. On systems without such a limit (macOS, Windows), only the process boundary protects.

The child is forked from this process if that is safe, which takes some milliseconds: on Linux, while no other thread can hold
a lock. Otherwise a fork server, started once per thread, forks it.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]  # what loky does as well
from pathlib import Path
from typing import Any

from ...errors import CorruptSourceError, WorkerLostError
from .worker_process import end_with_parent, fork_server_is_available

#: Memory limit of a reader in bytes: a base, and bytes per byte of its files.
_MEMORY, _MEMORY_A_BYTE = 1 << 30, 4
#: Limit of a result in bytes, likewise: every row may have an episode, and a flag of each kind.
_RESULT, _RESULT_A_BYTE = 1 << 28, 8
#: Seconds without progress: a base, and one more second for this many bytes.
_PATIENCE, _BYTES_A_SECOND = 60.0, 1 << 20
#: Exit codes of a process killed from outside: by the system out of memory, by a user, or with its fork server.
_KILLED = (-getattr(signal, "SIGKILL", 9), -signal.SIGTERM, 255)
_HINT = "fetch it again, or use another mirror (--mirror)"


@dataclass(frozen=True)
class RawFiles:
    """The files to read: their name in messages, and their size in bytes."""

    name: str
    size: int

    @property
    def memory(self) -> int:
        """Bytes of memory that reading them may take."""
        return _MEMORY + _MEMORY_A_BYTE * self.size

    @property
    def patience(self) -> float:
        """Seconds that reading them may take without progress."""
        return _PATIENCE + self.size / _BYTES_A_SECOND

    def unreadable(self, why: str) -> CorruptSourceError:
        return CorruptSourceError(f"{self.name} cannot be read: {why}", hint=_HINT)


@contextmanager
def limited(files: RawFiles | None) -> Iterator[None]:
    """Limit the additional memory of this process inside the block to ``files.memory``; None: no limit."""
    if files is None or sys.platform != "linux":
        yield
        return
    import resource

    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # Arrow's own pool reserves a gigabyte at once
    if "pyarrow" in sys.modules:
        arrow = sys.modules["pyarrow"]
        arrow.set_memory_pool(arrow.system_memory_pool())
        if "mimalloc" in arrow.supported_memory_backends():  # parts of Arrow keep using it: have it reserve now
            arrow.allocate_buffer(1, memory_pool=arrow.mimalloc_memory_pool())
    before = resource.getrlimit(resource.RLIMIT_DATA)
    taken = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    limits = [one for one in (taken + files.memory, *before) if one != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), before[1]))
    try:
        yield
    except MemoryError as error:
        raise files.unreadable(f"that takes more than {files.memory >> 20} MiB of memory") from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


class Sandbox:
    """Calls functions with ``subject`` in a child process, which the first call starts and the end of the block kills.

    ``modules`` are those that the functions need, for a fork server to import. Calls change the subject only in the child.
    """

    def __init__(self, subject: Any, files: RawFiles, modules: Sequence[str] = ()) -> None:
        self._subject, self._files, self._modules = subject, files, modules
        self._process: Any = None
        self._connection: Any = None

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, function: Callable[..., Any], *args: Any, on_progress: Callable[..., None] = lambda *_: None) -> Any:
        """``function(subject, on_progress, *args)``, whose exceptions are raised here.

        Raises CorruptSourceError if the process ends, takes too much memory, or makes no progress (neither calls
        ``on_progress`` nor returns), and WorkerLostError if it was killed.
        """
        if self._process is None:
            self._start()
        try:
            self._connection.send((function, args))
            while True:
                if not self._connection.poll(self._files.patience):
                    raise self._files.unreadable(f"no progress for {self._files.patience:.0f} s")
                kind, content = pickle.loads(self._receive())
                if kind == "progress":
                    on_progress(*content)
                elif kind == "error":
                    raise content
                else:
                    return content
        except (EOFError, ConnectionError):
            raise self._ended() from None

    def _receive(self) -> bytes:
        try:
            received: bytes = self._connection.recv_bytes(_RESULT + _RESULT_A_BYTE * self._files.size)
            return received
        except (EOFError, ConnectionError):
            raise
        except OSError as error:
            raise self._files.unreadable("its contents take too much memory") from error

    def _start(self) -> None:
        context = _context(self._modules)
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._subject, self._files), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads that native libraries have started
            self._process.start()
        theirs.close()

    def _ended(self) -> Exception:
        self._process.join()
        code = self._process.exitcode
        if code in _KILLED:
            why = "perhaps by the system because memory ran out"
            return WorkerLostError(f"the process that read {self._files.name} was killed, {why}")
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return self._files.unreadable(f"its reader crashed ({how})")

    def close(self) -> None:
        """Kill the process, even if it is busy."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._process = None


def _serve(connection: Any, subject: Any, files: RawFiles) -> None:
    """In the child: serve calls until the parent ends or closes the connection."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.disable()  # a crash is reported by the parent
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))

    def on_progress(*numbers: int) -> None:
        connection.send(("progress", numbers))

    with suppress(EOFError, ConnectionError):  # the parent has ended
        while True:
            function, args = connection.recv()
            connection.send_bytes(_call(files, function, subject, on_progress, args))


def _call(files: RawFiles, function: Callable[..., Any], subject: Any, on_progress: Any, args: Any) -> bytes:
    try:
        with limited(files):
            return pickle.dumps(("result", function(subject, on_progress, *args)))
    except Exception as error:
        try:
            return pickle.dumps(("error", ExceptionWithTraceback(error, error.__traceback__)))
        except Exception:
            return pickle.dumps(("error", RuntimeError(f"{type(error).__name__}: {error}")))


# -- where the child comes from ----------------------------------------------------------------------------------------

#: Threads that never hold a lock that a forked child needs: they only touch a file, or print.
_HARMLESS = {"rbdata-lock", "rbdata-progress"}
#: Fork servers by thread and imported modules: a server ends with the thread that started it.
_servers = threading.local()


def _may_fork() -> bool:
    """Whether no other thread can hold a lock that would stay locked in a child."""
    others = {thread.name for thread in threading.enumerate() if thread is not threading.current_thread()}
    return others <= _HARMLESS and not _is_in_ray()


def _is_in_ray() -> bool:
    """Whether gRPC's threads run here, which are none of Python's: in a child its queues fail again and again."""
    ray: Any = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def _context(modules: Sequence[str]) -> Any:
    """The `multiprocessing` context that starts a child."""
    if not fork_server_is_available():
        from loky.backend import get_context as loky_context

        return loky_context("loky")
    if _may_fork():
        return get_context("fork")
    from .fork_server import ForkServer

    servers = vars(_servers).setdefault(str(os.getpid()), {})  # a forked process has none yet
    if tuple(modules) not in servers:
        servers[tuple(modules)] = ForkServer([__name__, *modules])
    return servers[tuple(modules)].context
