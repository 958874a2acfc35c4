"""The lock of a buffer; `prefetch` says who waits for whom."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import UsageError
from .pipeline import Pipeline
from .prefetch import wait_for
from .samplers.sampler import Sampler
from .storages.storage import Storage
from .writers import Writer


class LockMixin:
    """The part of `ReplayBuffer` that keeps threads and forked processes apart."""

    _lock: threading.RLock
    _saving: threading.RLock
    _made_in: int
    _pipeline: Pipeline
    _storage: Storage
    _sampler: Sampler
    _writer: Writer

    def _make_lock(self) -> None:
        self._lock = threading.RLock()
        self._saving = threading.RLock()  # held while a checkpoint is written or read, outside of the other
        self._made_in = os.getpid()
        _buffers[id(self)] = self

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Rows may be written: nobody reads, and nothing is left to be read of what was drawn."""
        self._check_process()
        with self._lock:
            self._pipeline.prepare_write()
            with self._storage.write_lock:
                yield

    def _check_process(self) -> None:
        """Raise UsageError in a process whose sampler or writer is a copy, while the rows are shared with the original."""
        if self._made_in == os.getpid() or not self._storage.is_shared:
            return
        for part in (self._sampler, self._writer):
            if part.values_per_row:
                message = f"a {type(part).__name__} keeps values of every row in the process that made the buffer"
                raise UsageError(message, hint="write in that process, or sample without priorities and rank keys")

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Anything may be changed: what was drawn ahead is taken back, and was waited for before the lock was taken."""
        with self._lock:
            running = self._pipeline.rewind()
        wait_for(running)
        with self._lock:
            self._pipeline.rewind()
            with self._storage.write_lock:
                yield

    def _after_fork(self) -> None:
        self._lock, self._saving = threading.RLock(), threading.RLock()
        pipeline: Pipeline | None = self.__dict__.get("_pipeline")
        if pipeline is not None:
            pipeline.after_fork(self._lock)


_buffers: weakref.WeakValueDictionary[int, LockMixin] = weakref.WeakValueDictionary()


_held = threading.local()
#: A fork waits so long, in seconds, for the locks of all buffers, so that the child's copies are of one moment.
PATIENCE = 2.0


def _living() -> list[LockMixin]:
    buffers = (reference() for reference in _buffers.valuerefs())
    return sorted((buffer for buffer in buffers if buffer is not None), key=id)


def _before_fork() -> None:
    locks = [buffer._lock for buffer in _living()]
    _held.locks = [lock for lock in locks if lock.acquire(timeout=PATIENCE)]


def _after_fork_in_parent() -> None:
    for lock in _held.__dict__.pop("locks", ()):
        lock.release()


def _after_fork() -> None:
    """In a child process: locks may be held by threads that only the parent has."""
    _held.__dict__.clear()
    for buffer in _living():
        buffer._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork)
