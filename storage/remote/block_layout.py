"""Which bytes of which file are which block.

The blocks of a dataset are numbered through, file after file in the order of their paths. A file is read in blocks, or
*whole*: small leaves, the episode table and dictionaries are wanted by nearly every batch and are fetched at once.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..codecs import codec_of
from ..manifest import Manifest
from ..schema import LARGE_ROW

#: Files of at most this many bytes are whole, unless they hold the rows of a large leaf.
WHOLE = 64 << 20


class BlockLayout:
    """The blocks of files by path, of so many bytes each (the last one of a file may be shorter)."""

    def __init__(self, sizes: Mapping[str, int], in_blocks: frozenset[str], block_bytes: int) -> None:
        self.paths = sorted(sizes)
        self.sizes, self.in_blocks, self.block_bytes = dict(sizes), in_blocks, block_bytes
        counts = [-(-sizes[path] // block_bytes) for path in self.paths]
        self._edges = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._first = dict(zip(self.paths, self._edges.tolist()))
        self.count = int(self._edges[-1])
        starts = np.arange(self.count) - np.repeat(self._edges[:-1], counts)
        ends = np.minimum((starts + 1) * block_bytes, np.repeat([sizes[path] for path in self.paths], counts))
        #: Bytes of every block, int64 ``[count]``.
        self.lengths = ends - starts * block_bytes
        #: Which blocks may be evicted, bool ``[count]``: those of files in blocks.
        self.evictable = np.repeat([path in in_blocks for path in self.paths], counts).astype(bool)
        self.whole_bytes = sum(size for path, size in sizes.items() if path not in in_blocks)

    def of_file(self, path: str) -> np.ndarray:
        """All blocks of a file, int64."""
        first = self._first[path]
        return np.arange(first, first - (-self.sizes[path] // self.block_bytes))

    def of_bytes(self, path: str, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """The blocks that hold bytes ``start..stop-1`` (int64 ``[n]`` each, not empty) of a file, ascending."""
        low, high = start // self.block_bytes, (stop - 1) // self.block_bytes
        span = int((high - low).max()) if len(low) else 0
        touched = [np.minimum(low + step, high) for step in range(span + 1)]
        found: np.ndarray = np.unique(np.concatenate(touched)) + self._first[path]
        return found

    def place(self, block: int) -> tuple[str, int, int]:
        """The file of a block, and the bytes of it that it holds: ``(path, start, stop)``."""
        number = int(np.searchsorted(self._edges, block, "right")) - 1
        path = self.paths[number]
        start = (block - int(self._edges[number])) * self.block_bytes
        return path, start, min(start + self.block_bytes, self.sizes[path])


def layout_of(manifest: Manifest, block_bytes: int) -> BlockLayout:
    """The blocks of a dataset: in blocks are the files with the rows of large leaves, and all that are larger than WHOLE."""
    sizes = {path: sum(int(length) for length, _ in ranges) for path, ranges in manifest.files.items()}
    large = {
        codec_of(leaf).path("blob") for leaf in manifest.schema if leaf.constant is None and leaf.row_bytes >= LARGE_ROW
    }
    in_blocks = {path for path, size in sizes.items() if size > WHOLE or (path in large and size > block_bytes)}
    return BlockLayout(sizes, frozenset(path for path in in_blocks if not path.startswith("episodes/")), block_bytes)
