"""Rows that follow each other: is the successor of a step what follows it? And rows as they are stored."""

from __future__ import annotations

from itertools import pairwise
from math import gcd

import numpy as np
import torch

from ..storage.rows import widest_word
from .layout import pairs
from .result import Columns

#: Up to so many episodes in a batch it is faster to compare them one by one.
FEW = 64


def unchained(columns: Columns, done: torch.Tensor) -> dict[str, int]:
    """Observations whose successor is not the observation of the following step: the first such row, by name.

    ``columns`` are consecutive rows, ``done`` bool ``[n]`` says after which of them an episode ends.
    """
    broken: dict[str, int] = {}
    inner = (~done[:-1]).nonzero().squeeze(1)
    if not len(inner):
        return broken
    ends = [0, *(done[:-1].nonzero().squeeze(1) + 1).tolist(), len(done)]
    for name in pairs(columns):
        here, after = columns["next/" + name], columns[name]
        if here.shape != after.shape or here.dtype != after.dtype:
            broken[name] = 0
            continue
        if len(ends) < FEW and all(identical(here[a : b - 1], after[a + 1 : b]) for a, b in pairwise(ends)):
            continue
        differ = differing(here[:-1], after[1:])
        rows = differ.nonzero().squeeze(1)
        rows = rows[~done[rows]]
        if len(rows):
            broken[name] = int(rows[0])
    return broken


def identical(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether tensors of one shape and dtype hold the same bits; four times faster than ``torch.equal`` for small numbers."""
    if not a.nbytes:
        return True
    a, b = a.contiguous(), b.contiguous()
    size = a.element_size()
    _, word = widest_word(gcd(a.nbytes // len(a), a.storage_offset() * size, b.storage_offset() * size))
    return torch.equal(*(tensor.view(len(tensor), -1).view(word) for tensor in (a, b)))


def differing(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Which rows differ, bool ``[n]``; NaN is like NaN."""
    if identical(a, b):
        return torch.zeros(len(a), dtype=torch.bool)
    unequal = a != b
    if a.is_floating_point():
        unequal &= ~((a != a) & (b != b))
    return unequal.flatten(1).any(1) if unequal.ndim > 1 else unequal


def as_bytes(rows: torch.Tensor) -> np.ndarray:
    """Rows as they lie on the disk, uint8 ``[n, row_bytes]``."""
    array = np.ascontiguousarray(rows.numpy())
    return array.astype(array.dtype.newbyteorder("<"), copy=False).view(np.uint8).reshape(len(array), -1)
