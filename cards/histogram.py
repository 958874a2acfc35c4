"""How often values occur: few distinct values are counted one by one, others in bins of equal width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

#: Most bins: as many characters as fit on a terminal of 40 columns, beside an axis.
BINS = 28
#: Values are counted one by one up to this many distinct ones.
MOST_VALUES = 12
#: How many values are looked at to see whether there are few distinct ones.
_PROBED = 512
#: Larger numbers are counted as this: differences stay finite.
_LARGEST = 1e300


@dataclass(frozen=True)
class Histogram:
    """Counts of finite values, and statistics of them (None where there are none).

    ``counts`` belong to ``values``, one each, or to the bins between ``edges`` (one more edge than bins).
    """

    number: int
    not_finite: int
    counts: tuple[int, ...] = field(default=(), repr=False)
    values: tuple[float, ...] = field(default=(), repr=False)
    edges: tuple[float, ...] = field(default=(), repr=False)
    mean: float | None = None
    std: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def shares(self) -> list[float]:
        """The counts as shares of all finite values."""
        total = sum(self.counts) or 1
        return [count / total for count in self.counts]

    def to_json(self) -> dict[str, Any]:
        """For programs: the counts with their ``values`` or their bins' ``edges``, and the statistics."""
        where = {"edges": list(self.edges)} if self.edges else {"values": list(self.values)}
        return {
            "count": self.number,
            "not_finite": self.not_finite,
            "mean": self.mean,
            "std": self.std,
            "min": self.low,
            "max": self.high,
            **where,
            "counts": list(self.counts),
        }


def count_values(values: np.ndarray, choices: Sequence[float] = ()) -> Histogram:
    """The histogram of an array of any shape. ``choices`` are values that are listed even where they do not occur."""
    flat = np.asarray(values).reshape(-1)
    exact = flat.dtype.kind in "iub"
    flat = flat.astype(np.float64)
    finite = flat if exact else flat[np.isfinite(flat)]
    missing = len(flat) - len(finite)
    if not len(finite):
        return Histogram(len(flat), missing)
    finite = finite.clip(-_LARGEST, _LARGEST)
    with np.errstate(over="ignore"):
        statistics = tuple(float(getattr(finite, name)()) for name in ("mean", "std", "min", "max"))
    listed = _listed(finite, choices)
    if listed:
        return Histogram(len(flat), missing, tuple(listed.values()), tuple(listed), (), *statistics)
    most = min(BINS, max(5, int(2 * math.sqrt(len(finite)))))
    _, _, low, high = statistics
    whole = exact or bool((finite == np.rint(finite)).all())
    if whole and high - low < 1 << 52:
        # Bins of whole width hold equally many whole numbers each: with others the counts alternate.
        width = math.ceil((high - low + 1) / most)
        edges = np.arange(math.ceil((high - low + 1) / width) + 1) * width + (low - 0.5)
    else:
        edges = np.linspace(low, high, most + 1)
    scaled = (finite / 2 - edges[0] / 2) / (edges[-1] / 2 - edges[0] / 2) * (len(edges) - 1)
    bins = scaled.astype(np.int64).clip(0, len(edges) - 2)
    counts = np.bincount(bins, minlength=len(edges) - 1)
    return Histogram(len(flat), missing, tuple(counts.tolist()), (), tuple(edges.tolist()), *statistics)


def _listed(finite: np.ndarray, choices: Sequence[float]) -> dict[float, int]:
    """Values and their counts in order, where there are few distinct values that occur several times; otherwise empty."""
    if not choices and len(np.unique(finite[:_PROBED])) > MOST_VALUES:
        return {}
    found, counts = np.unique(finite, return_counts=True)
    if len(found) > 1 and len(finite) < 3 * len(found) and not choices:
        return {}
    every = dict.fromkeys(map(float, choices), 0) | dict(zip(found.tolist(), counts.tolist()))
    return dict(sorted(every.items())) if len(every) <= max(MOST_VALUES, len(choices)) else {}
