"""The rows of a D4RL file as blocks: all steps with small columns (`StepUnit`), large observations as states (`PixelUnit`).

Large observations are CARLA's flattened images. Those of an episode are the observations of its steps and, last, its final
state: the stated successor, the observation of a row that was given up, or zeros after a terminal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ....storage.checksums import hash_file
from ...formats.hdf5 import ChunkedRows
from ...ingest.block import Block
from ...ingest.trajectories import TransitionRows, compare_successors, longest, to_rewards
from ...ingest.unit import Unit
from ...workers.task import usable_cpus
from .file import FileContents, open_file

#: The leaf for terminals that do not end a trajectory.
INNER = "next/terminal"
#: Chunks unpacked at once; one thread more hashes the file.
_THREADS = 4
#: Bytes of observations in a block, and the most rows; bytes of all columns.
_BLOCK_BYTES, _BLOCK_ROWS, _ALL_BYTES = 8 << 20, 1 << 16, 64 << 20
#: Bytes of large observations in a block.
_PIXEL_BLOCK_BYTES = 16 << 20


@dataclass(frozen=True)
class StepUnit(Unit):
    """All steps of a file; ``name`` is its URL.

    ``keys``: the leaves of its other arrays by path. ``observations``, ``inner``: whether the observations, and the terminals
    inside trajectories, are among the columns. ``jump``: how far an agent can move in a step.
    """

    path: Path
    contents: FileContents
    transitions: TransitionRows
    keys: Mapping[str, str]
    observations: bool
    inner: bool
    jump: float | None

    def blocks(self, resume: Any, threads: int) -> Iterator[Block]:
        contents, transitions = self.contents, self.transitions
        every = sum(array.row_bytes for array in (*contents.arrays.values(), *contents.infos))
        most = min(_BLOCK_BYTES // contents.arrays["observations"].row_bytes, _ALL_BYTES // every)
        size = max(1, min(_BLOCK_ROWS, most))
        counts = {"seams": 0, "rounded_successors": 0, "rows_not_finite": 0, "position_jumps": 0}
        pool = ThreadPoolExecutor(min(_THREADS, usable_cpus()) + 1, "rbdata-d4rl")
        try:
            hashed = pool.submit(hash_file, self.path, hashlib.sha256(usedforsecurity=False))
            with open_file(self.path, self.name) as file:
                arrays = {
                    path: ChunkedRows(file[path], pool, size, self.name) for path in [*contents.arrays, *self.keys]
                }
                for low in range(0, contents.rows, size):
                    high = min(low + size, contents.rows)
                    columns: dict[str, np.ndarray] = {}
                    if self.observations or contents.has_next:
                        here, after = self._states(arrays, low, high, counts)
                        if self.observations:
                            columns = {"observation": here, "next/observation": after}
                    columns["action"] = arrays["actions"].read(low, high)
                    columns["next/reward"] = to_rewards(arrays["rewards"].read(low, high), self.name, "row", low)
                    if self.inner:
                        columns[INNER] = (transitions.inner[low:high] | transitions.terminated[low:high])[:, None]
                    columns |= {key: arrays[path].read(low, high) for path, key in self.keys.items()}
                    kept: Any = transitions.keep[low:high]
                    kept = slice(None) if kept.all() else kept
                    columns = {key: rows[kept] for key, rows in columns.items()}
                    yield Block(columns, transitions.bits(low, high)[kept], done=high)
            record = {
                "sha256": hashed.result().hexdigest(),
                "states": transitions.steps + int(np.count_nonzero(transitions.last & transitions.keep)),
                "counts": {**transitions.counts, **counts},
                "longest": longest(transitions.end),
            }
            yield Block({}, done=contents.rows, record=record)
        finally:
            pool.shutdown(cancel_futures=True)

    def _states(
        self, arrays: Mapping[str, ChunkedRows], low: int, high: int, counts: dict[str, int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Observations of these rows, and their successors."""
        transitions, shape = self.transitions, self.contents.arrays["observations"].shape
        beyond = min(high + 1, self.contents.rows)
        states = arrays["observations"].read(low, beyond).reshape(beyond - low, *shape)
        here, after = states[: high - low], states[1:]
        self._count_odd(here, after, low, counts)
        if not self.contents.has_next:
            successors = np.zeros_like(here)
            successors[: len(after)] = after
            successors[transitions.blank[low:high]] = 0
            return here, successors
        successors = arrays["next_observations"].read(low, high).reshape(high - low, *shape)
        # Inside an episode the successor of a row is the next row's observation; where it is not, the episode ends.
        # Successors that differ by rounding alone become the observation that the next row states.
        inside = ~transitions.last[low : low + len(after)]
        other, rounded = (found & inside for found in compare_successors(after, successors[: len(after)]))
        successors[: len(after)][rounded] = after[rounded]
        transitions.cut_after(low + np.flatnonzero(other))
        counts["rounded_successors"] += int(rounded.sum())
        counts["seams"] += int(other.sum())
        return here, successors

    def _count_odd(self, here: np.ndarray, after: np.ndarray, low: int, counts: dict[str, int]) -> None:
        if here.dtype.kind == "f" and not np.isfinite(here).all():
            counts["rows_not_finite"] += int((~np.isfinite(here.reshape(len(here), -1)).all(1)).sum())
        if self.jump is not None and here.ndim == 2 and here.shape[1] >= 2:
            moved = np.abs(after[:, :2] - here[: len(after), :2]).max(1) > self.jump
            counts["position_jumps"] += int((moved & ~self.transitions.end[low : low + len(after)]).sum())


@dataclass(frozen=True)
class PixelUnit(Unit):
    """The large observations of a file, of these ``dtype`` and ``shape``; progress counts its rows.

    ``has_next``: the file states the successor of every row.
    """

    path: Path
    url: str
    dtype: str
    shape: tuple[int, ...]
    transitions: TransitionRows
    has_next: bool

    def blocks(self, resume: Any, threads: int) -> Iterator[Block]:
        row_bytes = int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize
        size = max(1, min(1 << 14, _PIXEL_BLOCK_BYTES // row_bytes))
        pool = ThreadPoolExecutor(max(1, threads), "rbdata-d4rl")
        try:
            with open_file(self.path, self.url) as file:
                here = ChunkedRows(file["observations"], pool, size, self.url)
                after = ChunkedRows(file["next_observations"], pool, size, self.url) if self.has_next else None
                for low in range(0, self.rows, size):
                    high = min(low + size, self.rows)
                    some = [here.read(low, min(high + 1, self.rows))]
                    count = len(some[0])
                    if after is not None:
                        some.append(after.read(low, high))
                    some = [np.asarray(one, self.dtype).reshape(-1, *self.shape) for one in some]
                    rows = np.concatenate([*some, np.zeros((1, *self.shape), self.dtype)])
                    chosen = self.transitions.state_rows(low, high, count, has_next=self.has_next)
                    yield Block({"observation": rows[chosen]}, done=high)
        finally:
            pool.shutdown(cancel_futures=True)
