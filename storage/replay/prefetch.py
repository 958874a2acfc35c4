"""Batches made ahead in threads, delivered in order.

A batch is drawn in the caller's thread when it is submitted; a thread reads its large leaves and finishes it. So batches lag at
most ``depth`` behind what is written and behind priorities. A write waits for the reads that are under way, not for transforms.

Functions of the user are called for one batch at a time, in order: they may keep state, and use their memory again.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from ...errors import UsageError
from .devices import record_stream

_inside = threading.local()


class PendingBatch:
    """A batch on its way: drawn for a ``size``, its rows ``read`` or not, and its ``result``."""

    def __init__(self, drawn: Any, size: int, before: PendingBatch | None) -> None:
        self.drawn, self.size = drawn, size
        self.read, self._finished = threading.Event(), threading.Event()
        self._before = before
        self.result: Future[Any]

    def make(self, batches: Any) -> Any:
        """Read and finish the batch; runs in a thread."""
        try:
            before, self._before = self._before, None
            try:
                rows = batches.read(self.drawn)
            finally:
                self.read.set()
            if before is not None:
                before._finished.wait()
            _inside.of = batches
            return batches.finish(self.drawn, rows, ahead=True)
        finally:
            _inside.of = None
            self.read.set()
            self._finished.set()


class Prefetcher:
    """Up to ``depth`` batches ahead."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._jobs: deque[PendingBatch] = deque()
        self._last: PendingBatch | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._process = 0  # that the threads belong to

    def next(self, batches: Any, size: int) -> tuple[Callable[[], Any], Any]:
        """Return what waits for the next batch, and what it was drawn as; afterwards the queue is full."""
        if getattr(_inside, "of", None) is batches:
            message = (
                "a transform (or collate_fn) samples from its own buffer, whose next batch would wait for this one"
            )
            raise UsageError(message, hint="make the buffer without prefetch, or sample from another one")
        if self._jobs and (self._jobs[0].size != size or self._process != os.getpid()):
            self.forget()
        if not self._jobs:
            self._submit(batches, size)
        job = self._jobs.popleft()
        batches.order.place = job.drawn.place
        self._fill(batches, size, job)
        job.read.wait()  # a write that comes next need not know of this batch
        return partial(self._delivered, job, batches.options.device), job.drawn

    @staticmethod
    def _delivered(job: PendingBatch, device: Any) -> Any:
        return record_stream(job.result.result(), device)

    def _fill(self, batches: Any, size: int, last: PendingBatch) -> None:
        """Draw up to the depth, but not beyond the end of a pass: later draws belong to the next iteration."""
        last = self._jobs[-1] if self._jobs else last
        while len(self._jobs) < self.depth and not last.drawn.place.ended:
            try:
                last = self._submit(batches, size)
            except Exception:  # the caller of that batch gets the error
                return

    def _submit(self, batches: Any, size: int) -> PendingBatch:
        place = self._jobs[-1].drawn.place if self._jobs else batches.order.place
        job = PendingBatch(batches.draw(size, place), size, self._last)
        if self._threads is None or self._process != os.getpid():  # a fork: the threads stay with the parent
            self._process, self._last = os.getpid(), None
            job._before = None
            self._threads = ThreadPoolExecutor(self.depth, "rbdata-prefetch")
        job.result = self._threads.submit(job.make, batches)
        self._last = job
        self._jobs.append(job)
        return job

    def wait_for_reads(self) -> None:
        for job in self._jobs:
            job.read.wait()

    def forget(self) -> None:
        """Drop all batches, those under way once their rows are read."""
        if self._process == os.getpid():
            self.wait_for_reads()
        self._jobs.clear()

    def close(self) -> None:
        self.forget()
        threads, self._threads, self._last = self._threads, None, None
        if threads is not None:
            threads.shutdown(wait=False)
