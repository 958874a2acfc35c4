"""Folders of TensorFlow Datasets: descriptions, and lists that are decoded when they are asked for."""

from __future__ import annotations

import json

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.datasets.formats.tfds import (
    TfdsFeature,
    parse_features,
    parse_info,
    read_values,
)
from rbdata.datasets.formats.tfrecord import (
    Lists,
    WireError,
    encode_example,
    encode_record,
    parse_example,
    read_records,
)
from rbdata.errors import CorruptSourceError
from rlds_tools import FIXTURES, image, sequence, several, steps, tensor, text
from rlu_writer import blobs, block, example, floats, framed, ints

quick = settings(max_examples=examples(40), deadline=None)


def test_what_the_writers_own_files_say():
    folder = FIXTURES / "toy_robot/0.1.0"
    info = parse_info((folder / "dataset_info.json").read_bytes(), "x")
    train = info.splits["train"]
    assert (info.name, info.version, train.lengths) == ("toy_robot", "0.1.0", [3, 3])
    assert sorted(train.files) == sorted(file.name for file in folder.glob("*.tfrecord*"))
    found = {one.name: one for one in parse_features((folder / "features.json").read_bytes(), "x").features}
    assert found["steps/observation/depth"] == TfdsFeature(
        "steps/observation/depth", True, "picture", "uint16", (8, 10, 1)
    )
    assert found["steps/observation/scan"].packed and found["steps/tokens"].items == -1
    assert found["episode_metadata/file_path"].kind == "text" and not found["episode_metadata/file_path"].in_steps


def test_other_names_of_files():
    split = {
        "name": "val",
        "shardLengths": ["1", "2"],
        "filepathTemplate": "{SPLIT}/part-{SHARD_INDEX}-{NUM_SHARDS}.{FILEFORMAT}",
    }
    info = parse_info(json.dumps({"name": "x", "splits": [split]}).encode(), "x")
    assert info.splits["val"].files == ["val/part-00000-00002.tfrecord", "val/part-00001-00002.tfrecord"]
    del split["filepathTemplate"]
    info = parse_info(json.dumps({"name": "x", "splits": [split]}).encode(), "x")
    assert info.splits["val"].files[1] == "x-val.tfrecord-00001-of-00002"


@pytest.mark.parametrize(
    "feature, why",
    [
        (sequence(text()), "sequence of texts"),
        (sequence(image(2, 2, 3)), "sequence of pictures"),
        (sequence(sequence(tensor("int32"))), "sequence of sequences"),
        (tensor("float32", None, None, encoding="zlib"), "not fixed"),
        (tensor("float32", 0, 3), "empty"),
        (tensor("complex64"), "complex64"),
        ({"audio": {}}, "sound"),
    ],
)
def test_what_has_no_rows_says_why(feature, why):
    data = json.dumps(several(steps=steps(observation=tensor("int32"), odd=feature), once=image(2, 2, 3))).encode()
    left_out = parse_features(data, "x").left_out
    assert why in left_out["steps/odd"] and "whole episode" in left_out["once"]


@quick
@given(
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=60),
    st.lists(st.floats(width=32, allow_nan=False), max_size=40),
    st.lists(st.binary(max_size=30), max_size=6),
)
def test_what_is_encoded_is_decoded(whole, real, some):
    """By the writer of `rbdata export`, and by hand."""
    by_hand = example({"whole": ints(whole), "real": floats(real), "some": blobs(some)})
    written = encode_example({"whole": np.array(whole, np.int64), "real": np.array(real, np.float64), "some": some})
    for lists in map(Lists, (by_hand, written)):
        assert np.asarray(lists.value("whole")).tolist() == whole
        assert np.asarray(lists.value("real")).tolist() == real
        assert lists.value("some") == some
        with pytest.raises(KeyError):
            lists.strings("other")
        for name, values, other in (("some", some, lists.numbers), ("whole", whole, lists.strings)):
            if values:  # an empty list has no kind
                with pytest.raises(WireError):
                    other(name)


def test_many_numbers_packed_or_not():
    data = example({"a": ints(range(1 << 15)), "b": ints([1] * 5000, False), "c": blobs([b""] * 5000)})
    found = parse_example(data)
    assert np.array_equal(found["a"], np.arange(1 << 15))
    assert (len(found["b"]), len(found["c"])) == (5000, 5000)


def test_values_that_are_not_what_they_are_said_to_be():
    feature = TfdsFeature("a", True, "numbers", "int8", (2,))
    for content, word in ((ints([1, 2, 3]), "3 numbers"), (ints([1, 200]), "200"), (floats([1.0, 2.0]), "float32")):
        with pytest.raises(CorruptSourceError, match=word):
            read_values(Lists(example({"a": content})), feature, "x")
    assert read_values(Lists(example({"a": block(3, b"")})), feature, "x").count == 0


def test_records_of_any_size():
    records = [b"", b"x" * 4000, b"y" * 10_000, b"", b"z"]
    data = b"".join(map(framed, records))
    assert [record.payload for record in read_records([data], "x")] == records
    assert b"".join(map(encode_record, records)) == data
