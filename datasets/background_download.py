"""A download in a background process, whose dataset this process reads in the meantime.

The process is a fresh interpreter: forking the program would copy its locks and threads. It receives its order as one line of
JSON, and reports events as lines of JSON: the calls of a `Listener`, then the path of the dataset or an error. It ends with the
program, with Ctrl-C, and by `BackgroundDownload.stop`; finished work is kept.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import errors
from ..errors import (
    DatasetBusyError,
    DatasetNotFoundError,
    NotADatasetError,
    RbdataError,
    StoppedError,
    UnknownDatasetError,
    UsageError,
)
from ..storage.folder import DatasetPlace
from .ingest.progress import progress_listener
from .ingest.request import Estimate, Listener
from .local import find_place
from .workers.task import TaskProgress

if TYPE_CHECKING:
    from ..storage.partial_dataset import PartialDataset

_BOOT = "import json, sys; order = json.loads(sys.stdin.readline()); sys.path[:] = order['path']; \
import importlib; importlib.import_module(order['module']).serve(order)"

#: Seconds that a download has to end in an orderly way.
PATIENCE = 20.0
#: Processes started here, referenced so that running ones are not garbage-collected.
_started: set[subprocess.Popen[bytes]] = set()


class BackgroundDownload:
    """A running call of ``function``, given as ``module:name``, with the ``arguments`` of `rbdata.download`.

    ``error`` is the exception it raised, ``path`` its result; both are None before. ``begun``: it has started to write.
    """

    def __init__(self, function: str, arguments: Mapping[str, Any]) -> None:
        self.id = str(arguments["dataset_id"])
        self.path: Path | None = None
        self.begun = False
        self.error: BaseException | None = None
        shown = {name: arguments[name] for name in ("progress", "listener") if name in arguments}
        given = {name: value for name, value in arguments.items() if name not in shown}
        order = {"module": __name__, "path": sys.path, "function": function, "arguments": given}
        line = json.dumps(order, default=_plain).encode() + b"\n"
        self._process = subprocess.Popen([sys.executable, "-c", _BOOT], stdin=-1, stdout=-1, bufsize=0)
        _started.add(self._process)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(line)
        self._ended = threading.Event()
        follow = threading.Thread(target=self._follow, args=(shown,), name="rbdata-download", daemon=True)
        follow.start()

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the download has ended, or for ``seconds``; returns whether it has ended."""
        return self._ended.wait(seconds)

    def stop(self) -> None:
        """Interrupt the download, as Ctrl-C does, and wait for its end."""
        self._interrupt()
        if not self._ended.wait(PATIENCE):
            self._process.kill()
            self._ended.wait()

    def _interrupt(self) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)

    def _follow(self, shown: Mapping[str, Any]) -> None:
        assert self._process.stdout is not None
        try:
            with progress_listener(self.id, shown.get("listener"), bool(shown.get("progress"))) as listener:
                for name, values in self._events():
                    self._hear(listener, name, values)
                if self.path is None and self.error is None:
                    status = self._process.wait()
                    how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"over, with status {status}"
                    self.error = StoppedError(f"the process that downloads {self.id} was {how}", hint="load it again")
                if self.error is not None:
                    raise self.error  # so that the bar stops
        except BaseException as error:  # an error in a listener also ends the download
            self.error = self.error or error
            self._process.stdout.close()
            self._interrupt()
        finally:
            self._process.wait()
            _started.discard(self._process)
            self._ended.set()

    def _events(self) -> Any:
        """The events, line by line. Read without Python's buffers, whose lock a fork of this program would copy."""
        assert self._process.stdout is not None
        rest = b""
        while data := os.read(self._process.stdout.fileno(), 1 << 16):
            *lines, rest = (rest + data).split(b"\n")
            for line in filter(None, lines):
                with suppress(ValueError):  # an interrupted line
                    yield json.loads(line)

    def _hear(self, listener: Listener, name: str, values: list[Any]) -> None:
        if name == "done":
            self.path = Path(values[0])
        elif name == "error":
            self.error = _error(*values)
        elif name == "on_estimate":
            listener.on_estimate(Estimate(**{**values[0], "path": Path(values[0]["path"])}))
        elif name == "on_progress":
            listener.on_progress([TaskProgress(**task) for task in values[0]])
        else:
            self.begun = self.begun or name == "on_planned"  # by then the plan of an earlier run is removed
            getattr(listener, name)(*values)


def open_when_begun(function: str, arguments: Mapping[str, Any]) -> PartialDataset:
    """Start a download, or follow that of another process; returns the dataset once its first episode can be read.

    Raises the download's error. Interrupting this call stops the download.
    """
    from ..storage.partial_dataset import POLL, PartialDataset  # here: the process that downloads does without torch

    place: DatasetPlace | None = None
    with suppress(UnknownDatasetError, NotADatasetError):  # only a mirror knows its name: it is copied as a whole
        place = find_place(arguments["dataset_id"], arguments.get("root"))
    while True:
        # A download by another process is followed below, not waited for.
        download = BackgroundDownload(function, {**arguments, "wait": False})
        try:
            while not download.has_ended:
                if place is not None and download.begun:
                    with suppress(DatasetNotFoundError):
                        return PartialDataset(place, unfinished=not download.has_ended, download=download)
                download.wait(POLL)
        except BaseException:
            download.stop()
            raise
        if download.path is not None:
            return PartialDataset(find_place(download.path))
        assert download.error is not None
        if place is None or not isinstance(download.error, DatasetBusyError):
            raise download.error
        while place.lock().is_held():
            with suppress(DatasetNotFoundError):
                return PartialDataset(place, unfinished=True)
            time.sleep(POLL)


def _error(name: str, message: str, hint: str | None) -> RbdataError:
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, RbdataError):
        return kind(message, hint=hint)
    return StoppedError(message, hint=hint)


# -- the process ----------------------------------------------------------------------------------------------------------


def serve(order: Mapping[str, Any]) -> None:
    """In the process: run the order of a `BackgroundDownload`."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # even if the program ignores it
    output = os.dup(1)
    os.dup2(2, 1)  # printed text must not mix with the events
    lock = threading.Lock()

    def say(name: str, *values: Any) -> None:
        line = b"\n" + json.dumps([name, values], default=_plain).encode() + b"\n"
        with lock:
            while line:
                line = line[os.write(output, line) :]

    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    names = [field.name for field in fields(Listener) if field.name != "on_output"]
    listener = Listener(**{name: partial(say, name) for name in names})
    module, _, function = order["function"].partition(":")
    try:
        say("done", getattr(import_module(module), function)(**order["arguments"], listener=listener))
    except KeyboardInterrupt:
        say("error", "StoppedError", "the download was interrupted", "load it again: what is finished is kept")
    except (Exception, SystemExit) as error:
        text = error.message if isinstance(error, RbdataError) else f"{type(error).__name__}: {error}"
        say("error", type(error).__name__, text, getattr(error, "hint", None))


def _end_with(parent: int) -> None:
    """End this process when its parent has ended: the pipe is closed, or this process has another parent."""
    while os.getppid() == parent:
        if select.select([0], [], [], 1.0)[0] and not os.read(0, 1):
            break
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(PATIENCE)
    os._exit(1)


def _plain(value: Any) -> Any:
    """JSON for paths and the records of a `Listener`. Raises UsageError for anything else."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (Estimate, TaskProgress)):
        return asdict(value)
    if isinstance(value, (set, frozenset, range)):
        return sorted(value)
    raise UsageError(f"{value!r} cannot be passed to the process that downloads", hint="use rbdata.download first")
