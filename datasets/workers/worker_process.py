"""Set-up of worker processes: they leave Ctrl-C to their parent, end with it, and forward their output to it.

stdout and stderr of a worker are one pipe: a user's function may print, log or warn, and so may C code. A line of up to
4,096 bytes is written to the pipe atomically (POSIX, ``PIPE_BUF``), so lines of several workers do not mix. The main process
prints the lines one by one, so that they do not break a progress bar.
"""

from __future__ import annotations

import ctypes
import io
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from time import sleep
from typing import Any

from .task import OnOutput

_BLOCK = 1 << 16
_LINE_BUFFERED = 1  # _IOLBF of stdio.h
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def fork_server_is_available() -> bool:
    """Whether workers can be forked from a server process: on Linux. Windows has no fork, and on macOS a process that has
    loaded system frameworks is not safe to fork."""
    return sys.platform == "linux"


class OutputPipe:
    """The pipe, in the main process; ``sender`` is sent to workers, which call `print_to`."""

    def __init__(self, on_output: OnOutput) -> None:
        self._on_output = on_output
        self._receiver, self.sender = Pipe(duplex=False)
        os.set_blocking(self._receiver.fileno(), False)
        self._rest = b""

    def forward(self) -> None:
        """Pass on the whole lines that have been printed."""
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


def print_to(sender: Any) -> None:
    """In a worker: redirect all output to a pipe, line by line."""
    for descriptor in (1, 2):
        os.dup2(sender.fileno(), descriptor)
    sender.close()
    # New streams: the existing ones may have recorded that their files are seekable.
    options: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace", "line_buffering": True}
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.BufferedWriter(io.FileIO(number, "w")), **options) for number in (1, 2)
    )
    libc = ctypes.CDLL(None)
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _LINE_BUFFERED, ctypes.c_size_t(0))


def flush_output() -> None:
    """In a worker: write unfinished lines too."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
    if sys.platform != "win32":
        ctypes.CDLL(None).fflush(None)


def end_with_parent() -> None:
    """Have the system kill this process as soon as its parent ends, for whatever reason; only on Linux.

    The parent is the thread that started this process: see prctl(2), PR_SET_PDEATHSIG.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def begin(parent: int) -> None:
    """In a worker started by its parent: leave Ctrl-C to the parent, end when the parent has ended, print to stderr."""
    os.dup2(2, 1)

    def is_over() -> None:
        while os.getppid() == parent:
            sleep(1.0)

    _end_after(is_over)


def end_with_starter() -> None:
    """In a process of `multiprocessing`: leave Ctrl-C to the process that started it, end when that has ended."""
    import multiprocessing

    process = multiprocessing.parent_process()
    assert process is not None
    _end_after(process.join)


def begin_forked(output: Any) -> None:
    """`begin` for a child of the fork server; its output goes to the main process."""
    import gc

    end_with_parent()
    print_to(output)
    gc.freeze()  # objects from before the fork are never freed, and their pages stay shared
    gc.enable()
    end_with_starter()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked by the server; ignored by now


def _end_after(is_over: Callable[[], None]) -> None:
    """End this process, busy or not, when ``is_over`` returns: its results are not read, and another run may start."""

    def watch() -> None:
        is_over()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=watch, name="rbdata-watch", daemon=True).start()
