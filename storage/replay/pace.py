"""Whether batches are made ahead of time in threads, or when they are asked for: the quicker of the two, by measurement.

Handing a batch to a thread and back costs time, and threads take turns with the caller's own Python code; reading in threads
saves what the caller would wait for. Which counts for more depends on the batch, the machine and what the caller does with a
batch. The rows of a batch are drawn at the same moment either way: only the work is done elsewhere. Measured is the time from
one delivered batch to the next, the caller's own work included, once each way; from then on the better way is taken, and the
other one is tried again at long intervals, as both may change.
"""

from __future__ import annotations

import threading
from statistics import median

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
