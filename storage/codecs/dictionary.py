"""Training the dictionary of a leaf.

Two consecutive 84x84 Atari frames share nearly everything, but a row that leaned on its neighbour could not be read without
it; a dictionary trained on rows from all over the data recovers most of the loss (28 times smaller on a million frames of
SpaceInvaders, 7,056 bytes to 250).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

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


def train_dictionary(
    rows: Iterable[np.ndarray], level: int, encoded_lengths: Callable[[list[np.ndarray], bytes], np.ndarray]
) -> bytes:
    """Train a dictionary on sample rows, which may differ in size; empty when they are too few or too alike.

    Of several it is the one that makes rows smallest that it has not seen, by ``encoded_lengths(rows, dictionary)``.
    Deterministic: the same rows give the same one.
    """
    samples = [np.frombuffer(row.tobytes(), np.uint8) for row in rows]
    if len(samples) < MIN_SAMPLES:
        return b""
    unseen = samples[HELD_OUT - 1 :: HELD_OUT]
    seen = [sample.tobytes() for number, sample in enumerate(samples) if number % HELD_OUT != HELD_OUT - 1]

    def judge(dictionary: bytes) -> int:
        return int(encoded_lengths(unseen, dictionary).sum())

    with ThreadPoolExecutor(len(PIECES), "rbdata-train") as pool:
        found = [made for made in pool.map(partial(_train, seen, level), PIECES) if made]
    return min(found, key=judge, default=b"")


def _train(samples: list[Any], level: int, piece: int) -> bytes:
    import zstandard

    try:
        return zstandard.train_dictionary(DICTIONARY_BYTES, samples, level=level, k=piece, d=COUNTED).as_bytes()
    except zstandard.ZstdError:
        return b""  # rows too small or all the same: they compress well enough alone
