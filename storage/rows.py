"""Reading the rows of one leaf: the same few operations whatever its codec."""

from __future__ import annotations

from pathlib import Path

import torch

from .codecs import codec_of
from .codecs.codec import Rows
from .leaf import Leaf
from .memory_map import keep_freed_memory


class ConstantRows:
    """A leaf whose rows all hold one value: its file is not touched."""

    def __init__(self, leaf: Leaf, count: int) -> None:
        self.leaf, self.count = leaf, count
        self._dtype = getattr(torch, leaf.dtype)

    def windows(self, first: torch.Tensor, length: int) -> torch.Tensor:
        return self._full(len(first), length)

    def take(self, index: torch.Tensor) -> torch.Tensor:
        return self._full(len(index))

    def block(self, start: int, stop: int) -> torch.Tensor:
        return self._full(stop - start)

    def _full(self, *batch: int) -> torch.Tensor:
        value = self.leaf.constant
        assert value is not None
        if not value:
            return torch.zeros(*batch, *self.leaf.shape, dtype=self._dtype)
        return torch.full((*batch, *self.leaf.shape), value, dtype=self._dtype)


def open_rows(folder: Path, leaf: Leaf, count: int) -> Rows:
    """Map a leaf; raises DamagedDatasetError when a file is missing or too short. Reads no rows."""
    if leaf.constant is not None:
        return ConstantRows(leaf, count)
    keep_freed_memory()
    return codec_of(leaf).open_rows(folder, count)
