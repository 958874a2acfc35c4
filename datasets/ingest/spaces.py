"""Observation and action spaces: as JSON for the manifest, as the leaves they become, and values in the dtypes of these.

The JSON form says what Gymnasium's own spaces say (https://gymnasium.farama.org/api/spaces/), with bounds that are the
same everywhere written once, and infinite ones as "inf" and "-inf", which JSON has no numbers for:

    {"type": "Box", "dtype": "float32", "shape": [3], "low": "-inf", "high": [1.0, 1.0, 2.0]}
    {"type": "Discrete", "n": 4, "start": 0}
    {"type": "MultiDiscrete", "dtype": "int64", "shape": [2], "nvec": [3, 5], "start": 0}
    {"type": "MultiBinary", "shape": [8]}
    {"type": "Text", "min_length": 1, "max_length": 20, "charset": "abc"}
    {"type": "Dict", "spaces": {"camera": ..., "position": ...}}
    {"type": "Tuple", "spaces": [..., ...]}

A space becomes one leaf for each of its basic spaces: ``observation`` for a Box, ``observation/camera`` and
``observation/position`` for a Dict, ``observation/0`` for the first of a Tuple. Text is kept as its UTF-8 bytes, zero-padded
to the longest that the space allows, or left out.

`cast` gives values in the dtype of a leaf: the same values, or an error. Floating-point numbers may be rounded (float64 to
float32). All else stays what it is: whole numbers and booleans exactly, finite numbers finite. NaN and infinity stay as they
are where the dtype has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ...errors import CorruptSourceError, UsageError
from ...storage.bounds import basic_spaces
from ...storage.leaf import DTYPES

if TYPE_CHECKING:
    import gymnasium

Json = dict[str, Any]
TextAs = Literal["bytes", "omit"]

#: By dtypes that leaves cannot have: the dtype that stores their values without loss.
_WIDER = {"uint16": "int32", "uint32": "int64"}
#: A Text space that allows more bytes than this has no limit worth padding to.
_LONGEST_TEXT = 1 << 16
#: Bounds of more entries than this that differ are left out of the JSON form.
_MOST_BOUNDS = 4096


@dataclass(frozen=True)
class SpaceLeaf:
    """One basic space inside another: ``path`` leads to its values, ``key`` names the leaf they go to.

    ``dtype`` and ``shape`` are those of one row of the leaf. A single number has shape ``[1]`` as an observation and ``[]``
    as an action.
    """

    key: str
    path: tuple[str | int, ...]
    space: Mapping[str, Any]
    dtype: str
    shape: tuple[int, ...]

    @property
    def is_text(self) -> bool:
        return self.space["type"] == "Text"

    def pick(self, value: Any) -> Any:
        """The part of a nested value that this leaf holds."""
        for step in self.path:
            value = value[step]
        return value


# -- values ------------------------------------------------------------------------------------------------------------


def as_array(value: Any) -> np.ndarray:
    """A value as an array, a tensor from any device: lazy operations of torch (a negation, a conjugate) are applied, and float
    types that NumPy lacks (bfloat16, float8) become float32, which holds all of their values.

    Raises TypeError, ValueError, RuntimeError for values that cannot become arrays, and for masked elements.
    """
    if np.ma.is_masked(value):
        raise ValueError("some of its elements are masked")
    if not hasattr(value, "detach"):
        return np.asarray(value)
    plain = value.detach().cpu().resolve_conj().resolve_neg()
    if plain.is_floating_point() and plain.itemsize < 4 and str(plain.dtype) != "torch.float16":
        plain = plain.float()
    return np.asarray(plain.numpy())


class LossyCastError(ValueError):
    """A value does not fit a dtype; ``row`` is its row, ``value`` the value."""

    def __init__(self, value: Any, dtype: np.dtype, row: int) -> None:
        super().__init__(f"{value} does not fit {dtype}")
        self.value, self.row = value, row


def cast(values: np.ndarray, dtype: Any) -> np.ndarray:
    """Numbers or booleans ``[n, ...]`` in another dtype, not copied where they have it. Raises LossyCastError."""
    target = np.dtype(dtype)
    if values.dtype == target:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        stored = values.astype(target)
    lost = _lost(values, stored)
    if lost is not None and lost.any():
        at = int(lost.argmax())
        row = at // max(1, values[:1].size) if values.ndim else 0
        raise LossyCastError(values.reshape(-1)[at : at + 1].tolist()[0], target, row)
    return stored


def cast_rows(values: np.ndarray, dtype: Any, where: str, first: int = 0) -> np.ndarray:
    """`cast` of a file's values, from row ``first`` on. Raises CorruptSourceError, which names ``where`` and the row."""
    try:
        return cast(values, dtype)
    except LossyCastError as error:
        raise CorruptSourceError(f"{where}: {error}, in row {first + error.row}") from error


