"""The work in pieces: chunks, within them batches or episodes.

    batch        the input of one call (per batch, sample); its random numbers follow from its first step
    episode      the input of one call (per episode); its random numbers follow from its first step
    chunk        consecutive batches or episodes: a worker's unit of work, finished and resumed as a whole

All follow from the data and the request alone, never from the number of processes: a chunk is also a checksum range, and
statistics are merged in the order of chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: Limits of the default batch size: bytes of the input of a function, and steps.
BATCH_BYTES, BATCH_STEPS = 8 << 20, 1 << 14
#: Small datasets are cut into this many batches of at least this many steps, so that a slow function is called several times.
BATCHES, LEAST_BATCH_STEPS = 64, 32
#: Limits of the size of a chunk: bytes, steps, and batches (of the largest or the requested size).
CHUNK_BYTES, CHUNK_STEPS, CHUNK_BATCHES = 64 << 20, 1 << 16, 16
#: A small dataset is cut into about this many chunks for functions of users, as many as there are processes without
#: ``--procs``. Built-in ones are too fast for that: a part costs milliseconds.
CHUNKS = 8


@dataclass(frozen=True)
class Chunk:
    """Steps ``start..stop-1``; ``first..last-1`` are the episodes that these steps belong to."""

    index: int
    start: int
    stop: int
    first: int
    last: int

    @property
    def rows(self) -> int:
        return self.stop - self.start

    @property
    def label(self) -> str:
        """``steps 0..65,535``"""
        return step_range(self.start, self.stop)


def step_range(start: int, stop: int) -> str:
    """``steps 0..65,535``, or ``step 7``"""
    return f"steps {start:,}..{stop - 1:,}" if stop - start > 1 else f"step {start:,}"


def choose_sizes(batch_size: int | None, step_bytes: int, steps: int, is_own: bool) -> tuple[int, int]:
    """Return the number of steps of a batch, as requested or chosen for ``steps`` steps of ``step_bytes``, and of a chunk.
    ``is_own``: whether functions are the user's."""
    largest = batch_size or max(1, min(BATCH_STEPS, BATCH_BYTES // step_bytes))
    batch = batch_size or min(largest, max(LEAST_BATCH_STEPS, -(-steps // BATCHES)))
    chunk = largest * max(1, min(CHUNK_BATCHES, min(CHUNK_STEPS, CHUNK_BYTES // step_bytes) // largest))
    if is_own:
        chunk = min(chunk, -(-steps // CHUNKS))
    return batch, batch * -(-chunk // batch)


def cut(starts: np.ndarray, size: int, whole_episodes: bool) -> list[Chunk]:
    """Return all steps in chunks of about ``size`` steps; ``starts`` are the first steps of all episodes, and last the number
    of steps."""
    return split(Chunk(0, 0, int(starts[-1]), 0, len(starts) - 1), starts, size, whole_episodes)


def split(chunk: Chunk, starts: np.ndarray, size: int, whole_episodes: bool) -> list[Chunk]:
    """Return the pieces of a chunk, such as its batches, in order and numbered from 0."""
    if whole_episodes:
        edges = _runs(starts, chunk.first, chunk.last, size)
        return [Chunk(n, int(starts[a]), int(starts[b]), a, b) for n, (a, b) in enumerate(edges)]
    steps = np.arange(chunk.start, chunk.stop, size)
    stops = np.minimum(steps + size, chunk.stop)
    first = np.searchsorted(starts, steps, "right") - 1
    last = np.searchsorted(starts, stops, "left")
    rows = zip(steps.tolist(), stops.tolist(), first.tolist(), last.tolist())
    return [Chunk(n, *row) for n, row in enumerate(rows)]


def _runs(starts: np.ndarray, first: int, last: int, size: int) -> list[tuple[int, int]]:
    """Episodes ``first..last-1`` in runs of at most ``size`` steps; a longer episode is a run by itself."""
    runs = []
    while first < last:
        high = int(np.searchsorted(starts, starts[first] + size, "right")) - 1
        high = min(max(high, first + 1), last)
        runs.append((first, high))
        first = high
    return runs
