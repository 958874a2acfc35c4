"""The writer's lock: one writer per dataset, from the plan to the rename.

It is a `filelock.FileLock`, which the system releases when its process ends, however it ends. While it is held, its file names
the owner, for messages. Who releases it removes the file; in those that wait, `filelock` notices that, and locks a new one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout

from ..errors import DatasetBusyError

Done = TypeVar("Done")

#: The locks of this process by path, and the threads that took them.
_holders: dict[str, int] = {}


class WriterLock:
    """Context manager that holds ``path`` as the writer's lock; raises DatasetBusyError when another process has it."""

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self.what = what
        self._lock = FileLock(path, blocking=False, thread_local=False)

    def __enter__(self) -> WriterLock:
        for last in (False, False, True):
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._lock.acquire()
                break
            except Timeout:
                raise self._busy() from None
            except FileNotFoundError:  # another process that deleted the last dataset of the folder removed the folder
                if last:
                    raise
        _holders[str(self.path)] = threading.get_ident()
        with contextlib.suppress(OSError):  # it only informs
            owner = f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%H:%M:%S')}"
            self.path.write_text(owner)
        return self

    def __exit__(self, *_: object) -> None:
        _holders.pop(str(self.path), None)
        with contextlib.suppress(OSError):
            self.path.unlink()
        self._lock.release()

    def check_free(self) -> None:
        """Raise DatasetBusyError if a running process has the lock; other obstacles to taking it are ignored."""
        if self.is_held():
            raise self._busy()

    def is_held(self) -> bool:
        """Return whether a running process has the lock."""
        if not self.path.is_file():
            return False
        try:
            with FileLock(self.path, blocking=False):
                return False
        except Timeout:
            return True
        except OSError:
            return False

    def _busy(self) -> DatasetBusyError:
        owner = "another process"
        with contextlib.suppress(OSError), self.path.open("rb") as file:
            owner = "".join(filter(str.isprintable, file.read(200).decode(errors="replace"))) or owner
        error = DatasetBusyError(f"{self.what} is being written by {owner}", hint="wait for it, or stop it")
        if _holders.get(str(self.path)) != threading.get_ident():  # a thread that waits for itself waits forever
            error.is_held = self.is_held
        return error


# -- waiting for another process --------------------------------------------------------------------------------

#: Seconds between two checks of another process's lock.
_POLL = 0.5
#: The stage of a run while it waits for another process.
WAITING = "waiting for another process"


def when_free(
    action: Callable[[], Done], wait: bool, on_note: Callable[[str], None], on_stage: Callable[[str], None]
) -> Done:
    """Return the result of ``action``. If another process holds the lock, and with ``wait``, waits for that and calls it again.

    The second call finds what the other process finished, and continues with the rest. ``on_note`` receives a sentence for
    every process that is waited for.
    """
    announced = ""
    while True:
        try:
            return action()
        except DatasetBusyError as error:
            if error.is_held is None or not wait:
                raise
            on_stage(WAITING)
            if error.message != announced:
                announced = error.message
                on_note(f"{announced}; waiting for it to end")
            busy = error.is_held
        while busy():
            time.sleep(_POLL)
