"""npz archives: the arrays that NumPy reads, and everything that can be wrong with one."""

from __future__ import annotations

import io
import pickle
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from rbdata.datasets.formats.npy import NpzArchive
from rbdata.datasets.formats.packed import ZipArchive
from rbdata.errors import CorruptSourceError

_DTYPES = st.sampled_from(["u1", "i2", ">i4", "<f4", ">f8", "?", "f2"])
_ARRAYS = arrays.arrays(_DTYPES, arrays.array_shapes(min_dims=0, max_dims=4, max_side=6))


def packed(compress=True, **given) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if compress else np.savez)(file, **given)
    return file.getvalue()


def zipped(how=zipfile.ZIP_DEFLATED, **members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", how) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


@given(st.dictionaries(st.sampled_from("abcd"), _ARRAYS, min_size=1), st.booleans())
def test_arrays_are_those_that_numpy_reads(given, compress):
    data = packed(compress, **given)
    truth = np.load(io.BytesIO(data))
    with NpzArchive(data, "x.npz") as archive:
        assert archive.keys == list(truth)
        for key in archive.keys:
            wanted = truth[key]
            assert archive.head(key) == (wanted.dtype.newbyteorder("="), wanted.shape)
            found = archive.array(key)
            assert found.dtype == wanted.dtype.newbyteorder("=") and found.shape == wanted.shape
            assert np.array_equal(found, wanted, equal_nan=wanted.dtype.kind == "f")
            if wanted.ndim:
                rows = np.concatenate(list(archive.blocks(key)))
                assert np.array_equal(rows, wanted, equal_nan=wanted.dtype.kind == "f")


def test_rows_of_several_arrays_are_read_in_turns(tmp_path):
    rng = np.random.default_rng(0)
    given = {name: np.tile(rng.integers(0, 9, (40, 1, 512), np.uint8), (1, 512, 1)) for name in "ab"}
    (tmp_path / "x.npz").write_bytes(packed(**given))
    with NpzArchive(tmp_path / "x.npz", "x.npz") as archive:
        pairs = list(zip(archive.blocks("a"), archive.blocks("b")))
    assert len(pairs) > 1
    assert np.array_equal(np.concatenate([one for one, _ in pairs]), given["a"])
    assert np.array_equal(np.concatenate([other for _, other in pairs]), given["b"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_byte_that_is_wrong_is_noticed():
    data = packed(a=np.arange(60, dtype=np.float32), b=np.arange(3))
    truth = dict(np.load(io.BytesIO(data)).items())
    noticed = 0
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 0x41
        try:
            with NpzArchive(bytes(changed), "x.npz") as archive:
                found = {key: archive.array(key) for key in archive.keys}
        except CorruptSourceError as error:
            assert "x.npz" in str(error)
            noticed += 1
        else:  # times, versions, the name of a local header, the name of a member: nothing that values depend on
            assert all(np.array_equal(truth[key], value) for key, value in found.items() if key in truth)
    assert noticed > len(data) // 2


def test_every_length_is_noticed():
    data = packed(a=np.arange(60, dtype=np.float32))
    for size in range(len(data)):
        with pytest.raises(CorruptSourceError, match=r"x\.npz"), NpzArchive(data[:size], "x.npz") as archive:
            archive.array("a")


@pytest.mark.parametrize("name", ["../a.npy", "a/../../b.npy", "/a.npy", "c:\\a.npy", "..\\a.npy"])
def test_names_that_lead_out_are_refused(name):
    with pytest.raises(CorruptSourceError, match="leads out"):
        ZipArchive(zipped(**{name: b""}), "x.zip")


def test_pickles_are_not_read():
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}, None], object), allow_pickle=True)
    with (
        NpzArchive(zipped(**{"a.npy": file.getvalue()}), "x.npz") as archive,
        pytest.raises(CorruptSourceError, match="pickle"),
    ):
        archive.array("a")
    with (
        NpzArchive(zipped(**{"a.npy": pickle.dumps([1])}), "x.npz") as archive,
        pytest.raises(CorruptSourceError, match=r"not a \.npy array"),
    ):
        archive.array("a")


