"""Work for the tests of worker processes, which import it: some of it crashes, or takes all memory."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
from rbdata.datasets.fetch import retries
from rbdata.datasets.workers.local_engine import LocalEngine
from rbdata.datasets.workers.task import OnBlock, call, memory_for
from rbdata.errors import UsageError
from rbdata.preprocess.chunks import Chunk

TASKS = [Chunk(n, 10 * n, 10 * n + 10, 0, 1) for n in range(6)]


def about(task: Chunk, on_rows: OnBlock) -> dict[str, Any]:
    on_rows(task.rows, 0, 0)
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "loaded": [name for name in ("torch", "h5py") if name in sys.modules],
        "interrupt": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
        "blocked": signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "script": sys.modules["__main__"].__dict__.get("__file__"),
    }


@dataclass(frozen=True)
class WaitingUntil:
    """Waits for the network until there is a file."""

    file: str | Path

    def __call__(self, task: Chunk, on_rows: OnBlock) -> dict[str, Any]:
        retries.announce("HTTP 503: retry 1 of 4", 1.0)
        Path(f"{self.file}.waiting").touch()
        end = time.monotonic() + 600
        while time.monotonic() < end and not Path(self.file).exists():
            time.sleep(0.01)
        on_rows(task.rows, 0, 1)
        return {}


def in_worker(function: Callable[..., Any], *args: Any, label: str, memory: int | None = None) -> Any:
    """``function(*args)`` in a worker process, as C libraries read files.

    Modules of tests cannot be imported by name there, so that their functions are sent by value.
    """
    module = sys.modules[function.__module__]
    if module.__name__.startswith("tests."):
        cloudpickle.register_pickle_by_value(module)
        try:
            function = partial(unpickled, cloudpickle.dumps(function))
        finally:
            cloudpickle.unregister_pickle_by_value(module)
    with LocalEngine(1, memory=memory_for(0) if memory is None else memory) as engine:
        return call(engine, label, function, *args)


def unpickled(function: bytes, *args: Any) -> Any:
    return cloudpickle.loads(function)(*args)


def crash(*_: object) -> Any:
    ctypes.string_at(0)


def crash_at_30(task: Chunk, on_rows: OnBlock) -> Any:
    return crash() if task.start == 30 else {}


def abort(*_: object) -> Any:
    os.abort()


def leave(*_: object) -> Any:
    os._exit(3)


def be_killed(*_: object) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def swallow(*_: object) -> Any:
    kept = []
    while True:
        kept.append(np.ones(1 << 20))


def refuse(*_: object) -> Any:
    raise UsageError("no", hint="yes")


def be_wrong(*_: object) -> Any:
    raise ZeroDivisionError("a fault of ours")


@dataclass(frozen=True)
class Reading:
    """A task that ends in one of the ways above if it is the fourth."""

    index: int
    how: Any
    rows: int = 1

    @property
    def label(self) -> str:
        return f"https://a.example/{self.index}.hdf5"

    def __call__(self, on_rows: OnBlock) -> dict[str, Any]:
        return {"found": self.how() if self.index == 3 else 0}
