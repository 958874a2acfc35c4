"""A dataset with leaves that are computed when they are read: nothing is stored for them.

    DerivedDataset(path, add_episode)      # every step has "episode", the number of its episode

A derivation maps the stored leaves to those that are read. It is a module's function (or a `functools.partial` of one), so
that the dataset can be pickled.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from .codecs.codec import Rows
from .dataset import Dataset, reopen
from .leaf import Leaf
from .schema import Schema

#: From a dataset to the leaves by which it is read.
Derivation = Callable[[Dataset], Mapping[str, Rows]]


class DerivedDataset(Dataset):
    """A dataset whose leaves are what ``derive`` makes of the stored ones; the manifest states the stored ones."""

    def __init__(self, path: str | os.PathLike[str], derive: Derivation) -> None:
        self._base = Dataset(path)
        vars(self).update(vars(self._base))
        self._derive = derive

    @cached_property
    def rows(self) -> dict[str, Rows]:
        return dict(self._derive(self._base))

    @cached_property
    def schema(self) -> Schema:
        return Schema(tuple(rows.leaf for rows in self.rows.values()))

    def __reduce__(self) -> tuple[Any, ...]:
        return reopen, (DerivedDataset, (self.path.absolute(), self._derive), self.manifest.content)


class ComputedRows:
    """Rows that are computed from their numbers. A derived class defines ``take``."""

    def __init__(self, leaf: Leaf, count: int) -> None:
        self.leaf, self.count = leaf, count

    def take(self, index: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def windows(self, first: torch.Tensor, length: int) -> torch.Tensor:
        steps = (first[:, None] + torch.arange(length)).reshape(-1)
        return self.take(steps).reshape(len(first), length, *self.leaf.shape)

    def block(self, start: int, stop: int) -> torch.Tensor:
        return self.take(torch.arange(start, stop))


class EpisodeRows(ComputedRows):
    """The number of the episode of each step, int64 ``[]``."""

    def __init__(self, dataset: Dataset) -> None:
        super().__init__(Leaf("episode", "step", "int64", ()), len(dataset))
        self._dataset = dataset

    def take(self, index: torch.Tensor) -> torch.Tensor:
        return self._dataset.episode_of(index)


class ShiftedRows(ComputedRows):
    """The rows of a step leaf ``by`` steps later (earlier where negative) in the same episode; zeros outside it."""

    def __init__(self, dataset: Dataset, source: str, name: str, by: int) -> None:
        self._rows, self._dataset, self._by = dataset.rows[source], dataset, by
        super().__init__(replace(self._rows.leaf, name=name, constant=None, codec="raw"), len(dataset))

    def take(self, index: torch.Tensor) -> torch.Tensor:
        starts = self._dataset.episode_starts
        episode = self._dataset.episode_of(index)
        wanted = index + self._by
        outside = (wanted < starts[episode]) | (wanted >= starts[episode + 1])
        found = self._rows.take(torch.where(outside, index, wanted))
        found[outside] = 0
        return found


def rename(rows: Rows, name: str) -> Rows:
    """The same rows under another name."""
    renamed = copy.copy(rows)
    renamed.leaf = replace(rows.leaf, name=name)
    return renamed


def add_episode(dataset: Dataset) -> dict[str, Rows]:
    """All leaves and ``episode``, the number of each step's episode, where the data have none of their own."""
    return {"episode": EpisodeRows(dataset), **dataset.rows}
