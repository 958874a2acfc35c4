"""The ``zstd`` codec: every row compressed separately, with one dictionary for the whole leaf.

Each row is one zstd frame (RFC 8878) that states its content size and carries neither checksum nor dictionary id: the
ranges of the manifest check the bytes. The batch calls of the ``zstandard`` package take one buffer and a table of
segments (offset, length: uint64 pairs), so that a whole batch is one call in C with the GIL released.

Two consecutive 84x84 Atari frames are nearly equal, but a row that depended on its neighbour could not be read alone. A
dictionary trained on rows from the whole dataset recovers most of the loss (28 times smaller on a million frames of
SpaceInvaders: 7,056 bytes to 250).
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from ...errors import DamagedDatasetError
from ..memory_map import VERIFY
from .codec import Encode
from .compressed import CompressedCodec, Decode

#: Level 5 makes frames a tenth smaller and a conversion 1.4 to 1.5 times as long (`benchmarks/levels.py`). Manifests do not
#: state this default, and a repair from raw data must make the same bytes: with another one, ``zstd`` there must still mean 3.
LEVEL = 3
#: With fewer rows per thread, a second thread costs more than it saves.
ROWS_PER_THREAD = 64
#: Rows decoded by one call: many enough to amortise the call, few enough to stay in the CPU cache until they are copied.
CHUNK_ROWS = 128
#: Limit of the bytes that one call decodes, for large rows.
CHUNK_BYTES = 32 << 20

DICTIONARY_BYTES = 110 * 1024
#: Segment sizes (``k`` of zstd's FastCover) to try, and its ``d``. zstd's own search compares on the training rows and often
#: picks segments of 50 bytes, as for text. Segments of whole screen rows make frames of Breakout three times smaller, small
#: segments make those of Assault a quarter smaller; `benchmarks/scaling.py games` measures the mean over 56 games.
PIECES, COUNTED = (6000, 2000, 200), 8
#: One in this many rows is held out of training, to compare dictionaries.
HELD_OUT = 8
#: A dictionary from fewer samples than this is worse than none.
MIN_SAMPLES = 64


class ZstdCodec(CompressedCodec):
    """Rows as zstd frames."""

    name = "zstd"
    uses_dictionary = True

    @classmethod
    def encoder(cls, dictionary: bytes, threads: int = 1, level: int | None = None) -> Encode:
        return RowEncoder(dictionary, threads, level or LEVEL).encode

    @classmethod
    def decoder(cls, dictionary: bytes, row_bytes: int, threads: int = 1) -> Decode:
        return RowDecoder(dictionary, row_bytes, threads).decode

    @classmethod
    def train(cls, samples: Iterable[np.ndarray]) -> bytes:
        """Return the one of several dictionaries that compresses held-out rows best."""
        rows = [np.frombuffer(row.tobytes(), np.uint8) for row in samples]
        if len(rows) < MIN_SAMPLES:
            return b""
        unseen = rows[HELD_OUT - 1 :: HELD_OUT]
        seen = [row.tobytes() for number, row in enumerate(rows) if number % HELD_OUT != HELD_OUT - 1]
        with ThreadPoolExecutor(len(PIECES), "rbdata-train") as pool:
            found = [made for made in pool.map(partial(_train, seen), PIECES) if made]
        return min(found, key=lambda made: int(cls.encoded_lengths(unseen, made).sum()), default=b"")


def _train(samples: list[Any], piece: int) -> bytes:
    import zstandard

    try:
        return zstandard.train_dictionary(DICTIONARY_BYTES, samples, level=LEVEL, k=piece, d=COUNTED).as_bytes()
    except zstandard.ZstdError:
        return b""  # rows too small or all the same: they compress well enough alone


class RowEncoder:
    """Compresses rows; holds the dictionary digested for compression. Not shared between threads at the same time."""

    def __init__(self, dictionary: bytes, threads: int = 1, level: int = LEVEL) -> None:
        import zstandard

        self._zstandard: Any = zstandard
        options: dict[str, Any] = {"write_content_size": 1, "write_checksum": 0, "write_dict_id": 0}
        parameters = zstandard.ZstdCompressionParameters.from_level(level, **options)
        digest = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
        if digest is not None:
            digest.precompute_compress(compression_params=parameters)
        given: dict[str, Any] = {"compression_params": parameters, "dict_data": digest}
        self._compressors = [zstandard.ZstdCompressor(**given) for _ in range(max(1, threads))]
        # The package starts its own threads with every call, which gains nothing for blocks of this size.
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
        source = self._zstandard.BufferWithSegments(buffer, _segments(starts, row_bytes).tobytes())
        frames = compressor.multi_compress_to_buffer(source, threads=1)
        lengths = np.fromiter(map(len, frames), np.int64, len(starts))
        return b"".join(frames), lengths


class RowDecoder:
    """Decompresses rows of ``row_bytes`` bytes, a batch split over threads that each have a context. Never pickled.

    Not shared between threads at the same time.
    """

    def __init__(self, dictionary: bytes, row_bytes: int, threads: int = 1) -> None:
        import zstandard

        self._zstandard: Any = zstandard
        self.row_bytes = row_bytes
        self._rows = max(1, min(CHUNK_ROWS, CHUNK_BYTES // row_bytes))
        self._sizes = np.full(self._rows, row_bytes, np.uint64).tobytes()
        digests = [zstandard.ZstdCompressionDict(dictionary) if dictionary else None for _ in range(max(1, threads))]
        try:
            self._decompressors = [zstandard.ZstdDecompressor(dict_data=digest) for digest in digests]
        except zstandard.ZstdError as error:
            raise DamagedDatasetError(
                f"the dictionary of a compressed leaf is damaged: {error}", hint=VERIFY
            ) from error
        self._pool = ThreadPoolExecutor(threads - 1, "rbdata-zstd") if threads > 1 else None

    def decode(
        self, blob: np.ndarray, starts: np.ndarray, lengths: np.ndarray, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Decode rows at ``starts`` (int64 ``[n]``) with ``lengths`` into ``out``, uint8 ``[n, row_bytes]``; new if not given.

        Raises DamagedDatasetError when a row does not decode.
        """
        count = len(starts)
        out = np.empty((count, self.row_bytes), np.uint8) if out is None else out
        pieces = min(len(self._decompressors), max(1, count // ROWS_PER_THREAD))
        if pieces == 1 or self._pool is None:
            self._decode_into(self._decompressors[0], blob, starts, lengths, out)
            return out
        # Split by compressed bytes: rows differ a lot, and the slowest piece sets the time.
        weights = np.cumsum(lengths)
        cuts = [0, *np.searchsorted(weights, weights[-1] * np.arange(1, pieces) / pieces).tolist(), count]
        futures = [
            self._pool.submit(self._decode_into, decompressor, blob, starts[low:high], lengths[low:high], out[low:high])
            for decompressor, low, high in zip(self._decompressors[1:], cuts[1:], cuts[2:])
        ]
        self._decode_into(self._decompressors[0], blob, starts[: cuts[1]], lengths[: cuts[1]], out[: cuts[1]])
        for future in futures:
            future.result()
        return out

    def _decode_into(
        self, decompressor: Any, blob: Any, starts: np.ndarray, lengths: np.ndarray, out: np.ndarray
    ) -> None:
        segments = _segments(starts, lengths)
        target = out.reshape(-1).data
        at = 0
        for low in range(0, len(starts), self._rows):
            for row in self._decode(decompressor, blob, segments[low : low + self._rows]):
                try:
                    target[at : at + self.row_bytes] = row
                except ValueError as error:
                    message = f"a compressed row decodes to {len(row)} bytes instead of {self.row_bytes}"
                    raise DamagedDatasetError(message, hint=VERIFY) from error
                at += self.row_bytes

    def _decode(self, decompressor: Any, blob: Any, segments: np.ndarray) -> Any:
        sizes = self._sizes[: 8 * len(segments)]
        try:
            source = self._zstandard.BufferWithSegments(blob, segments.tobytes())
            return decompressor.multi_decompress_to_buffer(source, decompressed_sizes=sizes, threads=1)
        except (self._zstandard.ZstdError, ValueError) as error:
            raise DamagedDatasetError(f"a compressed row does not decode: {error}", hint=VERIFY) from error


def _segments(starts: np.ndarray, lengths: np.ndarray | int) -> np.ndarray:
    """(offset, length) of rows in a buffer, as the batch calls take them: uint64 ``[n, 2]``."""
    segments = np.empty((len(starts), 2), np.uint64)
    segments[:, 0] = starts
    segments[:, 1] = lengths
    return segments
