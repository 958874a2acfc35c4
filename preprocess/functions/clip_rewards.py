"""Rewards limited to a range, or reduced to their sign."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from ...errors import UsageError
from .checks import boolean, bounds, number
from .leaves import get, with_reward
from .traits import Traits


def _check(low: object, high: object, sign: object) -> None:
    bounds(number, low=low, high=high)
    if boolean("sign", sign) and (low, high) != (-1.0, 1.0):
        raise UsageError("sign=true gives -1, 0 or 1: low and high do not apply")
    if low is None and high is None:
        raise UsageError("clip_rewards needs low, high, or both")


@Traits("batch", ignores_observations=True, validate=_check)
def clip_rewards(
    td: TensorDictBase, *, low: float | None = -1.0, high: float | None = 1.0, sign: bool = False
) -> TensorDictBase:
    """``next/reward`` is limited to ``[low, high]`` (Mnih et al., 2015: [-1, 1]); None leaves that side open.

    ``sign=True`` keeps only the sign: -1, 0 or 1. NaN stays NaN. Raises UsageError for ``low`` above ``high``, without
    bounds, and for bounds together with ``sign``.
    """
    reward = get(td, "next/reward")
    return with_reward(td, torch.sign(reward) if sign else reward.clamp(low, high))
