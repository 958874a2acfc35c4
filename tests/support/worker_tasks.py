"""Work for the tests of worker processes, which import it."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any

from rbdata.datasets.fetch import retries
from rbdata.datasets.workers.task import OnBlock
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


def wait_for_the_network(task: Chunk, on_rows: OnBlock) -> dict[str, Any]:
    retries.announce("HTTP 503: retry 1 of 4", 1.0)
    time.sleep(1.0)
    on_rows(task.rows, 0, 1)
    return {}


def never_done(task: Chunk, on_rows: OnBlock) -> None:
    time.sleep(600)


@dataclass(frozen=True)
class Standalone:
    """A task that does itself."""

    index: int
    chunk: Chunk
    rows: int = 10

    def __call__(self, on_rows: OnBlock) -> dict[str, Any]:
        return about(self.chunk, on_rows)
