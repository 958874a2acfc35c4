"""Which leaves are pictures, and which of their dimensions are height, width and channels.

A row is ``[H, W]``, ``[C, H, W]`` (any leading dimensions: stacks, cameras) or ``[H, W, C]``. ``channels`` says which:
``first`` and ``last``, or ``auto``: last where the last dimension is 1, 3 or 4 and there are three or more.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDictBase

from ...errors import UsageError
from .leaves import get, named, observations, paths

CHANNELS = ("auto", "first", "last")

#: Pictures are worked on in blocks of about this many bytes of uint8: what a core keeps close to itself.
_BLOCK = 1 << 20


def is_frame(shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    """Whether rows of this shape are taken for pictures unasked: uint8 with two dimensions or more."""
    return dtype == torch.uint8 and len(shape) >= 2


def channels_last(shape: tuple[int, ...], channels: str) -> bool:
    """Whether the last dimension of a row is its channels."""
    return channels == "last" or (channels == "auto" and len(shape) >= 3 and shape[-1] in (1, 3, 4))


def frame_names(
    td: TensorDictBase, keys: list[str] | None, wanted: Callable[[tuple[int, ...], torch.dtype], bool], what: str
) -> list[str]:
    """The leaves that ``keys`` stand for, which must have two dimensions; without keys the observations that are ``wanted``."""
    if keys is not None:
        names = named(td, keys)
        for name in names:
            shape = tuple(get(td, name).shape[1:])
            if len(shape) < 2:
                raise UsageError(f"{name} has rows of shape {shape}: they are no {what}")
        return names
    leaves = {name: get(td, name) for name in observations(td)}
    names = [name for name, rows in leaves.items() if wanted(tuple(rows.shape[1:]), rows.dtype)]
    if not names:
        shapes = ", ".join(f"{name} {list(rows.shape[1:])} {rows.dtype}" for name, rows in leaves.items())
        hint = f"name them with keys; observations are {shapes}" if shapes else f"there are {', '.join(paths(td))}"
        raise UsageError(f"no observation holds {what}", hint=hint)
    return names


def in_blocks(
    rows: torch.Tensor, shape: tuple[int, ...], function: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """``function`` over blocks of rows, into one tensor ``[n, *shape]`` of the same dtype."""
    out = rows.new_empty((len(rows), *shape))
    size = max(1, _BLOCK // max(1, rows[:1].numel()))
    for source, target in zip(rows.split(size), out.split(size)):
        target.copy_(function(source))
    return out
