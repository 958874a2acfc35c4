"""Spaces as JSON and as leaves."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from minari.serialization import serialize_space
from rbdata.datasets.ingest.job import ConvertOptions
from rbdata.datasets.ingest.spaces import (
    TakenKeys,
    renamed,
    space_json,
    space_leaves,
    stored_dtype,
    text_rows,
    text_width,
)
from rbdata.datasets.ingest.trajectories import Column, TrajectoryWriter, cuts, schema_of, split_states
from rbdata.datasets.sources.minari.files import metadata_from
from rbdata.errors import CorruptSourceError, SchemaError, UsageError
from rbdata.storage.episodes import CUT, TERMINATED, TRUNCATED
from rbdata.storage.leaf import check_key
from rbdata.storage.writer import ColumnWriter
from space_strategies import ANY_SPACE
from text_rows import text_of


@settings(max_examples=150, deadline=None)
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


@settings(max_examples=100, deadline=None)
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


@settings(max_examples=100, deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8), size=st.integers(1, 20))
def test_cutting_and_joining_segments(lengths, size):
    lengths = np.array(lengths)
    states = np.concatenate([np.arange(n + 1) + 100 * e for e, n in enumerate(lengths)])
    outcomes = np.zeros(lengths.sum(), np.uint8)
    ends = np.cumsum(lengths) - 1
    outcomes[ends] = np.array([TERMINATED, TRUNCATED, CUT])[np.arange(len(lengths)) % 3]
    rewards = np.arange(lengths.sum(), dtype=np.float32)
    small = [Column("observation", "int64", (1,), "state"), Column("action", "int64", (), "step")]
    schema, bulk = schema_of(small)
    writer = TrajectoryWriter(ColumnWriter(None, schema), small)
    roots, successors = [], []
    for cut in cuts(lengths, size):
        here = slice(*cut.steps)
        rows = {"observation": states[slice(*cut.states)][:, None], "action": np.arange(*cut.steps)}
        root, after = split_states(rows["observation"], cut.lengths)
        roots.append(root)
        successors.append(after)
        flag = outcomes[here]
        writer.append(rows, cut.lengths, rewards[here], flag == TERMINATED, flag >= TRUNCATED, flag)
    expected = np.concatenate([np.arange(n) + 100 * e for e, n in enumerate(lengths)])
    assert bulk == () and np.array_equal(np.concatenate(roots)[:, 0], expected)
    assert np.array_equal(np.concatenate(successors)[:, 0], expected + 1)
    table = writer.episodes()
    assert np.array_equal(table.length, lengths) and np.array_equal(table.outcome, outcomes[ends])
    assert np.allclose(table.returns, [rewards[end - n + 1 : end + 1].sum() for end, n in zip(ends, lengths)])
    assert sum(writer.counts.values()) == len(lengths)


@pytest.mark.parametrize(
    ("terminated", "truncated", "outcome", "said"),
    [
        ([0, 1], [0, 0], [0, 0], "step 1 has terminated True, truncated False, outcome 0"),
        ([0, 0], [0, 0], [0, CUT], "step 1 has terminated False, truncated False"),
        ([1, 1], [0, 0], [0, TERMINATED], "step 0 has"),
        ([0, 1], [0, 0], [0, TRUNCATED], "step 1 has terminated True"),
        ([0, 0], [0, 1], [0, TERMINATED], "step 1 has terminated False, truncated True"),
        ([1, 0], [0, 0], [TERMINATED, 0], "the last 1 of 2 steps belong to an episode without an end"),
    ],
)
def test_flags_and_outcomes_that_disagree(terminated, truncated, outcome, said):
    small = [Column("observation", "int64", (1,), "state")]
    writer = TrajectoryWriter(ColumnWriter(None, schema_of(small)[0]), small)
    flags = (np.array(terminated, bool), np.array(truncated, bool), np.array(outcome, np.uint8))
    lengths = np.array([1, 1] if outcome[0] else [2])
    rows = {"observation": np.arange(lengths.sum() + len(lengths))[:, None]}
    with pytest.raises(SchemaError, match=said):
        writer.append(rows, lengths, np.zeros(2, np.float32), *flags)
        writer.episodes()


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
