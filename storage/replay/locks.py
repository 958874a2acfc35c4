"""Locks and processes: a lock that processes share, and the locks of buffers during a fork."""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ..scratch import ScratchFolder


class ProcessLock:
    """A lock that one thread of one process holds at a time, by ``flock`` on a file; not reentrant between different objects.

    Without a ``path``, the process that makes the lock creates a temporary file, which is removed when the process ends. Copies
    made by pickling or forking are the same lock. ``depth``: how often the holding thread has taken it.
    """

    def __init__(self, path: Path | None = None) -> None:
        if path is None:
            self._scratch = ScratchFolder()
            path = self._scratch.path / "lock"
        self.path = path
        self._open()

    def _open(self) -> None:
        self._process, self._file, self.depth, self._thread = os.getpid(), -1, 0, threading.RLock()

    def __enter__(self) -> ProcessLock:
        if self._process != os.getpid():  # after a fork the file and its lock belong to the parent
            if self._file >= 0:
                os.close(self._file)
            self._open()
        self._thread.acquire()
        if not self.depth:
            try:
                if self._file < 0:
                    self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(self._file, fcntl.LOCK_EX)
            except BaseException as error:
                self._thread.release()
                if not isinstance(error, FileNotFoundError):
                    raise
                message = f"{self.path.parent} is gone: temporary files go with the process that made them"
                raise UsageError(message, hint="let that process end last, or name a scratch_dir") from error
        self.depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        if not self.depth:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self._thread.release()

    def __del__(self) -> None:
        if self._file >= 0 and self._process == os.getpid():
            os.close(self._file)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.path = state["path"]
        self._open()


# -- forks: the buffers of a child process are copies of one moment, with locks that nobody holds -----------------------

#: Maximum seconds that a fork waits for the locks of all buffers, so that the child's copies are consistent.
PATIENCE = 2.0

#: Each has a ``_lock``, and ``_after_fork()``, which makes new locks and forgets the threads of the parent.
_buffers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_held = threading.local()


def watch_forks(buffer: Any) -> None:
    """Hold the buffer's lock during forks of this process, from now on and as long as the buffer lives."""
    _buffers[id(buffer)] = buffer


def _living() -> list[Any]:
    buffers = (reference() for reference in _buffers.valuerefs())
    return sorted((buffer for buffer in buffers if buffer is not None), key=id)


def _before_fork() -> None:
    locks = [buffer._lock for buffer in _living()]
    _held.locks = [lock for lock in locks if lock.acquire(timeout=PATIENCE)]


def _after_fork_in_parent() -> None:
    for lock in _held.__dict__.pop("locks", ()):
        lock.release()


def _after_fork_in_child() -> None:
    """Locks may be held by threads that only the parent has."""
    _held.__dict__.clear()
    for buffer in _living():
        buffer._after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
