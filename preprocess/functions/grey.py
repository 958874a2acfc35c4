"""Colour frames to grey ones."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from ...errors import UsageError
from .checks import choice, key_list
from .frames import CHANNELS, channels_last, frame_names, in_blocks, is_frame
from .leaves import change, covers
from .traits import ready

#: ITU-R BT.601 in 16-bit fixed point, as Pillow's ``convert("L")`` has it: 0.299 R + 0.587 G + 0.114 B.
_WEIGHTS = (19595, 38470, 7471)


def _check(keys: object = None, channels: object = "auto", keep_channel: object = False) -> None:
    key_list("keys", keys)
    choice("channels", channels, CHANNELS)
    if not isinstance(keep_channel, bool):
        raise UsageError(f"keep_channel is true or false, not {keep_channel!r}")


def _channel_dim(shape: tuple[int, ...], channels: str) -> int | None:
    """The dimension of a row ``[...]`` that holds colours, from the end; None where there is none."""
    if len(shape) < 3:
        return None
    if channels_last(shape, channels):
        return -1 if shape[-1] in (1, 3, 4) else None
    # A stack of grey frames looks like [C, H, W] too: only three planes are taken for colours unasked.
    return -3 if shape[-3] == 3 or (channels == "first" and shape[-3] in (1, 4)) else None


def _on_state(
    name: str,
    rows: torch.Tensor,
    *,
    keys: str | list[str] | None = None,
    channels: str = "auto",
    keep_channel: bool = False,
) -> torch.Tensor:
    shape, wanted = tuple(rows.shape[1:]), key_list("keys", keys)
    dim = _channel_dim(shape, channels)
    if not covers(wanted, name) or (wanted is None and (dim is None or not is_frame(shape, rows.dtype))):
        return rows
    if dim is None:
        message = f"{name} has rows of shape {shape}: there are no 3 colour channels in it"
        raise UsageError(message, hint="say where the channels are: channels=first or channels=last")
    small = list(shape)
    small[dim] = 1
    grey = in_blocks(rows, tuple(small), lambda block: _grey(block, dim))
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


@ready("batch", on_state=_on_state, check=_check)
def grayscale(
    td: TensorDictBase, *, keys: str | list[str] | None = None, channels: str = "auto", keep_channel: bool = False
) -> TensorDictBase:
    """Colour frames become grey by ITU-R BT.601 (0.299 R + 0.587 G + 0.114 B), the same bytes that Pillow gives.

    Rows ``[H, W, 3]`` or ``[3, H, W]`` (any leading dimensions) become ``[H, W]``, with ``keep_channel`` ``[H, W, 1]`` or
    ``[1, H, W]``; the dtype stays. A fourth channel (alpha) is ignored; one channel is taken for grey.

    - ``keys``: see `preprocess.functions`; None means the uint8 observations that have colours.
    - ``channels``: ``first``, ``last``, or ``auto`` (see `frames`; there, four planes in front are a stack, not colours).

    Raises UsageError where there is nothing to change.
    """
    _check(keys, channels, keep_channel)

    def coloured(shape: tuple[int, ...], dtype: torch.dtype) -> bool:
        return is_frame(shape, dtype) and _channel_dim(shape, channels) is not None

    names = frame_names(td, key_list("keys", keys), coloured, "colour frames")
    return change(
        td,
        names,
        lambda name, rows: _on_state(name, rows, keys=[name], channels=channels, keep_channel=keep_channel),
    )
