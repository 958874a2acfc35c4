"""Leaves of a TED TensorDict by path: selecting and replacing them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from tensordict import TensorDictBase

from ...errors import SchemaError, UsageError
from ...storage.schema import FLAGS
from .checks import key_list


def paths(td: TensorDictBase) -> list[str]:
    """Return all leaves, ``"next/reward"`` for ``("next", "reward")``."""
    return ["/".join(key) if isinstance(key, tuple) else key for key in td.keys(True, True)]


def get(td: TensorDictBase, path: str) -> torch.Tensor:
    """Return a leaf. Raises SchemaError where it is missing."""
    leaf = td.get(tuple(path.split("/")), None)
    if not isinstance(leaf, torch.Tensor):
        raise SchemaError(f"the data have no {path}; there are {', '.join(paths(td))}")
    return leaf


def check_new(td: TensorDictBase, *names: str) -> None:
    """Raise UsageError for leaves that a function adds and the data have already: what they hold would be lost."""
    there = [name for name in names if name in paths(td)]
    if there:
        hint = "rename it in a function of your own, or drop it with rbdata:select_keys"
        raise UsageError(f"the data have {', '.join(there)} already, which would be replaced", hint=hint)


def observations(td: TensorDictBase) -> list[str]:
    """Root paths of the leaves that have a successor under ``next``, flags excluded."""
    present = paths(td)
    return [path for path in present if "next/" + path in present and path not in FLAGS]


def select(td: TensorDictBase, keys: object) -> list[str]:
    """Return the root paths that the argument ``keys`` selects, None all observations.

    Raises UsageError for a key without a leaf.
    """
    selected = key_list("keys", keys)
    if selected is None:
        return observations(td)
    present = [path for path in paths(td) if not path.startswith("next/")]
    return list(dict.fromkeys(path for key in selected for path in below(present, key)))


def below(present: list[str], key: str) -> list[str]:
    """Return the paths that one key selects: itself, or all below it. Raises UsageError where there are none."""
    selected = [path for path in present if covers([key], path)]
    if not selected:
        raise UsageError(f"there is no key {key!r}", hint=f"there are {', '.join(present)}")
    return selected


def covers(keys: Iterable[str] | None, name: str) -> bool:
    """Return whether ``keys`` select the leaf ``name`` (None selects every leaf)."""
    return keys is None or any(name == key or name.startswith(key + "/") for key in keys)


def change(
    td: TensorDictBase, names: Iterable[str], function: Callable[..., torch.Tensor], **args: Any
) -> TensorDictBase:
    """Return a shallow copy in which ``function(name, rows, **args)`` replaces the leaves ``names`` and their successors."""
    out = td.clone(False)
    present = set(paths(td))
    for name in names:
        for path in (name, "next/" + name):
            if path in present:
                out.set(tuple(path.split("/")), function(name, get(td, path), **args))
    return out


def episode_return(td: TensorDictBase) -> torch.Tensor:
    """Return the sum of an episode's rewards, float64 ``[]``."""
    return get(td, "next/reward").double().sum()


def check_finite(rows: torch.Tensor, converted: torch.Tensor, name: str) -> torch.Tensor:
    """``converted``, the same numbers in a narrower dtype. Raises SchemaError for one that is infinite only there."""
    lost = converted.isinf()
    if lost.any() and bool((lost := lost & rows.isfinite()).any()):
        message = f"{name} holds {rows[lost][0].item():g}, which {str(converted.dtype).removeprefix('torch.')} does not"
        raise SchemaError(message, hint="choose a wider dtype, or scale the values")
    return converted


def with_reward(td: TensorDictBase, reward: torch.Tensor) -> TensorDictBase:
    """Return a shallow copy with another ``next/reward``, in the dtype and shape of the present one."""
    old = get(td, "next/reward")
    out = td.clone(False)
    out.set(("next", "reward"), reward.reshape(old.shape).to(old.dtype))
    return out
