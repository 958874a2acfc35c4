"""Leaves of a TED TensorDict by path name: which are meant, and how to replace them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from tensordict import TensorDictBase

from ...errors import SchemaError, UsageError
from ...storage.schema import FLAGS


def paths(td: TensorDictBase) -> list[str]:
    """All leaves, ``"next/reward"`` for ``("next", "reward")``."""
    return ["/".join(key) if isinstance(key, tuple) else key for key in td.keys(True, True)]


def get(td: TensorDictBase, path: str) -> torch.Tensor:
    """A leaf; raises SchemaError where it is missing."""
    leaf = td.get(tuple(path.split("/")), None)
    if not isinstance(leaf, torch.Tensor):
        raise SchemaError(f"the data have no {path}; there are {', '.join(paths(td))}")
    return leaf


def observations(td: TensorDictBase) -> list[str]:
    """Root paths of what has a successor under ``next``, flags excluded."""
    present = paths(td)
    return [path for path in present if "next/" + path in present and path not in FLAGS]


def named(td: TensorDictBase, keys: Iterable[str]) -> list[str]:
    """The root paths that ``keys`` stand for; a folder for all leaves in it. Raises UsageError for keys without a leaf."""
    present = [path for path in paths(td) if not path.startswith("next/")]
    found: list[str] = []
    for key in keys:
        meant = [path for path in present if path == key or path.startswith(key + "/")]
        if not meant:
            raise UsageError(f"there is no key {key!r}", hint=f"there are {', '.join(present)}")
        found += [path for path in meant if path not in found]
    return found


def covers(keys: list[str] | None, name: str) -> bool:
    """Whether ``keys`` stand for the leaf ``name`` (None: for every one)."""
    return keys is None or any(name == key or name.startswith(key + "/") for key in keys)


def change(
    td: TensorDictBase, names: Iterable[str], function: Callable[[str, torch.Tensor], torch.Tensor]
) -> TensorDictBase:
    """A shallow copy in which ``function(name, rows)`` takes the place of the leaves named and of their successors."""
    out = td.clone(False)
    present = set(paths(td))
    for name in names:
        for path in (name, "next/" + name):
            if path in present:
                out.set(tuple(path.split("/")), function(name, get(td, path)))
    return out


def with_reward(td: TensorDictBase, reward: torch.Tensor) -> TensorDictBase:
    """A shallow copy with another ``next/reward``: cast to the dtype the old one has, same shape."""
    old = get(td, "next/reward")
    out = td.clone(False)
    out.set(("next", "reward"), reward.reshape(old.shape).to(old.dtype))
    return out
