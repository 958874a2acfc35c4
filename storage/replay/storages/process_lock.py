"""A lock between processes that write to one storage."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from typing import Any

from ....errors import UsageError
from ....scratch import ScratchFolder


class ProcessLock:
    """Held by one thread of one process at a time, by ``flock`` on a file; not reentrant between different objects.

    Without a ``path`` the file is a temporary one of the process that makes the lock, and goes with it. Copies made by
    pickling or forking are the same lock. ``depth`` is how often its thread has taken it.
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
        if self._process != os.getpid():  # after a fork the file is still that of the parent, and its lock as well
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
