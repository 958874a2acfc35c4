"""What an engine is: it runs many small tasks somewhere, and hands back what each of them says when it is done.

An engine knows nothing of datasets. A task is small and picklable, and so is its record: the data go through files in
the working folder, which every worker must see under the same path. Scheduling, retries and placement are the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from ..pool import TaskProgress as TaskProgress


class Task(Protocol):
    """One piece of work: ``index`` names it, ``rows`` is its size for the progress shown."""

    @property
    def index(self) -> int: ...

    @property
    def rows(self) -> int: ...


T = TypeVar("T", bound=Task)

#: Told by a worker while it is at a task: rows done, and two numbers that are 0 here (bytes fetched, retries).
OnRows = Callable[[int, int, int], None]
#: Does one task. Can be sent to another process; may be run twice for the same task, the second time after the first
#: was lost half-way or (on a cluster) while a lost worker is still at it: what it writes is renamed into place.
Work = Callable[[T, OnRows], dict[str, Any]]
Report = Callable[[list[TaskProgress]], None]


class Engine(Protocol):
    """Runs tasks."""

    #: What the provenance of a dataset says about where it was made: ``local, 2 processes``.
    name: str
    #: How many tasks are likely to run side by side; for estimates of time only.
    parallel: int
    #: Whether the work is done in other processes of this machine, which load what it needs.
    separate: bool

    def prepare(self) -> None:
        """Told before ``run``, as soon as it is clear that there will be work; need not do anything."""

    def run(self, work: Work[T], tasks: Sequence[T], report: Report) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield ``(task.index, record)`` as tasks finish, in any order.

        At most a few tasks for each worker are on their way at a time. The first exception stops the rest, and is raised
        here as it was raised there (work raises errors of `errors`, which pickle). So does closing the iterator, and
        Ctrl-C: when the iterator has ended, for whatever reason, no worker writes any more.
        Raises WorkerLostError when a worker was killed and the engine does not start another one.
        """

    def close(self) -> None:
        """Let go of the workers. ``run`` may be called several times before."""
