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
from ...formats.npy import NpzArchive
from ...ingest.block import LazyRows
from ...ingest.episode_files import (
    Episode,
    EpisodeFiles,
    EpisodeReader,
    RawInput,
    Rows,
    check_keys,
    check_lengths,
    state_rows,
)
from ...ingest.spaces import stored_dtype
from ...ingest.trajectories import to_flags, to_rewards

REQUIRED = ("observations", "actions", "terminals")
#: The leaves of arrays; any other array is below ``info``.
_KEYS = {"observations": "observation", "actions": "action", "masks": "masks"}
#: Arrays that are not columns: flags, and rewards of files that were relabelled.
_FLAGS = {"terminals", "valids", "rewards"}
#: Where the ball of a soccer environment is in ``qpos``, and the first object of a scene; numbers of a cube's pose.
_BALL, _OBJECTS, _POSE = 15, 14, 7
#: How far a cube, drawer or window may be from where it belongs.
_NEAR = 0.04
#: By array: its dtype and shape.
Heads = dict[str, tuple[np.dtype, tuple[int, ...]]]


class OgbenchReader(EpisodeFiles):
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
    reader: OgbenchEpisodes

    def describe(self) -> dict[str, Any]:
        task = {"task": self.reader.task.describe()} if self.reader.task else {}
        return {**super().describe(), "set": self.reader.known_set, **task}


@dataclass(frozen=True)
class OgbenchEpisodes(EpisodeReader):
    """``task``: whose rewards and masks are computed; without one they are those of the file, or 0. ``known_set``: the name of
    the set that is read, None where it is not known."""

    task: SingleTask | None = None
    known_set: str | None = None

    def episodes(self, raw: RawInput) -> Iterator[Episode]:
        with NpzArchive(raw.file, raw.name) as archive:
            heads, task, first = self._heads(archive), self.task, 0
            last_rows, is_flagged = _last_rows(archive)
            rewards = np.zeros(heads["terminals"][1][0], np.float32)
            if "rewards" in heads and task is None:
                rewards = to_rewards(archive.array("rewards"), archive.name, "row")
            left_out = _FLAGS if task is None else {*_FLAGS, "masks"}
            rows = {key: archive.rows(key) for key in heads if key not in left_out}
            for last in last_rows:
                columns: dict[str, Rows] = {}
                for key, column in rows.items():
                    (dtype, shape), blocks = heads[key], column.blocks(first, last + (key == "observations"))
                    columns[_KEYS.get(key, f"info/{key}")] = LazyRows(
                        stored_dtype(dtype, f"{raw.name}: {key}"), shape[1:], blocks
                    )
                here = rewards[first:last]
                if task is not None:
                    needed = {key: _decoded(columns[f"info/{key}"]) for key in task.keys}
                    here, masks = task.rewards(needed, raw.name)
                    columns |= {"masks": masks, **{f"info/{key}": values for key, values in needed.items()}}
                    raw.counts["relabelled_steps"] += last - first
                    raw.counts["steps_at_the_goal"] += int((masks == 0).sum())
                elif "rewards" not in heads:
                    raw.counts["steps_without_reward"] += last - first
                states = {"observation": state_rows(columns.pop("observation"))}
                truncated = is_flagged or last != last_rows[-1]
                yield Episode(states, columns, here, terminated=False, truncated=truncated)
                first = last + 1
            for column in rows.values():
                column.finish()

    def _heads(self, archive: NpzArchive) -> Heads:
        """The arrays of a file, in its order. Raises CorruptSourceError for missing ones, odd names, and unequal lengths."""
        keys, name = archive.keys, archive.name
        check_keys((*REQUIRED, *(self.task.keys if self.task else ())), name, keys)
        odd = [key for key in keys if not key.isidentifier() or key != key.lower()]
        if odd or len(keys) > 50:
            raise CorruptSourceError(f"{name} holds {repr(odd[0][:60]) if odd else 'too many arrays'}")
        heads = {key: archive.head(key) for key in keys}
        shapes = {key: shape for key, (_, shape) in heads.items()}
        check_lengths(shapes, (*shapes["observations"], 0)[0], name)
        wide = [key for key in keys if key in _FLAGS and shapes[key][1:] not in ((), (1,))]
        if wide:
            message = f"{name}: {wide[0]} has the shape {list(shapes[wide[0]])}, not one number a row"
            raise CorruptSourceError(message)
        return heads


def _decoded(rows: Rows) -> np.ndarray:
    """The rows of an episode."""
    assert isinstance(rows, LazyRows)
    return np.concatenate([np.empty((0, *rows.shape), rows.dtype), *rows.blocks]).astype(rows.dtype, copy=False)


def _last_rows(archive: NpzArchive) -> tuple[list[int], bool]:
    """The last row of each episode, and whether that of the last one is flagged: otherwise it is cut."""
    key = "valids" if "valids" in archive.keys else "terminals"
    flags = to_flags(archive.array(key), f"{archive.name}: {key}") != (key == "valids")
    is_flagged = bool(flags[-1])
    flags[-1] = True
    return np.flatnonzero(flags).tolist(), is_flagged


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
