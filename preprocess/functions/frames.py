"""Functions of frames: converted to greyscale, resized.

A row is ``[H, W]``, ``[C, H, W]`` (any leading dimensions: stacks, cameras) or ``[H, W, C]``. ``channels`` is ``first``,
``last`` or ``auto``: last for three dimensions or more of which the last is 1, 3 or 4.

Modes of `resize_frames`: ``area``: every new pixel is the mean of the old pixels it covers, weighted by the covered area (as
ALE's preprocessing and OpenCV's INTER_AREA when shrinking). The weights of rows and columns are separable: a product with one
matrix on each side. Where sizes divide evenly it is an integer sum over k x k pixels, several times faster. Enlarging repeats
pixels.

``bilinear``: a triangle filter as wide as the old pixels under the new one, as Pillow's BILINEAR and torch's
``interpolate(antialias=True)``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from tensordict import TensorDictBase

from ...errors import UsageError
from .checks import boolean, choice, key_list, whole
from .leaves import change, covers, get, paths, select
from .traits import Traits

CHANNELS = ("auto", "first", "last")

#: Frames are processed in blocks of about this many elements, which fit into a core's cache.
_BLOCK_ELEMENTS = 1 << 20


def is_frame(shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    """Return whether rows count as frames without being named: uint8 with two dimensions or more."""
    return dtype == torch.uint8 and len(shape) >= 2


def channels_last(shape: tuple[int, ...], channels: str) -> bool:
    """Return whether the last dimension of a row is its channels."""
    return channels == "last" or (channels == "auto" and len(shape) >= 3 and shape[-1] in (1, 3, 4))


def frame_names(
    td: TensorDictBase, keys: object, is_default: Callable[[tuple[int, ...], torch.dtype], bool], what: str
) -> list[str]:
    """Return the leaves that ``keys`` select, with rows of two dimensions or more; without keys the observations of which
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


#: ITU-R BT.601 in 16-bit fixed point, as in Pillow's ``convert("L")``: 0.299 R + 0.587 G + 0.114 B.
_WEIGHTS = (19595, 38470, 7471)


def _check_gray(keys: object, channels: object, keep_channel: object) -> None:
    key_list("keys", keys)
    choice("channels", channels, CHANNELS)
    boolean("keep_channel", keep_channel)


def _channel_dim(shape: tuple[int, ...], channels: str) -> int | None:
    """The dimension of a row that holds colours, counted from the end; None where there is none."""
    if len(shape) < 3:
        return None
    if channels_last(shape, channels):
        return -1 if shape[-1] in (1, 3, 4) else None
    # A stack of grey frames has the layout [C, H, W] too: only three planes count as colours by default.
    return -3 if shape[-3] == 3 or (channels == "first" and shape[-3] in (1, 4)) else None


def _map_states_gray(name: str, rows: torch.Tensor, *, keys: object, channels: str, keep_channel: bool) -> torch.Tensor:
    shape, selected = tuple(rows.shape[1:]), key_list("keys", keys)
    dim = _channel_dim(shape, channels)
    if not covers(selected, name) or (selected is None and (dim is None or not is_frame(shape, rows.dtype))):
        return rows
    if dim is None:
        message = f"{name} has rows of shape {shape} without 3 colour channels"
        raise UsageError(message, hint="give the position of the channels: channels=first or channels=last")
    grey_shape = list(shape)
    grey_shape[dim] = 1
    grey = in_blocks(rows, tuple(grey_shape), lambda block: _grey(block, dim))
    return grey if keep_channel else grey.squeeze(dim)


def _grey(block: torch.Tensor, dim: int) -> torch.Tensor:
    if block.shape[dim] == 1:
        return block
    planes = (block.narrow(dim, colour, 1) for colour in range(3))
    if block.is_floating_point():
        return sum(plane * (weight / 65536) for plane, weight in zip(planes, _WEIGHTS))  # type: ignore[return-value]
    total = torch.full((), 1 << 15, dtype=torch.int32)
    for plane, weight in zip(planes, _WEIGHTS):
        total = total + plane.to(torch.int32) * weight
    return (total >> 16).to(block.dtype)


@Traits("batch", map_states=_map_states_gray, validate=_check_gray)
def grayscale(
    td: TensorDictBase, *, keys: str | list[str] | None = None, channels: str = "auto", keep_channel: bool = False
) -> TensorDictBase:
    """Convert colour frames to grey by ITU-R BT.601 (0.299 R + 0.587 G + 0.114 B), with the same bytes as Pillow.

    Rows ``[H, W, 3]`` or ``[3, H, W]`` (any leading dimensions) become ``[H, W]``, with ``keep_channel`` ``[H, W, 1]`` or
    ``[1, H, W]``; the dtype stays. A fourth channel (alpha) is ignored; a single channel is grey already.

    - ``keys``: see `preprocess.functions`; None selects the uint8 observations that have colours.
    - ``channels``: ``first``, ``last``, or ``auto`` (see `frame_layout`; with ``auto``, four leading planes are a stack).

    Raises UsageError where no leaf has colours.
    """

    def coloured(shape: tuple[int, ...], dtype: torch.dtype) -> bool:
        return is_frame(shape, dtype) and _channel_dim(shape, channels) is not None

    names = frame_names(td, keys, coloured, "colour frames")
    return change(td, names, _map_states_gray, keys=names, channels=channels, keep_channel=keep_channel)


_MODES = ("area", "bilinear")


def _check_resize(height: object, width: object, keys: object, mode: object, channels: object) -> None:
    whole("height", height, low=1, high=1 << 16)
    whole("width", width, low=1, high=1 << 16)
    key_list("keys", keys)
    choice("mode", mode, _MODES)
    choice("channels", channels, CHANNELS)


def _map_states_resize(
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


@Traits("batch", map_states=_map_states_resize, validate=_check_resize)
def resize_frames(
    td: TensorDictBase,
    *,
    height: int,
    width: int,
    keys: str | list[str] | None = None,
    mode: str = "area",
    channels: str = "auto",
) -> TensorDictBase:
    """Resize frames to ``height`` x ``width``; dtype (uint8, float32, float64) and all other dimensions stay.

    - ``keys``: see `preprocess.functions`; None selects the uint8 observations with two dimensions or more.
    - ``mode``: ``area`` or ``bilinear`` (see the module); uint8 is rounded to the nearest value.
    - ``channels``: ``first``, ``last``, or ``auto``, see `frame_layout`.

    Raises UsageError where no leaf holds frames, and for other dtypes.
    """
    names = frame_names(td, keys, is_frame, "frames")
    return change(td, names, _map_states_resize, height=height, width=width, keys=names, mode=mode, channels=channels)
