"""Tasks, their progress, and engines, which run them.

An engine runs many small tasks somewhere and yields the record that each of them returns; scheduling, placement and retries
are up to it. Engines know nothing of datasets. Tasks and records are small and picklable: data go through files in the working
folder, which every worker must see under the same path.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, Self, TypeVar

from ... import settings

#: Processes, unless another number is asked for: more make a disk or a server no faster.
MAX_PROCS = 8
#: Memory that C libraries may take for files of a size: a base, and bytes per byte.
_MEMORY, _MEMORY_A_BYTE = 2 << 30, 4


class Task(Protocol):
    """One piece of work: ``index`` identifies it, ``rows`` is its size for the progress display. Picklable.

    ``label`` is what the error says of a worker that died with it: the file that it reads, the steps that it changes.
    """

    @property
    def index(self) -> int: ...

    @property
    def rows(self) -> int: ...

    @property
    def label(self) -> str: ...


T = TypeVar("T", bound=Task)

#: Called by a worker after every block of a task: rows done, bytes fetched and retries so far.
OnBlock = Callable[[int, int, int], None]

#: Does a task; returns its record. Picklable. May run twice for the same task, after a worker was lost or (on a cluster) while
#: a worker that seemed lost is still running, so it must rename its files into place.
Work = Callable[[T, OnBlock], Any]


@dataclass(frozen=True)
class TaskProgress:
    """The progress of one task: ``rows`` of ``total`` are done. ``wait``: why it is waiting, '' if it is not."""

    index: int
    rows: int
    total: int
    fetched: int
    retries: int
    wait: str = ""


#: Receives the progress of all tasks that are running.
Report = Callable[[list[TaskProgress]], None]

#: Receives a line that a worker printed, without its line feed.
OnOutput = Callable[[str], None]


def write_to_stderr(line: str) -> None:
    """The default `OnOutput`."""
    if sys.stderr is not None:
        sys.stderr.write(line + "\n")


class Engine:
    """Runs tasks: this one in this process, one after the other; others elsewhere. Ended by `close`, or by ``with``."""

    #: The provenance of a dataset states it: ``local, 2 processes``.
    name = "local, 1 process"
    #: How many tasks are likely to run side by side; for estimates of time only.
    parallel = 1
    #: Receives what the work prints in other processes of this machine, line by line.
    on_output: OnOutput = staticmethod(write_to_stderr)

    def run(self, work: Work[T], tasks: Sequence[T], report: Report) -> Iterator[tuple[int, Any]]:
        """Yield ``(task.index, record)`` as tasks finish, in any order.

        At most a few tasks for each worker are submitted at a time. The first exception stops the rest, and is raised here
        as it was raised in the worker (work raises errors of `errors`, which pickle). So does closing the iterator, and
        KeyboardInterrupt: when the iterator has ended, for whatever reason, no worker writes any more.
        Raises WorkerLostError when a worker was killed and the engine does not start another one.
        """
        for task in tasks:
            yield task.index, work(task, lambda *done, task=task: report([progress_of(task, *done)]))

    def close(self) -> None:
        """End the workers. ``run`` may be called several times before."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def progress_of(task: Task, rows: int, fetched: int, retries: int, wait: str = "") -> TaskProgress:
    return TaskProgress(task.index, rows, task.rows, fetched, retries, wait)


# -- one call ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Call:
    label: str
    index: int = 0
    rows: int = -1


def call(engine: Engine, label: str, function: Callable[..., Any], *args: Any) -> Any:
    """``function(*args)`` on an engine; ``label`` is what it reads."""
    ((_, result),) = engine.run(partial(_call, function, args), [_Call(label)], lambda progress: None)
    return result


def _call(function: Callable[..., Any], args: tuple[Any, ...], *_: object) -> Any:
    return function(*args)


# -- how many ----------------------------------------------------------------------------------------------------------


def usable_cpus() -> int:
    """Number of processors this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def usual_procs(tasks: int, asked: int | None = None) -> int:
    """The number of worker processes for so many tasks: as asked for, as the settings say, or one per processor, at most 8."""
    procs = settings.procs(asked)
    return min(min(MAX_PROCS, usable_cpus()) if procs is None else procs, max(1, tasks))


def threads_of_task(procs: int, engine: Engine | None) -> int:
    """How many threads each of ``procs`` tasks may use side by side; on a cluster a task has one processor."""
    return 1 if engine is not None else max(1, usable_cpus() // max(1, procs))


def memory_for(size: int) -> int:
    """Bytes of memory that a worker may take in which C libraries read files of ``size`` bytes: they trust what files state."""
    return _MEMORY + _MEMORY_A_BYTE * size
