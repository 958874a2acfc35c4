"""Reading rows of one leaf: the same few operations whatever its codec.

Raw leaves are mapped privately (copy-on-write): nothing done to a tensor that came from here reaches the file. Rows are
gathered with ``index_select`` over an overlapping view, on the widest words the row allows: a window of consecutive
rows is then one long row, copied at memory speed (element-wise indexing, ``tensor[index]``, is about six times slower).
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from ..errors import DamagedDatasetError
from .codecs import ParallelDecoder
from .columns import leaf_path
from .schema import Leaf

_WORDS = ((8, torch.int64), (4, torch.int32), (2, torch.int16), (1, torch.uint8))


class Rows(Protocol):
    """The rows of a leaf, read-only."""

    leaf: Leaf
    count: int

    def windows(self, first: torch.Tensor, length: int) -> torch.Tensor:
        """``length`` consecutive rows from each of ``first`` (int64 ``[B]``): a fresh ``[B, length, *shape]``.

        Every ``first`` must lie in ``[0, count - length]``.
        """

    def block(self, start: int, stop: int) -> torch.Tensor:
        """Rows ``start..stop-1``, ``[stop - start, *shape]``; raw leaves give a private view, others fresh memory."""


class RawRows:
    """A raw leaf: one flat file, mapped."""

    def __init__(self, folder: Path, leaf: Leaf, count: int) -> None:
        self.leaf, self.count = leaf, count
        path = leaf_path(folder, leaf)
        _check_size(path, count * leaf.row_bytes)
        data = (
            torch.from_file(str(path), shared=False, size=count * leaf.row_bytes, dtype=torch.uint8) if count else None
        )
        bytes_ = data if data is not None else torch.empty(0, dtype=torch.uint8)
        self.tensor = bytes_.view(torch_dtype(leaf)).view(count, *leaf.shape)
        width, word = next((width, word) for width, word in _WORDS if leaf.row_bytes % width == 0)
        self._words = bytes_.view(word)
        self._per_row = leaf.row_bytes // width
        self._views: dict[int, torch.Tensor] = {}

    def windows(self, first: torch.Tensor, length: int) -> torch.Tensor:
        view = self._views.get(length)
        if view is None:
            shape = (max(0, self.count - length + 1), length * self._per_row)
            view = self._views[length] = self._words.as_strided(shape, (self._per_row, 1))
        rows = view.index_select(0, first)
        return rows.view(self.tensor.dtype).view(len(first), length, *self.leaf.shape)

    def block(self, start: int, stop: int) -> torch.Tensor:
        return self.tensor[start:stop]


class ZstdRows:
    """A compressed leaf: blob, offsets and dictionary, mapped; rows decode on their own."""

    def __init__(self, folder: Path, leaf: Leaf, count: int) -> None:
        self.leaf, self.count = leaf, count
        where = folder.joinpath(*leaf.key)
        _check_size(where / "offsets", 8 * (count + 1))
        self._offsets = np.memmap(where / "offsets", "<i8", "c", shape=(count + 1,))
        size = int(self._offsets[count])
        _check_size(where / "blob", size)
        self._blob = np.memmap(where / "blob", np.uint8, "c", shape=(size,))
        self._dictionary = (where / "dictionary").read_bytes()
        self._decoder: ParallelDecoder | None = None
        self._threads = 0
        self._dtype = torch_dtype(leaf)

    def windows(self, first: torch.Tensor, length: int) -> torch.Tensor:
        rows = first.numpy()
        if length > 1:
            rows = (rows[:, None] + np.arange(length)).reshape(-1)
        return self._decode(rows).view(len(first), length, *self.leaf.shape)

    def block(self, start: int, stop: int) -> torch.Tensor:
        return self._decode(np.arange(start, stop)).view(stop - start, *self.leaf.shape)

    def _decode(self, rows: np.ndarray) -> torch.Tensor:
        threads = torch.get_num_threads()
        if self._decoder is None or self._threads != threads:
            self._decoder, self._threads = ParallelDecoder(self._dictionary, self.leaf.row_bytes, threads), threads
        starts = self._offsets[rows]
        lengths = self._offsets[rows + 1] - starts
        if len(rows) and (
            int(lengths.min()) <= 0 or int(starts.min()) < 0 or int((starts + lengths).max()) > len(self._blob)
        ):
            raise DamagedDatasetError("the offsets of a compressed leaf are damaged", hint=_VERIFY)
        return torch.from_numpy(self._decoder.decode(self._blob, starts, lengths)).view(self._dtype)


class ConstantRows:
    """A leaf whose rows all hold one value: its file is not touched."""

    def __init__(self, leaf: Leaf, count: int) -> None:
        self.leaf, self.count = leaf, count
        self._dtype = torch_dtype(leaf)

    def windows(self, first: torch.Tensor, length: int) -> torch.Tensor:
        return self._full(len(first), length)

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
    try:
        return ZstdRows(folder, leaf, count) if leaf.codec == "zstd" else RawRows(folder, leaf, count)
    except FileNotFoundError as error:
        raise DamagedDatasetError(f"{error.filename} is missing", hint=_VERIFY) from error


def torch_dtype(leaf: Leaf) -> torch.dtype:
    """A leaf's dtype as torch names it."""
    return getattr(torch, leaf.dtype)


def _check_size(path: Path, size: int) -> None:
    found = path.stat().st_size
    if found < size:
        raise DamagedDatasetError(f"{path} has {found} bytes instead of {size}", hint=_VERIFY)


_VERIFY = "`rbdata verify` names what is damaged; download or convert it again with --force"
