"""The Ray engine: tasks on a Ray cluster, or on a local Ray instance that the engine starts.

Ray schedules and places tasks, and retries those whose worker or node was lost. This module submits a bounded number of tasks
at a time, so that a million tasks take no memory here and a growing cluster finds work, and raises errors as they were raised
in the worker. Data never pass through Ray's object store: tasks read and write files of a folder that every node sees under
the same path. Every node needs the same version of rbdata.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import sleep
from types import ModuleType
from typing import Any, Literal

from ...errors import MissingExtraError, RbdataError, UsageError, WorkerLostError
from .task import OnOutput, Report, T, TaskProgress, Work, usable_cpus, write_to_stderr

#: How often Ray starts a task again whose worker, or whole node, was lost.
RETRIES = 3

#: Tasks submitted per processor: one to run and one to wait.
AHEAD = 2

#: Seconds that killing the workers takes.
GRACE = 1.0

#: Bytes of the object store, which holds references and records of a few hundred bytes: the minimum that Ray accepts.
_STORE = 80 << 20


class RayEngine:
    """Runs tasks as Ray tasks of one processor each.

    ``address`` is Ray's: ``auto`` for the cluster this machine belongs to, or ``host:port``. Without one, the engine uses
    ``RAY_ADDRESS`` if that is set, else the Ray that this program is connected to, else a local one with ``procs`` processors
    (default: all) that ends with `close`. On a cluster ``procs`` limits the number of tasks.

    Raises MissingExtraError if ray is not installed, and at the first ``run`` UsageError if no cluster answers.
    """

    def __init__(self, procs: int | None = None, address: str | None = None) -> None:
        self._ray = _import()
        self._procs = procs
        address = address or os.environ.get("RAY_ADDRESS")
        self._address = None if address in ("", "local") else address
        self._way: _Way | None = None
        self.parallel = procs or usable_cpus()
        self.name = f"ray {self._ray.__version__}"
        self.on_output: OnOutput = write_to_stderr  # unused: what tasks print is in Ray's logs

    def run(self, work: Work[T], tasks: Sequence[T], report: Report) -> Iterator[tuple[int, dict[str, Any]]]:
        """See `Engine.run`. Progress is reported when a task is done."""
        if not tasks:
            return
        ray = self._connect()
        call = ray.remote(num_cpus=1, max_retries=RETRIES, retry_exceptions=False)(_call)
        shared = ray.put((Path.cwd(), tuple(sys.path), ray.cloudpickle.dumps(work)))  # once, not with every task
        waiting = iter(tasks)
        running: dict[Any, T] = {}
        try:
            while True:
                for task in waiting:
                    running[call.remote(shared, ray.cloudpickle.dumps(task))] = task
                    if len(running) >= self._limit(ray):
                        break
                if not running:
                    return
                done, _ = ray.wait(list(running), num_returns=1)
                for reference in done:
                    record = _result(ray, reference)
                    task = running.pop(reference)
                    report([TaskProgress(task.index, task.rows, task.rows, 0, 0)])
                    yield task.index, record
        finally:
            self._wait_for(list(running))

    def close(self) -> None:
        """Shut down the Ray instance that this engine started, or disconnect from the cluster it joined."""
        if self._way in ("started", "joined"):
            self._ray.shutdown()  # closes only the connection to a joined cluster
            _set_ray_output(True)
        self._way = None

    def _wait_for(self, references: list[Any]) -> None:
        """Return when no task writes any longer, so that the dataset's lock can be released.

        ``ray.cancel`` is not used: if a task ends while it is being cancelled, Ray (2.60) aborts the whole program. Closing the
        connection kills the workers; what the program connected to itself is left alone, and its tasks are waited for.
        """
        if not references or not self._ray.is_initialized():
            return
        if self._way == "borrowed":
            self._ray.wait(references, num_returns=len(references))
        else:
            self.close()
            sleep(GRACE)

    def _connect(self) -> ModuleType:
        ray = self._ray
        if self._way is not None and ray.is_initialized():
            return ray
        if ray.is_initialized():
            self._way = "borrowed"
        else:
            _set_ray_output(False)
            self._way = self._init()
        self.parallel = _processors(ray)
        self.name = f"ray {ray.__version__}, {self.parallel} processors"
        if not self.parallel:
            self.close()
            raise UsageError("the Ray cluster has no processors", hint="add a node: `ray start --address=...`")
        return ray

    def _init(self) -> _Way:
        """Connect to the cluster at the address, or start a Ray here."""
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        refused = (ConnectionError, TimeoutError, ValueError, RuntimeError, ImportError, OSError, OverflowError)
        if self._address is not None:
            try:
                _check_port(self._address)
                self._ray.init(address=self._address, **quiet)
            except refused as error:
                message = f"no Ray cluster answers at {self._address}: {_first_line(error)}"
                hint = "start one with `ray start --head`, or leave --address out for a Ray on this machine"
                raise UsageError(message, hint=hint) from error
            return "joined"
        # Switches off Ray's usage reports, and its unlimited retries of tasks that run out of memory.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_task_oom_retries", str(RETRIES))
        here = {"address": "local", "num_cpus": self.parallel, "num_gpus": 0, "include_dashboard": False}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._ray.init(**here, object_store_memory=_STORE, **quiet)
        except refused as error:
            message = f"Ray does not start on this machine: {_first_line(error)}"
            raise RbdataError(message, hint="--engine local needs no Ray") from error
        return "started"

    def _limit(self, ray: ModuleType) -> int:
        """How many tasks may be submitted at a time; a cluster can grow and shrink during a run."""
        if self._way == "started":
            return AHEAD * self.parallel
        self.parallel = max(1, _processors(ray))
        limit = AHEAD * self.parallel
        return limit if self._procs is None else min(limit, self._procs)


#: The origin of an engine's Ray: started by it, a cluster it connected to, or the program's own connection.
_Way = Literal["started", "joined", "borrowed"]


def _check_port(address: str) -> None:
    """Raise OSError when the port is closed: Ray itself would retry for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _call(shared: tuple[Path, tuple[str, ...], bytes], task: bytes) -> dict[str, Any]:
    """In a worker: do one task with the working directory and import path of the command."""
    import pickle

    folder, path, work = shared
    if folder.is_dir():  # the folder of an earlier run may be gone
        os.chdir(folder)
    sys.path += [entry for entry in path if entry not in sys.path]
    # Pickled by the command itself: tasks never come from files.
    record: dict[str, Any] = pickle.loads(work)(pickle.loads(task), lambda rows, fetched, retries: None)
    return record


