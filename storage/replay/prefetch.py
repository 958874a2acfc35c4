"""Batches made in threads while the caller uses the last one.

Which steps a batch has is decided in the caller's thread, in order; reading happens in the threads, at the same time;
what comes after it (transforms, pinning, copying to a device) happens in the threads, in order, so that transforms with a
state or a generator of their own give the same batches as without threads.

    draw      1 2 3 4 ->
    read        1 ======
                 2 ===
    finish             1 2            2 waits for 1
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

Job = TypeVar("Job")


class Turns:
    """Lets numbered jobs through one after the other."""

    def __init__(self) -> None:
        self._now = 0
        self._changed = threading.Condition()

    def run(self, number: int, function: Callable[[], Any]) -> Any:
        """Call a function when it is the number's turn; the turn passes on even when it fails."""
        with self._changed:
            self._changed.wait_for(lambda: self._now == number)
        try:
            return function()
        finally:
            self.passed(number)

    def passed(self, number: int) -> None:
        """The job of this number is done with, or will never come."""
        with self._changed:
            self._changed.wait_for(lambda: self._now == number)
            self._now = number + 1
            self._changed.notify_all()


class Prefetcher(Generic[Job]):
    """Up to ``depth`` jobs under way, delivered in the order they were given."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._pool = ThreadPoolExecutor(depth, thread_name_prefix="rbdata-prefetch")
        self._queue: deque[tuple[Job, Future[Any]]] = deque()
        self._turns = Turns()
        self._number = 0
        self._finalizer = weakref.finalize(self, _shut_down, self._pool)

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def first(self) -> Job:
        """The job that is delivered next."""
        return self._queue[0][0]

    @property
    def last(self) -> Job:
        """The job that was given last."""
        return self._queue[-1][0]

    def submit(self, job: Job, read: Callable[[], Any], finish: Callable[[Any], Any]) -> None:
        """Start a job: ``read`` at once, ``finish`` with what it returned, in order."""
        number, turns = self._number, self._turns
        self._number += 1

        def run() -> Any:
            try:
                data = read()
            except BaseException:
                turns.passed(number)
                raise
            return turns.run(number, lambda: finish(data))

        self._queue.append((job, self._pool.submit(run)))

    def next(self) -> tuple[Job, Any]:
        """Wait for the next job; what it raised is raised here."""
        job, future = self._queue.popleft()
        return job, future.result()

    def clear(self) -> None:
        """Throw away what is under way, and wait until nothing runs any more."""
        cancelled = [future.cancel() for _, future in self._queue]
        for (_, future), gone in zip(self._queue, cancelled):
            if not gone:
                future.exception()
        self._queue.clear()
        self._turns, self._number = Turns(), 0

    def close(self) -> None:
        """Stop the threads."""
        self.clear()
        self._finalizer()


def _shut_down(pool: ThreadPoolExecutor) -> None:
    pool.shutdown(wait=False, cancel_futures=True)
