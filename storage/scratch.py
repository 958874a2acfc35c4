"""Temporary folders that are removed when their process ends, and checks whether a process is running.

A process holds a lock (``flock``) on its folder, which the system releases when the process ends, however it ends. The next
process of the same user on the same machine that makes such a folder in the same place removes folders that no process holds.
On a file system without such locks, it removes folders whose process, identified by the number in their names, has ended.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import weakref
import zlib
from contextlib import suppress
from pathlib import Path

from .durable import hold


class ScratchFolder:
    """An empty folder below ``parent`` (None: the system's folder for temporary files).

    It is removed with the object, at the end of the ``with`` block or by ``remove()``, whichever comes first; a forked
    process never removes it. Raises OSError if no folder can be made.
    """

    def __init__(self, parent: Path | None = None, prefix: str = "rbdata-") -> None:
        top = Path(tempfile.gettempdir()) if parent is None else parent
        prefix = f"{prefix}{machine()}-"
        _sweep(top, prefix)
        held = None
        while held is None:  # repeated if another process removed it as abandoned before it was locked
            self.path = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=top))
            held = _hold(self.path, unlockable=True)
        #: A short path for this process on Linux, because the folder's path may be too long for a socket (108 bytes).
        self.short_path = f"/proc/self/fd/{held}"
        self.remove = weakref.finalize(self, _remove, self.path, held, os.getpid())

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()


def _remove(folder: Path, held: int, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _sweep(top: Path, prefix: str) -> None:
    """Remove the folders of processes that were killed."""
    with suppress(OSError), os.scandir(top) as entries:
        for entry in [entry for entry in entries if entry.name.startswith(prefix)]:
            with suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid != os.geteuid():
                    continue
                pid = entry.name[len(prefix) :].partition("-")[0]
                is_over = pid.isdecimal() and not is_running(int(pid))
                if (held := _hold(Path(entry.path), unlockable=is_over)) is not None:
                    shutil.rmtree(entry.path, ignore_errors=True)
                    os.close(held)


def _hold(folder: Path, *, unlockable: bool) -> int | None:
    """Open and lock a folder, or only open it without locks (``unlockable``); None if it is held or missing."""
    try:
        return hold(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    except OSError:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC) if unlockable else None


def is_running(pid: int) -> bool:
    """Whether a process with this number is running on this machine, of any user."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # another user's
    return True


def pid_space() -> str:
    """The identity of the container's process numbers: containers may share a host name."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def machine() -> str:
    """Eight hex digits that identify the scope in which process numbers are unique."""
    return f"{zlib.crc32(f'{socket.gethostname()} {pid_space()}'.encode()):08x}"
