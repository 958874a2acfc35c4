"""HDF5 files that HDF5 itself would not come back from. Everything else is tested by whole conversions (D4RL, Minari)."""

from __future__ import annotations

import struct

import h5py
import numpy as np
import pytest
from rbdata.datasets.formats.hdf5_checks import check_storage, read_attributes
from rbdata.errors import CorruptSourceError


def written(path, texts=300):
    with h5py.File(path, "w") as file:
        file.create_dataset("texts", (texts,), h5py.string_dtype())[:] = [
            "a" * (number % 50) for number in range(texts)
        ]
        file.attrs["about"] = ["one", "two"]
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


def looked_through(path):
    with h5py.File(path) as file:
        check_storage(file["texts"].id, "x", least=0, size=path.stat().st_size)
        read_attributes(file, "x", path.stat().st_size)


@pytest.mark.parametrize("texts", [1, 300, 5000])
def test_sound_heaps(tmp_path, texts):
    looked_through(written(tmp_path / "x", texts))


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
                looked_through(path)


def test_a_crowd_of_heaps_inside_each_other(tmp_path):
    """Each is as long as the file is: looking through them takes no longer than through one."""
    head = b"GCOL\x01\0\0\0" + struct.pack("<Q", 4096)
    inner = struct.pack("<HHIQ", 1, 1, 0, 16) + head
    with h5py.File(tmp_path / "x", "w") as file:
        file["text"] = "a"
        file["crowd"] = np.frombuffer(inner * 2000, np.uint8)
    with h5py.File(tmp_path / "x") as file, pytest.raises(CorruptSourceError, match="the heap at byte"):
        check_storage(file["text"].id, "x", least=0, size=1 << 20)


def test_short_lengths_are_refused(tmp_path):
    properties = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    properties.set_sizes(8, 4)
    with h5py.File(h5py.h5f.create(bytes(tmp_path / "x"), fcpl=properties)) as file:
        file["texts"] = "a"
    with pytest.raises(CorruptSourceError, match="other than 8 bytes"):
        looked_through(tmp_path / "x")