def test_what_is_no_array_of_numbers_is_refused():
    for value in (np.array(["a"]), np.zeros((2, 0)), np.array([1j])):
        with NpzArchive(packed(a=value), "x.npz") as archive, pytest.raises(CorruptSourceError, match=r"x\.npz: a"):
            archive.array("a")


def test_a_bomb_is_refused_before_it_is_unpacked(monkeypatch):
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": (1 << 20, 1 << 10)})
    data = zipped(**{"a.npy": head.getvalue() + bytes(1 << 20)})
    tracemalloc.start()
    with NpzArchive(data, "x.npz") as archive, pytest.raises(CorruptSourceError, match="declares"):
        archive.array("a")
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()
    monkeypatch.setattr("rbdata.datasets.formats.npy.most_unpacked", lambda size: 4 << 20)
    file = io.BytesIO()
    np.save(file, np.zeros(3 << 20, np.uint8))
    many = {f"{name}.npy": file.getvalue() for name in "ab"}
    with NpzArchive(zipped(**many), "x.npz") as archive, pytest.raises(CorruptSourceError, match="declares"):
        [archive.array(key) for key in archive.keys]


def test_encrypted_and_other_members_are_refused():
    data = bytearray(zipped(a=b"abc"))
    data[data.index(b"PK\x01\x02") + 8] |= 1
    with ZipArchive(bytes(data), "x.zip") as archive, pytest.raises(CorruptSourceError, match="encrypted"):
        archive.read("a")
    with (
        ZipArchive(zipped(zipfile.ZIP_LZMA, a=b"abc"), "x.zip") as archive,
        pytest.raises(CorruptSourceError, match="method 14"),
    ):
        archive.read("a")


def test_a_size_that_is_too_large_or_too_small_is_noticed():
    for size in (2, 4):
        data = bytearray(zipped(a=b"abc"))
        struct.pack_into("<I", data, data.index(b"PK\x01\x02") + 24, size)
        with ZipArchive(bytes(data), "x.zip") as archive, pytest.raises(CorruptSourceError, match="damaged"):
            archive.read("a")


def test_a_directory_that_states_a_place_before_the_file_is_damage():
    data = zipped(**{"a.npy": packed(a=np.zeros(3))})
    end = data.rindex(b"PK\x05\x06")
    (place,) = struct.unpack_from("<I", data, end + 16)
    moved = data[: end + 16] + struct.pack("<I", place + 5) + data[end + 20 :]
    with ZipArchive(moved, "x.zip") as archive, pytest.raises(CorruptSourceError, match=r"x\.zip: a\.npy"):
        archive.read("a.npy")


def test_an_archive_without_its_beginning_is_refused(tmp_path):
    data = packed(a=np.arange(60, dtype=np.float32), b=np.arange(3))
    (tmp_path / "x.npz").write_bytes(data[10:])
    for source in (data[10:], tmp_path / "x.npz"):
        with pytest.raises(CorruptSourceError, match=r"x\.npz"), NpzArchive(source, "x.npz") as archive:
            archive.array("a")


def test_a_member_beyond_all_files_is_refused(tmp_path):
    data = zipped(a=b"abc")
    at, end = data.index(b"PK\x01\x02"), data.index(b"PK\x05\x06")
    extra = struct.pack("<HHQ", 1, 8, (1 << 63) + 5)  # zip64: where the member begins
    entry = data[at : at + 30] + struct.pack("<H", len(extra)) + data[at + 32 : at + 42] + b"\xff" * 4 + b"a" + extra
    path = tmp_path / "x.zip"
    path.write_bytes(data[:at] + entry + data[end : end + 12] + struct.pack("<I", len(entry)) + data[end + 16 :])
    for source in (path, path.read_bytes()):
        with ZipArchive(source, "x.zip") as archive, pytest.raises(CorruptSourceError, match="not where"):
            archive.read("a")
