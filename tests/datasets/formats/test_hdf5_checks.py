"""HDF5 files whose texts state more than there is. Everything else is tested by whole conversions (D4RL, Minari)."""

from __future__ import annotations

import resource
import struct

import h5py
import numpy as np
import pytest
from hdf5_mutations import sealed
from rbdata.datasets.formats.hdf5_checks import check_lengths, check_storage, read_attributes
from rbdata.datasets.formats.hdf5_headers import Headers
from rbdata.errors import CorruptSourceError


@pytest.mark.parametrize("stored", ["contiguous", "chunks", "packed", "shuffled", "square"])
@pytest.mark.parametrize("kind", ["text", "numbers"])
def test_texts_that_state_too_much(tmp_path, stored, kind):
    """HDF5 allocates the length that is stated, up to 32 GB, before it looks whether there are as many bytes."""
    options = {"contiguous": {}, "square": {"chunks": (3, 2)}}.get(stored, {"chunks": (3,)})
    options |= {"packed": {"compression": "gzip"}, "shuffled": {"compression": "gzip", "shuffle": True}}.get(stored, {})
    shape = (5, 3) if stored == "square" else (5,)
    with h5py.File(tmp_path / "x", "w") as file:
        dtype = h5py.string_dtype() if kind == "text" else h5py.vlen_dtype(np.float64)
        made = file.create_dataset("x", shape, dtype, **options)
        for place in np.ndindex(shape):
            made[place] = "a" * place[0] if kind == "text" else np.zeros(place[0])
        file.flush()
        check_storage(made.id, Headers.of(tmp_path / "x", "x"), "x", least=0, size=1 << 20)
        check_lengths(made.id, 0, 5, 1000, "x")
        check_lengths(made.id, 1, 2, 24, "x")
        with pytest.raises(CorruptSourceError, match="x states values of"):
            check_lengths(made.id, 3, 5, 3, "x")


def test_chunks_of_texts_that_were_never_written(tmp_path):
    """Only those that were are looked at: a shape may have more chunks than can be counted."""
    with h5py.File(tmp_path / "x", "w") as file:
        made = file.create_dataset("x", (5, 1 << 31), h5py.string_dtype(), chunks=(2, 1))
        made[0, 1], made[3, 1 << 30], made[4, 0] = "aa", "aaaaaa", "aaaaaaaa"
        file.flush()
        for low, high, most in ((0, 2, 2), (0, 3, 6), (3, 4, 6), (0, 5, 8), (4, 5, 8)):
            check_lengths(made.id, low, high, most, "x")
            with pytest.raises(CorruptSourceError, match=f"x states values of {most} bytes"):
                check_lengths(made.id, low, high, most - 1, "x")


def test_short_texts_in_large_heaps(tmp_path):
    """HDF5 reads a heap as a whole: megabytes for each of 100,000 texts that are in two of them in turn."""
    for base in (0, 512):
        with h5py.File(tmp_path / "x", "w", userblock_size=base) as file:
            made = file.create_dataset("x", (3,), h5py.string_dtype())
            made[:] = ["short", "long" * 50000, "longer" * 50000]
            file.flush()
            check_lengths(made.id, 0, 3, 1 << 20, "x")
            place = made.id.get_offset()
        data = bytearray((tmp_path / "x").read_bytes())
        data[place + 4 : place + 16] = data[place + 36 : place + 48]
        (tmp_path / "x").write_bytes(data)
        with h5py.File(tmp_path / "x") as file, pytest.raises(CorruptSourceError, match="x has short values in heaps"):
            check_lengths(file["x"].id, 0, 3, 1 << 20, "x")


def changed(path, before, after):
    data = path.read_bytes()
    assert before in data
    path.write_bytes(sealed(data.replace(before, after)))


