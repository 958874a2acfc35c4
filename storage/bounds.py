"""Which values the leaves of a dataset may have, by the spaces that its manifest states.

The JSON form of spaces is described in `datasets.ingest.spaces`; malformed ones raise SchemaError. Bounds are inclusive.
Without a stated space or stated bounds, the dtype's limits apply: nothing is derived from the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import SchemaError
from .leaf import Leaf
from .schema import Schema, clean_keys

Space = Mapping[str, Any]
Array = np.ndarray[Any, Any]

_REDO = "the manifest was written by something else: download or convert the dataset again with --force"


@dataclass(frozen=True)
class BasicSpace:
    """One basic space inside a nested one: ``path`` leads to its values, ``key`` is the TED key they are stored under.

    ``name`` is the key as the provider spells it.
    """

    name: str
    key: str
    path: tuple[str | int, ...]
    space: Space


@dataclass(frozen=True)
class LeafBounds:
    """The stated bounds of a leaf. ``low`` and ``high`` have the leaf's dtype and its shape, or ``[]``.

    Both are None if every value of the dtype is allowed. ``space`` is the basic space, empty if none is stated.
    """

    leaf: Leaf
    space: Space
    low: Array | None = None
    high: Array | None = None

    @property
    def counts(self) -> list[int] | None:
        """The number of values of each choice, for one choice or a vector of choices counted from 0; otherwise None."""
        kind = self.space.get("type")
        if kind == "Discrete" and self.high is not None and not self.low:
            return [int(self.high) + 1]
        if kind == "MultiDiscrete" and self.high is not None and len(self.leaf.shape) == 1 and not np.any(self.low):
            return (np.broadcast_to(self.high, self.leaf.shape) + 1).tolist()
        return None


def basic_spaces(space: Any, base: str) -> list[BasicSpace]:
    """Return the basic spaces of a space in JSON form, in order, stored below the key ``base``.

    Raises SchemaError for colliding keys and malformed spaces.
    """
    found = [("/".join([base, *map(str, path)]), path, basic) for path, basic in _walk(space, (), base)]
    keys = clean_keys(name for name, _, _ in found)
    return [BasicSpace(name, keys[name], path, basic) for name, path, basic in found]


def _walk(space: Any, path: tuple[str | int, ...], base: str) -> Iterator[tuple[tuple[str | int, ...], Space]]:
    kind = space.get("type") if isinstance(space, Mapping) else None
    inner: Any = space.get("spaces") if kind in ("Dict", "Tuple") else None
    is_nested = isinstance(inner, Mapping if kind == "Dict" else list)
    if is_nested:
        for key, one in inner.items() if kind == "Dict" else enumerate(inner):
            yield from _walk(one, (*path, key), base)
    elif isinstance(kind, str) and kind not in ("Dict", "Tuple"):
        yield path, space
    else:
        raise SchemaError(f"{'/'.join([base, *map(str, path)])}: {str(space)[:80]} is not a space", hint=_REDO)


def leaf_bounds(schema: Schema, spaces: Mapping[str, Any]) -> dict[str, LeafBounds]:
    """Return the bounds of each leaf by its name; a step leaf ``next/key`` has the bounds of ``key``.

    Raises SchemaError for spaces that are malformed or do not fit their leaves, naming the leaf.
    """
    stated = {one.key: one.space for base, space in spaces.items() for one in basic_spaces(space, base)}
    return {leaf.name: _of_leaf(leaf, stated.get(leaf.name.removeprefix("next/"), {})) for leaf in schema}


def _of_leaf(leaf: Leaf, space: Space) -> LeafBounds:
    shape = space.get("shape", list(leaf.shape))
    if space.get("type") != "Text" and not (isinstance(shape, list) and _fits(tuple(shape), leaf.shape)):
        raise SchemaError(f"{leaf.name} has shape {list(leaf.shape)}, its space {str(shape)[:80]}", hint=_REDO)
    low, high = limits(space, leaf.dtype, leaf.shape, leaf.name)
    smallest, largest = _extremes(leaf.dtype)
    if low is not None and high is not None and (low <= smallest).all() and (high >= largest).all():
        low = high = None
    return LeafBounds(leaf, space, low, high)


def limits(space: Space, dtype: str, shape: tuple[int, ...], name: str) -> tuple[Array | None, Array | None]:
    """Smallest and largest values of a basic space, inclusive: arrays of ``dtype`` and ``shape``, or ``[]``.

    A bound that is not stated is the dtype's limit; both are None for spaces without bounds (Text). Only the upper bound is
    None for a Discrete that does not state its number of values. Raises SchemaError, naming the leaf.
    """
    try:
        low, high = _limits(space, dtype, shape)
        if low is not None and high is not None and not (low <= high).all():
            raise ValueError("a lower bound lies above the upper one")
    except (TypeError, ValueError, OverflowError) as error:
        raise SchemaError(f"{name}: {str(space)[:80]} is not its space: {error}", hint=_REDO) from error
    return low, high


def _limits(space: Space, dtype: str, shape: tuple[int, ...]) -> tuple[Array | None, Array | None]:
    kind, (smallest, largest) = space.get("type"), _extremes(dtype)
    if kind == "Box":
        low, high = space.get("low"), space.get("high")
        return (
            smallest if low is None else _clipped(_numbers(low, shape), dtype),
            largest if high is None else _clipped(_numbers(high, shape), dtype),
        )
    if kind == "MultiBinary":
        return np.zeros((), dtype), np.ones((), dtype)
    if kind not in ("Discrete", "MultiDiscrete"):
        return None, None
    start = _numbers(space.get("start", 0), shape)
    count = space.get("n" if kind == "Discrete" else "nvec")
    if count is None and kind == "Discrete":
        return _clipped(start, dtype), None
    last = np.asarray(start + _numbers(count, shape) - 1, object)
    high = _clipped(last, dtype)
    if (high.astype(object) != last).any():
        raise ValueError(f"its numbers do not fit {dtype}")
    return _clipped(start, dtype), high


def _fits(shape: tuple[Any, ...], stored: tuple[int, ...]) -> bool:
    """Whether values of ``shape`` are stored in rows of shape ``stored``: observations of shape ``[]`` become ``[1]``."""
    return shape == stored or (shape == () and stored == (1,))


def _extremes(dtype: str) -> tuple[Array, Array]:
    """The smallest and the largest value of a dtype."""
    exact = np.dtype(dtype)
    low: Any = -math.inf if exact.kind == "f" else False if exact.kind == "b" else np.iinfo(exact).min
    high: Any = math.inf if exact.kind == "f" else True if exact.kind == "b" else np.iinfo(exact).max
    return np.array(low, exact), np.array(high, exact)


def _numbers(value: Any, shape: tuple[int, ...]) -> Array:
    """Numbers in JSON form, also "inf" and "-inf", as Python's own in an array of ``shape``, or ``[]``."""
    stated = np.array(value, object)
    if stated.shape and not _fits(stated.shape, shape):
        raise ValueError(f"its numbers have shape {list(stated.shape)}, its values {list(shape)}")
    numbers = [float(one) if isinstance(one, str) else one for one in stated.flat]
    return np.array(numbers, object).reshape(shape if stated.shape else ())


def _clipped(numbers: Array, dtype: str) -> Array:
    """Numbers in a dtype, those beyond its limits as these."""
    if np.dtype(dtype).kind == "f":
        with np.errstate(over="ignore"):
            return numbers.astype(np.float64).astype(dtype)
    smallest, largest = (int(one) for one in _extremes(dtype))
    held = [largest if one >= largest else smallest if one <= smallest else int(one) for one in numbers.flat]
    return np.array(held, dtype).reshape(numbers.shape)
