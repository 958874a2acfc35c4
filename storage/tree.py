"""Columns by path name as one nested TensorDict."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from tensordict import TensorDict


def nest(columns: Mapping[str, torch.Tensor], batch: tuple[int, ...]) -> TensorDict:
    """A nested TensorDict from path names; every tensor must begin with ``batch``."""
    size = torch.Size(batch)
    tree: dict[str, dict[str, torch.Tensor]] = {"": {}}
    for name, tensor in columns.items():
        level, _, last = name.rpartition("/")
        tree.setdefault(level, {})[last] = tensor
    for level in list(tree):
        while level := level.rpartition("/")[0]:  # a level may hold nothing but deeper ones
            tree.setdefault(level, {})
    # The constructor checks every shape; here they are known to be right, and batches are made thousands of times a
    # second.
    made = {level: TensorDict._new_unsafe(content, batch_size=size) for level, content in tree.items()}
    for level in sorted(made, key=lambda level: -level.count("/") if level else 1):
        if level:
            parent, _, last = level.rpartition("/")
            made[parent]._set_str(last, made[level], validated=True, inplace=False, non_blocking=False)
    return made[""]
