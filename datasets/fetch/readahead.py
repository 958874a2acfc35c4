"""An iterator run some items ahead in a thread: bytes are received while earlier ones are unpacked."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from ...errors import UsageError

T = TypeVar("T")

# How long `close` waits for the thread, which may be blocked in a read. It is a daemon thread, and ends after the read.
CLOSE_SECONDS = 0.2


class Readahead(Generic[T]):
    """The same items in the same order, up to `depth` of them fetched in advance by a thread that starts at once.

    An exception of the inner iterator is raised in place of the item. Close it (or use it in a `with`) if it is not read
    to its end: that stops the thread and closes the inner iterator.
    """

    def __init__(self, iterable: Iterable[T], depth: int) -> None:
        if depth < 1:
            raise UsageError(f"depth must be at least 1, not {depth}")
        self._channel = _Channel(depth)
        # The thread refers to the channel, not to this object, so that garbage collection of this object ends the thread.
        self._thread = threading.Thread(
            target=_run, args=(iter(iterable), self._channel), name="rbdata-readahead", daemon=True
        )
        self._stop = weakref.finalize(self, self._channel.stop)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return self._channel.take()

    def close(self) -> None:
        """Stop the thread and close the inner iterator; items not taken are lost. May be called twice."""
        self._stop()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_SECONDS)

    def __enter__(self) -> Readahead[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Channel:
    """A bounded queue between the thread and the consumer; `end` is set after the last item."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._items: deque[Any] = deque()
        self._changed = threading.Condition()
        self._end: BaseException | None = None

    def put(self, item: Any) -> bool:
        """Wait for space and put the item; False if the consumer has stopped."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._items) < self._depth or self._end is not None)
            if self._end is not None:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def finish(self, end: BaseException) -> None:
        """No more items: `end` is raised after the last one."""
        with self._changed:
            if self._end is None:
                self._end = end
            self._changed.notify_all()

    def stop(self) -> None:
        """Called by the consumer: drop the items and end the thread."""
        with self._changed:
            self._items.clear()
            self._end = StopIteration()
            self._changed.notify_all()

    def take(self) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._end is not None)
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return item
            end = self._end
            # Raised once; later calls raise StopIteration, as those of a generator.
            self._end = StopIteration()
        assert end is not None
        raise end


def _run(iterator: Iterator[Any], channel: _Channel) -> None:
    end: BaseException = StopIteration()
    try:
        for item in iterator:
            if not channel.put(item):
                break
            # The variable would keep the item in memory until the next one arrives.
            del item
    except BaseException as error:
        end = error
    try:
        close = getattr(iterator, "close", None)
        if close is not None:
            close()
    except BaseException as error:
        end = error if isinstance(end, StopIteration) else end
    channel.finish(end)
