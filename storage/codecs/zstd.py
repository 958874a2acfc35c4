"""The ``zstd`` row codec: every row compressed on its own, with one dictionary for the whole leaf.

A compressed leaf is a folder of three flat files:

    blob        the compressed rows, one after the other; each is one zstd frame that states its content size and
                carries neither checksum nor dictionary id (the ranges of the manifest check the bytes)
    offsets     int64 [rows + 1]: row i lies at blob[offsets[i]:offsets[i + 1]]
    dictionary  the zstd dictionary, or empty

Any row decodes alone. Two consecutive 84x84 Atari frames share nearly everything, but a row that leaned on its
neighbour could not be read without it; a dictionary trained on rows from all over the data recovers most of the loss
(28 times smaller on a million frames of SpaceInvaders, 7,056 bytes to 250).

Format of a frame: RFC 8878. The batch calls of the ``zstandard`` package take one buffer and a table of segments
(offset, length: uint64 pairs), so that a whole batch is one call in C with the GIL released.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from ...errors import DamagedDatasetError

LEVEL = 3
DICTIONARY_BYTES = 110 * 1024
#: Bytes of the pieces of samples that a dictionary is made of, and of what is counted in them (``k`` and ``d`` of zstd's
#: FastCover): each of these is tried. Left to itself zstd judges by the rows it was trained on and often takes pieces of 50
#: bytes, as for text. Whole rows of a screen make frames of Breakout three times smaller, small pieces those of Assault a
#: quarter; over 56 games `benchmarks/scaling.py games` measures the mean.
PIECES, COUNTED = (6000, 2000, 200), 8
#: One row in so many is kept from training, to judge by.
HELD_OUT = 8
#: Fewer samples than this give dictionaries worse than none.
MIN_SAMPLES = 64
#: Below this many rows a second thread costs more than it saves.
ROWS_PER_THREAD = 64
#: Rows decoded by one call: enough to make the call cheap, few enough to be still in the cache when they are copied out.
CHUNK_ROWS = 128

_VERIFY = "`rbdata verify` names the damaged files"


def train_dictionary(rows: Iterable[np.ndarray]) -> bytes:
    """Train a dictionary on sample rows, which may differ in size; empty when they are too few or too alike.

    Of several it is the one that makes rows smallest that it has not seen. Deterministic: the same rows give the same one.
    """
    samples: list[Any] = [row.tobytes() for row in rows]
    if len(samples) < MIN_SAMPLES:
        return b""
    unseen = samples[HELD_OUT - 1 :: HELD_OUT]
    seen = [sample for number, sample in enumerate(samples) if number % HELD_OUT != HELD_OUT - 1]
    with ThreadPoolExecutor(len(PIECES), "rbdata-train") as pool:
        found = [made for made in pool.map(partial(_train, seen), PIECES) if made]
    return min(found, key=partial(_compressed_bytes, unseen), default=b"")


def _train(samples: list[Any], piece: int) -> bytes:
    import zstandard

    try:
        return zstandard.train_dictionary(DICTIONARY_BYTES, samples, level=LEVEL, k=piece, d=COUNTED).as_bytes()
    except zstandard.ZstdError:
        return b""  # rows too small or all the same: they compress well enough alone


def _compressed_bytes(samples: list[Any], dictionary: bytes) -> int:
    encoder, start = RowEncoder(dictionary), np.zeros(1, np.int64)
    return sum(len(encoder.encode(sample, start, len(sample))[0]) for sample in samples)


class RowEncoder:
    """Compresses rows; holds the dictionary digested for compression. Not shared between threads at the same time."""

    def __init__(self, dictionary: bytes, threads: int = 1) -> None:
        import zstandard

        self._zstandard: Any = zstandard
        options: dict[str, Any] = {"write_content_size": 1, "write_checksum": 0, "write_dict_id": 0}
        parameters = zstandard.ZstdCompressionParameters.from_level(LEVEL, **options)
        given: dict[str, Any] = {"compression_params": parameters}
        if dictionary:
            given["dict_data"] = zstandard.ZstdCompressionDict(dictionary)
            given["dict_data"].precompute_compress(compression_params=parameters)
        self._compressors = [zstandard.ZstdCompressor(**given) for _ in range(max(1, threads))]
        # The package's own threads, begun anew with every call, are worth nothing for blocks of this size.
        self._pool = ThreadPoolExecutor(threads - 1, "rbdata-zstd") if threads > 1 else None

    def encode(self, buffer: Any, starts: np.ndarray, row_bytes: int) -> tuple[bytes, np.ndarray]:
        """Compress the rows that begin at byte ``starts`` (int64 ``[n]``) of a buffer.

        Returns the compressed rows joined, and their lengths (int64 ``[n]``). The result does not depend on ``threads``.
        """
        pieces = min(len(self._compressors), max(1, len(starts) // ROWS_PER_THREAD))
        if pieces == 1 or self._pool is None:
            return self._encode(self._compressors[0], buffer, starts, row_bytes)
        first, *others = np.array_split(starts, pieces)
        futures = [
            self._pool.submit(self._encode, compressor, buffer, piece, row_bytes)
            for compressor, piece in zip(self._compressors[1:], others)
        ]
        done = [self._encode(self._compressors[0], buffer, first, row_bytes), *(future.result() for future in futures)]
        return b"".join(data for data, _ in done), np.concatenate([lengths for _, lengths in done])

    def _encode(self, compressor: Any, buffer: Any, starts: np.ndarray, row_bytes: int) -> tuple[bytes, np.ndarray]:
        segments = np.empty((len(starts), 2), np.uint64)
        segments[:, 0] = starts
        segments[:, 1] = row_bytes
        source = self._zstandard.BufferWithSegments(buffer, segments.tobytes())
        frames = compressor.multi_compress_to_buffer(source, threads=1)
        lengths = np.fromiter(map(len, frames), np.int64, len(starts))
        return b"".join(frames), lengths


class RowDecoder:
    """Decompresses rows of a blob. Not shared between threads at the same time: each has its own contexts."""

    def __init__(self, dictionary: bytes, row_bytes: int) -> None:
        import zstandard

        self._zstandard: Any = zstandard
        self.row_bytes = row_bytes
        digest = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
        self._decompressor = zstandard.ZstdDecompressor(dict_data=digest)

    def decode_into(self, blob: np.ndarray, starts: np.ndarray, lengths: np.ndarray, out: np.ndarray) -> None:
        """Decode rows at ``starts`` (int64 ``[n]``) with ``lengths`` into ``out``, uint8 ``[n, row_bytes]``, contiguous.

        Raises DamagedDatasetError when a row does not decode.
        """
        segments = np.empty((len(starts), 2), np.uint64)
        segments[:, 0] = starts
        segments[:, 1] = lengths
        sizes = np.full(min(len(starts), CHUNK_ROWS), self.row_bytes, np.uint64).tobytes()
        target = out.reshape(-1).data
        at = 0
        for low in range(0, len(starts), CHUNK_ROWS):
            chunk = segments[low : low + CHUNK_ROWS]
            for row in self._decode(blob, chunk, sizes[: 8 * len(chunk)]):
                try:
                    target[at : at + self.row_bytes] = row
                except ValueError as error:
                    message = f"a compressed row decodes to {len(row)} bytes instead of {self.row_bytes}"
                    raise DamagedDatasetError(message, hint=_VERIFY) from error
                at += self.row_bytes

    def _decode(self, blob: Any, segments: np.ndarray, sizes: bytes) -> Any:
        try:
            source = self._zstandard.BufferWithSegments(blob, segments.tobytes())
            return self._decompressor.multi_decompress_to_buffer(source, decompressed_sizes=sizes, threads=1)
        except (self._zstandard.ZstdError, ValueError) as error:
            raise DamagedDatasetError(f"a compressed row does not decode: {error}", hint=_VERIFY) from error


class ParallelDecoder:
    """Splits a batch over threads, each with its own decoder. Created on first use, never pickled."""

    def __init__(self, dictionary: bytes, row_bytes: int, threads: int) -> None:
        self._decoders = [RowDecoder(dictionary, row_bytes) for _ in range(max(1, threads))]
        self._pool = ThreadPoolExecutor(len(self._decoders), "rbdata-zstd") if len(self._decoders) > 1 else None
        self.row_bytes = row_bytes

    def decode(self, blob: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Decode rows of a blob; returns uint8 ``[n, row_bytes]``, freshly allocated and writable."""
        count = len(starts)
        out = np.empty((count, self.row_bytes), np.uint8)
        pieces = min(len(self._decoders), max(1, count // ROWS_PER_THREAD))
        if pieces == 1 or self._pool is None:
            self._decoders[0].decode_into(blob, starts, lengths, out)
            return out
        # Split by compressed bytes: rows differ a lot, and the slowest piece sets the time.
        weights = np.cumsum(lengths)
        cuts = [0, *np.searchsorted(weights, weights[-1] * np.arange(1, pieces) / pieces).tolist(), count]
        futures = [
            self._pool.submit(decoder.decode_into, blob, starts[low:high], lengths[low:high], out[low:high])
            for decoder, low, high in zip(self._decoders[1:], cuts[1:], cuts[2:])
        ]
        self._decoders[0].decode_into(blob, starts[: cuts[1]], lengths[: cuts[1]], out[: cuts[1]])
        for future in futures:
            future.result()
        return out
