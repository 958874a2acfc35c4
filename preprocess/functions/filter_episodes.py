"""Episodes selected by return, length or outcome."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tensordict import TensorDictBase

from ...errors import UsageError
from .checks import bounds, choice, number, whole
from .leaves import episode_return, get
from .traits import Partial, Traits, fit_of_episodes

_OUTCOMES = ("terminated", "truncated")
#: What the limits must be.
_LIMITS: dict[str, Callable[[str, object], float]] = {
    "return": number,
    "length": partial(whole, low=1),
    "quantile": partial(number, low=0, high=1),
}


def _check(*, outcome: object, **limits: object) -> None:
    if outcome is None and all(value is None for value in limits.values()):
        hint = "for example --args min_quantile=0.9 for the tenth with the highest returns"
        raise UsageError("filter_episodes needs a condition", hint=hint)
    for what, check in _LIMITS.items():
        bounds(check, **{name: limits[name] for name in (f"min_{what}", f"max_{what}")})
    if outcome is not None:
        choice("outcome", outcome, _OUTCOMES)


def _needs_fit(*, min_quantile: float | None, max_quantile: float | None, **_: Any) -> bool:
    return min_quantile is not None or max_quantile is not None


def _finish(partial: Partial, *, min_quantile: float | None, max_quantile: float | None, **_: Any) -> dict[str, Any]:
    returns = partial["returns"].numpy()
    if not len(returns):
        return {"episodes": 0, "min_return": None, "max_return": None}
    import numpy as np

    low, high = (None if at is None else float(np.quantile(returns, at)) for at in (min_quantile, max_quantile))
    return {"episodes": len(returns), "min_return": low, "max_return": high}


_FIT = fit_of_episodes("returns", lambda td, **_: episode_return(td), _finish, _needs_fit)


@Traits("episode", fit=_FIT, ignores_observations=True, validate=_check)
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
    limits = [(min_return, max_return)]
    if statistics is not None:
        limits.append((statistics["min_return"], statistics["max_return"]))
    total, length = float(episode_return(td)), len(td)
    kept = all((low is None or total >= low) and (high is None or total <= high) for low, high in limits)
    kept &= (min_length is None or length >= min_length) and (max_length is None or length <= max_length)
    if outcome is not None and length:
        kept &= bool(get(td, "next/terminated").reshape(-1)[-1]) == (outcome == "terminated")
    return td if kept else None
