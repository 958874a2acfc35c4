"""Spooled rows to their place in the dataset."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .....errors import RbdataError
from .....storage.codecs.zstd import RowDecoder
from .....storage.manifest import sync_folder
from .....storage.schema import Leaf, Schema
from .....storage.sinks import part_path
from .....storage.writer import open_sink
from ....workers.task import OnBlock
from .spool import ROW_BYTES, ROWS

BLOCK_ROWS = 1024
_COPY = 1 << 22


@dataclass(frozen=True)
class FillTask:
    """Everything a worker needs to fill one part: ``runs`` are (spool, its first row, rows) in order; picklable."""

    index: int
    name: str
    first_state: int
    states: int
    runs: tuple[tuple[Path, int, int], ...]
    folder: Path
    schema: Schema
    all_states: int
    dictionary: Path
    crc32c: str

    @property
    def rows(self) -> int:
        return self.states

    def __call__(self, on_block: OnBlock) -> dict[str, Any]:
        return fill(self, on_block)


def fill(task: FillTask, on_block: OnBlock) -> dict[str, Any]:
    """Put one part's rows in their place; returns its record for the journal."""
    leaf = task.schema["observation"]
    record = _hand_over(task, leaf) if leaf.codec == "zstd" else _expand(task)
    on_block(task.rows, 0, 0)
    return {"leaves": {"observation": record}, "crc32c": task.crc32c}


def _hand_over(task: FillTask, leaf: Leaf) -> dict[str, Any]:
    """Rows stay as they are: a file that holds just this part is renamed, otherwise its rows are copied."""
    path = part_path(task.folder, leaf, task.index)
    path.parent.mkdir(parents=True, exist_ok=True)
    lengths = [np.load(spool / "lengths.npy", mmap_mode="r", allow_pickle=False) for spool, _, _ in task.runs]
    chosen = [every[first : first + rows] for every, (_, first, rows) in zip(lengths, task.runs)]
    joined = np.concatenate([np.empty(0, np.int64), *chosen])
    size = int(joined.sum())
    if len(task.runs) == 1 and len(chosen[0]) == len(lengths[0]):
        rows = task.runs[0][0] / ROWS
        if rows.is_file():
            rows.replace(path)
        elif not path.is_file() or path.stat().st_size != size:
            # Whoever took them away did not finish: the file is to be fetched again.
            shutil.rmtree(task.runs[0][0])
            message = f"the decoded rows of {task.name} are gone from {task.folder}"
            raise RbdataError(message, hint="run the command again: they are fetched anew")
    else:
        _copy(task, lengths, path)
    with path.with_suffix(".lengths").open("wb") as file:
        file.write(joined.astype(np.int64).tobytes())
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)
    piece = {"position": 0, "rows": len(joined), "offset": 0, "length": size, "crc32c": ""}
    return {"pieces": [piece] if len(joined) else []}


def _copy(task: FillTask, lengths: list[np.ndarray], path: Path) -> None:
    with path.open("wb") as target:
        for every, (spool, first, rows) in zip(lengths, task.runs):
            with (spool / ROWS).open("rb") as source:
                source.seek(int(every[:first].sum()))
                left = int(every[first : first + rows].sum())
                while left:
                    data = source.read(min(left, _COPY))
                    if not data:
                        raise RbdataError(f"{spool / ROWS} is shorter than its lengths say")
                    target.write(data)
                    left -= len(data)
        target.flush()
        os.fsync(target.fileno())


def _expand(task: FillTask) -> dict[str, Any]:
    """Rows are stored raw: decompress them in blocks."""
    sink = open_sink(
        task.folder, task.schema, "observation", task.index, task.first_state, task.states, task.all_states, None
    )
    decoder = RowDecoder(task.dictionary.read_bytes(), ROW_BYTES)
    block = np.empty((BLOCK_ROWS, ROW_BYTES), np.uint8)
    position = 0
    for spool, first, rows in task.runs:
        lengths = np.load(spool / "lengths.npy", mmap_mode="r", allow_pickle=False)
        blob = np.memmap(spool / ROWS, np.uint8, "r")
        at = int(lengths[:first].sum())
        for low in range(first, first + rows, BLOCK_ROWS):
            sizes = np.array(lengths[low : min(low + BLOCK_ROWS, first + rows)])
            decoder.decode_into(blob, at + np.cumsum(sizes) - sizes, sizes, block[: len(sizes)])
            sink.write(position, block, np.arange(len(sizes), dtype=np.int64) * ROW_BYTES)
            at += int(sizes.sum())
            position += len(sizes)
    return sink.finish()
