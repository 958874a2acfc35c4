"""The ``raw`` codec: rows in one flat little-endian file, as in memory, which other programs can map.

The file is mapped privately (copy-on-write): changes to the tensors never reach it. Windows of consecutive short rows are
gathered from an overlapping view of the widest words that the row allows, in which a window is one long row.

NumPy gathers, in the calling thread: it is as fast as ``index_select`` of torch, for short rows twice as fast, and torch shares
more than 32,768 elements out to threads, which beside other processes that compute wait for each other: 24 ms instead of 20 us.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ..leaf import Leaf
from ..memory_map import in_numpy, map_array, widest_word, will_read
from .codec import Codec

if TYPE_CHECKING:
    import torch

#: Windows of rows from this many bytes on are read row by row.
_LONG_ROW = 1024


class RawCodec(Codec):
    """Plain rows."""

    name = "raw"
    fixed_rows = True

    def path(self, name: str) -> str:
        return self.leaf.memmap

    def open_rows(self, folder: Path, count: int) -> RawRows:
        return RawRows(folder, self.leaf, count)


class RawRows:
    """A raw leaf, mapped."""

    def __init__(self, folder: Path, leaf: Leaf, count: int) -> None:
        import torch  # here: processes that only write do without it

        self.leaf, self.count = leaf, count
        self._mapped = map_array(folder / leaf.memmap, np.dtype(np.uint8), count * leaf.row_bytes)
        # Torch gives an empty array a stride that cannot be viewed as another dtype.
        bytes_ = (
            torch.from_numpy(self._mapped) if len(self._mapped) else torch.empty(0, dtype=torch.uint8, device="cpu")
        )
        self.tensor = bytes_.view(getattr(torch, leaf.dtype)).view(count, *leaf.shape)
        width, word = widest_word(leaf.row_bytes)
        self._words, self._word, self._per_row = bytes_.view(word).numpy(), word, leaf.row_bytes // width
        self._views: dict[int, np.ndarray] = {}
        #: Where the first row lies in memory.
        self.address = int(self._mapped.__array_interface__["data"][0])
        self._array = self.tensor.numpy() if in_numpy(self.tensor) else None

    def windows(self, first: torch.Tensor, length: int) -> torch.Tensor:
        import torch

        if not len(first):
            return torch.empty(0, length, *self.leaf.shape, dtype=self.tensor.dtype, device="cpu")
        if self.leaf.row_bytes >= _LONG_ROW:
            # In memory of torch, which it can copy on write. "clip" spares a second copy, so the bounds are checked here.
            if not 0 <= int(first.min()) <= int(first.max()) <= self.count - length:
                raise IndexError(f"windows of {length} rows are not all among {self.count} rows")
            index = (first.numpy()[:, None] + np.arange(length)).reshape(-1)
            out = torch.empty(len(index), self._per_row, dtype=self._word, device="cpu")
            self._words.reshape(-1, self._per_row).take(index, 0, out.numpy(), "clip")
            return out.view(self.tensor.dtype).view(len(first), length, *self.leaf.shape)
        view = self._views.get(length)
        if view is None:
            shape, word = (max(0, self.count - length + 1), length * self._per_row), self._words.itemsize
            view = self._views[length] = as_strided(self._words, shape, (self._per_row * word, word), writeable=False)
        rows = torch.from_numpy(view[first.numpy()])
        return rows.view(self.tensor.dtype).view(len(first), length, *self.leaf.shape)

    def take(self, index: torch.Tensor) -> torch.Tensor:
        if self._array is not None:  # as `row_index.lookup`
            import torch

            return torch.from_numpy(self._array.take(index.numpy(), 0))
        return self.windows(index, 1).squeeze(1)

    def block(self, start: int, stop: int) -> torch.Tensor:
        will_read(self._mapped, start * self.leaf.row_bytes, stop * self.leaf.row_bytes)
        return self.tensor[start:stop]

    def extents(self, first: np.ndarray, length: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        size = self.leaf.row_bytes
        yield self.leaf.memmap, first * size, (first + length) * size
