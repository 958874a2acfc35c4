"""The command line: ``rbdata COMMAND ...``.

One module per command, each with a function ``run``: its signature defines the arguments, its docstring is the help.
``group`` imports the module of the command that runs. Commands call the library and print through ``console.out``.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from ..errors import PluginWarning
from .console import OutputClosed, out
from .failures import INTERRUPTED, explain

#: New objects between two garbage collections, instead of 700: most commands create fewer, apart from the objects of
#: imported modules, which stay anyway.
GC_THRESHOLD = 50_000

#: Seconds that an interrupted process may take to clean up after its message.
CLEANUP_SECONDS = 0.5


def main() -> NoReturn:
    """The ``rbdata`` program."""
    _show_plugin_warnings()
    gc.set_threshold(GC_THRESHOLD, *gc.get_threshold()[1:])
    code = run(sys.argv[1:])
    if code == INTERRUPTED:
        # Release what the exception refers to first, worker processes included. At exit Python joins the threads that
        # still read from the network; after Ctrl-C the user should not wait for them.
        gc.collect()
        timer = threading.Timer(CLEANUP_SECONDS, os._exit, (code,))
        timer.daemon = True
        timer.start()
    gc.freeze()  # at exit Python collects garbage in all modules several times: most of a second with torch loaded
    sys.exit(code)


def _show_plugin_warnings() -> None:
    """Each in one line, and none while a shell asks for completions."""
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

        code = invoke([*arguments])  # `list` is a module of this package
        if sys.stdout is not None:
            sys.stdout.flush()
    except (BrokenPipeError, OutputClosed):
        pass  # the reader of stdout has ended (``| head``): not a failure
    except BaseException as error:
        code = _report(error)
    _discard_unwritten()
    return code


def _discard_unwritten() -> None:
    """Python flushes both streams again at exit: output that cannot be written must not cause an error then."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _report(error: BaseException) -> int:
    """Print an error; returns the exit code. A function of its own, so that the exception and all it refers to is freed."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    failure = explain(error)
    if out.json:
        out.trace(error)
        with suppress(OSError, OutputClosed):
            out.document({"error": failure.to_json()})
    else:
        out.fail(error, failure)
    return failure.exit_code
