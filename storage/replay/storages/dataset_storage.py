"""A dataset folder as the read-only storage of a buffer, without a copy or a scan of the data.

Its steps are in order of time and its episode table is known, so the cost of slices and windows does not depend on the size of
the dataset.

If the dataset is still being written, the storage shows its first episodes, and adds more between two batches (`show`).
Batches depend on the seed and on the steps that were shown at each draw, which ``growth`` records.

`EpisodeStorage` has a dataset's episodes as records, each padded with zeros to the length of the longest episode.

steps a0 a1 a2 b0 b1          ->       a0 a1 a2        mask  T T T
                                       b0 b1 --              T T F
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from tensordict import TensorDict

from ....errors import RbdataError, ReadOnlyError, SamplingError, StoppedWarning, UnknownKeyError, UsageError
from ...dataset import Dataset, DatasetPrefix, DatasetView, Derivation, DerivedDataset
from ...partial_dataset import PartialDataset
from ...remote.remote_dataset import RemoteDataset
from ...row_index import row_index
from ...schema import FLAGS
from ..overrides import reads_by_get
from ..timeline import Edges, Key, Timeline
from .rows import Readable
from .storage import Storage
from .trees import clone_tensors

#: Minimum seconds between two checks for more of a dataset that is being written, if it is checked before every batch.
LOOK_EVERY = 1.0


class DatasetStorage(Storage):
    """The steps of a dataset (an open `Dataset`, or the path of one), read-only.

    ``growth``: limit the shown steps as recorded in ``growth`` of a storage: pairs of the number of batches drawn before and
    the steps shown from then on. ``watch``: look for more of a `PartialDataset` before a batch; otherwise only `show` changes
    the shown steps. ``derive`` returns the leaves by which the dataset is read, and ``statistics`` has the values used for them
    (`derived_leaves.derivation`). ``keys``: the leaves to read, with leaves below them and their successors; flags, the reward
    and leaves that ``derive`` adds are always included. Raises UnknownKeyError, UsageError for a ``growth`` of another dataset.
    """

    immutable = True

    def __init__(
        self,
        dataset: Dataset | str | os.PathLike[str],
        *,
        growth: Sequence[Sequence[int]] | None = None,
        watch: bool = False,
        derive: Derivation | None = None,
        statistics: dict[str, Any] | None = None,
        keys: Sequence[str | tuple[str, ...]] | None = None,
    ) -> None:
        self.source = dataset if isinstance(dataset, Dataset) else Dataset(dataset)
        self.source._check_reading()
        self._derive, self.statistics = derive, statistics or {}
        self.dataset = self._as_read(self.source)
        #: The leaves to read; None for all.
        self.keys: tuple[str, ...] | None = None
        if keys is not None:
            added = [name for name in self.dataset.rows if name not in self.source.rows]
            self.keys = (*_chosen_leaves(self.source, keys), *added)
        super().__init__(max(1, self._plan.steps))
        self._own: Timeline | None = None
        #: The shown steps: (batches drawn before, steps from then on); empty if the whole dataset was always shown.
        self.growth: list[list[int]] = []
        self._planned = self._checked(growth or [])
        self._to_come = list(self._planned)
        self._watch, self._looked, self._waiting = watch, time.monotonic(), False
        if self._to_come:
            self.show(self._to_come.pop(0)[1], 0)
        elif isinstance(self.source, PartialDataset) and not self.source.complete:
            self.show(len(self.source), 0)

    version = 0

    def _as_read(self, shown: Dataset) -> Dataset:
        return shown if self._derive is None else DerivedDataset(shown, self._derive)

    @property
    def _plan(self) -> Any:
        """The manifest of the whole dataset."""
        return self.source.plan if isinstance(self.source, PartialDataset) else self.source.manifest

    # -- growing -----------------------------------------------------------------------------------------------------

    @property
    def may_grow(self) -> bool:  # type: ignore[override]
        return self._watch or self._waiting or bool(self._to_come)

    @property
    def is_growing(self) -> bool:
        """Whether the dataset is incomplete, so that processes may see different parts of it."""
        return isinstance(self.source, PartialDataset) and not self.source.complete

    def due(self, batches: int) -> int | None:
        """The number of steps to show for the next batch, after this many batches; None if they are shown already."""
        if self._to_come:
            return self._to_come[0][1] if self._to_come[0][0] <= batches else None
        if self._watch and isinstance(self.source, PartialDataset) and time.monotonic() - self._looked >= LOOK_EVERY:
            try:
                self.source.refresh()
                self._watch = not self.source.complete
            except RbdataError as error:
                self._watch = False
                message = f"no more of {self.source.id} will be shown: {error.message}"
                warnings.warn(message, StoppedWarning, stacklevel=6)
            self._looked = time.monotonic()
        return len(self.source) if len(self.source) > len(self.dataset) else None

    def start_order(self) -> None:
        if self.growth:
            self.growth = [[0, len(self.dataset)]]

    def show_later(self) -> None:
        """Show the finished steps as soon as the sampler may see them."""
        self._waiting = True

    def show(self, steps: int, batches: int) -> None:
        """Show the first steps, whole episodes; ``batches`` were drawn before. Not to be called during sampling."""
        self._show(steps)
        self.growth = [*(entry for entry in self.growth if entry[0] < batches), [batches, steps]]
        self._waiting = False
        while self._to_come and self._to_come[0][1] <= steps:
            self._to_come.pop(0)

    def _show(self, steps: int) -> None:
        starts = self.source._starts
        episodes = int(torch.searchsorted(starts, steps))
        if episodes >= len(starts) or int(starts[episodes]) != steps:
            raise UsageError(f"{steps} steps are not whole episodes at the beginning of {self.source!r}")
        whole = episodes == self._plan.episodes and not self.is_growing
        self.dataset = self._as_read(self.source if whole else DatasetPrefix(self.source, episodes))
        self._own, self._timelines = None, {}
        self.version += 1

    def _checked(self, growth: Any) -> list[list[int]]:
        """A valid ``growth`` of a storage, as lists. Raises UsageError for anything else."""
        pairs = [list(pair) for pair in growth] if isinstance(growth, (list, tuple)) else [[]]
        whole = (isinstance(number, Integral) and int(number) >= 0 for pair in pairs for number in pair)
        if not all(len(pair) == 2 for pair in pairs) or not all(whole):
            raise UsageError(f"growth is pairs of batches and steps, not {growth!r}")
        pairs = [[int(number) for number in pair] for pair in pairs]
        columns = [list(column) for column in zip(*pairs)]
        if any(column != sorted(column) for column in columns) or (pairs and pairs[0][0] != 0):
            raise UsageError("growth begins with batch 0, and neither batches nor steps become fewer")
        if pairs and pairs[-1][1] > len(self.source):
            message = f"{pairs[-1][1]} steps were shown, and there are {len(self.source)} of {self.source!r}"
            raise UsageError(message, hint="wait until more of it is downloaded")
        return pairs

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
        """The name of the dataset, and the ``growth`` of its shown part, if it grew; its data stay where they are."""
        named = self._named()
        return {**named, "growth": [list(entry) for entry in self.growth]} if self.growth else named

    def _named(self) -> dict[str, Any]:
        named = {"id": self.source.id, "steps": self._plan.steps, "episodes": self._plan.episodes}
        return named if self.is_growing else {**named, "content": self.source.manifest.content}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Show the steps that were shown when the state was taken: all, or the last entry of its ``growth``.

        Raises UsageError for the state of another dataset, and if fewer steps are available now.
        """
        named, stated = self._named(), {name: value for name, value in state.items() if name != "growth"}
        is_known = "content" in named and "content" in stated
        if not is_known and not isinstance(self.source, DatasetView):  # one of them grew, or is of an earlier version
            named.pop("content", None)
            stated.pop("content", None)
        if stated != named:
            what = f"{stated.get('id')} with {stated.get('steps')} steps"
            if {**stated, "content": None} == {**named, "content": None}:
                what = f"a {self.source.id} with other contents (values, or codec)"
            raise UsageError(f"the state belongs to {what}, not to {self.source!r}")
        growth = self._checked(state.get("growth") or [])
        steps = growth[-1][1] if growth else self._plan.steps
        if steps > len(self.source):
            message = f"the state is of all {steps} steps, and there are {len(self.source)} of {self.source!r}"
            raise UsageError(message, hint="wait until more of it is downloaded")
        self._accept()
        if steps != len(self.dataset):
            self._show(steps)
        self.growth, self._waiting = growth, False
        self._to_come = [entry for entry in self._planned if entry[1] > steps]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_timelines": {}, "_own": None}

    def __repr__(self) -> str:
        shown = "" if len(self.dataset) == len(self.source) else f", shown={len(self.dataset)}"
        return f"{type(self).__name__}({self.source!r}{shown})"


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
