"""The program as a child process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from multiprocessing.context import ForkProcess, ForkServerProcess
from pathlib import Path
from typing import Any

import psutil

#: The installed command ``rbdata``, run by this interpreter.
RBDATA = [sys.executable, "-c", "import sys; from rbdata.cli import main; sys.argv[0] = 'rbdata'; main()"]


def run_forked(code: str, *arguments: str) -> int:
    """Run ``code``, with arguments in ``sys.argv``, in a process forked from one that has torch loaded; returns its exit code.

    For code that needs a process of its own, and a fresh interpreter would not show more.
    """
    process = start_forked(code, *arguments)
    process.join(600)
    assert process.exitcode is not None
    return process.exitcode


def start_forked(code: str, *arguments: str, output: Path | None = None, **variables: str) -> ForkServerProcess:
    """Start what `run_forked` runs, with more environment variables; what it prints is written to the file ``output``."""
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_execute, args=(code, arguments, {**os.environ, **variables}, output))
    process.start()
    return process


def _execute(code: str, arguments: Sequence[str], variables: dict[str, str], output: Path | None) -> None:
    os.environ.clear()
    os.environ.update(variables)
    sys.argv[1:] = arguments
    with output.open("w") if output else nullcontext(sys.stdout) as stdout, redirect_stdout(stdout):
        exec(code, {"__name__": "__main__"})


def start_command(words: Sequence[str], said: Path) -> ForkProcess:
    """Start ``rbdata WORDS`` in a fork of this process, which Ctrl-C (SIGINT) ends. Its workers come from this process's fork
    server. What it prints is written to the file ``said``. Call it from the main thread."""
    process = multiprocessing.get_context("fork").Process(target=_command, args=(words, said))
    process.start()
    return process


def _command(words: Sequence[str], said: Path) -> None:
    from rbdata.cli import main

    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv[:] = ["rbdata", *words]
    with said.open("w") as file, redirect_stdout(file), redirect_stderr(file):
        main()


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


def wait_until(condition: Callable[[], bool], seconds: float = 600.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
