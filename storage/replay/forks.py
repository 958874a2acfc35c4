"""Forks: the buffers of a child process are copies of one moment, with locks that nobody holds."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class Forked(Protocol):
    """What has a lock that a child process must not inherit in the hands of a thread of its parent."""

    _lock: threading.RLock

    def _after_fork(self) -> None:
        """In the child process: make new locks, and forget the parent's threads."""


#: A fork waits so long, in seconds, for the locks of all buffers, so that the child's copies are of one moment.
PATIENCE = 2.0

_buffers: weakref.WeakValueDictionary[int, Forked] = weakref.WeakValueDictionary()
_held = threading.local()


def watch_forks(buffer: Forked) -> None:
    """Hold the buffer's lock during forks of this process, from now on and as long as the buffer lives."""
    _buffers[id(buffer)] = buffer


def _living() -> list[Forked]:
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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
