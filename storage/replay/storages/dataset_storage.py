"""A dataset as the read-only storage of a buffer, without a copy or a scan of the data.

Its steps are in order of time and its episode table is known, so the cost of slices and windows does not depend on the size of
the dataset.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ....errors import ReadOnlyError, UnknownKeyError, UsageError
from ...codecs.codec import Rows
from ...dataset import Dataset, DatasetView
from ...schema import at_and_below
from ..timeline import Edges, Timeline, path_of
from .storage import Storage


class DatasetStorage(Storage):
    """The steps of a dataset (an open `Dataset`, or the path of one), read-only.

    ``keys``: the leaves at and below these keys are read, and no others; None for all. ``source``: the dataset that ``dataset``
    computes its leaves from (`load`). Raises UnknownKeyError.
    """

    immutable = True
    version = 0
    keys: tuple[str, ...]

    def __init__(
        self,
        dataset: Dataset | str | os.PathLike[str],
        keys: Sequence[str | tuple[str, ...]] | None = None,
        source: Dataset | None = None,
    ) -> None:
        self.dataset = dataset if isinstance(dataset, Dataset) else Dataset(dataset)
        self.source = self.dataset if source is None else source
        super().__init__(max(1, len(self.dataset)))
        self.filled = len(self.dataset)
        self._rows = dict(self.dataset.rows)
        self.keys = tuple(self.dataset.schema.names if keys is None else self._chosen(keys))
        self._whole: Timeline | None = None

    def _chosen(self, keys: Any) -> list[str]:
        """The TED keys at and below ``keys``; a state leaf has two. Raises UnknownKeyError."""
        if isinstance(keys, str):
            raise UsageError(f"keys is a sequence of keys, not {keys!r}", hint=f"keys=[{keys!r}]")
        names, wanted = self.dataset.schema.names, list(map(path_of, keys))
        unknown = [key for key in wanted if not at_and_below(names, key)]
        if unknown:
            raise UnknownKeyError(f"unknown keys {', '.join(unknown)}", hint=f"there are {', '.join(names)}")
        return at_and_below(names, *wanted)

    def stored(self, keys: Iterable[str] | None = None) -> list[str]:
        """Return the leaves of the source that hold those at and below ``keys``, by default those that are read."""
        of_source = self.source.rows
        wanted = self.keys if keys is None else at_and_below(self.dataset.schema.names, *keys)
        stored = [name if name in of_source else name.removeprefix("next/") for name in wanted]
        return [name for name in dict.fromkeys(stored) if name in of_source]

    def __len__(self) -> int:
        return self.filled

    @property
    def newest(self) -> int:  # type: ignore[override]
        return self.filled - 1

    @property
    def oldest(self) -> int:
        return 0

    def get(self, index: Any) -> Any:
        index = index[0] if isinstance(index, tuple) and len(index) == 1 else index
        found = self.dataset.steps_at(index, {name if name in self._rows else name[5:]: 0 for name in self.keys})
        return found.select(*(tuple(name.split("/")) for name in self.keys))

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        raise read_only(self.dataset)

    def empty(self) -> None:
        raise read_only(self.dataset)

    def leaves(self) -> dict[str, Rows]:
        return self._rows

    def leaf_at(self, key: tuple[str, ...], rows: torch.Tensor) -> torch.Tensor | None:
        name = "/".join(key)
        if name in self._rows and self._rows[name].leaf.kind == "step":
            return self._rows[name].take(rows)
        if name not in self.dataset.schema.names:
            return None
        states = self._rows[name.removeprefix("next/")]
        return states.take(rows + self.dataset.episode_of(rows) + name.startswith("next/"))

    def timeline(self, edges: Edges) -> Timeline:
        if self._whole is None:
            self._whole = Timeline(self.dataset._starts, self.filled)
        if edges.usual and (edges.traj_key is None or "/".join(edges.traj_key) not in self.dataset.manifest.schema):
            return self._whole
        found = super().timeline(edges)
        if self.dataset.schema.states and not torch.equal(found.starts, self._whole.starts):
            message = f"{self.dataset.id} stores observations once for each state: its own episodes are the only ones"
            raise UsageError(message, hint="leave out traj_key, end_key, ends and trajectories")
        return found

    def will_read(self, ranges: Sequence[tuple[int, int]]) -> None:
        self.source.plan_steps(ranges, self.stored())

    # -- saving ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the name of the dataset; its data stay where they are."""
        manifest = self.source.manifest
        steps = len(self.dataset)
        return {"id": self.source.id, "steps": steps, "episodes": manifest.episodes, "content": manifest.content}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises UsageError for the state of another dataset."""
        own = self.state_dict()
        if isinstance(self.source, DatasetView):  # a view of copied members has another content
            own.pop("content")
            state = {name: value for name, value in state.items() if name != "content"}
        if state != own:
            what = f"{state.get('id')} with {state.get('steps')} steps"
            if {**state, "content": None} == {**own, "content": None}:
                what = f"a {own['id']} with other contents (values, or codec)"
            raise UsageError(f"the state belongs to {what}, not to {self.source!r}")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_timelines": {}, "_whole": None, "_rows": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _rows=dict(state["dataset"].rows))

    def __repr__(self) -> str:
        return f"DatasetStorage({self.dataset!r})"


def read_only(dataset: Any) -> ReadOnlyError:
    """Return the error raised for every attempt to write."""
    message = f"{dataset.id} is a dataset: it doesn't allow writing"
    return ReadOnlyError(message, hint="preprocess it into a new one, or extend a LazyMemmapStorage")
