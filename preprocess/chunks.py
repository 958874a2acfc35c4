"""The work in pieces: chunks, which are finished and resumed as a whole, and within them batches, which are cut alike.

Both follow from the data and the batch size alone, not from the number of processes: the random numbers of a chunk, its bytes
and the ranges of checksums are the same for any engine.

    per batch, sample      chunks of a fixed number of steps, whole batches
    per episode            consecutive whole episodes, up to about as many steps; at least one
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .episode_view import Episodes

#: The default size of a batch: the bytes that a function gets, and steps, at most.
BATCH_BYTES, BATCH_STEPS = 8 << 20, 1 << 14
#: The size of a chunk: bytes, steps and batches, at most.
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

    def describe(self) -> str:
        """``steps 0..65,535``"""
        return step_range(self.start, self.stop)


def step_range(start: int, stop: int) -> str:
    """``steps 0..65,535``, or ``step 7``"""
    return f"steps {start:,}..{stop - 1:,}" if stop - start > 1 else f"step {start:,}"


def choose_sizes(batch_size: int | None, step_bytes: int) -> tuple[int, int]:
    """The steps of a batch, as requested or for steps of ``step_bytes``, and of a chunk, which is whole batches."""
    batch = batch_size or max(1, min(BATCH_STEPS, BATCH_BYTES // step_bytes))
    steps = min(CHUNK_STEPS, CHUNK_BYTES // step_bytes)
    return batch, batch * max(1, min(CHUNK_BATCHES, steps // batch))


def cut(episodes: Episodes, size: int, whole_episodes: bool) -> list[Chunk]:
    """All chunks, in order."""
    return split(Chunk(0, 0, episodes.steps, 0, len(episodes)), episodes, size, whole_episodes)


def split(chunk: Chunk, episodes: Episodes, size: int, whole_episodes: bool) -> list[Chunk]:
    """The pieces of a chunk, such as its batches, in order and numbered from 0."""
    starts = episodes.starts
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
    """Episodes ``first..last-1`` in runs of at most ``size`` steps, or of one longer episode."""
    runs = []
    while first < last:
        high = int(np.searchsorted(starts, starts[first] + size, "right")) - 1
        high = min(max(high, first + 1), last)
        runs.append((first, high))
        first = high
    return runs
