"""Threads that fetch: first what somebody waits for, then what is planned, in order.

They are started when there is something to fetch and end when there has been nothing for a while. A job is a number, and
``load(number)`` does it; a number that is asked for by several threads is fetched once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future

IDLE_SECONDS = 5.0


class BlockFetcher:
    """Runs ``load(number)`` in at most ``connections`` threads. `begin` is called in a forked child, which has none of them."""

    def __init__(self, load: Callable[[int], None], connections: int) -> None:
        self._load, self._connections = load, connections
        self.begin()

    def begin(self) -> None:
        """Forget what was under way: its threads, and who waits, are another process's."""
        self._changed = threading.Condition()
        self._asked: deque[int] = deque()
        self._futures: dict[int, Future[None]] = {}
        self._plan: Iterator[int] = iter(())
        self._threads = 0
        self._closed = False

    def fetch(self, numbers: Iterable[int]) -> None:
        """Have these loaded, and wait for it. Raises the first error, when all that was begun has ended."""
        futures = [self._ask(number) for number in numbers]
        errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None:
                raise error

    def plan(self, numbers: Iterable[int]) -> None:
        """What to fetch when nobody waits, in this order, instead of what was planned before; errors end it silently."""
        with self._changed:
            if not self._closed:
                self._plan = iter(numbers)
                self._start(self._connections)

    def close(self, *, wait: bool = False) -> None:
        """Plan no more, and end the threads when they have done what they are at; ``wait``: until they have."""
        with self._changed:
            self._closed, self._plan = True, iter(())
            self._changed.notify_all()
            self._changed.wait_for(lambda: not (wait and self._threads))

    def _ask(self, number: int) -> Future[None]:
        with self._changed:
            future = self._futures.get(number)
            if future is None:
                future = self._futures[number] = Future()
                self._asked.append(number)
                self._start(1)
            return future

    def _start(self, wanted: int) -> None:
        self._changed.notify(wanted)
        for _ in range(min(wanted, self._connections - self._threads)):
            self._threads += 1
            threading.Thread(target=self._work, name="rbdata-blocks", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._changed:
                job = self._next()
                if job is None and not self._closed:
                    self._changed.wait(IDLE_SECONDS)
                    job = self._next()
                if job is None:
                    self._threads -= 1
                    self._changed.notify_all()
                    return
            number, future, planned = job
            try:
                self._load(number)
            except BaseException as error:
                with self._changed:
                    self._futures.pop(number, None)
                    if planned:
                        self._plan = iter(())
                future.set_exception(error)
            else:
                with self._changed:
                    self._futures.pop(number, None)
                future.set_result(None)

    def _next(self) -> tuple[int, Future[None], bool] | None:
        """The next job; with the condition held."""
        if self._asked:
            number = self._asked.popleft()
            return number, self._futures[number], False
        for number in self._plan:
            if number not in self._futures:
                future = self._futures[number] = Future()
                return number, future, True
        return None
