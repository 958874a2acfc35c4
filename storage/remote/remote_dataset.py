"""A remote dataset opened for reading: a `Dataset` that fetches the blocks of rows before it reads them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

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
from .cache import BlockCache, RemoteFiles


class _RemoteRows(WrappedRows):
    """``rows`` that a codec opened on the folder of a cache. Reads raise as `BlockCache.read`."""

    def __init__(self, rows: StoredRows, cache: BlockCache) -> None:
        super().__init__(rows)
        self._cache = cache

    def block(self, start: int, stop: int) -> torch.Tensor:
        # A copy, because the blocks below a view may be evicted.
        return self._read(np.array([start]), stop - start, lambda: self._rows.block(start, stop).clone())

    def blocks(self, start: int, stop: int) -> np.ndarray:
        """The blocks of rows ``start..stop-1``, int64, ascending; fetches only the index that locates the rows."""
        extents = partial(self._rows.extents, np.array([start]), stop - start)
        before_rows = len(codec_of(self.leaf).joined) - 1
        *_, rows = self._cache.read(lambda: islice(extents(), before_rows), lambda: list(extents()))
        return self._cache.layout.of_bytes(*rows)

    def _read(self, first: np.ndarray, length: int, read: Callable[[], torch.Tensor]) -> torch.Tensor:
        if not len(first) or length < 1:
            return read()
        return self._cache.read(partial(self._rows.extents, first, length), read)


class RemoteDataset(Dataset):
    """A remote dataset, read through the cache in ``path``. For the rest see `Dataset`.

    ``files`` are those of the version that ``manifest`` describes (``text``: its bytes), ``table`` the bytes of its block
    table, if it has one. ``limit`` bounds the bytes of the cache. Raises DamagedDatasetError for a damaged table, and as
    `BlockCache`.
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
        self.cache = BlockCache(self.path, manifest, text, BlockChecksums(manifest, table), files, limit)
        weakref.finalize(self, self.cache.close)

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

    @cached_property
    def episodes(self) -> EpisodeTable:
        self.cache.fetch_files(path for path in self.cache.layout.sizes if path.startswith(EPISODES + "/"))
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

        def ends() -> Iterable[tuple[str, np.ndarray, np.ndarray]]:
            """The last bytes of each index, which give the length of the file that it indexes."""
            for path in split:
                if path != codec.path("blob"):
                    size = np.array([layout.sizes[path]])
                    yield path, size - 1, size

        rows = self.cache.read(ends, lambda: codec.open_rows(self.path, count))
        return _RemoteRows(rows, self.cache) if split else rows

    def fetch(self) -> Path:
        """Fetch and check everything that is missing; returns the folder, which is then a complete dataset.

        Raises DiskError if the limit has no room for it, DamagedDatasetError, and the fetch errors.
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
        layout = self.cache.layout
        first = [block for start, stop in ranges for block in self.blocks_of(start, stop, keys).tolist()]
        files = (
            layout.sizes if keys is None else [path for name in keys for path in codec_of(self.rows[name].leaf).files]
        )
        # Of a file that is fetched whole, the first block stands for it.
        rest = [
            block
            for path in files
            for block in layout.of_file(path)[: None if path in layout.in_blocks else 1].tolist()
        ]
        self.cache.plan(chain(first, rest) if self.cache.holds_all else first)

    def blocks_of(self, start: int, stop: int, keys: Collection[str] | None = None) -> np.ndarray:
        """Return the blocks of the rows of steps ``start..stop-1`` and their successors, int64."""
        found = [np.empty(0, np.int64)]
        before, last = self.episode_of(torch.tensor([start, stop - 1], device="cpu")).tolist()
        for name, rows in self.rows.items():
            if isinstance(rows, _RemoteRows) and (keys is None or name in keys):
                state = rows.leaf.kind == "state"
                found.append(rows.blocks(start + before * state, stop + (last + 1) * state))
        return np.concatenate(found)
