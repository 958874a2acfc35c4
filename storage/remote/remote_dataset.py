"""A remote dataset opened for reading: a `Dataset` that fetches the blocks of rows before it reads them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...errors import CacheError, DamagedDatasetError
from ..amounts import plural
from ..amounts import size as amount
from ..codecs import codec_of
from ..codecs.codec import Rows, StoredRows, WrappedRows
from ..dataset import Dataset, open_leaf
from ..episodes import FOLDER as EPISODES
from ..episodes import EpisodeTable, open_episodes
from ..integrity import BlockChecksums
from ..leaf import Leaf
from ..manifest import Manifest
from ..memory_map import keep_freed_memory
from .block_cache import BlockCache, RemoteFiles
from .cache_folder import check_room, layout_of, open_session


class _RemoteRows(WrappedRows):
    """``rows`` that a codec opened on the folder of a cache. Reads raise as `BlockCache.hold`."""

    def __init__(self, rows: StoredRows, cache: BlockCache) -> None:
        super().__init__(rows)
        self._cache = cache
        self._file = codec_of(rows.leaf).path("blob")

    def block(self, start: int, stop: int) -> torch.Tensor:
        # A copy, because the blocks below a view may be evicted.
        return self._read(np.array([start]), stop - start, lambda: self._rows.block(start, stop).clone())

    def blocks(self, start: int, stop: int) -> np.ndarray:
        """The blocks of rows ``start..stop-1``, int64, ascending; fetches only the index that locates the rows."""
        found = np.empty(0, np.int64)
        extents = self._rows.extents(np.array([start]), stop - start)
        while True:
            with self._cache.hold(found):
                path, low, high = next(extents)
            found = self._with(found, path, low, high)
            if path == self._file:
                return found

    def _read(
        self, first: np.ndarray, length: int, read: Callable[[], torch.Tensor], *, again: bool = True
    ) -> torch.Tensor:
        if self._cache.finished or not len(first) or length < 1:
            return read()
        found = np.empty(0, np.int64)
        extents = self._rows.extents(first, length)
        try:
            while True:
                with self._cache.hold(found):
                    extent = next(extents, None)
                    if extent is None:
                        return read()
                found = self._with(found, *extent)
        except DamagedDatasetError:
            # Blocks without checksums may have arrived damaged.
            if not (again and self._cache.forget(found)):
                raise
        return self._read(first, length, read, again=False)

    def _with(self, found: np.ndarray, path: str, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        layout = self._cache.layout
        if path not in layout.in_blocks:
            return found
        return np.concatenate([found, layout.of_bytes(path, low, high)])


#: Bytes of a block if the dataset has no block checksums. A random read waits for the latency of a request and the transfer of
#: a block, so the transfer should not take longer than the latency: 20 ms at 50 MB/s.
BLOCK_BYTES = 1 << 20


class RemoteDataset(Dataset):
    """A remote dataset, read through the cache in ``path``. For the rest see `Dataset`.

    ``files`` are those of the version that ``manifest`` describes (``text``: its bytes), ``table`` the bytes of its block
    table, if it has one. ``limit`` bounds the bytes of the cache. Raises DamagedDatasetError for a damaged table, CacheError
    for a folder that cannot be the cache and for a limit that is too small for any read, DiskSpaceError if the disk is full.
    """

    #: Empty, because the cache holds only the bytes that were read.
    folders = ()

    def __init__(
        self,
        path: str | os.PathLike[str],
        manifest: Manifest,
        text: bytes,
        files: RemoteFiles,
        *,
        table: bytes | None = None,
        limit: int | None = None,
    ) -> None:
        self.path, self.manifest, self.files = Path(path), manifest, files
        self._text, self._block_table, self._limit = text, table, limit
        checksums = BlockChecksums(manifest, table)
        self._sums = checksums.tabled
        block_bytes = checksums.size if self._sums else BLOCK_BYTES
        layout = layout_of(manifest, block_bytes)
        least = layout.whole_bytes + block_bytes * bool(layout.in_blocks)
        if limit is not None and limit < least:
            message = f"{files.url}: a cache_limit of {amount(limit)} is too small, reads need at least {amount(least)}"
            raise CacheError(message, hint="give a larger cache_limit")
        session = open_session(self.path, text, layout, files.url)
        self.cache = BlockCache(self.path, text, manifest, layout, files, self._sums, limit)
        weakref.finalize(self, _close, self.cache, session)
        if not self.cache.finished:
            most = manifest.bytes if limit is None else min(limit, manifest.bytes)
            check_room(self.path, layout, self.cache.resident_bytes, most)

    def __reduce__(self) -> tuple[Any, ...]:
        reopen = partial(RemoteDataset, table=self._block_table, limit=self._limit)
        return reopen, (self.path.absolute(), self.manifest, self._text, self.files)

    def __repr__(self) -> str:
        cached = f"{amount(self.cache.resident_bytes)} of {amount(self.manifest.bytes)} in {str(self.path)!r}"
        return f"RemoteDataset({self.files.url!r}, {plural(len(self), 'step')}, {cached})"

    @property
    def resident(self) -> float:
        """The share of the dataset's bytes that are in the cache, 0 to 1."""
        return self.cache.resident_bytes / max(1, self.manifest.bytes)

    @property
    def unverified(self) -> list[str]:
        """The files without block checksums, which are checked only when they are complete."""
        return sorted(self.cache.layout.in_blocks - set(self._sums))

    @cached_property
    def episodes(self) -> EpisodeTable:
        self.cache.fetch_files(path for path in self.cache.layout.paths if path.startswith(EPISODES + "/"))
        return open_episodes(self.path, self.manifest.episodes, len(self))

    @cached_property
    def rows(self) -> dict[str, Rows]:
        keep_freed_memory()
        stored = [leaf for leaf in self.manifest.schema if leaf.constant is None]
        self.cache.fetch_files(path for leaf in stored for path in codec_of(leaf).files)
        return {leaf.name: self._open_rows(leaf, self.manifest.rows(leaf)) for leaf in self.manifest.schema}

    def _open_rows(self, leaf: Leaf, count: int) -> Rows:
        if leaf.constant is not None:
            return open_leaf(self.path, leaf, count)
        codec, layout = codec_of(leaf), self.cache.layout
        split = [path for path in codec.files if path in layout.in_blocks]
        # The last entry of an index gives the length of the file that it indexes.
        ends = [layout.of_file(path)[-1:] for path in split if path != codec.path("blob")]
        with self.cache.hold(np.concatenate(ends) if ends else np.empty(0, np.int64)):
            rows = codec.open_rows(self.path, count)
        return _RemoteRows(rows, self.cache) if split else rows

    def fetch(self) -> Path:
        """Fetch and check everything that is missing; returns the folder, which is then a complete dataset.

        Raises CacheError if the limit has no room for it, DamagedDatasetError, and the fetch errors.
        """
        self.cache.fetch_all()
        return self.path

    def plan_steps(self, ranges: Sequence[tuple[int, int]] = (), keys: Collection[str] | None = None) -> None:
        """Prefetch steps ``start..stop-1`` of these ranges, in this order, while no reader waits.

        If the limit has room for everything, the rest is fetched after them, and the cache becomes the dataset. ``keys``
        selects leaves.
        """
        if self.cache.finished:
            return
        first = [block for start, stop in ranges for block in self.blocks_of(start, stop, keys).tolist()]
        rest: Iterable[int] = range(self.cache.layout.count)
        if keys is not None:
            layout = self.cache.layout
            paths = [path for name in keys for path in codec_of(self.rows[name].leaf).files if path in layout.in_blocks]
            rest = [block for path in paths for block in layout.of_file(path).tolist()]
        self.cache.plan(chain(first, rest) if self.cache.holds_all else first)

    def blocks_of(self, start: int, stop: int, keys: Collection[str] | None = None) -> np.ndarray:
        """The blocks of the rows of steps ``start..stop-1`` and their successors, int64."""
        found = [np.empty(0, np.int64)]
        before, last = self.episode_of(torch.tensor([start, stop - 1], device="cpu")).tolist()
        for name, rows in self.rows.items():
            if isinstance(rows, _RemoteRows) and (keys is None or name in keys):
                state = rows.leaf.kind == "state"
                found.append(rows.blocks(start + before * state, stop + (last + 1) * state))
        return np.concatenate(found)


def _close(cache: BlockCache, session: int) -> None:
    cache.close()
    os.close(session)
