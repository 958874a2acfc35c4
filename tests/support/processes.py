"""The program as a child process."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil

#: The installed command ``rbdata``, run by this interpreter.
RBDATA = [sys.executable, "-c", "import sys; from rbdata.cli import main; sys.argv[0] = 'rbdata'; main()"]


def start_interruptible(command: Sequence[str], **settings: Any) -> subprocess.Popen[str]:
    """Start a process that Ctrl-C (SIGINT) ends, in text mode; ``settings`` are those of `subprocess.Popen`.

    Where the tests run in the background of a script, SIGINT is ignored, and children inherit that. A signal with a handler
    becomes the default one in a child, so one is installed while the child starts. Call it from the main thread.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, text=True, **settings)
    finally:
        signal.signal(signal.SIGINT, before)


def is_gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
