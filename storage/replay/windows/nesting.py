"""Columns by path into a nested TensorDict, thousands of times a second.

``storage.ted.nest`` does the same; here what goes where is worked out once for each set of paths.
"""

from __future__ import annotations

import torch
from tensordict import TensorDict


class Nesting:
    """Builds TensorDicts from columns ``{"next/reward": tensor}``."""

    def __init__(self) -> None:
        self._plans: dict[tuple[str, ...], _Plan] = {}

    def build(self, columns: dict[str, torch.Tensor], batch: tuple[int, ...]) -> TensorDict:
        """A TensorDict of this batch size; every column must begin with it."""
        names = tuple(columns)
        plan = self._plans.get(names)
        if plan is None:
            plan = self._plans[names] = _Plan(names)
        levels: list[dict[str, torch.Tensor | TensorDict]] = [{} for _ in plan.parents]
        for (level, last), tensor in zip(plan.places, columns.values()):
            levels[level][last] = tensor
        size = torch.Size(batch)
        # The constructor checks every shape; here they are known to be right.
        for level in range(len(levels) - 1, 0, -1):
            parent, name = plan.parents[level]
            levels[parent][name] = TensorDict._new_unsafe(levels[level], batch_size=size)
        return TensorDict._new_unsafe(levels[0], batch_size=size)


class _Plan:
    """``places``: (level, key) of every column; ``parents``: (level above, key) of every level, parents first."""

    def __init__(self, names: tuple[str, ...]) -> None:
        paths = [tuple(name.split("/")) for name in names]
        above = {path[:depth] for path in paths for depth in range(len(path))}
        levels = sorted(above | {()}, key=lambda path: (len(path), path))
        number = {path: place for place, path in enumerate(levels)}
        self.places = [(number[path[:-1]], path[-1]) for path in paths]
        self.parents = [(number[path[:-1]], path[-1]) if path else (0, "") for path in levels]
