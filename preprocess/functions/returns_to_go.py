"""Returns to go: the sum of this reward and all later ones, the condition of the Decision Transformer."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from ...errors import UsageError
from ...storage.leaf import check_key
from .checks import positive
from .leaves import check_finite, get, paths
from .traits import Traits


def _check(gamma: object, key: object) -> None:
    positive("gamma", gamma, high=1.0)
    if not isinstance(key, str):
        raise UsageError(f"key must be a string, and is {key!r}")
    check_key(key)


@Traits("episode", ignores_observations=True, validate=_check)
def returns_to_go(td: TensorDictBase, *, gamma: float = 1.0, key: str = "return_to_go") -> TensorDictBase:
    """Add ``key``: the discounted sum of this reward and all later ones of the episode, in shape and dtype of ``next/reward``.

    R_t = r_t + gamma R_{t+1} (Chen et al., 2021, with gamma = 1), summed in float64. Only recorded rewards count, also in
    truncated episodes. Raises UsageError for gamma outside (0, 1] and for a key that exists.
    """
    if key in paths(td):
        raise UsageError(f"the key {key!r} exists already", hint="choose another name: --args key=...")
    reward = get(td, "next/reward")
    out = td.clone(False)
    sums = discounted(reward.double(), gamma)
    out.set(tuple(key.split("/")), check_finite(sums, sums.to(reward.dtype), key))
    return out


def discounted(reward: torch.Tensor, gamma: float) -> torch.Tensor:
    """R_t = r_t + gamma R_{t+1} along the first dimension, float64 ``[n, ...]``.

    By doubling: where R holds the sums over the next k rewards, R_t + gamma^k R_{t+k} holds those over 2k. This takes log n
    additions of whole columns and no division by powers of gamma, which underflow.
    """
    if gamma == 1:
        return reward.flip(0).cumsum(0).flip(0)
    total, reach = reward.clone(), 1
    while reach < len(total) and gamma**reach:
        later = total[reach:] * gamma**reach
        total = torch.cat([total[:-reach] + later, total[-reach:]])
        reach *= 2
    return total
