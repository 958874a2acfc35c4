"""Columns by path name into a nested TensorDict, thousands of times a second."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import torch
from tensordict import TensorDict


def nest(columns: Mapping[str, torch.Tensor], batch: tuple[int, ...], device: torch.device | None = None) -> TensorDict:
    """A nested TensorDict from path names (``"next/reward"``); every tensor must begin with ``batch`` and lie on ``device``."""
    places, parents = _plan(tuple(columns))
    levels: list[dict[str, torch.Tensor | TensorDict]] = [{} for _ in parents]
    for (level, last), tensor in zip(places, columns.values()):
        levels[level][last] = tensor
    size = torch.Size(batch)
    # The constructor checks every shape; here they are known to be right.
    for level, (parent, name) in enumerate(parents[:-1]):
        levels[parent][name] = TensorDict._new_unsafe(levels[level], batch_size=size, device=device)
    return TensorDict._new_unsafe(levels[-1], batch_size=size, device=device)


@lru_cache(256)
def _plan(names: tuple[str, ...]) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """(level, key) of every column, and (level above, key) of every level: the deepest come first, the top last."""
    paths = [tuple(name.split("/")) for name in names]
    above = [path[:-1] for path in paths]
    above += [path[:depth] for path in above for depth in range(len(path))]  # a level may hold nothing but deeper ones
    levels = sorted(dict.fromkeys([*above, ()]), key=len, reverse=True)
    number = {path: place for place, path in enumerate(levels)}
    parents = [(number[path[:-1]], path[-1]) if path else (0, "") for path in levels]
    return [(number[path[:-1]], path[-1]) for path in paths], parents
