"""Rows to compress, and zstd as the tests of codecs use it."""

from __future__ import annotations

import numpy as np
from rbdata.storage.codecs.zstd import RowEncoder, ZstdCodec

KINDS = ("noise", "zeros", "same", "frames")

train_dictionary = ZstdCodec.train


def make_rows(count: int, row_bytes: int, kind: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if kind == "noise":
        return rng.integers(0, 256, (count, row_bytes), dtype=np.uint8)
    if kind == "zeros":
        return np.zeros((count, row_bytes), np.uint8)
    if kind == "same":
        return np.tile(rng.integers(0, 256, (1, row_bytes), dtype=np.uint8), (count, 1))
    rows = np.tile(rng.integers(0, 256, (1, row_bytes), dtype=np.uint8), (count, 1))  # frames: mostly alike
    for row in rows:
        row[rng.integers(0, row_bytes, max(1, row_bytes // 50))] = rng.integers(0, 256)
    return rows


def encode(rows: np.ndarray, dictionary: bytes = b"", threads: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    starts = np.arange(len(rows), dtype=np.int64) * rows.shape[1]
    data, lengths = RowEncoder(dictionary, threads).encode(rows.reshape(-1), starts, rows.shape[1])
    return np.frombuffer(data, np.uint8), np.cumsum(lengths) - lengths, lengths
