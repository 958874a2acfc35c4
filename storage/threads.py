"""Calls of a function in threads, with the results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

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
