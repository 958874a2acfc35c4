"""The command line: ``rbdata COMMAND ...``.

One module per command, each with a ``run`` whose signature is the command's and whose docstring is its help; ``group``
loads the one that is asked for. Commands ask the library, and say what it answers through ``console.out``. Nothing else
happens here.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from .console import ReaderGone, out
from .failures import INTERRUPTED, explain

#: New objects between two collections of garbage, instead of 700: most commands are over before they have made as many, but
#: for those that modules are made of, which stay.
COLLECT_EVERY = 50_000

#: Seconds that an interrupted process may take to clean up after its message.
PATIENCE = 0.5


def main() -> NoReturn:
    """The ``rbdata`` program."""
    gc.set_threshold(COLLECT_EVERY, *gc.get_threshold()[1:])
    code = run(sys.argv[1:])
    if code == INTERRUPTED:
        # What the exception held on to goes first, worker processes among it. At exit Python joins the threads that still
        # listen to the network; nobody who pressed Ctrl-C wants to wait for them.
        gc.collect()
        patience = threading.Timer(PATIENCE, os._exit, (code,))
        patience.daemon = True
        patience.start()
    gc.freeze()  # at exit all modules are looked through several times: most of a second with torch among them
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run a command line; returns the exit code, never raises."""
    out.configure(arguments)
    code = 0
    try:
        from .group import invoke

        code = invoke([*arguments])  # `list` is a module of this package
        if sys.stdout is not None:
            sys.stdout.flush()
    except (BrokenPipeError, ReaderGone):
        pass  # the reader of the answer has enough (``| head``): that is no failure
    except BaseException as error:
        code = _report(error)
    _forget_undelivered()
    return code


def _forget_undelivered() -> None:
    """Python flushes both streams once more at exit: what cannot be delivered must not make noise then."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _report(error: BaseException) -> int:
    """Say what went wrong; returns the exit code. Ends in here so that the exception, and all it holds, is let go."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    failure = explain(error)
    if out.json:
        out.trace(error)
        with suppress(OSError, ReaderGone):
            out.document({"error": failure.to_json()})
    else:
        out.fail(error, failure)
    return failure.exit_code
