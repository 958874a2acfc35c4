"""Goals for data that store none: states of the dataset, drawn for each step of a batch by the mixture of OGBench.

Park et al., OGBench, 2025, https://arxiv.org/abs/2410.20092; the rule is that of ``GCDataset.sample_goals`` in
https://github.com/seohongpark/ogbench (impls/utils/datasets.py). For step t of an episode whose last step is T - 1 the goal is
what is stored under ``goal_key`` at step

    current        t
    trajectory     min(t + k, T - 1), where P(k) = (1 - g) g^(k-1), k >= 1, with ``geometric`` g
                   without: round(d min(t + 1, T - 1) + (1 - d) (T - 1)), with d uniform in [0, 1)
    random         any step of the dataset, uniformly

with these probabilities. A seed repeats them. The relabelled leaves are

    goal, actor_goal       added, shaped as what ``goal_key`` names
    next/reward            success - 1, or success; success is whether the goal is the step's own state
    next/terminated        success
    next/done              terminated or truncated; truncated is as stored
    discount               1 - success, where ``extra`` asked for it (the masks of OGBench)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from tensordict import TensorDictBase

from ...errors import SchemaError, UnknownKeyError, UsageError
from ..dataset import Dataset
from .draw import Draw
from .storages.dataset_storage import DatasetStorage
from .storages.storage import Storage
from .storages.trees import copy_of
from .timeline import Edges, as_key, entry_key, path_of


@dataclass(frozen=True)
class Goals:
    """Which states are the goals of a batch, see `goals`: ``rbdata.load(..., goals=rbdata.Goals(trajectory=1.0))``.

    - ``current``, ``trajectory``, ``random``: probabilities, which sum to 1. The defaults are OGBench's for value functions.
    - ``geometric``: the discount in (0, 1) by which steps of the trajectory are drawn; None: uniformly over the later steps.
    - ``goal_key``: the key whose values are goals; if several leaves lie below it, they lie below ``goal`` as well.
    - ``negative``: rewards are success - 1 (-1 until the goal is reached), otherwise success.
    - ``reward_fn``: gets the values of ``goal_key`` at the steps of the batch, and their goals, and returns rewards
      (``[n]`` or ``[n, 1]``; nothing is then terminated), or rewards and success (bool), instead of the rule above.
    - ``actor``: a second mixture, whose goals become ``actor_goal``; rewards and flags belong to ``goal``.

    Raises UsageError for probabilities that do not sum to 1, and for values out of range.
    """

    current: float = 0.2
    trajectory: float = 0.5
    random: float = 0.3
    geometric: float | None = 0.99
    goal_key: str | tuple[str, ...] = "observation"
    negative: bool = True
    reward_fn: Callable[[Any, Any], Any] | None = None
    actor: Goals | None = None

    def __post_init__(self) -> None:
        shares = (self.current, self.trajectory, self.random)
        if not all(isinstance(share, Real) and 0 <= share <= 1 for share in shares):
            raise UsageError(f"current, trajectory and random are probabilities, not {shares}")
        if abs(sum(shares) - 1) > 1e-6:
            raise UsageError(f"current, trajectory and random are {shares}: they must sum to 1")
        if self.geometric is not None and not 0 < self.geometric < 1:
            message = f"geometric must lie between 0 and 1, and is {self.geometric!r}"
            raise UsageError(message, hint="None draws uniformly")
        if self.actor is not None:
            if not isinstance(self.actor, Goals):
                raise UsageError(f"actor must be Goals, and is a {type(self.actor).__name__}")
            if self.actor.actor is not None or self.actor.reward_fn is not None:
                raise UsageError("the goals of the actor have no rewards and no actor of their own")

    def draw(self, steps: torch.Tensor, last: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
        """The step from which each goal is taken, int64 ``[n]``, for ``steps`` of episodes that end with ``last``."""
        size = len(steps)
        which, distance = torch.rand(2, size, dtype=torch.float64, generator=generator, device="cpu")
        anywhere = torch.randint(count, (size,), generator=generator, device="cpu")
        if self.geometric is None:
            nearest = torch.minimum(steps + 1, last)
            later = torch.round(nearest * distance + last * (1 - distance)).long()
        else:
            ahead = torch.log1p(-distance).div_(math.log(self.geometric)).floor_().long() + 1
            later = torch.minimum(steps + ahead, last)
        chosen = torch.where(which < self.current + self.trajectory, later, anywhere)
        return torch.where(which < self.current, steps, chosen)


@dataclass
class GoalRelabeling:
    """`Goals` of a dataset, as the `Relabeling` of a pipeline; ``discount``: batches have this leaf."""

    goals: Goals
    edges: Edges
    discount: bool

    @property
    def is_own_code(self) -> bool:
        return self.goals.reward_fn is not None

    @property
    def _mixtures(self) -> dict[str, Goals]:
        actor = self.goals.actor
        return {"goal": self.goals} if actor is None else {"goal": self.goals, "actor_goal": actor}

    def choose(self, draw: Draw, storage: Storage, generator: torch.Generator) -> None:
        """Set ``draw.goals``, int64 ``[1 + mixtures, n]``: the drawn steps, and the steps of their goals."""
        steps = draw.rows()
        timeline = storage.timeline(self.edges)
        last = timeline.extent_of(timeline.episode_of(steps))[1] - 1
        chosen = [goals.draw(steps, last, len(storage), generator) for goals in self._mixtures.values()]
        draw.goals = torch.stack([steps, *chosen])

    def read(self, storage: Storage, rows: torch.Tensor) -> tuple[torch.Tensor, dict[tuple[str, ...], torch.Tensor]]:
        """Whether each goal is the state of its own step, bool ``[n]``, and the goals by key."""
        assert isinstance(storage, DatasetStorage)
        found = {}
        for (name, goals), steps in zip(self._mixtures.items(), rows[1:]):
            for leaf, below in goal_leaves(storage.dataset, goals).items():
                key = (name, *below)
                found[key] = _take(storage.dataset, leaf, steps)
        return rows[0] == rows[1], found

    def apply(self, batch: Any, achieved: tuple[torch.Tensor, dict[tuple[str, ...], torch.Tensor]]) -> Any:
        """The batch with goals, rewards and flags. Raises SchemaError."""
        if not isinstance(batch, TensorDictBase):
            raise SchemaError(f"goals are put into TensorDicts, not into a {type(batch).__name__}")
        success, found = achieved
        for key, value in found.items():
            batch.set(key, value)
        reward = success.float() - float(self.goals.negative)
        if self.goals.reward_fn is not None:
            own = batch.get(entry_key(as_key(self.goals.goal_key)), None)
            if own is None:
                message = f"batches have no {self.goals.goal_key!r}, which reward_fn compares with goals"
                raise UnknownKeyError(message, hint="name it in keys")
            answer = self.goals.reward_fn(copy_of(own), copy_of(batch.get("goal")))  # which it may change
            reward, success = answer if isinstance(answer, tuple) else (answer, torch.zeros_like(success))
        stored = batch.get(("next", "reward"))
        reward = _shaped("rewards", reward, stored).to(stored.dtype)
        success = _shaped("success", success, stored)
        if success.dtype != torch.bool:
            raise SchemaError(f"reward_fn returned success of {success.dtype}, not bool")
        batch.set(("next", "reward"), reward)
        batch.set(("next", "terminated"), success)
        batch.set(("next", "done"), success | batch.get(("next", "truncated")))
        if self.discount:
            batch.set("discount", 1 - success.float())
        return batch


def _shaped(what: str, values: Any, like: torch.Tensor) -> torch.Tensor:
    found = torch.as_tensor(values, device=like.device)
    if found.numel() != like.numel():
        raise SchemaError(f"the {what} of reward_fn have shape {tuple(found.shape)}, and {tuple(like.shape)} is stored")
    return found.reshape(like.shape).clone()  # the function may use its memory again


def _take(dataset: Dataset, name: str, steps: torch.Tensor) -> torch.Tensor:
    rows = dataset.rows[name]
    return rows.take(steps if rows.leaf.kind == "step" else steps + dataset.episode_of(steps))


def goal_leaves(dataset: Dataset, goals: Goals) -> dict[str, tuple[str, ...]]:
    """The leaves that form a goal, with their keys below it."""
    name = path_of(goals.goal_key)
    found = [one for one in dataset.rows if one == name or one.startswith(name + "/")]
    return {one: tuple(one[len(name) + 1 :].split("/")) if one != name else () for one in found}


def make_relabeling(dataset: Dataset, goals: Any, edges: Edges, extra: tuple[str, ...]) -> GoalRelabeling:
    """The relabelling for the option ``goals`` of `load`. Raises UsageError for leaves that are missing or named as goals."""
    if not isinstance(goals, Goals):
        raise UsageError(f"goals must be rbdata.Goals(...), and is a {type(goals).__name__}")
    if "return_to_go" in extra:
        raise UsageError("return_to_go is of the stored rewards, which goals replace: leave one of them out")
    made = GoalRelabeling(goals, edges, "discount" in extra)
    for name, mixture in made._mixtures.items():
        if any(each.partition("/")[0] == name for each in dataset.rows):
            raise UsageError(f"{dataset.id} has a {name} of its own", hint="leave it out with keys")
        if not goal_leaves(dataset, mixture):
            message = f"{dataset.id} has no {mixture.goal_key!r} that goals could be taken from"
            raise UsageError(message, hint=f"goal_key is one of {', '.join(dataset.rows)}")
    return made
