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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rbdata.datasets.sources import (
    END_TERMINATED,
    END_TRUNCATED,
    LEAD,
    Block,
    Column,
    EpisodeTable,
    Facts,
    Part,
    Unit,
    WholeFileReader,
    count_outcomes,
    to_rewards,
)
from rbdata.errors import CorruptSourceError

COLUMNS = {"episode", "action", "reward", "terminated"}


class CsvLogReader(WholeFileReader):
    source, converter = "csvlog", "csvlog 1"

    def read_head(self, path: Path) -> tuple[str, dict[str, np.ndarray]]:
        """The checksum of the file, and its columns. Raises CorruptSourceError."""
        try:
            with path.open(newline="", encoding="utf-8") as file:
                header, *rows = csv.reader(file)
            table = np.array([[float(value or "nan") for value in row] for row in rows]).reshape(-1, len(header))
        except ValueError as error:
            raise CorruptSourceError(f"{self.item.url} is not a table of numbers: {error}") from error
        if "observation_0" not in header or not COLUMNS.issubset(header):
            raise CorruptSourceError(f"{self.item.url} lacks one of observation_0, {', '.join(sorted(COLUMNS))}")
        return self.hash_whole(path), dict(zip(header, table.T))

    def take_head(self, head: tuple[str, dict[str, np.ndarray]]) -> None:
        """The header decides which leaves there are."""
        self.sha256, self.values = head
        self.observed = [name for name in self.values if name.startswith("observation_")]
        dtype = "int64" if self.options.extra["actions"] == "discrete" else "float32"
        self.set_columns(
            [Column("observation", "float32", (len(self.observed),), "state"), Column("action", dtype, (), "step")]
        )
        if self.bulk:
            message = f"{self.item.url} has {len(self.observed)} columns of observations, too many for CSV"
            raise CorruptSourceError(message)
        self.digest = f"{self.sha256} {self.options.extra['actions']}"

    def lead(self) -> CsvUnit:
        """All rows: nothing is large enough to be read by several workers."""
        return CsvUnit(LEAD, self.item.url, len(self.values["episode"]), "rows", self)

    def units(self, lead: Part | None) -> Sequence[Unit]:
        return []

    def facts(self, parts: Sequence[Part], episodes: EpisodeTable) -> Facts:
        return Facts(count_outcomes(episodes.outcomes))


@dataclass(frozen=True)
class CsvUnit(Unit):
    reader: CsvLogReader

    def blocks(self, resume: Any, threads: int) -> Iterator[Block]:
        """Raises CorruptSourceError."""
        values, url = self.reader.values, self.name
        final = np.isnan(values["action"])
        ends = np.flatnonzero(final)
        lengths = np.diff(ends, prepend=-1) - 1  # steps of each episode
        if not len(ends) or not np.array_equal(ends, np.flatnonzero(np.diff(values["episode"], append=np.inf))):
            raise CorruptSourceError(f"{url}: not every episode ends with a row without an action")
        if not lengths.all():
            raise CorruptSourceError(f"{url}: episode {values['episode'][ends[lengths.argmin()]]:g} has no step")
        states = np.stack([values[column] for column in self.reader.observed], axis=1).astype(np.float32)
        given, rewards, terminated = (values[column][~final] for column in ("action", "reward", "terminated"))
        if not np.isfinite(states).all():
            raise CorruptSourceError(f"{url}: an observation is not a number")
        rewards = to_rewards(rewards, url)  # raises CorruptSourceError for what is not a finite number
        actions = given.astype(self.reader.columns[1].dtype)
        if self.reader.options.extra["actions"] == "discrete" and (actions != given).any():
            raise CorruptSourceError(f"{url}: not all actions are whole numbers")

        last = np.cumsum(lengths) - 1
        bits = np.zeros(len(actions), np.uint8)  # how the last step of an episode ends it
        bits[last] = np.where(terminated[last] == 1, END_TERMINATED, END_TRUNCATED)
        columns = {"observation": states, "action": actions, "next/reward": rewards}
        yield Block(columns, bits, done=self.rows)
