"""Batches made in threads while the caller uses the previous one.

    draw      1 2 3 4 ->         in the caller's thread, in order, under the buffer's lock
    read        1 ======         in the threads, side by side: rows copied out of the storage
                 2 ===
    collate               1      in the threads, side by side, unless the user's own function does it
    finish                1 2    in the threads, in order: the user's functions, pinned memory, device; 2 waits for 1

Locking: every buffer has one lock (``ReplayBuffer._lock``). A thread holds it to draw, to write and to exchange parts.

- A read takes only the lock of its job, and waits for nothing.
- A writer holds the buffer's lock and first completes all reads (`Prefetcher.complete_reads`): it waits for running reads,
  and performs the others itself. So a batch holds whole rows, with their values at the time of the draw.
- Finishing runs user functions, which may call the buffer. No thread waits for it while holding the buffer's lock. It waits
  for the previous batch, never for a later one, and runs for one batch at a time.
- If no thread has begun a batch, its caller makes it in its own thread. If that is quicker (see `Pace`), threads get no
  batches; equally many batches are drawn ahead, so that their rows do not depend on measured time.
- Rows that other processes write are guarded by a number that every write changes (see `tensor_storage`): if it changes while
  a batch is read, the batch is dropped, and made in the caller's thread under the lock of the writers.
- A thread that exchanges transforms or loads states first withdraws all unfinished batches, waits for running jobs without
  any lock (not from inside a transform), and then takes the lock (``ReplayBuffer._exclusive``).

`Pace` decides by measurement whether batches are made ahead of time in threads, or on request in the caller's thread: threads
save the caller's waiting time, but share the interpreter with its Python code. The draw happens at the same moment in both
modes: only the work moves. `Pace` measures the time from one delivered batch to the next, including the caller's work, once in
each mode, and chooses the faster one; it tries the other mode again at long intervals, because both times may change.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any, Generic, TypeVar

#: Batches that are not measured after a change of mode (warm-up), in addition to the depth of the queue.
SETTLING = 2
#: Number of intervals of a measurement, and the number after which a far slower mode is abandoned.
TRIAL, SHORT_TRIAL = 16, 4
#: A mode is far slower if it takes this many times as long.
FAR = 1.5
#: Batches until the next trial of the other mode, doubled after every trial that changes nothing: trials of a mode that is
#: twice as slow cost 2 % at first. The minimum, used if the chosen mode has become far slower or quicker than it was.
PERIOD, SHORT_PERIOD = 1000, 100


class Pace:
    """Counts delivered batches; ``ahead``: whether the next batches are made ahead. Safe to call from several threads."""

    def __init__(self, depth: int) -> None:
        self.ahead = True
        self._depth = depth
        self._lock = threading.Lock()
        self._last: float | None = None  # when a batch was delivered
        self._intervals: list[float] = []
        self._settling = SETTLING + depth
        self._since = self._period = PERIOD  # batches since the last trial, and until the next
        self._level = 0.0  # seconds from batch to batch when the mode was chosen
        self._other: float | None = None  # during a trial: seconds from batch to batch in the previous mode

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
        """Begin a trial of the other mode when it is due."""
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
        """End the trial once it has shown which mode is quicker."""
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


class BatchJob(Generic[Item]):
    """One batch: read and finished once, by whichever thread comes first."""

    def __init__(
        self,
        item: Item,
        read: Callable[[], Any],
        collate: Callable[[Any], Any] | None,
        finish: Callable[[Any], Any],
        finishing: threading.Lock,
        previous: BatchJob[Item] | None,
        in_thread: bool,
    ) -> None:
        self.item, self.in_thread = item, in_thread
        self._read, self._collate, self._finish = read, collate, finish
        self._finishing, self._previous = finishing, previous
        self._reading, self._begun = threading.Lock(), threading.Lock()
        self._ending, self.has_ended = threading.Lock(), False
        self._ending.acquire()  # until the end; an Event takes ten times as long to make
        self.is_read = self.withdrawn = False
        self._value: Any = None
        self._error: BaseException | None = None

    @property
    def is_running(self) -> bool:
        return self._begun.locked() and not self.has_ended

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
        """Cancel the steps of the job that have not begun; on return no thread reads for it.

        A job that has not begun ends here: the next one does not depend on the pool's queue, which may be emptied.
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
                # The caller may never request the result: a process could not exit while this waits.
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
        # The functions hold the pipeline, which holds this job; no step begins any more.
        self._previous = None
        del self._read, self._collate, self._finish
        self.has_ended = True
        self._ending.release()

    def wait(self) -> None:
        """Wait until the job is done."""
        if not self.has_ended:
            with self._ending:
                pass

    def result(self) -> Any:
        """The finished batch, made in this thread if no other thread has begun it. Exceptions of the job are raised here."""
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
        self._queue: deque[BatchJob[Item]] = deque()
        self._unfinished: deque[BatchJob[Item]] = deque()
        self._last: BatchJob[Item] | None = None
        self.popped: BatchJob[Item] | None = None  # the job delivered last
        self._finishing = threading.Lock()
        self._finalizer = weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)

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

        With ``in_thread`` a thread begins at once; else the caller that needs the result, or the next job's thread, does it.
        """
        job = self._last = BatchJob(item, read, collate, finish, self._finishing, self._last, in_thread)
        self._queue.append(job)
        self._unfinished.append(job)
        while self._unfinished[0].has_ended:
            self._unfinished.popleft()
        if in_thread:
            self._pool.submit(job.run)

    def pop(self) -> BatchJob[Item]:
        """The job that is delivered next; request its ``result`` without holding the lock."""
        self.popped = self._queue.popleft()
        return self.popped

    @property
    def is_entered(self) -> bool:
        """Whether the current thread is running a job of the queue."""
        return self._finishing in _thread.running

    def complete_reads(self) -> None:
        """Complete the reads of all drawn rows, so that the storage may be written."""
        for job in self._unfinished:
            job.complete_read()

    def withdraw(self) -> list[BatchJob[Item]]:
        """Discard undelivered jobs; returns the jobs that may be finishing, for which the caller must wait."""
        for job in self._queue:
            job.withdraw()
        self.complete_reads()  # the remaining reads belong to batches that callers wait for
        delivered = [job for job in self._unfinished if not job.withdrawn]
        self._last = delivered[-1] if delivered else None
        self._queue.clear()
        return [job for job in self._unfinished if job.is_running]

    def close(self) -> None:
        """Stop the threads after their current jobs."""
        self._finalizer()


def wait_for(jobs: Iterable[BatchJob[Any]]) -> None:
    """Wait for jobs without holding any lock; from inside a job, return at once."""
    if not _thread.running:
        for job in jobs:
            job.wait()
