"""Hindsight experience replay: steps are replayed as if a state reached later had been the goal.

Andrychowicz et al., Hindsight Experience Replay, 2017, https://arxiv.org/abs/1707.01495. For a step t of an episode of T steps
the goal is what was achieved at step

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

from ...errors import SchemaError, UnknownKeyError, UsageError
from .draw import Draw
from .overrides import reads_by_get
from .storages.dataset_storage import DatasetStorage
from .storages.storage import Storage
from .storages.trees import stack_records
from .timeline import DONE, Edges, Key, Timeline


class HindsightStrategy(str, Enum):
    """Where goals are taken from, see `hindsight`."""

    FUTURE = "future"
    FINAL = "final"
    EPISODE = "episode"
    RANDOM = "random"


@dataclass
class Relabeling:
    """New goals and rewards for the first ``ratio`` of every batch.

    ``edges`` are tried in turn until one finds where the episodes of a storage end. ``goal`` is replaced, and the one under
    ``next`` where there is one, by what is stored under ``achieved`` at the step chosen. ``terminated_fn`` says which of the
    steps end the episode with their new goals; without it flags stay. ``done`` is where they lie.
    """

    reward_fn: Callable[[TensorDictBase], torch.Tensor]
    ratio: float
    strategy: HindsightStrategy
    goal: Key
    achieved: Key
    reward: Key
    edges: tuple[Edges, ...]
    terminated_fn: Callable[[TensorDictBase], torch.Tensor] | None = None
    done: Key = DONE

    def choose(self, draw: Draw, storage: Storage, generator: torch.Generator) -> None:
        """Set ``draw.goals``: for each of the first steps the row that its goal is taken from, int64 ``[n]``."""
        places = draw.indices()[: int(draw.steps * self.ratio)]
        if self.strategy is HindsightStrategy.RANDOM:
            draw.goals = torch.randint(len(storage), (len(places),), generator=generator)
            return
        timeline = self._timeline(storage)
        position = timeline.positions(places if draw.timeline is None else draw.timeline.rows(places))
        episode = timeline.episode_of(position)
        low, high = timeline.starts[episode], timeline.starts[episode + 1]
        if self.strategy is HindsightStrategy.FINAL:
            chosen = high - 1
        else:
            first = position if self.strategy is HindsightStrategy.FUTURE else low
            # One float64 each instead of one bounded integer: the bias is below 2^-53 times the length of the episode.
            share = torch.rand(len(places), dtype=torch.float64, generator=generator)
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
        """What was achieved at rows, ``[n, *goal]``. Raises UnknownKeyError."""
        values = _column_at(storage, self.achieved, rows)
        if values is None:
            raise UnknownKeyError(f"the records have no achieved_goal_key {self.achieved}", hint=_HINT)
        return values

    def apply(self, batch: Any, achieved: torch.Tensor) -> Any:
        """Give the first steps of a batch their goals and rewards. Raises UnknownKeyError, SchemaError for unlike shapes."""
        if not isinstance(batch, TensorDictBase):
            raise SchemaError(f"goals are replaced in TensorDicts, not in a {type(batch).__name__}")
        if not len(achieved):
            return batch
        goals = batch.get(self.goal, None)
        if goals is None:
            raise UnknownKeyError(f"the records have no goal_key {self.goal}", hint=_HINT)
        count = len(achieved)
        batch.set(self.goal, _with_first(goals, achieved, count, "goals"))
        following = batch.get(("next", *self.goal), None)
        if following is not None:
            batch.set(("next", *self.goal), _with_first(following, achieved, count, "goals"))
        rewards = batch.get(self.reward, None)
        if rewards is None:
            raise UnknownKeyError(f"the records have no reward_key {self.reward}")
        computed = torch.as_tensor(self.reward_fn(batch[:count]))
        if computed.numel() == rewards[:count].numel():  # [n] or [n, 1]
            computed = computed.reshape(rewards[:count].shape)
        batch.set(self.reward, _with_first(rewards, computed, count, "rewards of reward_fn"))
        if self.terminated_fn is not None:
            self._end_episodes(batch, count)
        return batch

    def _end_episodes(self, batch: TensorDictBase, count: int) -> None:
        """Set the flags of the first steps by their new goals. Raises UnknownKeyError, SchemaError for unlike shapes."""
        assert self.terminated_fn is not None
        key = (*self.done[:-1], "terminated")
        before = batch.get(key, None)
        if before is None:
            raise UnknownKeyError(f"the records have no {'/'.join(key)} that terminated_fn could replace")
        computed = torch.as_tensor(self.terminated_fn(batch[:count]))
        if computed.dtype != torch.bool:
            raise SchemaError(f"terminated_fn returned {computed.dtype}, not bool")
        if computed.numel() == before[:count].numel():
            computed = computed.reshape(before[:count].shape)
        after = _with_first(before, computed, count, "flags of terminated_fn")
        batch.set(key, after)
        done = batch.get(self.done, None)
        if done is not None:  # what ended for another reason has ended still
            other = done.bool() & ~before.bool()
            truncated = batch.get((*self.done[:-1], "truncated"), None)
            other = other if truncated is None else other | truncated.bool()
            batch.set(self.done, torch.cat([(after.bool() | other)[:count].to(done), done[count:]]))


_HINT = "in datasets of Gymnasium-Robotics it lies below the observation: ('observation', 'desired_goal')"


def _with_first(values: torch.Tensor, first: torch.Tensor, count: int, what: str) -> torch.Tensor:
    """A copy of ``values`` whose first ``count`` are ``first``, the same for all frames of a stack."""
    part = values[:count]
    if len(first) == count and first.ndim > 1 and first.shape[1:] == part.shape[2:]:
        first = first.unsqueeze(1).expand(part.shape)
    if first.shape != part.shape:
        raise SchemaError(f"the {what} have shape {tuple(first.shape)}, and {tuple(part.shape)} is stored")
    # What is computed may have fractions where whole numbers are stored.
    dtype = first.dtype if first.is_floating_point() and not values.is_floating_point() else values.dtype
    return torch.cat([first.to(values.device, dtype), values[count:].to(dtype)])


def _column_at(storage: Storage, key: Key, rows: torch.Tensor) -> torch.Tensor | None:
    """One leaf at flat rows, ``[n, *shape]``; None where there is none."""
    name = "/".join(key)
    if isinstance(storage, DatasetStorage) and not reads_by_get(storage):
        leaves = storage.dataset.rows
        root = name if name in leaves else name.removeprefix("next/")
        if root not in leaves:
            return None
        found: torch.Tensor | None = storage.dataset.read(rows, keys=[root]).get(tuple(name.split("/")), None)
        return None if found is None else found[:, 0]
    fields = None if reads_by_get(storage) else storage.fields()
    if fields is not None:
        return fields[name].take(rows) if name in fields else None
    records = stack_records(storage.get(storage.coordinates(rows)))
    return records.get(key, None) if isinstance(records, TensorDictBase) else None
