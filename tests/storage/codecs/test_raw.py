"""The raw codec: rows as they are in memory, read in windows, one by one, in blocks; parts written in place or appended."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from rbdata.errors import DamagedDatasetError
from rbdata.storage.codecs import codec_of
from rbdata.storage.durable import preallocate
from rbdata.storage.leaf import DTYPES, Leaf
from rbdata.storage.parts import part_path
from storage_tools import random_array

ROWS = 40


def write(folder: Path, leaf: Leaf) -> np.ndarray:
    rows = random_array(np.random.default_rng(0), (ROWS, *leaf.shape), leaf.dtype)
    rows.astype(leaf.np_dtype).tofile(folder / leaf.memmap)
    return rows


def starts(count: int, leaf: Leaf) -> np.ndarray:
    return np.arange(count, dtype=np.int64) * leaf.row_bytes


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


def test_parts_in_place(tmp_path):
    """Two parts, in any order: the file is theirs, side by side."""
    leaf = Leaf("a/x", "state", "int16", (3,))
    preallocate(tmp_path / leaf.memmap, 10 * leaf.row_bytes)
    rows = np.arange(30, dtype=np.int16).reshape(10, 3)
    for number, first, count in ((1, 6, 4), (0, 0, 6)):
        sink = codec_of(leaf).open_sink(tmp_path, number, first, count)
        sink.write(1, rows[first + 1 : first + count].copy(), starts(count - 1, leaf))
        sink.write(0, rows[first : first + 1].copy(), starts(1, leaf))
        ranges = sink.finish()["ranges"]["a/x.memmap"]
        assert [length for length, _ in ranges] == [leaf.row_bytes, (count - 1) * leaf.row_bytes]
    assert np.array_equal(np.fromfile(tmp_path / leaf.memmap, "<i2").reshape(10, 3), rows)


def test_parts_appended(tmp_path):
    leaf = Leaf("x", "step", "uint8", (4,))
    codec = codec_of(leaf)
    rows = np.arange(80, dtype=np.uint8).reshape(20, 4)
    records = {}
    for number, (low, high) in {1: (8, 20), 0: (0, 8)}.items():
        part = codec.open_appender(tmp_path, number)
        for row in range(low, high):
            part.append(rows[row : row + 1])
        records[number] = part.finish()
        assert records[number]["rows"] == high - low
    assert not part_path(tmp_path, leaf, 0).with_suffix(".lengths").exists()
    entries = codec.append_parts(tmp_path, dict(sorted(records.items())), {"blob": 0, "rows": 0})
    assert [(entry["blob"], entry["rows"]) for entry in entries] == [(32, 8), (80, 20)]
    assert (tmp_path / "x.memmap").read_bytes() == rows.tobytes()
    assert codec.has_appended(tmp_path, entries[-1])
    os.truncate(tmp_path / "x.memmap", 79)
    assert not codec.has_appended(tmp_path, entries[-1])
