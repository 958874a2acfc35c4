"""Temporary folders that are removed when the process that made them ends, and whether a process of a number is running.

A process holds a lock (``flock``) on its folder, which the system releases when the process ends, however it ends. The next
process of the same user on the same machine that makes such a folder in the same place removes those that none holds. On a
file system without such locks, it removes those whose process, by the number in their names, has ended.
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
    """An empty folder below ``parent`` (None: where the system keeps temporary files).

    It goes with the object, with the ``with`` block or with ``remove()``, whichever ends first; what a forked process does
    with the object removes nothing. Raises OSError where no folder can be made.
    """

    def __init__(self, parent: Path | None = None, prefix: str = "rbdata-") -> None:
        top = Path(tempfile.gettempdir()) if parent is None else parent
        prefix = f"{prefix}{machine()}-"
        _sweep(top, prefix)
        held = None
        while held is None:  # unless another process took it for one that was left, before it was locked
            self.path = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=top))
            held = _hold(self.path, unlockable=True)
        #: Its path for this process on Linux, where that of the folder may be too long for a socket (108 bytes).
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
    """Remove what processes that were killed have left."""
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
    """Open and lock a folder, or open it where there are no locks (``unlockable``); None where it is held or gone."""
    try:
        return hold(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    except OSError:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC) if unlockable else None


def is_running(pid: int) -> bool:
    """Whether there is a process of this number on this machine, of any user."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # another user's
    return True


def pid_space() -> str:
    """What tells the process numbers of one container from those of another: they may share the name of their host."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def machine() -> str:
    """Eight hex digits of what process numbers are unique in."""
    return f"{zlib.crc32(f'{socket.gethostname()} {pid_space()}'.encode()):08x}"
