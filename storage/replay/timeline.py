"""Steps in order of time, and the beginnings and ends of episodes, for any order of storage.

A *position* counts steps in time, a *row* is where a step is stored. In a dataset folder they are the same. A ring that
has wrapped begins at its oldest row; here the next write would go to row 3:

    row          0  1  2 | 3  4  5  6  7          oldest = 3, length = 8
    position     5  6  7 | 0  1  2  3  4          position = (row - oldest) mod length

A storage with ``ndim`` > 1 is ``[time, *batch]``, one column for each environment. Its rows are counted along the
batch first, its positions along time first, so that the steps of one environment are contiguous:

    rows of [time 3, batch 2]      0 1            positions      0 3
                                   2 3                           1 4
                                   4 5                           2 5

Episodes are contiguous in positions, never cross a column, and the newest step of a column always ends an episode (the next
row is not written yet, or holds the oldest step).

`Edges` determines where the episodes of a storage end: as in TorchRL by a trajectory id if the data have one (collectors write
it), otherwise by the done flag. A dataset folder has an episode table, so its data are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from tensordict import is_tensor_collection

from ...errors import UnknownKeyError, UsageError
from ..row_index import lookup, runs_of

TRAJECTORY_KEYS: tuple[Key, ...] = (("collector", "traj_ids"), ("episode",))
DONE: Key = ("next", "done")

#: Returns the column of a key as a tensor ``[rows, ...]``, None if the data have no such key.
Key = tuple[str, ...]


ColumnOf = Callable[[Key], torch.Tensor | None]


def as_key(key: str | Sequence[str]) -> Key:
    """Return a key as a tuple; ``"next/done"`` stays one name, as tensordict has it."""
    return (key,) if isinstance(key, str) else tuple(key)


def path_of(key: str | Sequence[str]) -> str:
    """Return a key as text."""
    return "/".join(as_key(key))


def entry_at(data: Any, key: Key) -> Any:
    """Return the entry of a TensorDict at a key; None where there is none, or where a leaf lies on the way to it."""
    for name in key[:-1]:
        data = data.get(name, None)
        if not is_tensor_collection(data):
            return None
    return data.get(key[-1], None)


def entry_key(key: Key) -> Any:
    """Return a key in the form for TensorDicts: a single name as a string, which is the fastest form."""
    return key if len(key) > 1 else key[0]


@dataclass(frozen=True, eq=False)
class Edges:
    """Where to look for episode edges: keys in the data, or given tensors.

    ``traj_key`` or ``end_keys`` (OR-ed) if given; without either, the usual keys in turn. ``ends`` (bool) or ``trajectories``
    (ids), one for each row, describe the present contents of the storage.
    """

    traj_key: Key | None = None
    end_keys: tuple[Key, ...] = ()
    ends: torch.Tensor | None = None
    trajectories: torch.Tensor | None = None

    @property
    def usual(self) -> bool:
        """Whether only the usual keys are requested: a dataset's own episode table can then be used."""
        if self.ends is not None or self.trajectories is not None:
            return False
        return self.traj_key in (None, *TRAJECTORY_KEYS) and self.end_keys in ((), (DONE,))

    def timeline(self, column: ColumnOf, length: int, width: int = 1, oldest: int = 0) -> Timeline:
        """Return the timeline of a storage of ``[length, width]`` rows, and the key of the ids that it was made from.

        Raises UnknownKeyError if a named key is missing, UsageError if no usual one is there.
        """
        rows = length * width
        if self.ends is not None:
            return from_ends(self._flags(self.ends, rows), length, width, oldest)
        if self.trajectories is not None:
            return from_ids(self._flags(self.trajectories, rows), length, width, oldest)
        by_id = TRAJECTORY_KEYS if self.traj_key is None else (self.traj_key,)
        for key in () if self.end_keys and self.traj_key is None else by_id:
            ids = column(key)
            if ids is not None:
                return replace(from_ids(self._flags(ids, rows), length, width, oldest), traj_key=key)
        by_end = self.end_keys or (() if self.traj_key is not None else (DONE,))
        ends = [self._flags(values, rows).bool() for values in map(column, by_end) if values is not None]
        if ends:
            return from_ends(torch.stack(ends).any(0), length, width, oldest)
        tried = ", ".join("/".join(key) for key in (*(() if self.end_keys else by_id), *by_end))
        message = f"the storage does not say where episodes end: there is no {tried}"
        error = UsageError if self.traj_key is None and not self.end_keys else UnknownKeyError
        raise error(message, hint="give traj_key or end_key, or ends= with a flag for every row")

    @staticmethod
    def _flags(values: torch.Tensor, rows: int) -> torch.Tensor:
        """One value a row: ``[rows]``, ``[rows, 1]`` or the storage's own shape."""
        if values.numel() != rows:
            message = f"episode edges have shape {tuple(values.shape)}, which is not one value for each of {rows} rows"
            raise UsageError(message)
        return values.reshape(-1)


