"""Descriptions of types as HDF5 writes them, and a few that it does not."""

from __future__ import annotations

import struct

import h5py
import numpy as np
import pytest
from rbdata.datasets.formats.hdf5_headers import read_type

INSIDE = [("a", "i2"), ("long name", "f4", (2, 3)), ("c", h5py.string_dtype()), ("d", "S3")]
KINDS = [
    *("?", "u1", ">i8", "f2", ">f4", "f8", "g", "c8", "S7", "V5", "3i4"),
    h5py.string_dtype(),
    h5py.vlen_dtype("u1"),
    h5py.vlen_dtype(h5py.string_dtype()),
    h5py.enum_dtype({"a": 1, "b": 2}, "i2"),
    h5py.ref_dtype,
    h5py.regionref_dtype,
    np.dtype(INSIDE),
    np.dtype([("x", INSIDE, (2,)), ("y", "?")], align=True),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_sound_types(kind):
    made = h5py.h5t.py_create(np.dtype(kind), logical=True)
    data = made.encode()
    assert read_type(data, 2, in_file=False) == (made.get_size(), len(data))


@pytest.mark.parametrize(
    ("kind", "at", "form", "value"),
    [
        ("f4", 1, "B", 1 << 7),  # a bit of no meaning
        ("f4", 0, "B", 0x1E),  # a class of no meaning
        ("f4", 10, "H", 33),  # bits of a number of 32
        ("f4", 2, "B", 200),  # where its sign is
        ("f4", 4, "I", 0),
        ("i4", 4, "I", 1 << 20),
        ("3i4", 4, "I", 400),  # bytes of 3 numbers
        ("S7", 1, "B", 5),
        (h5py.vlen_dtype("u1"), 1, "B", 2),
        (h5py.vlen_dtype("u1"), 4, "I", 7),
        (h5py.string_dtype(), 1, "B", 0x41),
        (h5py.enum_dtype({"a": 1}, "i2"), 4, "I", 4),
        (h5py.enum_dtype({"a": 1}, "i2"), 1, "H", 900),
        (np.dtype([("a", "i2"), ("b", "i2")]), 4, "I", 3),
        (np.dtype([("a", "i2")]), 1, "H", 0),
        (h5py.ref_dtype, 4, "I", 9),
    ],
)
def test_damaged_types(kind, at, form, value):
    data = bytearray(h5py.h5t.py_create(np.dtype(kind), logical=True).encode())
    struct.pack_into("<" + form, data, 2 + at, value)
    with pytest.raises((ValueError, struct.error, IndexError)):
        read_type(bytes(data), 2, in_file=False)
