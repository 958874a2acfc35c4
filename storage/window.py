"""The window: consecutive rows around many steps at once, never crossing an episode.

    episode e            |  s0  s1  s2  s3  s4 |
    frame stack of 4 at s1 and its successor:
        wanted      s-2  s-1  s0  s1  s2
        read         0    0   s0  s1  s2         rows outside the episode are zeros (or repeat its edge)

Every way of sampling is this one read: a transition is two state rows, a stack of k with its successor k + 1, a slice of
length L is L + 1. ``observation`` and ``("next", "observation")`` are overlapping views of the rows read.
"""

from __future__ import annotations

from typing import Literal

import torch

from .rows import Rows

Pad = Literal["zero", "repeat"]


def read_window(
    rows: Rows, first: torch.Tensor, length: int, low: torch.Tensor, high: torch.Tensor, pad: Pad = "zero"
) -> torch.Tensor:
    """``length`` rows from each ``first``, those outside ``[low, high)`` padded; ``[B, length, *shape]``.

    ``first``, ``low`` and ``high`` are int64 ``[B]`` row numbers of the leaf; ``first`` itself may lie outside. Every
    range must hold at least one row. ``zero`` fills with zeros, ``repeat`` with the nearest row of the range.
    """
    clipped = (first < low) | (first + length > high)
    if not bool(clipped.any()):
        return rows.windows(first, length)
    few = clipped.nonzero().squeeze(1)
    if length > rows.count:
        out = torch.empty(len(first), length, *rows.leaf.shape, dtype=rows.block(0, 0).dtype)
    else:
        # All windows at once, the clipped ones from a harmless place; those few are then read row by row.
        out = rows.windows(first.clamp(0, rows.count - length), length)
    wanted = first[few, None] + torch.arange(length)
    inside = torch.minimum(torch.maximum(wanted, low[few, None]), high[few, None] - 1)
    fixed = rows.windows(inside.reshape(-1), 1).view(len(few), length, *rows.leaf.shape)
    if pad == "zero":
        outside = inside != wanted
        fixed[outside] = 0
    return out.index_copy_(0, few, fixed)
