"""Whether a process that left something behind is still there, and where its number says so."""

from __future__ import annotations

import os
import socket
import zlib
from pathlib import Path


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
