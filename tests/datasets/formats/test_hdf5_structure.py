"""HDF5 files that HDF5 itself would not come back from: heaps that lead back to themselves."""

from __future__ import annotations

import struct

import h5py
import numpy as np
import pytest
from rbdata.datasets.formats.hdf5_checks import check_structure
from rbdata.errors import CorruptSourceError


def written(path, texts=300):
    with h5py.File(path, "w") as file:
        file.create_dataset("texts", (texts,), h5py.string_dtype())[:] = [
            "a" * (number % 50) for number in range(texts)
        ]
        for number in range(20):
            file[f"group/{number}"] = number
        for number in range(10):
            del file[f"group/{number}"]
        file.create_dataset("packed", (200, 3), "f4", chunks=(1, 3), compression="gzip")[:] = 1
    return path


def heaps(data):
    """Where the global heaps are, and where the free space of each."""
    begin = data.find(b"GCOL")
    while begin >= 0:
        at, end = begin + 16, begin + struct.unpack_from("<Q", data, begin + 8)[0]
        while at + 16 <= end:
            number, _, _, size = struct.unpack_from("<HHIQ", data, at)
            if not number:
                yield begin, at
                break
            at += 16 + (size + 7 & ~7)
        begin = data.find(b"GCOL", begin + 1)


@pytest.mark.parametrize("texts", [1, 300, 5000])
def test_sound_heaps(tmp_path, texts):
    check_structure(written(tmp_path / "x", texts), "x")


def test_heaps_without_end(tmp_path):
    """HDF5 goes from object to object, and stays where one takes no bytes: a text is never read to its end."""
    sound = written(tmp_path / "x").read_bytes()
    places = list(heaps(sound))
    assert places
    for number, (begin, free) in enumerate(places):
        for at, size in ((free, 0), (begin + 16, (1 << 64) - 16), (begin + 16, 1 << 20)):
            path = tmp_path / f"{number}-{at}-{size}"
            path.write_bytes(sound[: at + 8] + struct.pack("<Q", size) + sound[at + 16 :])
            with pytest.raises(CorruptSourceError, match=f"the heap at byte {begin}"):
                check_structure(path, "x")


def test_a_crowd_of_heaps_inside_each_other(tmp_path):
    """Each is as long as the file is: looking through them takes no longer than through one."""
    head = b"GCOL\x01\0\0\0" + struct.pack("<Q", 4096)
    inner = struct.pack("<HHIQ", 1, 1, 0, 16) + head
    with h5py.File(tmp_path / "x", "w") as file:
        file["text"] = "a"
        file["crowd"] = np.frombuffer(inner * 2000, np.uint8)
    with pytest.raises(CorruptSourceError, match="the heap at byte"):
        check_structure(tmp_path / "x", "x")


def places(data, word):
    at = data.find(word)
    while at >= 0:
        yield at
        at = data.find(word, at + 1)


def changed(path, data, at, form, *values):
    data = bytearray(data)
    struct.pack_into(form, data, at, *values)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("block", [0, 512])
def test_names_without_end(tmp_path, block):
    """The free space in a heap of names is a list whose first entry leads to itself."""
    with h5py.File(tmp_path / "x", "w", userblock_size=block) as file:
        file["some/name"] = 1
    sound = (tmp_path / "x").read_bytes()
    check_structure(tmp_path / "x", "x")
    for number, at in enumerate(places(sound, b"HEAP")):
        _, free, address = struct.unpack_from("<QQQ", sound, at + 8)
        with pytest.raises(CorruptSourceError, match="where names are kept"):
            check_structure(changed(tmp_path / str(number), sound, block + address + free, "<Q", free), "x")


def test_short_lengths_are_refused(tmp_path):
    properties = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    properties.set_sizes(8, 4)
    with h5py.File(h5py.h5f.create(bytes(tmp_path / "x"), fcpl=properties)) as file:
        file["texts"] = "a"
    with pytest.raises(CorruptSourceError, match="of which only 8 are read"):
        check_structure(tmp_path / "x", "x")
