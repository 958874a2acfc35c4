"""The interface of engines: an engine runs many small tasks somewhere, and yields the record that each of them returns.

Engines are independent of datasets. A task and its record are small and picklable: the data go through files in the
working folder, which every worker must see under the same path. Scheduling, retries and placement are the engine's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from ..task import Report, T, Work
from ..worker_process import OnOutput


class Engine(Protocol):
    """Runs tasks."""

    #: What the provenance of a dataset says about where it was made: ``local, 2 processes``.
    name: str
    #: How many tasks are likely to run side by side; for estimates of time only.
    parallel: int
    #: Whether the work is done in other processes of this machine, which import what it needs.
    separate: bool
    #: Receives what the work prints in other processes of this machine, line by line.
    on_output: OnOutput

    def prepare(self) -> None:
        """Called before ``run``, as soon as it is clear that there will be work. May do nothing."""

    def run(self, work: Work[T], tasks: Sequence[T], report: Report) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield ``(task.index, record)`` as tasks finish, in any order.

        At most a few tasks for each worker are submitted at a time. The first exception stops the rest, and is raised here
        as it was raised in the worker (work raises errors of `errors`, which pickle). So does closing the iterator, and
        KeyboardInterrupt: when the iterator has ended, for whatever reason, no worker writes any more.
        Raises WorkerLostError when a worker was killed and the engine does not start another one.
        """

    def close(self) -> None:
        """End the workers. ``run`` may be called several times before."""
