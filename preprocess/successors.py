"""Whether the successor of each step is the observation of the following step; comparisons of rows."""

from __future__ import annotations

from itertools import pairwise
from math import gcd

import numpy as np
import torch

from ..storage.memory_map import widest_word
from .layout import observation_pairs
from .result import Columns

#: Up to this many episodes in a batch it is faster to compare them one by one.
_FEW_EPISODES = 64


def find_unchained(columns: Columns, done: torch.Tensor) -> dict[str, int]:
    """Observations whose successor is not the observation of the following step, with the first such row.

    ``columns`` are consecutive rows; ``done`` bool ``[n]``: after which of them an episode ends.
    """
    broken: dict[str, int] = {}
    inner = (~done[:-1]).nonzero().squeeze(1)
    if not len(inner):
        return broken
    ends = [0, *(done[:-1].nonzero().squeeze(1) + 1).tolist(), len(done)]
    for name in observation_pairs(columns):
        here, after = columns["next/" + name], columns[name]
        if here.shape != after.shape or here.dtype != after.dtype:
            broken[name] = 0
            continue
        if len(ends) < _FEW_EPISODES and all(identical(here[a : b - 1], after[a + 1 : b]) for a, b in pairwise(ends)):
            continue
        differ = differing(here[:-1], after[1:])
        rows = differ.nonzero().squeeze(1)
        rows = rows[~done[rows]]
        if len(rows):
            broken[name] = int(rows[0])
    return broken


def identical(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether tensors of one shape and dtype hold the same bits; four times faster than ``torch.equal`` for uint8."""
    if not a.nbytes:
        return True
    a, b = a.contiguous(), b.contiguous()
    size = a.element_size()
    _, word = widest_word(gcd(a.nbytes // len(a), a.storage_offset() * size, b.storage_offset() * size))
    return torch.equal(*(tensor.view(len(tensor), -1).view(word) for tensor in (a, b)))


def differing(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Which rows differ in any bit, bool ``[n]``: -0.0 from 0.0, but no NaN from itself."""
    if identical(a, b):
        return torch.zeros(len(a), dtype=torch.bool)
    if a.is_floating_point() or a.is_complex():
        a, b = (tensor.contiguous().reshape(len(tensor), -1).view(torch.uint8) for tensor in (a, b))
    unequal = a != b
    return unequal.flatten(1).any(1) if unequal.ndim > 1 else unequal


def as_bytes(rows: torch.Tensor) -> np.ndarray:
    """The bytes of rows as they are stored, uint8 ``[n, row_bytes]``."""
    array = np.ascontiguousarray(rows.numpy())
    return array.astype(array.dtype.newbyteorder("<"), copy=False).view(np.uint8).reshape(len(array), -1)
