"""One CSV file, from a place to a dataset.

A file has one row for each state, and one column for each number of the observation:

    episode,observation_0,observation_1,action,reward,terminated
    0,0.1,0.2,1,0.5,0
    0,0.3,0.1,0,1.0,1
    0,0.2,0.4,,,              the final state of an episode: nothing is done in it

An episode whose last step is not ``terminated`` was truncated by a time limit.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from rbdata.datasets.sources import (
    TERMINATED,
    TRUNCATED,
    Column,
    ColumnWriter,
    Plan,
    TrajectoryWriter,
    WholeFileJob,
    to_rewards,
)
from rbdata.errors import CorruptSourceError

COLUMNS = {"episode", "action", "reward", "terminated"}


class CsvLogJob(WholeFileJob):
    source, converter = "csvlog", "csvlog 1"

    # -- what the dataset holds ----------------------------------------------------------------------------------------

    def inspect(self) -> None:
        """The header decides which leaves there are. Raises CorruptSourceError."""
        self.hash_whole()
        try:
            with self.path.open(newline="", encoding="utf-8") as file:
                header, *rows = csv.reader(file)
            table = np.array([[float(value or "nan") for value in row] for row in rows]).reshape(-1, len(header))
        except ValueError as error:
            raise CorruptSourceError(f"{self.item.url} is not a table of numbers: {error}") from error
        self.values = dict(zip(header, table.T))
        self.observed = [column for column in header if column.startswith("observation_")]
        if not self.observed or not COLUMNS.issubset(header):
            raise CorruptSourceError(f"{self.item.url} lacks one of observation_0, {', '.join(sorted(COLUMNS))}")
        self.actions = self.options.extra["actions"]
        dtype = "int64" if self.actions == "discrete" else "float32"
        self.set_columns(
            [Column("observation", "float32", (len(self.observed),), "state"), Column("action", dtype, (), "step")]
        )
        if self.bulk:
            raise CorruptSourceError(
                f"{self.item.url} has {len(self.observed)} columns of observations, too many for CSV"
            )

    def plan(self, columns: ColumnWriter, files: Mapping[str, Path], on_progress: Callable[[int, int], None]) -> Plan:
        """Append all rows. Raises CorruptSourceError."""
        episode, final = self.values["episode"], np.isnan(self.values["action"])
        ends = np.flatnonzero(final)
        lengths = np.diff(ends, prepend=-1) - 1  # steps of each episode
        if not len(ends) or not np.array_equal(ends, np.flatnonzero(np.diff(episode, append=np.inf))):
            raise CorruptSourceError(f"{self.item.url}: not every episode ends with a row without an action")
        if not lengths.all():
            raise CorruptSourceError(f"{self.item.url}: episode {episode[ends[lengths.argmin()]]:g} has no step")
        states = np.stack([self.values[column] for column in self.observed], axis=1).astype(np.float32)
        given, rewards, terminated = (self.values[column][~final] for column in ("action", "reward", "terminated"))
        if not np.isfinite(states).all():
            raise CorruptSourceError(f"{self.item.url}: an observation is not a number")
        rewards = to_rewards(rewards, self.item.url)  # raises CorruptSourceError for what is not a finite number
        actions = given.astype(self.columns[1].dtype)
        if self.actions == "discrete" and (actions != given).any():
            raise CorruptSourceError(f"{self.item.url}: not all actions are whole numbers")

        last = np.cumsum(lengths) - 1
        outcome = np.zeros(len(actions), np.uint8)  # of an episode, at its last step
        outcome[last] = np.where(terminated[last] == 1, TERMINATED, TRUNCATED)
        columns.reserve(len(actions))
        writer = TrajectoryWriter(columns, self.columns)
        rows = {"observation": states, "action": actions}
        writer.append(rows, lengths, rewards, outcome == TERMINATED, outcome == TRUNCATED, outcome)
        on_progress(1, 1)
        episodes = writer.episodes()
        return Plan(episodes=episodes, counts=writer.counts, notes=[], digest=f"{self.sha256} {self.actions}")
