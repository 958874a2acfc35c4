"""Parquet files: what their pages unpack to, and how many values they have, is known before any is unpacked."""

from __future__ import annotations

import base64
import signal
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rbdata.datasets.formats import parquet, parquet_file
from rbdata.datasets.formats.parquet_file import open_parquet
from rbdata.errors import CorruptSourceError


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["snappy", "gzip", "zstd", "none"])
def test_sound_files(tmp_path, version, compression):
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "number": rng.standard_normal(3000),
            "same": np.zeros(3000),
            "some": pa.array([None if row % 3 else row for row in range(3000)]),
            "text": [f"a{row % 7}" for row in range(3000)],
            "flag": rng.random(3000) < 0.5,
            "vector": pa.FixedSizeListArray.from_arrays(rng.standard_normal(9000), 3),
        }
    )
    how = {"compression": compression, "data_page_version": version, "row_group_size": 700, "data_page_size": 900}
    pq.write_table(table, tmp_path / "x", write_page_index=version == "2.0", **how)
    assert open_parquet(tmp_path / "x", "x").read().equals(table)


def bomb(path, kind):
    if kind == "page":
        table = pa.table({"a": np.zeros(1 << 20)})
        how = {
            "use_dictionary": False,
            "data_page_size": 1 << 30,
            "max_rows_per_page": 1 << 30,
            "write_batch_size": 1 << 22,
        }
    else:
        flat = pa.array(np.zeros(1 << 20, np.uint8))
        table = pa.table({"a": pa.ListArray.from_arrays(pa.array([0, 1 << 20], pa.int32()), flat)})
        how = {}
    pq.write_table(table, path, compression="zstd", **how)
    return path


@pytest.mark.parametrize(("kind", "said"), [("page", "unpack to"), ("row", "justify")])
def test_what_unpacks_to_too_much(tmp_path, kind, said, monkeypatch):
    monkeypatch.setattr(parquet_file, "most_unpacked", lambda size: 1 << 20)
    path = bomb(tmp_path / "x", kind)
    assert path.stat().st_size < 1 << 16
    with pytest.raises(CorruptSourceError, match=said):
        open_parquet(path, "x")


def test_a_text_as_long_as_the_file_in_every_row(tmp_path):
    long = "a" * 100_000
    pq.write_table(
        pa.table({"a": pa.array([long] * 3000).dictionary_encode(), "b": [1.0] * 3000}),
        tmp_path / "x",
        compression="none",
    )
    (block,) = parquet.Reader(tmp_path / "x", "x", {"a": ("b", long)}).blocks()
    assert block[0].tolist() == [1] * 3000


@pytest.mark.parametrize("value", [0x7F, 0xFF])
def test_damaged_headers_are_refused(tmp_path, value):
    pq.write_table(pa.table({"a": np.arange(500), "b": ["x", "y"] * 250}), tmp_path / "x")
    sound = (tmp_path / "x").read_bytes()
    for at in range(4, 40):
        (tmp_path / "y").write_bytes(sound[:at] + bytes([value]) + sound[at + 1 :])
        with suppress(CorruptSourceError, pa.ArrowException, OSError):
            open_parquet(tmp_path / "y", "y").read()


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["snappy", "gzip", "zstd", "lz4", "brotli", "none"])
def test_pictures_have_many_values_for_their_bytes(tmp_path, monkeypatch, version, compression):
    """Where every row has the length that its type states, rows are read in pieces, however many values there are."""
    monkeypatch.setattr(parquet_file, "most_unpacked", lambda size: 1 << 14)
    how = {"compression": compression, "data_page_version": version, "data_page_size": 4000}
    values = np.random.default_rng(0).integers(0, 2, 40 * 900).astype(np.uint8)
    for flat in (values, np.zeros_like(values)):
        frames = pa.FixedSizeListArray.from_arrays(flat, 900)
        table = pa.table({"frame": frames, "dict": pa.StructArray.from_arrays([frames], ["inner"])})
        pq.write_table(table, tmp_path / "x", **how)
        assert open_parquet(tmp_path / "x", "x").read().equals(table)
        for lengths in ([36_000] + [0] * 39, [1799, 1] + [900] * 38, [899, 901] + [900] * 38):
            ends = np.cumsum([0, *lengths]).astype(np.int32)
            table = pa.table({"frame": pa.ListArray.from_arrays(ends, flat)})
            with pq.ParquetWriter(tmp_path / "x", table.schema, store_schema=False, **how) as writer:
                writer.write_table(table)
                stated = pa.schema([("frame", pa.list_(pa.uint8(), 900))])
                writer.add_key_value_metadata(
                    {"ARROW:schema": base64.b64encode(stated.serialize().to_pybytes()).decode()}
                )
            with pytest.raises(CorruptSourceError, match="values, more than"):
                open_parquet(tmp_path / "x", "x")


def ends_the_process(path):
    """Whether pyarrow, asked about the first column, aborts."""
    code = f"import pyarrow.parquet as pq; pq.ParquetFile({str(path)!r}).metadata.row_group(0).column(0)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == -signal.SIGABRT


def test_a_footer_that_would_end_the_process(tmp_path):
    """A histogram of the levels of a column has one more entry than it should."""
    pq.write_table(pa.table({"a": pa.array([None, 1.0, 2.0])}), tmp_path / "x")
    sound = (tmp_path / "x").read_bytes()
    histogram = bytes([0x19, 0x26, 2, 4])  # field 3 behind field 2: a list of two numbers, 1 and 2
    at = sound.index(histogram, len(sound) - 300)
    footer = int.from_bytes(sound[-8:-4], "little") + 1
    longer = sound[: at + 1] + bytes([0x36, 2, 2, 2]) + sound[at + 4 : -8] + footer.to_bytes(4, "little") + b"PAR1"
    (tmp_path / "x").write_bytes(longer)
    assert ends_the_process(tmp_path / "x")
    with pytest.raises(CorruptSourceError, match="column 0 of a row group"):
        open_parquet(tmp_path / "x", "x")


@pytest.mark.parametrize("nominal", ["class", ""])
def test_a_column_that_is_stated_and_not_there(tmp_path, nominal):
    pq.write_table(pa.table({"a": [1.0]}), tmp_path / "x")
    with pytest.raises(CorruptSourceError, match="lacks one of the columns"):
        parquet.Reader(tmp_path / "x", "x", {nominal: ("a", "b")})
