"""A server process that has imported the modules workers need, so that forking a worker from it takes a millisecond.

A fresh interpreter takes three seconds to import torch and tensordict. Forking the calling program would copy its locks,
threads and devices in any state. So one fresh process imports the modules, does nothing else, and is forked: Python's own fork
server (`multiprocessing.forkserver`), with two differences. Each `ForkServer` is a separate process that ends with its owner;
the server that the program may use itself is not touched. And the program's main module is not run again in workers, so that
scripts need no ``if __name__ == "__main__"``.

On Windows this module cannot be imported; see `worker_process.fork_server_is_available`.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing import forkserver, popen_forkserver, process, reduction, resource_tracker, spawn
from multiprocessing.context import BaseContext, set_spawning_popen
from multiprocessing.util import Finalize
from typing import Any

from ...storage.scratch import ScratchFolder

#: The warning option with which the resource tracker is started.
_QUIET_TRACKER = "ignore::UserWarning:multiprocessing.resource_tracker"


class ForkServer(forkserver.ForkServer):
    """A process to fork workers from; it has imported ``modules``, as far as they can be imported."""

    def __init__(self, modules: Sequence[str]) -> None:
        super().__init__()
        self.set_forkserver_preload([f"{__package__}.quick_start", *modules])
        self.context = _Context(self)
        self._scratch = ScratchFolder()

    def ensure_running(self) -> None:
        """Start importing, and return at once. SIGINT is blocked in the server and its workers; `stop` ends them."""
        # If this process is killed, Python's resource tracker removes its semaphores; it must not warn about them.
        sys.warnoptions.append(_QUIET_TRACKER)
        try:
            resource_tracker.ensure_running()  # here, as it unblocks signals
        finally:
            sys.warnoptions.remove(_QUIET_TRACKER)
        settings: dict[str, Any] = process.current_process()._config  # type: ignore[attr-defined]
        folder = settings.get("tempdir")
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            settings["tempdir"] = self._scratch.short_path  # the folder of the socket
            super().ensure_running()
        finally:
            settings["tempdir"] = folder
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def stop(self) -> None:
        """Kill the server. Its workers must have ended."""
        pid: int | None = self._forkserver_pid  # type: ignore[attr-defined]
        if pid is not None:
            os.kill(pid, signal.SIGKILL)  # a regular exit takes half a second
            self._stop()  # type: ignore[attr-defined]
        self._scratch.remove()


class _Context(BaseContext):
    """A `multiprocessing` context whose processes come from one server."""

    _name = "forkserver"

    def __init__(self, server: ForkServer) -> None:
        self._server = server

    def Process(self, *args: Any, **kwargs: Any) -> Any:
        worker = _Process(*args, **kwargs)
        worker._server = self._server
        return worker


class _Process(process.BaseProcess):
    _start_method = "forkserver"
    _server: ForkServer | None

    @staticmethod
    def _Popen(worker: Any) -> _Popen:
        return _Popen(worker)


class _Popen(popen_forkserver.Popen):
    """Launches one process as `multiprocessing.popen_forkserver` does, with a given server."""

    def _launch(self, worker: Any) -> None:
        server, worker._server = worker._server, None  # not sent to the worker
        preparation = spawn.get_preparation_data(worker._name)
        for key in ("init_main_from_name", "init_main_from_path"):  # would run the program's main module
            preparation.pop(key, None)
        message = io.BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump(preparation, message)
            reduction.dump(worker, message)
        finally:
            set_spawning_popen(None)
        self.sentinel, pipe = server.connect_to_new_process(self._fds)  # type: ignore[attr-defined]
        # The child detects the end of this process when no process holds this end of the pipe any longer.
        self.finalizer = Finalize(self, _close, (os.dup(pipe), self.sentinel))
        with os.fdopen(pipe, "wb") as file:
            file.write(message.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
