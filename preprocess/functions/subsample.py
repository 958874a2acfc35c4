"""Every k-th step of each episode, or a random fraction of the episodes.

The fraction is drawn by a hash of the contents of each episode and of the seed: it does not depend on chunks, processes or
other episodes, and a smaller fraction is a subset of a larger one with the same seed.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import torch
from tensordict import TensorDictBase

from ...errors import UsageError
from ...storage.schema import LARGE_ROW
from .checks import positive, whole
from .leaves import get, paths
from .traits import Partial, Traits, fit_of_episodes


def _check(every: object, gamma: object, fraction: object, seed: object) -> None:
    if (every is None) == (fraction is None):
        raise UsageError("subsample needs either every (a step) or fraction (of episodes)")
    positive("gamma", gamma, high=1.0)
    whole("seed", seed)
    if every is not None:
        whole("every", every, low=1)
    else:
        positive("fraction", fraction, high=1.0)
    if fraction is not None and gamma != 1:
        raise UsageError("gamma goes with every: a fraction of the episodes keeps the rewards")


# -- a fraction of the episodes ----------------------------------------------------------------------------------------------


def _draw(td: TensorDictBase, seed: int) -> int:
    """The random number of an episode, uniform in ``[0, 2^63)``. Of large leaves only the first row is hashed."""
    state = blake2b(digest_size=8, key=str(seed).encode())
    for path in sorted(paths(td)):
        rows = get(td, path)
        if rows.element_size() * rows[:1].numel() >= LARGE_ROW:
            rows = rows[:1]
        state.update(rows.contiguous().numpy().tobytes())
    return int.from_bytes(state.digest(), "little") >> 1


def _finish(partial: Partial, *, fraction: float, **_: Any) -> dict[str, Any]:
    draws = partial["draws"].sort().values
    kept = max(1, round(fraction * len(draws)))
    return {"episodes": len(draws), "kept": kept, "threshold": int(draws[kept - 1]) if len(draws) else 0}


_FIT = fit_of_episodes(
    "draws", lambda td, seed, **_: torch.tensor(_draw(td, seed)), _finish, lambda fraction, **_: fraction is not None
)


# -- every k-th step -----------------------------------------------------------------------------------------------------


def _every(td: TensorDictBase, every: int, gamma: float) -> TensorDictBase:
    length = len(td)
    step = torch.arange(length)
    starts = step[::every]
    ends = (starts + every - 1).clamp(max=length - 1)
    reward = get(td, "next/reward")
    weights = (gamma ** (step % every).double()).view(-1, *[1] * (reward.ndim - 1))
    sums = reward.new_zeros(len(starts), *reward.shape[1:], dtype=torch.float64)
    sums.index_add_(0, step // every, reward.double() * weights)
    out = td[starts]
    out.set("next", td.get("next")[ends])
    out.set(("next", "reward"), sums.to(reward.dtype))
    taken = ends - starts + 1
    out.set("steps_to_next_obs", taken)
    out.set("gamma", (gamma ** taken.double()).float())
    return out


@Traits("episode", fit=_FIT, validate=_check)
def subsample(
    td: TensorDictBase,
    *,
    statistics: dict[str, Any] | None = None,
    every: int | None = None,
    gamma: float = 1.0,
    fraction: float | None = None,
    seed: int = 0,
) -> TensorDictBase | None:
    """Either ``every`` k-th step of each episode, or a random ``fraction`` of the episodes.

    ``every=k`` keeps steps 0, k, 2k, ... of an episode with their actions, as a frame skip of k. The reward of a step is the
    sum over the k steps up to the next one kept (r_0 + gamma r_1 + ...); the other leaves under ``next`` are those of the last
    of them, so that the next observation is that of the following step, and the last step ends the episode. With
    ``gamma=1`` the return stays. Added: ``steps_to_next_obs`` (int64 ``[n]``, k or fewer at the end) and ``gamma``
    (gamma^k, float32 ``[n]``).

    ``fraction=0.1`` keeps a tenth of the episodes: ``round(0.1 * episodes)`` of them and at least one (identical episodes
    are kept or dropped together). Another ``seed`` selects others. A first pass draws them; ``statistics`` are
    ``{"episodes", "kept", "threshold"}``.

    Raises UsageError unless exactly one of the two is given.
    """
    if every is not None:
        return _every(td, every, gamma)
    assert statistics is not None
    return td if _draw(td, seed) <= statistics["threshold"] else None
