"""n-step returns, stored. `rbdata.load(..., n_step=n)` computes the same while sampling."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from ...storage.amounts import MOST_RECORDS
from ...storage.replay.batches import NStep
from .checks import positive, whole
from .leaves import get
from .traits import Traits

#: Windows of rewards are summed for about this many elements at a time.
_BLOCK_ELEMENTS = 1 << 20


def _check(n: object, gamma: object) -> None:
    whole("n", n, low=1, high=MOST_RECORDS)
    positive("gamma", gamma, high=1.0)


@Traits("episode", validate=_check)
def n_step(td: TensorDictBase, *, n: int, gamma: float = 0.99) -> TensorDictBase:
    """Each step gets the rewards of up to ``n`` steps and the successor after them; the number of steps stays.

        next/reward           r_t + gamma r_{t+1} + ... over the k <= n steps taken (Sutton, 1988)
        next/...              the other leaves under next of the last of these steps: observation, flags
        next/original_reward  r_t
        steps_to_next_obs     k, int64 [n]
        gamma                 gamma^k, float32 [n], the factor of the value of the next state

    The keys and values are those of the batches of ``rbdata.load(..., n_step=n, gamma=gamma)``, except for the ends of
    episodes: overlapping steps are no trajectory, and slices and frame stacks of a dataset whose next observation is not the
    following one would be wrong. So with n > 1 every step becomes an episode of its own, truncated where it does not
    terminate (bootstrapping needs ``terminated`` only). Raises UsageError for n < 1 and for gamma outside (0, 1].
    """
    window, length = NStep(n, float(gamma)), len(td)
    step = torch.arange(length)
    taken = window.ahead(step, torch.tensor(length))
    reward = get(td, "next/reward")
    out = td.clone(False)
    out.set("next", td.get("next")[step + taken - 1])
    out.set(("next", "reward"), _totals(reward, window))
    out.set(("next", "original_reward"), reward)
    out.set("steps_to_next_obs", taken)
    out.set("gamma", window.discount(taken))
    if n > 1:
        terminated = get(out, "next/terminated")
        out.set(("next", "truncated"), ~terminated)
        out.set(("next", "done"), torch.ones_like(terminated))
    return out


def _totals(reward: torch.Tensor, window: NStep) -> torch.Tensor:
    """The discounted sum of up to n rewards from each step on, in the shape and dtype of ``reward``."""
    if window.steps == 1:
        return reward
    reach = min(window.steps, len(reward))
    padded = torch.cat([reward, reward.new_zeros(reach - 1, *reward.shape[1:])])
    windows = padded.unfold(0, reach, 1).movedim(-1, 1)  # a view, [n, reach, ...]
    window = NStep(reach, window.gamma)
    size = max(1, _BLOCK_ELEMENTS // (reach * max(1, reward[:1].numel())))
    return torch.cat([window.total(block) for block in windows.split(size)])
