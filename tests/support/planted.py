"""Datasets with one planted fault: the columns of a clean one, changed, and written as they are.

columns = play(seed=0)                       # every TED key of a clean dataset
columns["next/reward"][17] = np.nan
folder = columns.write(root)                 # no converter that would refuse or mend it
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rbdata.datasets.ingest.block import Block
from rbdata.storage.dataset import Dataset
from rbdata.storage.episodes import TERMINATED, TRUNCATED, EpisodeTable
from rbdata.storage.folder import DatasetPlace
from rbdata.storage.manifest import Manifest
from rbdata.storage.schema import Leaf, Schema, ted_flags
from rbdata.storage.work import Work
from storage_tools import ENDS, commit, write_lead

ACTIONS = {"type": "Box", "low": -1.0, "high": 1.0, "shape": [2], "dtype": "float32"}


@dataclass
class Columns:
    """The rows of every TED key, ``[steps, ...]``, and how each episode ends."""

    rows: dict[str, np.ndarray]
    lengths: list[int]
    outcomes: list[int]
    spaces: dict[str, Any] = field(default_factory=lambda: {"action": dict(ACTIONS)})
    source: dict[str, Any] = field(default_factory=lambda: {"name": "test", "options": {}, "objects": []})
    #: What the episode table states, where it is not the sum of the rewards.
    returns: np.ndarray | None = None

    def __getitem__(self, name: str) -> np.ndarray:
        return self.rows[name]

    def __setitem__(self, name: str, rows: np.ndarray) -> None:
        self.rows[name] = rows

    @property
    def starts(self) -> np.ndarray:
        return np.cumsum(self.lengths) - self.lengths

    @property
    def ends(self) -> np.ndarray:
        """The last step of each episode."""
        return np.cumsum(self.lengths) - 1

    def observe(self, states: np.ndarray) -> None:
        """Set the observations and their successors, from states of which an episode has one more than steps."""
        inner = np.ones(len(states), bool)
        inner[self.ends + np.arange(len(self.ends)) + 1] = False
        self["observation"] = states[inner]
        self["next/observation"] = states[np.flatnonzero(inner) + 1]

    def states(self) -> np.ndarray:
        """The states of which `observe` makes observations."""
        parts = []
        for start, length in zip(self.starts, self.lengths):
            parts += [self["observation"][start : start + length], self["next/observation"][[start + length - 1]]]
        return np.concatenate(parts)

    def cut(self, lengths: list[int], outcomes: list[int]) -> None:
        """Divide the steps into other episodes."""
        self.lengths, self.outcomes = lengths, outcomes
        self.set_flags()

    def set_flags(self) -> None:
        """The flags that the lengths and outcomes mean."""
        steps = sum(self.lengths)
        terminated, truncated = np.zeros((2, steps, 1), bool)
        for end, outcome in zip(self.ends, self.outcomes):
            (terminated if outcome == TERMINATED else truncated)[end] = True
        self.rows |= {"next/terminated": terminated, "next/truncated": truncated, "next/done": terminated | truncated}

    def take(self, episodes: list[int]) -> Columns:
        """Some episodes, in this order; one may occur twice."""
        steps = np.concatenate([np.arange(self.starts[one], self.ends[one] + 1) for one in episodes])
        rows = {name: rows[steps].copy() for name, rows in self.rows.items()}
        chosen = [self.lengths[one] for one in episodes], [self.outcomes[one] for one in episodes]
        return replace(self, rows=rows, lengths=chosen[0], outcomes=chosen[1])

    def table(self) -> EpisodeTable:
        rewards = np.add.reduceat(self["next/reward"][:, 0].astype("float64"), self.starts)
        returns = rewards if self.returns is None else self.returns
        outcomes, midway = np.array(self.outcomes, np.uint8), np.zeros(len(self.lengths), bool)
        return EpisodeTable(self.starts, np.array(self.lengths), returns, outcomes, midway)

    def write(self, root: Path, name: str = "my/planted") -> Dataset:
        """Write them as a dataset of step leaves."""
        table, flags = self.table(), {leaf.name: leaf for leaf in ted_flags()}
        leaves = []
        for key, rows in self.rows.items():
            dtype = rows.dtype.newbyteorder("=").name
            given = Leaf(key, "step", dtype, rows.shape[1:])
            leaves.append(replace(flags[key], constant=None) if key in flags else given)
        leaves += [leaf for key, leaf in flags.items() if key not in self.rows]
        schema, place = Schema(tuple(leaves)), DatasetPlace(root, name)
        bits = np.zeros(sum(self.lengths), np.uint8)
        bits[self.ends] = [ENDS[outcome] for outcome in self.outcomes]
        given_rows = {leaf.name: self.rows[leaf.name] for leaf in leaves if leaf.constant is None}
        with place.lock():
            lead = write_lead(Work(place, "planted"), schema, [Block(given_rows, bits)])
            returns, lengths = table.summary()
            steps, source = sum(self.lengths), self.source
            facts: Any = {"spaces": self.spaces, "returns": returns, "lengths": lengths}
            manifest = Manifest(name, schema, steps, len(self.lengths), source, **facts)
            return Dataset(commit(place, manifest, table, [lead]))


def play(episodes: int = 40, seed: int = 0, *, width: int = 2) -> Columns:
    """A point of mass 1 that random forces push: positions and velocities, ended at a distance of 2 or by a time limit."""
    rng = np.random.default_rng(seed)
    states: list[np.ndarray] = []
    actions: list[np.ndarray] = []
    rewards: list[float] = []
    lengths, outcomes = [], []
    for _ in range(episodes):
        place, speed = rng.normal(0, 0.2, width), rng.normal(0, 0.4, width)
        states.append(np.concatenate([place, speed]))
        length, limit = 0, int(rng.integers(20, 60))
        while length < limit and np.abs(place).max() < 2:
            force = rng.uniform(-1, 1, width)
            speed = 0.95 * speed + 0.2 * force
            place = place + 0.1 * speed
            states.append(np.concatenate([place, speed]))
            actions.append(force)
            rewards.append(float(1 - np.abs(place).sum() - 0.5 * np.square(force).sum()))
            length += 1
        lengths.append(length)
        outcomes.append(TERMINATED if np.abs(place).max() >= 2 else TRUNCATED)
    columns = Columns({}, lengths, outcomes)
    columns.observe(np.array(states, "float32"))
    columns["action"] = np.array(actions, "float32")
    columns["next/reward"] = np.array(rewards, "float32")[:, None]
    columns.set_flags()
    return columns
