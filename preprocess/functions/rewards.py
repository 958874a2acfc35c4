"""Functions of rewards: limited to a range, scaled, relabelled, summed to returns-to-go or n-step returns.

`relabel_rewards` applies a rule to the whole episode. For an episode with rewards r_0 ... r_{n-1}, return G, and steps counted
by t:

    success        1 where next/terminated is set, else 0: goal-reaching tasks that terminate at the goal
    steps_to_goal  0 where next/terminated is set, else -1: the same as a cost
    delayed        0, and G at the last step: dense to sparse
    even           G / n at every step: sparse to dense (IRCR: Gangwani, Zhou & Peng, 2020)
    return_range   1000 r_t / (highest return - lowest return), over all episodes: the scaling of IQL for locomotion
                   (Kostrikov, Nair & Levine, 2021)

`returns_to_go`, the sum of a reward and all later ones, is the condition of the Decision Transformer. `n_step` stores what
`rbdata.load(..., n_step=n)` computes while sampling.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase

from ...errors import UsageError
from ...storage.amounts import MOST_RECORDS
from ...storage.leaf import check_key
from ...storage.replay.around import NStep
from .checks import boolean, bounds, choice, number, positive, whole
from .leaves import check_finite, check_new, episode_return, get, paths, with_reward
from .traits import Fit, Partial, Traits


def _check_clip(low: object, high: object, sign: object) -> None:
    bounds(number, low=low, high=high)
    if boolean("sign", sign) and (low, high) != (-1.0, 1.0):
        raise UsageError("sign=true gives -1, 0 or 1: low and high do not apply")
    if low is None and high is None:
        raise UsageError("clip_rewards needs low, high, or both")


@Traits("batch", ignores_observations=True, validate=_check_clip)
def clip_rewards(
    td: TensorDictBase, *, low: float | None = -1.0, high: float | None = 1.0, sign: bool = False
) -> TensorDictBase:
    """Limit ``next/reward`` to ``[low, high]`` (Mnih et al., 2015: [-1, 1]); None leaves that side open.

    ``sign=True`` keeps only the sign: -1, 0 or 1. NaN stays NaN. Raises UsageError for ``low`` above ``high``, without
    bounds, and for bounds together with ``sign``.
    """
    reward = get(td, "next/reward")
    return with_reward(td, torch.sign(reward) if sign else reward.clamp(low, high))


def _check_scale(scale: object, shift: object) -> None:
    if number("scale", scale) == 0:
        raise UsageError("scale=0 would make every reward the same", hint="give a scale that is not 0")
    if scale == 1 and number("shift", shift) == 0:
        raise UsageError("scale_rewards needs a scale or a shift", hint="for example --args scale=0.1")
    number("shift", shift)


@Traits("batch", ignores_observations=True, validate=_check_scale)
def scale_rewards(td: TensorDictBase, *, scale: float = 1.0, shift: float = 0.0) -> TensorDictBase:
    """Make ``next/reward`` ``scale * reward + shift``, computed in float64, in the dtype of the reward.

    ``shift=-1`` is the map of IQL (Kostrikov et al., 2021) for AntMaze, ``scale=4, shift=-2`` that of CQL (4 (r - 0.5)).
    Raises UsageError for arguments that change nothing, and for scale 0.
    """
    return with_reward(td, get(td, "next/reward").double() * scale + shift)


_RULES = ("success", "steps_to_goal", "delayed", "even", "return_range")


def _check_relabel(rule: object, keep: object) -> None:
    choice("rule", rule, _RULES)
    boolean("keep", keep)


# -- the range of returns ------------------------------------------------------------------------------------------------


def _collect(td: TensorDictBase, **_: Any) -> Partial:
    total = episode_return(td)
    return {"low": total, "high": total}


def _merge(a: Partial, b: Partial) -> Partial:
    return {"low": torch.minimum(a["low"], b["low"]), "high": torch.maximum(a["high"], b["high"])}


def _finish(partial: Partial, **_: Any) -> dict[str, Any]:
    low, high = float(partial["low"]), float(partial["high"])
    if not low < high:
        raise UsageError(f"every episode has the return {low:g}: the range of rule=return_range is zero")
    return {"min_return": low, "max_return": high}


@Traits(
    "episode",
    fit=Fit(_collect, _merge, _finish, lambda rule, **_: rule == "return_range"),
    ignores_observations=True,
    validate=_check_relabel,
)
def relabel_rewards(
    td: TensorDictBase, *, statistics: dict[str, Any] | None = None, rule: str, keep: bool = False
) -> TensorDictBase:
    """Make ``next/reward`` what a ``rule`` of this module says, in its present dtype and shape.

    ``keep=True`` adds ``next/original_reward``. Raises UsageError for a kept reward that exists.
    """
    if keep:
        check_new(td, "next/original_reward")
    old = get(td, "next/reward")
    reward, terminated = old.reshape(-1).double(), get(td, "next/terminated").reshape(-1)
    if rule == "success":
        new = terminated.double()
    elif rule == "steps_to_goal":
        new = terminated.double() - 1
    elif rule == "delayed":
        new = torch.zeros_like(reward)
        new[-1:] = reward.sum()
    elif rule == "even":
        new = (reward.sum() / max(1, len(reward))).expand_as(reward)
    else:
        assert statistics is not None
        new = reward * (1000 / (statistics["max_return"] - statistics["min_return"]))
    out = with_reward(td, new)
    if keep:
        out.set(("next", "original_reward"), old)
    return out


def _check_returns(gamma: object, key: object) -> None:
    positive("gamma", gamma, high=1.0)
    if not isinstance(key, str):
        raise UsageError(f"key must be a string, and is {key!r}")
    check_key(key)


@Traits("episode", ignores_observations=True, validate=_check_returns)
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


#: Windows of rewards are summed for about this many elements at a time.
_BLOCK_ELEMENTS = 1 << 20


def _check_n_step(n: object, gamma: object) -> None:
    whole("n", n, low=1, high=MOST_RECORDS)
    positive("gamma", gamma, high=1.0)


@Traits("episode", validate=_check_n_step)
def n_step(td: TensorDictBase, *, n: int, gamma: float = 0.99) -> TensorDictBase:
    """Give each step the rewards of up to ``n`` steps and the successor after them; the number of steps stays.

        next/reward           r_t + gamma r_{t+1} + ... over the k <= n steps taken (Sutton, 1988)
        next/...              the other leaves under next of the last of these steps: observation, flags
        next/original_reward  r_t
        steps_to_next_obs     k, int64 [n]
        gamma                 gamma^k, float32 [n], the factor of the value of the next state

    The keys and values are those of the batches of ``rbdata.load(..., n_step=n, gamma=gamma)``, except for the ends of
    episodes: overlapping steps do not form a trajectory, and slices and frame stacks would be wrong where the next observation
    is not the one of the following row. So with n > 1 every step becomes its own episode, truncated where it does not
    terminate (bootstrapping needs ``terminated`` only). Raises UsageError for n < 1, for gamma outside (0, 1], where one
    of the three added leaves exists, and for rewards beside ``next/reward`` (of each agent, say), which are not summed.
    """
    check_new(td, "next/original_reward", "steps_to_next_obs", "gamma")
    window, length = NStep(n, float(gamma)), len(td)
    window.check_rewards(paths(td))
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
