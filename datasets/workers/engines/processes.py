"""On this machine: in this process, or in several of its own.

Processes (`datasets.pool`) import the user's code for themselves; they are kept from one pass to the next, and end when this
one does. With one process the work is done right here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..pool import Workers, run_here
from .engine import Report, T, Work

#: Tasks given out for each process: one at work and one waiting, so that nobody waits for the parent.
AHEAD = 2

#: What workers run: torch and tensordict with it.
_WORK = f"{__package__.partition('.')[0]}.preprocess.worker"


class LocalEngine:
    """``procs`` worker processes; see `base.Engine`."""

    def __init__(self, procs: int) -> None:
        self.parallel, self.separate = procs, procs > 1
        self.name = f"local, {procs} process{'' if procs == 1 else 'es'}"
        self._workers = Workers(procs, AHEAD * procs, [_WORK]) if procs > 1 else None

    def prepare(self) -> None:
        """Load what the processes need, which takes seconds, while the caller gets ready too."""
        if self._workers is not None:
            self._workers.prepare()

    def run(self, work: Work[T], tasks: Sequence[T], report: Report) -> Iterator[tuple[int, dict[str, Any]]]:
        if self._workers is None:
            return run_here(work, tasks, report)
        return self._workers.run(work, tasks, report)

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()
