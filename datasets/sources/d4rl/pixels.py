"""Large observations (CARLA's flattened images): a file's rows as state rows.

An episode's state rows are the observations of its steps and, last, its final state: the stated successor, the observation
of a row that was given up, or zeros after a terminal.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ....storage.schema import Leaf
from ...formats.hdf5_chunks import Rows
from ...ingest.row_source import Block, RowSource
from .contents import opened
from .episode_ends import Layout

_BLOCK_BYTES = 16 << 20
#: Rows to train a dictionary on, in runs spread over the file: chunks are unpacked whole.
_SAMPLE_ROWS, _SAMPLE_RUNS, _SAMPLE_BYTES = 3000, 16, 64 << 20


@dataclass(frozen=True)
class PixelSource(RowSource):
    """The observations of a file; progress counts its rows. ``has_next``: the file states the successor of every row."""

    path: Path
    name: str
    file_rows: int
    layout: Layout
    has_next: bool

    @property
    def rows(self) -> int:
        return self.file_rows

    def blocks(self, leaves: Sequence[Leaf], threads: int) -> Generator[Block, None, None]:
        (leaf,) = leaves
        size = max(1, min(1 << 14, _BLOCK_BYTES // leaf.row_bytes))
        position = 0
        pool = ThreadPoolExecutor(max(1, threads), "rbdata-d4rl")
        try:
            with opened(self.path, self.name) as file:
                here = Rows(file["observations"], pool, size, self.name)
                after = Rows(file["next_observations"], pool, size, self.name) if self.has_next else None
                for low in range(0, self.rows, size):
                    high = min(low + size, self.rows)
                    blocks = [here.read(low, min(high + 1, self.rows))]
                    if after is not None:
                        blocks.append(after.read(low, high))
                    buffer = np.concatenate(
                        [np.ascontiguousarray(block, leaf.np_dtype).view(np.uint8).reshape(-1) for block in blocks]
                        + [np.zeros(leaf.row_bytes, np.uint8)]
                    )
                    rows = state_rows(self.layout, low, high, len(blocks[0]), self.has_next)
                    yield Block(leaf.name, buffer, [(position, rows * leaf.row_bytes)], high)
                    position += len(rows)
        finally:
            pool.shutdown(cancel_futures=True)


def state_rows(layout: Layout, low: int, high: int, observations: int, has_next: bool) -> np.ndarray:
    """Which rows of a buffer are the states of the file's rows ``low..high-1``, in order.

    The buffer holds ``observations`` observations from row ``low`` on, then, with ``has_next``, the successors of the rows,
    then a row of zeros.
    """
    kept = np.flatnonzero(layout.keep[low:high])
    zeros = observations + (high - low if has_next else 0)
    final = observations + kept if has_next else np.where(layout.blank[low:high][kept], zeros, kept + 1)
    pairs = np.stack([kept, final], 1)
    used = np.stack([np.ones(len(kept), bool), layout.last[low:high][kept]], 1)
    return pairs[used]


def sample(path: Path, name: str, rows: int) -> np.ndarray:
    """Observations spread over the file, uint8 ``[n, row_bytes]``, to train a dictionary on."""
    blocks = []
    with opened(path, name) as file:
        observations = file["observations"]
        most = max(1, min(_SAMPLE_ROWS, rows, _SAMPLE_BYTES // (observations.nbytes // rows)))
        count = max(1, most // _SAMPLE_RUNS)
        chunked = Rows(observations, None, 0, name)
        for low in np.unique(np.linspace(0, rows - count, min(_SAMPLE_RUNS, most)).astype(int)).tolist():
            block = np.ascontiguousarray(chunked.read(low, low + count))
            block = block.astype(block.dtype.newbyteorder("<"), copy=False)
            blocks.append(block.view(np.uint8).reshape(len(block), -1))
    return np.concatenate(blocks)
