"""Reading rows of one leaf: the same few operations whatever its codec.

Raw leaves are mapped privately (copy-on-write): nothing done to a tensor that came from here reaches the file. Rows are
gathered with ``index_select`` over an overlapping view, on the widest words the row allows: a window of consecutive
rows is then one long row, copied at memory speed (element-wise indexing, ``tensor[index]``, is about six times slower).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from ..errors import DamagedDatasetError
from .codecs.zstd import ParallelDecoder
from .column_writer import leaf_path
from .memory_map import VERIFY, keep_freed_memory, map_array, will_read
from .schema import Leaf

_WORDS = ((8, torch.int64), (4, torch.int32), (2, torch.int16), (1, torch.uint8))


def widest_word(size: int) -> tuple[int, torch.dtype]:
    """The largest number, its bytes and its dtype, that memory of multiples of ``size`` bytes can be looked at as."""
    return next((width, word) for width, word in _WORDS if size % width == 0)


class Rows(Protocol):
    """The rows of a leaf, read-only."""

    leaf: Leaf
    count: int

    def windows(self, first: torch.Tensor, length: int) -> torch.Tensor:
        """``length`` consecutive rows from each of ``first`` (int64 ``[B]``): a fresh ``[B, length, *shape]``.

        Every ``first`` must lie in ``[0, count - length]``.
        """

    def take(self, index: torch.Tensor) -> torch.Tensor:
        """Single rows (``index`` int64 ``[B]``): a fresh ``[B, *shape]``."""

    def block(self, start: int, stop: int) -> torch.Tensor:
        """Rows ``start..stop-1``, ``[stop - start, *shape]``; raw leaves give a private view, others fresh memory."""


class RawRows:
    """A raw leaf: one flat file, mapped."""

    def __init__(self, folder: Path, leaf: Leaf, count: int) -> None:
        self.leaf, self.count = leaf, count
        self._mapped = map_array(leaf_path(folder, leaf), np.dtype(np.uint8), count * leaf.row_bytes)
        bytes_ = torch.from_numpy(self._mapped)
        self.tensor = bytes_.view(torch_dtype(leaf)).view(count, *leaf.shape)
        width, word = widest_word(leaf.row_bytes)
        self._words = bytes_.view(word)
        self._per_row = leaf.row_bytes // width
        self._views: dict[int, torch.Tensor] = {}
        # Where an element is a word already, rows are taken as they are: each view less is a few microseconds.
        self._plain = width <= self.tensor.element_size() or leaf.row_bytes < 64
        # Of rows with one element: twice as fast as rows of shape [1].
        self._flat = self.tensor.view(count) if leaf.row_bytes == self.tensor.element_size() else None

    def windows(self, first: torch.Tensor, length: int) -> torch.Tensor:
        view = self._views.get(length)
        if view is None:
            shape = (max(0, self.count - length + 1), length * self._per_row)
            view = self._views[length] = self._words.as_strided(shape, (self._per_row, 1))
        rows = view.index_select(0, first)
        return rows.view(self.tensor.dtype).view(len(first), length, *self.leaf.shape)

    def take(self, index: torch.Tensor) -> torch.Tensor:
        if self._flat is not None:
            return self._flat.index_select(0, index).view(len(index), *self.leaf.shape)
        return self.tensor.index_select(0, index) if self._plain else self.windows(index, 1).squeeze(1)

    def block(self, start: int, stop: int) -> torch.Tensor:
        will_read(self._mapped, start * self.leaf.row_bytes, stop * self.leaf.row_bytes)
        return self.tensor[start:stop]


class ZstdRows:
    """A compressed leaf: blob, offsets and dictionary, mapped; rows decode on their own."""

    def __init__(self, folder: Path, leaf: Leaf, count: int) -> None:
        self.leaf, self.count = leaf, count
        where = folder.joinpath(*leaf.key)
        self._offsets = map_array(where / "offsets", np.dtype("<i8"), count + 1)
        size = int(self._offsets[count])
        if size < 0:
            raise DamagedDatasetError(f"{where / 'offsets'} is damaged", hint=VERIFY)
        self._blob = map_array(where / "blob", np.dtype(np.uint8), size)
        try:
            self.dictionary = (where / "dictionary").read_bytes()
        except FileNotFoundError as error:
            raise DamagedDatasetError(f"{error.filename} is missing", hint=VERIFY) from error
        self._idle: dict[tuple[int, int], list[ParallelDecoder]] = {}

    def windows(self, first: torch.Tensor, length: int) -> torch.Tensor:
        rows = first.numpy()
        if length > 1:
            rows = (rows[:, None] + np.arange(length)).reshape(-1)
        return self._decode(rows).view(len(first), length, *self.leaf.shape)

    def take(self, index: torch.Tensor) -> torch.Tensor:
        return self._decode(index.numpy()).view(len(index), *self.leaf.shape)

    def block(self, start: int, stop: int) -> torch.Tensor:
        return self._decode(np.arange(start, stop)).view(stop - start, *self.leaf.shape)

    def compressed(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows ``start..stop-1`` as they are stored: their bytes one after the other, and their lengths (int64)."""
        offsets = self._offsets[start : stop + 1]
        low, high = int(offsets[0]), int(offsets[-1])
        lengths = np.diff(offsets)
        if low < 0 or high > len(self._blob) or (len(lengths) and int(lengths.min()) <= 0):
            raise _damaged()
        return self._blob[low:high], lengths

    def _decode(self, rows: np.ndarray) -> torch.Tensor:
        starts = self._offsets[rows]
        lengths = self._offsets[rows + 1] - starts
        if len(rows) and (
            int(lengths.min()) <= 0 or int(starts.min()) < 0 or int((starts + lengths).max()) > len(self._blob)
        ):
            raise _damaged()
        # A decoder serves one batch at a time, so threads that read at once have one each; after a fork, the threads of
        # the parent's decoders are not there any more.
        threads = torch.get_num_threads()
        idle = self._idle.setdefault((os.getpid(), threads), [])
        try:
            decoder = idle.pop()
        except IndexError:
            decoder = ParallelDecoder(self.dictionary, self.leaf.row_bytes, threads)
        decoded = decoder.decode(self._blob, starts, lengths)
        idle.append(decoder)
        return torch.from_numpy(decoded.view(self.leaf.np_dtype))


def _damaged() -> DamagedDatasetError:
    return DamagedDatasetError("the offsets of a compressed leaf are damaged", hint=VERIFY)


class ConstantRows:
    """A leaf whose rows all hold one value: its file is not touched."""

    def __init__(self, leaf: Leaf, count: int) -> None:
        self.leaf, self.count = leaf, count
        self._dtype = torch_dtype(leaf)

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
    return ZstdRows(folder, leaf, count) if leaf.codec == "zstd" else RawRows(folder, leaf, count)


def torch_dtype(leaf: Leaf) -> torch.dtype:
    """A leaf's dtype as torch names it."""
    return getattr(torch, leaf.dtype)
