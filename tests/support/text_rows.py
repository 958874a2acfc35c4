"""The inverse of `datasets.ingest.spaces.text_rows`."""

from __future__ import annotations

import numpy as np


def text_of(row: np.ndarray) -> str:
    """The text that a row of bytes stands for."""
    return np.asarray(row, np.uint8).tobytes().rstrip(b"\0").decode()
