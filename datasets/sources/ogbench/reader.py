"""One OGBench file (``.npz``), read block by block: a set of pixels unpacks to 60 GB.

    observations   [N, ...]   float32 states, or uint8 frames
    actions        [N, ...]
    terminals      [N]        1 in the last row of an episode (bool, in Powderworld int32)
    qpos, qvel     [N, ...]   before the action; not in Powderworld
    button_states  [N, ...]   where there are buttons

An episode of n steps has n + 1 rows. The action of its last row is real, but its result is not stored: that row is the final
state. No episode terminates, not even at the goal. This is what ``load_dataset`` of ogbench reads. Its compact form, saved to a
file, is read too: there ``terminals`` flag the row before the last as well, and ``valids`` are 0 in the last.

Rewards of single tasks are computed as ``relabel_dataset`` of ogbench 1.2 computes them, without a simulator.

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
from ...formats.npz import NpzArchive
from ...ingest.episode_files import Episode, EpisodeFilesJob, EpisodeReader, LazyRows, RawInput, Rows, state_rows
from ...ingest.spaces import stored_dtype
from ...ingest.trajectories import to_flags, to_rewards
from ..dm_env_order import check_keys

_REQUIRED = ("observations", "actions", "terminals")
#: The leaves of arrays; any other array is below ``info``.
_KEYS = {"observations": "observation", "actions": "action", "masks": "masks"}
#: Arrays that are not columns: flags, and rewards of files that were relabelled.
_FLAGS = ("terminals", "valids", "rewards")
#: Where the ball of a soccer environment is in ``qpos``, and the first object of a scene; numbers of a cube's pose.
_BALL, _OBJECTS, _POSE = 15, 14, 7
#: How far a cube, drawer or window may be from where it belongs.
_NEAR = 0.04


class OgbenchJob(EpisodeFilesJob):
    """Each file is a unit, which one worker decodes."""

    source, converter = "ogbench", "ogbench 1"
    citation = (
        "Seohong Park, Kevin Frans, Benjamin Eysenbach, Sergey Levine. OGBench: Benchmarking Offline Goal-Conditioned RL. "
        "ICLR 2025. arXiv:2410.20092"
    )
    sentences: Mapping[str, str] = {
        "steps_without_reward": (
            "The files have no rewards: all {n} are 0. The sets of single tasks have some (-singletask), and load(goals=...) "
            "computes them."
        ),
        "relabelled_steps": (
            "Rewards and masks are those of the task in the record of the source, of the state before the action; episodes "
            "go on where it is solved ({steps_at_the_goal} of {n} steps)."
        ),
    }
    reader: OgbenchReader

    def describe(self) -> dict[str, Any]:
        task = {"task": self.reader.task.describe()} if self.reader.task else {}
        return {**super().describe(), "set": self.reader.known_set, **task}


@dataclass(frozen=True)
class OgbenchReader(EpisodeReader):
    """``task``: whose rewards and masks are computed; without one they are those of the file, or 0. ``known_set``: the name of
    the set that is read, None where it is not known."""

    task: SingleTask | None = None
    known_set: str | None = None

    def episodes(self, raw: RawInput) -> Iterator[Episode]:
        with NpzArchive(raw.file, raw.name) as archive:
            yield from _File(archive, self.task, raw).episodes()


class _File:
    """An archive that is open, with everything that is one number a row in memory."""

    def __init__(self, archive: NpzArchive, task: SingleTask | None, raw: RawInput) -> None:
        self._archive, self._raw = archive, raw
        self._heads = {key: archive.head(key) for key in self._checked_keys(task)}
        self._rows = self._heads["observations"][1][0]
        self._check_lengths()
        self._ends = self._read_ends()
        self._rewards, self._masks = self._read_rewards(task)

    def episodes(self) -> Iterator[Episode]:
        columns = {
            key: (self._archive.rows(key), stored_dtype(dtype, f"{self._raw.name}: {key}"), shape[1:])
            for key, (dtype, shape) in self._heads.items()
            if key not in _FLAGS and not (key == "masks" and self._masks is not None)
        }
        first = 0
        for last in self._ends.tolist():
            steps = last - first
            cut_here = last == self._rows - 1 and not self._ends_whole
            taken: dict[str, Rows] = {
                _KEYS.get(key, f"info/{key}"): LazyRows(dtype, row, rows.blocks(first, last + (key == "observations")))
                for key, (rows, dtype, row) in columns.items()
            }
            if self._masks is not None:
                taken["masks"] = self._masks[first:last]
            states = {"observation": state_rows(taken.pop("observation"))}
            yield Episode(states, taken, self._rewards[first:last], terminated=False, truncated=not cut_here)
            if steps:
                self._count(first, last)
            first = last + 1
        for rows, _, _ in columns.values():
            rows.finish()

    def _count(self, first: int, last: int) -> None:
        if self._masks is not None:
            self._raw.counts["relabelled_steps"] += last - first
            self._raw.counts["steps_at_the_goal"] += int((self._masks[first:last] == 0).sum())
        elif "rewards" not in self._heads:
            self._raw.counts["steps_without_reward"] += last - first

    # -- what is small -------------------------------------------------------------------------------------------------

    def _checked_keys(self, task: SingleTask | None) -> list[str]:
        """The arrays of the file, in its order. Raises CorruptSourceError for those that are missing, and for odd names."""
        keys = self._archive.keys
        check_keys((*_REQUIRED, *(task.keys if task else ())), self._raw.name, keys)
        odd = [key for key in keys if not key.isidentifier() or key != key.lower()]
        if odd or len(keys) > 50:
            raise CorruptSourceError(
                f"{self._raw.name} holds {odd[0][:60]!r}" if odd else f"{self._raw.name}: too many arrays"
            )
        return keys

    def _check_lengths(self) -> None:
        for key, (_, shape) in self._heads.items():
            if not shape or shape[0] != self._rows:
                message = f"{self._raw.name}: {key} has the shape {list(shape)}, observations have {self._rows} rows"
                raise CorruptSourceError(message)
            if key in _FLAGS and shape[1:] not in ((), (1,)):
                raise CorruptSourceError(f"{self._raw.name}: {key} has the shape {list(shape)}, not one number a row")

    def _read_ends(self) -> np.ndarray:
        """The last row of each episode, int64; the rows after the last flag are an episode that is cut."""
        key = "valids" if "valids" in self._heads else "terminals"
        flags = to_flags(self._archive.array(key), f"{self._raw.name}: {key}") != (key == "valids")
        self._ends_whole = bool(flags[-1])
        ends = np.flatnonzero(flags)
        return ends if self._ends_whole else np.append(ends, self._rows - 1)

    def _read_rewards(self, task: SingleTask | None) -> tuple[np.ndarray, np.ndarray | None]:
        """Rewards of all rows, float32, and the masks of a task."""
        if task is None and "rewards" in self._heads:
            return to_rewards(self._archive.array("rewards"), self._raw.name, "row"), None
        rewards = np.zeros(self._rows, np.float32)
        if task is None:
            return rewards, None
        masks = np.ones(self._rows, np.float32)
        needed = {key: self._archive.rows(key) for key in task.keys}
        for low in range(0, self._rows, _TASK_ROWS):
            high = min(low + _TASK_ROWS, self._rows)
            arrays = {key: np.concatenate([*rows.blocks(low, high)]) for key, rows in needed.items()}
            rewards[low:high], masks[low:high] = task.rewards(arrays, self._raw.name)
        for rows in needed.values():
            rows.finish()
        return rewards, masks


_TASK_ROWS = 1 << 16


# -- single tasks -------------------------------------------------------------------------------------------------------


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


def single_task(environment: str, number: int | None) -> SingleTask | None:
    """A task of an environment, the default one for 0; None for None. Raises UsageError where no goals are known."""
    if number is None:
        return None
    environment = environment.removeprefix("visual-")
    known = _goals().get(environment)
    if known is None:
        raise UsageError(f"{environment} has no single tasks", hint="leave out -singletask")
    number = number or known["default"]
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
