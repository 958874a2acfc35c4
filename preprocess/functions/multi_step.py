"""n-step returns, stored. `rbdata.load(..., n_step=n)` computes the same while sampling, and stores nothing."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from ...storage.replay.windows.n_step import NStep
from .checks import positive, whole
from .leaves import get
from .traits import ready

#: Windows of rewards are laid out for about this many numbers at a time.
_BLOCK = 1 << 20


def _check(n: object, gamma: object = 0.99) -> None:
    whole("n", n, low=1)
    positive("gamma", gamma, high=1.0)


@ready("episode", check=_check)
def n_step(td: TensorDictBase, *, n: int, gamma: float = 0.99) -> TensorDictBase:
    """Every step looks ``n`` steps ahead, or to the end of its episode; as many steps as before.

        next/reward           r_t + gamma r_{t+1} + ... over the k <= n steps taken (Sutton, 1988)
        next/...              all else under next is that of the last of these steps: observation, flags
        next/original_reward  r_t
        steps_to_next_obs     k, int64 [n]
        gamma                 gamma^k, float32 [n], what the value of the next state is multiplied by

    These are the batches of ``rbdata.load(..., n_step=n, gamma=gamma)``, key for key, but for one thing: steps that
    overlap make no trajectory, and a dataset in which the next observation is not the following one would be read wrongly
    as slices and stacks. So with n > 1 every step becomes an episode of its own; those that do not reach a terminal state
    are truncated (bootstrap from them as ever: ``terminated`` alone says where values end).
    """
    _check(n, gamma)
    look, length = NStep(n, float(gamma)), len(td)
    place = torch.arange(length)
    taken = look.ahead(place, torch.tensor(length))
    reward = get(td, "next/reward")
    out = td.clone(False)
    out.set("next", td.get("next")[place + taken - 1])
    out.set(("next", "reward"), _totals(reward, look))
    out.set(("next", "original_reward"), reward)
    out.set("steps_to_next_obs", taken)
    out.set("gamma", look.discount(taken))
    if n > 1:
        terminated = get(out, "next/terminated")
        out.set(("next", "truncated"), ~terminated)
        out.set(("next", "done"), torch.ones_like(terminated))
    return out


def _totals(reward: torch.Tensor, look: NStep) -> torch.Tensor:
    """The discounted sum of up to n rewards from each step on, shape and dtype of ``reward``."""
    if look.steps == 1:
        return reward
    reach = min(look.steps, len(reward))
    padded = torch.cat([reward, reward.new_zeros(reach - 1, *reward.shape[1:])])
    windows = padded.unfold(0, reach, 1).movedim(-1, 1)  # a view, [n, reach, ...]
    look = NStep(reach, look.gamma)
    size = max(1, _BLOCK // (reach * max(1, reward[:1].numel())))
    return torch.cat([look.total(block) for block in windows.split(size)])
