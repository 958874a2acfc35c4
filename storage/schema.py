"""What a dataset holds: its leaves, their kinds, dtypes, shapes and codecs.

A *leaf* is one tensor of the dataset, named by its TED key. Keys are written as paths, ``next/reward`` for
``("next", "reward")``, which is also where the leaf lies in the folder.

A *step leaf* has one row per transition. A *state leaf* has one row per stored state: an episode of n steps has n + 1 of
them, in order, so that one leaf serves both ``key`` and ``("next", key)`` without storing anything twice:

    steps            a0  a1  a2 | b0  b1          2 episodes, 3 + 2 steps
    state rows   s0  s1  s2  s3 | t0  t1  t2      (3 + 1) + (2 + 1) rows

so the state row of step i in episode e is ``i + e``, and its successor is the row after it.

Keys are limited to what every tensordict version reads without renaming files: letters, digits and underscore. Two keys (or
two levels of keys) may not differ in case alone: on many disks they would be one file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from ..errors import SchemaError

if TYPE_CHECKING:
    import numpy as np

Kind = Literal["step", "state"]
CODECS = ("raw", "zstd")

#: numpy dtypes a leaf may have; all little-endian on disk. bfloat16 has no numpy dtype and is not among them.
DTYPES = (
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
)

#: Names at the top that leaves may not take: the folder's own, and what reading adds to a batch.
RESERVED = frozenset({"episodes", "index", "mask"})

#: Names that leaves may take nowhere: tensordict's ``meta.json`` holds entries of its own under them, beside the leaves.
RESERVED_EVERYWHERE = frozenset({"shape", "device", "_type"})

_KEY_PART = re.compile(r"[A-Za-z0-9_]+")

#: The flags of TED: bool ``[1]`` per step, at the root (state at t) and under ``next`` (result of the action).
FLAGS = ("done", "terminated", "truncated")

#: Rows at least this large are worth storing once per state rather than twice per step (bytes).
LARGE_ROW = 1024


@dataclass(frozen=True)
class Leaf:
    """One tensor of the dataset.

    ``shape`` is that of one row. ``constant`` is set where every row holds this one value (the root flags of TED are
    all false): the file is still there for other readers, ours need not touch it.
    """

    name: str
    kind: Kind
    dtype: str
    shape: tuple[int, ...]
    codec: str = "raw"
    constant: bool | int | float | None = None

    def __post_init__(self) -> None:
        check_key(self.name)
        if self.kind not in ("step", "state"):
            raise SchemaError(f"leaf {self.name}: kind {self.kind!r} is neither 'step' nor 'state'")
        if self.dtype not in DTYPES:
            raise SchemaError(f"leaf {self.name}: dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
        if self.codec not in CODECS:
            raise SchemaError(f"leaf {self.name}: codec {self.codec!r} is not one of {', '.join(CODECS)}")
        if any(size < 1 for size in self.shape):
            raise SchemaError(f"leaf {self.name}: shape {self.shape} has an empty dimension")
        if self.kind == "state" and self.key[0] == "next":
            raise SchemaError(f"leaf {self.name}: a state leaf is named by its root key, it gives next/ as well")
        if self.constant is not None and not isinstance(self.constant, (bool, int, float)):
            raise SchemaError(f"leaf {self.name}: constant {self.constant!r} is not a number")

    @property
    def key(self) -> tuple[str, ...]:
        """The key as tensordict wants it."""
        return tuple(self.name.split("/"))

    @cached_property
    def np_dtype(self) -> np.dtype:
        """The dtype on disk (little-endian)."""
        import numpy as np  # here: lists of datasets are shown without it

        return np.dtype(self.dtype).newbyteorder("<")

    @cached_property
    def row_bytes(self) -> int:
        """Size of one decoded row in bytes."""
        return prod(self.shape) * self.np_dtype.itemsize

    def to_json(self) -> dict[str, Any]:
        """The manifest's form."""
        record: dict[str, Any] = {
            "name": self.name,
            "kind": self.kind,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "codec": self.codec,
        }
        if self.constant is not None:
            record["constant"] = self.constant
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Leaf:
        """Raises SchemaError on anything that ``to_json`` does not write."""
        try:
            return cls(
                name=str(record["name"]),
                kind=record["kind"],
                dtype=str(record["dtype"]),
                shape=tuple(int(size) for size in record["shape"]),
                codec=str(record["codec"]),
                constant=record.get("constant"),
            )
        except SchemaError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            message = f"a leaf of the manifest is malformed: {record!r}"
            raise SchemaError(message) from error


