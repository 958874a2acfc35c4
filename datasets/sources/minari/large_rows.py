"""Frames and other large rows: read from a dataset's files, part by part."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ....storage.schema import Leaf
from ...ingest.row_source import BLOCK_BYTES, Block, RowSource, block_of_rows
from .episode_rows import ColumnRows, state_rows
from .open_reader import open_reader
from .reader import Data, Reader
from .survey import Source, Survey

#: Decoded bytes of a part.
PART_BYTES = 256 << 20
#: Bytes and rows that the dictionary is trained on, taken from all over the dataset.
_SAMPLE_BYTES, _SAMPLE_ROWS = 24 << 20, 1500


@dataclass(frozen=True)
class LargeRows(RowSource):
    """The large columns of one part. ``runs``: see `episode_rows.Planner`. Progress counts states."""

    data: Data
    found: Survey
    sources: tuple[Source, ...]
    runs: np.ndarray

    @property
    def rows(self) -> int:
        return int(self.runs[:, 2].sum())

    def blocks(self, leaves: Sequence[Leaf], threads: int) -> Generator[Block, None, None]:
        with open_reader(self.data) as reader:
            for number, (source, leaf) in enumerate(zip(self.sources, leaves)):
                position = 0
                for rows in self._read(reader, source):
                    done = (number * self.rows + position + len(rows)) // len(leaves)
                    yield block_of_rows(leaf, position, rows, done)
                    position += len(rows)

    def _read(self, reader: Reader, source: Source) -> Iterator[np.ndarray]:
        size = max(1, BLOCK_BYTES // source.column.row_bytes)
        column = ColumnRows(reader, source, self.found, size, self.data.name)
        for index, first, states in self.runs.tolist():
            for low in range(first, first + states, size):
                yield column.read(index, low, min(low + size, first + states))


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
