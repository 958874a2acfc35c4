"""Episodes selected by return, length or outcome."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase

from ...errors import UsageError
from .checks import bounds, choice, number, whole
from .leaves import get
from .traits import Fit, Partial, builtin

_OUTCOMES = ("terminated", "truncated")


def _check(
    min_return: object = None,
    max_return: object = None,
    min_length: object = None,
    max_length: object = None,
    min_quantile: object = None,
    max_quantile: object = None,
    outcome: object = None,
) -> None:
    given = (min_return, max_return, min_length, max_length, min_quantile, max_quantile, outcome)
    if all(value is None for value in given):
        hint = "for example --args min_quantile=0.9 for the tenth with the highest returns"
        raise UsageError("filter_episodes needs a condition", hint=hint)
    bounds("min_return", min_return, "max_return", max_return)
    for name, value in (("min_length", min_length), ("max_length", max_length)):
        if value is not None:
            whole(name, value, low=1)
    bounds("min_length", min_length, "max_length", max_length)
    for name, value in (("min_quantile", min_quantile), ("max_quantile", max_quantile)):
        if value is not None:
            number(name, value, low=0, high=1)
    bounds("min_quantile", min_quantile, "max_quantile", max_quantile)
    if outcome is not None:
        choice("outcome", outcome, _OUTCOMES)


def _needed(min_quantile: float | None = None, max_quantile: float | None = None, **_: Any) -> bool:
    return min_quantile is not None or max_quantile is not None


def _return(td: TensorDictBase) -> torch.Tensor:
    """The episode's return, float64 ``[1]``."""
    return get(td, "next/reward").double().sum().reshape(1)


def _collect(td: TensorDictBase, **_: Any) -> Partial:
    return {"returns": _return(td)}


def _merge(a: Partial, b: Partial) -> Partial:
    return {"returns": torch.cat([a["returns"], b["returns"]])}


def _finish(
    partial: Partial, *, min_quantile: float | None = None, max_quantile: float | None = None, **_: Any
) -> dict[str, Any]:
    returns = partial["returns"].numpy()
    if not len(returns):
        return {"episodes": 0, "min_return": None, "max_return": None}
    import numpy as np

    low, high = (None if at is None else float(np.quantile(returns, at)) for at in (min_quantile, max_quantile))
    return {"episodes": len(returns), "min_return": low, "max_return": high}


@builtin("episode", fit=Fit(_collect, _merge, _finish, _needed), ignores_observations=True, check=_check)
def filter_episodes(
    td: TensorDictBase,
    *,
    statistics: dict[str, Any] | None = None,
    min_return: float | None = None,
    max_return: float | None = None,
    min_length: int | None = None,
    max_length: int | None = None,
    min_quantile: float | None = None,
    max_quantile: float | None = None,
    outcome: str | None = None,
) -> TensorDictBase | None:
    """Return the episode where it meets every condition (bounds included), else None, which drops it.

    - ``min_return``, ``max_return``: bounds of the sum of its rewards.
    - ``min_length``, ``max_length``: bounds of its number of steps.
    - ``min_quantile``, ``max_quantile``: bounds of its return as quantiles, in [0, 1], of the returns of all episodes (linear
      interpolation, as ``numpy.quantile``). ``min_quantile=0.9`` keeps the tenth with the highest returns (10 % behaviour
      cloning). A first pass computes them; ``statistics`` are ``{"episodes", "min_return", "max_return"}``.
    - ``outcome``: ``terminated`` or ``truncated`` (episodes cut by the recording included), from the last step.

    Raises UsageError without a condition, and for a lower bound above the upper one.
    """
    _check(min_return, max_return, min_length, max_length, min_quantile, max_quantile, outcome)
    limits = [(min_return, max_return)]
    if _needed(min_quantile, max_quantile):
        if statistics is None:
            message = "filter_episodes has no statistics, which quantiles need"
            raise UsageError(message, hint="run it through rbdata.preprocess")
        limits.append((statistics["min_return"], statistics["max_return"]))
    total, length = float(_return(td)), len(td)
    kept = all((low is None or total >= low) and (high is None or total <= high) for low, high in limits)
    kept &= (min_length is None or length >= min_length) and (max_length is None or length <= max_length)
    if outcome is not None and length:
        kept &= bool(get(td, "next/terminated").reshape(-1)[-1]) == (outcome == "terminated")
    return td if kept else None
