"""The ``raw`` codec: rows in one flat little-endian file, as in memory, which other programs can map.

The file is mapped privately (copy-on-write): changes to the tensors never reach it. Rows are gathered with ``index_select`` on
an overlapping view of the widest words that the row allows: a window of consecutive rows is then one long row, copied at memory
speed (element-wise indexing, ``tensor[index]``, is about six times slower).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..leaf import Leaf
from ..memory_map import SHORT_ROW, in_numpy, map_array, widest_word, will_read
from ..parts import RowsInPlace
from .codec import Codec, Files, OldPart

if TYPE_CHECKING:
    import torch

_BLOCK_ROWS = 4096


class RawCodec(Codec):
    """Plain rows."""

    name = "raw"
    fixed_rows = True

    def path(self, name: str) -> str:
        return self.leaf.memmap

    def open_rows(self, folder: Path, count: int) -> RawRows:
        return RawRows(folder, self.leaf, count)

    def open_sink(self, folder: Path, number: int, first: int, rows: int, threads: int = 1) -> RowsInPlace:
        return RowsInPlace(folder, self.leaf, first, rows)

    def copy_part(
        self, source: Path, files: Files, old: OldPart, folder: Path, number: int, first: int
    ) -> dict[str, Any]:
        """Checksum ranges are those of the whole file: the caller checks the ranges of the part."""
        (_, old_first, rows), size = old, self.leaf.row_bytes
        sink = self.open_sink(folder, number, first, rows)
        data = map_array(source / self.leaf.memmap, np.dtype(np.uint8), (old_first + rows) * size)
        for low in range(0, rows, _BLOCK_ROWS):
            count = min(_BLOCK_ROWS, rows - low)
            begin = (old_first + low) * size
            sink.write(low, data[begin : begin + count * size], np.arange(count, dtype=np.int64) * size)
        return sink.finish()


class RawRows:
    """A raw leaf, mapped."""

    def __init__(self, folder: Path, leaf: Leaf, count: int) -> None:
        import torch  # here: processes that only write do without it

        self.leaf, self.count = leaf, count
        self._mapped = map_array(folder / leaf.memmap, np.dtype(np.uint8), count * leaf.row_bytes)
        # Torch gives an empty array a stride that cannot be viewed as another dtype.
        bytes_ = torch.from_numpy(self._mapped) if len(self._mapped) else torch.empty(0, dtype=torch.uint8)
        self.tensor = bytes_.view(getattr(torch, leaf.dtype)).view(count, *leaf.shape)
        width, word = widest_word(leaf.row_bytes)
        self._words = bytes_.view(word)
        self._per_row = leaf.row_bytes // width
        self._views: dict[int, torch.Tensor] = {}
        # If an element is as wide as a word, rows are gathered without a view, which saves a few microseconds.
        self._plain = width <= self.tensor.element_size() or leaf.row_bytes < 64
        self._short = self.tensor.numpy() if leaf.row_bytes <= SHORT_ROW and in_numpy(self.tensor) else None

    def windows(self, first: torch.Tensor, length: int) -> torch.Tensor:
        view = self._views.get(length)
        if view is None:
            shape = (max(0, self.count - length + 1), length * self._per_row)
            view = self._views[length] = self._words.as_strided(shape, (self._per_row, 1))
        rows = view.index_select(0, first)
        return rows.view(self.tensor.dtype).view(len(first), length, *self.leaf.shape)

    def take(self, index: torch.Tensor) -> torch.Tensor:
        if self._short is not None:
            import torch

            return torch.from_numpy(self._short.take(index.numpy(), 0))
        return self.tensor.index_select(0, index) if self._plain else self.windows(index, 1).squeeze(1)

    def block(self, start: int, stop: int) -> torch.Tensor:
        will_read(self._mapped, start * self.leaf.row_bytes, stop * self.leaf.row_bytes)
        return self.tensor[start:stop]

    def extents(self, first: np.ndarray, length: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        size = self.leaf.row_bytes
        yield self.leaf.memmap, first * size, (first + length) * size
