"""Several values for one row reduced to one: priorities, ranks."""

from __future__ import annotations

import torch

REDUCTIONS = ("sum", "max", "min", "mean", "median")


def reduce(values: torch.Tensor, how: str) -> torch.Tensor:
    """``[n, ...]`` to ``[n]``: sum, max, min, mean or median over all further dimensions."""
    flat = values.reshape(len(values), -1)
    if flat.shape[1] == 1:
        return flat[:, 0]
    if how == "max":
        return flat.amax(1)
    if how == "min":
        return flat.amin(1)
    if how == "median":
        return flat.median(1).values
    return flat.mean(1) if how == "mean" else flat.sum(1)
