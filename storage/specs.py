"""The spaces of a dataset as specs and as Gymnasium's spaces. The classes of specs are in `tensor_specs`.

Box                  Bounded, Unbounded where it has no bounds
Discrete             Categorical (OneHot); Bounded where it does not start at 0
MultiDiscrete        MultiCategorical (MultiOneHot); Bounded where it does not start at 0 or has more dimensions
MultiBinary, bool    Binary
done and the like    Categorical(2) of bool, as environments have it
Text                 Unbounded, uint8: the bytes of the text
Dict, Tuple          Composite
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..errors import MissingExtraError, RbdataError, SchemaError, UnknownKeyError, UsageError
from .amounts import size as amount
from .bounds import LeafBounds, Space, basic_spaces, leaf_bounds, limits
from .leaf import Leaf
from .manifest import Manifest
from .schema import FLAGS, Schema
from .tensor_specs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
    Unbounded,
)

if TYPE_CHECKING:
    import gymnasium

#: The number of values of a Discrete space that does not state it: one more than the largest value of the named leaf.
Count = Callable[[str], int]
#: Limit of the bytes of one step's values: a spec takes four times as many.
LARGEST_STEP = 64 << 20


def make_spec(manifest: Manifest, count: Count, categorical: bool = True) -> Composite:
    """Return a Composite of shape ``[]``: the specs of one step, by TED key. See `Dataset.make_spec`."""
    _check_step(manifest.schema)
    made = Composite()
    for bounds in leaf_bounds(manifest.schema, manifest.spaces).values():
        spec = _leaf_spec(_counted(bounds, count), categorical)
        for key in bounds.leaf.names:
            made[tuple(key.split("/"))] = spec.clone()
    return made


def _check_step(schema: Schema) -> None:
    size = sum(leaf.row_bytes for leaf in schema)
    if size > LARGEST_STEP:
        message = f"the values of one step take {amount(size)}: spaces, which hold limits of each, are not made of them"
        raise SchemaError(message)


def _counted(bounds: LeafBounds, count: Count) -> LeafBounds:
    """The bounds, with an upper one added for a Discrete space that states none."""
    if bounds.low is None or bounds.high is not None:
        return bounds
    last = np.array(max(count(bounds.leaf.name) - 1, int(bounds.low)), bounds.low.dtype)
    return LeafBounds(bounds.leaf, bounds.space, bounds.low, last)


def _leaf_spec(bounds: LeafBounds, categorical: bool) -> TensorSpec:
    leaf, counts = bounds.leaf, bounds.counts
    shape, dtype = torch.Size(leaf.shape), getattr(torch, leaf.dtype)
    if leaf.dtype == "bool" and leaf.key[-1] in FLAGS:
        return Categorical(2, shape=shape, dtype=dtype)
    if leaf.dtype == "bool" or bounds.space.get("type") == "MultiBinary":
        return Binary(shape=shape, dtype=dtype)
    if counts and bounds.space["type"] == "Discrete":
        return Categorical(counts[0], shape=shape, dtype=dtype) if categorical else OneHot(counts[0], dtype=torch.int64)
    if counts:
        return MultiCategorical(counts, dtype=dtype) if categorical else MultiOneHot(counts, dtype=torch.int64)
    if bounds.low is None or bounds.high is None:
        return Unbounded(shape=shape, dtype=dtype)
    return Bounded(bounds.low, bounds.high, shape=shape, dtype=dtype)


# -- Gymnasium -----------------------------------------------------------------------------------------------------------


def gymnasium_space(manifest: Manifest, base: str, count: Count) -> gymnasium.Space:
    """Return the space of ``base`` that the source states; otherwise boxes of the leaves' dtypes and shapes.

    Raises MissingExtraError without gymnasium, UnknownKeyError without such leaves, SchemaError for malformed spaces.
    """
    try:
        from gymnasium import spaces
    except ImportError as error:
        raise MissingExtraError("spaces need gymnasium", hint="pip install gymnasium") from error

    _check_step(manifest.schema)
    bounds = leaf_bounds(manifest.schema, manifest.spaces)
    whole: Any = manifest.spaces[base] if base in manifest.spaces else _boxes(manifest.schema, base)
    leaves = {one.path: bounds.get(one.key) for one in basic_spaces(whole, base)}

    def build(space: Space, path: tuple[str | int, ...]) -> Any:
        if space["type"] == "Dict":
            return spaces.Dict({key: build(one, (*path, key)) for key, one in space["spaces"].items()})
        if space["type"] == "Tuple":
            return spaces.Tuple([build(one, (*path, index)) for index, one in enumerate(space["spaces"])])
        found = leaves[path]
        return _basic(space, found.leaf if found else None, count, "/".join([base, *map(str, path)]))

    return build(whole, ())


def _boxes(schema: Schema, base: str) -> Space:
    """The space of the leaves at and below a key in JSON form, without bounds."""
    spaces: dict[str, Any] = {}
    for leaf in schema:
        level = spaces
        for part in leaf.key[:-1]:
            level = level.setdefault(part, {"type": "Dict", "spaces": {}})["spaces"]
        level[leaf.key[-1]] = {"type": "Box", "dtype": leaf.dtype, "shape": list(leaf.shape)}
    if base not in spaces:
        raise UnknownKeyError(f"there is no leaf {base!r}", hint=f"there are {', '.join(schema.names)}")
    return spaces[base]


def _basic(space: Space, leaf: Leaf | None, count: Count, name: str = "") -> gymnasium.Space:
    """A basic space. ``leaf`` holds its values; None if they were left out of the dataset."""
    from gymnasium import spaces

    name = leaf.name if leaf else name
    kind = space["type"]
    try:
        if kind == "Text":
            charset = space.get("charset")
            more = {} if charset is None else {"charset": charset}
            return spaces.Text(int(space["max_length"]), min_length=int(space["min_length"]), **more)
        if kind == "MultiBinary":
            size = space["shape"]
            return spaces.MultiBinary(size if len(size) > 1 else size[0])
        dtype = np.dtype(space.get("dtype", "int64"))
        shape = np.shape(space["nvec"]) if kind == "MultiDiscrete" else tuple(space.get("shape", ()))
        if math.prod(shape) * dtype.itemsize > LARGEST_STEP:
            raise SchemaError(f"{name}: a space of shape {str(shape)[:80]} is too large")
        low, high = limits(space, dtype.name, shape, name)
        if kind == "Discrete" and low is not None:
            if high is None and leaf is None:
                message = f"{name}: the number of its values is not stated, and its values are not in the dataset"
                raise UsageError(message)
            n = int(high) - int(low) + 1 if high is not None else max(1, count(name) - int(low))
            return spaces.Discrete(n, start=int(low))
        if low is None or high is None:
            raise UsageError(f"{name}: there is no {kind} space in Gymnasium")
        if kind == "MultiDiscrete":
            return spaces.MultiDiscrete(high - low + 1, dtype=dtype.type, start=np.broadcast_to(low, shape))
        return spaces.Box(np.broadcast_to(low, shape), np.broadcast_to(high, shape), dtype=dtype.type)
    except RbdataError:
        raise
    except (AssertionError, LookupError, TypeError, ValueError, OverflowError, SyntaxError) as error:
        raise SchemaError(f"{name}: {str(space)[:80]} is not a space: {error}") from error
