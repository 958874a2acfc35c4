"""Other rewards: computed by a function of yours, or by a rule that sees the whole episode.

Rules (``rule``), for an episode with rewards r_0 ... r_{n-1}, return G, and steps counted by t:

    success        1 where next/terminated is set, else 0: goal-reaching tasks that terminate at the goal
    steps_to_goal  0 where next/terminated is set, else -1: the same as a cost
    delayed        0, and G at the last step: dense to sparse
    even           G / n at every step: sparse to dense without knowing more (IRCR: Gangwani, Zhou & Peng, 2020)
    shaping        r_t + gamma phi(s_{t+1}) - phi(s_t), with phi = 0 after termination: sparse to dense with a potential,
                   the best policy stays the best (Ng, Harada & Russell, 1999). ``fn`` is phi
    return_range   1000 r_t / (highest return - lowest return), over all episodes: what IQL does for locomotion
                   (Kostrikov, Nair & Levine, 2021)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase

from ...errors import ResultError, UsageError
from .checks import choice, positive
from .leaves import get, observations, with_reward
from .traits import Fit, Partial, ready

_RULES = ("success", "steps_to_goal", "delayed", "even", "shaping", "return_range")

Rewards = Callable[[TensorDictBase], torch.Tensor]


def _check(fn: object = None, rule: object = None, gamma: object = None, keep: object = False) -> None:
    if rule is not None:
        choice("rule", rule, _RULES)
    if rule is None and fn is None:
        message = "relabel_rewards needs a function or a rule"
        raise UsageError(message, hint=f"--args fn=my.mod:reward, or --args rule= one of {', '.join(_RULES)}")
    if rule == "shaping":
        if fn is None:
            raise UsageError("shaping needs a potential", hint="--args fn=my.mod:phi, phi(td) -> [n]")
        if gamma is None:
            raise UsageError("shaping needs the gamma that will be trained with", hint="--args gamma=0.99")
        positive("gamma", gamma, high=1.0)
    elif gamma is not None:
        raise UsageError("gamma goes with rule=shaping")
    elif rule is not None and fn is not None:
        raise UsageError(f"rule={rule} computes the rewards: a function has nothing to do")
    if not isinstance(keep, bool):
        raise UsageError(f"keep is true or false, not {keep!r}")
    if fn is not None:
        _function(fn)


def _function(fn: object) -> Rewards:
    """A callable, or the one that a name like those of ``--fn`` stands for."""
    if isinstance(fn, str):
        from ..lookup import find_function

        return find_function(fn, Path.cwd())  # workers stand in the folder that the command was given in
    if not callable(fn):
        raise UsageError(f"fn must be a function or its name, and is {fn!r}")
    return fn


def _numbers(fn: Rewards, td: TensorDictBase, what: str) -> torch.Tensor:
    """What ``fn`` says of each step, float64 ``[n]``."""
    found = fn(td)
    if not isinstance(found, torch.Tensor) or found.shape not in ((len(td),), (len(td), 1)):
        came = f"{list(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
        raise ResultError(f"{what} must give a tensor [{len(td)}] or [{len(td)}, 1] for {len(td)} steps, not {came}")
    return found.reshape(-1).double()


def _shaped(td: TensorDictBase, reward: torch.Tensor, fn: Rewards, gamma: float) -> torch.Tensor:
    after = td.clone(False)
    for name in observations(td):
        after.set(tuple(name.split("/")), get(td, "next/" + name))
    later = _numbers(fn, after, "the potential").masked_fill(get(td, "next/terminated").reshape(-1), 0.0)
    return reward + gamma * later - _numbers(fn, td, "the potential")


# -- the range of returns ------------------------------------------------------------------------------------------------


def _needed(rule: str | None = None, **_: Any) -> bool:
    return rule == "return_range"


def _collect(td: TensorDictBase, **_: Any) -> Partial:
    total = get(td, "next/reward").double().sum()
    return {"low": total, "high": total}


def _merge(a: Partial, b: Partial) -> Partial:
    return {"low": torch.minimum(a["low"], b["low"]), "high": torch.maximum(a["high"], b["high"])}


def _finish(partial: Partial, **_: Any) -> dict[str, Any]:
    low, high = float(partial["low"]), float(partial["high"])
    if not low < high:
        raise UsageError(f"every episode returns {low:g}: rule=return_range has nothing to divide by")
    return {"min_return": low, "max_return": high}


@ready("episode", fit=Fit(_collect, _merge, _finish, _needed), check=_check)
def relabel_rewards(
    td: TensorDictBase,
    *,
    statistics: dict[str, Any] | None = None,
    fn: str | Rewards | None = None,
    rule: str | None = None,
    gamma: float | None = None,
    keep: bool = False,
) -> TensorDictBase:
    """``next/reward`` becomes what ``fn`` or ``rule`` says, in its own dtype and shape.

    - ``fn``: a function of the episode, ``fn(td) -> [n]`` or ``[n, 1]``, or its name as ``--fn`` takes it
      (``my.mod:reward``, ``file.py:reward``). It sees TED with batch ``[n]``, rewards as they were.
    - ``rule``: one of those above. With ``shaping``, ``fn`` is the potential: it is called twice, the second time with the next
      observations in the place of the observations; ``gamma`` is that of the training to come.
    - ``keep=True`` adds ``next/original_reward``.

    Raises UsageError for arguments that do not go together, ResultError where ``fn`` gives something else.
    """
    _check(fn, rule, gamma, keep)
    old = get(td, "next/reward")
    reward, terminated = old.reshape(-1).double(), get(td, "next/terminated").reshape(-1)
    if rule == "shaping":
        new = _shaped(td, reward, _function(fn), gamma)  # type: ignore[arg-type]
    elif rule is None:
        new = _numbers(_function(fn), td, "a reward function")
    elif rule == "success":
        new = terminated.double()
    elif rule == "steps_to_goal":
        new = terminated.double() - 1
    elif rule == "delayed":
        new = torch.zeros_like(reward)
        new[-1:] = reward.sum()
    elif rule == "even":
        new = (reward.sum() / max(1, len(reward))).expand_as(reward)
    else:
        if statistics is None:
            message = "relabel_rewards has no statistics: it cannot know the returns of episodes it has not seen"
            raise UsageError(message, hint="run it through rbdata.preprocess")
        new = reward * (1000 / (statistics["max_return"] - statistics["min_return"]))
    out = with_reward(td, new)
    if keep:
        out.set(("next", "original_reward"), old)
    return out
