"""A codec of the tests, complete in a few lines: every row by zlib on its own, without a dictionary.

monkeypatch.setitem(codecs.CODECS, "toy", ("toy_codec", "ToyCodec"))
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from rbdata.errors import DamagedDatasetError
from rbdata.storage.codecs.codec import Encode
from rbdata.storage.codecs.compressed import CompressedCodec, Decode


class ToyCodec(CompressedCodec):
    name = "toy"

    @classmethod
    def encoder(cls, dictionary: bytes, threads: int = 1) -> Encode:
        assert not dictionary

        def encode(buffer: Any, starts: np.ndarray, row_bytes: int) -> tuple[bytes, np.ndarray]:
            view = memoryview(buffer).cast("B")
            rows = [zlib.compress(view[start : start + row_bytes]) for start in starts.tolist()]
            return b"".join(rows), np.array([len(row) for row in rows], np.int64)

        return encode

    @classmethod
    def decoder(cls, dictionary: bytes, row_bytes: int, threads: int = 1) -> Decode:
        def decode(
            blob: np.ndarray, starts: np.ndarray, lengths: np.ndarray, out: np.ndarray | None = None
        ) -> np.ndarray:
            out = np.empty((len(starts), row_bytes), np.uint8) if out is None else out
            for row, start, length in zip(out, starts.tolist(), lengths.tolist()):
                try:
                    row[:] = np.frombuffer(zlib.decompress(blob[start : start + length]), np.uint8)
                except (zlib.error, ValueError) as error:
                    raise DamagedDatasetError(f"a compressed row does not decode: {error}") from error
            return out

        return decode
