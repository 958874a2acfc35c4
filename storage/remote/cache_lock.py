"""Readers and writers of a cache, in all threads and processes of a machine.

A reader holds the shared lock while it copies rows out of blocks that are there; who takes blocks away holds the exclusive
one. Both are ``flock``, which the system releases when a process ends, however it ends. A writer also closes a second lock
through which every reader passes, or a steady stream of readers would keep it waiting for ever.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OFD_LOCK = getattr(fcntl, "F_OFD_SETLK", None)
_STRUCT_FLOCK = "hhqqi"


class CacheLock:
    """The lock of the cache in a folder. Every thread has files of its own: locks belong to an open file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own = threading.local()

    @contextmanager
    def shared(self) -> Iterator[None]:
        main, gate = self._files()
        fcntl.flock(gate, fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        fcntl.flock(main, fcntl.LOCK_SH)
        try:
            yield
        finally:
            fcntl.flock(main, fcntl.LOCK_UN)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Not inside of `shared`."""
        main, gate = self._files()
        fcntl.flock(gate, fcntl.LOCK_EX)
        try:
            fcntl.flock(main, fcntl.LOCK_EX)
        finally:
            fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(main, fcntl.LOCK_UN)

    def _files(self) -> tuple[int, int]:
        main, gate = _of_thread(self._own, self._folder / ".rbdata-lock", self._folder / ".rbdata-gate")
        return main, gate


class Claims:
    """Which thread of which process fetches which block, so that no two fetch the same one: a locked byte a block.

    Where the system has no such locks every claim is granted: two processes then store the same bytes.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / ".rbdata-claims"
        self._own = threading.local()

    def take(self, number: int) -> bool:
        """Claim a number; False while another process, or another cache of this one, has it."""
        return self._set(number, fcntl.F_WRLCK)

    def release(self, number: int) -> None:
        """Give up a claim of this thread."""
        self._set(number, fcntl.F_UNLCK)

    def _set(self, number: int, kind: int) -> bool:
        import struct

        if _OFD_LOCK is None:
            return True
        (file,) = _of_thread(self._own, self._path)
        try:
            fcntl.fcntl(file, _OFD_LOCK, struct.pack(_STRUCT_FLOCK, kind, os.SEEK_SET, number, 1, 0))
        except (BlockingIOError, PermissionError):
            return False
        return True


def _of_thread(own: threading.local, *paths: Path) -> list[int]:
    """Open files to lock of this thread alone, as locks belong to an open file; a forked process opens its own."""
    files = getattr(own, "files", None)
    if files is None or files.process != os.getpid():
        files = own.files = _Files(paths)
    return files.opened


class _Files:
    """Open files of one thread, closed with it."""

    def __init__(self, paths: tuple[Path, ...]) -> None:
        self.process, self.opened = os.getpid(), []
        for path in paths:
            self.opened.append(open_lock(path))

    def __del__(self) -> None:
        for file in self.opened:
            os.close(file)


def open_lock(path: Path) -> int:
    """A file to lock, made where it is not there; never inherited by other programs."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
