"""Functions that select episodes and steps: by return, length or outcome, without idle ends, every k-th, a random fraction.

The fraction is drawn by a hash of the contents of each episode and of the seed: it does not depend on chunks, processes or
other episodes, and a smaller fraction is a subset of a larger one with the same seed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Any

import torch
from tensordict import TensorDictBase

from ...errors import UsageError
from ...storage.schema import LARGE_ROW
from .checks import bounds, choice, key_list, number, positive, whole
from .leaves import check_new, episode_return, get, paths
from .traits import Partial, Traits, fit_of_episodes


@Traits("batch", ignores_observations=True)
def identity(td: TensorDictBase) -> TensorDictBase:
    """Return the steps as they are: to copy some of a dataset, or several into one."""
    return td


_OUTCOMES = ("terminated", "truncated")
#: What the limits must be.
_LIMITS: dict[str, Callable[[str, object], float]] = {
    "return": number,
    "length": partial(whole, low=1),
    "quantile": partial(number, low=0, high=1),
}


def _check_filter(*, outcome: object, **limits: object) -> None:
    if outcome is None and all(value is None for value in limits.values()):
        hint = "for example --args min_quantile=0.9 for the tenth with the highest returns"
        raise UsageError("filter_episodes needs a condition", hint=hint)
    for what, check in _LIMITS.items():
        bounds(check, **{name: limits[name] for name in (f"min_{what}", f"max_{what}")})
    if outcome is not None:
        choice("outcome", outcome, _OUTCOMES)


def _needs_fit(*, min_quantile: float | None, max_quantile: float | None, **_: Any) -> bool:
    return min_quantile is not None or max_quantile is not None


def _finish_filter(
    partial: Partial, *, min_quantile: float | None, max_quantile: float | None, **_: Any
) -> dict[str, Any]:
    returns = partial["returns"].numpy()
    if not len(returns):
        return {"episodes": 0, "min_return": None, "max_return": None}
    import numpy as np

    low, high = (None if at is None else float(np.quantile(returns, at)) for at in (min_quantile, max_quantile))
    return {"episodes": len(returns), "min_return": low, "max_return": high}


_FILTER_FIT = fit_of_episodes("returns", lambda td, **_: episode_return(td), _finish_filter, _needs_fit)


@Traits("episode", fit=_FILTER_FIT, ignores_observations=True, validate=_check_filter)
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


def _check_trim(threshold: object, key: object) -> None:
    number("threshold", threshold, low=0)
    key_list("key", key)


@Traits("episode", validate=_check_trim)
def trim(td: TensorDictBase, *, threshold: float = 0.0, key: str = "action") -> TensorDictBase | None:
    """Leave out the idle steps at the beginning and at the end of the episode; None, which drops it, where all are idle.

    A step is idle where the Euclidean norm of all numbers of its action, the leaf ``key``, is at most ``threshold``. Idle steps
    between others stay, and so does the end of an episode that terminated. The rewards of steps that are left out are lost.

    Raises UsageError unless there is such a leaf, of floating-point numbers: number 0 of a choice may be any action.
    """
    if key not in paths(td):
        raise UsageError(f"trim needs a leaf {key}; there are {', '.join(paths(td))}", hint="--args trim.key=LEAF")
    action = get(td, key)
    if not action.is_floating_point():
        what = f"{str(action.dtype).removeprefix('torch.')} {list(action.shape[1:])}"
        message = f"trim needs actions of floating-point numbers, and {key} is {what}"
        raise UsageError(message, hint="write a function that knows which of the actions does nothing")
    moves = (action.reshape(len(td), -1).double().norm(dim=1) > threshold).nonzero().view(-1)
    if not len(moves):
        return None
    ended = bool(get(td, "next/terminated").reshape(len(td), -1)[-1].any())
    return td[int(moves[0]) : len(td) if ended else int(moves[-1]) + 1]


def _check_subsample(every: object, gamma: object, fraction: object, seed: object) -> None:
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


def _finish_subsample(partial: Partial, *, fraction: float, **_: Any) -> dict[str, Any]:
    draws = partial["draws"].sort().values
    kept = max(1, round(fraction * len(draws)))
    return {"episodes": len(draws), "kept": kept, "threshold": int(draws[kept - 1]) if len(draws) else 0}


_SUBSAMPLE_FIT = fit_of_episodes(
    "draws",
    lambda td, seed, **_: torch.tensor(_draw(td, seed)),
    _finish_subsample,
    lambda fraction, **_: fraction is not None,
)


# -- every k-th step -----------------------------------------------------------------------------------------------------


def _every(td: TensorDictBase, every: int, gamma: float) -> TensorDictBase:
    check_new(td, "steps_to_next_obs", "gamma")
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


@Traits("episode", fit=_SUBSAMPLE_FIT, validate=_check_subsample)
def subsample(
    td: TensorDictBase,
    *,
    statistics: dict[str, Any] | None = None,
    every: int | None = None,
    gamma: float = 1.0,
    fraction: float | None = None,
    seed: int = 0,
) -> TensorDictBase | None:
    """Keep either ``every`` k-th step of each episode, or a random ``fraction`` of the episodes.

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