@dataclass(frozen=True)
class Schema:
    """The leaves of a dataset, in the order they are shown."""

    leaves: tuple[Leaf, ...]

    def __post_init__(self) -> None:
        names = self.names
        check_case(names)
        for name in names:
            if names.count(name) > 1:
                raise SchemaError(f"key {name} is there twice (a state leaf gives its key and the one under next)")
            if any(other.startswith(name + "/") for other in names):
                raise SchemaError(f"key {name} is both a tensor and a folder of tensors")

    def __iter__(self) -> Iterator[Leaf]:
        return iter(self.leaves)

    def __getitem__(self, name: str) -> Leaf:
        for leaf in self.leaves:
            if leaf.name == name:
                return leaf
        raise KeyError(name)

    def get(self, name: str) -> Leaf | None:
        """The leaf of this name, None where there is none."""
        return next((leaf for leaf in self.leaves if leaf.name == name), None)

    def __contains__(self, name: str) -> bool:
        return any(leaf.name == name for leaf in self.leaves)

    @property
    def names(self) -> list[str]:
        """All TED keys as paths; those of state leaves under both names."""
        return [leaf.name for leaf in self.leaves] + ["next/" + leaf.name for leaf in self.states]

    @property
    def steps(self) -> tuple[Leaf, ...]:
        """The step leaves."""
        return tuple(leaf for leaf in self.leaves if leaf.kind == "step")

    @property
    def states(self) -> tuple[Leaf, ...]:
        """The state leaves."""
        return tuple(leaf for leaf in self.leaves if leaf.kind == "state")

    def with_codec(self, name: str, codec: str) -> Schema:
        """The same schema with another codec for one leaf."""
        return Schema(tuple(replace(leaf, codec=codec) if leaf.name == name else leaf for leaf in self.leaves))


def check_key(name: str) -> None:
    """Refuse keys that some tensordict version would rename, and names the folder needs for itself."""
    parts = name.split("/")
    if not all(_KEY_PART.fullmatch(part) for part in parts):
        message = f"key {name!r} is not made of letters, digits and underscores"
        raise SchemaError(message, hint="rename it, or use rbdata.storage.schema.clean_keys to map names")
    if parts[0] in RESERVED or not RESERVED_EVERYWHERE.isdisjoint(parts):
        raise SchemaError(f"key {name!r} is reserved for the dataset folder itself")


def clean_keys(names: Iterable[str]) -> dict[str, str]:
    """Map provider names to legal keys, one to one.

    ``/`` stays a level; every other character outside letters, digits and underscore becomes ``_``. Empty parts become
    ``_``; reserved names, and those that differ from an earlier one in case alone, get one at their end. Raises SchemaError
    when two names fall together, naming both.
    """
    mapping: dict[str, str] = {}
    taken: dict[str, str] = {}
    spelled: dict[str, str] = {}
    for name in names:
        originals = name.split("/")
        if not {".", ".."}.isdisjoint(originals):
            raise SchemaError(f"key {name!r} would leave its folder")
        parts = [re.sub(r"[^A-Za-z0-9_]", "_", part) or "_" for part in originals]
        parts = [part + "_" if part in RESERVED_EVERYWHERE else part for part in parts]
        if parts[0] in RESERVED:
            parts[0] += "_"
        for level in range(len(parts)):
            while not _is_spelled("/".join(parts[: level + 1]), spelled):
                parts[level] += "_"
        key = "/".join(parts)
        if key in taken:
            raise SchemaError(f"keys {taken[key]!r} and {name!r} would both become {key!r}")
        taken[key] = name
        mapping[name] = key
        check_key(key)
    return mapping


def check_case(names: Iterable[str]) -> None:
    """Raise SchemaError for keys of which two, or two levels, differ in case alone."""
    spelled: dict[str, str] = {}
    for name in names:
        parts = name.split("/")
        for level in range(len(parts)):
            path = "/".join(parts[: level + 1])
            if not _is_spelled(path, spelled):
                raise SchemaError(
                    f"keys {spelled[path.lower()]} and {path} differ in case only: some disks hold but one"
                )


def _is_spelled(path: str, spelled: dict[str, str]) -> bool:
    """Whether a path is spelled as it was before, where case does not count; remembers it."""
    return spelled.setdefault(path.lower(), path) == path


def ted_flags() -> tuple[Leaf, ...]:
    """Flags and reward as TED has them: the root flags (state at t: all false) and the result under ``next``."""
    roots = tuple(Leaf(flag, "step", "bool", (1,), constant=False) for flag in FLAGS)
    results = tuple(Leaf("next/" + flag, "step", "bool", (1,)) for flag in FLAGS)
    return (*roots, Leaf("next/reward", "step", "float32", (1,)), *results)
