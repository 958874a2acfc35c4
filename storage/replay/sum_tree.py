"""Priorities in a tree of sums, so that drawing by priority and changing priorities cost little however many there are.

Every node has 64 children instead of two, and a level of up to 16,384 sums is the top: a million priorities are two levels
deep, four billion four, and each level is a handful of tensor operations on the whole batch at once (a binary tree has
twenty levels, and would need a compiled loop).

    top                [ s s s ... s ] x 256                 each the sum of one row below
    level 0        [ p p p ... p ] x 16,384                  a million priorities

    draw m in [0, total):  at each level take the first child whose running sum exceeds m, go down with what is left of m

Sums are kept in float64: a row is summed anew when one of its children changes, so errors do not build up. The least
positive value is remembered with its place; only when that very place gets a larger one is it looked for again.
"""

from __future__ import annotations

import numpy as np
import torch

FANOUT = 64
#: A level of at most so many rows is the top: its running sum is worked out at the first draw after a change.
TOP = 256


class SumTree:
    """Values ``>= 0`` by index, all zero at first; ``total`` and ``smallest`` (of the positive ones) at any time."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._levels: list[torch.Tensor] = []
        rows = size
        while not self._levels or rows > TOP:
            rows = max(1, -(-rows // FANOUT))
            self._levels.append(full(rows * FANOUT, 0.0).view(rows, FANOUT))
        # NumPy reads and writes single elements several times faster than torch does.
        self._arrays = [level.view(-1).numpy() for level in self._levels]
        self._top = self._levels[-1].view(-1)
        self._running = torch.zeros(len(self._top) + 1, dtype=torch.float64)
        self._running_array = self._running.numpy()
        self._current = True
        self._smallest: tuple[float, int] | None = (np.inf, -1)  # and where it is; None when not known

    @property
    def values(self) -> torch.Tensor:
        """All values, float64 ``[size]``: a view, not to be written to."""
        return self._levels[0].view(-1)[: self.size]

    @property
    def total(self) -> float:
        return float(self._sums()[-1])

    @property
    def smallest(self) -> float:
        """The least positive value, infinity where there is none."""
        if self._smallest is None:
            values = self._arrays[0][: self.size]
            place = int(values.argmin())
            if not values[place]:
                place = int(np.where(values > 0, values, np.inf).argmin())
            self._smallest = float(values[place]) or np.inf, place
        return self._smallest[0]

    def __getitem__(self, index: np.ndarray) -> np.ndarray:
        return self._arrays[0][index]

    def update(self, index: np.ndarray, values: np.ndarray) -> None:
        """Set values (float64 ``[n]``) at ``index`` (int64 ``[n]``); where an index comes twice, its last value stays."""
        self._arrays[0][index] = values
        self._follow_smallest(index, values)
        self._current = False
        rows = index
        for level in range(len(self._levels) - 1):
            rows = rows // FANOUT
            if len(rows) > len(self._levels[level]) // 4:
                self._sum_all(level)
            else:
                children = self._levels[level].index_select(0, torch.from_numpy(rows))
                self._arrays[level + 1][rows] = children.sum(1).numpy()

    def _follow_smallest(self, index: np.ndarray, values: np.ndarray) -> None:
        if self._smallest is None or not len(index):
            return
        place = int(values.argmin())
        if values[place] <= 0:
            place = int(np.where(values > 0, values, np.inf).argmin())
        value, where = float(values[place]), int(index[place])
        if 0 < value <= self._smallest[0]:
            # Unless the same index came again with another value.
            self._smallest = (value, where) if self._arrays[0][where] == value else None
        elif (index == self._smallest[1]).any():
            self._smallest = None

    def fill(self, values: torch.Tensor) -> None:
        """Set all values at once, float64 ``[size]``."""
        self._current, self._smallest = False, None
        self.values[:] = values
        for level in range(len(self._levels) - 1):
            self._sum_all(level)

    def _sum_all(self, level: int) -> None:
        self._arrays[level + 1][: len(self._levels[level])] = self._levels[level].sum(1).numpy()

    def _sums(self) -> np.ndarray:
        """The running sum of the top level, with a zero before it."""
        if not self._current:
            torch.cumsum(self._top, 0, out=self._running[1:])
            self._current = True
        return self._running_array

    def draw(self, count: int, generator: torch.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Indices in proportion to their values, with replacement, int64 ``[count]``, and the values.

        ``total`` must not be zero.
        """
        total = self.total
        found = self.find(torch.rand(count, dtype=torch.float64, generator=generator).numpy() * total)
        values = self._arrays[0][found]
        while values.min() <= 0:  # rounding, once in very many draws
            bad = values <= 0
            again = torch.rand(int(bad.sum()), dtype=torch.float64, generator=generator).numpy()
            found[bad] = self.find(again * total)
            values = self._arrays[0][found]
        return found, values

    def find(self, mass: np.ndarray) -> np.ndarray:
        """For each ``mass`` in ``[0, total)`` the index whose stretch of the running sum it falls in."""
        running = self._sums()
        child = np.minimum(running[1:].searchsorted(mass, side="right"), len(running) - 2)
        rest = mass - running[child]
        for level in range(len(self._levels) - 2, -1, -1):
            inner = self._levels[level].index_select(0, torch.from_numpy(child)).cumsum_(1)
            place = torch.searchsorted(inner, torch.from_numpy(rest[:, None]), right=True)
            inside = np.minimum(place.numpy()[:, 0], FANOUT - 1)
            if level:
                # What the children before the chosen one hold; nothing before the first.
                before = inner.numpy()[np.arange(len(inside)), np.maximum(inside - 1, 0)]
                rest = rest - np.where(inside > 0, before, 0.0)
            child = child * FANOUT + inside
        return child


def full(size: int, value: float) -> torch.Tensor:
    """A float64 tensor ``[size]``. NumPy asks the kernel for huge pages, torch does not: random reads miss less."""
    array = np.empty(size)
    array.fill(value)
    return torch.from_numpy(array)
