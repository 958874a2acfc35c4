"""Affine maps of rewards."""

from __future__ import annotations

from tensordict import TensorDictBase

from ...errors import UsageError
from .checks import number
from .leaves import get, with_reward
from .traits import Traits


def _check(scale: object, shift: object) -> None:
    if number("scale", scale) == 0:
        raise UsageError("scale=0 would make every reward the same", hint="give a scale that is not 0")
    if scale == 1 and number("shift", shift) == 0:
        raise UsageError("scale_rewards needs a scale or a shift", hint="for example --args scale=0.1")
    number("shift", shift)


@Traits("batch", ignores_observations=True, validate=_check)
def scale_rewards(td: TensorDictBase, *, scale: float = 1.0, shift: float = 0.0) -> TensorDictBase:
    """``next/reward`` becomes ``scale * reward + shift``, computed in float64, in the dtype of the reward.

    ``shift=-1`` is the map of IQL (Kostrikov et al., 2021) for AntMaze, ``scale=4, shift=-2`` that of CQL (4 (r - 0.5)).
    Raises UsageError for arguments that change nothing, and for scale 0.
    """
    return with_reward(td, get(td, "next/reward").double() * scale + shift)
