"""tf.train.Example messages: against hand-made bytes, and against noise."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.datasets.formats.tfrecord import WireError, parse_example
from rlu_writer import blobs, block, example, floats, ints, varint

quick = settings(max_examples=examples(60), deadline=None)
numbers = st.integers(-(1 << 63), (1 << 64) - 1)
unknown = st.sampled_from(
    [
        b"",
        block(9, b"who knows"),
        varint(7 << 3) + varint(12345),
        varint(8 << 3 | 5) + b"four",
        varint(8 << 3 | 1) + b"eight888",
    ]
)


def wrapped(values: list[int]) -> list[int]:
    return [(value + (1 << 63)) % (1 << 64) - (1 << 63) for value in values]


@quick
@given(
    st.lists(numbers, max_size=40), st.lists(st.floats(width=32, allow_nan=False), max_size=40), st.booleans(), unknown
)
def test_numbers_packed_and_not(whole: list[int], real: list[float], packed: bool, more: bytes) -> None:
    found = parse_example(example({"a": ints(whole, packed) + more, "b": more + floats(real, packed)}) + more)
    assert np.asarray(found["a"]).tolist() == wrapped(whole)
    assert np.asarray(found["b"]).tolist() == real


@quick
@given(st.dictionaries(st.text(max_size=8), st.lists(st.binary(max_size=40), max_size=5), max_size=5))
def test_byte_strings_keep_every_byte(features: dict[str, list[bytes]]) -> None:
    found = parse_example(example({name: blobs(values) for name, values in features.items()}))
    assert {name: [bytes(value) for value in values] for name, values in found.items()} == features


def test_parts_of_a_list_are_joined_and_the_last_value_of_a_key_counts() -> None:
    mixed = block(3, block(1, varint(1) + varint(300))) + block(3, varint(1 << 3) + varint(7))
    assert np.asarray(parse_example(example({"a": mixed}))["a"]).tolist() == [1, 300, 7]
    entry = [block(1, block(1, b"a") + block(2, ints([value]))) for value in (5, 6)]
    assert np.asarray(parse_example(block(1, b"".join(entry)))["a"]).tolist() == [6]
    assert np.asarray(parse_example(example({"a": ints([1]) + floats([2.0])}))["a"]).tolist() == [2.0]


def test_empty_features() -> None:
    found = parse_example(example({"none": b"", "bytes": blobs([]), "ints": ints([]), "floats": floats([])}))
    assert [len(found[name]) for name in ("none", "bytes", "ints", "floats")] == [0, 0, 0, 0]
    assert parse_example(b"") == {}


def test_negative_and_unsigned() -> None:
    found = np.asarray(parse_example(example({"id": ints([-1, 1 << 63, (1 << 64) - 2, 5])}))["id"])
    assert found.tolist() == [-1, -(1 << 63), -2, 5]
    assert found.view(np.uint64).tolist() == [(1 << 64) - 1, 1 << 63, (1 << 64) - 2, 5]


@pytest.mark.parametrize(
    "data",
    [
        b"\x80",
        b"\x80" * 10 + b"\x01",
    ],
    ids=["no end", "eleven bytes"],
)
def test_bad_integers(data: bytes) -> None:
    with pytest.raises(WireError):
        parse_example(example({"a": block(3, block(1, b"\x01" + data))}))


@quick
@given(st.binary(max_size=200))
def test_noise_is_refused_or_read_but_never_worse(data: bytes) -> None:
    for payload in (data, block(1, data), block(1, block(1, data)), block(1, block(1, block(2, data)))):
        with contextlib.suppress(WireError):
            parse_example(payload)
