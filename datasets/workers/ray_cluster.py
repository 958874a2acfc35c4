"""The Ray engine: tasks on a Ray cluster, or on a local Ray instance that the engine starts.

Ray schedules and places tasks, and retries those whose worker or node was lost. This module submits a bounded number of tasks
at a time, so that a million tasks take no memory here and a growing cluster finds work, and raises errors as they were raised
in the worker. Data never pass through Ray's object store: tasks read and write files of a folder that every node sees under
the same path. Every node needs the same version of rbdata.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...errors import MissingExtraError, RbdataError, UsageError, WorkerLostError
from .task import Engine, Report, T, TaskProgress, Work, usable_cpus

#: How often Ray starts a task again whose worker, or whole node, was lost.
RETRIES = 3
#: Tasks submitted per processor: one to run and one to wait.
AHEAD = 2
#: Seconds that killing the workers takes.
GRACE = 1.0
#: Bytes of the object store, which holds references and records of a few hundred bytes: the minimum that Ray accepts.
_STORE = 80 << 20

_AGAIN = "run the command again: finished parts are kept"


class RayEngine(Engine):
    """Runs tasks as Ray tasks of one processor each.

    ``address`` is Ray's: ``auto`` for the cluster this machine belongs to, or ``host:port``. Without one, the engine uses
    ``RAY_ADDRESS`` if that is set, else the Ray that this program is connected to, else a local one with ``procs`` processors
    (default: all) that ends with `close`. On a cluster ``procs`` limits the number of tasks.

    Raises MissingExtraError if ray is not installed, and at the first ``run`` UsageError if no cluster answers.
    """

    def __init__(self, procs: int | None = None, address: str | None = None) -> None:
        # Without this, Ray prints a warning about workers without a GPU on every start.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            import ray
            import ray.exceptions
        except ImportError as error:
            message = "the engine ray needs the package ray"
            raise MissingExtraError(message, hint="pip install 'rbdata[ray]', or leave --engine out") from error
        self._ray: Any = ray
        address = address or os.environ.get("RAY_ADDRESS")
        self._address = None if address in ("", "local") else address
        #: The limit of tasks submitted at a time.
        self._most = procs or sys.maxsize
        #: Whether the connection is this engine's, and not the program's.
        self._connected = False
        self.parallel, self.name = procs or usable_cpus(), f"ray {ray.__version__}"

    def run(self, work: Work[T], tasks: Sequence[T], report: Report) -> Iterator[tuple[int, Any]]:
        """See `Engine.run`. Progress is reported when a task is done."""
        if not tasks:
            return
        self._connect()
        ray, waiting = self._ray, iter(tasks)
        call = ray.remote(num_cpus=1, max_retries=RETRIES, retry_exceptions=False)(_call)
        shared = ray.put((Path.cwd(), tuple(sys.path), ray.cloudpickle.dumps(work)))  # once, not with every task
        running: dict[Any, T] = {}
        try:
            while True:
                while len(running) < self._limit() and (task := next(waiting, None)) is not None:
                    running[call.remote(shared, ray.cloudpickle.dumps(task))] = task
                if not running:
                    return
                (reference,), _ = ray.wait(list(running))
                task = running.pop(reference)
                record = self._result(reference)
                report([TaskProgress(task.index, task.rows, task.rows, 0, 0)])
                yield task.index, record
        finally:
            self._wait_for(list(running))

    def close(self) -> None:
        """End the Ray that this engine started, or its connection to a cluster."""
        if self._connected:
            self._ray.shutdown()
            self._let_ray_print(True)
        self._connected = False

    def _wait_for(self, references: list[Any]) -> None:
        """Return when no task writes any longer, so that the dataset's lock can be released.

        ``ray.cancel`` is not used: if a task ends while it is being cancelled, Ray (2.60) aborts the whole program. Closing the
        connection kills the workers; what the program connected to itself is left alone, and its tasks are waited for.
        """
        if not references or not self._ray.is_initialized():
            return
        if self._connected:
            self.close()
            time.sleep(GRACE)
        else:
            self._ray.wait(references, num_returns=len(references))

    def _connect(self) -> None:
        """Connect to the cluster at the address, or start a Ray here, unless the program is connected."""
        if not self._ray.is_initialized():
            self._let_ray_print(False)
            options: dict[str, Any] = {"address": self._address, "log_to_driver": False, "logging_level": logging.ERROR}
            if self._address is None:
                # Switches off Ray's usage reports, and its unlimited retries of tasks that run out of memory.
                os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
                os.environ.setdefault("RAY_task_oom_retries", str(RETRIES))
                options |= {"address": "local", "num_cpus": self.parallel, "num_gpus": 0, "include_dashboard": False}
                options["object_store_memory"], self._most = _STORE, sys.maxsize
            try:
                _check_port(self._address or "")
                self._ray.init(**options)
            except Exception as error:
                where = f"answers at {self._address}" if self._address else "can be started on this machine"
                hint = "start one with `ray start --head`, or leave --address out for a Ray on this machine"
                raise UsageError(f"no Ray cluster {where}: {_first_line(error)}", hint=hint) from error
            self._connected = True
        self.parallel = self._processors()
        self.name = f"ray {self._ray.__version__}, {self.parallel} processors"
        if not self.parallel:
            self.close()
            raise UsageError("the Ray cluster has no processors", hint="add a node: `ray start --address=...`")

    def _processors(self) -> int:
        return int(self._ray.cluster_resources().get("CPU", 0))

    def _limit(self) -> int:
        """How many tasks may be submitted at a time; a cluster can grow and shrink during a run."""
        self.parallel = max(1, self._processors())
        return min(AHEAD * self.parallel, self._most)

    def _result(self, reference: Any) -> Any:
        """A task's record; raises what the task raised."""
        failures = self._ray.exceptions
        lost = (
            failures.OutOfMemoryError,
            failures.WorkerCrashedError,
            failures.NodeDiedError,
            failures.ObjectLostError,
        )
        try:
            return self._ray.get(reference)
        except lost as error:
            message = f"a Ray worker was lost {RETRIES + 1} times at the same task, perhaps because memory ran out"
            raise WorkerLostError(
                message, hint=f"{_AGAIN}; fewer --procs or a smaller --batch-size need less"
            ) from error
        except failures.RayError as error:
            cause = getattr(error, "cause", error)
            if isinstance(cause, RbdataError):
                raise cause from error
            message = f"a Ray worker failed: {type(cause).__name__}: {_first_line(cause)}"
            hint = (
                "every node needs this rbdata, what your function imports, and the datasets' folder under the same path"
            )
            raise RbdataError(message, hint=hint) from error

    def _let_ray_print(self, enabled: bool) -> None:
        """Ray prints messages about lost workers on stdout, whatever ``log_to_driver`` is."""
        worker = self._ray._private.worker
        if hasattr(worker, "_worker_logs_enabled"):
            worker._worker_logs_enabled = enabled


def _check_port(address: str) -> None:
    """Raise OSError when the port is closed: Ray itself would retry for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _call(shared: tuple[Path, tuple[str, ...], bytes], task: bytes) -> Any:
    """In a worker: do one task with the working directory and import path of the command."""
    folder, path, work = shared
    if folder.is_dir():  # the folder of an earlier run may be gone
        os.chdir(folder)
    sys.path += [entry for entry in path if entry not in sys.path]
    # Pickled by the command itself: tasks never come from files.
    return pickle.loads(work)(pickle.loads(task), lambda rows, fetched, retries: None)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
