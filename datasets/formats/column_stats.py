"""Statistics of columns as LeRobotDatasets state them, computed block by block.

``min``, ``max``, ``mean`` and ``std`` of each element of a row, the number of rows (``count``) and five quantiles. Quantiles of
several blocks are the means of the blocks' quantiles, weighted by rows, as lerobot joins the quantiles of episodes
(huggingface/lerobot, src/lerobot/datasets/compute_stats.py, aggregate_feature_stats). Pictures have one element per channel,
and their values are divided by 255.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
#: Pictures with a side of at least this many pixels are thinned, to sides of about `_THINNED`.
_LARGE_SIDE, _THINNED = 300, 150


@dataclass(frozen=True)
class Stats:
    """``low``, ``high``, ``mean`` and ``variance`` have the shape of a row, ``quantiles`` one more in front; float64."""

    count: int
    low: np.ndarray
    high: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    quantiles: np.ndarray

    @classmethod
    def of_rows(cls, rows: np.ndarray) -> Stats:
        """The statistics of numbers ``[n, *shape]``, n > 0."""
        ordered = np.sort(rows.astype(np.float64), axis=0)
        places = np.array(list(QUANTILES.values())) * (len(rows) - 1)
        below = places.astype(int)
        share = (places - below).reshape(-1, *(1,) * (ordered.ndim - 1))
        above = np.minimum(below + 1, len(rows) - 1)
        quantiles = ordered[below] * (1 - share) + ordered[above] * share
        return cls(len(rows), ordered[0], ordered[-1], ordered.mean(0), ordered.var(0), quantiles)

    @classmethod
    def of_pictures(cls, pictures: np.ndarray) -> Stats:
        """The statistics of uint8 pictures ``[n, height, width, channels]``, n > 0; their shape is ``[channels, 1, 1]``."""
        side = max(pictures.shape[1:3])
        stride = side // _THINNED if side >= _LARGE_SIDE else 1
        channels = np.moveaxis(pictures[:, ::stride, ::stride], -1, 0)
        rows = [_of_levels(np.bincount(channel.reshape(-1), minlength=256)) for channel in channels]
        columns = [np.stack(column)[..., None, None] for column in zip(*rows)]
        low, high, mean, variance, quantiles = columns
        return cls(len(pictures), low, high, mean, variance, np.moveaxis(quantiles, 1, 0))

    @classmethod
    def joined(cls, several: Sequence[Stats]) -> Stats:
        """The statistics of the rows of all blocks."""
        if len(several) == 1:
            return several[0]
        counts = np.array([one.count for one in several], np.float64)

        def average(values: Sequence[np.ndarray]) -> np.ndarray:
            return np.asarray(np.tensordot(counts / counts.sum(), np.stack(values), 1))

        mean = average([one.mean for one in several])
        return cls(
            sum(one.count for one in several),
            np.min([one.low for one in several], 0),
            np.max([one.high for one in several], 0),
            mean,
            average([one.variance + (one.mean - mean) ** 2 for one in several]),
            average([one.quantiles for one in several]),
        )

    def record(self) -> dict[str, Any]:
        """A dictionary with lerobot's names; ``count`` is a list of one number, the other values are nested lists."""
        by_name = {"min": self.low, "max": self.high, "mean": self.mean, "std": np.sqrt(self.variance)}
        by_name |= dict(zip(QUANTILES, self.quantiles))
        return {name: np.atleast_1d(values).tolist() for name, values in by_name.items()} | {"count": [self.count]}


def _of_levels(counts: np.ndarray) -> tuple[Any, ...]:
    """Low, high, mean, variance and quantiles of values 0 to 255, by how often each occurs; divided by 255."""
    levels, total = np.arange(256) / 255, counts.sum()
    used, ends = np.flatnonzero(counts), np.cumsum(counts)
    mean = (levels * counts).sum() / total
    variance = ((levels - mean) ** 2 * counts).sum() / total
    places = np.searchsorted(ends, np.array(list(QUANTILES.values())) * (total - 1), "right")
    return levels[used[0]], levels[used[-1]], mean, variance, levels[places]


def sampled(length: int) -> np.ndarray:
    """Which pictures of an episode go into its statistics, int64: all up to 100, ``length ** 0.75`` of more than 464."""
    count = max(min(length, 100), min(int(length**0.75), 10_000))
    return np.unique(np.linspace(0, length - 1, count).round().astype(np.int64))
