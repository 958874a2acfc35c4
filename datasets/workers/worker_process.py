"""Set-up of worker processes: they leave Ctrl-C to their parent, end with it, and forward their output to it.

stdout and stderr of a worker are one pipe: a user's function may print, log or warn. A line of up to 4,096 bytes is written to
the pipe atomically (POSIX, ``PIPE_BUF``), so lines of several workers do not mix. The main process prints the lines one by one,
so that they neither break a progress bar nor end up in the JSON that a command prints.
"""

from __future__ import annotations

import ctypes
import io
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from .task import OnOutput

_BLOCK = 1 << 16
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class OutputPipe:
    """The pipe, in the main process; ``sender`` is sent to workers, which call `print_to`."""

    def __init__(self, on_output: OnOutput) -> None:
        self._on_output = on_output
        self._receiver, self.sender = multiprocessing.Pipe(duplex=False)
        if sys.platform != "win32":
            os.set_blocking(self._receiver.fileno(), False)
        self._rest = b""

    def forward(self) -> None:
        """Pass on the whole lines that have been printed."""
        if sys.platform == "win32":
            return
        with suppress(BlockingIOError):
            while block := os.read(self._receiver.fileno(), _BLOCK):
                *lines, self._rest = (self._rest + block).split(b"\n")
                for line in lines:
                    self._pass_on(line)

    def close(self) -> None:
        self.forward()
        if self._rest:
            self._pass_on(self._rest)
        self._receiver.close()
        self.sender.close()

    def _pass_on(self, line: bytes) -> None:
        # A progress bar rewrites its line after a carriage return.
        self._on_output(line.decode(errors="replace").rstrip("\r").rpartition("\r")[2])


def begin(output: Any, environment: Mapping[str, str], memory: int | None) -> None:
    """The initializer of a worker. ``environment`` is the program's today, which that of its fork server may not be.

    ``memory``: bytes that it may take beyond what it has taken.
    """
    begin_alone()
    if sys.platform != "win32":
        _print_to(output)
    else:
        os.dup2(2, 1)
    os.environ.clear()
    os.environ.update(environment)
    if memory is not None and sys.platform == "linux":
        import resource

        taken = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        before = resource.getrlimit(resource.RLIMIT_DATA)
        limits = [one for one in (taken + memory, *before) if one != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (min(limits), before[1]))


def begin_alone() -> None:
    """Leave Ctrl-C to the process that started this one, and end when that has ended, busy or not: nobody reads the results."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked by the fork server
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="rbdata-watch", daemon=True).start()
    if (
        sys.platform == "linux"
    ):  # C code that hangs lets no thread run: the system ends this process after its fork server
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _print_to(sender: Any) -> None:
    """Redirect all output to a pipe, line by line."""
    for descriptor in (1, 2):
        os.dup2(sender.fileno(), descriptor)
    sender.close()
    # New streams: the existing ones may have recorded that their files are seekable.
    options: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace", "line_buffering": True}
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.BufferedWriter(io.FileIO(number, "w")), **options) for number in (1, 2)
    )


def flush_output() -> None:
    """In a worker: write unfinished lines too."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
    if sys.platform != "win32":
        ctypes.CDLL(None).fflush(None)  # what C code has printed
