"""HDF5 files in which HDF5 itself gets lost: an error that names the file, within limits of time and memory.

What is refused by name is tested by whole conversions (D4RL, Minari).
"""

from __future__ import annotations

import random
import struct

import h5py
import numpy as np
import pytest
from d4rl_truth import make, to_dataset, write
from hdf5_mutations import change_structures, lookup3, sealed, tables_of_chunks, write_of_every_kind
from rbdata.datasets.formats.hdf5 import attributes
from rbdata.datasets.ingest.raw_files import hdf5_names
from rbdata.errors import CorruptSourceError

LATER = {"libver": "latest", "track_order": True}


def written(path, **how):
    """A D4RL file with texts, attributes and a group of many members."""
    write(path, make([3, 4], ["terminal", "terminal"]))
    with h5py.File(path, "a", **how) as file:
        file["metadata/texts"] = ["a" * number for number in range(5)]
        file.attrs["text"], file.attrs["list"] = "some text", ["a", "bb" * 40]
        file["infos/packed"] = np.zeros((7, 3))
    return path


def places(data, word):
    at = data.find(word)
    while at >= 0:
        yield at
        at = data.find(word, at + 1)


def put(data, at, form, *values):
    data = bytearray(data)
    struct.pack_into("<" + form, data, at, *values)
    return sealed(data)


def survived(path, root):
    """Whether a file is read; the process that asks lives on, and the error names the file."""
    try:
        return len(to_dataset(path, root, procs=1)) == 7
    except CorruptSourceError as error:
        assert path.name in error.message
        return False


def test_texts_that_state_gigabytes(tmp_path):
    """HDF5 allocates what is stated before it looks whether there are as many bytes."""
    path = written(tmp_path / "raw" / "x.hdf5")
    data = path.read_bytes()
    heap = struct.pack("<Q", data.index(b"GCOL"))
    for length in (4, 9, 80):  # of the longest in the array, and of the attributes
        at = data.index(struct.pack("<I", length) + heap)
        path.write_bytes(put(data, at, "I", 4_000_000_000))
        assert not survived(path, tmp_path)


def test_types_that_end_the_process(tmp_path):
    """Values of any length that are neither a text nor a sequence: HDF5 calls a function that is not there."""
    path = tmp_path / "raw" / "x.hdf5"
    write(path, make([3, 4], ["terminal", "terminal"]))
    with h5py.File(path, "a") as file:
        file.create_dataset("metadata/x", (3,), h5py.vlen_dtype("u1"))[:] = [np.arange(3, dtype="u1")] * 3
    data = path.read_bytes()
    at = data.index(struct.pack("<BBBBI", 0x19, 0, 0, 0, 16))
    for bits in (2, 8):
        path.write_bytes(put(data, at + 1, "B", bits))
        survived(path, tmp_path / str(bits))


def test_trees_that_lead_back_to_themselves(tmp_path):
    path = written(tmp_path / "raw" / "x.hdf5")
    data = path.read_bytes()
    for number, at in enumerate(places(data, b"TREE")):
        child = at + 24 + (8 if not data[at + 4] else 32)
        path.write_bytes(put(put(data, at + 5, "B", 1), child, "Q", at))
        survived(path, tmp_path / str(number))


@pytest.mark.parametrize("how", [{}, LATER], ids=str)
def test_structures_with_wrong_numbers(tmp_path, how):
    """Fields of headers, trees, heaps and tables of chunks, with the right checksums; the campaign tries a million."""
    arrays = make([3, 4], ["terminal", "terminal"])
    sound = write_of_every_kind(tmp_path / "sound.hdf5", arrays, "infos", **how)
    data, rng, path = sound.read_bytes(), random.Random(str(how)), tmp_path / "raw" / "x.hdf5"
    path.parent.mkdir()
    for number in range(6):
        path.write_bytes(change_structures(rng, data))
        survived(path, tmp_path / str(number))
    path.write_bytes(data)
    assert survived(path, tmp_path / "sound")


@pytest.mark.parametrize("length", (16, 48, 112))
def test_files_that_end_in_their_superblock(tmp_path, length):
    path = written(tmp_path / "raw" / "x.hdf5")
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CorruptSourceError, match="not a whole HDF5 file"):
        to_dataset(path, tmp_path, procs=1)


def test_names_in_a_file(tmp_path):
    path = written(tmp_path / "x.hdf5")
    assert {"observations", "rewards", "text", "list"} <= hdf5_names(path).keys()
    data = path.read_bytes()
    path.write_bytes(data[:500])
    assert hdf5_names(path) == {} == hdf5_names(tmp_path / "nothing")


def test_names_of_attributes_that_are_not_unicode(tmp_path):
    with h5py.File(tmp_path / "x", "w") as file:
        file.attrs.create(b"caf\xe9", "a text")
        assert attributes(file) == {"caf\\xe9": "a text"}


def test_the_mutations_seal_what_they_change(tmp_path):
    """The checksum of Jenkins' own test, and all of a file that HDF5 wrote; tables of chunks are found where HDF5 puts them."""
    arrays = {name: np.zeros((9, 3), "f4") for name in "abcdefg"}
    data = write_of_every_kind(tmp_path / "later", arrays, "groups", **LATER).read_bytes()
    assert lookup3(b"Four score and seven years ago") == 0x17770551 and sealed(data) == data
    with h5py.File(tmp_path / "x", "w", libver="latest") as file:
        for name, most in (("fixed", 700), ("growing", None)):
            file.create_dataset(name, (700,), "f4", chunks=(1,), maxshape=(most,), compression="gzip")[:] = 1
    data = (tmp_path / "x").read_bytes()
    found = [data[at : at + 4] for at, _ in tables_of_chunks(data)]
    assert all(found.count(word) == data.count(word) for word in (b"FADB", b"EAIB", b"EADB", b"EASB"))
