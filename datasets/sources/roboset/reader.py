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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ....errors import CorruptSourceError
from ....storage.schema import LARGE_ROW
from ...formats.hdf5 import ChunkedRows, arrays_below, check_array, check_storage, damage_reported, has_rows
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
_SOLVED = "config/solved"
_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9_/]+")


class RobosetJob(EpisodeFiles):
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
class TrialReader(EpisodeReader):
    """Reads a log, its trials by their number. ``files`` are the paths of all logs of the dataset, in order."""

    files: tuple[str, ...] = ()
    native_libraries = ("h5py",)

    def episodes(self, raw: RawInput) -> Iterator[Episode]:
        import h5py

        with damage_reported(raw.name), h5py.File(raw.file, "r", locking=False) as file:
            numbered = sorted((int(match[1]), name) for name in file if (match := _TRIAL.fullmatch(name)))
            if not numbered:
                message = f"{raw.name} holds no trials"
                raise CorruptSourceError(message, hint=f"it holds {', '.join(list(file)[:12]) or 'nothing'}")
            empty: frozenset[str] | None = None
            seed = self.files.index(raw.name)
            for number, name in numbered:
                trial = _Trial(file, name, raw, {"seed": seed, "episode": number})
                if empty is None:
                    empty = trial.empty()
                    raw.counts["empty_arrays"] += len(empty)
                yield from trial.episodes(empty)


