"""Steps in the order of time, and where episodes begin and end in it, whatever order they are stored in.

A *position* counts steps in time, a *row* is where a step is stored. In a dataset folder they are the same. A ring that
has wrapped begins at its oldest row; here the next write would go to row 3:

    row          0  1  2 | 3  4  5  6  7          oldest = 3, length = 8
    position     5  6  7 | 0  1  2  3  4          position = (row - oldest) mod length

A storage with ``ndim`` > 1 is ``[time, *batch]``, one column for each environment. Its rows are counted along the
batch first, its positions along time first, so that what one environment lived through is contiguous:

    rows of [time 3, batch 2]      0 1            positions      0 3
                                   2 3                           1 4
                                   4 5                           2 5

Episodes are contiguous in positions, never cross a column, and the newest step of a column always ends one (what comes
after it is not there yet, or is the oldest data of all).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch


@dataclass(frozen=True, eq=False)
class Timeline:
    """``starts`` int64 ``[episodes + 1]``: the first position of every episode and, last, the number of steps.

    ``length`` rows along time, ``width`` columns, ``oldest`` the row along time that is first. ``order`` (int64
    ``[steps]``) is given instead where steps are stored in no order at all: the row of every position. ``traj_key`` is the
    key of the trajectory ids that episodes come from, None where they come from elsewhere.
    """

    starts: torch.Tensor
    length: int
    width: int = 1
    oldest: int = 0
    order: torch.Tensor | None = None
    traj_key: tuple[str, ...] | None = None

    @property
    def identity(self) -> bool:
        """Whether positions are rows."""
        return self.width == 1 and self.oldest == 0 and self.order is None

    @property
    def episodes(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def lengths(self) -> torch.Tensor:
        """Steps of every episode, int64 ``[episodes]``."""
        return self.starts[1:] - self.starts[:-1]

    def rows(self, positions: torch.Tensor) -> torch.Tensor:
        """The rows that positions are stored in, int64, same shape."""
        if self.order is not None:
            return self.order[positions]
        if self.identity:
            return positions
        column = positions // self.length
        time = (positions - column * self.length + self.oldest) % self.length
        return time * self.width + column

    def positions(self, rows: torch.Tensor) -> torch.Tensor:
        """The positions of rows, int64, same shape."""
        if self.order is not None:
            return self._places[rows]
        if self.identity:
            return rows
        time = rows // self.width
        return (rows - time * self.width) * self.length + (time - self.oldest) % self.length

    def episode_of(self, positions: torch.Tensor) -> torch.Tensor:
        """The episode each position belongs to, int64, same shape."""
        # In numpy: torch would share this out to threads that then spin for milliseconds, beside those that decode.
        found = np.searchsorted(self.starts.numpy(), positions.numpy(), side="right")
        return torch.from_numpy(found - 1)

    @cached_property
    def _places(self) -> torch.Tensor:
        assert self.order is not None
        places = torch.full((int(self.order.max()) + 1,), -1)
        places[self.order] = torch.arange(len(self.order))
        return places


def in_time(column: torch.Tensor, length: int, width: int, oldest: int) -> torch.Tensor:
    """A column of rows ``[length * width, ...]`` put in the order of positions."""
    if oldest:
        column = column.view(length, width, *column.shape[1:]).roll(-oldest, 0).flatten(0, 1)
    if width == 1:
        return column
    return column.view(length, width, *column.shape[1:]).transpose(0, 1).flatten(0, 1)


def from_ends(ends: torch.Tensor, length: int, width: int = 1, oldest: int = 0) -> Timeline:
    """A timeline from end flags, bool ``[length * width]`` by row."""
    return Timeline(_starts(in_time(ends, length, width, oldest), length, width), length, width, oldest)


def from_ids(ids: torch.Tensor, length: int, width: int = 1, oldest: int = 0) -> Timeline:
    """A timeline from trajectory ids ``[length * width]`` by row: an episode ends where the next id differs."""
    ordered = in_time(ids, length, width, oldest)
    ends = torch.ones(len(ordered), dtype=torch.bool)
    ends[:-1] = (ordered[1:] != ordered[:-1]).cpu()
    return Timeline(_starts(ends, length, width), length, width, oldest)


def from_pieces(ids: torch.Tensor, counters: torch.Tensor) -> Timeline:
    """A timeline of interleaved pieces: steps ordered by trajectory id, then by step counter; ``[rows]`` each.

    A gap in the counter ends an episode: what lay there was overwritten.
    """
    ids, counters = ids.reshape(-1).cpu(), counters.reshape(-1).cpu()
    order = torch.argsort(counters, stable=True)
    order = order[torch.argsort(ids[order], stable=True)]
    ids, counters = ids[order], counters[order]
    ends = torch.ones(len(order), dtype=torch.bool)
    ends[:-1] = (ids[1:] != ids[:-1]) | (counters[1:] != counters[:-1] + 1)
    return Timeline(_starts(ends, len(order), 1), len(order), order=order)


def _starts(ends: torch.Tensor, length: int, width: int) -> torch.Tensor:
    ends = ends.clone()
    if length:
        ends.view(width, length)[:, -1] = True
    return torch.cat([torch.zeros(1, dtype=torch.int64), ends.nonzero().squeeze(1).cpu() + 1])
