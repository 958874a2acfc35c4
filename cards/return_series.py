"""Returns over the steps of a dataset, thinned out for pictures."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..storage.episodes import CUT, EpisodeTable
from .overview import MOST_EPISODES, blocks

#: Cut episodes that are marked at most.
MOST_CUTS = 100
#: Pieces that many episodes are summed up in.
PIECES = 256


@dataclass(frozen=True)
class ReturnSeries:
    """Arrays of one length: the last step of an episode, or of a piece of episodes, and the returns of those.

    ``single`` where each entry is one episode; ``low``, ``mean`` and ``high`` are then equal. NaN where no return of a
    piece is finite. ``cut_steps`` and ``cut_returns`` are those of the cut episodes, evenly chosen where there are many.
    """

    single: bool
    steps: np.ndarray
    low: np.ndarray
    mean: np.ndarray
    high: np.ndarray
    cut_steps: np.ndarray
    cut_returns: np.ndarray

    def running_mean(self) -> tuple[np.ndarray, np.ndarray]:
        """Steps and the mean over a tenth of the entries up to each of them, of the finite ones; empty below 30 entries."""
        finite = np.isfinite(self.mean)
        values, steps = self.mean[finite], self.steps[finite]
        window = len(values) // 10
        if window < 3:
            return steps[:0], values[:0]
        return steps[window - 1 :], np.convolve(values, np.full(window, 1 / window), "valid")


def return_series(table: EpisodeTable, most: int) -> ReturnSeries:
    """The series of at most ``most`` entries (or ``PIECES``, if that is less)."""
    ends, returns = table.start + table.length, table.returns
    cuts = np.flatnonzero(table.outcome == CUT)
    cuts = cuts[np.linspace(0, len(cuts) - 1, min(len(cuts), MOST_CUTS)).astype(np.int64)] if len(cuts) else cuts
    single = len(table) <= most
    if single:
        low = mean = high = np.where(np.isfinite(returns), returns, np.nan)
        steps = np.asarray(ends)
    else:
        pieces = blocks(len(table), MOST_EPISODES)
        if len(pieces) == 1:
            bounds = np.linspace(0, len(table), min(most, PIECES) + 1).astype(np.int64).tolist()
            pieces = list(pairwise(bounds))
        steps = np.array([ends[stop - 1] for _, stop in pieces])
        low, mean, high = np.array([_summary(returns[start:stop]) for start, stop in pieces]).T
    return ReturnSeries(single, steps, low, mean, high, ends[cuts], returns[cuts])


def _summary(values: np.ndarray) -> tuple[float, float, float]:
    finite = values[np.isfinite(values)]
    return (finite.min(), finite.mean(), finite.max()) if len(finite) else (np.nan,) * 3