class _Trial:
    """An open trial: rows of 1 KiB and more are read block by block, all other arrays when they are used."""

    def __init__(self, file: h5py.File, name: str, raw: RawInput, numbers: Mapping[str, int]) -> None:
        import h5py

        self._where, self._counts, self._numbers = f"{raw.name}: {name}", raw.counts, numbers
        if not isinstance(file.get(name, getlink=True), h5py.HardLink) or not isinstance(file[name], h5py.Group):
            raise CorruptSourceError(f"{self._where} is not a group of this file")
        size = file.id.get_filesize()
        found = dict(arrays_below(file[name], self._where, most=1000))
        self._real = any(path.startswith("data/") for path in found)
        self._solved = self._number(found.pop(_SOLVED), size) if _SOLVED in found else np.nan
        self._arrays = {path: one for path, one in found.items() if self._is_read(path, one)}
        if len(self._arrays) < len(found):
            self._counts["other_arrays"] += len(found) - len(self._arrays)
        needed = ("data/ctrl_arm", "data/ctrl_ee") if self._real else _SIMULATED
        check_keys(needed, self._where, sorted(self._arrays))
        lengths = {len(one) for one in self._arrays.values()}
        self._counts["unequal_trials"] += len(lengths) > 1
        self.rows = check_rows(min(lengths), size, self._where)
        self._small: dict[str, np.ndarray] = {}

    def empty(self) -> frozenset[str]:
        """The arrays of single numbers that are all NaN."""
        return frozenset(
            path
            for path, one in self._arrays.items()
            if path.startswith("env_infos/")
            and one.dtype.kind == "f"
            and one.ndim == 1
            and np.isnan(self._read(path)).all()
        )

    def episodes(self, empty: frozenset[str]) -> Iterator[Episode]:
        """The trial's runs of steps whose action and reward are numbers, each up to the next row that is flagged done."""
        steps = max(0, self.rows - 1)
        real = np.ones(self.rows, bool)
        for rows in (self._read(path) for path in self._arrays if self._is_action(path)):
            if rows.dtype.kind == "f":
                real &= ~np.isnan(rows).any(tuple(range(1, rows.ndim)))
        rewards, done, usable = np.zeros(steps, np.float32), np.zeros(steps, bool), real[:steps].copy()
        if self._real:
            self._counts["unrewarded_trials"] += 1
        else:
            rewards, flags = self._read("rewards")[1:], self._read("done")[1:] != 0
            if rewards.size != steps:
                message = f"{self._where}: rewards is {list(rewards.shape[1:])} in a row, not one number"
                raise CorruptSourceError(message)
            rewards, done = rewards.reshape(-1), flags.any(tuple(range(1, flags.ndim)))
            usable &= np.isfinite(rewards)
        self._counts["given_up_steps"] += bool(self.rows and real[-1])
        self._counts["unusable_steps"] += int(np.count_nonzero(~usable))
        self._counts["inner_ends"] += int(np.count_nonzero(done[:-1]))
        behind = np.flatnonzero(usable & (done | ~np.append(usable[1:], False))) + 1
        begin = 0
        for end in behind.tolist():
            begin += int(np.argmax(usable[begin:end]))  # after the rows that were left out
            yield self._episode(empty, begin, end, rewards, bool(done[end - 1]), end == steps)
            begin = end
        if not len(behind):
            yield self._episode(empty, 0, 0, rewards, False, False)

    def _episode(
        self, empty: frozenset[str], low: int, high: int, rewards: np.ndarray, terminated: bool, last: bool
    ) -> Episode:
        states: dict[str, Rows] = {}
        steps: dict[str, Rows] = {}
        for path in sorted(self._arrays):
            if path in ("rewards", "done") or path in empty:
                continue
            key = self._key(path)
            if key in states or key in steps:
                raise CorruptSourceError(f"{self._where}: {path} and another array would both be called {key}")
            if self._is_action(path):
                steps[key] = self._read(path)[low:high]
            else:
                states[key] = self._state_rows(path, low, high + 1)
        steps |= {key: np.full(high - low, number, np.int64) for key, number in self._numbers.items()}
        if self._real:
            steps["info/solved"] = np.full((high - low, 1), self._solved, np.float32)
        return Episode(states, steps, rewards[low:high], terminated, last and not terminated)

    # -- arrays --------------------------------------------------------------------------------------------------------

    def _is_action(self, path: str) -> bool:
        return path.startswith("data/ctrl_") if self._real else path == "actions"

    def _key(self, path: str) -> str:
        """The leaf that an array becomes."""
        first, _, rest = path.partition("/")
        if path in ("time", "data/time"):
            return "time"
        if self._real:
            top = "action" if self._is_action(path) else "observation"
            key = "info/user" if path == "data/user" else f"{top}/{rest}"
        else:
            key = {"observations": "observation", "actions": "action"}.get(path, f"info/{rest or first}")
        return _NOT_IN_KEYS.sub("_", key)

    def _is_read(self, path: str, array: h5py.Dataset) -> bool:
        """Whether an array becomes a leaf. Raises CorruptSourceError for one that does, and is damaged."""
        folders = ("data", "derived") if self._real else (*_SIMULATED, "env_infos", "time")
        if path.partition("/")[0] not in folders or not has_rows(array):
            return False
        check_array(array, f"{self._where}/{path}")
        return True

    def _number(self, array: h5py.Dataset, size: int) -> float:
        """A single number, NaN for anything else."""
        if array.shape not in ((), (1,)) or array.dtype.kind not in "biuf":
            return float("nan")
        check_storage(array.id, f"{self._where}/{_SOLVED}", least=1 << 16, size=size)
        return float(np.asarray(array[()]).reshape(-1)[0])

    def _read(self, path: str) -> np.ndarray:
        """The rows of a small array."""
        if path not in self._small:
            self._small[path] = self._chunked(path).read(0, self.rows) if self.rows else self._arrays[path][:0]
        return self._small[path]

    def _state_rows(self, path: str, low: int, high: int) -> Rows:
        array: Any = self._arrays[path]
        if int(np.prod(array.shape[1:], dtype=np.int64)) * array.dtype.itemsize < LARGE_ROW:
            return state_rows(self._read(path)[low:high])
        dtype = array.dtype.newbyteorder("=").name
        return LazyRows(dtype, tuple(array.shape[1:]), self._chunked(path).blocks(low, min(high, self.rows)))

    def _chunked(self, path: str) -> ChunkedRows:
        return ChunkedRows(self._arrays[path], None, 0, f"{self._where}/{path}")
