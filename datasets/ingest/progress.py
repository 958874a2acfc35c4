"""The progress of a run: a `Display` turns the events of a `Listener` into phases and shares done; a derived class draws them.
`Tally` counts finished and remaining work, and estimates the rate and the remaining time. The bar of Python functions is in
`bar`, the displays of the command line are in `cli.progress`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Self

from ...storage import amounts
from ..workers.task import TaskProgress
from .request import Estimate, Listener

#: Seconds over which the rate is averaged.
RATE_WINDOW = 20.0
#: Seconds of progress before the time left is estimated.
MEASURED = 2.0


class Tally:
    """Work done and work left: in bytes where the sizes are known, else in parts."""

    def __init__(self, estimate: Estimate, clock: Callable[[], float] = time.monotonic) -> None:
        self.parts, self.done_parts = estimate.parts, estimate.done_parts
        self.bytes = estimate.fetch_bytes
        #: What the rows of parts count: a recording of a number of episodes does not know its number of steps.
        self.unit = "episodes" if estimate.episodes and not estimate.steps else "steps"
        self.tasks: dict[int, TaskProgress] = {}
        self.finished: set[int] = set()
        self._clock = clock
        self._left = max(1, estimate.parts - estimate.done_parts)
        self._marks: deque[tuple[float, float, int, int]] = deque([(clock(), 0.0, 0, 0)])

    def update(self, tasks: list[TaskProgress]) -> None:
        self.tasks.update((task.index, task) for task in tasks)
        now = self._clock()
        if not (self._marks[-1][1] or self.share or self.fetched):
            self._marks.clear()  # processes that start say nothing about the rate
        self._marks.append((now, self.share, self.fetched, self._rows()))
        while len(self._marks) > 2 and now - self._marks[0][0] > RATE_WINDOW:
            self._marks.popleft()

    def finish(self, index: int) -> None:
        self.finished.add(index)
        self.done_parts += 1

    @property
    def running(self) -> list[TaskProgress]:
        """Unfinished parts that have started, in order."""
        return [task for index, task in sorted(self.tasks.items()) if index not in self.finished]

    @property
    def fetched(self) -> int:
        """Bytes received."""
        return sum(task.fetched for task in self.tasks.values())

    @property
    def retries(self) -> int:
        return sum(task.retries for task in self.tasks.values())

    @property
    def share(self) -> float:
        """Share of this run's work that is done, 0 to 1. Counts rows, as bytes are read ahead of the rows written."""
        running = sum(task.rows / max(1, task.total) for task in self.running)
        return min(1.0, (len(self.finished) + running) / self._left)

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return self._speed(2)

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds left, None until MEASURED seconds of progress were measured."""
        speed = self._speed(1) if self._marks[-1][0] - self._marks[0][0] >= MEASURED else 0.0
        return (1 - self.share) / speed if speed > 0 else None

    def _rows(self) -> int:
        """Rows done, in ``unit``."""
        return sum(task.total if index in self.finished else task.rows for index, task in self.tasks.items())

    def _speed(self, field: int) -> float:
        first, last = self._marks[0], self._marks[-1]
        passed = last[0] - first[0]
        return (last[field] - first[field]) / passed if passed > 0 else 0.0

    def describe(self) -> list[str]:
        """Amount, rate, time left, retries, as far as known; the least important first."""
        words = []
        if not self.bytes and self.parts > 1:
            words.append(f"part {min(self.done_parts + 1, self.parts)} of {self.parts}")
        if self.bytes:
            words.append(f"{amounts.size(min(self.fetched, self.bytes))} of {amounts.size(self.bytes)}")
        if self.rate >= 1:
            words.append(f"{amounts.size(self.rate)}/s")
        elif not self.bytes and self._speed(3) >= 1:
            words.append(f"{amounts.count(round(self._speed(3)))} {self.unit}/s")
        left = self.seconds_left
        if left is not None:
            words.append(f"about {amounts.duration(left)} left")
        if self.retries:
            words.append(f"{self.retries} retr{'y' if self.retries == 1 else 'ies'}")
        return words


class Display:
    """Turns the events of a run into phases, shares and the tally, and shows nothing: base of all displays."""

    def __init__(self) -> None:
        self._tally: Tally | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        pass

    def listener(self) -> Listener:
        """The events that the display shows. It leaves the output of workers to another listener (`both`)."""
        return Listener(
            on_stage=self.phase,
            on_planned=lambda done, total: self.counted("planning", done, total, f"{done} of {total} raw files read"),
            on_estimate=self.estimate,
            on_progress=self._progress,
            on_part_done=self._part_done,
            on_fetched=lambda name, done, total: self.counted("raw files", done, total, bytes_of(done, total)),
            on_output=lambda line: None,
        )

    def phase(self, what: str, words: str = "") -> None:
        """Show a phase whose share done is unknown."""

    def share(self, what: str, share: float, words: str) -> None:
        """Show the share done of the only phase."""

    def counted(self, what: str, done: int, total: int, words: str) -> None:
        """Show the share done of one of several phases."""

    def wait(self, why: str, seconds: float) -> None:
        """Show why no data arrive."""

    def show(self, tally: Tally) -> None:
        """Show the progress of the parts."""

    def estimate(self, estimate: Estimate) -> None:
        """Begin with the parts of a plan."""
        self._tally = None if estimate.unread else Tally(estimate)

    def _progress(self, tasks: list[TaskProgress]) -> None:
        if self._tally is not None:
            self._tally.update(tasks)
            self.show(self._tally)

    def _part_done(self, index: int) -> None:
        if self._tally is not None:
            self._tally.finish(index)
            self.show(self._tally)


def bytes_of(done: int, total: int) -> str:
    """``1.0 MB of 2.0 GB``"""
    return f"{amounts.size(done)} of {amounts.size(total)}"


def both(first: Listener, second: Listener) -> Listener:
    """A listener that calls two."""

    def call(name: str) -> Callable[..., Any]:
        def call_both(*event: Any) -> None:
            getattr(first, name)(*event)
            getattr(second, name)(*event)

        return call_both

    return Listener(**{field.name: call(field.name) for field in fields(Listener)})
