"""Worker processes that are forked, in a millisecond, from a process that has loaded what they need.

A fresh interpreter takes three seconds to import torch and tensordict, each of them. Forking the program itself would take
over locks, threads and devices in whatever state they are. So one fresh process loads the modules, does nothing else, and
is forked: Python's own fork server (`multiprocessing.forkserver`), with two differences. It belongs to us, and ends with
us: the one that the program may be using for itself is left alone. And a program's main module is not run again in workers,
so that scripts need no ``if __name__ == "__main__"``.

On Windows this module cannot be imported; see `pool.fork_server_is_available`.
"""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Sequence
from multiprocessing import forkserver, popen_forkserver, process, reduction, resource_tracker, spawn
from multiprocessing.context import BaseContext, set_spawning_popen
from multiprocessing.util import Finalize
from typing import Any

_QUICK_START = f"{__package__}.quick_start"

#: What a worker is told of a program's main module, which it is not to run.
_MAIN = ("init_main_from_name", "init_main_from_path")


class ForkServer(forkserver.ForkServer):
    """A process that has imported ``modules`` (those that can be), to be forked."""

    def __init__(self, modules: Sequence[str]) -> None:
        super().__init__()
        self.set_forkserver_preload([_QUICK_START, *modules])
        self.context = _Context(self)

    def ensure_running(self) -> None:
        """Begin loading, and return at once. Ctrl-C does not reach the server or its workers: what ends them is `stop`."""
        resource_tracker.ensure_running()  # here, as it unblocks what is blocked
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            super().ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def stop(self) -> None:
        """End the server; workers must have ended before."""
        pid: int | None = self._forkserver_pid  # type: ignore[attr-defined]
        if pid is not None:
            os.kill(pid, signal.SIGKILL)  # by itself it would take half a second to tidy up
            self._stop()  # type: ignore[attr-defined]


class _Context(BaseContext):
    """A `multiprocessing` context whose processes come from one server."""

    _name = "forkserver"

    def __init__(self, server: ForkServer) -> None:
        self._server = server

    def Process(self, *args: Any, **kwargs: Any) -> Any:
        made = _Process(*args, **kwargs)
        made._server = self._server
        return made


class _Process(process.BaseProcess):
    _start_method = "forkserver"
    _server: ForkServer | None

    @staticmethod
    def _Popen(made: Any) -> _Popen:
        return _Popen(made)


class _Popen(popen_forkserver.Popen):
    """Launches one process: what `multiprocessing.popen_forkserver` does, by a server of ours."""

    def _launch(self, made: Any) -> None:
        server, made._server = made._server, None  # it stays here
        about = spawn.get_preparation_data(made._name)
        for key in _MAIN:
            about.pop(key, None)
        message = io.BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump(about, message)
            reduction.dump(made, message)
        finally:
            set_spawning_popen(None)
        self.sentinel, pipe = server.connect_to_new_process(self._fds)  # type: ignore[attr-defined]
        # The child knows that we have ended when nobody holds this end any more.
        self.finalizer = Finalize(self, _close, (os.dup(pipe), self.sentinel))
        with os.fdopen(pipe, "wb") as file:
            file.write(message.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
