"""The rows of a D4RL file as blocks of steps and states."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ....storage.checksums import hash_file
from ...formats.hdf5 import ChunkedRows, open_file
from ...ingest.block import Block
from ...ingest.trajectories import Column, TransitionRows
from ...ingest.transition_blocks import TransitionTable
from ...ingest.unit import Unit
from ...workers.task import usable_cpus
from .file import CACHE

#: The leaf for terminals that do not end a trajectory.
INNER = "next/terminal"
#: Chunks unpacked at once; one thread more hashes the file.
_THREADS = 4
#: The most rows of a block.
_BLOCK_ROWS = 1 << 16


@dataclass(frozen=True)
class RowsUnit(Unit):
    """All rows of a file; ``name`` is its URL, ``names`` are its arrays by the keys of the ``columns``. ``has_next``: it states
    the successor of every row."""

    path: Path
    has_next: bool
    transitions: TransitionRows
    columns: Sequence[Column]
    names: Mapping[str, str]

    def blocks(self, resume: Any, threads: int) -> Iterator[Block]:
        transitions, done = self.transitions, 0
        pool = ThreadPoolExecutor(min(_THREADS, usable_cpus()) + 1, "rbdata-d4rl")
        try:
            hashed = pool.submit(hash_file, self.path, hashlib.sha256(usedforsecurity=False))
            with open_file(self.path, self.name, **CACHE) as file:
                read = _Arrays(file, pool, self.name, transitions).read
                successors = {"observation": "next_observations"} if self.has_next else {}
                table = TransitionTable(self.name, read, self.names, successors, "rewards")
                for values, rewards, bits in table.blocks(self.columns, transitions, _BLOCK_ROWS):
                    rows = {column.key: some for column, some in zip(self.columns, values)}
                    done += len(bits)
                    yield Block({**rows, "next/reward": rewards}, bits, done=done)
            record = {
                "sha256": hashed.result().hexdigest(),
                "counts": {"seams": 0, "rounded_successors": 0, **transitions.counts},
            }
            yield Block({}, done=done, record=record)
        finally:
            pool.shutdown(cancel_futures=True)


class _Arrays:
    """The arrays of a file, of which the last rows that were read are kept: they are asked for twice."""

    def __init__(self, file: h5py.File, pool: ThreadPoolExecutor, name: str, transitions: TransitionRows) -> None:
        self._file, self._pool, self._name = file, pool, name
        self._inner = (transitions.inner | transitions.terminated)[:, None]
        self._open, self._last = dict[str, ChunkedRows](), dict[str, tuple[int, int, np.ndarray]]()

    def read(self, path: str, low: int, high: int) -> np.ndarray:
        if path == INNER:
            return self._inner[low:high]
        if path not in self._open:
            self._open[path] = ChunkedRows(self._file[path], self._name, self._pool, high - low)
        kept = self._last.get(path)
        if kept is None or kept[:2] != (low, high):
            kept = self._last[path] = low, high, self._open[path].read(low, high)
        return kept[2]
