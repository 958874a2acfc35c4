"""Pickles of arrays and plain values are read as Python reads them; nothing that they name is ever called."""

from __future__ import annotations

import io
import os
import pickle
import struct
from datetime import date
from fractions import Fraction

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rbdata.datasets.formats.numpy_pickle import read_pickle
from rbdata.errors import CorruptSourceError

_DTYPES = st.one_of(
    arrays.boolean_dtypes(),
    arrays.integer_dtypes(),
    arrays.unsigned_integer_dtypes(),
    arrays.floating_dtypes(sizes=(16, 32, 64)),
)
_ARRAYS = _DTYPES.flatmap(
    lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)
_PLAIN = st.one_of(
    *(st.none(), st.booleans(), st.floats(), st.text(max_size=300), st.binary(max_size=300)),
    st.integers(-(2**100), 2**100),
)
_VALUES = st.recursive(
    _ARRAYS | _PLAIN,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(max_size=9), inner, max_size=5)
        | st.tuples(inner, inner, inner, inner)
    ),
    max_leaves=8,
)


def same(found, wanted):
    """Whether two values are the same to the last bit, with the same types."""
    if isinstance(wanted, np.ndarray):
        return found.dtype == wanted.dtype and found.shape == wanted.shape and found.tobytes() == wanted.tobytes()
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(same(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, (list, tuple)):
        return type(found) is type(wanted) and len(found) == len(wanted) and all(map(same, found, wanted))
    return type(found) is type(wanted) and (found == wanted or (found != found and wanted != wanted))


def read(data):
    return read_pickle(io.BytesIO(data), "p")


@given(_VALUES, st.sampled_from([3, 4, 5]))
def test_what_python_reads(value, protocol):
    assert same(read(pickle.dumps(value, protocol)), value)


def test_an_object_array_of_one_value_is_that_value():
    """As ``numpy.save`` pickles a dictionary."""
    found = read(pickle.dumps(np.array({"a": np.arange(3), "f": np.asfortranarray(np.eye(3, 2))}), 4))
    assert np.array_equal(found["a"], np.arange(3)) and np.array_equal(found["f"], np.eye(3, 2))


class Hostile:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    "value",
    [
        Hostile(os.system, "touch hostile"),
        Hostile(eval, "open('hostile', 'w')"),
        Hostile(np.load, "hostile"),
        Hostile(np.ndarray, (1 << 40,)),
        Fraction(1, 3),
        date(2020, 1, 1),
        {1, 2},
        np.array([{}, os.getcwd], object),
        np.zeros(2, [("x", "f4")]),
        np.array(["text"]),
        np.datetime64("2020-01-01"),
        1j,
    ],
    ids=["system", "eval", "load", "huge", "Fraction", "date", "set", "objects", "fields", "texts", "time", "complex"],
)
def test_what_is_no_array_and_no_plain_value_is_refused(value, protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CorruptSourceError, match=r"^hostile\.npy "):
        read_pickle(io.BytesIO(pickle.dumps({"observations": value}, protocol)), "hostile.npy")
    assert not list(tmp_path.iterdir())


def test_a_name_that_is_asked_for_is_in_the_message():
    with pytest.raises(CorruptSourceError, match=r"asks for posix\.system, which is never called"):
        read(pickle.dumps(Hostile(os.system, "true"), 4))


def program(*parts):
    return b"\x80\x04" + b"".join(parts) + b"."


@pytest.mark.parametrize(
    "data",
    [
        program(b"B" + struct.pack("<I", 1 << 31)),  # bytes that do not come
        program(b"\x8e" + struct.pack("<Q", 1 << 62)),
        program(b"X" + struct.pack("<I", 1 << 30)),
        program(b"]\x94", b"h\x00a" * 3),  # a list that holds itself
        program(
            b"]\x94", *(b"](" + b"h" + bytes([depth]) + b"h" + bytes([depth]) + b"e\x94" for depth in range(40))
        ),  # 2**40 lists
        program(b"}]Ns"),  # a list as a key
        program(b"a"),
        program(b"\x87"),
        program(b"h\x07"),
        program(b"Nb"),
        program(b"cnumpy\nndarray\n"),  # a name alone
        program(b"cnumpy\ndtype\n(X\x02\x00\x00\x00f4\x89\x88tR"),
        program(b"c" + b"x" * 5000),
        program(b"e"),  # no mark
        program(b"cnumpy.core.multiarray\nscalar\n(K\x01tR"),
        program(b"cnumpy.core.multiarray\n_reconstruct\n)R(K\x01K\x02tb"),
        b"",
        b"\x80",
        pickle.dumps([1, 2], 4)[:-1],
    ],
    ids=range(19),
)
def test_damaged_and_endless_pickles(data):
    with pytest.raises(CorruptSourceError, match=r"^p "):
        read(data)


@given(st.data(), st.sampled_from([3, 4, 5]))
def test_damage_is_an_error_or_another_value(data, protocol):
    whole = bytearray(pickle.dumps({"a": np.arange(6, dtype=np.int32), "b": [1, "x", None, 2.5]}, protocol))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        read(bytes(whole))
    except CorruptSourceError as error:
        assert str(error).startswith("p ")


@pytest.mark.parametrize("shape", [(3,), (2, 4), (-1, 3), ("x",), 6, (True, 6), (1 << 70,)])
def test_arrays_whose_bytes_and_shape_disagree(shape):
    data = pickle.dumps(np.arange(6, dtype=np.uint8), 4)
    changed = data.replace(b"K\x06\x85\x94", pickle.dumps(shape, 2)[2:-1])
    assert changed != data
    with pytest.raises(CorruptSourceError, match=r"^p "):
        read(changed)
