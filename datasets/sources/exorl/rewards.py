"""Rewards of the tasks of a domain, for data that were collected for another one.

ExORL's own loader computes all rewards again, from the ``physics`` that the archives hold (`relable_episode` in
denisyarats/exorl, replay_buffer.py): the reward of row t is what the task says of that state. It leaves out the control, which
cartpole's reward depends on: there its rewards differ from the environment's, by up to 0.003. Here the action that led to
the state is set as well, so that the rewards are those of the environment.

point_mass_maze needs no simulator: its archives have a column of rewards for each of four targets.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ....errors import CorruptSourceError, MissingExtraError, RbdataError, reason
from .tasks import MAZE, TASKS, domain_of


def column_names(domain: str | None, columns: int) -> Sequence[str]:
    """What the columns of a reward are called; none where there is one column only."""
    if columns < 2:
        return ()
    tasks = TASKS[MAZE]
    if domain == MAZE and columns == len(tasks):
        return [f"{MAZE}_{task}" for task in tasks]
    return [str(number) for number in range(columns)]


def check_task(task: str) -> None:
    """Raise MissingExtraError where rewards of a task cannot be computed because dm_control is missing."""
    if domain_of(task) != MAZE:
        _environment(task)


def task_rewards(task: str, physics: np.ndarray | None, action: np.ndarray, where: str) -> np.ndarray:
    """The rewards of rows, float32 ``[T + 1]``, by ``physics`` ``[T + 1, p]`` and ``action`` ``[T + 1, m]``.

    Raises CorruptSourceError where the states are not those of the task's domain.
    """
    if physics is None:
        raise CorruptSourceError(
            f"{where} has no physics, from which rewards could be computed", hint="leave out --task"
        )
    if domain_of(task) == MAZE:
        raise CorruptSourceError(f"{where} has no column of rewards for {task}", hint="leave out --task")
    environment = _environment(task)
    model = environment.physics
    if physics.shape[1:] != model.state().shape or action.shape[1:] != model.control().shape:
        shapes = f"physics {list(physics.shape[1:])} and action {list(action.shape[1:])}"
        message = f"{where} has {shapes} a row, {task} {list(model.state().shape)} and {list(model.control().shape)}"
        raise CorruptSourceError(message, hint="give a --task of the domain that the data are of")
    rewards = np.zeros(len(physics), np.float32)
    for row, (state, control) in enumerate(zip(physics, action)):
        try:
            with model.reset_context():
                model.set_state(state)
                model.set_control(control)
            rewards[row] = environment.task.get_reward(model)
        except Exception as error:  # what a simulator says of impossible states
            raise CorruptSourceError(f"{where}: row {row} has no reward of {task}: {reason(error)}") from error
    return rewards


@lru_cache(maxsize=1)
def _environment(task: str) -> Any:
    domain = domain_of(task)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of displays that are not there
            from dm_control import suite

            environment = suite.load(domain, task.removeprefix(f"{domain}_"))
            environment.reset()
            return environment
    except ImportError as error:
        message = f"rewards of {task} are computed with dm_control, which cannot be imported: {reason(error)}"
        raise MissingExtraError(message, hint="pip install 'rbdata[dm_control]' 'mujoco<4'") from error
    except Exception as error:
        message = f"dm_control cannot make {task}: {reason(error)}"
        raise RbdataError(
            message, hint="install versions that fit together: pip install 'rbdata[dm_control]' 'mujoco<4'"
        ) from error