@pytest.mark.parametrize("count", [3, 20])
@pytest.mark.parametrize("how", [{}, {"track_order": True}, {"libver": "latest"}, {"userblock_size": 512}], ids=str)
def test_attributes_that_state_too_much(tmp_path, how, count):
    """HDF5 allocates the length that an attribute states before it looks whether there are as many bytes."""
    path = tmp_path / "x"
    with h5py.File(path, "w", **how) as file:
        for number in range(count):
            file.attrs[f"text-{number}"] = f"some text {number}"
        file.attrs["lists"], file.attrs["numbers"] = ["a", "bb", "\N{GREEK SMALL LETTER ALPHA}" * 40], np.arange(3)
        file.attrs["nothing"] = h5py.Empty(h5py.string_dtype())
        file.attrs.create("vlen", np.array([np.arange(3)], object)[:0], (0,), h5py.vlen_dtype(np.int64))
    size = path.stat().st_size
    with h5py.File(path) as file:
        found = read_attributes(file, "x", size)
        assert found["text-2"] == "some text 2" and found["lists"][2] == "\N{GREEK SMALL LETTER ALPHA}" * 40
        assert set(found) == set(file.attrs)
    sound = path.read_bytes()
    for length in (11, 80):  # of a text, and of the longest of the list
        path.write_bytes(sound)
        with h5py.File(path) as file:
            heap = struct.pack("<Q", sound.index(b"GCOL") - how.get("userblock_size", 0))
        changed(path, struct.pack("<I", length) + heap, struct.pack("<I", 300_000_000) + heap)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with h5py.File(path) as file, pytest.raises(CorruptSourceError, match="states 300000000 bytes"):
            read_attributes(file, "x", size)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_names_of_attributes_that_are_not_unicode(tmp_path):
    with h5py.File(tmp_path / "x", "w") as file:
        file.attrs.create(b"caf\xe9", "a text")
        file.flush()
        assert read_attributes(file, "x", 1 << 20) == {"caf\\xe9": "a text"}


def test_attributes_that_cannot_be_proved(tmp_path):
    with h5py.File(tmp_path / "x", "w") as file:
        for number in range(300):
            file.attrs[f"{number}"] = "a"
        with pytest.raises(CorruptSourceError, match="300 attributes of any length"):
            read_attributes(file, "x", 1 << 20)
    with h5py.File(tmp_path / "y", "w") as file:
        file.attrs["reference"] = file.ref
        with pytest.raises(CorruptSourceError, match="the attribute 'reference' holds object, which is not read"):
            read_attributes(file, "y", 1 << 20)


def test_fill_values_of_texts(tmp_path):
    """HDF5 reads them, as long as they state to be, when it is asked how an array is stored."""
    for number, libver in enumerate(("earliest", "latest")):
        with h5py.File(tmp_path / str(number), "w", libver=libver) as file:
            made = [
                file.create_dataset(f"{at}", (5,), h5py.string_dtype(), **how)
                for at, how in enumerate(({}, {"chunks": (2,)}))
            ]
            filled = file.create_dataset("filled", (5,), h5py.string_dtype(), fillvalue="some text")
            numbers = file.create_dataset("numbers", (5,), "f4", fillvalue=7)
            file.flush()
            headers = Headers.of(tmp_path / str(number), "x")
            for array in (*made, numbers):
                check_storage(array.id, headers, "x", least=1 << 16, size=1 << 20)
            with pytest.raises(CorruptSourceError, match="has a fill value of object"):
                check_storage(filled.id, headers, "x", least=1 << 16, size=1 << 20)


def test_types_inside_types(tmp_path):
    """3,000 of them take h5py 2 GB."""
    kind = h5py.h5t.NATIVE_INT32
    with h5py.File(tmp_path / "x", "w") as file:
        for _ in range(20):
            kind = h5py.h5t.vlen_create(kind)
        file.flush()
        array = h5py.h5d.create(file.id, b"x", kind, h5py.h5s.create_simple((3,)))
        with pytest.raises(CorruptSourceError, match="x is of a type that is not read: too many types"):
            check_storage(array, Headers.of(tmp_path / "x", "x"), "x", least=1 << 16, size=1 << 20)
        twice = file.create_dataset("y", (2,), h5py.vlen_dtype(h5py.string_dtype()))
        with pytest.raises(CorruptSourceError, match="which is not read"):
            check_lengths(twice.id, 0, 2, 1 << 20, "y")


def test_chunks_that_claim_another_size(tmp_path):
    """HDF5 copies as much into the place of a chunk, whatever that takes."""
    with h5py.File(tmp_path / "x", "w") as file:
        file.create_dataset("x", (6,), "f4", chunks=(3,))[:] = 1
    changed(tmp_path / "x", struct.pack("<IIQ", 12, 0, 3), struct.pack("<IIQ", 1000, 0, 3))
    with (
        h5py.File(tmp_path / "x") as file,
        pytest.raises(CorruptSourceError, match=r"the chunk at \(3,\) claims 1000 bytes"),
    ):
        check_storage(file["x"].id, Headers.of(tmp_path / "x", "x"), "x", least=1 << 16, size=1 << 20)
