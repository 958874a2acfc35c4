"""Batches of several datasets, each with a share of every batch: `MixtureSampler`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch

from ....errors import SamplingError, UsageError
from ..draw import Draw
from ..order import Turn
from ..storages.storage import Storage
from .sampler import Sampler

#: Numbers in [0, 1) at which the dataset is known beforehand; a power of 2, by which numbers are multiplied exactly.
_TABLE = 4096
Shares = Literal["random", "exact"]


class MixtureSampler(Sampler):
    """Rows of a storage that holds ``sizes[0]`` rows of one dataset, then ``sizes[1]`` of another, ...; with replacement.

    ``weights``: the share of each, positive or 0, of any sum. ``shares``: how the number of rows per dataset is chosen.

    - "random": the dataset of each row is drawn by the weights, so the counts are multinomial.
    - "exact": the share times the size of the batch, rounded up or down at random, so that the mean over batches is the share
      (systematic sampling; Madow, Annals of Mathematical Statistics 20, 1949). The rows of each dataset lie together.

    Raises UsageError for invalid weights, or where they give a share to a dataset without rows.
    """

    def __init__(self, sizes: Sequence[int], weights: Sequence[float], shares: Shares = "random") -> None:
        if shares not in get_args(Shares):
            raise UsageError(f"shares is {shares!r}, not 'random' or 'exact'")
        given = np.asarray(weights, dtype=object)
        try:
            numbers = given.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise UsageError(f"weights are numbers, not {weights!r}") from error
        if numbers.shape != (len(sizes),):
            raise UsageError(f"there are {len(sizes)} datasets, and weights of shape {list(numbers.shape)}")
        if not np.isfinite(numbers).all() or (numbers < 0).any() or not numbers.any():
            raise UsageError(f"weights are finite, not negative, and not all 0: {numbers.tolist()}")
        empty = [number for number, size in enumerate(sizes) if not size and numbers[number]]
        if empty:
            raise UsageError(f"dataset {empty[0]} has no steps, and a weight of {numbers[empty[0]]:g}")
        self.sizes, self.shares = tuple(map(int, sizes)), shares
        self.weights = tuple((numbers / numbers.sum()).tolist())
        upto = np.cumsum(self.weights)
        # From the last dataset with a weight on: rounding may have made the sum smaller or larger.
        upto[np.flatnonzero(self.weights)[-1] :] = 1.0
        edges = upto[:-1]
        self._upto, self._from = np.append(edges, np.inf), np.append(0.0, edges)
        self._known = edges.searchsorted(np.arange(_TABLE) / _TABLE, "right")
        self._size = np.array(self.sizes, np.float64)
        width = upto - self._from
        self._rows_per_share = np.divide(self._size, width, out=np.zeros(len(width)), where=width > 0)
        end = np.cumsum(self.sizes)
        self._rows, self._first, self._last = int(end[-1]), end - self.sizes, end - 1

    def draw(self, storage: Storage, batch_size: int, turn: Turn) -> Draw:
        if len(storage) != self._rows:
            raise SamplingError(f"the sampler is for {self._rows} rows, the storage has {len(storage)}")
        places = turn.floats(batch_size)
        if self.shares == "random":
            # Where in the share of its dataset a number lies says which row: 52 bits are enough.
            which = self._member_at(places)
            places -= self._from.take(which)
            places *= self._rows_per_share.take(which)
        else:
            begin = turn.floats(1)[:, None]
            which = self._member_at(((np.arange(batch_size) + begin) / batch_size).reshape(-1))
            places *= self._size.take(which)
        rows = np.minimum(self._first.take(which) + places.astype(np.int64), self._last.take(which))
        return Draw(torch.from_numpy(rows), [batch_size] * turn.count, turn.places)

    def _member_at(self, places: np.ndarray) -> np.ndarray:
        """The dataset in whose share of [0, 1) each number lies; from the table on, since searching costs ten times as much."""
        which = self._known.take((places * _TABLE).astype(np.int64), mode="clip")
        while True:
            later = places >= self._upto.take(which)
            if not later.any():
                return which
            which += later

    def __repr__(self) -> str:
        return f"MixtureSampler(sizes={list(self.sizes)}, weights={list(self.weights)}, shares={self.shares!r})"
