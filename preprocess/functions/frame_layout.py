"""Which leaves are frames, and which of their dimensions are height, width and channels.

A row is ``[H, W]``, ``[C, H, W]`` (any leading dimensions: stacks, cameras) or ``[H, W, C]``. ``channels`` is ``first``,
``last`` or ``auto``: last for three dimensions or more of which the last is 1, 3 or 4.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDictBase

from ...errors import UsageError
from .leaves import get, paths, select

CHANNELS = ("auto", "first", "last")

#: Frames are processed in blocks of about this many elements, which fit into a core's cache.
_BLOCK_ELEMENTS = 1 << 20


def is_frame(shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    """Whether rows count as frames without being named: uint8 with two dimensions or more."""
    return dtype == torch.uint8 and len(shape) >= 2


def channels_last(shape: tuple[int, ...], channels: str) -> bool:
    """Whether the last dimension of a row is its channels."""
    return channels == "last" or (channels == "auto" and len(shape) >= 3 and shape[-1] in (1, 3, 4))


def frame_names(
    td: TensorDictBase, keys: object, is_default: Callable[[tuple[int, ...], torch.dtype], bool], what: str
) -> list[str]:
    """The leaves that ``keys`` select, with rows of two dimensions or more; without keys the observations of which
    ``is_default(row shape, dtype)`` holds. Raises UsageError; ``what`` names the leaves in the message."""
    leaves = {name: get(td, name) for name in select(td, keys)}
    if keys is not None:
        for name, rows in leaves.items():
            if rows.ndim < 3:
                raise UsageError(f"{name} has rows of shape {tuple(rows.shape[1:])}, which are no {what}")
        return list(leaves)
    names = [name for name, rows in leaves.items() if is_default(tuple(rows.shape[1:]), rows.dtype)]
    if not names:
        shapes = ", ".join(f"{name} {list(rows.shape[1:])} {rows.dtype}" for name, rows in leaves.items())
        hint = f"name them with keys; observations are {shapes}" if shapes else f"there are {', '.join(paths(td))}"
        raise UsageError(f"no observation holds {what}", hint=hint)
    return names


def in_blocks(
    rows: torch.Tensor, shape: tuple[int, ...], function: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """``function`` applied to blocks of rows; one tensor ``[n, *shape]`` of the same dtype."""
    out = rows.new_empty((len(rows), *shape))
    size = max(1, _BLOCK_ELEMENTS // max(1, rows[:1].numel()))
    for source, target in zip(rows.split(size), out.split(size)):
        target.copy_(function(source))
    return out
