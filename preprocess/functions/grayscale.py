"""Colour frames converted to greyscale."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from ...errors import UsageError
from .checks import boolean, choice, key_list
from .frame_layout import CHANNELS, channels_last, frame_names, in_blocks, is_frame
from .leaves import change, covers
from .traits import Traits

#: ITU-R BT.601 in 16-bit fixed point, as in Pillow's ``convert("L")``: 0.299 R + 0.587 G + 0.114 B.
_WEIGHTS = (19595, 38470, 7471)


def _check(keys: object, channels: object, keep_channel: object) -> None:
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


def _map_states(name: str, rows: torch.Tensor, *, keys: object, channels: str, keep_channel: bool) -> torch.Tensor:
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


@Traits("batch", map_states=_map_states, validate=_check)
def grayscale(
    td: TensorDictBase, *, keys: str | list[str] | None = None, channels: str = "auto", keep_channel: bool = False
) -> TensorDictBase:
    """Colour frames are converted to grey by ITU-R BT.601 (0.299 R + 0.587 G + 0.114 B), with the same bytes as Pillow.

    Rows ``[H, W, 3]`` or ``[3, H, W]`` (any leading dimensions) become ``[H, W]``, with ``keep_channel`` ``[H, W, 1]`` or
    ``[1, H, W]``; the dtype stays. A fourth channel (alpha) is ignored; a single channel is grey already.

    - ``keys``: see `preprocess.functions`; None selects the uint8 observations that have colours.
    - ``channels``: ``first``, ``last``, or ``auto`` (see `frame_layout`; with ``auto``, four leading planes are a stack).

    Raises UsageError where no leaf has colours.
    """

    def coloured(shape: tuple[int, ...], dtype: torch.dtype) -> bool:
        return is_frame(shape, dtype) and _channel_dim(shape, channels) is not None

    names = frame_names(td, keys, coloured, "colour frames")
    return change(td, names, _map_states, keys=names, channels=channels, keep_channel=keep_channel)
