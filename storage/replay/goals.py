"""Goals for data that store none: states of the dataset, drawn for each step of a batch by the mixture of OGBench.

Park et al., OGBench, 2025, https://arxiv.org/abs/2410.20092; the rule is that of ``GCDataset.sample_goals`` in
https://github.com/seohongpark/ogbench (impls/utils/datasets.py). For step t of an episode whose last step is T - 1 the goal is
what is stored under ``goal_key`` at step

    current        t
    trajectory     min(t + k, T - 1), where P(k) = (1 - g) g^(k-1), k >= 1, with ``geometric`` g
                   without: round(d min(t + 1, T - 1) + (1 - d) (T - 1)), with d uniform in [0, 1)
    random         any step of the dataset, uniformly

with these probabilities. With a frame stack, goals are stacks as well. The relabelled leaves are

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
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from ...errors import SchemaError, UnknownKeyError, UsageError
from ..codecs.codec import Rows
from ..dataset import Dataset
from ..schema import at_and_below
from ..window import read_window
from .around import Around
from .columns import At, BatchColumn
from .draw import Draw
from .order import Turn
from .storages.storage import Storage
from .storages.trees import tree_copied
from .timeline import as_key, entry_key, path_of


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

    def draw(self, at: At, sizes: list[int], count: int, turn: Turn) -> torch.Tensor:
        """Return the step from which the goal of each step is taken, int64 ``[n]``, of ``count`` steps."""
        steps, last = at.position.numpy(), at.high.numpy() - 1
        which, distance, anywhere = (turn.per_step(sizes) for _ in range(3))
        if self.geometric is None:
            nearest = np.minimum(steps + 1, last)
            later = np.rint(nearest * distance + last * (1 - distance)).astype(np.int64)
        else:
            ahead = np.floor(np.log1p(-distance) / math.log(self.geometric)).astype(np.int64) + 1
            later = np.minimum(steps + ahead, last)
        chosen = np.where(which < self.current + self.trajectory, later, (anywhere * count).astype(np.int64))
        return torch.from_numpy(np.where(which < self.current, steps, chosen))


REPLACED = ("next/reward", "next/terminated", "next/done")


def relabeling(dataset: Dataset, goals: Any, *, extra: Any, n_step: Any, reward_scale: Any) -> Relabeling:
    """`Relabeling` for options of `load`. Raises UsageError for those that do not go with goals."""
    names = (extra,) if isinstance(extra, str) else tuple(extra or ())
    if "return_to_go" in names:
        raise UsageError("return_to_go is of the stored rewards, which goals replace: leave one of them out")
    if n_step is not None:
        raise UsageError("goals and rewards are those of single steps: leave out n_step")
    if reward_scale is not None:
        message = "goals replace the rewards, which reward_scale would scale: leave it out"
        raise UsageError(message, hint="rewards of another size come from rbdata.Goals(reward_fn=...)")
    return Relabeling(dataset, goals, discount="discount" in names)


class Relabeling:
    """`Goals` of a dataset: the columns that read them, and the rewards of a ``reward_fn``.

    ``discount``: batches have this leaf. Raises UsageError for leaves that are missing or named as goals.
    """

    def __init__(self, dataset: Dataset, goals: Any, *, discount: bool) -> None:
        if not isinstance(goals, Goals):
            raise UsageError(f"goals must be rbdata.Goals(...), and is a {type(goals).__name__}")
        self.goals, self._dataset, self._discount = goals, dataset, discount
        self._mixtures = {"goal": goals} if goals.actor is None else {"goal": goals, "actor_goal": goals.actor}
        for name, mixture in self._mixtures.items():
            if any(each.partition("/")[0] == name for each in dataset.rows):
                raise UsageError(f"{dataset.id} has a {name} of its own", hint="rename it with `rbdata preprocess`")
            if not _leaves_at(dataset, mixture):
                message = f"{dataset.id} has no {mixture.goal_key!r} that goals could be taken from"
                raise UsageError(message, hint=f"goal_key is one of {', '.join(dataset.rows)}")

    def columns(self, storage: Storage, around: Around, columns: list[BatchColumn]) -> list[BatchColumn]:
        """Return the columns of a batch with goals."""
        for column in columns:
            if len(column.names) > 1 and set(column.names) & {*REPLACED}:
                raise UsageError(f"goals replace {', '.join(REPLACED)}: leave these windows out")
        replaced = {*REPLACED, "discount"} if self._discount else {*REPLACED}
        made: list[BatchColumn] = [column for column in columns if not replaced.issuperset(column.names)]
        stacked = {name for column in columns if len(column.names) == 2 for name in column.names[:1]}
        for name, mixture in self._mixtures.items():
            for leaf, below in _leaves_at(self._dataset, mixture).items():
                stack = around.frame_stack if leaf in stacked and around.frame_stack else None
                made.append(GoalColumn(self._dataset, leaf, "/".join((name, *below)), name, stack, around.padding))
        truncated = self._dataset.rows["next/truncated"]
        return [*made, RewardColumn(truncated, self.goals, discount=self._discount)]

    def choose(self, at: At, draw: Draw, turn: Turn) -> None:
        """Draw the steps of the goals, which columns find in ``at``."""
        for name, mixture in self._mixtures.items():
            at.kept(name, partial(mixture.draw, at, draw.sizes, len(self._dataset), turn))

    @property
    def by_user(self) -> bool:
        """Whether a function of the user's makes the rewards."""
        return self.goals.reward_fn is not None

    def relabel(self, batch: Any) -> Any:
        """Return the batch with the rewards of ``reward_fn``, if there is one. Raises SchemaError."""
        if self.goals.reward_fn is None:
            return batch
        if not isinstance(batch, TensorDictBase):
            raise SchemaError(f"goals are put into TensorDicts, not into a {type(batch).__name__}")
        own = batch.get(entry_key(as_key(self.goals.goal_key)), None)
        if own is None:
            message = f"batches have no {self.goals.goal_key!r}, which reward_fn compares with goals"
            raise UnknownKeyError(message, hint="name it in keys")
        answer = self.goals.reward_fn(tree_copied(own), tree_copied(batch.get("goal")))  # which it may change
        stored = batch.get(("next", "reward"))
        reward, success = (
            answer if isinstance(answer, tuple) else (answer, torch.zeros(len(batch), dtype=torch.bool, device="cpu"))
        )
        success = _shaped("success", success, stored)
        if success.dtype != torch.bool:
            raise SchemaError(f"reward_fn returned success of {success.dtype}, not bool")
        batch.set(("next", "reward"), _shaped("rewards", reward, stored).to(stored.dtype))
        batch.set(("next", "terminated"), success)
        batch.set(("next", "done"), success | batch.get(("next", "done")))
        if self._discount:
            batch.set("discount", 1 - success.float())
        return batch


