"""The episodes of the input as functions get them: those of the first N steps, or slices of them.

Slices are pieces of L steps of an episode, the last one shorter. For functions and in the result each is an episode:

    episode of 8 steps, --slice-len 3      s0 s1 s2 | s3 s4 s5 | s6 s7        the last step of each truncated
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..storage.episodes import CUT, EpisodeTable


@dataclass(frozen=True, eq=False)
class Episodes:
    """The episodes of a view. All arrays but ``starts`` are bool ``[episodes]``.

    ``starts``: int64 ``[episodes + 1]``, steps. ``cut``: the recording or a slice ends there, not the episode. ``midway``:
    the beginning is missing. ``added``: the end is one of the view, not of the dataset.
    """

    starts: np.ndarray
    cut: np.ndarray
    midway: np.ndarray
    added: np.ndarray

    def __len__(self) -> int:
        return len(self.cut)

    @property
    def steps(self) -> int:
        return int(self.starts[-1])


def view_episodes(table: EpisodeTable, num_frames: int | None, slice_len: int | None) -> Episodes:
    """The episodes of the first ``num_frames`` steps, the last one shortened, in slices of ``slice_len`` steps."""
    steps = table.steps if num_frames is None else min(num_frames, table.steps)
    count = int(np.searchsorted(table.start, steps, "left"))
    starts = np.asarray(table.start[:count], np.int64)
    ends = np.minimum(starts + table.length[:count], steps)
    added = ends < starts + table.length[:count]
    cut = (table.outcome[:count] == CUT) | added
    midway = np.array(table.midway[:count], bool)
    if slice_len is not None:
        pieces = -(-(ends - starts) // slice_len)
        last = np.cumsum(pieces) - 1
        within = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        is_last = np.zeros(len(within), bool)
        is_last[last] = True
        starts = np.repeat(starts, pieces) + within * slice_len
        ends = np.append(starts[1:], steps) if len(starts) else ends
        cut = np.where(is_last, np.repeat(cut, pieces), True)
        added = np.where(is_last, np.repeat(added, pieces), True)
        midway = np.where(within == 0, np.repeat(midway, pieces), False)
    return Episodes(np.append(starts, steps).astype(np.int64), cut, midway, added)
