"""Hindsight experience replay: steps are replayed as if a state that was reached later had been the goal.

Andrychowicz et al., Hindsight Experience Replay, 2017, https://arxiv.org/abs/1707.01495. For a step t of an episode of T steps
the goal is the goal achieved at step

    future     t .. T - 1, uniformly            episode    0 .. T - 1, uniformly
    final      T - 1                            random     any step of the storage

and the reward is computed again. Goals are chosen with the batch, from the same generator: a seed repeats them, with and
without prefetching.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from tensordict import TensorDictBase
from typing_extensions import Unpack

from ...errors import SchemaError, UnknownKeyError, UsageError
from ..keywords import with_options
from .arguments import HindsightOptions
from .buffer import ReplayBuffer
from .draw import Draw
from .storages.storage import Storage
from .tensordict_buffer import TensorDictReplayBuffer
from .timeline import DONE, Edges, Key, Timeline, as_key


class HindsightStrategy(str, Enum):
    """Where goals are taken from, see `hindsight`."""

    FUTURE = "future"
    FINAL = "final"
    EPISODE = "episode"
    RANDOM = "random"


@dataclass
class HindsightRelabeling:
    """New goals and rewards for the first ``ratio`` of every batch.

    ``edges`` are tried in turn until one finds where the episodes of a storage end. The leaf ``goal``, and its successor under
    ``next`` if there is one, are replaced by the leaf ``achieved`` at the chosen step. ``terminated_fn`` returns which steps
    end the episode with their new goals; without it flags stay. ``done`` is the key of the done flag.
    """

    reward_fn: Callable[[TensorDictBase], torch.Tensor]
    ratio: float
    strategy: HindsightStrategy
    goal: str | Key
    achieved: str | Key
    reward: str | Key
    edges: tuple[Edges, ...]
    terminated_fn: Callable[[TensorDictBase], torch.Tensor] | None = None
    done: Key = DONE
    is_own_code = True

    def choose(self, draw: Draw, storage: Storage, generator: torch.Generator) -> None:
        """Set ``draw.goals``: for each of the first steps, the row from which its goal is taken, int64 ``[n]``."""
        rows = draw.rows()[: int(draw.steps * self.ratio)]
        if self.strategy is HindsightStrategy.RANDOM:
            draw.goals = torch.randint(len(storage), (len(rows),), generator=generator, device="cpu")
            return
        timeline = self._timeline(storage)
        position = timeline.positions(rows)
        episode = timeline.episode_of(position)
        low, high = timeline.extent_of(episode)
        if self.strategy is HindsightStrategy.FINAL:
            chosen = high - 1
        else:
            first = position if self.strategy is HindsightStrategy.FUTURE else low
            # One float64 each instead of one bounded integer: the bias is below 2^-53 times the length of the episode.
            share = torch.rand(len(rows), dtype=torch.float64, generator=generator, device="cpu")
            chosen = first + (share * (high - first)).long()
        draw.goals = timeline.rows(chosen)

    def _timeline(self, storage: Storage) -> Timeline:
        for edges in self.edges[:-1]:
            try:
                return storage.timeline(edges)
            except UsageError:
                continue
        return storage.timeline(self.edges[-1])

    def read(self, storage: Storage, rows: torch.Tensor) -> torch.Tensor:
        """The achieved goals at rows, ``[n, *goal]``. Raises UnknownKeyError."""
        key = as_key(self.achieved)
        if not len(rows):  # no step gets a new goal; a list of no records has no leaves
            return torch.zeros(0, device="cpu")
        values = storage._leaf_at(key, rows)
        if values is None:
            raise UnknownKeyError(f"the records have no achieved_goal_key {key}", hint=_HINT)
        return values

    def apply(self, batch: Any, achieved: torch.Tensor) -> Any:
        """Give the first steps of a batch their goals and rewards. Raises UnknownKeyError, SchemaError if they do not fit."""
        if not isinstance(batch, TensorDictBase):
            raise SchemaError(f"goals are replaced in TensorDicts, not in a {type(batch).__name__}")
        if not len(achieved):
            return batch
        goal, reward, count = as_key(self.goal), as_key(self.reward), len(achieved)
        if batch.get(goal, None) is None:
            raise UnknownKeyError(f"the records have no goal_key {goal}", hint=_HINT)
        for key in (goal, ("next", *goal)):
            stored = batch.get(key, None)
            if stored is not None:
                batch.set(key, _with_first(stored, achieved, count, "goals"))
        rewards = batch.get(reward, None)
        if rewards is None:
            raise UnknownKeyError(f"the records have no reward_key {reward}")
        computed = _computed(self.reward_fn, batch, rewards[:count])
        batch.set(reward, _with_first(rewards, computed, count, "rewards of reward_fn"))
        if self.terminated_fn is not None:
            self._end_episodes(batch, count)
        return batch

    def _end_episodes(self, batch: TensorDictBase, count: int) -> None:
        """Set the flags of the first steps by their new goals. Raises UnknownKeyError, SchemaError if shapes differ."""
        assert self.terminated_fn is not None
        key = (*self.done[:-1], "terminated")
        before = batch.get(key, None)
        if before is None:
            raise UnknownKeyError(f"the records have no {'/'.join(key)} that terminated_fn could replace")
        computed = _computed(self.terminated_fn, batch, before[:count])
        if computed.dtype != torch.bool:
            raise SchemaError(f"terminated_fn returned {computed.dtype}, not bool")
        after = _with_first(before, computed, count, "flags of terminated_fn")
        batch.set(key, after)
        done = batch.get(self.done, None)
        if done is not None:  # steps that are done for another reason stay done
            other = done.bool() & ~before.bool()
            truncated = batch.get((*self.done[:-1], "truncated"), None)
            other = other if truncated is None else other | truncated.bool()
            batch.set(self.done, torch.cat([(after.bool() | other)[:count].to(done), done[count:]]))


_HINT = "in datasets of Gymnasium-Robotics it lies below the observation: ('observation', 'desired_goal')"
_DTYPE = "store goals and rewards as float32, or in a dtype that holds those in hindsight as well"


def _computed(function: Callable[[TensorDictBase], torch.Tensor], batch: Any, like: torch.Tensor) -> torch.Tensor:
    """What a user's function returns for the first records of a batch, ``[n]`` or ``[n, 1]``, in the stored shape."""
    found = torch.as_tensor(function(batch[: len(like)]), device=like.device)
    return found.reshape(like.shape) if found.numel() == like.numel() else found