class GoalColumn(BatchColumn):
    """A leaf at the steps that are goals; a stack of it, if ``stack`` is given."""

    def __init__(self, dataset: Dataset, leaf: str, name: str, mixture: str, stack: int | None, pad: Any) -> None:
        self._dataset, self._rows, self._mixture, self._stack, self._pad = (
            dataset,
            dataset.rows[leaf],
            mixture,
            stack,
            pad,
        )
        self.names, self.bytes = (name,), self._rows.leaf.row_bytes * (stack or 1)

    def read(self, at: At) -> tuple[torch.Tensor, ...]:
        step = at.kept(self._mixture, _undrawn)
        if self._stack is None:
            return (self._rows.take(step if self._rows.leaf.kind == "step" else step + at.timeline.episode_of(step)),)
        episode = at.timeline.episode_of(step)
        low, high = at.timeline.extent_of(episode)
        if self._rows.leaf.kind == "state":
            step, low, high = step + episode, low + episode, high + episode + 1
        return (read_window(self._rows, step - (self._stack - 1), self._stack, low, high, self._pad),)


class RewardColumn(BatchColumn):
    """Rewards and flags of goals. Those of a ``reward_fn`` are put in their place afterwards."""

    def __init__(self, truncated: Rows, goals: Goals, *, discount: bool) -> None:
        self._truncated, self._goals, self._discount, self.bytes = truncated, goals, discount, 10
        self.names = (*REPLACED, "discount") if discount else REPLACED

    def read(self, at: At) -> tuple[torch.Tensor, ...]:
        success = (at.kept("goal", _undrawn) == at.position)[:, None]
        if self._goals.reward_fn is not None:
            success = torch.zeros_like(success)
        reward = success.float() - float(self._goals.negative)
        found = (reward, success, success | self._truncated.take(at.rows))
        return (*found, 1 - success.float()) if self._discount else found


def _undrawn() -> torch.Tensor:
    raise AssertionError("goals are drawn before they are read")


def _leaves_at(dataset: Dataset, goals: Goals) -> dict[str, tuple[str, ...]]:
    """The leaves that form a goal, with their keys below it."""
    name = path_of(goals.goal_key)
    found = at_and_below(dataset.rows, name)
    return {one: tuple(one[len(name) + 1 :].split("/")) if one != name else () for one in found}


def _shaped(what: str, values: Any, like: torch.Tensor) -> torch.Tensor:
    found = torch.as_tensor(values, device=like.device)
    if found.numel() != like.numel():
        raise SchemaError(f"reward_fn returned {what} of shape {tuple(found.shape)}, and {tuple(like.shape)} is stored")
    return found.reshape(like.shape).clone()  # the function may use its memory again