def _result(ray: ModuleType, reference: Any) -> dict[str, Any]:
    """A task's record; raises what the task raised."""
    exceptions = ray.exceptions
    try:
        record: dict[str, Any] = ray.get(reference)
    except exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, RbdataError):
            raise cause from error
        message = f"a Ray worker failed: {type(cause).__name__}: {_first_line(cause)}"
        hint = "every node needs this rbdata, what your function imports, and the datasets' folder under the same path"
        raise RbdataError(message, hint=hint) from error
    except (
        exceptions.OutOfMemoryError,
        exceptions.WorkerCrashedError,
        exceptions.NodeDiedError,
        exceptions.ObjectLostError,
    ) as error:
        message = f"a Ray worker was lost {RETRIES + 1} times at the same task, perhaps because memory ran out"
        raise WorkerLostError(message, hint=f"{_AGAIN}; fewer --procs or a smaller --batch-size need less") from error
    except exceptions.RayError as error:
        raise RbdataError(f"Ray failed: {_first_line(error)}", hint=_AGAIN) from error
    return record


_AGAIN = "run the command again: finished parts are kept"


def _set_ray_output(enabled: bool) -> None:
    """Whether Ray may print messages about lost workers: it prints them on stdout, whatever ``log_to_driver`` is."""
    from ray._private import worker

    if hasattr(worker, "_worker_logs_enabled"):
        worker._worker_logs_enabled = enabled


def _processors(ray: ModuleType) -> int:
    return int(ray.cluster_resources().get("CPU", 0))


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _import() -> ModuleType:
    # Without this, Ray prints a warning about workers without a GPU on every start.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        message = "the engine ray needs the package ray"
        raise MissingExtraError(message, hint="pip install 'rbdata[ray]', or leave --engine out") from error
    module: ModuleType = ray
    return module
