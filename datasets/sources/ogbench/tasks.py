"""Rewards of OGBench's single tasks, as ``relabel_dataset`` of ogbench 1.2 computes them, without a simulator.

``goals.json`` has the goals of the five tasks of each environment. They are constants of OGBench's environments, the same for
every seed; so reward and success follow from the state before the action, as the files have it:

    mazes, soccer        success: the agent (soccer: the ball) is within ``goal_tol`` of ``goal_xy``; reward success - 1
    cube, scene, puzzle  reward: conditions that hold, minus their number: each cube, the drawer and the window within 0.04 of
                         where they belong, each button in its state; success: all hold

``masks`` are 1 - success: where they are 0, a value function takes nothing from the next state. Episodes go on all the same.

Source: https://github.com/seohongpark/ogbench, ogbench/relabel_utils.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import CorruptSourceError, UsageError
from .names import SetName

#: Where the ball of a soccer environment is in ``qpos``, and the first object of a scene; numbers of a cube's pose.
_BALL, _OBJECTS, _POSE = 15, 14, 7
#: How far a cube, drawer or window may be from where it belongs.
_NEAR = 0.04


@dataclass(frozen=True)
class SingleTask:
    """A task of an environment, ``antmaze-large`` (its pixel variant has the same tasks)."""

    environment: str
    number: int
    goal: Mapping[str, Any]
    tolerance: float | None

    @property
    def keys(self) -> tuple[str, ...]:
        """The arrays that success follows from."""
        needs_qpos = not self.environment.startswith("puzzle")
        return ("qpos",) * needs_qpos + ("button_states",) * ("buttons" in self.goal)

    def rewards(self, arrays: Mapping[str, np.ndarray], where: str) -> tuple[np.ndarray, np.ndarray]:
        """Reward and mask, float32 ``[n]`` each, of states whose arrays `keys` are ``[n, ...]``.

        Raises CorruptSourceError where these are narrower than the environment has them.
        """
        found: np.ndarray = np.stack([*self._conditions(arrays, where)], 1)
        rewards: np.ndarray = found.sum(1) - found.shape[1]
        return rewards.astype(np.float32), np.logical_not(found.all(1)).astype(np.float32)

    def _conditions(self, arrays: Mapping[str, np.ndarray], where: str) -> Iterator[np.ndarray]:
        """Whether a condition holds, bool ``[n]`` each."""
        if "goal_xy" in self.goal:
            at = _BALL if self.environment.startswith("antsoccer") else 0
            distance = np.linalg.norm(_columns(arrays, "qpos", at, 2, where) - np.array(self.goal["goal_xy"]), axis=1)
            yield distance <= self.tolerance
            return
        cubes, buttons = self.goal.get("cubes", ()), self.goal.get("buttons", ())
        for number, cube in enumerate(cubes):
            position = _columns(arrays, "qpos", _OBJECTS + number * _POSE, 3, where)
            yield np.linalg.norm(np.array(cube) - position, axis=1) <= _NEAR
        if buttons:
            states = _columns(arrays, "button_states", 0, len(buttons), where)
            yield from (states == np.array(buttons)).T
        for place, name in enumerate(("drawer", "window"), _OBJECTS + len(cubes) * _POSE + len(buttons)):
            if name in self.goal:
                yield np.abs(_columns(arrays, "qpos", place, 1, where)[:, 0] - self.goal[name]) <= _NEAR

    def describe(self) -> dict[str, Any]:
        """For the manifest."""
        tolerance = {} if self.tolerance is None else {"goal_tol": self.tolerance}
        return {"environment": self.environment, "task": self.number, **self.goal, **tolerance}


def single_task(name: SetName) -> SingleTask | None:
    """The task of a set; None for a set without one. Raises UsageError where no goals are known."""
    if name.task is None:
        return None
    environment = name.environment.removeprefix("visual-")
    known = _goals().get(environment)
    if known is None:
        raise UsageError(f"{environment} has no single tasks", hint="leave out -singletask")
    number = name.task or known["default"]
    return SingleTask(environment, number, known[f"task{number}"], known.get("goal_tol"))


@cache
def _goals() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_name("goals.json").read_text(encoding="utf-8"))
    return found


def _columns(arrays: Mapping[str, np.ndarray], key: str, first: int, count: int, where: str) -> np.ndarray:
    values = arrays[key]
    if values.ndim != 2 or values.shape[1] < first + count:
        message = f"{where}: {key} has rows of {list(values.shape[1:])}, too few numbers for this environment's tasks"
        raise CorruptSourceError(message, hint="is it a file of another environment?")
    return values[:, first : first + count]
