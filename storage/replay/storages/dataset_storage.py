"""A dataset folder as the storage of a buffer: nothing is copied, nothing is scanned, nothing can be written.

Its steps are in order of time and its episode table is at hand, so that slices and windows cost the same however large
the dataset is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from ....errors import ReadOnlyError, UsageError
from ...dataset import Dataset
from ...remote.remote_dataset import RemoteDataset
from ..windows.draw import Key
from ..windows.edges import Edges
from ..windows.timeline import Timeline
from .gather import Readable
from .storage import Storage


class DatasetStorage(Storage):
    """The steps of a dataset (an open `Dataset`, or the path of one), read-only."""

    immutable = True

    def __init__(self, dataset: Dataset | str | os.PathLike[str]) -> None:
        self.dataset = dataset if isinstance(dataset, Dataset) else Dataset(dataset)
        super().__init__(max(1, len(self.dataset)))
        self._own: Timeline | None = None

    version = 0

    @property
    def filled(self) -> int:
        return len(self.dataset)

    @property
    def newest(self) -> int:
        return len(self.dataset) - 1

    @property
    def is_full(self) -> bool:
        return True

    @property
    def oldest(self) -> int:
        return 0

    def get(self, index: Any) -> Any:
        return self.dataset[index[0] if isinstance(index, tuple) and len(index) == 1 else index]

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        raise read_only(self.dataset)

    def empty(self) -> None:
        raise read_only(self.dataset)

    _empty = empty

    def will_read(self, ranges: Sequence[tuple[int, int]]) -> None:
        if isinstance(self.dataset, RemoteDataset):
            self.dataset.plan_steps(ranges)

    def column(self, key: Key) -> torch.Tensor | None:
        name = "/".join(key)
        return self.dataset[name] if name in self.dataset.schema.names else None

    def fields(self) -> dict[str, Readable]:
        return dict(self.dataset.rows)

    def timeline(self, edges: Edges) -> Timeline:
        own = self._own = self._own or Timeline(self.dataset.episode_starts, len(self.dataset))
        stored = self.dataset.manifest.schema
        if edges.usual and (edges.traj_key is None or "/".join(edges.traj_key) not in stored):
            return own
        found = super().timeline(edges)
        if self.states and not torch.equal(found.starts, own.starts):
            message = f"{self.dataset.id} stores observations once for each state: its own episodes are the only ones"
            raise UsageError(message, hint="leave out traj_key, end_key, ends and trajectories")
        return found

    @property
    def states(self) -> bool:
        """Whether there are leaves with a row for every state."""
        return bool(self.dataset.schema.states)

    def state_dict(self) -> dict[str, Any]:
        """What names the dataset; its data stay where they are."""
        manifest = self.dataset.manifest
        return {"id": self.dataset.id, "steps": manifest.steps, "episodes": manifest.episodes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state != self.state_dict():
            message = f"the state belongs to {state.get('id')} with {state.get('steps')} steps, not to {self.dataset!r}"
            raise UsageError(message)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_timelines": {}, "_own": None}

    def __repr__(self) -> str:
        return f"DatasetStorage({self.dataset!r})"


def read_only(dataset: Any) -> ReadOnlyError:
    """The error of whoever tries to write."""
    message = f"{dataset.id} is a dataset: it doesn't allow writing"
    return ReadOnlyError(message, hint="preprocess it into a new one, or extend a LazyMemmapStorage")
