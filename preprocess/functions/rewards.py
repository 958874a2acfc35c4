"""Rewards, one by one: affine maps and clipping."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from ...errors import UsageError
from .checks import bounds, number
from .leaves import get, with_reward
from .traits import ready


def _check_scale(scale: object = 1.0, shift: object = 0.0) -> None:
    if number("scale", scale) == 0:
        raise UsageError("scale=0 would make every reward the same", hint="to drop rewards, give a scale that is not 0")
    if scale == 1 and number("shift", shift) == 0:
        raise UsageError("scale_rewards needs a scale or a shift", hint="for example --args scale=0.1")
    number("shift", shift)


@ready("batch", blind=True, check=_check_scale)
def scale_rewards(td: TensorDictBase, *, scale: float = 1.0, shift: float = 0.0) -> TensorDictBase:
    """``next/reward`` becomes ``scale * reward + shift``; computed in float64, stored in the reward's dtype.

    ``shift=-1`` is what IQL (Kostrikov et al., 2021) does for AntMaze, ``scale=4, shift=-2`` what CQL does (4 (r - 0.5)).
    Raises UsageError where there is nothing to do, and for scale 0.
    """
    _check_scale(scale, shift)
    return with_reward(td, get(td, "next/reward").double() * scale + shift)


def _check_clip(low: object = -1.0, high: object = 1.0, sign: object = False) -> None:
    bounds("low", low, "high", high)
    if not isinstance(sign, bool):
        raise UsageError(f"sign is true or false, not {sign!r}")
    if sign and (low, high) != (-1.0, 1.0):
        raise UsageError("sign=true leaves -1, 0 and 1 only: low and high have nothing to do")
    if low is None and high is None:
        raise UsageError("clip_rewards needs low, high, or both")


@ready("batch", blind=True, check=_check_clip)
def clip_rewards(
    td: TensorDictBase, *, low: float | None = -1.0, high: float | None = 1.0, sign: bool = False
) -> TensorDictBase:
    """``next/reward`` is limited to ``[low, high]`` (Mnih et al., 2015: [-1, 1]); None leaves that side open.

    ``sign=True`` keeps the sign alone: -1, 0 or 1. NaN stays NaN.
    """
    _check_clip(low, high, sign)
    reward = get(td, "next/reward")
    return with_reward(td, torch.sign(reward) if sign else reward.clamp(low, high))
