"""A dataset that compares what it reads with its checksums: every block once, before the first byte of it is used.

A block is 4 MiB of a large file; where a dataset has no table of blocks, it is a range of its manifest (`block_checksums`).
Small files (episodes, dictionaries) are checked when the dataset is opened. The first pass over a dataset costs as much more as
`verify` takes, later ones nothing more; a block that is never read is never checked.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from ..errors import DamagedDatasetError
from .block_checksums import Block, read_block_checksums
from .checksums import BLOCK, Crc32c
from .codecs import codec_of
from .codecs.codec import GuardedRows, Rows, StoredRows
from .dataset import Dataset, reopen
from .durable import is_about_reader
from .episodes import EpisodeTable
from .leaf import Leaf
from .manifest import Manifest
from .memory_map import verify_hint


class CheckedDataset(Dataset):
    """A `Dataset` whose reads raise DamagedDatasetError, naming the file and the block, for changed bytes."""

    def _map(self, manifest: Manifest) -> tuple[Manifest, EpisodeTable, dict[str, Rows]]:
        # The files are opened with those that are mapped, so that the bytes checked are the bytes read.
        self._checks = BlockChecks(self.path, manifest)
        return super()._map(manifest)

    def _open(self, leaf: Leaf, count: int) -> Rows:
        rows = super()._open(leaf, count)
        return rows if leaf.constant is not None else _CheckedRows(cast(StoredRows, rows), self._checks)

    def __reduce__(self) -> tuple[Any, ...]:
        return reopen, (CheckedDataset, (self.path.absolute(),), self.manifest.content)


class BlockChecks:
    """Which blocks of the files of a dataset have been compared with their checksums by this process.

    Raises DamagedDatasetError where the table of blocks or a file that is read when a dataset is opened is damaged or missing.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder, self._checksums = folder, read_block_checksums(folder, manifest)
        stored = [codec_of(leaf) for leaf in manifest.schema if leaf.constant is None]
        constant = {leaf.memmap for leaf in manifest.schema if leaf.constant is not None}
        rows = {codec.path(name) for codec in stored for name in codec.appended}
        self._files: dict[str, int] = {}
        weakref.finalize(self, _close, self._files)
        self._ends: dict[str, np.ndarray] = {}
        self._waiting: dict[str, np.ndarray] = {}
        for path in manifest.files.keys() - constant:
            try:
                self._files[path] = os.open(folder / path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError as error:
                if is_about_reader(error):
                    raise
                raise self._damage(path, f"cannot be read: {error.strerror}") from error
            if path in rows:
                self._ends[path] = np.array([block.end for block in self._checksums.all(path)], np.int64)
                self._waiting[path] = np.ones(len(self._ends[path]), bool)
            else:
                for block in self._checksums.all(path):
                    self._check(block)
                os.close(self._files.pop(path))
        for codec in stored:  # the last entry of an index says how long the rows are
            for path in {codec.path(name) for name in codec.appended} - {codec.path("blob")}:
                self.check(path, self._ends[path][-1:] - 1, self._ends[path][-1:])

    def is_done(self, path: str) -> bool:
        """Whether every block of a file has been checked."""
        return not self._waiting[path].any()

    def check(self, path: str, starts: np.ndarray, stops: np.ndarray) -> None:
        """Check the blocks that hold bytes ``starts..stops-1`` (int64 ``[n]``) of a file, if they are not checked yet."""
        waiting, ends = self._waiting[path], self._ends[path]
        last = len(ends) - 1
        first = np.minimum(np.searchsorted(ends, starts, "right"), last)
        final = np.minimum(np.searchsorted(ends, stops - 1, "right"), last)
        for number in np.flatnonzero(_marked(len(ends), first, final) & waiting).tolist():
            self._check(self._checksums.block(path, number))
            waiting[number] = False

    def _check(self, block: Block) -> None:
        checksum = Crc32c()
        try:
            for data in self._read(block):
                checksum.update(data)
        except OSError as error:
            raise self._damage(block.path, f"cannot be read after byte {block.begin}: {error.strerror}") from error
        if checksum.range != (block.length, block.crc32c):
            raise self._damage(block.path, f"checksum mismatch{self._checksums.where(block)}")

    def _read(self, block: Block) -> Iterator[bytes]:
        at = block.begin
        while at < block.end:
            data = os.pread(self._files[block.path], min(BLOCK, block.end - at), at)
            if not data:
                return
            at += len(data)
            yield data

    def _damage(self, path: str, what: str) -> DamagedDatasetError:
        return DamagedDatasetError(f"{self._folder / path}: {what}", hint=verify_hint(self._folder))


def _marked(count: int, first: np.ndarray, final: np.ndarray) -> np.ndarray:
    """Bool ``[count]``: which numbers lie in any of the intervals ``first..final``, both included."""
    steps = np.zeros(count + 1, np.int64)
    np.add.at(steps, first, 1)
    np.add.at(steps, final + 1, -1)
    return np.cumsum(steps[:-1]) > 0


def _close(files: dict[str, int]) -> None:
    for descriptor in files.values():
        os.close(descriptor)


class _CheckedRows(GuardedRows):
    """The rows of a leaf, whose blocks are checked before they are read for the first time."""

    def __init__(self, rows: StoredRows, checks: BlockChecks) -> None:
        super().__init__(rows)
        self._checks = checks
        codec = codec_of(rows.leaf)
        self._left = {codec.path(name) for name in codec.appended}

    def _read(self, first: np.ndarray, length: int, read: Callable[[], torch.Tensor]) -> torch.Tensor:
        if self._left and len(first) and length > 0:
            for path, starts, stops in self._rows.extents(first, length):
                self._checks.check(path, starts, stops)
                if self._checks.is_done(path):
                    self._left.discard(path)
        return read()
