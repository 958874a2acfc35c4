"""Small files that unpack to a great deal, or declare it: refused before anything is allocated."""

from __future__ import annotations

import io
import zlib
from contextlib import suppress

import h5py
import numpy as np
import pytest
from d4rl_truth import make, to_dataset, write
from PIL import Image
from rbdata.datasets.formats import limits
from rbdata.datasets.formats.arff import ArffTable
from rbdata.datasets.formats.limits import LARGEST_ROW, check_row_bytes, check_rows, most_unpacked
from rbdata.datasets.formats.npy import Expected, NpyStream
from rbdata.datasets.formats.pictures import picture_shape
from rbdata.errors import CorruptSourceError


def test_what_a_size_justifies():
    assert check_rows(1 << 22, 100, "x") == 1 << 22 and check_rows(10**9, 2 * 10**9, "x") == 10**9
    with pytest.raises(CorruptSourceError, match="x declares 5000000 rows in 9000000 bytes"):
        check_rows(5_000_000, 9_000_000, "x")
    check_row_bytes(LARGEST_ROW, "x")
    with pytest.raises(CorruptSourceError, match="x: one row has"):
        check_row_bytes(LARGEST_ROW + 1, "x")
    assert most_unpacked(1 << 30) == 4 << 30


def packed_d4rl(path, chunk: bytes, *, rows: int = 7, chunks: int = 7) -> None:
    """A D4RL file whose rewards are one chunk of these bytes, as deflate would have made it."""
    arrays = make([3, 4], ["terminal", "terminal"])
    del arrays["rewards"]
    write(path, arrays)
    with h5py.File(path, "a") as file:
        made = file.create_dataset("rewards", (rows,), "f4", chunks=(chunks,), compression="gzip")
        made.id.write_direct_chunk((0,), chunk)


@pytest.mark.parametrize(
    ("chunk", "said"),
    [
        (zlib.compress(b"\0" * 4_000_000), "holds 29 bytes"),
        (zlib.compress(b"\0" * 27), "holds 27 bytes"),
        (zlib.compress(b"\0" * 28)[:-4], "cut short"),
    ],
)
def test_a_chunk_that_holds_more_or_less_than_it_should(tmp_path, chunk, said):
    packed_d4rl(tmp_path / "x.hdf5", chunk)
    with pytest.raises(CorruptSourceError, match=said):
        to_dataset(tmp_path / "x.hdf5", tmp_path)


def test_a_filter_that_h5py_does_not_have(tmp_path):
    arrays = make([3, 4], ["terminal", "terminal"])
    write(tmp_path / "x.hdf5", {key: value for key, value in arrays.items() if key != "rewards"})
    with h5py.File(tmp_path / "x.hdf5", "a") as file:
        made = file.create_dataset("rewards", data=arrays["rewards"], compression="lzf")
        assert made.compression == "lzf"
    data = bytearray((tmp_path / "x.hdf5").read_bytes())
    at = data.find((32000).to_bytes(2, "little"), data.find(b"rewards"))
    data[at : at + 2] = (32001).to_bytes(2, "little")  # Blosc's
    (tmp_path / "x.hdf5").write_bytes(data)
    with pytest.raises(CorruptSourceError, match="packed by HDF5's filter 32001") as caught:
        to_dataset(tmp_path / "x.hdf5", tmp_path)
    assert "h5repack" in caught.value.hint


@pytest.mark.parametrize("length", [7, 500])
@pytest.mark.parametrize(
    "options",
    [
        {"fletcher32": True},
        {"shuffle": True, "chunks": (3,)},
        {"compression": "lzf"},
        {"compression": "lzf", "shuffle": True},
    ],
)
def test_filters_that_hdf5_undoes(tmp_path, options, length):
    arrays = make([3, length - 3], ["terminal", "terminal"])
    arrays["rewards"][::2] = 1
    write(tmp_path / "x.hdf5", {key: value for key, value in arrays.items() if key != "rewards"})
    with h5py.File(tmp_path / "x.hdf5", "a") as file:
        file.create_dataset("rewards", data=arrays["rewards"], **{"compression": "gzip", **options})
    found = to_dataset(tmp_path / "x.hdf5", tmp_path)["next", "reward"].numpy()[:, 0]
    assert np.array_equal(found, arrays["rewards"])


def test_truth_values_are_0_and_1(tmp_path):
    arrays = make([3, 4], ["terminal", "terminal"])
    write(tmp_path / "x.hdf5", arrays)
    with h5py.File(tmp_path / "x.hdf5", "a") as file:
        del file["terminals"]
        odd = file.create_dataset("terminals", (7,), bool, chunks=(7,), compression="gzip")
        odd.id.write_direct_chunk((0,), zlib.compress(bytes([0, 0, 7, 0, 0, 0, 2])))
    flags = to_dataset(tmp_path / "x.hdf5", tmp_path)["next", "terminated"].numpy()
    assert flags.view(np.uint8)[:, 0].tolist() == [0, 0, 1, 0, 0, 0, 1]


def test_one_row_of_all_values_of_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "LARGEST_ROW", 1 << 16)
    arrays = make([3, 4], ["terminal", "terminal"])
    write(tmp_path / "x.hdf5", {**arrays, "observations": np.zeros((7, 1 << 15), "f4")}, compression="gzip")
    with pytest.raises(CorruptSourceError, match="one row has 131"):
        to_dataset(tmp_path / "x.hdf5", tmp_path)


def test_a_picture_that_declares_a_wall():
    file = io.BytesIO()
    Image.fromarray(np.zeros((40, 40), np.uint8)).save(file, "JPEG")
    data = bytearray(file.getvalue())
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = b"\xff\xff\xff\xff"
    with pytest.raises(CorruptSourceError):
        picture_shape(bytes(data), "x")


HEAD = "@relation x\n@attribute a numeric\n@attribute b {x, y}\n@data\n"


@pytest.mark.parametrize("row", ["1{}z, 'x'", "'1' {}z, x", "{}'1' 'x'", "{{0{}5, 1 x", "1{}, 'x'"])
def test_spaces_take_linear_time(row):
    """Once 80,000 took half a minute: these would take an hour."""
    with suppress(CorruptSourceError):
        list(ArffTable((HEAD + row.format(" " * 1_000_000)).splitlines(), "t").blocks())


@pytest.mark.parametrize("number", ["1_000", "\u0661\u0662"])
def test_python_reads_numbers_that_arff_does_not_have(number):
    for row in (f"{number},x", f"'{number}',x", f"{{0 {number}}}"):
        with pytest.raises(CorruptSourceError, match="is not a number"):
            list(ArffTable(f"{HEAD}{row}\n".splitlines(), "t").blocks())


def test_a_version_of_npy_that_there_is_not():
    file = io.BytesIO()
    np.save(file, np.zeros(3, "u1"))
    data = bytearray(file.getvalue())
    data[7] = 8
    with pytest.raises(CorruptSourceError, match=r"version 1\.8 is unknown"):
        NpyStream([bytes(data)], Expected("uint8", (-1,)), "x")
