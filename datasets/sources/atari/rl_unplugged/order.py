"""The episodes of all files in training order, and where their rows lie.

Order is that of the stored indices, (checkpoint, index in it); the names of files say nothing. Episodes that follow each
other both in that order and in a file are a *run*; usually a file is one.

Whether an episode's beginning is missing is not stored. A checkpoint's last episode that did not terminate was cut by the
checkpoint's end, and then the first one of the next checkpoint is its continuation, as far as can be known (sources say
so, none shows it): it stands as an episode of its own, marked ``midway``. So does the first one of a checkpoint whose
predecessor is not among the files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .....errors import CorruptSourceError
from .....storage.episodes import CUT, EpisodeTable
from ....ingest.trajectories import count_outcomes
from .decode import ABOUT, CHECKPOINT, FILE_ROWS, INDEX, OUTCOME, STEPS


@dataclass(frozen=True)
class DecodedFile:
    """A file that is decoded: its episodes, and memory-mapped columns."""

    path: Path
    episodes: np.ndarray
    about: dict[str, Any]

    @classmethod
    def open(cls, path: Path) -> DecodedFile:
        about = json.loads((path / ABOUT).read_text())
        return cls(path, np.load(path / "episodes.npy", allow_pickle=False), about)

    def column(self, name: str) -> np.ndarray:
        """``action`` or ``reward``, mapped."""
        return np.load(self.path / f"{name}.npy", mmap_mode="r", allow_pickle=False)


@dataclass(frozen=True)
class Run:
    """``episodes`` are rows of the ordered table that are also consecutive in one file (``file``: its place in the list)."""

    file: int
    episodes: slice
    first_step: int
    steps: int
    first_state: int
    states: int


@dataclass
class Part:
    """Consecutive state rows of the dataset, as many episodes as one file holds; ``file`` is the one named for it."""

    file: int
    first_state: int
    states: int
    runs: list[Run] = field(default_factory=list)


class Order:
    """All episodes of some files in training order; the work is done on construction.

    ``table`` is int64 ``[episodes kept, 8]``: the columns of ``episodes.npy``, then file and place in the file
    (counting kept ones). Raises CorruptSourceError when an episode is there twice.
    """

    def __init__(self, files: Sequence[DecodedFile]) -> None:
        self.files = files
        everything = np.concatenate([_with_place(number, file.episodes) for number, file in enumerate(files)])
        everything = everything[np.lexsort((everything[:, INDEX], everything[:, CHECKPOINT]))]
        self._refuse_twins(everything)
        midway, gaps = _find_midway(everything)
        kept = everything[:, STEPS] > 0
        self.table, self.midway = everything[kept], midway[kept]
        if not len(self.table):
            raise CorruptSourceError("no complete step in the files")
        self._lay_out()
        #: For the manifest: what the files held and what became of it; complete after `episode_table`.
        self.counts = self._count(everything, gaps)

    def steps(self, block: int = 1 << 20) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """``(action, reward, outcome)`` of all steps in order, in blocks; outcome is 0 but in an episode's last step."""
        for run in self.runs:
            file = self.files[run.file]
            action, reward = file.column("action"), file.column("reward")
            table = self.table[run.episodes]
            outcome = np.zeros(run.steps, np.uint8)
            outcome[np.cumsum(table[:, STEPS]) - 1] = table[:, OUTCOME]
            for low in range(0, run.steps, block):
                high = min(low + block, run.steps)
                rows = slice(run.first_step + low, run.first_step + high)
                yield np.array(action[rows]), np.array(reward[rows]), outcome[low:high]

    def episode_table(self) -> EpisodeTable:
        """The dataset's episode table."""
        length = self.table[:, STEPS].copy()
        returns = np.empty(len(length))
        for run in self.runs:
            reward = self.files[run.file].column("reward")[run.first_step : run.first_step + run.steps]
            self.counts["unclipped_rewards"] += int((np.abs(reward) > 1).sum())
            begins = np.cumsum(length[run.episodes]) - length[run.episodes]
            returns[run.episodes] = np.add.reduceat(reward.astype(np.float64), begins)
        outcome = self.table[:, OUTCOME].astype(np.uint8)
        return EpisodeTable(np.cumsum(length) - length, length, returns, outcome, self.midway)

    def _refuse_twins(self, table: np.ndarray) -> None:
        same = (np.diff(table[:, CHECKPOINT]) == 0) & (np.diff(table[:, INDEX]) == 0)
        if same.any():
            at = int(np.argmax(same))
            one, other = (self.files[int(table[row, -2])].path.name for row in (at, at + 1))
            checkpoint, index = table[at, [CHECKPOINT, INDEX]].tolist()
            message = f"episode {index} of checkpoint {checkpoint} is there twice, in {one} and in {other}"
            raise CorruptSourceError(message, hint="files of different versions or runs are mixed; check the mirror")

    def _count(self, table: np.ndarray, gaps: list[dict[str, int]]) -> dict[str, Any]:
        rows, steps = table[:, FILE_ROWS], table[:, STEPS]
        empty = int((rows == 0).sum())
        return {
            "rows_read": int(rows.sum()),
            "pad_rows": 0,
            "given_up_steps": int((rows - steps).sum()),
            "given_up_episodes": len(table) - len(self.table) - empty,
            "empty_episodes": empty,
            **count_outcomes(self.table[:, OUTCOME]),
            "midway_episodes": int(self.midway.sum()),
            "silent_ends": sum(int(file.about["silent_ends"]) for file in self.files),
            "unclipped_rewards": 0,
            "gaps": gaps,
        }

    def _lay_out(self) -> None:
        """Set runs, broken also where a part ends, and parts: each has as many episodes as the file whose turn it is."""
        table, files = self.table, self.files
        turns = list(dict.fromkeys(table[:, -2].tolist()))
        turns += [number for number in range(len(files)) if number not in turns]
        bounds = np.concatenate([[0], np.cumsum(np.bincount(table[:, -2], minlength=len(files))[turns])])
        breaks = np.flatnonzero((np.diff(table[:, -2]) != 0) | (np.diff(table[:, -1]) != 1)) + 1
        starts = np.unique(np.concatenate([breaks, bounds[bounds < len(table)]]))
        before = [np.concatenate([[0], np.cumsum(s.episodes[s.episodes[:, STEPS] > 0][:, STEPS])]) for s in files]
        self.runs = []
        for low, high in zip(starts.tolist(), [*starts[1:].tolist(), len(table)]):
            file, place = int(table[low, -2]), int(table[low, -1])
            step, steps = int(before[file][place]), int(table[low:high, STEPS].sum())
            self.runs.append(Run(file, slice(low, high), step, steps, step + place, steps + high - low))
        states = np.concatenate([[0], np.cumsum(table[:, STEPS] + 1)])
        self.parts = []
        for file, low, high in zip(turns, bounds, bounds[1:]):
            runs = [run for run in self.runs if low <= run.episodes.start < high]
            self.parts.append(Part(file, int(states[low]), int(states[high] - states[low]), runs))


def _find_midway(table: np.ndarray) -> tuple[np.ndarray, list[dict[str, int]]]:
    """Which episodes may have begun before their first row, bool; and the gaps between checkpoints."""
    midway, gaps = np.zeros(len(table), bool), []
    checkpoint = table[:, CHECKPOINT]
    for row in np.flatnonzero(np.diff(checkpoint, prepend=-1)).tolist():
        before = int(checkpoint[row - 1]) if row else -1
        missing = int(checkpoint[row]) - before - 1
        if missing and row:
            gaps.append({"before_checkpoint": int(checkpoint[row]), "checkpoints_missing": missing})
        open_end = bool(row) and table[row - 1, OUTCOME] == CUT and table[row - 1, FILE_ROWS] > 0
        midway[row] = bool(missing) or open_end
    return midway, gaps


def _with_place(number: int, episodes: np.ndarray) -> np.ndarray:
    """A file's episodes with two more columns: its number, and their place among those of it that have steps."""
    place = np.cumsum(episodes[:, STEPS] > 0) - 1
    return np.column_stack([episodes, np.full(len(episodes), number), place])