@dataclass(frozen=True, eq=False)
class Timeline:
    """``starts`` int64 ``[episodes + 1]``: the first position of every episode and, last, the number of steps.

    ``length`` rows along time, ``width`` columns, ``oldest`` the row along time that is first. ``traj_key`` is the key of the
    trajectory ids that determine the episodes, None if the episodes come from elsewhere.
    """

    starts: torch.Tensor
    length: int
    width: int = 1
    oldest: int = 0
    traj_key: tuple[str, ...] | None = None

    @property
    def identity(self) -> bool:
        """Whether positions are rows."""
        return self.width == 1 and self.oldest == 0

    @cached_property
    def lengths(self) -> torch.Tensor:
        """Steps of every episode, int64 ``[episodes]``."""
        return self.starts[1:] - self.starts[:-1]

    def rows(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the rows that positions are stored in, int64, same shape."""
        if self.identity:
            return positions
        column = positions // self.length
        time = (positions - column * self.length + self.oldest) % self.length
        return time * self.width + column

    def positions(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the positions of rows, int64, same shape."""
        if self.identity:
            return rows
        time = rows // self.width
        return (rows - time * self.width) * self.length + (time - self.oldest) % self.length

    def episode_of(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the episode each position belongs to, int64, same shape."""
        return runs_of(self.starts, positions)

    def extent_of(self, episode: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the first position of each episode, and the one after its last; int64, same shape."""
        return lookup(self.starts, episode), lookup(self.starts, episode + 1)


def in_time(column: torch.Tensor, length: int, width: int, oldest: int) -> torch.Tensor:
    """Return a column of rows ``[length * width, ...]`` put in the order of positions."""
    if oldest:
        column = column.view(length, width, *column.shape[1:]).roll(-oldest, 0).flatten(0, 1)
    if width == 1:
        return column
    return column.view(length, width, *column.shape[1:]).transpose(0, 1).flatten(0, 1)


def from_ends(ends: torch.Tensor, length: int, width: int = 1, oldest: int = 0) -> Timeline:
    """Return a timeline from end flags, bool ``[length * width]`` by row."""
    return Timeline(_starts(in_time(ends, length, width, oldest), length, width), length, width, oldest)


def from_ids(ids: torch.Tensor, length: int, width: int = 1, oldest: int = 0) -> Timeline:
    """Return a timeline from trajectory ids ``[length * width]`` by row: an episode ends where the next id differs."""
    ordered = in_time(ids, length, width, oldest)
    ends = torch.ones(len(ordered), dtype=torch.bool, device="cpu")
    ends[:-1] = (ordered[1:] != ordered[:-1]).cpu()
    return Timeline(_starts(ends, length, width), length, width, oldest)


def _starts(ends: torch.Tensor, length: int, width: int) -> torch.Tensor:
    ends = ends.clone()
    if length:
        ends.view(width, length)[:, -1] = True
    return torch.cat([torch.zeros(1, dtype=torch.int64, device="cpu"), ends.nonzero().squeeze(1).cpu() + 1])
