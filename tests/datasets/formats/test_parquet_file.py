"""Parquet files, sound and damaged: pyarrow may end its process or take memory without end, ours goes on."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rbdata.datasets.formats.arrow import open_parquet
from rbdata.errors import CorruptSourceError
from worker_tasks import in_worker


def bomb(path):
    flat = pa.array(np.zeros(1 << 24, np.uint8))
    lists = pa.ListArray.from_arrays(pa.array([0, 1 << 24], pa.int32()), flat)
    pq.write_table(pa.table({"a": lists}), path, compression="zstd")
    return path


def read_lists(path):
    return sum(len(batch) for batch in open_parquet(path, path.name).iter_batches(100))


def test_a_row_that_unpacks_to_too_much(tmp_path):
    path = bomb(tmp_path / "x")
    assert path.stat().st_size < 1 << 17
    assert in_worker(read_lists, path, label="x")
    with pytest.raises((CorruptSourceError, MemoryError)):
        in_worker(read_lists, path, label="x", memory=60 << 20)


@pytest.mark.parametrize("value", [0x7F, 0xFF])
def test_damaged_headers_are_refused(tmp_path, value):
    pq.write_table(pa.table({"a": np.arange(500), "b": ["x", "y"] * 250}), tmp_path / "x")
    sound = (tmp_path / "x").read_bytes()
    for at in range(4, 40):
        (tmp_path / "y").write_bytes(sound[:at] + bytes([value]) + sound[at + 1 :])
        with suppress(CorruptSourceError, pa.ArrowException, OSError):
            open_parquet(tmp_path / "y", "y").read()


def ask(path):
    return open_parquet(path, "x").metadata.row_group(0).column(0).num_values


def test_a_footer_that_would_end_the_process(tmp_path):
    """A histogram of the levels of a column has one more entry than it should: pyarrow aborts."""
    pq.write_table(pa.table({"a": pa.array([None, 1.0, 2.0])}), tmp_path / "x")
    sound = (tmp_path / "x").read_bytes()
    histogram = bytes([0x19, 0x26, 2, 4])  # field 3 behind field 2: a list of two numbers, 1 and 2
    at = sound.index(histogram, len(sound) - 300)
    footer = int.from_bytes(sound[-8:-4], "little") + 1
    longer = sound[: at + 1] + bytes([0x36, 2, 2, 2]) + sound[at + 4 : -8] + footer.to_bytes(4, "little") + b"PAR1"
    (tmp_path / "x").write_bytes(longer)
    with pytest.raises(CorruptSourceError) as caught:
        in_worker(ask, tmp_path / "x", label="x.parquet")
    assert "x.parquet" in caught.value.message
