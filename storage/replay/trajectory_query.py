"""The trajectories of a buffer for which something holds.

Predicates written with `traj` say which keys they read: only those are read, and only the transforms that make them are
applied, until a trajectory is found. Over a dataset episodes are asked one at a time, each leaf is read when it is asked for,
and lengths and returns come from the episode table, so that ``traj.length > 100`` reads nothing at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import torch
from tensordict import TensorDictBase

from ...errors import ArgumentTypeError
from ..dataset import Dataset
from .storages.dataset_storage import DatasetStorage
from .storages.storage import Storage
from .storages.trees import stack_records
from .trajectory import Trajectory, find_edges
from .transforms.chain import Transforms
from .windows.draw import Key
from .windows.edges import Edges, as_key
from .windows.timeline import Timeline

Predicate = Callable[[Any], Any]


class DatasetTrajectories(Sequence[Trajectory]):
    """Trajectories of a dataset: each is read (and transformed) when it is taken out.

    ``episodes`` int64 ``[n]``: their numbers in the dataset.
    """

    def __init__(self, dataset: Dataset, starts: torch.Tensor, episodes: torch.Tensor, transforms: Transforms) -> None:
        self.dataset, self.episodes = dataset, episodes
        self._starts, self._transforms = starts, transforms

    def __len__(self) -> int:
        return len(self.episodes)

    @overload
    def __getitem__(self, place: int) -> Trajectory: ...

    @overload
    def __getitem__(self, place: slice) -> DatasetTrajectories: ...

    def __getitem__(self, place: int | slice) -> Trajectory | DatasetTrajectories:
        if isinstance(place, slice):
            return DatasetTrajectories(self.dataset, self._starts, self.episodes[place], self._transforms)
        episode = int(self.episodes[place])  # beyond the end an IndexError, which ends iteration
        return Trajectory(self._transforms(self.dataset[int(self._starts[episode]) : int(self._starts[episode + 1])]))

    def __repr__(self) -> str:
        return f"DatasetTrajectories({len(self)} of {self.dataset!r})"


class _Episode:
    """A `Trajectory` of a dataset as predicates see it: a leaf is read when it is asked for."""

    def __init__(self, dataset: Dataset, low: int, high: int, total: float | None) -> None:
        self._dataset, self._low, self.length, self._total = dataset, low, high - low, total
        self._whole: Trajectory | None = None

    @property
    def total_reward(self) -> torch.Tensor:
        if self._total is None:
            found: torch.Tensor = self.get("reward").sum()
            return found
        return torch.tensor(self._total, dtype=torch.float64)

    def get(self, key: Any, default: Any = None) -> Any:
        names = ["/".join(as_key(key))]
        if isinstance(key, str):
            names.append(f"next/{key}")
        for name in names:
            root = name if name in self._dataset.rows else name.removeprefix("next/")
            if name in self._dataset.schema.names and root in self._dataset.rows:
                steps = torch.arange(self._low, self._low + self.length)
                return self._dataset.read(steps, keys=[root])[tuple(name.split("/"))][:, 0]
        return default

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = self.get(name)
        return getattr(self._read(), name) if value is None else value

    def __getitem__(self, index: Any) -> Any:
        return self._read()[index]

    def __len__(self) -> int:
        return self.length

    def _read(self) -> Trajectory:
        if self._whole is None:
            self._whole = Trajectory(self._dataset[self._low : self._low + self.length])
        return self._whole


def query_trajectories(
    storage: Storage, transforms: Transforms, predicate: Predicate | None, trajectory_key: Any
) -> Sequence[Trajectory]:
    """The trajectories for which ``predicate`` holds (all without one), in order of time, through the transforms."""
    if not len(storage):
        return []
    keys = getattr(predicate, "required_keys", lambda: None)()
    if isinstance(storage, DatasetStorage):
        return _in_dataset(storage, transforms, predicate, keys, trajectory_key)
    source = storage.get(slice(None))
    source = stack_records(source) if isinstance(source, list) else source
    if not isinstance(source, TensorDictBase):
        raise ArgumentTypeError(f"queries are about TensorDicts, and the storage holds a {type(source).__name__}")
    timeline = storage.timeline(find_edges(storage.column, trajectory_key))
    places = list(_places(timeline, storage))
    if predicate is None:
        return [Trajectory(_applied(transforms, source[place])) for place in places]
    asked, transformed = source, transforms
    if keys is not None:
        transformed, needed = needed_transforms(transforms, keys)
        asked = source if needed is None else source.select(*needed, strict=False)
    asked = _applied(transformed, asked)
    chosen = [place for place in places if predicate(Trajectory(asked[place]))]
    if keys is None:  # everything was transformed already
        return [Trajectory(asked[place]) for place in chosen]
    return [Trajectory(_applied(transforms, source[place])) for place in chosen]


def _in_dataset(
    storage: DatasetStorage, transforms: Transforms, predicate: Predicate | None, keys: Any, trajectory_key: Any
) -> DatasetTrajectories:
    edges = Edges() if trajectory_key is None else find_edges(storage.column, trajectory_key)
    starts, dataset = storage.timeline(edges).starts, storage.dataset
    every = DatasetTrajectories(dataset, starts, torch.arange(len(starts) - 1), transforms)
    if predicate is None:
        return every
    raw = not len(transforms) or (keys is not None and not len(needed_transforms(transforms, keys)[0]))
    # Returns in the table are those of its own episodes, of rewards under their usual name.
    table = dataset.episodes.returns if trajectory_key is None and "reward" not in dataset.schema.names else None
    chosen = []
    for number, (low, high) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist())):
        total = None if table is None else float(table[number])
        if predicate(_Episode(dataset, low, high, total) if raw else every[number]):
            chosen.append(number)
    return DatasetTrajectories(dataset, starts, torch.tensor(chosen, dtype=torch.int64), transforms)


def _places(timeline: Timeline, storage: Storage) -> Iterator[Any]:
    """What to index the records of a storage with, for each trajectory: a slice (a view) where its rows follow each other."""
    for low, high in zip(timeline.starts[:-1].tolist(), timeline.starts[1:].tolist()):
        rows = timeline.rows(torch.arange(low, high))
        first, last = int(rows[0]), int(rows[-1])
        contiguous = storage.ndim == 1 and timeline.order is None and last - first == high - low - 1
        yield slice(first, last + 1) if contiguous else storage.coordinates(rows)


def _applied(transforms: Transforms, data: TensorDictBase) -> Any:
    return transforms(data.copy()) if len(transforms) else data


def needed_transforms(transforms: Transforms, keys: frozenset[Any]) -> tuple[Transforms, set[Key] | None]:
    """The transforms that make any of ``keys``, and what has to be read for it; None: everything.

    A transform without ``out_keys`` may make anything: it and all before it are needed.
    """
    needed = {as_key(key) for key in keys} | {("next", key) for key in keys if isinstance(key, str)}
    kept: list[Any] = []
    for place in reversed(range(len(transforms))):
        made = [as_key(key) for key in getattr(transforms[place], "out_keys", None) or ()]
        if not made:
            return Transforms(*(transforms[before] for before in range(place + 1)), *kept), None
        if any(_overlap(key, other) for key in made for other in needed):
            kept.insert(0, transforms[place])
            needed.update(as_key(key) for key in getattr(transforms[place], "in_keys", None) or ())
    return Transforms(*kept), needed


def _overlap(key: Key, other: Key) -> bool:
    depth = min(len(key), len(other))
    return key[:depth] == other[:depth]