def _with_first(values: torch.Tensor, first: torch.Tensor, count: int, what: str) -> torch.Tensor:
    """A copy of ``values`` whose first ``count`` are ``first``, the same for all frames of a stack."""
    part = values[:count]
    if len(first) == count and first.ndim > 1 and first.shape[1:] == part.shape[2:]:
        first = first.unsqueeze(1).expand(part.shape)
    if first.shape != part.shape:
        raise SchemaError(f"the {what} have shape {tuple(first.shape)}, and {tuple(part.shape)} is stored")
    # Computed values may have fractions although the stored dtype is an integer.
    dtype = first.dtype if first.is_floating_point() and not values.is_floating_point() else values.dtype
    converted = first.to(values.device, dtype)
    if not dtype.is_floating_point and not torch.equal(converted.to(first), first):
        raise SchemaError(
            f"the {what} are {first.dtype}, and {dtype}, which is stored, cannot hold them all", hint=_DTYPE
        )
    return torch.cat([converted, values[count:].to(dtype)])


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
    """A field of the buffer's `HindsightRelabeling` as an attribute; an assignment takes effect with the next batch."""

    def get(self: Any) -> Any:
        return getattr(self._relabeling, field)

    def put(self: Any, value: Any) -> None:
        converted = convert(value)
        with self._exclusive():
            setattr(self._relabeling, field, converted)

    return property(get, put)


class HERReplayBuffer(TensorDictReplayBuffer):
    """A `TensorDictReplayBuffer` whose batches have goals and rewards in hindsight, see `hindsight`.

    - ``reward_fn``: gets the relabelled steps as a TensorDict, ``[n]``, and returns their rewards, ``[n]`` or ``[n, 1]``.
    - ``terminated_fn``: gets the relabelled steps, with their new goals and rewards, and returns bool ``[n]`` or ``[n, 1]``:
      which steps end the episode, for environments that end it at the goal. The result becomes ``terminated``, and ``done``
      follows. By default flags stay as stored, as in TorchRL, also where a step reaches its new goal or reached the stored one.
    - ``her_ratio``: the fraction of every batch that is relabelled, from its beginning; the rest is as stored.
    - ``strategy``: "future", "final", "episode" or "random".
    - ``goal_key``, ``achieved_goal_key``, ``reward_key``: the keys of goals, achieved goals and rewards. With
      ``achieved_goal_key=("next", "achieved_goal")`` goals are those achieved after the step, as in the paper; with the
      default, as in TorchRL, those achieved before the step.
    - ``end_key``: the flag that ends episodes; its sibling ``terminated`` ends them as well. By default the usual keys, or a
      dataset's episode table (see `Edges`). Goals never come from another episode, whatever the sampler draws.
    - all other ``options`` are those of `TensorDictReplayBuffer`.

    The buffer's transforms see the new goals. All but ``end_key`` may be assigned at any time.
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
        edges: tuple[Edges, ...] = (own, Edges(end_keys=(terminated,)))
        if not usual and own.traj_key is None:
            edges = (Edges(end_keys=(as_key(end_key), terminated)),)
        keys = (goal_key, achieved_goal_key, reward_key)
        self._relabeling = HindsightRelabeling(
            reward_fn, _ratio(her_ratio), _strategy(strategy), *keys, edges, terminated_fn, as_key(end_key)
        )
        self._change_spec(relabeling=self._relabeling)

    reward_fn = _assignable("reward_fn")
    terminated_fn = _assignable("terminated_fn")
    her_ratio = _assignable("ratio", _ratio)
    strategy = _assignable("strategy", _strategy)
    goal_key = _assignable("goal")
    achieved_goal_key = _assignable("achieved")
    reward_key = _assignable("reward")

    @property
    def end_key(self) -> Any:
        return self._end_key

    def __repr__(self) -> str:
        return (
            f"HERReplayBuffer(strategy={self.strategy.value!r}, her_ratio={self.her_ratio}, goal_key={self.goal_key!r}, "
            f"achieved_goal_key={self.achieved_goal_key!r}, reward_key={self.reward_key!r}, storage={self._storage!r})"
        )
