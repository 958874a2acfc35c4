"""Leaves whose rows are compressed one by one, with any compressor.

Such a leaf is a folder of flat files:

    blob        the concatenated compressed rows
    offsets     int64 [rows + 1]: row i is blob[offsets[i]:offsets[i + 1]]
    dictionary  the compressor's dictionary (may be empty), if it uses one

Any row can be decoded alone.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...errors import DamagedDatasetError
from ..leaf import Leaf
from ..memory_map import VERIFY, map_array, verify_hint
from .codec import Codec, Encode

if TYPE_CHECKING:
    import torch


#: ``decode(blob, starts, lengths, out)`` decodes the rows at ``starts`` with ``lengths`` (int64 ``[n]``) in a blob. It fills
#: and returns ``out``, uint8 ``[n, row_bytes]`` (allocated if not given), or raises DamagedDatasetError. For one thread at a
#: time.
Decode = Callable[..., np.ndarray]

#: Threads that decode a batch, at most: rows are copied one by one under the interpreter's lock, for which more threads
#: wait. On 16 cores, a batch of 1280 frames took 2.6 ms with 4 threads, 4.5 with 1 and 4.6 with 16.
MOST_THREADS = 4


class CompressedCodec(Codec):
    """Rows compressed one by one. A derived class encodes and decodes rows, and may train a dictionary."""

    fixed_rows = False
    index_bytes = 8
    joined = ("blob", "offsets")

    @classmethod
    @abstractmethod
    def encoder(cls, dictionary: bytes, threads: int = 1) -> Encode:
        """A function that compresses rows, for one thread at a time; with a ``level`` where the codec has any (`codecs`)."""

    @classmethod
    @abstractmethod
    def decoder(cls, dictionary: bytes, row_bytes: int, threads: int = 1) -> Decode:
        """Return a function that decompresses rows of ``row_bytes`` bytes, for one thread at a time."""

    def path(self, name: str) -> str:
        return f"{self.leaf.name}/{name}"

    def open_rows(self, folder: Path, count: int) -> CompressedRows:
        return CompressedRows(self, folder, count)

    def is_like(self, folder: Path, other: Leaf, other_folder: Path) -> bool:
        mine, its = self.leaf, other
        if (mine.codec, mine.dtype, mine.shape) != (its.codec, its.dtype, its.shape):
            return False
        return self.read_dictionary(folder) == type(self)(other).read_dictionary(other_folder)

    @classmethod
    def encoded_lengths(cls, rows: Iterable[np.ndarray], dictionary: bytes) -> np.ndarray:
        encode = cls.encoder(dictionary)
        if isinstance(rows, np.ndarray):  # all at once
            data = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)
            starts = np.arange(len(rows), dtype=np.int64) * data.shape[1]
            return encode(data.reshape(-1), starts, data.shape[1])[1]
        start = np.zeros(1, np.int64)
        return np.array([encode(np.ascontiguousarray(row).data, start, row.nbytes)[1][0] for row in rows], np.int64)


class CompressedRows:
    """The rows of a compressed leaf, decoded one by one from its mapped blob."""

    def __init__(self, codec: CompressedCodec, folder: Path, count: int) -> None:
        self.leaf, self.count, self._codec = codec.leaf, count, codec
        offsets = folder / codec.path("offsets")
        self._offsets = map_array(offsets, np.dtype("<i8"), count + 1)
        size = int(self._offsets[count])
        if size < 0:
            raise DamagedDatasetError(f"{offsets} is damaged", hint=verify_hint(folder))
        self._blob = map_array(folder / codec.path("blob"), np.dtype(np.uint8), size)
        self._dictionary = codec.read_dictionary(folder)
        self._idle: dict[tuple[int, int], list[Decode]] = {}

    def windows(self, first: torch.Tensor, length: int) -> torch.Tensor:
        rows = first.numpy()
        if length > 1:
            rows = (rows[:, None] + np.arange(length)).reshape(-1)
        return self._decode(rows).view(len(first), length, *self.leaf.shape)

    def take(self, index: torch.Tensor) -> torch.Tensor:
        return self._decode(index.numpy()).view(len(index), *self.leaf.shape)

    def block(self, start: int, stop: int) -> torch.Tensor:
        return self._decode(np.arange(start, stop)).view(stop - start, *self.leaf.shape)

    def extents(self, first: np.ndarray, length: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        yield self._codec.path("offsets"), 8 * first, 8 * (first + length + 1)
        starts, stops = self._offsets[first], self._offsets[first + length]
        self._check(starts, stops)
        yield self._codec.path("blob"), starts, stops

    def stored(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return rows ``start..stop-1`` as stored: their concatenated bytes, and their lengths (int64)."""
        offsets = self._offsets[start : stop + 1]
        self._check(offsets[:-1], offsets[1:])
        return self._blob[offsets[0] : offsets[-1]], np.diff(offsets)

    def _check(self, starts: np.ndarray, stops: np.ndarray) -> None:
        """Raise DamagedDatasetError unless these are the places of rows in the blob."""
        if len(starts) and not (starts.min() >= 0 and (starts < stops).all() and stops.max() <= len(self._blob)):
            raise DamagedDatasetError("the offsets of a compressed leaf are damaged", hint=VERIFY)

    def _decode(self, rows: np.ndarray) -> torch.Tensor:
        import torch  # here: processes that only write do without it

        starts, stops = self._offsets[rows], self._offsets[rows + 1]
        self._check(starts, stops)
        # A decoder serves one batch at a time, so each reading thread takes its own; after a fork, the threads of the parent's
        # decoders no longer exist.
        threads = min(torch.get_num_threads(), MOST_THREADS)
        idle = self._idle.setdefault((os.getpid(), threads), [])
        try:
            decode = idle.pop()
        except IndexError:
            decode = self._codec.decoder(self._dictionary, self.leaf.row_bytes, threads)
        # In memory of torch, which it can copy on write.
        decoded = torch.empty(len(rows), self.leaf.row_bytes, dtype=torch.uint8, device="cpu")
        decode(self._blob, starts, stops - starts, decoded.numpy())
        idle.append(decode)
        return decoded.view(getattr(torch, self.leaf.dtype))
