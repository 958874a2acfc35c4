"""The rows of a leaf that lies elsewhere: the reader of its files, with their blocks fetched first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch

from ...errors import DamagedDatasetError
from ..codecs import codec_of
from ..codecs.codec import StoredRows
from .block_cache import BlockCache

T = TypeVar("T")


class RemoteRows:
    """As ``rows``, which a codec opened on the folder of a cache. Raises as `BlockCache.hold` when rows are read."""

    def __init__(self, rows: StoredRows, cache: BlockCache) -> None:
        self.leaf, self.count = rows.leaf, rows.count
        self._rows, self._cache = rows, cache
        self._file = codec_of(rows.leaf).path("blob")

    def windows(self, first: torch.Tensor, length: int) -> torch.Tensor:
        return self._read(first.numpy(), length, lambda: self._rows.windows(first, length))

    def take(self, index: torch.Tensor) -> torch.Tensor:
        return self._read(index.numpy(), 1, lambda: self._rows.take(index))

    def block(self, start: int, stop: int) -> torch.Tensor:
        # A copy: what a view shows may be evicted.
        return self._read(np.array([start]), stop - start, lambda: self._rows.block(start, stop).clone())

    def blocks(self, start: int, stop: int) -> np.ndarray:
        """The blocks that rows ``start..stop-1`` lie in, int64, ascending; only what says where they lie is fetched."""
        found = np.empty(0, np.int64)
        extents = self._rows.extents(np.array([start]), stop - start)
        while True:
            with self._cache.hold(found):
                path, low, high = next(extents)
            found = self._with(found, path, low, high)
            if path == self._file:
                return found

    def _read(self, first: np.ndarray, length: int, read: Callable[[], T], *, again: bool = True) -> T:
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
            # Blocks without checksums of their own may have arrived damaged.
            if not (again and self._cache.forget(found)):
                raise
        return self._read(first, length, read, again=False)

    def _with(self, found: np.ndarray, path: str, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        layout = self._cache.layout
        if path not in layout.in_blocks:
            return found
        return np.concatenate([found, layout.of_bytes(path, low, high)])
