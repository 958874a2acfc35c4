"""The work in pieces: chunks that are done, kept and resumed as a whole, and within them the batches a function is given.

Both follow from the data alone, never from the number of processes: a chunk's random numbers, its bytes and the ranges
of the checksums are the same whoever does it.

    per batch, sample      chunks of a fixed number of steps, whole batches
    per episode            consecutive whole episodes, up to about as many steps; at least one
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .episode_view import Episodes

#: A batch of this many bytes as the function sees it, or so many steps.
BATCH_BYTES, BATCH_STEPS = 8 << 20, 1 << 14
#: A chunk at most: so many bytes, steps and batches.
CHUNK_BYTES, CHUNK_STEPS, CHUNK_BATCHES = 64 << 20, 1 << 16, 16


@dataclass(frozen=True)
class Chunk:
    """Steps ``start..stop-1``; ``first..last-1`` are the episodes of the view that these steps belong to."""

    index: int
    start: int
    stop: int
    first: int
    last: int

    @property
    def rows(self) -> int:
        return self.stop - self.start

    def words(self) -> str:
        """``steps 0..65,535``"""
        return step_range(self.start, self.stop)


def step_range(start: int, stop: int) -> str:
    """``steps 0..65,535``, or ``step 7``"""
    return f"steps {start:,}..{stop - 1:,}" if stop - start > 1 else f"step {start:,}"


def default_batch(row_bytes: int) -> int:
    """How many steps a function is given at once."""
    return max(1, min(BATCH_STEPS, BATCH_BYTES // row_bytes))


def chunk_steps(batch: int, row_bytes: int) -> int:
    """How many steps make a chunk: whole batches."""
    steps = min(CHUNK_STEPS, CHUNK_BYTES // row_bytes)
    return batch * max(1, min(CHUNK_BATCHES, steps // batch))


def cut(episodes: Episodes, size: int, whole_episodes: bool) -> list[Chunk]:
    """All chunks, in order."""
    starts = episodes.starts
    if whole_episodes:
        edges = _runs(starts, 0, len(episodes), size)
        return [Chunk(n, int(starts[a]), int(starts[b]), a, b) for n, (a, b) in enumerate(edges)]
    steps = np.arange(0, episodes.steps, size)
    stops = np.minimum(steps + size, episodes.steps)
    first = np.searchsorted(starts, steps, "right") - 1
    last = np.searchsorted(starts, stops, "left")
    rows = zip(steps.tolist(), stops.tolist(), first.tolist(), last.tolist())
    return [Chunk(n, *row) for n, row in enumerate(rows)]


def batches(chunk: Chunk, episodes: Episodes, size: int, whole_episodes: bool) -> Iterator[tuple[int, int, int, int]]:
    """``(start, stop, first, last)`` of each batch of a chunk: steps, and the view's episodes they belong to."""
    starts = episodes.starts
    if whole_episodes:
        for low, high in _runs(starts, chunk.first, chunk.last, size):
            yield int(starts[low]), int(starts[high]), low, high
        return
    for start in range(chunk.start, chunk.stop, size):
        stop = min(start + size, chunk.stop)
        first = int(np.searchsorted(starts, start, "right")) - 1
        yield start, stop, first, int(np.searchsorted(starts, stop, "left"))


def _runs(starts: np.ndarray, first: int, last: int, size: int) -> list[tuple[int, int]]:
    """Episodes ``first..last-1`` in runs of at most ``size`` steps, or of one longer episode."""
    runs = []
    while first < last:
        high = int(np.searchsorted(starts, starts[first] + size, "right")) - 1
        high = min(max(high, first + 1), last)
        runs.append((first, high))
        first = high
    return runs
