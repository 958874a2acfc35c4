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
import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rbdata.datasets.sources import (
    TERMINATED,
    TRUNCATED,
    Column,
    ColumnWriter,
    ConvertOptions,
    Job,
    Location,
    Plan,
    RawObject,
    RemoteObject,
    TrajectoryWriter,
    lay_out,
)
from rbdata.errors import CorruptSourceError

COLUMNS = {"episode", "action", "reward", "terminated"}


class CsvLogJob(Job):
    """``name`` is None for a file in a folder that the user names."""

    def __init__(self, name: str | None, location: Location, item: RemoteObject, options: ConvertOptions) -> None:
        self.name, self.location, self.item, self.options = name, location, item, options
        self.actions = options.extra["actions"]

    def identity(self) -> dict[str, Any]:
        """With another identity, an interrupted run does not continue this one."""
        file = [self.item.name, self.item.size, dict(self.item.checksums) or self.item.version]
        return {"converter": "csvlog 1", "file": file, "actions": self.actions}

    # -- what the dataset holds ----------------------------------------------------------------------------------------

    def files(self) -> list[RemoteObject]:
        """The file is fetched whole, and where it lies is given to the next two methods."""
        return [self.item]

    def inspect_files(self, files: Mapping[str, Path]) -> None:
        """The header decides which leaves there are. Raises CorruptSourceError."""
        path = files[self.item.url]
        self.sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        try:
            with path.open(newline="", encoding="utf-8") as file:
                header, *rows = csv.reader(file)
            table = np.array([[float(value or "nan") for value in row] for row in rows]).reshape(-1, len(header))
        except ValueError as error:
            raise CorruptSourceError(f"{self.item.url} is not a table of numbers: {error}") from error
        self.values = dict(zip(header, table.T))
        self.observed = [column for column in header if column.startswith("observation_")]
        if not self.observed or not COLUMNS.issubset(header):
            raise CorruptSourceError(f"{self.item.url} lacks one of observation_0, {', '.join(sorted(COLUMNS))}")
        dtype = "int64" if self.actions == "discrete" else "float32"
        self.columns = [
            Column("observation", "float32", (len(self.observed),), "state"),
            Column("action", dtype, (), "step"),
        ]
        self.schema, self.bulk = lay_out(self.columns, self.options)
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
        if not (np.isfinite(states).all() and np.isfinite(rewards).all()):
            raise CorruptSourceError(f"{self.item.url}: an observation or a reward is not a number")
        actions = given.astype(self.columns[1].dtype)
        if self.actions == "discrete" and (actions != given).any():
            raise CorruptSourceError(f"{self.item.url}: not all actions are whole numbers")

        last = np.cumsum(lengths) - 1
        outcome = np.zeros(len(actions), np.uint8)  # of an episode, at its last step
        outcome[last] = np.where(terminated[last] == 1, TERMINATED, TRUNCATED)
        columns.reserve(len(actions))
        writer = TrajectoryWriter(columns, self.columns)
        rows = {"observation": states, "action": actions}
        writer.append(rows, lengths, rewards.astype(np.float32), outcome == TERMINATED, outcome == TRUNCATED, outcome)
        on_progress(1, 1)
        episodes = writer.episodes()
        return Plan(episodes=episodes, counts=writer.counts, notes=[], digest=f"{self.sha256} {self.actions}")

    # -- what the manifest records -------------------------------------------------------------------------------------

    def objects(self) -> Iterable[dict[str, Any]]:
        return [{"name": self.item.name, "size": self.item.size, "sha256": self.sha256}]

    def raw_objects(self) -> list[RawObject]:
        """Where the file lies in a mirror, for `rbdata download --keep-raw` and `rbdata mirror push --raw`."""
        return [RawObject(self.item.name, self.item, self.location)]

    def about(self) -> dict[str, Any]:
        source = {"name": "csvlog", "upstream": "csvlog", "dataset": self.name, "options": {"actions": self.actions}}
        return {"source": source, "licence": None, "citation": None}
