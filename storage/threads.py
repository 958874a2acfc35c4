"""Calls of a function in threads: with the results in order, or all of them as one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from threading import Event
from typing import TypeVar

#: How long a failure waits for the other calls to end; a connection that is silent has its own time-out.
_ENDING_SECONDS = 5.0

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int, name: str, *, ahead: int = 4
) -> Generator[Result, None, None]:
    """``map(function, items)`` in ``threads`` threads called ``name``.

    ``ahead`` calls are submitted for each thread: items may be made as they are taken, and there may be 100,000. After an
    error, or when the iterator is closed, no further call is begun, and those that run are not waited for.
    """
    pool, waiting = ThreadPoolExecutor(threads, name), deque[Future[Result]]()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > ahead * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def call_in_threads(
    function: Callable[[Item, Callable[[], None]], object], items: Iterable[Item], threads: int, name: str
) -> None:
    """Call a function of each item, in any order. It also gets what it is to call now and then, which raises InterruptedError
    when another call has failed. The first error is raised when all have ended, KeyboardInterrupt at once."""
    pool, failed = ThreadPoolExecutor(threads, name), Event()

    def go_on() -> None:
        if failed.is_set():
            raise InterruptedError

    def call(item: Item) -> None:
        go_on()
        function(item, go_on)

    calls = [pool.submit(call, item) for item in items]
    try:
        for one in as_completed(calls):
            one.result()
    except BaseException as error:
        failed.set()
        if isinstance(error, Exception):
            wait(calls, _ENDING_SECONDS)
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
