"""The ``zstd`` codec: every row compressed on its own, with one dictionary for the whole leaf.

Each row is one zstd frame (RFC 8878) that states its content size and carries neither checksum nor dictionary id: the
ranges of the manifest check the bytes. The batch calls of the ``zstandard`` package take one buffer and a table of
segments (offset, length: uint64 pairs), so that a whole batch is one call in C with the GIL released.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ...errors import DamagedDatasetError
from ..parts import Encode
from .compressed import CompressedCodec, Decode
from .dictionary import train_dictionary

LEVEL = 3
#: Below this many rows a second thread costs more than it saves.
ROWS_PER_THREAD = 64
#: Rows decoded by one call: enough to make the call cheap, few enough to be still in the cache when they are copied out.
CHUNK_ROWS = 128

_VERIFY = "`rbdata verify` names the damaged files"


class ZstdCodec(CompressedCodec):
    """Rows as zstd frames."""

    name = "zstd"
    uses_dictionary = True

    @classmethod
    def encoder(cls, dictionary: bytes, threads: int = 1) -> Encode:
        return RowEncoder(dictionary, threads).encode

    @classmethod
    def decoder(cls, dictionary: bytes, row_bytes: int, threads: int = 1) -> Decode:
        return ParallelDecoder(dictionary, row_bytes, threads).decode

    @classmethod
    def train(cls, samples: Iterable[np.ndarray]) -> bytes:
        return train_dictionary(samples, LEVEL, cls.encoded_lengths)


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
