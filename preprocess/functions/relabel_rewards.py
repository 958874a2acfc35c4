"""Rewards computed by a user's function, or by a rule over the whole episode.

Rules (``rule``), for an episode with rewards r_0 ... r_{n-1}, return G, and steps counted by t:

    success        1 where next/terminated is set, else 0: goal-reaching tasks that terminate at the goal
    steps_to_goal  0 where next/terminated is set, else -1: the same as a cost
    delayed        0, and G at the last step: dense to sparse
    even           G / n at every step: sparse to dense (IRCR: Gangwani, Zhou & Peng, 2020)
    shaping        r_t + gamma phi(s_{t+1}) - phi(s_t), with phi = 0 after termination: sparse to dense; the
                   optimal policies stay the same (Ng, Harada & Russell, 1999). ``fn`` is phi
    return_range   1000 r_t / (highest return - lowest return), over all episodes: the scaling of IQL for locomotion
                   (Kostrikov, Nair & Levine, 2021)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase

from ...errors import ResultError, UsageError
from .checks import boolean, choice, positive
from .leaves import episode_return, get, observations, with_reward
from .traits import Fit, Partial, Traits

_RULES = ("success", "steps_to_goal", "delayed", "even", "shaping", "return_range")

Rewards = Callable[[TensorDictBase], torch.Tensor]


def _check(fn: object, rule: object, gamma: object, keep: object) -> None:
    if rule is not None:
        choice("rule", rule, _RULES)
    if rule is None and fn is None:
        message = "relabel_rewards needs a function or a rule"
        raise UsageError(message, hint=f"--args fn=my.mod:reward, or --args rule= one of {', '.join(_RULES)}")
    if rule == "shaping":
        if fn is None:
            raise UsageError("shaping needs a potential", hint="--args fn=my.mod:phi, phi(td) -> [n]")
        if gamma is None:
            raise UsageError("shaping needs the discount gamma of the training", hint="--args gamma=0.99")
        positive("gamma", gamma, high=1.0)
    elif gamma is not None:
        raise UsageError("gamma goes with rule=shaping")
    elif rule is not None and fn is not None:
        raise UsageError(f"rule={rule} takes no fn")
    boolean("keep", keep)
    if fn is not None:
        _resolve(fn)


def _resolve(fn: object) -> Rewards:
    """A callable, or the function that a text in the form of ``--fn`` names."""
    if isinstance(fn, str):
        from .lookup import find_function

        return find_function(fn, Path.cwd())  # workers run in the folder of the command
    if not callable(fn):
        raise UsageError(f"fn must be a function or its name, and is {fn!r}")
    return fn


def _evaluate(fn: Rewards, td: TensorDictBase, what: str) -> torch.Tensor:
    """The result of ``fn`` for each step, float64 ``[n]``."""
    values = fn(td.clone())  # which it may change
    if not isinstance(values, torch.Tensor) or values.shape not in ((len(td),), (len(td), 1)):
        actual = f"{list(values.shape)}" if isinstance(values, torch.Tensor) else type(values).__name__
        raise ResultError(
            f"{what} must return a tensor [{len(td)}] or [{len(td)}, 1] for {len(td)} steps, not {actual}"
        )
    return values.reshape(-1).double()


def _shaped(td: TensorDictBase, reward: torch.Tensor, fn: Rewards, gamma: float) -> torch.Tensor:
    after = td.clone(False)
    for name in observations(td):
        after.set(tuple(name.split("/")), get(td, "next/" + name))
    later = _evaluate(fn, after, "the potential").masked_fill(get(td, "next/terminated").reshape(-1), 0.0)
    return reward + gamma * later - _evaluate(fn, td, "the potential")


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


@Traits("episode", fit=Fit(_collect, _merge, _finish, lambda rule, **_: rule == "return_range"), validate=_check)
def relabel_rewards(
    td: TensorDictBase,
    *,
    statistics: dict[str, Any] | None = None,
    fn: str | Rewards | None = None,
    rule: str | None = None,
    gamma: float | None = None,
    keep: bool = False,
) -> TensorDictBase:
    """``next/reward`` becomes the result of ``fn`` or ``rule``, in its present dtype and shape.

    - ``fn``: a function of the episode, ``fn(td) -> [n]`` or ``[n, 1]``, or its name in the form of ``--fn``
      (``my.mod:reward``, ``file.py:reward``). It gets TED with batch ``[n]`` and the present rewards.
    - ``rule``: one of the rules of this module. With ``shaping``, ``fn`` is the potential, which is called twice, the second
      time with the next observations in place of the observations; ``gamma`` is the discount of the training.
    - ``keep=True`` adds ``next/original_reward``.

    Raises UsageError for arguments that exclude each other, ResultError where ``fn`` returns another shape.
    """
    old = get(td, "next/reward")
    reward, terminated = old.reshape(-1).double(), get(td, "next/terminated").reshape(-1)
    if rule == "shaping":
        new = _shaped(td, reward, _resolve(fn), gamma)  # type: ignore[arg-type]
    elif rule is None:
        new = _evaluate(_resolve(fn), td, "a reward function")
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
        assert statistics is not None
        new = reward * (1000 / (statistics["max_return"] - statistics["min_return"]))
    out = with_reward(td, new)
    if keep:
        out.set(("next", "original_reward"), old)
    return out
