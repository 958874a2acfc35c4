"""ExORL's archives: a zip of episodes, each a compressed npz in dm_env order.

``buffer/episode_NNNNNN_LENGTH.npz`` (beside videos) holds ``observation`` [T + 1, n], ``action`` [T + 1, m], ``reward`` and
``discount`` [T + 1, 1], ``physics`` [T + 1, p], and what the algorithm adds (``skill``, ``task``, ``z``). Row 0 is a dummy:
action and reward of row t led to the observation of row t. (denisyarats/exorl, replay_buffer.py)

Rewards of another task of the domain follow from ``physics``, as ExORL's own loader computes them (`relable_episode` there):
the reward of row t is what the task says of that state. The loader leaves out the control, which cartpole's reward depends
on: there its rewards differ from the environment's, by up to 0.003. Here the action that led to the state is set as well, so
that the rewards are those of the environment. point_mass_maze needs no simulator: its archives have a column of rewards for
each of four targets.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ....errors import CorruptSourceError, MissingExtraError, RbdataError, UsageError, reason
from ...formats.npy import NpzArchive
from ...formats.packed import ZipArchive
from ...ingest.episode_files import (
    DM_ENV_SENTENCES,
    Episode,
    EpisodeFiles,
    EpisodeReader,
    RawInput,
    check_keys,
    check_lengths,
    dm_env_episode,
    state_rows,
)

MAZE = "point_mass_maze"
#: Tasks by domain: those of dm_control's suite, and the targets of ExORL's maze in the order of its reward columns
#: (custom_dmc_tasks/point_mass_maze.py).
TASKS: Mapping[str, tuple[str, ...]] = {
    "cartpole": ("balance", "balance_sparse", "swingup", "swingup_sparse"),
    "cheetah": ("run",),
    MAZE: ("reach_top_left", "reach_top_right", "reach_bottom_left", "reach_bottom_right"),
    "quadruped": ("walk", "run"),
    "walker": ("stand", "walk", "run"),
}
_EPISODE = re.compile(r"(?:.*/)?episode_(\d{1,18})_\d+\.npz")
_NEEDED = ("observation", "action", "reward", "discount")


class ExorlReader(EpisodeFiles):
    """The archive is one unit."""

    source, converter = "exorl", "exorl 1"
    citation = "Denis Yarats et al. Don't Change the Algorithm, Change the Data. 2022. arXiv:2201.13425"
    sentences: Mapping[str, str] = {
        **DM_ENV_SENTENCES,
        "reward_columns": "The data have {n:reward} a step, for as many tasks: info/reward has all of them.",
        "recomputed_rewards": (
            "{n:reward is|rewards are} recomputed from info/physics, for the task that was asked for."
        ),
    }


@dataclass(frozen=True)
class ExorlEpisodes(EpisodeReader):
    """Reads a zip, its episodes by their number, or one of the files that were in it. ``task`` (None: as stored) is that of the
    rewards, see `TASKS`."""

    domain: str | None = None
    task: str | None = None

    def episodes(self, raw: RawInput) -> Iterator[Episode]:
        if episode_number(raw.name) is not None:
            with NpzArchive(raw.file, raw.name) as episode:
                yield self._episode(episode, raw)
            return
        with ZipArchive(raw.file, raw.name) as archive:
            names = [name for name in archive.members if episode_number(name) is not None]
            if not names:
                message = f"{raw.name} holds no episodes: files called episode_<number>_<length>.npz"
                raise CorruptSourceError(message, hint=f"it holds {', '.join(list(archive.members)[:12]) or 'nothing'}")
            for name in sorted(names, key=lambda name: (episode_number(name), name)):
                with NpzArchive(archive.read(name), f"{raw.name}: {name}") as episode:
                    yield self._episode(episode, raw)

    def _episode(self, archive: NpzArchive, raw: RawInput) -> Episode:
        check_keys(_NEEDED, archive.name, archive.keys)
        arrays = {key: archive.array(key) for key in archive.keys}
        shapes = {key: values.shape for key, values in arrays.items()}
        rows = (*shapes["observation"], 0)[0]
        check_lengths(shapes, rows, archive.name)
        observation, action, discount = (arrays.pop(key) for key in ("observation", "action", "discount"))
        columns = arrays.pop("reward").reshape(rows, -1)
        physics = arrays.pop("physics", None)
        names = _column_names(self.domain, columns.shape[1])
        if self.task in names:
            rewards = columns[:, names.index(self.task)]
        elif self.task is not None:
            rewards = task_rewards(self.domain or "", self.task, physics, action, archive.name)
            raw.counts["recomputed_rewards"] += rows - 1
        else:
            rewards = columns[:, 0]
        raw.counts["reward_columns"] = len(names)
        steps = {f"info/reward/{name}": columns[:, number] for number, name in enumerate(names)}
        steps |= {f"info/{key}": values for key, values in sorted(arrays.items())}
        states = {"observation": state_rows(observation)}
        if physics is not None:
            states["info/physics"] = state_rows(physics)
        return dm_env_episode(states, action, rewards, discount, raw.counts, archive.name, steps=steps)


def episode_number(path: str) -> int | None:
    """The number of an episode by the path of its file; None for other files."""
    match = _EPISODE.fullmatch(path)
    return int(match[1]) if match else None


# -- rewards of tasks ----------------------------------------------------------------------------------------------------


def domain_of(task: str, name: str | None = None) -> str:
    """The domain of a task, which must be that of the dataset where it has a ``name``.

    Raises UsageError for a task whose rewards cannot be computed, MissingExtraError where dm_control is missing for it.
    """
    domains = {f"{domain}_{one}": domain for domain, tasks in TASKS.items() for one in tasks}
    if task not in domains:
        raise UsageError(f"{task!r} is not a task whose rewards can be computed", hint=f"tasks: {', '.join(domains)}")
    domain = name.partition("/")[0] if name else domains[task]
    if domain != domains[task]:
        others = [one for one, of in domains.items() if of == domain]
        hint = f"tasks of {domain}: {', '.join(others)}" if others else f"rewards of {domain} cannot be computed"
        raise UsageError(f"{task} is not a task of {domain}", hint=hint)
    if domain != MAZE:
        _environment(domain, task)
    return domain


def _column_names(domain: str | None, columns: int) -> Sequence[str]:
    """The names of the columns of a reward; none if there is only one column."""
    if columns < 2:
        return ()
    tasks = TASKS[MAZE]
    if domain == MAZE and columns == len(tasks):
        return [f"{MAZE}_{task}" for task in tasks]
    return [str(number) for number in range(columns)]


def task_rewards(domain: str, task: str, physics: np.ndarray | None, action: np.ndarray, where: str) -> np.ndarray:
    """The rewards of rows, float32 ``[T + 1]``, by ``physics`` ``[T + 1, p]`` and ``action`` ``[T + 1, m]``.

    Raises CorruptSourceError where the states are not those of the task's domain.
    """
    if physics is None or domain == MAZE:
        lacks = "no physics, from which rewards could be computed" if physics is None else f"no rewards of {task}"
        raise CorruptSourceError(f"{where} has {lacks}", hint="leave out --task")
    environment = _environment(domain, task)
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
        except Exception as error:  # a simulator may raise anything for impossible states
            raise CorruptSourceError(f"{where}: row {row} has no reward of {task}: {reason(error)}") from error
    return rewards


@lru_cache(maxsize=1)
def _environment(domain: str, task: str) -> Any:
    hint = "install versions that fit together: pip install 'rbdata[dm_control]' 'mujoco<4'"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about missing displays
            from dm_control import suite

            environment = suite.load(domain, task.removeprefix(f"{domain}_"))
            environment.reset()
            return environment
    except ImportError as error:
        message = f"rewards of {task} are computed with dm_control, which cannot be imported: {reason(error)}"
        raise MissingExtraError(message, hint=hint) from error
    except Exception as error:
        raise RbdataError(f"dm_control cannot make {task}: {reason(error)}", hint=hint) from error
