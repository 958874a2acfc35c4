"""The process of a `background_download`: what it is told to do, and what it says of it."""

from __future__ import annotations

import json
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from importlib import import_module
from typing import Any

from ..errors import RbdataError, UsageError
from .ingest.request import Estimate, Listener
from .workers.task import TaskProgress

#: Seconds that a download may take to end in order.
PATIENCE = 20.0


def serve(order: Mapping[str, Any]) -> None:
    """Do what a `BackgroundDownload` has ordered."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the program ignores it
    output = os.dup(1)
    os.dup2(2, 1)  # what is printed must not be among the events
    lock = threading.Lock()

    def say(name: str, *values: Any) -> None:
        line = b"\n" + json.dumps([name, values], default=plain).encode() + b"\n"
        with lock:
            while line:
                line = line[os.write(output, line) :]

    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    names = [field.name for field in fields(Listener) if field.name != "on_output"]
    listener = Listener(**{name: _saying(say, name) for name in names})
    module, _, function = order["function"].partition(":")
    try:
        say("done", getattr(import_module(module), function)(**order["arguments"], listener=listener))
    except KeyboardInterrupt:
        say("error", "StoppedError", "the download was interrupted", "load it again: what is finished is kept")
    except (Exception, SystemExit) as error:
        text = error.message if isinstance(error, RbdataError) else f"{type(error).__name__}: {error}"
        say("error", type(error).__name__, text, getattr(error, "hint", None))


def _saying(say: Callable[..., None], name: str) -> Callable[..., None]:
    return lambda *values: say(name, *values)


def _end_with(parent: int) -> None:
    """End this process when the one that started it has ended: its end of the pipe is closed, or it has another parent."""
    while os.getppid() == parent:
        if select.select([0], [], [], 1.0)[0] and not os.read(0, 1):
            break
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(PATIENCE)
    os._exit(1)


def plain(value: Any) -> Any:
    """What JSON lacks: paths, and the records of a `Listener`. Raises UsageError for all else."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (Estimate, TaskProgress)):
        return asdict(value)
    if isinstance(value, (set, frozenset, range)):
        return sorted(value)
    raise UsageError(f"{value!r} cannot be passed to the process that downloads", hint="use rbdata.download first")
