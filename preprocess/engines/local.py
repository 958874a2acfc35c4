"""On this machine: in this process, or in several of its own.

Processes are fresh interpreters (``loky``) that import the user's code for themselves; they are kept from one pass to the
next. With one process the work is done right here. A worker whose parent was killed ends at the next batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...datasets.pool import Workers, run_here
from .base import OnRows, Report, T, Work

#: Tasks given out for each process: one at work and one waiting, so that nobody waits for the parent.
AHEAD = 2


class LocalEngine:
    """``procs`` worker processes; see `base.Engine`."""

    def __init__(self, procs: int) -> None:
        self.parallel = procs
        self.name = f"local, {procs} process{'' if procs == 1 else 'es'}"
        self._workers = Workers(procs, in_flight=AHEAD * procs) if procs > 1 else None

    def prepare(self) -> None:
        """Start the processes and let them load what they need, which takes seconds, while the caller gets ready too."""
        if self._workers is not None:
            self._workers.prepare(_load)

    def run(self, work: Work[T], tasks: Sequence[T], report: Report) -> Iterator[tuple[int, dict[str, Any]]]:
        if self._workers is None:
            return run_here(work, tasks, report)
        return self._workers.run(_Watched(work, os.getpid()), tasks, report)

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()


def _load() -> None:
    from .. import work  # torch and tensordict with it

    assert work


@dataclass(frozen=True)
class _Watched:
    """Work that ends when its parent has: nobody will take what it makes, and another run may have begun."""

    work: Work[Any]
    parent: int

    def __call__(self, task: Any, on_rows: OnRows) -> dict[str, Any]:
        def told(rows: int, fetched: int, retries: int) -> None:
            if os.getppid() != self.parent:
                os._exit(1)
            on_rows(rows, fetched, retries)

        return self.work(task, told)
