"""The local engine: this process, or several worker processes.

Workers (`pool`) import the user's code themselves; they are kept from one ``run`` to the next, and end when this process
does. With one process the work is done in the calling process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..pool import Workers, run_here
from ..task import Report, T, Work
from ..worker_output import OnOutput, write_to_stderr

#: Tasks submitted for each process: one that runs and one that waits, so that no worker waits for the parent.
AHEAD = 2


class LocalEngine:
    """``procs`` worker processes, forked after the modules ``preload`` have been imported; see `engine.Engine`."""

    def __init__(self, procs: int, preload: Sequence[str] = ()) -> None:
        self.parallel, self.separate = procs, procs > 1
        self.name = f"local, {procs} process{'' if procs == 1 else 'es'}"
        self.on_output: OnOutput = write_to_stderr
        self._workers = Workers(procs, AHEAD * procs, preload, self._pass_on) if procs > 1 else None

    def _pass_on(self, line: str) -> None:
        self.on_output(line)

    def prepare(self) -> None:
        """Start importing what the workers need, which takes seconds, while the caller goes on."""
        if self._workers is not None:
            self._workers.prepare()

    def run(self, work: Work[T], tasks: Sequence[T], report: Report) -> Iterator[tuple[int, dict[str, Any]]]:
        if self._workers is None:
            return run_here(work, tasks, report)
        return self._workers.run(work, tasks, report)

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()
