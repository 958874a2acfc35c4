"""Several values for one row reduced to one: priorities, ranks."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean, median_low
from typing import Any

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


_OF_NUMBERS: dict[str, Callable[[Any], Any]] = {"sum": sum, "max": max, "min": min, "mean": fmean, "median": median_low}


def reduce_exactly(values: torch.Tensor, how: str) -> list[int | float]:
    """As `reduce`, ``[n, ...]`` to n numbers to compare: whole numbers as they are, beyond 2^53 too, others as float64."""
    if values.is_floating_point():
        return reduce(values.double(), how).tolist()
    rows = values.reshape(len(values), -1).tolist()
    return [_OF_NUMBERS[how](row) if len(row) != 1 else row[0] for row in rows]
