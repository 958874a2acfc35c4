"""The schema of a dataset: its leaves, their kinds, dtypes, shapes and codecs.

A *leaf* is one tensor of the dataset, named by its TED key. Keys are written as paths, ``next/reward`` for
``("next", "reward")``, which are also the paths of the leaf's files in the folder.

A *step leaf* has one row per transition. A *state leaf* has one row per stored state: an episode of n steps has n + 1 of
them, in order, so that one leaf serves both ``key`` and ``("next", key)`` without storing anything twice:

    steps            a0  a1  a2 | b0  b1          2 episodes, 3 + 2 steps
    state rows   s0  s1  s2  s3 | t0  t1  t2      (3 + 1) + (2 + 1) rows

so the state row of step i in episode e is ``i + e``, and its successor is the row after it.

Two keys (or two levels of keys) may not differ only in case: on some file systems they would be the same file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from ..errors import SchemaError
from .codecs import CODECS
from .leaf import RESERVED, RESERVED_EVERYWHERE, Leaf, check_key

#: The flags of TED: bool ``[1]`` per step, at the root (state at t) and under ``next`` (result of the action).
FLAGS = ("done", "terminated", "truncated")

#: Bytes from which rows are stored once per state instead of twice per step.
LARGE_ROW = 1024


@dataclass(frozen=True)
class Schema:
    """The leaves of a dataset, in the order they are shown."""

    leaves: tuple[Leaf, ...]

    def __post_init__(self) -> None:
        for leaf in self.leaves:
            if leaf.codec not in CODECS:
                raise SchemaError(f"leaf {leaf.name}: codec {leaf.codec!r} is not one of {', '.join(CODECS)}")
        # What each path is, a tensor or a folder of tensors; on some file systems case does not distinguish paths.
        known: dict[str, tuple[str, bool]] = {}
        for name in self.names:
            for path in accumulate(name.split("/"), "{}/{}".format):
                entry = (path, path == name)
                found = known.setdefault(path.lower(), entry)
                if found[0] != path:
                    raise SchemaError(f"keys {found[0]} and {path} differ only in case, which some file systems ignore")
                if found is not entry and (found[1] or entry[1]):
                    message = f"key {path} occurs twice, or is both a tensor and a folder of tensors"
                    raise SchemaError(message, hint="a state leaf has its key and the one under next")

    def __iter__(self) -> Iterator[Leaf]:
        return iter(self.leaves)

    def __getitem__(self, name: str) -> Leaf:
        return self._by_name[name]

    def get(self, name: str) -> Leaf | None:
        """Return the leaf of this name, None if there is none."""
        return self._by_name.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    @cached_property
    def _by_name(self) -> dict[str, Leaf]:
        return {leaf.name: leaf for leaf in self.leaves}

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


def clean_keys(names: Iterable[str]) -> dict[str, str]:
    """Map provider names to legal keys, one to one.

    ``/`` still separates levels; every other character except letters, digits and underscore becomes ``_``. Empty levels become
    ``_``; reserved names, and names that differ from an earlier one only in case, get a trailing ``_``. Raises SchemaError,
    naming both, if two names become the same key.
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
            while spelled.setdefault((path := "/".join(parts[: level + 1])).lower(), path) != path:
                parts[level] += "_"
        key = "/".join(parts)
        if key in taken:
            raise SchemaError(f"keys {taken[key]!r} and {name!r} would both become {key!r}")
        taken[key] = name
        mapping[name] = key
        check_key(key)
    return mapping


_TED_FLAGS = (
    *(Leaf(flag, "step", "bool", (1,), constant=False) for flag in FLAGS),
    Leaf("next/reward", "step", "float32", (1,)),
    *(Leaf("next/" + flag, "step", "bool", (1,)) for flag in FLAGS),
)


def at_and_below(names: Iterable[str], *keys: str) -> list[str]:
    """Return the names that are one of these keys, or lie below one: ``observation`` stands for ``observation/camera``."""
    above = tuple(f"{key}/" for key in keys)
    return [name for name in names if f"{name}/".startswith(above)]


def ted_flags() -> tuple[Leaf, ...]:
    """Return the flags and the reward of TED: root flags (state at t, all false) and those under ``next``."""
    return _TED_FLAGS


def check_ted(schema: Schema) -> None:
    """Raise SchemaError unless the flags and the reward are those of TED, and some leaf is not constant."""
    if all(leaf.constant is not None for leaf in schema):
        raise SchemaError("every leaf is constant: nothing shows how many steps there are")
    for flag in _TED_FLAGS:
        leaf = schema.get(flag.name)
        if leaf is None or (leaf.kind, leaf.dtype, leaf.shape) != (flag.kind, flag.dtype, flag.shape):
            raise SchemaError(f"{flag.name} is missing, or not {flag.dtype} [1]")
