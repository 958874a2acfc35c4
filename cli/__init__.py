"""The command line: ``rbdata COMMAND ...``.

One module per command, each with a function ``run``: its signature defines the arguments, its docstring is the help.
``group`` imports the module of the command that runs. Commands call the library and print through ``console.out``.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from types import FrameType
from typing import Any, NoReturn

from ..errors import PluginWarning
from .console import OutputClosed, discard, out
from .failure import INTERRUPTED, explain

#: New objects between two garbage collections, instead of 700. Most commands create fewer, not counting the objects of
#: imported modules, which are never freed.
GC_THRESHOLD = 50_000

#: Seconds that an interrupted process gets for cleaning up after its message.
CLEANUP_SECONDS = 0.5

#: A second Ctrl-C within this many seconds counts as the first one.
SAME_INTERRUPT_SECONDS = 2.0

#: Seconds between attempts to deliver a Ctrl-C that arrived during an import.
IMPORT_POLL_SECONDS = 0.005


def main() -> NoReturn:
    """The ``rbdata`` program."""
    _open_standard_streams()
    _take_ctrl_c_once()
    _show_plugin_warnings()
    gc.set_threshold(GC_THRESHOLD, *gc.get_threshold()[1:])
    code = run(sys.argv[1:])
    signal.setitimer(signal.ITIMER_REAL, 0)
    if code == INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process is about to exit
        # Release what the exception refers to first, worker processes included. At exit Python joins the threads that
        # still read from the network; after Ctrl-C the user should not wait for them.
        gc.collect()
        timer = threading.Timer(CLEANUP_SECONDS, os._exit, (code,))
        timer.daemon = True
        timer.start()
    gc.freeze()  # at exit Python collects garbage in all modules several times: most of a second with torch loaded
    sys.exit(code)


def _open_standard_streams() -> None:
    """Open /dev/null for each closed standard stream (``2>&-``), or the next file opened would receive its output. A character
    that the terminal's encoding lacks is printed as a question mark."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _take_ctrl_c_once() -> None:
    """The first Ctrl-C interrupts the work, which then cleans up; a later one ends the process if that takes long."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return  # ignored, as in a background job of a shell script
    first: list[float] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not first or number == signal.SIGALRM:
            first[:] = first or [now]
            if not _is_importing(frame):
                raise KeyboardInterrupt
            signal.signal(signal.SIGALRM, interrupt)
            signal.setitimer(signal.ITIMER_REAL, IMPORT_POLL_SECONDS)
        elif now - first[0] > SAME_INTERRUPT_SECONDS:
            out.note("interrupted again: ended without cleaning up; the same command continues")
            os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, interrupt)


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported: some modules of torch swallow an interrupt or abort the process."""
    while frame is not None:
        if frame.f_code.co_name == "_find_and_load" and frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _show_plugin_warnings() -> None:
    """Print each plug-in warning on one line, and none during shell completion."""
    usual = warnings.formatwarning

    def format_warning(message: Warning | str, category: type[Warning], *place: Any) -> str:
        return f"warning: {message}\n" if category is PluginWarning else usual(message, category, *place)

    warnings.formatwarning = format_warning  # type: ignore[assignment]
    if "_RBDATA_COMPLETE" in os.environ:
        warnings.simplefilter("ignore", PluginWarning)


def run(arguments: Sequence[str]) -> int:
    """Run a command line; returns the exit code, never raises."""
    out.configure(arguments)
    code = 0
    try:
        from .group import invoke

        code = invoke([*arguments])  # not list(arguments): `list` is a module of this package
        out.flush()
    except (BrokenPipeError, OutputClosed):
        pass  # the reader of stdout has exited (``| head``): not a failure
    except BaseException as error:
        code = _report(error)
    _discard_unwritten()
    return code


def _discard_unwritten() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            discard(stream)


def _report(error: BaseException) -> int:
    """Print an error; returns the exit code. A function, so that the exception and all that it refers to are freed."""
    if isinstance(error, SystemExit) and "_RBDATA_COMPLETE" in os.environ:  # completion ends with SystemExit
        return error.code if isinstance(error.code, int) else 1
    failure = explain(error)
    if out.json:
        out.trace(error)
        try:
            out.document({"error": failure.to_json()})
            out.flush()
        except OutputClosed:
            pass
        except OSError:  # stdout cannot be written: report on stderr
            out.fail(error, failure)
    else:
        out.fail(error, failure)
    return failure.exit_code
