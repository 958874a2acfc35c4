"""What a loop has recorded, from its log of episodes to a dataset: the same files as those of a recording by a policy."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ....storage.durable import sync_folder
from ...ingest.protocol import ConvertOptions, Expectation
from ...ingest.spaces import SpaceLeaf
from ...ingest.trajectories import Column
from ...workers.task import OnBlock
from .episode_log import EpisodeLog, Piece
from .job import RECORDING, RecordedJob
from .participants import PYTHON, describe_environment
from .recorder import block_rows, count_outside
from .recording import RecordingWriter

#: The log, in the working folder of the dataset.
LOG = "episodes.log"


class LoopJob(RecordedJob):
    """The dataset of a loop. ``log`` may be larger when it is run than when the job is made."""

    def __init__(self, name: str, env: Any, environments: int, options: ConvertOptions) -> None:
        super().__init__(name, env, environments, options)
        self.layers = describe_environment(env)
        self.log: EpisodeLog | None = None
        self.more_notes: list[str] = []

    def identity(self) -> dict[str, Any]:
        return {
            "converter": "gymnasium loop 1",
            "environment": self.spec,
            "environments": self.environments,
            "leaves": [leaf.to_json() for leaf in self.schema],
            "text": self.options.extra["text"],
        }

    def about_source(self) -> dict[str, Any]:
        options = {"text": self.options.extra["text"], "unknown_next": self.options.unknown_next}
        return {
            "recorded_by": "rbdata.Recorder",
            "options": options,
            "environment_layers": self.layers,
            "python": PYTHON,
        }

    def expect(self) -> Expectation:
        return self.expect_rows(*self.log.counts) if self.log else self.expect_rows(0)

    def staging_tasks(self, folder: Path, threads: int) -> Sequence[Any]:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        if (folder / RECORDING).is_dir():
            return []
        assert self.log is not None
        actions = dict(zip(range(len(self.observation), len(self.columns)), self.action))
        return [
            LogTask(
                0,
                self.log,
                self.columns,
                actions,
                self.environments,
                self._codec,
                threads,
                folder / RECORDING,
                self.more_notes,
            )
        ]


@dataclass(frozen=True)
class LogTask:
    """Writes the recording of a log. For this process: a log is an open file."""

    index: int
    log: EpisodeLog
    columns: Sequence[Column]
    #: The leaves of the actions, by the number of their column.
    actions: dict[int, SpaceLeaf]
    environments: int
    codec: str
    threads: int
    target: Path
    notes: Sequence[str]

    @cached_property
    def rows(self) -> int:
        return self.log.counts[0]

    def __call__(self, on_block: OnBlock) -> dict[str, Any]:
        partial = self.target.with_name(self.target.name + ".part")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        writer = RecordingWriter(partial, self.columns, codec=self.codec, threads=self.threads)
        blocks = [_Blocks(writer, env, self.columns, self.environments) for env in range(self.environments)]
        done = outside = 0
        for env in range(self.environments):  # its files are there, also without an episode
            writer.steps(env, np.zeros(0), np.zeros(0, np.uint8))
            for number in range(len(self.columns)):
                if not writer.is_compressed(number):
                    writer.column(env, number, np.zeros((0, *self.columns[number].shape), self.columns[number].dtype))
        for piece in self.log.pieces():
            blocks[piece.env].add(piece)
            outside += sum(count_outside(leaf, piece.rows[number]) for number, leaf in self.actions.items())
            done += len(piece.rewards)
            on_block(done, 0, 0)
        for block in blocks:
            block.flush()
        states = [block.all_states for block in blocks]
        writer.finish({"states": states, "counts": {"actions_out_of_bounds": outside}, "notes": list(self.notes)})
        partial.rename(self.target)
        sync_folder(self.target.parent)
        return {}


class _Blocks:
    """Gathers the rows of one environment into the blocks that `recorder` writes: a dictionary is trained on the first."""

    def __init__(self, writer: RecordingWriter, env: int, columns: Sequence[Column], count: int) -> None:
        self._writer, self._env, self._columns = writer, env, columns
        self._room = block_rows(columns, count) - 1
        self._parts: list[list[np.ndarray]] = [[] for _ in columns]
        self._states = 0
        self.all_states = 0

    def add(self, piece: Piece) -> None:
        """Take the steps of a piece; a full block is written before the step after it."""
        steps = len(piece.rewards)
        first = int(piece.begins)
        if first:
            self._take(piece, slice(0, 1), slice(0, 0))
        low = 0
        while low < steps:
            if self._states >= self._room:
                self.flush()
            high = min(steps, low + max(1, self._room - self._states))
            self._take(piece, slice(first + low, first + high), slice(low, high))
            low = high
        end = np.zeros(steps, np.uint8)
        end[-1:] = piece.end
        self._writer.steps(self._env, piece.rewards, end)

    def _take(self, piece: Piece, states: slice, steps: slice) -> None:
        for parts, rows, column in zip(self._parts, piece.rows, self._columns):
            parts.append(rows[states if column.per == "state" else steps])
        self._states += states.stop - states.start

    def flush(self) -> None:
        """Write what was gathered."""
        for number, parts in enumerate(self._parts):
            rows = np.concatenate(parts) if parts else np.zeros((0,))
            if len(rows):
                self._writer.column(self._env, number, rows)
            parts.clear()
        self.all_states += self._states
        self._states = 0
