"""Batches made in threads while the caller uses the last one.

    draw      1 2 3 4 ->         in the caller's thread, in order, under the buffer's lock
    read        1 ======         in the threads, side by side: rows copied out of the storage
                 2 ===
    collate               1      in the threads, side by side, unless the user's own function does it
    finish                1 2    in the threads, in order: the user's functions, pinned memory, device; 2 waits for 1

Who waits for whom. Every buffer has one lock (``ReplayBuffer._lock``). It is held to draw, to write and to exchange parts.

- A read takes no lock but that of its job, and waits for nothing.
- A writer holds the buffer's lock and first completes all reads (`Prefetcher.complete_reads`): it waits for those that
  run, and performs itself those that have not begun. So a batch holds whole rows, as they were when it was drawn.
- Finishing runs functions of the user, which may call the buffer. No thread waits for it while holding the buffer's lock. It
  waits for the batch before, never for a later one, and happens for one batch at a time.
- A caller whose batch no thread has begun makes it in its own thread. Where that is quicker (see `Pace`), no thread is given
  any; batches are drawn just as many ahead, so that which rows they have does not depend on measured time.
- Rows that other processes write are guarded by a number that every write changes (see `tensor_storage`): a batch during
  whose reading it changed is dropped, and made in the caller's thread under the lock of the writers.
- A thread that exchanges transforms or loads states first withdraws what is in the making, waits for it without any lock (not
  from inside a transform), and then takes the lock (``ReplayBuffer._exclusive``).

`Pace` decides by measurement whether batches are made ahead of time in threads, or when they are asked for.

Handing a batch to a thread and back costs time, and threads take turns with the caller's own Python code; reading in threads
saves what the caller would wait for. Which counts for more depends on the batch, the machine and what the caller does with a
batch. The rows of a batch are drawn at the same moment either way: only the work is done elsewhere. Measured is the time from
one delivered batch to the next, the caller's own work included, once each way; from then on the better way is taken, and the
other one is tried again at long intervals, as both may change.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any, Generic, TypeVar

#: Batches after a change of the way that are not measured, besides the depth of the queue that is filled: warming up.
SETTLING = 2
#: Intervals of one measurement, and those after which a far slower way is given up.
TRIAL, SHORT_TRIAL = 16, 4
#: Times as slow is far slower.
FAR = 1.5
#: Batches until the next trial of the other way, doubled by every trial that changes nothing: one that is twice as slow costs
#: 2 % at first. The fewest, where the way that is taken has become far slower or quicker than it was.
PERIOD, SHORT_PERIOD = 1000, 100


class Pace:
    """Counts delivered batches; ``ahead`` is the way that the next ones are to be made. Safe to call from several threads."""

    def __init__(self, depth: int) -> None:
        self.ahead = True
        self._depth = depth
        self._lock = threading.Lock()
        self._last: float | None = None  # when a batch was delivered
        self._intervals: list[float] = []
        self._settling = SETTLING + depth
        self._since = self._period = PERIOD  # batches since the last trial, and until the next
        self._level = 0.0  # seconds from batch to batch when the way was chosen
        self._other: float | None = None  # during a trial: seconds of the way that was left for it

    def note(self, ahead: bool, now: float) -> None:
        """A batch that was made ``ahead`` or not was delivered at ``now``, in seconds."""
        with self._lock:
            interval, self._last = None if self._last is None else now - self._last, now
            if ahead is not self.ahead or interval is None:
                return  # left over in the queue
            if self._settling:
                self._settling -= 1
                return
            self._intervals.append(interval)
            if self._other is None:
                self._watch()
            else:
                self._judge(self._other)

    def _watch(self) -> None:
        """Begin a trial of the other way when it is time."""
        if len(self._intervals) < TRIAL:
            return
        measured, self._intervals = median(self._intervals), []
        self._since += TRIAL
        changed = not self._level / FAR <= measured <= self._level * FAR
        if changed and self._since >= SHORT_PERIOD:
            self._since = self._period = PERIOD
        if self._since >= self._period:
            self._other = measured
            self._turn()

    def _judge(self, other: float) -> None:
        """End the trial once it has shown which way is quicker."""
        given_up = len(self._intervals) == SHORT_TRIAL and min(self._intervals) > FAR * other
        if len(self._intervals) < TRIAL and not given_up:
            return
        measured, self._intervals = median(self._intervals), []
        self._level, self._other, self._since = min(measured, other), None, 0
        self._period = 2 * self._period if measured >= other else PERIOD
        if measured >= other:
            self._turn()

    def _turn(self) -> None:
        self.ahead, self._settling = not self.ahead, SETTLING + self._depth


Item = TypeVar("Item")


class _Thread(threading.local):
    def __init__(self) -> None:
        self.running: list[threading.Lock] = []  # of the queues whose jobs the thread is inside of


_thread = _Thread()


class Job(Generic[Item]):
    """One batch: read and finished once, by whichever thread comes first."""

    def __init__(
        self,
        item: Item,
        read: Callable[[], Any],
        collate: Callable[[Any], Any] | None,
        finish: Callable[[Any], Any],
        finishing: threading.Lock,
        previous: Job[Item] | None,
        in_thread: bool = True,
    ) -> None:
        self.item, self.in_thread = item, in_thread
        self._read, self._collate, self._finish = read, collate, finish
        self._finishing, self._previous = finishing, previous
        self._reading, self._begun = threading.Lock(), threading.Lock()
        self._ending, self._has_ended = threading.Lock(), False
        self._ending.acquire()  # until the end; an Event takes ten times as long to make
        self.is_read = self.withdrawn = False
        self._value: Any = None
        self._error: BaseException | None = None

    @property
    def has_ended(self) -> bool:
        return self._has_ended

    @property
    def is_running(self) -> bool:
        return self._begun.locked() and not self._has_ended

    def complete_read(self) -> None:
        """Read, unless that is done; wait while another thread reads."""
        with self._reading:
            if self.is_read:
                return
            try:
                self._value = self._read()
            except BaseException as error:
                self._error = error
            self.is_read = True

    def withdraw(self) -> None:
        """Have nothing of the job done that has not begun; on return nothing reads any more.

        One that has not begun ends here: it need not be taken out of the pool's queue, which may be emptied, for the job after
        it to end.
        """
        with self._reading:
            self.withdrawn = self.is_read = True
        if self._begun.acquire(blocking=False):
            self._end()

    def run(self) -> None:
        """Do the job, unless another thread has begun it."""
        if not self._begun.acquire(blocking=False):
            return
        _thread.running.append(self._finishing)
        try:
            self.complete_read()
            if self._collate is not None and self._error is None and not self.withdrawn:
                self._value = self._collate(self._value)
            if self._previous is not None:
                # The caller may never ask for it: a process could not end while this waits.
                self._previous.run()
                self._previous.wait()
            if self._error is None and not self.withdrawn:
                with self._finishing:
                    self._value = self._finish(self._value)
        except BaseException as error:
            self._error = error
        finally:
            _thread.running.pop()
            self._end()

    def _end(self) -> None:
        # The functions hold the pipeline, which holds this job.
        self._previous = None
        self._read = self._collate = self._finish = _nothing
        self._has_ended = True
        self._ending.release()

    def wait(self) -> None:
        """Wait until the job is done."""
        if not self._has_ended:
            with self._ending:
                pass

    def result(self) -> Any:
        """The finished batch, made in this thread if no other has begun; what was raised on the way is raised here."""
        self.run()
        self.wait()
        if self._error is not None:
            raise self._error
        value, self._value = self._value, None
        return value


class Prefetcher(Generic[Item]):
    """Up to ``depth`` jobs ahead of the caller, delivered in the order of submission. The caller holds the buffer's lock."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._pool = ThreadPoolExecutor(depth, thread_name_prefix="rbdata-prefetch")
        self._queue: deque[Job[Item]] = deque()
        self._unfinished: deque[Job[Item]] = deque()
        self._last: Job[Item] | None = None
        self.popped: Job[Item] | None = None  # what was delivered last
        self._finishing = threading.Lock()
        self._finalizer = weakref.finalize(self, _shut_down, self._pool)

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def first(self) -> Item:
        """The item that is delivered next."""
        return self._queue[0].item

    @property
    def last(self) -> Item:
        """The item that was submitted last."""
        return self._queue[-1].item

    def submit(
        self,
        item: Item,
        read: Callable[[], Any],
        collate: Callable[[Any], Any] | None,
        finish: Callable[[Any], Any],
        *,
        in_thread: bool = True,
    ) -> None:
        """Queue a job: ``read`` and ``collate``, then ``finish`` with what they returned, in order.

        It is begun at once ``in_thread``; otherwise the caller that needs its result does it, or the thread of the next job;
        the reading may also be done by a writer.
        """
        job = self._last = Job(item, read, collate, finish, self._finishing, self._last, in_thread)
        self._queue.append(job)
        self._unfinished.append(job)
        while self._unfinished[0].has_ended:
            self._unfinished.popleft()
        if in_thread:
            self._pool.submit(job.run)

    def pop(self) -> Job[Item]:
        """The job that is delivered next; ask for its ``result`` without the lock."""
        self.popped = self._queue.popleft()
        return self.popped

    @property
    def is_entered(self) -> bool:
        """Whether this very thread is inside of a job of the queue."""
        return self._finishing in _thread.running

    def complete_reads(self) -> None:
        """Have all rows read that were drawn, so that the storage may be written."""
        for job in self._unfinished:
            job.complete_read()

    def withdraw(self) -> list[Job[Item]]:
        """Discard what was not delivered; returns the jobs that may be in the middle of finishing, to be waited for."""
        for job in self._queue:
            job.withdraw()
        self.complete_reads()  # what is left to read are batches that callers wait for
        delivered = [job for job in self._unfinished if not job.withdrawn]
        self._last = delivered[-1] if delivered else None
        self._queue.clear()
        return [job for job in self._unfinished if job.is_running]

    def close(self) -> None:
        """Stop the threads, once they have done what they have begun."""
        self._finalizer()


def _nothing(*_: Any) -> None:
    """In the place of functions that are not needed any more."""


def wait_for(jobs: Iterable[Job[Any]]) -> None:
    """Wait for jobs, without any lock held; from inside a job nothing is waited for."""
    if not _thread.running:
        for job in jobs:
            job.wait()


def _shut_down(pool: ThreadPoolExecutor) -> None:
    pool.shutdown(wait=False, cancel_futures=True)
