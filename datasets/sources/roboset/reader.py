"""RoboHive's logs: HDF5 files with a group for each trial, of simulated robots and of real ones.

    Trial0/observations, actions, rewards, done, time, env_infos/...       simulated
    Trial0/data/rgb_left, d_left, qp_arm, ..., ctrl_arm, ctrl_ee, time     real; perhaps derived/pose_ee, config/solved

A trial of n steps has n + 1 rows. Reward, done, env_infos and the sensors of row t belong to observation t; action t leads from
observation t to t + 1, so that the last row has none (NaN). Logs of before March 2023 lack that row: their last action is real,
but its result is not in the file. HDF5 lists Trial10 before Trial2: the numbers are the order. The logger stores None as NaN,
and floating-point numbers as float16 by default. (vikashplus/robohive: `utils/examine_env.py`, `logger/grouped_datasets.py`,
`logger/roboset_logger.py`)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ....errors import CorruptSourceError
from ....storage.schema import LARGE_ROW
from ...formats.hdf5 import ChunkedRows, arrays_below, check_array, has_rows, open_file
from ...formats.limits import check_rows
from ...ingest.block import LazyRows
from ...ingest.episode_files import (
    Episode,
    EpisodeFiles,
    EpisodeReader,
    RawInput,
    Rows,
    check_keys,
    state_rows,
)

if TYPE_CHECKING:
    import h5py

_TRIAL = re.compile(r"Trial(\d{1,9})")
_SIMULATED = ("observations", "actions", "rewards", "done")
_REAL = ("data/ctrl_arm", "data/ctrl_ee")
_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9_/]+")


class RobosetReader(EpisodeFiles):
    """The logs of a folder."""

    source, converter, licence = "roboset", "roboset 1", "MIT"
    citation = (
        "Vikash Kumar et al. RoboHive: A Unified Framework for Robot Learning. NeurIPS 2023. arXiv:2310.06828. "
        "Homanga Bharadhwaj et al. RoboAgent: Generalization and Efficiency in Robot Manipulation. ICRA 2024. arXiv:2309.01918"
    )
    sentences: Mapping[str, str] = {
        "given_up_steps": (
            "{n:trial ends|trials end} with a real action, whose result is not in the data: that step is left out."
        ),
        "unusable_steps": "{n:step has|steps have} NaN in action or reward: left out, and the episode is cut there.",
        "unequal_trials": (
            "{n:trial has|trials have} arrays of unequal length: the rows are those that all arrays have."
        ),
        "inner_ends": (
            "{n:row inside a trial is|rows inside trials are} flagged done: an episode ends there, and the rest is "
            "another one."
        ),
        "unrewarded_trials": "The data of real robots have no rewards: next/reward is 0.",
        "empty_arrays": (
            "{n:array that holds|arrays that hold} nothing but NaN (None in the log): left out, counted file by file."
        ),
        "other_arrays": "{n:array that is|arrays that are} not numbers row by row: left out.",
    }


@dataclass(frozen=True)
class Trials(EpisodeReader):
    """Reads a log, its trials by their number. ``files`` are the paths of all logs of the dataset, in order."""

    files: tuple[str, ...] = ()
    native_libraries = ("h5py",)

    def episodes(self, raw: RawInput) -> Iterator[Episode]:
        with open_file(raw.file, raw.name) as file:
            numbered = sorted((int(match[1]), name) for name in file if (match := _TRIAL.fullmatch(name)))
            if not numbered:
                message = f"{raw.name} holds no trials"
                raise CorruptSourceError(message, hint=f"it holds {', '.join(list(file)[:12]) or 'nothing'}")
            empty: frozenset[str] | None = None
            for number, name in numbered:
                trial = _Trial(file, name, raw)
                if empty is None:
                    empty = trial.empty()
                    raw.counts["empty_arrays"] += len(empty)
                numbers = {"seed": self.files.index(raw.name), "episode": number}
                for low, high, terminated, truncated in trial.runs():
                    states, steps = trial.columns(low, high, empty)
                    steps |= {key: np.full(high - low, one, np.int64) for key, one in numbers.items()}
                    yield Episode(states, steps, trial.rewards[low:high], terminated, truncated)


@dataclass
class _Trial:
    """An open trial. ``arrays``: those that become leaves, by path; arrays of rows of 1 KiB and more (h5py's) are read block by
    block, all others are here. ``rewards``, ``done``: of each of its steps, which are one fewer than its ``rows``."""

    file: h5py.File
    name: str
    raw: RawInput
    arrays: dict[str, np.ndarray | h5py.Dataset] = field(default_factory=dict)

    def __post_init__(self) -> None:
        import h5py

        file, self.where, counts = self.file, f"{self.raw.name}: {self.name}", self.raw.counts
        group = file[self.name] if isinstance(file.get(self.name, getlink=True), h5py.HardLink) else None
        if not isinstance(group, h5py.Group):
            raise CorruptSourceError(f"{self.where} is not a group of this file")
        found = dict(arrays_below(group, self.where, most=1000))
        self.is_real = any(path.startswith("data/") for path in found)
        solved = found.pop("config/solved", None)
        is_number = solved is not None and solved.shape in ((), (1,)) and solved.dtype.kind in "biuf"
        if is_number:
            check_array(solved, f"{self.where}/config/solved")
        self.solved = float(np.asarray(solved[()]).reshape(-1)[0]) if is_number else np.nan
        folders = ("data", "derived") if self.is_real else (*_SIMULATED, "env_infos", "time")
        used = {path: one for path, one in found.items() if path.partition("/")[0] in folders and has_rows(one)}
        if len(used) < len(found):
            counts["other_arrays"] += len(found) - len(used)
        check_keys(_REAL if self.is_real else _SIMULATED, self.where, sorted(used))
        lengths = {len(one) for one in used.values()}
        counts["unequal_trials"] += len(lengths) > 1
        self.rows = check_rows(min(lengths), file.id.get_filesize(), self.where)
        for path, one in used.items():
            check_array(one, f"{self.where}/{path}")
            is_large = one.nbytes // max(1, len(one)) >= LARGE_ROW and not self.is_action(path)
            self.arrays[path] = one if is_large else self._chunked(path, one).read(0, self.rows)
        self.steps = max(0, self.rows - 1)
        self.rewards, self.done = np.zeros(self.steps, np.float32), np.zeros(self.steps, bool)
        if self.is_real:
            counts["unrewarded_trials"] += 1
            return
        self.rewards, flags = self.arrays.pop("rewards")[1:], self.arrays.pop("done")[1:] != 0
        if self.rewards.size != self.steps:
            message = f"{self.where}: rewards is {list(self.rewards.shape[1:])} in a row, not one number"
            raise CorruptSourceError(message)
        self.rewards, self.done = self.rewards.reshape(-1), flags.any(tuple(range(1, flags.ndim)))

    def empty(self) -> frozenset[str]:
        """The arrays of single numbers that are all NaN."""
        infos = [(path, rows) for path, rows in self.arrays.items() if path.startswith("env_infos/")]
        single = [(path, rows) for path, rows in infos if rows.dtype.kind == "f" and rows.ndim == 1]
        return frozenset(path for path, rows in single if np.isnan(rows).all())

    def runs(self) -> Iterator[tuple[int, int, bool, bool]]:
        """The runs of steps whose action and reward are numbers, each up to the next row that is flagged done: its first step,
        the step behind it, whether it terminated, whether it was truncated."""
        is_number = np.ones(self.rows, bool)
        for path, rows in self.arrays.items():
            if self.is_action(path) and rows.dtype.kind == "f":
                is_number &= ~np.isnan(rows).any(tuple(range(1, rows.ndim)))
        usable, counts = is_number[: self.steps] & np.isfinite(self.rewards), self.raw.counts
        counts["given_up_steps"] += bool(self.rows and is_number[-1])
        counts["unusable_steps"] += int(np.count_nonzero(~usable))
        counts["inner_ends"] += int(np.count_nonzero(self.done[:-1]))
        begin, behind = 0, np.flatnonzero(usable & (self.done | ~np.append(usable[1:], False))) + 1
        for end in behind.tolist():
            begin += int(np.argmax(usable[begin:end]))  # after the rows that were left out
            terminated = bool(self.done[end - 1])
            yield begin, end, terminated, end == self.steps and not terminated
            begin = end
        if not len(behind):
            yield 0, 0, False, False

    def columns(self, low: int, high: int, empty: frozenset[str]) -> tuple[dict[str, Rows], dict[str, Rows]]:
        """The rows of the steps ``low`` to ``high - 1``, by leaf: of states, one more, and of steps."""
        states, steps = dict[str, Rows](), dict[str, Rows]()
        for path in sorted(self.arrays.keys() - empty):
            key, rows = self._key(path), self.arrays[path]
            if key in states or key in steps:
                raise CorruptSourceError(f"{self.where}: {path} and another array would both be called {key}")
            if self.is_action(path):
                steps[key] = rows[low:high]
            elif isinstance(rows, np.ndarray):
                states[key] = state_rows(rows[low : high + 1])
            else:
                blocks = self._chunked(path, rows).blocks(low, min(high + 1, self.rows))
                states[key] = LazyRows(rows.dtype.newbyteorder("=").name, tuple(rows.shape[1:]), blocks)
        if self.is_real:
            steps["info/solved"] = np.full((high - low, 1), self.solved, np.float32)
        return states, steps

    def is_action(self, path: str) -> bool:
        """Whether an array is an action."""
        return path.startswith("data/ctrl_") if self.is_real else path == "actions"

    def _key(self, path: str) -> str:
        """The leaf that an array becomes."""
        first, _, rest = path.partition("/")
        if path in ("time", "data/time"):
            return "time"
        if self.is_real:
            top = "action" if self.is_action(path) else "observation"
            key = "info/user" if path == "data/user" else f"{top}/{rest}"
        else:
            key = {"observations": "observation", "actions": "action"}.get(path, f"info/{rest or first}")
        return _NOT_IN_KEYS.sub("_", key)

    def _chunked(self, path: str, array: h5py.Dataset) -> ChunkedRows:
        return ChunkedRows(array, f"{self.where}/{path}")
