"""What is sent to workers, and what they report: tasks, the work done for them, and progress records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

#: Called by a worker after every block of a task: rows done, bytes fetched and retries so far.
OnBlock = Callable[[int, int, int], None]


class Unit(Protocol):
    """One piece of work: ``index`` identifies it, ``rows`` is its size for the progress display. Picklable."""

    @property
    def index(self) -> int: ...

    @property
    def rows(self) -> int: ...


class Task(Unit, Protocol):
    """A unit that holds everything needed to do it. Picklable."""

    def __call__(self, on_block: OnBlock) -> dict[str, Any]:
        """Do it; returns a record that can be written as JSON."""


T = TypeVar("T", bound=Unit)

#: Does one unit. Picklable. May run twice for the same unit, the second time after the first was lost half-way or (on a
#: cluster) while a lost worker is still running: what it writes is renamed into place.
Work = Callable[[T, OnBlock], dict[str, Any]]


@dataclass(frozen=True)
class TaskProgress:
    """The progress of one task: ``rows`` of ``total`` are done. ``wait``: why it waits at the moment, if it does."""

    index: int
    rows: int
    total: int
    fetched: int
    retries: int
    wait: str = ""


#: Receives the progress of all tasks that are running.
Report = Callable[[list[TaskProgress]], None]


def do_task(task: Task, on_block: OnBlock) -> dict[str, Any]:
    """The `Work` of units that do themselves."""
    return task(on_block)


def modules_of(task: Task) -> list[str]:
    """The modules that define a task and what it holds: what a worker must import before it can do it."""
    values = (task, *vars(task).values())
    return sorted({type(value).__module__ for value in values} - {"builtins", "__main__"})
