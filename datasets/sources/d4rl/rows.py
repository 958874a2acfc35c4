"""The rows of a file: into columns of the dataset in large contiguous blocks, or as state rows (`PixelSource`).

The latter are large observations (CARLA's flattened images). An episode's state rows are the observations of its steps and,
last, its final state: the stated successor, the observation of a row that was given up, or zeros after a terminal.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ....storage.schema import Leaf
from ....storage.writer import ColumnWriter
from ...formats.hdf5_chunks import Rows
from ...ingest.row_source import Block, RowSource
from ...ingest.trajectories import as_reward, results
from .contents import Contents, opened
from .episode_ends import Layout

if TYPE_CHECKING:
    import h5py

#: Bytes of observations in a block, and the most rows.
_BLOCK_BYTES, _BLOCK_ROWS = 8 << 20, 1 << 16
#: Bytes of all columns in a block.
_ALL_BYTES = 64 << 20
#: How far a stated successor may be from the observation of the following row and still be the same, rounded.
_RTOL, _ATOL = 1e-5, 1e-6
#: Bytes of large observations in a block.
_PIXEL_BLOCK_BYTES = 16 << 20
#: Rows to train a dictionary on, in runs spread over the file: chunks are unpacked whole.
_SAMPLE_ROWS, _SAMPLE_RUNS, _SAMPLE_BYTES = 3000, 16, 64 << 20


class RowWriter:
    """Appends a file's steps to columns, and counts what it meets."""

    def __init__(
        self,
        file: h5py.File,
        name: str,
        contents: Contents,
        layout: Layout,
        keys: Mapping[str, str],
        jump: float | None,
        pool: Executor,
    ) -> None:
        self._name, self._contents, self._layout = name, contents, layout
        self._keys, self._jump = keys, jump
        self._has_next = "next_observations" in contents.arrays
        self._rewards: list[np.ndarray] = []
        every = sum(array.row_bytes for array in (*contents.arrays.values(), *contents.infos))
        most = min(_BLOCK_BYTES // contents.arrays["observations"].row_bytes, _ALL_BYTES // every)
        self._block = max(1, min(_BLOCK_ROWS, most))
        self._arrays = {path: Rows(file[path], pool, self._block, name) for path in [*contents.arrays, *keys]}
        self.counts = {"seams": 0, "rounded_successors": 0, "rows_not_finite": 0, "position_jumps": 0}

    def write(self, columns: ColumnWriter, *, observations: bool, inner_key: str | None) -> np.ndarray:
        """Append all steps; returns their rewards, float32 ``[steps]``.

        ``observations``: whether they are among the columns. ``inner_key``: the column for terminals inside trajectories.
        """
        layout = self._layout
        for low in range(0, self._contents.rows, self._block):
            high = min(low + self._block, self._contents.rows)
            if observations or self._has_next:
                states, successors = self._states(low, high)
            kept: Any = layout.keep[low:high]
            kept = slice(None) if kept.all() else kept
            block: dict[str, np.ndarray] = {}
            if observations:
                block["observation"], block["next/observation"] = states[kept], successors[kept]
            block["action"] = self._read("actions", low, high)[kept]
            reward = self._reward(low, high)[kept]
            self._rewards.append(reward)
            block.update(results(reward, layout.terminated[low:high][kept], layout.truncated[low:high][kept]))
            if inner_key is not None:
                terminals = layout.inner[low:high] | layout.terminated[low:high]
                block[inner_key] = terminals[kept, None]
            for path, key in self._keys.items():
                block[key] = self._read(path, low, high)[kept]
            if len(reward):
                columns.append(block)
        return np.concatenate(self._rewards) if self._rewards else np.zeros(0, np.float32)

    def _read(self, path: str, low: int, high: int) -> np.ndarray:
        return self._arrays[path].read(low, high)

    def _reward(self, low: int, high: int) -> np.ndarray:
        return as_reward(self._read("rewards", low, high), self._name, "row", low)

    def _states(self, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
        """Observations of these rows, and their successors."""
        shape = self._contents.arrays["observations"].shape
        beyond = min(high + 1, self._contents.rows)
        states = self._read("observations", low, beyond).reshape(beyond - low, *shape)
        here, after = states[: high - low], states[1:]
        self._count_odd(here, after, low)
        if self._has_next:
            successors = self._read("next_observations", low, high).reshape(high - low, *shape)
            self._resolve_seams(successors, after, low)
            return here, successors
        successors = np.zeros_like(here)
        successors[: len(after)] = after
        successors[self._layout.blank[low:high]] = 0
        return here, successors

    def _resolve_seams(self, successors: np.ndarray, after: np.ndarray, low: int) -> None:
        """Inside an episode the successor of a row is the next row's observation; where it is not, the episode ends.

        Successors that differ by rounding alone become the observation that the next row states.
        """
        count = len(after)
        differs = (_bits(successors[:count]) != _bits(after)).any(1) & ~self._layout.last[low : low + count]
        rows = np.flatnonzero(differs)
        if not len(rows):
            return
        close = np.isclose(successors[rows], after[rows], rtol=_RTOL, atol=_ATOL, equal_nan=True)
        close = close.reshape(len(rows), -1).all(1)
        successors[rows[close]] = after[rows[close]]
        self._layout.cut_after(low + rows[~close])
        self.counts["rounded_successors"] += int(close.sum())
        self.counts["seams"] += int((~close).sum())

    def _count_odd(self, here: np.ndarray, after: np.ndarray, low: int) -> None:
        if here.dtype.kind == "f" and not np.isfinite(here).all():
            self.counts["rows_not_finite"] += int((~np.isfinite(here.reshape(len(here), -1)).all(1)).sum())
        if self._jump is not None and here.ndim == 2 and here.shape[1] >= 2:
            moved = np.abs(after[:, :2] - here[: len(after), :2]).max(1) > self._jump
            self.counts["position_jumps"] += int((moved & ~self._layout.end[low : low + len(after)]).sum())


def _bits(rows: np.ndarray) -> np.ndarray:
    """Rows as words, so that NaN equals NaN: ``[n, words]``."""
    flat = np.ascontiguousarray(rows).reshape(len(rows), int(np.prod(rows.shape[1:])))
    return flat.view(f"u{flat.dtype.itemsize}")


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
        size = max(1, min(1 << 14, _PIXEL_BLOCK_BYTES // leaf.row_bytes))
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
