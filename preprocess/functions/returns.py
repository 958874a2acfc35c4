"""Returns to go: what is still to come at each step, as the Decision Transformer is conditioned on."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from ...errors import UsageError
from ...storage.schema import check_key
from .checks import positive
from .leaves import get, paths
from .traits import ready


def _check(gamma: object = 1.0, key: object = "return_to_go") -> None:
    positive("gamma", gamma, high=1.0)
    if not isinstance(key, str):
        raise UsageError(f"key must be a name, and is {key!r}")
    check_key(key)


@ready("episode", blind=True, check=_check)
def returns_to_go(td: TensorDictBase, *, gamma: float = 1.0, key: str = "return_to_go") -> TensorDictBase:
    """Add ``key``: the discounted sum of this reward and all later ones of the episode, shape and dtype of ``next/reward``.

    R_t = r_t + gamma R_{t+1} (Chen et al., 2021, with gamma = 1), summed in float64. An episode that was cut short counts
    what was recorded of it. Raises UsageError for gamma outside (0, 1] and for a key that is taken.
    """
    _check(gamma, key)
    if key in paths(td):
        raise UsageError(f"there is a {key} already", hint="give the new one another name: --args key=...")
    reward = get(td, "next/reward")
    out = td.clone(False)
    out.set(tuple(key.split("/")), discounted(reward.double(), gamma).to(reward.dtype))
    return out


def discounted(reward: torch.Tensor, gamma: float) -> torch.Tensor:
    """R_t = r_t + gamma R_{t+1} along the first dimension, float64 ``[n, ...]``.

    By doubling: once R holds the sums over the next k rewards, R_t + gamma^k R_{t+k} holds those over 2k. That takes log n
    additions of whole columns, and never divides by a power of gamma that vanished.
    """
    if gamma == 1:
        return reward.flip(0).cumsum(0).flip(0)
    total, reach = reward.clone(), 1
    while reach < len(total) and gamma**reach:
        later = total[reach:] * gamma**reach
        total = torch.cat([total[:-reach] + later, total[-reach:]])
        reach *= 2
    return total
