"""Spaces as JSON and as leaves."""

from __future__ import annotations

import json

import numpy as np
import pytest
from effort import examples
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from minari.serialization import serialize_space
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.ingest.spaces import (
    TakenKeys,
    renamed,
    space_json,
    space_leaves,
    stored_dtype,
    text_rows,
    text_width,
)
from rbdata.datasets.ingest.trajectories import Column, schema_of
from rbdata.datasets.sources.minari.metadata import metadata_from
from rbdata.errors import CorruptSourceError, SchemaError, UsageError
from rbdata.storage.leaf import check_key
from space_strategies import ANY_SPACE
from text_rows import text_of


@settings(max_examples=examples(150), deadline=None)
@given(space=ANY_SPACE, base=st.sampled_from(["observation", "action"]))
def test_any_space_gives_leaves_that_hold_its_values(space, base):
    record = space_json(space)
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    leaves, left_out = space_leaves(record, base)
    assert not left_out and len({leaf.key for leaf in leaves}) == len(leaves)
    space.seed(0)
    for _ in range(3):
        value = space.sample()
        for leaf in leaves:
            check_key(leaf.key)
            part = leaf.pick(value)
            if leaf.is_text:
                assert text_of(text_rows([part], leaf.shape[0], leaf.key)[0]) == part.rstrip("\0")
            else:
                row = np.asarray(part)
                assert np.can_cast(row.dtype, leaf.dtype, "safe")
                assert row.reshape(leaf.shape).shape == leaf.shape
            assert leaf.shape or base == "action"


@settings(max_examples=examples(100), deadline=None)
@given(space=ANY_SPACE)
def test_minaris_own_form_means_the_same(space):
    stated = json.dumps(serialize_space(space, to_string=False))
    assert metadata_from({"observation_space": stated}, "here").spaces["observation"] == space_json(space)


@pytest.mark.parametrize("stated", [10**400, -(10**400), 1 << 63, float("nan"), float("inf"), True, "3", None])
def test_numbers_that_count_nothing(stated):
    found = metadata_from({"total_steps": stated, "ref_min_score": stated, "ref_max_score": 1}, "here")
    assert found.steps is None
    assert found.reference_scores is None


def test_bounds():
    assert space_json(spaces.Box(-np.inf, np.inf, (2,)))["low"] == "-inf"
    assert space_json(spaces.Box(np.array([0, -np.inf], "f4"), np.array([1, 2], "f4")))["low"] == [0.0, "-inf"]
    assert space_json(spaces.Box(0, 255, (210, 160, 3), np.uint8))["high"] == 255
    ragged = np.arange(100 * 100, dtype=np.float32).reshape(100, 100)
    assert space_json(spaces.Box(-ragged - 1, ragged))["high"] is None


def test_keys_of_leaves():
    space = spaces.Dict({"a.b": spaces.Discrete(2), "shape": spaces.Tuple((spaces.Discrete(2), spaces.MultiBinary(3)))})
    leaves, _ = space_leaves(space_json(space), "observation")
    assert [leaf.key for leaf in leaves] == ["observation/a_b", "observation/shape_/0", "observation/shape_/1"]
    assert renamed(leaves) == {
        "observation/a_b": "observation/a.b",
        "observation/shape_/0": "observation/shape/0",
        "observation/shape_/1": "observation/shape/1",
    }
    with pytest.raises(SchemaError, match="both become"):
        both = spaces.Dict({"a.b": spaces.Discrete(2), "a_b": spaces.Discrete(2)})
        space_leaves(space_json(both), "observation")


def test_dtypes_that_no_leaf_has():
    assert stored_dtype("uint16", "x") == "int32" and stored_dtype(">f4", "x") == "float32"
    for dtype in ("uint64", "complex64", "U5"):
        with pytest.raises(UsageError, match="cannot hold exactly"):
            stored_dtype(dtype, "x")


@pytest.mark.parametrize(
    "space",
    [
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Graph(spaces.Discrete(2), None),
        spaces.OneOf((spaces.Discrete(2), spaces.Discrete(3))),
    ],
)
def test_spaces_without_rows_of_one_size(space):
    with pytest.raises(UsageError, match="cannot be stored"):
        space_json(spaces.Dict({"inner": space}))


def test_text():
    space = space_json(spaces.Text(5, charset="ab€"))
    assert text_width(space) == 15
    assert text_width({**space, "charset": None}) == 20
    leaves, _ = space_leaves(space, "observation")
    assert (leaves[0].dtype, leaves[0].shape) == ("uint8", (15,))
    assert space_leaves(space, "observation", "omit") == ([], {"observation": "text, left out as asked"})
    assert [text_of(row) for row in text_rows(["", "€a", "bbbbb"], 15, "x")] == ["", "€a", "bbbbb"]
    with pytest.raises(CorruptSourceError, match="a text of 6 bytes, its space allows 5"):
        text_rows(["aaaaaa"], 5, "x")
    with pytest.raises(UsageError, match="too long"):
        space_leaves(space_json(spaces.Text(100_000)), "observation")


def test_empty_boxes_are_left_out():
    space = spaces.Dict({"none": spaces.Box(0, 1, (0,)), "one": spaces.Box(0, 1, (1,))})
    leaves, left_out = space_leaves(space_json(space), "observation")
    assert [leaf.key for leaf in leaves] == ["observation/one"]
    assert left_out == {"observation/none": "its shape [0] is empty"}


# -- trajectories --------------------------------------------------------------------------------------------------


def test_layouts_of_large_columns():
    columns = [Column("observation/a", "uint8", (1024,), "state"), Column("observation/b", "uint8", (1023,), "state")]
    schema, bulk = schema_of(columns)
    assert bulk == ("observation/a",) and schema["observation/a"].codec == "zstd"
    assert schema["observation/b"].kind == "step" and "next/observation/b" in schema
    schema, bulk = schema_of(columns, layout="ted")
    assert bulk == ("observation/a", "next/observation/a") and not schema.states
    with pytest.raises(UsageError, match="ted"):
        ConvertOptions(layout="ted", codec="zstd")


@pytest.mark.parametrize(
    ("key", "clashes"),
    [("a", True), ("a/b", True), ("a/b/c", True), ("a/c", False), ("ab", False), ("d", True), ("", False)],
)
def test_keys_that_are_taken(key, clashes):
    taken = TakenKeys(["a/b", "d"])
    assert (key in taken) == clashes
    taken.add(key)
    assert key in taken
