"""A dataset folder as the read-only storage of a buffer, without a copy or a scan of the data.

Its steps are in order of time and its episode table is known, so the cost of slices and windows does not depend on the size of
the dataset.

`EpisodeStorage` has a dataset's episodes as records, each padded with zeros to the length of the longest episode.

steps a0 a1 a2 b0 b1          ->       a0 a1 a2        mask  T T T
                                       b0 b1 --              T T F
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict

from ....errors import ReadOnlyError, SamplingError, UnknownKeyError, UsageError
from ...dataset import Dataset, Derivation, DerivedDataset
from ...remote.remote_dataset import RemoteDataset
from ...row_index import row_index
from ...schema import FLAGS
from ..overrides import reads_by_get
from ..timeline import Edges, Key, Timeline
from .rows import Readable
from .storage import Storage
from .trees import clone_tensors


class DatasetStorage(Storage):
    """The steps of a dataset (an open `Dataset`, or the path of one), read-only.

    ``derive`` returns the leaves by which the dataset is read, and ``statistics`` has the values used for them
    (`derived_leaves.derivation`). ``keys``: the leaves to read, with leaves below them and their successors; flags, the reward
    and leaves that ``derive`` adds are always included. Raises UnknownKeyError.
    """

    immutable = True

    def __init__(
        self,
        dataset: Dataset | str | os.PathLike[str],
        *,
        derive: Derivation | None = None,
        statistics: dict[str, Any] | None = None,
        keys: Sequence[str | tuple[str, ...]] | None = None,
    ) -> None:
        self.source = dataset if isinstance(dataset, Dataset) else Dataset(dataset)
        self.source._check_reading()
        self.statistics = statistics or {}
        self.dataset: Dataset = self.source if derive is None else DerivedDataset(self.source, derive)
        #: The leaves to read; None for all.
        self.keys: tuple[str, ...] | None = None
        if keys is not None:
            added = [name for name in self.dataset.rows if name not in self.source.rows]
            self.keys = (*_chosen_leaves(self.source, keys), *added)
        super().__init__(max(1, len(self.source)))
        self._own: Timeline | None = None

    version = 0

    # -- contents ----------------------------------------------------------------------------------------------------

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
        return self.dataset.steps_at(index[0] if isinstance(index, tuple) and len(index) == 1 else index, self.keys)

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        raise read_only(self.dataset)

    def empty(self) -> None:
        raise read_only(self.dataset)

    def will_read(self, ranges: Sequence[tuple[int, int]]) -> None:
        if isinstance(self.source, RemoteDataset):
            self.source.plan_steps(ranges, self.keys and [name for name in self.keys if name in self.source.rows])

    def column(self, key: Key) -> torch.Tensor | None:
        name = "/".join(key)
        return self.dataset[name] if name in self.dataset.schema.names else None

    def _leaf_at(self, key: Key, rows: torch.Tensor) -> torch.Tensor | None:
        if reads_by_get(self):
            return super()._leaf_at(key, rows)
        name = "/".join(key)
        root = name if name in self.dataset.rows else name.removeprefix("next/")
        if root not in self.dataset.rows:
            return None
        found: torch.Tensor | None = self.dataset.read(rows, keys=[root]).get(key, None)
        return None if found is None else found[:, 0]

    def fields(self) -> dict[str, Readable]:
        rows = self.dataset.rows
        return dict(rows) if self.keys is None else {name: rows[name] for name in self.keys}

    def timeline(self, edges: Edges) -> Timeline:
        own = self._own = self._own or Timeline(self.dataset._starts, len(self.dataset))
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

    # -- saving ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The name of the dataset and its content; its data stay where they are."""
        manifest = self.source.manifest
        return {
            "id": self.source.id,
            "steps": manifest.steps,
            "episodes": manifest.episodes,
            "content": manifest.content,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises UsageError for the state of another dataset."""
        own = self.state_dict()
        if state != own:
            what = f"{state.get('id')} with {state.get('steps')} steps"
            if {**state, "content": None} == {**own, "content": None}:
                what = f"a {self.source.id} with other contents (values, or codec)"
            raise UsageError(f"the state belongs to {what}, not to {self.source!r}")
        self._accept()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_timelines": {}, "_own": None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source!r})"


def read_only(dataset: Any) -> ReadOnlyError:
    """The error raised for every attempt to write."""
    message = f"{dataset.id} is a dataset: it doesn't allow writing"
    return ReadOnlyError(message, hint="preprocess it into a new one, or extend a LazyMemmapStorage")


def _chosen_leaves(dataset: Dataset, keys: Sequence[str | tuple[str, ...]]) -> tuple[str, ...]:
    """The leaves that ``keys`` of a storage name, in the order of the dataset. Raises UnknownKeyError."""
    if isinstance(keys, str):
        raise UsageError(f"keys is a sequence of keys, not {keys!r}", hint=f"keys=[{keys!r}]")
    paths = ["/".join(key) if isinstance(key, tuple) else str(key) for key in keys]
    wanted = [path.removeprefix("next/") for path in paths]
    roots = {name: name.removeprefix("next/") for name in dataset.rows}
    found = {path: [name for name, root in roots.items() if f"{root}/".startswith(f"{path}/")] for path in wanted}
    unknown = [path for path, names in found.items() if not names]
    if unknown:
        raise UnknownKeyError(f"unknown keys {', '.join(unknown)}", hint=f"there are {', '.join(dataset.rows)}")
    chosen = {name for names in found.values() for name in names}
    return tuple(name for name, root in roots.items() if name in chosen or root in (*FLAGS, "reward"))


class EpisodeStorage(DatasetStorage):
    """The episodes of a dataset, read-only: ``storage[indices]`` is ``[n, longest]``.

    In addition to the leaves, batches have ``mask`` (bool ``[n, longest]``, True for steps) and ``traj_ids`` (int64, the
    number of the episode; 0 for padding), as `split_trajectories` adds them. The padding is not stored.
    """

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        self._starts = self.dataset._starts
        lengths = self._starts.diff()
        self.longest = int(lengths.max()) if len(lengths) else 0
        self.max_size = max(1, len(lengths))

    @property
    def filled(self) -> int:
        return len(self._starts) - 1

    @property
    def newest(self) -> int:
        return self.filled - 1

    @property
    def batch_tail(self) -> tuple[int, ...]:
        return (self.longest,)

    def get(self, index: Any) -> Any:
        if isinstance(index, tuple):
            rest = index[1:]
            return self.get(index[0])[(..., *rest) if isinstance(index[0], int) else (slice(None), *rest)]
        numbers = row_index(index, len(self), "episode")
        if isinstance(numbers, int):
            return self._episodes(torch.tensor([numbers], device="cpu"))[0]
        return self._episodes(torch.arange(len(self), device="cpu")[numbers] if isinstance(numbers, slice) else numbers)

    def _episodes(self, numbers: torch.Tensor) -> TensorDict:
        flat = numbers.reshape(-1)
        batch = self.dataset.read(self._starts[flat], length=self.longest)
        if self.states:
            batch = clone_tensors(batch)  # a state leaf and its successor share memory
        batch.set("traj_ids", torch.where(batch["mask"], flat[:, None], 0))
        return batch.reshape(*numbers.shape, self.longest)

    def column(self, key: Key) -> torch.Tensor | None:
        return None

    def fields(self) -> dict[str, Readable] | None:  # type: ignore[override]
        return None

    def timeline(self, edges: Edges) -> Timeline:
        message = f"the records of {self!r} are whole episodes: slices cannot be drawn from them"
        raise SamplingError(message, hint="leave out split_trajs to draw slices of steps")

    def __repr__(self) -> str:
        return f"EpisodeStorage({self.dataset!r}, longest={self.longest})"
