"""Staging: decode first, plan later. For jobs whose row counts are known only when all of their bytes have been read.

Worker processes decode everything into folders of the working folder (`stage_all`); the plan is made from those, and the
large rows are then put in their places (`StagedPart`). A folder that is complete stays for the next run, so that an
interrupted run continues with what is missing.

Rows of a staged file are raw, or each compressed on its own as the dataset has them. Then the lengths of all of its rows
are beside it (`write_lengths`), and a file that holds exactly one part becomes part of the dataset by a rename.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...errors import RbdataError
from ...storage.codecs.zstd import RowDecoder
from ...storage.folder import DatasetPlace, check_space, remove_tree
from ...storage.manifest import sync_folder
from ...storage.schema import Leaf
from ...storage.sinks import part_path
from ..workers.pool import run_tasks
from .estimate import expect
from .protocol import Job
from .request import Estimate, Listener
from .row_source import BLOCK_BYTES, Block, RowSource

_COPY = 4 << 20


def stage_all(
    job: Job, folder: Path, place: DatasetPlace, procs: Callable[[int], int], cpus: int, listener: Listener
) -> Estimate:
    """Stage everything below ``folder``. ``procs`` gives the number of processes for so many tasks."""
    finished = 0
    try:
        listener.on_stage(job.staging)
        left = len(job.staging_tasks(folder, 1))
        finished = job.parts() - left
        estimate = expect(job, place, finished)
        listener.on_estimate(estimate)
        check_space(place.path, estimate.disk_bytes, place.id)
        count = procs(left)
        tasks = job.staging_tasks(folder, max(1, cpus // count))
        for index, _ in run_tasks(tasks, count, listener.on_progress):
            finished += 1
            listener.on_part_done(index)
    except BaseException:
        if not finished:
            remove_tree(folder)  # nothing worth keeping for the next run
        raise
    listener.on_stage("putting the rows in order")
    return estimate


@dataclass(frozen=True)
class StagedRows:
    """``rows`` rows of a staged file from row ``first`` on; compressed where ``dictionary`` is given."""

    path: Path
    first: int
    rows: int
    dictionary: Path | None = None


@dataclass(frozen=True)
class StagedPart(RowSource):
    """A part whose rows are staged: for each leaf, runs of rows in order."""

    name: str
    leaves: Mapping[str, Sequence[StagedRows]]
    crc32c: str | None = None

    @property
    def rows(self) -> int:
        return sum(run.rows for runs in self.leaves.values() for run in runs)

    def blocks(self, leaves: Sequence[Leaf], threads: int) -> Generator[Block, None, None]:
        done = 0
        for leaf in leaves:
            position = 0
            for run in self.leaves[leaf.name]:
                for rows in _decoded(run, leaf) if run.dictionary else _mapped(run, leaf):
                    starts = np.arange(len(rows), dtype=np.int64) * leaf.row_bytes
                    done += len(rows)
                    yield Block(leaf.name, rows.reshape(-1).data, [(position, starts)], done, crc32c=self.crc32c)
                    position += len(rows)
        yield Block("", b"", (), self.rows, crc32c=self.crc32c)

    def adopt(self, leaf: Leaf, folder: Path, index: int) -> dict[str, Any] | None:
        """Compressed rows stay as they are: a file that holds this part alone is renamed, otherwise its rows are copied."""
        runs = self.leaves[leaf.name]
        if leaf.codec == "raw" or not all(run.dictionary for run in runs):
            return None
        path = part_path(folder, leaf, index)
        path.parent.mkdir(parents=True, exist_ok=True)
        in_files = [read_lengths(run.path) for run in runs]
        chosen = [every[run.first : run.first + run.rows] for every, run in zip(in_files, runs)]
        lengths = np.concatenate([np.empty(0, np.int64), *chosen])
        size = int(lengths.sum())
        if len(runs) == 1 and len(lengths) == len(in_files[0]):
            self._rename(runs[0].path, path, size)
        else:
            with path.open("wb") as target:
                for run, every, part in zip(runs, in_files, chosen):
                    _copy(run.path, int(every[: run.first].sum()), int(part.sum()), target)
                _make_durable(target)
        with path.with_suffix(".lengths").open("wb") as file:
            file.write(lengths.tobytes())
            _make_durable(file)
        sync_folder(path.parent)
        piece = {"position": 0, "rows": len(lengths), "offset": 0, "length": size, "crc32c": ""}
        return {"pieces": [piece] if len(lengths) else []}

    def _rename(self, staged: Path, path: Path, size: int) -> None:
        if staged.is_file():
            staged.replace(path)
        elif not path.is_file() or path.stat().st_size != size:
            # An earlier run renamed it and was interrupted, and the part was lost: it must be staged again.
            shutil.rmtree(staged.parent)
            message = f"the decoded rows of {self.name} are gone from {staged.parent.parent}"
            raise RbdataError(message, hint="run the command again: they are decoded anew")


def lengths_path(path: Path) -> Path:
    """The file of compressed lengths beside a staged file: int64 of all rows."""
    return path.with_name(path.name + ".lengths")


def read_lengths(path: Path) -> np.ndarray:
    """Compressed lengths of all rows of a staged file, int64."""
    return np.fromfile(lengths_path(path), np.int64)


def _mapped(run: StagedRows, leaf: Leaf) -> Iterator[np.ndarray]:
    """Raw rows in blocks, uint8 ``[n, row_bytes]``."""
    if not run.rows:
        return
    data = np.memmap(run.path, np.uint8, "r").reshape(-1, leaf.row_bytes)[run.first : run.first + run.rows]
    size = max(1, BLOCK_BYTES // leaf.row_bytes)
    for low in range(0, run.rows, size):
        yield np.ascontiguousarray(data[low : low + size])


def _decoded(run: StagedRows, leaf: Leaf) -> Iterator[np.ndarray]:
    """Compressed rows in blocks, decompressed, uint8 ``[n, row_bytes]``."""
    if not run.rows:
        return
    assert run.dictionary is not None
    decoder = RowDecoder(run.dictionary.read_bytes(), leaf.row_bytes)
    blob = np.memmap(run.path, np.uint8, "r")
    lengths = read_lengths(run.path)
    starts = np.cumsum(lengths) - lengths
    size = max(1, BLOCK_BYTES // leaf.row_bytes)
    block = np.empty((size, leaf.row_bytes), np.uint8)
    for low in range(run.first, run.first + run.rows, size):
        high = min(low + size, run.first + run.rows)
        decoder.decode_into(blob, starts[low:high], lengths[low:high], block[: high - low])
        yield block[: high - low]


def _copy(path: Path, offset: int, size: int, target: BinaryIO) -> None:
    with path.open("rb") as source:
        source.seek(offset)
        while size:
            data = source.read(min(size, _COPY))
            if not data:
                raise RbdataError(f"{path} is shorter than its lengths state")
            target.write(data)
            size -= len(data)


def _make_durable(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
