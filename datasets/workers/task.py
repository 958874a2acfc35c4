"""Tasks, their progress, and the interface of engines, which run them.

An engine runs many small tasks somewhere and yields the record that each of them returns; scheduling, placement and retries
are up to it. Engines know nothing of datasets. Tasks and records are small and picklable: data go through files in the working
folder, which every worker must see under the same path.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

#: Called by a worker after every block of a task: rows done, bytes fetched and retries so far.
OnBlock = Callable[[int, int, int], None]


class WorkUnit(Protocol):
    """One piece of work: ``index`` identifies it, ``rows`` is its size for the progress display. Picklable.

    ``label`` is what the error says of a worker that died with it: the file that it reads, the steps that it changes.
    """

    @property
    def index(self) -> int: ...

    @property
    def rows(self) -> int: ...

    @property
    def label(self) -> str: ...


class Task(WorkUnit, Protocol):
    """A unit that holds everything needed to do it. Picklable."""

    def __call__(self, on_block: OnBlock) -> dict[str, Any]:
        """Do the work; returns a record that can be written as JSON."""


T = TypeVar("T", bound=WorkUnit)

#: Does one unit. Picklable. May run twice for the same unit, after a worker was lost or (on a cluster) while a worker that
#: seemed lost is still running, so it must rename its files into place.
Work = Callable[[T, OnBlock], dict[str, Any]]


@dataclass(frozen=True)
class TaskProgress:
    """The progress of one task: ``rows`` of ``total`` are done. ``wait``: why it is waiting, '' if it is not."""

    index: int
    rows: int
    total: int
    fetched: int
    retries: int
    wait: str = ""


def progress_of(task: WorkUnit, rows: int, fetched: int, retries: int, wait: str = "") -> TaskProgress:
    return TaskProgress(task.index, rows, task.rows, fetched, retries, wait)


#: Receives the progress of all tasks that are running.
Report = Callable[[list[TaskProgress]], None]


def do_task(task: Task, on_block: OnBlock) -> dict[str, Any]:
    """The `Work` for units that are tasks."""
    return task(on_block)


def modules_of(task: Task) -> list[str]:
    """The modules that define a task and its attributes, and the C libraries that these name, which a worker must import
    first."""
    values = (task, *vars(task).values())
    libraries = {name for value in values for name in getattr(value, "native_libraries", ())}
    return sorted(({type(value).__module__ for value in values} | libraries) - {"builtins", "__main__"})


#: Receives a line that a worker printed, without its line feed.
OnOutput = Callable[[str], None]


def write_to_stderr(line: str) -> None:
    """The default `OnOutput`."""
    if sys.stderr is not None:
        sys.stderr.write(line + "\n")


class Engine(Protocol):
    """Runs tasks."""

    #: The provenance of a dataset states it: ``local, 2 processes``.
    name: str
    #: How many tasks are likely to run side by side; for estimates of time only.
    parallel: int
    #: Receives what the work prints in other processes of this machine, line by line.
    on_output: OnOutput

    def run(self, work: Work[T], tasks: Sequence[T], report: Report) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield ``(task.index, record)`` as tasks finish, in any order.

        At most a few tasks for each worker are submitted at a time. The first exception stops the rest, and is raised here
        as it was raised in the worker (work raises errors of `errors`, which pickle). So does closing the iterator, and
        KeyboardInterrupt: when the iterator has ended, for whatever reason, no worker writes any more.
        Raises WorkerLostError when a worker was killed and the engine does not start another one.
        """

    def close(self) -> None:
        """End the workers. ``run`` may be called several times before."""


def usable_cpus() -> int:
    """Number of processors this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1
