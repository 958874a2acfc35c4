"""Large observations (CARLA's flattened images): state rows, each stored once, compressed.

An episode's state rows are the observations of its steps and, last, its final state: the stated successor, the observation
of a row that was given up, or zeros after a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ....storage.codecs.zstd import RowEncoder
from ....storage.schema import Schema
from ....storage.writer import open_sink
from ...formats.hdf5_chunks import Rows
from ...workers.task import OnBlock
from .contents import opened
from .episode_ends import Layout

_BLOCK_BYTES = 16 << 20
#: Rows to train a dictionary on, in runs spread over the file: chunks are unpacked whole.
_SAMPLE_ROWS, _SAMPLE_RUNS = 3000, 16


@dataclass(frozen=True)
class FillTask:
    """Everything a worker needs; picklable."""

    index: int
    rows: int
    path: Path
    name: str
    layout: Layout
    has_next: bool
    folder: Path
    schema: Schema
    states: int
    threads: int

    def __call__(self, on_block: OnBlock) -> dict[str, Any]:
        return fill(self, on_block)


def fill(task: FillTask, on_block: OnBlock) -> dict[str, Any]:
    """Store the state rows of a whole file."""
    leaf = task.schema["observation"]
    dictionary = task.folder / "observation" / "dictionary"
    encoder = RowEncoder(dictionary.read_bytes(), task.threads) if leaf.codec == "zstd" else None
    sink = open_sink(task.folder, task.schema, "observation", task.index, 0, task.states, task.states, encoder)
    size = max(1, min(1 << 14, _BLOCK_BYTES // leaf.row_bytes))
    position = 0
    pool = ThreadPoolExecutor(max(1, task.threads), "rbdata-d4rl")
    try:
        with opened(task.path, task.name) as file:
            here = Rows(file["observations"], pool, size, task.name)
            after = Rows(file["next_observations"], pool, size, task.name) if task.has_next else None
            for low in range(0, task.rows, size):
                high = min(low + size, task.rows)
                blocks = [here.read(low, min(high + 1, task.rows))]
                if after is not None:
                    blocks.append(after.read(low, high))
                buffer = np.concatenate(
                    [np.ascontiguousarray(block, leaf.np_dtype).view(np.uint8).reshape(-1) for block in blocks]
                    + [np.zeros(leaf.row_bytes, np.uint8)]
                )
                rows = state_rows(task.layout, low, high, len(blocks[0]), task.has_next)
                sink.write(position, buffer, rows * leaf.row_bytes)
                position += len(rows)
                on_block(high, 0, 0)
    finally:
        pool.shutdown(cancel_futures=True)
    return {"leaves": {"observation": sink.finish()}, "crc32c": None}


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
    return np.concatenate(list(_runs(path, name, rows)))


def _runs(path: Path, name: str, rows: int) -> Iterator[np.ndarray]:
    count = max(1, min(_SAMPLE_ROWS, rows) // _SAMPLE_RUNS)
    with opened(path, name) as file:
        observations = file["observations"]
        for low in np.unique(np.linspace(0, rows - count, _SAMPLE_RUNS).astype(int)).tolist():
            block = np.ascontiguousarray(observations[low : low + count])
            yield block.astype(block.dtype.newbyteorder("<"), copy=False).view(np.uint8).reshape(len(block), -1)
