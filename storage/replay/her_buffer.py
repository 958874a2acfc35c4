"""A buffer of hindsight experience replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from typing_extensions import Unpack

from ...errors import UsageError
from ..keywords import with_options
from .buffer import ReplayBuffer
from .buffer_options import HindsightOptions
from .hindsight import HindsightStrategy, Relabeling
from .tensordict_buffer import TensorDictReplayBuffer
from .timeline import DONE, Edges, as_key


def _ratio(ratio: Any) -> float:
    if not 0 <= ratio <= 1:
        raise UsageError(f"her_ratio must be between 0 and 1, and is {ratio!r}")
    return float(ratio)


def _strategy(strategy: Any) -> HindsightStrategy:
    try:
        return HindsightStrategy(strategy)
    except ValueError as error:
        known = ", ".join(each.value for each in HindsightStrategy)
        raise UsageError(f"there is no strategy {strategy!r}", hint=f"there are {known}") from error


def _assignable(field: str, convert: Callable[[Any], Any] = lambda value: value) -> Any:
    """An attribute that is a field of the buffer's `Relabeling`, and acts from the next batch on when it is assigned."""

    def get(self: Any) -> Any:
        return self._keys.get(field, getattr(self._relabeling, field))

    def put(self: Any, value: Any) -> None:
        converted = convert(value)
        with self._exclusive():
            setattr(self._relabeling, field, converted)
            if field in self._keys:
                self._keys[field] = value

    return property(get, put)


class HERReplayBuffer(TensorDictReplayBuffer):
    """A `TensorDictReplayBuffer` whose batches have goals and rewards in hindsight, see `hindsight`.

    - ``reward_fn``: gets the relabelled steps as a TensorDict, ``[n]``, and returns their rewards, ``[n]`` or ``[n, 1]``.
    - ``terminated_fn``: gets the relabelled steps, with their new goals and rewards, and returns bool ``[n]`` or
      ``[n, 1]``: which of them end the episode, for environments that end it where the goal is reached. Their
      ``terminated`` becomes that, and ``done`` follows. By default flags stay as they are stored, as in TorchRL: a step
      that reaches its new goal is then not terminated, and one that reached the stored goal still is.
    - ``her_ratio``: the part of every batch that is relabelled, from its beginning; the rest is as stored.
    - ``strategy``: "future", "final", "episode" or "random".
    - ``goal_key``, ``achieved_goal_key``, ``reward_key``: where goals, what was achieved, and rewards are stored. With
      ``achieved_goal_key=("next", "achieved_goal")`` goals are what steps led to, as in the paper; the default, as in
      TorchRL, is what was achieved before the step.
    - ``end_key``: the flag that ends episodes; its sibling ``terminated`` ends them as well. By default the usual keys, or a
      dataset's episode table (see `Edges`). Goals never come from another episode, whatever the sampler draws.
    - all other ``options`` are those of `TensorDictReplayBuffer`.

    Goals are replaced before the buffer's transforms are applied, which therefore see the new ones. All but ``end_key`` may be
    assigned at any time.
    """

    @with_options(HindsightOptions, ReplayBuffer.__init__, TensorDictReplayBuffer.__init__)
    def __init__(
        self,
        reward_fn: Callable[[TensorDictBase], torch.Tensor],
        *,
        terminated_fn: Callable[[TensorDictBase], torch.Tensor] | None = None,
        her_ratio: float = 0.8,
        strategy: HindsightStrategy | str = HindsightStrategy.FUTURE,
        goal_key: Any = "desired_goal",
        achieved_goal_key: Any = "achieved_goal",
        reward_key: Any = ("next", "reward"),
        end_key: Any = DONE,
        **options: Unpack[HindsightOptions],
    ) -> None:
        if options.get("n_step") is not None:
            raise UsageError("reward_fn computes the rewards of single steps: leave out n_step")
        usual = as_key(end_key) == DONE
        super().__init__(end_key=None if usual else end_key, **options)
        self._end_key = end_key
        terminated = (*as_key(end_key)[:-1], "terminated")
        own = self._spec.edges
        assert own is not None
        edges: tuple[Edges, ...] = (own, Edges(end_keys=(terminated,)))
        if not usual and own.traj_key is None:
            edges = (Edges(end_keys=(as_key(end_key), terminated)),)
        keys = (as_key(goal_key), as_key(achieved_goal_key), as_key(reward_key))
        relabeling = Relabeling(
            reward_fn, _ratio(her_ratio), _strategy(strategy), *keys, edges, terminated_fn, as_key(end_key)
        )
        self._relabeling = relabeling
        self._keys = {"goal": goal_key, "achieved": achieved_goal_key, "reward": reward_key}
        self._change_spec(relabeling=relabeling)

    reward_fn = _assignable("reward_fn")
    terminated_fn = _assignable("terminated_fn")
    her_ratio = _assignable("ratio", _ratio)
    strategy = _assignable("strategy", _strategy)
    goal_key = _assignable("goal", as_key)
    achieved_goal_key = _assignable("achieved", as_key)
    reward_key = _assignable("reward", as_key)

    @property
    def end_key(self) -> Any:
        return self._end_key

    def __repr__(self) -> str:
        return (
            f"HERReplayBuffer(strategy={self.strategy.value!r}, her_ratio={self.her_ratio}, goal_key={self.goal_key!r}, "
            f"achieved_goal_key={self.achieved_goal_key!r}, reward_key={self.reward_key!r}, storage={self._storage!r})"
        )
