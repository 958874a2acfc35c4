"""The frames: from an observation object to rows in the dataset, in blocks.

network -> gunzip -> blocks of rows -> (padding left out, blank states put in) -> sink

The network and the unpacking run in threads of their own, so that a part is as fast as the slowest of the three; memory
is a few blocks, whatever the size of the shard.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from ....errors import CorruptSourceError
from ....storage.checksums import Crc32c
from ....storage.schema import Leaf
from ...fetch import Location, Readahead, RemoteObject, stream
from ...formats.gunzip import gunzip
from ...formats.npy import Expected, NpyStream
from ...ingest.row_source import Block, RowSource
from .ring import PartPlan
from .shards import FRAME

ROW_BYTES = FRAME[0] * FRAME[1]
#: Small blocks stay in the cache between the stages, and their memory is reused instead of mapped again.
BLOCK_ROWS = 512
_EXPECTED = Expected("uint8", (-1, *FRAME))
#: Rows read from the heads of shards to train the dictionary on, and how many of them it is trained on.
SAMPLE_READ, SAMPLE_ROWS, SAMPLE_SHARDS = 65_536, 3_000, 16


@dataclass(frozen=True)
class FrameSource(RowSource):
    """The frames of one shard; progress counts the rows of its file."""

    part: PartPlan
    obj: RemoteObject
    location: Location

    @property
    def rows(self) -> int:
        return self.part.capacity

    def blocks(self, leaves: Sequence[Leaf], threads: int) -> Generator[Block, None, None]:
        part = self.part
        if not part.states:
            return  # a final dump with nothing new in it
        segments = part.segments[np.argsort(part.segments[:, 0], kind="stable")]
        with closing(_Frames(self.location, self.obj)) as frames:
            if frames.rows != part.capacity:
                message = f"{self.obj.url} has {frames.rows} frames; the other arrays have {part.capacity} rows"
                raise CorruptSourceError(message, hint="the shard's files are of different versions; check the mirror")
            for first, count, block in frames.blocks(BLOCK_ROWS):
                _check_padding(part, segments, first, count, block)
                runs = list(place(segments, first, count))
                yield Block("observation", block, runs, first + count, frames.fetched, frames.retries)
            yield Block("", b"", (), part.capacity, frames.fetched, frames.retries, crc32c=frames.crc32c)


def place(segments: np.ndarray, first: int, count: int) -> Iterator[tuple[int, np.ndarray]]:
    """Where the rows of a block go: pairs of (position, byte offsets of the rows from there on).

    The block holds file rows ``first..first+count-1`` and after them one row of zeros. ``segments`` is a part's, in file
    order. Consecutive positions come as one pair.
    """
    low = int(np.searchsorted(segments[:, 0] + segments[:, 1], first, "right"))
    high = int(np.searchsorted(segments[:, 0], first + count, "left"))
    run: list[np.ndarray] = []
    begin = end = -1
    for row, rows, position, zero in segments[low:high].tolist():
        skip = max(0, first - row)
        stop = min(rows, first + count - row)
        starts = (row - first + np.arange(skip, stop)) * ROW_BYTES
        if zero and stop == rows:
            starts = np.append(starts, count * ROW_BYTES)
        if position + skip != end:
            if run:
                yield begin, np.concatenate(run)
            run, begin = [], position + skip
        run.append(starts)
        end = position + skip + len(starts)
    if run:
        yield begin, np.concatenate(run)


def _check_padding(part: PartPlan, segments: np.ndarray, first: int, count: int, block: np.ndarray) -> None:
    """Padding rows are known by their place; that they are blank confirms that the place is right."""
    rows = np.arange(first, first + count)
    index = np.searchsorted(segments[:, 0], rows, "right") - 1
    inside = (index >= 0) & (rows < segments[index, 0] + segments[index, 1])
    expected = (rows < part.valid) | ((rows == part.capacity - 1) & part.seam)
    padding = np.flatnonzero(expected & ~inside)
    for row in padding.tolist():
        if first + row == part.dropped or not block[row * ROW_BYTES : (row + 1) * ROW_BYTES].any():
            continue
        message = f"{part.name}: the frame of row {first + row} should be blank padding, but is not"
        raise CorruptSourceError(message, hint="the file was not written by the DQN Replay logger, or is damaged")


class _Frames:
    """An observation object as a stream of blocks, with what was fetched for it so far."""

    def __init__(self, location: Location, obj: RemoteObject) -> None:
        self.fetched = self.retries = 0
        self._crc32c = Crc32c()
        self._network = Readahead(self._counted(stream(location, obj, on_retry=self._retry)), depth=16)
        self._obj = obj
        try:
            self._npy = NpyStream(gunzip(self._network, obj.url), _EXPECTED, obj.url)
        except BaseException:
            self._network.close()
            raise
        self.rows = self._npy.rows

    def blocks(self, rows: int) -> Iterator[tuple[int, int, np.ndarray]]:
        """``(first, count, bytes)``; each block has one row of zeros behind its rows."""
        with closing(Readahead(self._npy.blocks(rows, spare=1), depth=2)) as blocks:
            yield from blocks

    def close(self) -> None:
        self._network.close()

    @property
    def crc32c(self) -> str:
        """Of all bytes fetched so far."""
        return self._crc32c.hex

    def _counted(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self.fetched += len(piece)
            self._crc32c.update(piece)
            yield piece

    def _retry(self, _: object) -> None:
        self.retries += 1


def peek_blank(location: Location, obj: RemoteObject, rows: list[int]) -> list[bool]:
    """Which of these rows are all zero. Reads no further than the last of them."""
    blank = dict.fromkeys(rows, False)
    with closing(_Frames(location, obj)) as frames:
        for first, count, block in frames.blocks(256):
            for row in rows:
                if first <= row < first + count:
                    at = (row - first) * ROW_BYTES
                    blank[row] = not block[at : at + ROW_BYTES].any()
            if first + count > max(rows):
                break
    return [blank[row] for row in rows]


def sample_rows(location: Location, parts: list[tuple[PartPlan, RemoteObject]]) -> np.ndarray:
    """Frames to train the dictionary on, uint8 ``[n, row_bytes]``: from the heads of shards spread over the run.

    Early and late training look different, so up to ``SAMPLE_SHARDS`` shards give rows; only their first few thousand
    are fetched. The choice depends on nothing but the plan. There may be none: the first step of a final dump, which can be
    its only one, is the last row of the file.
    """
    parts = [entry for entry in parts if entry[0].states]
    chosen = [parts[i] for i in np.unique(np.linspace(0, len(parts) - 1, SAMPLE_SHARDS).astype(int))]
    head = max(1, SAMPLE_READ // len(chosen))
    want = max(1, SAMPLE_ROWS // len(chosen))
    samples = []
    for part, obj in chosen:
        segments = part.segments[part.segments[:, 0] < min(head, part.valid)]
        runs = [np.arange(row, min(row + count, head)) for row, count, _, _ in segments.tolist()]
        rows = np.concatenate(runs) if runs else np.empty(0, np.int64)
        rows = rows[np.unique(np.linspace(0, len(rows) - 1, min(want, len(rows))).astype(int))] if len(rows) else rows
        with closing(_Frames(location, obj)) as frames:
            for first, count, block in frames.blocks(BLOCK_ROWS):
                inside = rows[(rows >= first) & (rows < first + count)] - first
                samples.append(block[: count * ROW_BYTES].reshape(count, ROW_BYTES)[inside])
                if first + count > (int(rows[-1]) if len(rows) else 0):
                    break
    return np.concatenate(samples)
