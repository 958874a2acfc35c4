"""Specs: what they state of values, and where TorchRL's are wrong. On random arguments: test_tensor_specs_of_torchrl.py."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from rbdata import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    Unbounded,
)
from rbdata.errors import MissingExtraError, RbdataError, SchemaError, UnknownKeyError, UsageError

INFINITE, NAN = math.inf, math.nan
SPECS = [
    Bounded([[-1, 0, 2]], [[1, 0.5, 3]], (2, 3)),
    Bounded(-3, 9, (2, 3), dtype=torch.int8),
    Bounded(torch.tensor([-INFINITE, 0, -INFINITE]), torch.tensor([0, INFINITE, INFINITE]), (2, 3)),
    Unbounded((2, 3)),
    Unbounded((2, 3), dtype=torch.int64),
    Unbounded((2, 3), dtype=torch.bool),
    Categorical(4, (2, 3)),
    Categorical(4, (2, 3), dtype=torch.float32),
    OneHot(3, (2, 3)),
    OneHot(3, (2, 3), dtype=torch.float32),
    MultiCategorical([2, 3, 4], (2, 3), dtype=torch.uint8),
    MultiOneHot([2, 1], (2, 3)),
    MultiOneHot([2, 1], (2, 3), dtype=torch.int64),
    Binary(shape=(2, 3)),
]
IDS = [f"{number}-{type(spec).__name__}" for number, spec in enumerate(SPECS)]
every_spec = pytest.mark.parametrize("spec", SPECS, ids=IDS)


@every_spec
def test_random_values(spec):
    torch.manual_seed(0)
    first = spec.rand((50,))
    assert first.shape == (50, 2, 3) and first.dtype == spec.dtype and spec.is_in(first) and spec.is_in(first[3])
    torch.manual_seed(0)
    assert torch.equal(spec.rand([50]), first) and spec.rand(5).shape == (5, 2, 3)
    assert spec.rand((0, 4)).shape == (0, 4, 2, 3) and spec.is_in(spec.rand((0,)))
    assert not spec.is_in(first[..., :1]) and not spec.is_in(first[0, 0])
    assert not spec.is_in(first.to(torch.float16)) and spec.is_in(spec.project(first.to(torch.float64)))


@every_spec
def test_expanded_and_moved(spec):
    torch.manual_seed(0)
    good = spec.rand((8,))
    bad = torch.where(torch.rand(8, 2, 3) < 0.1, (good.double() + 1).to(good.dtype), good)
    for shape in ((4, 2, 3), (2, -1, -1)):
        changed = spec.expand(*shape)
        assert changed.is_in(changed.rand()) and changed.dtype == spec.dtype
        for value in (*good, *bad):
            of = value.expand(*shape)
            assert changed.shape == of.shape and changed.is_in(of) == spec.is_in(value)
    assert spec == spec.clone() == pickle.loads(pickle.dumps(spec)) == spec.to(spec.dtype) == spec.to("cpu")
    assert spec.to(None) is spec and spec.to("meta").device.type == "meta"
    with pytest.raises(UsageError):
        spec.expand(3, 3)


@every_spec
def test_project(spec):
    torch.manual_seed(0)
    for value in (torch.randn(9, 2, 3).double() * 5, torch.randint(-9, 300, (9, 2, 3)), torch.rand(9, 2, 3) > 0.5):
        before = value.clone()
        projected = spec.project(value)
        assert spec.is_in(projected) and projected.shape == value.shape and torch.equal(value, before)
        assert spec.project(projected) is projected
    good = spec.rand()
    for wrong in (good.numpy(), good.tolist(), None, {"a": good}):
        with pytest.raises(UsageError):
            spec.is_in(wrong)
    for wrong in (torch.zeros(7), torch.zeros(2, 3, dtype=torch.complex64)):
        with pytest.raises(UsageError):
            spec.project(wrong)


# -- where TorchRL 0.14.1 is wrong -----------------------------------------------------------------------------------------


def test_is_in():
    """There: True, or an exception."""
    assert not Bounded(0, 1, (1,)).is_in(torch.rand(3))  # 1 is broadcast to 3
    assert not Bounded(0, 1, (3,)).is_in(torch.rand(2, 4))
    assert not OneHot(3, dtype=torch.int64).is_in(torch.tensor([-1, 2, 0]))
    assert not OneHot(2, dtype=torch.float32).is_in(torch.tensor([0.5, 0.5]))
    assert not Categorical(5, dtype=torch.float32).is_in(torch.tensor(2.5))
    assert not MultiCategorical([3]).is_in(torch.tensor(2)) and MultiCategorical([3]).rand().shape == (1,)
    assert not Bounded(0, 1, (2,)).is_in(torch.tensor([0, NAN])) and Unbounded(1).is_in(torch.tensor([NAN]))
    assert not Composite(a=Categorical(2)).is_in({}) and not Composite(a=Composite(b=Binary(2))).is_in(
        {"a": torch.ones(2)}
    )
    assert isinstance(Bounded(0, 1, (2,)).is_in(torch.rand(2)), bool)


def test_equality():
    """There bounds are compared by `isclose`, and a `Binary` is equal to a `Categorical`."""
    assert Bounded(0, 1_000_000, (2,), dtype=torch.int64) != Bounded(0, 1_000_001, (2,), dtype=torch.int64)
    assert Binary(2, dtype=torch.int64) != Categorical(2, (2,)) and Bounded(0, 1, (2,)) != Bounded(0, 1, (1, 2))
    assert Bounded(0, 1, 2) != Bounded(0, 1, 2, dtype=torch.float64) and Unbounded(2) != 3
    with pytest.raises(TypeError):
        hash(Unbounded(2))


def test_projections():
    """There values keep their dtype and NaN, whole numbers are changed in place, and rows of zeros raise."""
    assert torch.equal(
        Bounded(0, 3, (3,), dtype=torch.int64).project(torch.tensor([-1, 0.6, 9])), torch.tensor([0, 1, 3])
    )
    extreme = Bounded(-(2**63), 2**63 - 1, (2,), dtype=torch.int64)
    assert extreme.project(torch.tensor([-1e30, 1e30])).tolist() == [-(2**63), 2**63 - 1]
    assert Unbounded(1, dtype=torch.uint8).project(torch.tensor([300])).tolist() == [255]
    assert OneHot(3).project(torch.zeros(3)).sum() == 1
    largest = MultiOneHot([3, 2], dtype=torch.int64).project(torch.tensor([[0, 0.2, 0.1, -1, -2], [0, 1, 0, 0, 1]]))
    assert largest.tolist() == [[0, 1, 0, 1, 0], [0, 1, 0, 0, 1]]
    for spec in (Bounded(0, 1, 3), Categorical(2, (3,)), OneHot(3), Unbounded(3, dtype=torch.int8)):
        with pytest.raises(SchemaError, match="NaN"):
            spec.project(torch.tensor([0, NAN, 1]))


def test_distributions():
    """There large spans overflow, infinite bounds give NaN or infinity, and whole numbers are not negative."""
    torch.manual_seed(0)
    dice = Bounded(-1, 4, (), dtype=torch.int8).rand((6000,))
    assert dice.unique().tolist() == [-1, 0, 1, 2, 3, 4] and all(
        850 < (dice == one).sum() < 1150 for one in range(-1, 5)
    )
    for dtype in (torch.int8, torch.uint8, torch.int64):
        ends, drawn = torch.iinfo(dtype), Unbounded((), dtype=dtype).rand((4000,))
        share = (drawn.double() - ends.min) / (float(ends.max) - ends.min)
        assert all(800 < ((share >= low) & (share < low + 0.25)).sum() < 1200 for low in (0, 0.25, 0.5)), dtype
    assert {0, 255} <= set(Unbounded((), dtype=torch.uint8).rand((20000,)).tolist())
    near = Bounded(2**63 - 4, 2**63 - 1, (), dtype=torch.int64).rand((100,))
    assert set(near.tolist()) == {2**63 - 4, 2**63 - 3, 2**63 - 2, 2**63 - 1}
    large = torch.finfo(torch.float64).max
    wide = Bounded(-large, large, (), dtype=torch.float64).rand((1000,))
    assert wide.isfinite().all() and 400 < (wide > 0).sum() < 600
    half = Bounded(torch.tensor([0, -INFINITE, -INFINITE]), torch.tensor([INFINITE, 2, INFINITE])).rand((4000,))
    assert half.isfinite().all() and half[:, 2].std() > 0.9
    uniform = Bounded(-1, 3, (), dtype=torch.float16).rand((4000,)).float()
    assert abs(uniform.mean() - 1) < 0.1 and abs(uniform.std() - 4 / 12**0.5) < 0.05
    assert (Bounded(0.1, 0.1, (9,)).rand() == 0.1).all()


# -- arguments -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: Bounded(1, 0, (2,)),
        lambda: Bounded(NAN, 1, (2,)),
        lambda: Bounded(0, [1, 2, 3], (2,)),
        lambda: Bounded("a", 1, (2,)),
        lambda: Unbounded(-1),
        lambda: Unbounded(2.5),
        lambda: Unbounded("ab"),
        lambda: Unbounded((2, -1)),
        lambda: Unbounded(2, dtype="float32"),
        lambda: Unbounded(2, dtype=torch.complex64),
        lambda: Categorical(0),
        lambda: Categorical(2.5),
        lambda: Categorical(3, dtype=torch.bool),
        lambda: Categorical(257, dtype=torch.uint8),
        lambda: Categorical(300).to(torch.uint8),
        lambda: Categorical(2**12, dtype=torch.float16),
        lambda: OneHot(3, (3, 2)),
        lambda: OneHot(3, ()),
        lambda: MultiOneHot([2, 3], (4,)),
        lambda: MultiCategorical([2, 3], (3,)),
        lambda: MultiCategorical([0, 3]),
        lambda: MultiCategorical([]),
        lambda: Binary(),
        lambda: Binary(2, (3,)),
        lambda: Bounded(0, 0.5, 2).to(torch.int64),
        lambda: Composite(a=None),
        lambda: Composite(a=3),
        lambda: Composite(a=Unbounded(2), shape=(3,)),
        lambda: Composite(a=Unbounded(2))["b"],
        lambda: Composite(a=Unbounded(2))["a", "b"],
        lambda: Composite({"a": Unbounded(2), ("a", "b"): Unbounded(2)}),
        lambda: Composite({3: Unbounded(2)}),
        lambda: Composite(a=Unbounded(2)).project({}),
        lambda: Composite(a=Unbounded(2)).is_in(torch.zeros(2)),
    ],
)
def test_wrong_arguments(make):
    with pytest.raises((UsageError, KeyError)):
        make()


@pytest.mark.parametrize(
    "bounds", [(-1, 300), (0.5, 3), (0, INFINITE), (torch.tensor(-1), torch.tensor(5)), (np.float64(0), 1.5)]
)
def test_bounds_that_the_dtype_cannot_hold(bounds):
    with pytest.raises(RbdataError, match="cannot hold"):
        Bounded(bounds[0], bounds[1], (2,), dtype=torch.uint8)


def test_attributes():
    spec = Bounded([0, 1], np.array([[1], [2]]))
    assert (spec.shape, spec.dtype, spec.device) == ((2, 2), torch.float32, torch.device("cpu"))
    assert Bounded(0, 1).shape == ()
    assert spec.low.tolist() == [[0, 1]] * 2 and spec.space.high.tolist() == [[1, 1], [2, 2]] == spec.high.tolist()
    low, high = Unbounded(1, dtype=torch.uint8).space
    assert (low.item(), high.item()) == (0, 255) and OneHot(3).space.n == 3 == Categorical(3).n
    assert [box.n for box in MultiOneHot([2, 3]).space] == [2, 3] == [box.n for box in MultiCategorical([2, 3]).space]
    assert Bounded(0, 9, 2, dtype=torch.int64).to(torch.float32) == Bounded(0, 9, 2)
    assert Unbounded(np.array([2, 3])).shape == (2, 3) and Unbounded(np.int32(3)).shape == (3,)
    assert Unbounded(3).to(torch.int8) == Unbounded(3, dtype=torch.int8)
    assert repr(Bounded(0, 1, (3,))).startswith("Bounded(shape=torch.Size([3]), low=0.0, high=1.0, ")


def test_without_torchrl(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torchrl.data", None)
    for use in (Binary(2).to_torchrl, Composite().to_torchrl):
        with pytest.raises(MissingExtraError):
            use()


# -- Composite -----------------------------------------------------------------------------------------------------------


def nested(shape=()) -> Composite:
    inner = {"c": Categorical(3, shape), "d": {}}
    return Composite({"a": Bounded(0, 1, (*shape, 2)), "b": inner, ("e", "f"): OneHot(2, (*shape, 2))}, shape=shape)


def test_keys():
    spec = nested((4,))
    assert spec.keys() == list(spec) == ["a", "b", "e"] and len(spec) == 3
    assert spec.keys(True) == ["a", "b", ("b", "c"), ("b", "d"), "e", ("e", "f")]
    assert spec.keys(True, True) == ["a", ("b", "c"), ("e", "f")] and spec.keys(False, True) == ["a"]
    assert ("b", "c") in spec and "c" not in spec and ("a", "c") not in spec and 3 not in spec
    assert spec["b", "c"] == spec["b"]["c"] == Categorical(3, (4,))
    assert (
        spec["b"].shape == (4,)
        and spec["b", "d"] == Composite(shape=(4,))
        and [key for key, _ in spec.items()] == spec.keys()
    )
    spec["b", "d"] = Binary(shape=(4, 2))
    spec["g"] = {"h": Unbounded(4)}
    assert spec["b"].keys() == ["c", "d"] and spec["g", "h"] == Unbounded(4)
    with pytest.raises(UnknownKeyError, match="'x'"):
        spec["x"]
    with pytest.raises(UsageError):
        spec["y", "z"] = Unbounded(3)
    assert "y" not in spec


def test_values_of_composites():
    spec = nested((4,))
    value = spec.rand((3,))
    assert value.batch_size == (3, 4) and value["b"].batch_size == (3, 4)
    assert spec.is_in(value) and spec.is_in(value[0]) and not spec.is_in(value[0, 0]) and spec.is_in(value.to_dict())
    value["further"] = torch.zeros(3, 4)
    assert spec.is_in(value) and not spec.is_in(value.exclude(("e", "f"))) and spec.project(value) is value
    empty = Composite(a=Composite(b={}))
    assert empty.is_in({}) and empty.project({}) == {} and empty.rand().keys(True, False)
    wrong = value.clone()
    wrong["b", "c"] += 5
    with pytest.raises(SchemaError, match="not in Composite"):
        spec.assert_is_in(wrong)
    spec.assert_is_in(value)
    assert not spec.is_in({**value.to_dict(), "b": torch.zeros(3, 4)})
    fixed = spec.project(wrong)
    assert spec.is_in(fixed) and (wrong["b", "c"] >= 5).all() and (fixed["b", "c"] == 2).all() and "further" in fixed


def test_shapes_of_composites():
    spec = nested()
    batched = spec.expand(4, 5)
    assert batched == nested((4, 5)) != spec and batched.expand(2, 4, 5) == nested((2, 4, 5))
    outer = Composite(inner=nested(), shape=())
    assert Composite(inner=nested((4,)), shape=()).shape == () and outer["inner"].shape == ()
    with pytest.raises(UsageError):
        Composite(inner=Composite(a=Unbounded((3, 2))), shape=(4,))


def test_devices_and_dtypes_of_composites():
    spec = nested()
    assert spec.device is None and spec.rand().device is None and spec["b"].device is None
    moved = spec.to("cpu")
    assert moved.device == torch.device("cpu") == moved["b"].device == moved.rand().device and moved != spec
    assert moved.to("cpu") == moved and moved.to("meta")["a"].device.type == "meta"
    moved["g"] = Composite(h=Unbounded(2))
    assert moved["g"].device == torch.device("cpu")
    moved["i"] = Unbounded(2, device="meta")
    assert moved["i"].device == torch.device("cpu")
    assert spec.to(torch.float64)["b", "c"].dtype == torch.float64 and spec["b", "c"].dtype == torch.int64
    copied = spec.clone()
    copied["b", "c"] = Unbounded()
    assert spec["b", "c"] != Unbounded() and spec != copied and pickle.loads(pickle.dumps(spec)) == spec
    assert repr(Composite(a=Composite())) == (
        "Composite(\n    a: Composite(\n        device=None,\n        shape=torch.Size([])),\n"
        "    device=None,\n    shape=torch.Size([]))"
    )
