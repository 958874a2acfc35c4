"""Specs on random arguments and values, against TorchRL's own. Where these are wrong is in test_tensor_specs.py."""

from __future__ import annotations

import numpy as np
import rbdata
import torch
import torchrl.data
from effort import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

KINDS = ["Bounded", "Unbounded", "Categorical", "OneHot", "MultiCategorical", "MultiOneHot", "Binary"]
NUMBERS = [torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8, torch.int8]
WHOLE = [torch.int64, torch.int32, torch.uint8]
SHAPES = st.lists(st.integers(1, 3), max_size=2).map(tuple)


@st.composite
def arguments(draw, kind=None, shape=None):
    """The name of a class, and arguments for it."""
    kind = kind or draw(st.sampled_from(KINDS))
    front = draw(SHAPES) if shape is None else shape
    if kind in ("Bounded", "Unbounded"):
        dtype = draw(st.sampled_from(NUMBERS))
        size = (*front, *draw(SHAPES))
        given = {"shape": size, "dtype": dtype}
        if kind == "Bounded":
            pairs = st.tuples(st.integers(0, 5), st.integers(0, 5)).map(sorted)
            bounds = [draw(pairs) for _ in range(int(np.prod(size, dtype=int)))]
            for place, name in enumerate(("low", "high")):
                given[name] = torch.tensor([bound[place] for bound in bounds]).reshape(size).to(dtype)
        return kind, given
    if kind == "Binary":
        return kind, {"shape": (*front, *draw(SHAPES)), "dtype": draw(st.sampled_from([torch.int8, torch.bool]))}
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    of = {"n": counts[0]} if kind in ("Categorical", "OneHot") else {"nvec": counts}
    last = {"Categorical": (), "OneHot": counts[:1], "MultiCategorical": [len(counts)], "MultiOneHot": [sum(counts)]}
    if kind == "MultiCategorical":  # TorchRL makes numbers of a single one
        assume(len(counts) > 1 or front)
    given = {**of, "shape": (*front, *last[kind]), "dtype": draw(st.sampled_from(WHOLE))}
    return kind, given


def make(described, of):
    return getattr(of, described[0])(**described[1])


def both(described):
    return make(described, rbdata), make(described, torchrl.data)


FEW = settings(max_examples=examples(60), deadline=None)


@FEW
@given(described=arguments(), shape=SHAPES)
def test_values_of_each_are_in_the_other(described, shape):
    ours, theirs = both(described)
    assert (ours.shape, ours.dtype, ours.device) == (theirs.shape, theirs.dtype, theirs.device)
    drawn = ours.rand(shape)
    assert ours.is_in(drawn) and theirs.is_in(drawn) and ours.is_in(theirs.rand(shape))
    assert drawn.shape == (*shape, *ours.shape) and drawn.dtype == ours.dtype
    assert torch.equal(ours.zero(shape), theirs.zero(shape)) and torch.equal(ours.one(shape), theirs.one(shape))
    assert ours.domain == theirs.domain
    if hasattr(theirs, "n"):
        assert ours.n == theirs.n


@FEW
@given(described=arguments(), data=st.data())
def test_values_near_the_spec(described, data):
    """`is_in` and `project` of numbers around the allowed ones."""
    ours, theirs = both(described)
    front = data.draw(SHAPES)
    value = torch.randint(-1, 6, (*front, *ours.shape))
    if "OneHot" in described[0] or ours.dtype == torch.bool:
        value = torch.randint(0, 2, value.shape)
    elif ours.dtype == torch.uint8:
        value = value.clamp(0)
    value = value.to(ours.dtype)
    before = value.clone()
    assert ours.is_in(value) == theirs.is_in(value)
    assert not ours.is_in(value.to(torch.int16))
    projected = ours.project(value)
    assert ours.is_in(projected) and projected.shape == value.shape and torch.equal(value, before)
    if ours.is_in(value):
        assert projected is value
    elif "OneHot" not in described[0]:
        assert torch.equal(projected, theirs.project(value.clone()))
    assert not ours.shape or not ours.is_in(torch.zeros(7, dtype=ours.dtype).expand(*ours.shape[:-1], 7))


CHANGES = {
    "expand": lambda spec: spec.expand(2, 3, *spec.shape),
    "clone": lambda spec: spec.clone(),
    "float64": lambda spec: spec.to(torch.float64),
    "cpu": lambda spec: spec.to("cpu"),
}


@settings(max_examples=examples(120), deadline=None)
@given(described=arguments(), change=st.sampled_from(list(CHANGES)))
def test_changes(described, change):
    ours, theirs = both(described)
    if described[0] == "MultiCategorical":  # TorchRL: of other sizes after most changes
        assume(change in ("clone", "expand"))
    assume(not (described[0] == "Binary" and not ours.shape))
    changed, expected = CHANGES[change](ours), CHANGES[change](theirs)
    assert changed.shape == expected.shape and changed.dtype == expected.dtype
    assert changed.to_torchrl() == expected
    assert expected.is_in(changed.rand((2,))) and changed.is_in(expected.rand((2,)))


@FEW
@given(first=arguments(), second=arguments(), same=st.booleans())
def test_equality(first, second, same):
    ours, theirs = both(first)
    other, others = both(first if same else second)
    if type(ours) is type(other):
        assert (ours == other) == bool(theirs == others)
    else:
        assert ours != other
    assert ours == ours.clone()
    assert bool(ours.to_torchrl() == theirs) and ours != theirs


@st.composite
def trees(draw, shape, depth=2):
    """Keys with arguments of specs, or nested ones."""
    inner = st.one_of(arguments(shape=shape), *([trees(shape, depth - 1)] * (depth > 0)))
    return draw(st.dictionaries(st.sampled_from("abcd"), inner, max_size=3))


def grown(tree, shape, of):
    specs = {key: grown(one, shape, of) if isinstance(one, dict) else make(one, of) for key, one in tree.items()}
    return of.Composite(specs, shape=shape)


@FEW
@given(data=st.data(), shape=SHAPES, more=SHAPES)
def test_composites(data, shape, more):
    tree = data.draw(trees(shape))
    ours, theirs = grown(tree, shape, rbdata), grown(tree, shape, torchrl.data)
    for nested in (False, True):
        for leaves in (False, True):
            assert set(ours.keys(nested, leaves)) == set(theirs.keys(nested, leaves))
    assert (ours.shape, ours.device, len(ours)) == (theirs.shape, None, len(theirs))
    value = ours.rand(more)
    assert isinstance(value, TensorDict) and value.shape == (*more, *shape) and value.device is None
    assert ours.is_in(value) and theirs.is_in(value) and ours.is_in(theirs.rand(more)) and ours.project(value) is value
    assert ours.domain == theirs.domain
    found, expected = ours.one(more), theirs.one(more)
    assert found.shape == expected.shape and all(
        torch.equal(found[key], expected[key]) for key in ours.keys(True, True)
    )
    assert ours.to_torchrl() == theirs and ours == ours.clone()
    changed, expected = ours.expand(2, *shape), theirs.expand(2, *shape)
    assert changed.to_torchrl() == expected
    for key in ours.keys(True, True):
        without = value.exclude(key)
        assert not ours.is_in(without)
        if ours[key].dtype != torch.bool and "Unbounded" not in type(ours[key]).__name__:
            outside = value.clone()
            outside[key] = outside[key] * 0 + 7
            assert not ours.is_in(outside) and not theirs.is_in(outside)
            projected = ours.project(outside)
            assert ours.is_in(projected) and (outside[key] == 7).all() and projected.shape == value.shape
