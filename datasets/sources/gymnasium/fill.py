"""Recorded frames to their place in the dataset."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ....storage.manifest import sync_folder
from ....storage.schema import Leaf, Schema
from ....storage.sinks import part_path
from ....storage.writer import open_sink
from ...ingest.trajectories import Column
from ...workers.task import OnBlock
from .spool import Spool

_COPY, _BLOCK_BYTES = 4 << 20, 8 << 20


@dataclass(frozen=True)
class FillTask:
    """The one part of a recording; ``large`` are (number, column) of its large columns; picklable."""

    index: int
    folder: Path
    spool: Path
    schema: Schema
    columns: tuple[Column, ...]
    large: tuple[tuple[int, Column], ...]
    states: int

    @property
    def rows(self) -> int:
        return self.states

    def __call__(self, on_block: OnBlock) -> dict[str, Any]:
        return fill(self, on_block)


def fill(task: FillTask, on_block: OnBlock) -> dict[str, Any]:
    """Put the rows of all environments one after the other; returns the part's record for the journal."""
    spool = Spool(task.spool, task.columns)
    leaves: dict[str, Any] = {}
    for number, column in task.large:
        leaf = task.schema[column.key]
        join = _join if leaf.codec == "zstd" else _expand
        leaves[leaf.name] = join(task, spool, number, leaf)
    on_block(task.rows, 0, 0)
    return {"leaves": leaves, "crc32c": None}


def _join(task: FillTask, spool: Spool, number: int, leaf: Leaf) -> dict[str, Any]:
    """Rows are compressed already: their files become one."""
    path = part_path(task.folder, leaf, task.index)
    path.parent.mkdir(parents=True, exist_ok=True)
    lengths = np.concatenate([spool.lengths(env, number) for env in range(len(spool.states))])
    with path.open("wb") as target:
        for env in range(len(spool.states)):
            with spool.path(env, number).open("rb") as source:
                while block := source.read(_COPY):
                    target.write(block)
        target.flush()
        os.fsync(target.fileno())
    with path.with_suffix(".lengths").open("wb") as file:
        file.write(lengths.tobytes())
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)
    piece = {"position": 0, "rows": len(lengths), "offset": 0, "length": int(lengths.sum()), "crc32c": ""}
    return {"pieces": [piece]}


def _expand(task: FillTask, spool: Spool, number: int, leaf: Leaf) -> dict[str, Any]:
    """Rows are stored raw, once or twice."""
    sink = open_sink(task.folder, task.schema, leaf.name, task.index, 0, task.states, task.states, None)
    size = max(1, _BLOCK_BYTES // leaf.row_bytes)
    position = 0
    for env in range(len(spool.states)):
        rows = spool.rows(env, number)
        for low in range(0, len(rows), size):
            block = np.ascontiguousarray(rows[low : low + size])
            sink.write(position, block.data, np.arange(len(block), dtype=np.int64) * leaf.row_bytes)
            position += len(block)
    return sink.finish()
