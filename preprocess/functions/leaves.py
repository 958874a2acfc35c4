"""Leaves of a TED TensorDict by path: selecting and replacing them."""

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
    """A leaf. Raises SchemaError where it is missing."""
    leaf = td.get(tuple(path.split("/")), None)
    if not isinstance(leaf, torch.Tensor):
        raise SchemaError(f"the data have no {path}; there are {', '.join(paths(td))}")
    return leaf


def observations(td: TensorDictBase) -> list[str]:
    """Root paths of the leaves that have a successor under ``next``, flags excluded."""
    present = paths(td)
    return [path for path in present if "next/" + path in present and path not in FLAGS]


def named(td: TensorDictBase, keys: Iterable[str]) -> list[str]:
    """The root paths that ``keys`` select. Raises UsageError for a key without a leaf."""
    present = [path for path in paths(td) if not path.startswith("next/")]
    return list(dict.fromkeys(path for key in keys for path in below(present, key)))


def below(present: list[str], key: str) -> list[str]:
    """The paths that one key selects: itself, or all below it. Raises UsageError where there are none."""
    selected = [path for path in present if covers([key], path)]
    if not selected:
        raise UsageError(f"there is no key {key!r}", hint=f"there are {', '.join(present)}")
    return selected


def covers(keys: list[str] | None, name: str) -> bool:
    """Whether ``keys`` select the leaf ``name`` (None selects every leaf)."""
    return keys is None or any(name == key or name.startswith(key + "/") for key in keys)


def change(
    td: TensorDictBase, names: Iterable[str], function: Callable[[str, torch.Tensor], torch.Tensor]
) -> TensorDictBase:
    """A shallow copy in which ``function(name, rows)`` replaces the leaves ``names`` and their successors."""
    out = td.clone(False)
    present = set(paths(td))
    for name in names:
        for path in (name, "next/" + name):
            if path in present:
                out.set(tuple(path.split("/")), function(name, get(td, path)))
    return out


def with_reward(td: TensorDictBase, reward: torch.Tensor) -> TensorDictBase:
    """A shallow copy with another ``next/reward``, in the dtype and shape of the present one."""
    old = get(td, "next/reward")
    out = td.clone(False)
    out.set(("next", "reward"), reward.reshape(old.shape).to(old.dtype))
    return out
