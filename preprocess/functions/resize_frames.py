"""Frames resized.

``area``: every new pixel is the mean of the old pixels it covers, weighted by the covered area (as ALE's preprocessing and
OpenCV's INTER_AREA when shrinking). The weights of rows and columns are separable: a product with one matrix on each side.
Where sizes divide evenly it is an integer sum over k x k pixels, several times faster. Enlarging repeats pixels.

``bilinear``: a triangle filter as wide as the old pixels under the new one, as Pillow's BILINEAR and torch's
``interpolate(antialias=True)``.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from tensordict import TensorDictBase

from ...errors import UsageError
from .checks import choice, key_list, whole
from .frame_layout import CHANNELS, channels_last, frame_names, in_blocks, is_frame
from .leaves import change, covers
from .traits import Traits

_MODES = ("area", "bilinear")


def _check(height: object, width: object, keys: object, mode: object, channels: object) -> None:
    whole("height", height, low=1, high=1 << 16)
    whole("width", width, low=1, high=1 << 16)
    key_list("keys", keys)
    choice("mode", mode, _MODES)
    choice("channels", channels, CHANNELS)


def _map_states(
    name: str, rows: torch.Tensor, *, height: int, width: int, keys: object, mode: str, channels: str
) -> torch.Tensor:
    shape, selected = tuple(rows.shape[1:]), key_list("keys", keys)
    if not covers(selected, name) or (selected is None and not is_frame(shape, rows.dtype)):
        return rows
    if rows.dtype not in (torch.uint8, torch.float32, torch.float64):
        message = f"{name} has dtype {rows.dtype}, not uint8, float32 or float64"
        raise UsageError(message, hint="add --fn rbdata:to_float before it")
    last = channels_last(shape, channels)
    if last and len(shape) < 3:
        raise UsageError(f"{name} has rows of shape {shape} without a dimension for channels")
    new = (*shape[:-3], height, width, shape[-1]) if last else (*shape[:-2], height, width)
    if new == shape:
        return rows

    def resize(block: torch.Tensor) -> torch.Tensor:
        planes = block.movedim(-1, -3) if last else block
        resized = _resize(planes.reshape(-1, *planes.shape[-2:]), height, width, mode)
        resized = resized.view(*planes.shape[:-2], height, width)
        return resized.movedim(-3, -1) if last else resized

    return in_blocks(rows, new, resize)


def _resize(planes: torch.Tensor, height: int, width: int, mode: str) -> torch.Tensor:
    """Planes ``[n, H, W]`` resized to ``[n, height, width]``, same dtype."""
    if mode == "bilinear":
        options = {"size": (height, width), "mode": "bilinear", "antialias": True, "align_corners": False}
        return torch.nn.functional.interpolate(planes.unsqueeze(1), **options).squeeze(1)  # type: ignore[arg-type]
    tall, wide = planes.shape[-2:]
    if tall % height == 0 and wide % width == 0 and planes.dtype == torch.uint8:
        return _mean_of_tiles(planes, tall // height, wide // width)
    dtype = planes.dtype if planes.is_floating_point() else torch.float32
    columns = planes.to(dtype).reshape(-1, wide) @ _coverage(wide, width).to(dtype).T
    out = _coverage(tall, height).to(dtype) @ columns.view(-1, tall, width)
    return out if planes.is_floating_point() else out.add_(0.5).clamp_(0, 255).to(planes.dtype)


def _mean_of_tiles(planes: torch.Tensor, tall: int, wide: int) -> torch.Tensor:
    """Means over tiles of ``tall`` x ``wide`` uint8 pixels, halves rounded up."""
    height, width = planes.shape[-2] // tall, planes.shape[-1] // wide
    size = tall * wide
    # Strided slices are added, because sums along such short dimensions are slow.
    dtype = torch.int16 if size * 256 < 1 << 15 else torch.int32
    rows = planes.view(-1, height, tall, width * wide)
    total = rows[:, :, 0].to(dtype)
    for row in range(1, tall):
        total += rows[:, :, row]
    tiles = total.view(-1, height, width, wide)
    total = tiles[..., 0]
    for column in range(1, wide):
        total = total + tiles[..., column]
    total = total + size // 2
    if size & (size - 1):
        return total.div(size, rounding_mode="floor").to(torch.uint8)
    return (total >> (size.bit_length() - 1)).to(torch.uint8)


@lru_cache(maxsize=32)
def _coverage(old: int, new: int) -> torch.Tensor:
    """The share of each of ``new`` pixels that each of ``old`` pixels covers: float64 ``[new, old]``, rows sum to 1."""
    edges = torch.arange(new + 1, dtype=torch.float64) * old / new
    pixels = torch.arange(old, dtype=torch.float64)
    low = torch.maximum(edges[:-1, None], pixels)
    high = torch.minimum(edges[1:, None], pixels + 1)
    return (high - low).clamp_(min=0) * (new / old)


@Traits("batch", map_states=_map_states, validate=_check)
def resize_frames(
    td: TensorDictBase,
    *,
    height: int,
    width: int,
    keys: str | list[str] | None = None,
    mode: str = "area",
    channels: str = "auto",
) -> TensorDictBase:
    """Frames are resized to ``height`` x ``width``; dtype (uint8, float32, float64) and all other dimensions stay.

    - ``keys``: see `preprocess.functions`; None selects the uint8 observations with two dimensions or more.
    - ``mode``: ``area`` or ``bilinear`` (see the module); uint8 is rounded to the nearest value.
    - ``channels``: ``first``, ``last``, or ``auto``, see `frame_layout`.

    Raises UsageError where no leaf holds frames, and for other dtypes.
    """
    names = frame_names(td, keys, is_frame, "frames")
    return change(td, names, _map_states, height=height, width=width, keys=names, mode=mode, channels=channels)