def _lost(values: np.ndarray, stored: np.ndarray) -> np.ndarray | None:
    """Which values the cast changed; None if the dtypes alone rule that out."""
    source, target = values.dtype, stored.dtype
    exact = np.can_cast(source, target, "safe")
    if source.kind == "b" or (exact and not (source.kind in "iu" and target.kind == "f")):
        return None
    if target.kind == "b":
        return (values != 0) & (values != 1)
    if target.kind == "f" and source.kind == "f":
        return np.isinf(stored) & np.isfinite(values)
    if target.kind == "f":
        if source.itemsize < target.itemsize:
            return None
        with np.errstate(invalid="ignore"):
            return ~np.isfinite(stored) | (stored.astype(source) != values)
    info = np.iinfo(target)
    if source.kind == "f":
        high = 2.0 ** (info.bits - (target.kind == "i"))  # iinfo's own limit may have no float
        return ~((values >= float(info.min)) & (values < high)) | (values != np.trunc(values))
    return (values < info.min) | (values > info.max)


# -- JSON --------------------------------------------------------------------------------------------------------------


def space_json(space: gymnasium.Space) -> Json:
    """A Gymnasium space as JSON. Raises UsageError for kinds that have no rows of one size (Sequence, Graph, OneOf)."""
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        return box_json(space.dtype, space.shape, space.low, space.high)
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return multi_discrete_json(space.dtype, space.nvec, space.start)
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "shape": [int(size) for size in space.shape]}
    if isinstance(space, spaces.Text):
        return text_json(space.min_length, space.max_length, space.characters)
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "spaces": {str(key): space_json(inner) for key, inner in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_json(inner) for inner in space.spaces]}
    message = f"{type(space).__name__} spaces cannot be stored: their values are not rows of one size ({space})"
    raise UsageError(message, hint="wrap the environment so that it observes Box, Discrete, Dict or Tuple spaces")


def box_json(dtype: Any, shape: Sequence[int], low: Any, high: Any) -> Json:
    """The JSON form of a Box."""
    size = [int(length) for length in shape]
    return {"type": "Box", "dtype": str(np.dtype(dtype)), "shape": size, "low": _bound(low), "high": _bound(high)}


def multi_discrete_json(dtype: Any, nvec: Any, start: Any) -> Json:
    """The JSON form of a MultiDiscrete."""
    counts = np.asarray(nvec)
    shape = [int(size) for size in counts.shape]
    name = str(np.dtype(dtype))
    return {"type": "MultiDiscrete", "dtype": name, "shape": shape, "nvec": counts.tolist(), "start": _bound(start)}


def text_json(min_length: int, max_length: int, charset: str | None) -> Json:
    """The JSON form of a Text; characters are sorted, because a charset is unordered."""
    characters = "".join(sorted(set(charset))) if charset is not None else None
    return {"type": "Text", "min_length": int(min_length), "max_length": int(max_length), "charset": characters}


def _bound(values: Any) -> Any:
    """A bound as a number where it is the same everywhere, else as nested lists; None where that would be too long."""
    if values is None:
        return None
    array = np.asarray(values)
    if array.size and (array == array.reshape(-1)[0]).all():
        return _number(array.reshape(-1)[0].item())
    return _numbers(array.tolist()) if array.size <= _MOST_BOUNDS else None


def _numbers(values: Any) -> Any:
    return [_numbers(value) for value in values] if isinstance(values, list) else _number(values)


