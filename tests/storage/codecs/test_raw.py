"""The raw codec: rows as they are in memory, read in windows, one by one, in blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from rbdata.errors import DamagedDatasetError
from rbdata.storage.codecs import codec_of
from rbdata.storage.leaf import DTYPES, Leaf
from storage_tools import random_array

ROWS = 40


def write(folder: Path, leaf: Leaf) -> np.ndarray:
    rows = random_array(np.random.default_rng(0), (ROWS, *leaf.shape), leaf.dtype)
    rows.astype(leaf.np_dtype).tofile(folder / leaf.memmap)
    return rows


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (7,), (2, 3, 5)], ids=str)
def test_reading(dtype, shape, tmp_path):
    leaf = Leaf("x", "state", dtype, shape)
    rows = write(tmp_path, leaf)
    opened = codec_of(leaf).open_rows(tmp_path, ROWS)
    index = torch.tensor([0, 39, 7, 7, 12])
    assert np.array_equal(opened.take(index).numpy(), rows[index])
    for length in (1, 2, 5, ROWS):
        first = torch.tensor([0, ROWS - length, min(3, ROWS - length)])
        windows = opened.windows(first, length)
        assert windows.shape == (3, length, *shape)
        assert np.array_equal(windows.numpy(), np.stack([rows[low : low + length] for low in first.tolist()]))
    assert np.array_equal(opened.block(3, 9).numpy(), rows[3:9])


def test_what_is_read_is_private(tmp_path):
    leaf = Leaf("x", "state", "float32", (5,))
    rows = write(tmp_path, leaf)
    opened = codec_of(leaf).open_rows(tmp_path, ROWS)
    opened.block(0, ROWS).fill_(-1)
    opened.take(torch.arange(3)).fill_(-1)
    assert np.array_equal(np.fromfile(tmp_path / "x.memmap", "<f4").reshape(rows.shape), rows)


def test_too_few_rows(tmp_path):
    leaf = Leaf("x", "state", "uint8", (4,))
    (tmp_path / "x.memmap").touch()
    with pytest.raises(DamagedDatasetError, match="0 bytes instead of 12"):
        codec_of(leaf).open_rows(tmp_path, 3)
    (tmp_path / "x.memmap").unlink()
    with pytest.raises(DamagedDatasetError, match="missing"):
        codec_of(leaf).open_rows(tmp_path, 3)
