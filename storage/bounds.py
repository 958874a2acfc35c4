"""Which values the leaves of a dataset may have, by the spaces that its manifest states.

The JSON form of spaces is described in `datasets.ingest.spaces`. Manifests are untrusted: everything is checked, and malformed
spaces raise SchemaError. Bounds are inclusive. Without a stated space or stated bounds, the dtype's limits apply: nothing is
derived from the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import SchemaError, UsageError
from .leaf import Leaf
from .schema import Schema, clean_keys

Space = Mapping[str, Any]
Array = np.ndarray[Any, Any]

_DEEPEST, _MOST_PARTS, _MOST_ENTRIES = 16, 1000, 1 << 26


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

    Raises UsageError if there are too many or they are nested too deeply, SchemaError for colliding keys and malformed spaces.
    """
    found = list(_walk(space, (), base))
    if len(found) > _MOST_PARTS:
        raise UsageError(f"the {base} space has {len(found)} parts, more than {_MOST_PARTS}")
    names = ["/".join([base, *map(str, path)]) for path, _ in found]
    keys = clean_keys(names)
    return [BasicSpace(name, keys[name], path, basic) for name, (path, basic) in zip(names, found)]


def _walk(space: Any, path: tuple[str | int, ...], base: str) -> Iterator[tuple[tuple[str | int, ...], Space]]:
    if len(path) > _DEEPEST:
        raise UsageError(f"a space is nested more than {_DEEPEST} levels deep")
    kind = space.get("type") if isinstance(space, Mapping) else None
    inner = space.get("spaces") if isinstance(space, Mapping) else None
    if kind == "Dict" and isinstance(inner, Mapping):
        for key, one in inner.items():
            yield from _walk(one, (*path, key), base)
    elif kind == "Tuple" and isinstance(inner, list):
        for index, one in enumerate(inner):
            yield from _walk(one, (*path, index), base)
    elif isinstance(kind, str) and kind not in ("Dict", "Tuple"):
        yield path, space
    else:
        raise SchemaError(f"{'/'.join([base, *map(str, path)])}: {str(space)[:80]} is not a space", hint=_REDO)


def leaf_bounds(schema: Schema, spaces: Any) -> dict[str, LeafBounds]:
    """Return the bounds of each leaf by its name; a step leaf ``next/key`` has the bounds of ``key``.

    Raises SchemaError for spaces that are malformed or do not fit their leaves, naming the leaf.
    """
    if not isinstance(spaces, Mapping):
        raise SchemaError(f"the spaces of the manifest are {str(spaces)[:80]}", hint=_REDO)
    stated = {one.key: one.space for base, space in spaces.items() for one in basic_spaces(space, str(base))}
    return {leaf.name: _of_leaf(leaf, stated.get(leaf.name.removeprefix("next/"), {})) for leaf in schema}


def _of_leaf(leaf: Leaf, space: Space) -> LeafBounds:
    shape = space.get("shape")
    if shape is not None and not isinstance(shape, list):
        raise SchemaError(f"{leaf.name}: {str(shape)[:80]!r} is not a shape", hint=_REDO)
    if shape is not None and space["type"] != "Text" and not _fits(tuple(shape), leaf.shape):
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
    kind = space.get("type")
    if kind == "Box":
        low, high = (_bound(space.get(side), dtype, shape, name) for side in ("low", "high"))
        smallest, largest = _extremes(dtype)
        low, high = smallest if low is None else low, largest if high is None else high
    elif kind == "MultiBinary":
        low, high = np.zeros((), dtype), np.ones((), dtype)
    elif kind in ("Discrete", "MultiDiscrete"):
        low = _bound(space.get("start", 0), dtype, shape, name)
        if low is None:
            raise SchemaError(f"{name}: its space does not start at a number", hint=_REDO)
        count = space.get("n" if kind == "Discrete" else "nvec")
        if count is None and kind == "Discrete":
            return low, None
        counts = np.array(_whole(count, name), dtype=object)
        if (counts < 1).any() or (counts.shape != () if kind == "Discrete" else counts.shape not in ((), shape)):
            raise SchemaError(f"{name}: its space has {str(count)[:80]} values", hint=_REDO)
        last = np.asarray(counts + low.astype(object) - 1, dtype=object)
        if (last > int(np.iinfo(np.dtype(dtype)).max) if np.dtype(dtype).kind in "iu" else last > 1 << 53).any():
            raise SchemaError(f"{name}: a space of {str(count)[:80]} values does not fit {dtype}", hint=_REDO)
        high = last.astype(dtype)
    else:
        return None, None
    if (low > high).any():
        raise SchemaError(f"{name}: a lower bound of its space lies above the upper one", hint=_REDO)
    return low, high


def _fits(shape: tuple[Any, ...], stored: tuple[int, ...]) -> bool:
    """Whether values of ``shape`` are stored in rows of shape ``stored``: observations of shape ``[]`` become ``[1]``."""
    return shape == stored or (shape == () and stored == (1,))


def _extremes(dtype: str) -> tuple[Array, Array]:
    """The smallest and the largest value of a dtype."""
    exact = np.dtype(dtype)
    low: Any = -math.inf if exact.kind == "f" else False if exact.kind == "b" else np.iinfo(exact).min
    high: Any = math.inf if exact.kind == "f" else True if exact.kind == "b" else np.iinfo(exact).max
    return np.array(low, exact), np.array(high, exact)


def _bound(value: Any, dtype: str, shape: tuple[int, ...], name: str) -> Array | None:
    """A bound in JSON form as an array, clipped to the dtype's limits; None if none is stated."""
    if value is None:
        return None
    if math.prod(shape) > _MOST_ENTRIES:
        raise SchemaError(f"{name}: a space of shape {list(shape)}", hint=_REDO)
    numbers = np.array(_numbers(value, name), dtype=object)
    if numbers.shape and not _fits(numbers.shape, shape):
        raise SchemaError(f"{name}: bounds of shape {list(numbers.shape)}, its values have {list(shape)}", hint=_REDO)
    numbers = numbers.reshape(shape if numbers.shape else ())
    if np.dtype(dtype).kind == "f":
        with np.errstate(over="ignore"):
            return numbers.astype(np.float64).astype(dtype)
    smallest, largest = (int(one) for one in _extremes(dtype))
    held = [largest if one >= largest else smallest if one <= smallest else int(one) for one in numbers.reshape(-1)]
    return np.array(held, dtype).reshape(numbers.shape)


def _numbers(value: Any, name: str) -> Any:
    if isinstance(value, list):
        return [_numbers(one, name) for one in value]
    number = {"inf": math.inf, "-inf": -math.inf}.get(value, value) if isinstance(value, str) else value
    if not isinstance(number, (int, float)) or number != number:
        raise SchemaError(f"{name}: {str(value)[:40]!r} is not a bound", hint=_REDO)
    return number


def _whole(value: Any, name: str) -> Any:
    if isinstance(value, list):
        return [_whole(one, name) for one in value]
    if not isinstance(value, int) or isinstance(value, bool):
        raise SchemaError(f"{name}: {str(value)[:40]!r} is not a number of values", hint=_REDO)
    return value


_REDO = "the manifest was written by something else: download or convert the dataset again with --force"