def _number(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value


# -- leaves ------------------------------------------------------------------------------------------------------------


def space_leaves(space: Mapping[str, Any], base: str, text: TextAs = "bytes") -> tuple[list[SpaceLeaf], dict[str, str]]:
    """The leaves of a space in JSON form below the key ``base``, and what is left out: its path, and why.

    Raises UsageError for dtypes that no leaf can hold exactly, SchemaError for names that collide.
    """
    leaves: list[SpaceLeaf] = []
    left_out: dict[str, str] = {}
    for one in basic_spaces(space, base):
        name, basic = one.name, one.space
        dtype, shape = _row(basic, name)
        if basic["type"] == "Text" and text == "omit":
            left_out[name] = "text, left out as asked"
        elif 0 in shape:
            left_out[name] = f"its shape {list(shape)} is empty"
        else:
            shape = shape if shape or base == "action" else (1,)
            leaves.append(SpaceLeaf(one.key, one.path, basic, dtype, shape))
    return leaves, left_out


def nested_space(spaces: Mapping[str, Json], base: str) -> Json:
    """The space whose leaves are these below the key ``base``: that of `base`, or a Dict."""
    if base in spaces:
        return spaces[base]
    inner = dict.fromkeys(
        key.removeprefix(f"{base}/").partition("/")[0] for key in spaces if key.startswith(f"{base}/")
    )
    return {"type": "Dict", "spaces": {name: nested_space(spaces, f"{base}/{name}") for name in inner}}


def _row(space: Mapping[str, Any], name: str) -> tuple[str, tuple[int, ...]]:
    """dtype and shape of one row."""
    kind = space["type"]
    if kind == "Discrete":
        return "int64", ()
    if kind == "MultiBinary":
        return "int8", tuple(space["shape"])
    if kind == "Text":
        width = text_width(space)
        if width > _LONGEST_TEXT:
            message = f"{name} is text of up to {width} bytes: too long to be stored in rows of one size"
            raise UsageError(message, hint="leave text out: --text omit")
        return "uint8", (width,)
    return stored_dtype(space["dtype"], name), tuple(space["shape"])


def stored_dtype(dtype: Any, name: str) -> str:
    """The dtype of a leaf for values of this dtype. Raises UsageError if no dtype of leaves holds all of them."""
    plain = np.dtype(dtype).newbyteorder("=").name
    stored = _WIDER.get(plain, plain)
    if stored not in DTYPES:
        message = f"{name} has dtype {plain}, which a dataset cannot hold exactly"
        raise UsageError(message, hint=f"there are {', '.join(DTYPES)}")
    return stored


def text_width(space: Mapping[str, Any]) -> int:
    """Bytes that the longest value of a Text space takes in UTF-8."""
    charset = space.get("charset")
    widest = max((len(character.encode()) for character in charset), default=1) if charset else 4
    return max(1, int(space["max_length"]) * widest)


def text_rows(values: Sequence[str | bytes | memoryview], width: int, name: str, hint: str | None = None) -> np.ndarray:
    """Texts as rows of bytes, uint8 ``[n, width]``, zero-padded. Raises CorruptSourceError for longer ones, and for
    those that end with a NUL, which the padding would hide."""
    rows = np.zeros((len(values), width), np.uint8)
    for row, value in enumerate(values):
        data = value.encode() if isinstance(value, str) else bytes(value)
        if len(data) > width:
            message = f"{name}: a text of {len(data)} bytes, its space allows {width} ({data[:40]!r})"
            raise CorruptSourceError(message, hint=hint)
        if data.endswith(b"\0"):
            raise CorruptSourceError(f"{name}: a text that ends with a NUL cannot be stored ({data[:40]!r})")
        rows[row, : len(data)] = np.frombuffer(data, np.uint8)
    return rows


class TakenKeys:
    """A set of keys in which no key equals another, or is a folder of another: on many disks names that differ only in case are
    one file."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys, self._folders = set[str](), set[str]()
        for key in keys:
            self.add(key)

    def add(self, key: str) -> None:
        key = key.lower()
        self._keys.add(key)
        self._folders.update(_folders(key))

    def __contains__(self, key: object) -> bool:
        """Whether a key collides with a key of the set, or one of the two would be a folder of the other."""
        name = str(key).lower()
        return name in self._keys or name in self._folders or not self._keys.isdisjoint(_folders(name))

    def free(self, key: str) -> str:
        """A key that collides with none: this one, or one like it. ``a/b`` is ``a_b`` where ``a`` is taken; then ``_`` is
        appended as often as needed."""
        levels: list[str] = []
        for level in key.split("/"):
            if levels and "/".join(levels).lower() in self._keys:
                levels[-1] += f"_{level}"
            else:
                levels.append(level)
        key = "/".join(levels)
        while key in self:
            key += "_"
        return key


def _folders(key: str) -> list[str]:
    return list(accumulate(key.split("/"), "{}/{}".format))[:-1]


def renamed(leaves: Sequence[SpaceLeaf]) -> dict[str, str]:
    """Leaves whose key is not the provider's own path: key to path, for the manifest."""
    names = {leaf.key: "/".join([leaf.key.partition("/")[0], *map(str, leaf.path)]) for leaf in leaves}
    return {key: name for key, name in names.items() if key != name}
