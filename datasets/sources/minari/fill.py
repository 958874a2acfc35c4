"""Frames and other large rows: from a dataset's files to the state leaves, part by part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ....storage.codecs.zstd import RowEncoder
from ....storage.schema import Schema
from ....storage.writer import open_sink
from ...workers.task import OnBlock
from .episode_rows import state_rows
from .open_reader import open_reader
from .reader import Data, Reader
from .survey import Source, Survey

#: Decoded bytes of a part, and of a block in memory.
PART_BYTES, _BLOCK_BYTES = 256 << 20, 8 << 20
#: Bytes and rows that the dictionary is trained on, taken from all over the dataset.
_SAMPLE_BYTES, _SAMPLE_ROWS = 24 << 20, 1500


@dataclass(frozen=True)
class FillTask:
    """Everything a worker needs to fill one part; picklable. ``runs``: see `rows.Planner`."""

    index: int
    data: Data
    found: Survey
    sources: tuple[Source, ...]
    runs: np.ndarray
    first: int
    states: int
    folder: Path
    schema: Schema
    all_states: int
    threads: int

    @property
    def rows(self) -> int:
        return self.states

    def __call__(self, on_block: OnBlock) -> dict[str, Any]:
        return fill(self, on_block)


def fill(task: FillTask, on_block: OnBlock) -> dict[str, Any]:
    """Read, decode and store the large rows of one part; returns its record for the journal."""
    leaves: dict[str, Any] = {}
    with open_reader(task.data) as reader:
        for number, source in enumerate(task.sources):
            leaf = task.schema[source.column.key]
            encoder = None
            if leaf.codec == "zstd":
                dictionary = task.folder.joinpath(*leaf.key) / "dictionary"
                encoder = RowEncoder(dictionary.read_bytes(), task.threads)
            sink = open_sink(
                task.folder, task.schema, leaf.name, task.index, task.first, task.states, task.all_states, encoder
            )
            position = 0
            for rows in _blocks(reader, source, task):
                starts = np.arange(len(rows), dtype=np.int64) * leaf.row_bytes
                sink.write(position, np.ascontiguousarray(rows, leaf.np_dtype).data.cast("B"), starts)
                position += len(rows)
                on_block((number * task.states + position) // len(task.sources), 0, 0)
            leaves[leaf.name] = sink.finish()
    return {"leaves": leaves, "crc32c": None}


def _blocks(reader: Reader, source: Source, task: FillTask) -> Iterator[np.ndarray]:
    size = max(1, _BLOCK_BYTES // source.column.row_bytes)
    for index, first, states in task.runs.tolist():
        for low in range(first, first + states, size):
            high = min(low + size, first + states)
            yield state_rows(reader, source, task.found, index, low, high, task.data.name)


def part_bounds(states: np.ndarray, row_bytes: int, part_bytes: int = PART_BYTES) -> list[tuple[int, int]]:
    """Episodes of so many states in groups of about ``part_bytes`` of large rows: (first, last + 1)."""
    sizes = np.cumsum(states) * row_bytes
    bounds = []
    low = 0
    while low < len(states):
        before = int(sizes[low - 1]) if low else 0
        high = max(low + 1, int(np.searchsorted(sizes, before + part_bytes, "right")))
        bounds.append((low, high))
        low = high
    return bounds


def sample(data: Data, found: Survey, sources: Sequence[Source], runs: np.ndarray) -> list[np.ndarray]:
    """Rows to train the dictionary on, uint8 ``[row bytes]`` each, spread over all runs and large columns."""
    taken: list[np.ndarray] = []
    ends = np.cumsum(runs[:, 2])
    with open_reader(data) as reader:
        for source in sources:
            want = min(_SAMPLE_ROWS, _SAMPLE_BYTES // source.column.row_bytes) // len(sources)
            for row in np.unique(np.linspace(0, int(ends[-1]) - 1, max(1, want)).astype(np.int64)).tolist():
                run = int(np.searchsorted(ends, row, "right"))
                at = int(runs[run, 1] + row - (ends[run] - runs[run, 2]))
                rows = state_rows(reader, source, found, int(runs[run, 0]), at, at + 1, data.name)
                taken.append(np.frombuffer(np.ascontiguousarray(rows).tobytes(), np.uint8))
    return taken
