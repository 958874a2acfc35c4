"""Leaves whose rows are compressed one by one, with any compressor.

Such a leaf is a folder of flat files:

    blob        the concatenated compressed rows
    offsets     int64 [rows + 1]: row i is blob[offsets[i]:offsets[i + 1]]
    dictionary  the compressor's dictionary (may be empty), if it uses one

Any row can be decoded alone. Compressed sizes are not known in advance, so each part is written to its own file, and
finished parts are appended to the blob in order: the bytes do not depend on the number of processes or on interruptions.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import DamagedDatasetError, RbdataError
from ..checksums import append_blocks, crc32c, sum_range
from ..durable import open_plain, sync_folder
from ..leaf import Leaf
from ..memory_map import VERIFY, map_array, verify_hint
from ..parts import Encode, PartFile, lengths_path, part_path, sum_piece, write_lengths
from . import DEFAULT, load_codec
from .codec import Codec, Files

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
    appended = ("blob", "offsets")

    @classmethod
    @abstractmethod
    def encoder(cls, dictionary: bytes, threads: int = 1) -> Encode:
        """A function that compresses rows, for one thread at a time."""

    @classmethod
    @abstractmethod
    def decoder(cls, dictionary: bytes, row_bytes: int, threads: int = 1) -> Decode:
        """A function that decompresses rows of ``row_bytes`` bytes, for one thread at a time."""

    def path(self, name: str) -> str:
        return f"{self.leaf.name}/{name}"

    def open_rows(self, folder: Path, count: int) -> CompressedRows:
        return CompressedRows(self, folder, count)

    def is_like(self, folder: Path, other: Leaf, other_folder: Path) -> bool:
        mine, its = self.leaf, other
        if (mine.codec, mine.dtype, mine.shape) != (its.codec, its.dtype, its.shape):
            return False
        return self.read_dictionary(folder) == type(self)(other).read_dictionary(other_folder)

    def open_sink(self, folder: Path, number: int, first: int, rows: int, threads: int = 1) -> PartFile:
        return PartFile(folder, self.leaf, number, self.encoder(self.read_dictionary(folder), threads), rows)

    def open_appender(self, folder: Path, number: int) -> PartFile:
        encode = _shared_encoder(type(self), self.read_dictionary(folder), folder / self.leaf.name)
        return PartFile(folder, self.leaf, number, encode)

    def copy_part(self, source: Path, files: Files, folder: Path, number: int, first: int, rows: int) -> dict[str, Any]:
        offsets = np.fromfile(source / self.path("offsets"), "<i8", rows + 1, offset=8 * first)
        begin, length = int(offsets[0]), int(offsets[-1] - offsets[0])
        with open_plain(source / self.path("blob"), "rb", follow=True) as file:
            file.seek(begin)
            data = file.read(length)
        table = offsets if not first else offsets[1:]  # the first entry belongs to the part before
        ranges = {"blob": [length, crc32c(data)], "offsets": [table.nbytes, crc32c(table.tobytes())]}
        if any(list(files[self.path(name)][number]) != found for name, found in ranges.items()):
            raise RbdataError("the old part is damaged")
        part = self.open_appender(folder, number)
        part.append_encoded(data, np.diff(offsets))
        return part.finish()

    def adopt_part(self, folder: Path, number: int, source: Path, lengths: np.ndarray) -> dict[str, Any]:
        """Make ``source``, a synced file of rows encoded like this leaf's, the file of a part; returns the journal's record.

        ``lengths`` (int64 ``[rows]``) are those of the rows. Raises FileNotFoundError if there is no such file.
        """
        path = part_path(folder, self.leaf, number)
        piece: dict[str, Any] = {"position": 0, "rows": len(lengths), "offset": 0, "length": int(lengths.sum())}
        piece["crc32c"] = sum_piece(source, piece)
        path.parent.mkdir(parents=True, exist_ok=True)
        checksum = write_lengths(path, lengths)
        source.replace(path)
        sync_folder(path.parent)
        return {"pieces": [piece] if len(lengths) else [], "lengths": checksum}

    def has_appended(self, folder: Path, entry: Mapping[str, Any]) -> bool:
        length, checksum, *_ = entry["ranges"]["offsets"]
        path, end = folder / self.path("offsets"), 8 * (entry["rows"] + 1)
        return super().has_appended(folder, entry) and sum_range(path, end - length, length) == [length, checksum]

    def append_parts(
        self, folder: Path, parts: Mapping[int, Mapping[str, Any]], last: Mapping[str, Any], *, cut: bool = True
    ) -> list[dict[str, Any]]:
        entries = super().append_parts(folder, parts, last, cut=cut)
        tables: list[np.ndarray] = []
        blob = last["blob"]
        for number, entry in zip(parts, entries):
            tables.append(blob + np.cumsum(np.fromfile(lengths_path(part_path(folder, self.leaf, number)), np.int64)))
            blob = entry["blob"]
        if 0 in parts:
            tables[0] = np.concatenate([[0], tables[0]])  # the start of the first row
        at = 0 if 0 in parts else 8 * (last["rows"] + 1)
        blocks = [[table.astype("<i8").tobytes()] for table in tables]
        for entry, checksum in zip(entries, append_blocks(folder / self.path("offsets"), at, blocks, cut=cut)):
            entry["ranges"]["offsets"] = checksum.record
        return entries

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
        """Rows ``start..stop-1`` as stored: their concatenated bytes, and their lengths (int64)."""
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


@lru_cache(8)
def _shared_encoder(codec: type[CompressedCodec], dictionary: bytes, leaf: Path) -> Encode:
    """The encoder for all parts of a leaf that this process appends: loading a dictionary is slow."""
    return codec.encoder(dictionary)


def compressed_codec(name: str) -> type[CompressedCodec]:
    """The codec of this name if it compresses, else DEFAULT; for rows that are staged on disk."""
    found = load_codec(name)
    found = found if issubclass(found, CompressedCodec) else load_codec(DEFAULT)
    assert issubclass(found, CompressedCodec)
    return found
