"""Priorities in a tree of sums, so that drawing by priority and changing priorities are cheap for any number of priorities.

Every node has 16 children instead of two, and a level of at most 4,096 sums is the top: a million priorities are two
steps below it, four billion five, and each step is a handful of tensor operations on the whole batch at once (a binary
tree has twenty steps).

    top                     [ s s ... s ] x 245              each the sum of one row below
    level 1             [ s s s s ... s s ] x 3,907
    level 0           [ p p p p p ... p p p ] x 62,500       a million priorities

    draw m in [0, total):  at each level take the first child whose running sum exceeds m, go down with the rest of m

Sums are kept in float64: a row is summed again, from left to right, when one of its children changes, so errors do not
build up and the sums do not depend on the order of the changes. The smallest positive value is remembered with its place; it
is searched for again only if that place gets a larger value.
"""

from __future__ import annotations

import numpy as np
import torch

from ....errors import SamplingError

FANOUT_BITS = 4
FANOUT = 1 << FANOUT_BITS
#: A level of at most this many rows is the top: its running sum is computed at the first draw after a change.
TOP = 256
_AT_ONCE = 1 << 12  # rows that are added up in the processor's cache
_EVERY_BYTE, _TOP_BYTE = np.uint64(0x0101010101010101), np.uint64(56)


class SumTree:
    """Values ``>= 0`` by index, all zero at first; ``total`` and ``smallest`` (of the positive ones) at any time."""

    def __init__(self, size: int) -> None:
        self.size = size
        counts: list[int] = []  # rows of each level, the leaves first
        while not counts or counts[-1] > TOP:
            counts.append(max(1, -(-(counts[-1] if counts else size) // FANOUT)))
        ends = np.cumsum(counts) * FANOUT
        self._nodes = full(int(ends[-1]), 0.0).numpy()
        self._begins = np.append(0, ends[:-1])
        # NumPy reads and writes few elements several times faster than torch does.
        self._arrays = np.split(self._nodes, ends[:-1])
        self._rows = [level.reshape(-1, FANOUT) for level in self._arrays]
        self._top = len(self._arrays[-1])
        self._running = np.full(TOP * FANOUT + 1, np.inf)
        self._running[: self._top + 1] = 0
        self._top_values = torch.from_numpy(self._arrays[-1])
        self._top_sums = torch.from_numpy(self._running[1 : self._top + 1])
        self._current = True
        self._smallest: tuple[float, int] | None = (np.inf, -1)  # and its place; None if unknown

    @property
    def values(self) -> torch.Tensor:
        """All values, float64 ``[size]``: a view, not to be written to."""
        return torch.from_numpy(self._arrays[0][: self.size])

    @property
    def total(self) -> float:
        return float(self._sums()[self._top])

    @property
    def smallest(self) -> float:
        """The smallest positive value, infinity if there is none."""
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
        """Set values (float64 ``[n]``) at ``index`` (int64 ``[n]``); for a repeated index, the last value stays."""
        self._current = False
        self._arrays[0][index] = values
        self._follow_smallest(index, values)
        rows = index
        for level in range(len(self._rows) - 1):
            rows = rows >> FANOUT_BITS
            if len(rows) > len(self._rows[level]) // 4:
                self._sum_all(level)
            else:
                self._arrays[level + 1][rows] = _add_up(self._rows[level].take(rows, 0))

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
        elif self._arrays[0][self._smallest[1]] != self._smallest[0]:  # it was replaced by a larger value, or by zero
            self._smallest = None

    def fill(self, values: torch.Tensor) -> None:
        """Set all values at once, float64 ``[size]``."""
        self._current, self._smallest = False, None
        self.values[:] = values
        for level in range(len(self._rows) - 1):
            self._sum_all(level)

    def _sum_all(self, level: int) -> None:
        rows, sums = self._rows[level], self._arrays[level + 1]
        for first in range(0, len(rows), _AT_ONCE):
            sums[first : min(first + _AT_ONCE, len(rows))] = _add_up(rows[first : first + _AT_ONCE])

    def _sums(self) -> np.ndarray:
        """The running sum of the top level, preceded by zero and followed by infinity."""
        if not self._current:
            torch.cumsum(self._top_values, 0, out=self._top_sums)  # a third of the time of NumPy
            self._current = True
        return self._running

    def draw(self, mass: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The index that each ``mass`` (float64 in [0, 1), in parts of ``total``) falls on, int64 ``[n]``, and its value.

        ``total`` must not be zero. Raises SamplingError where it is infinite.
        """
        total = self.total
        if total == np.inf:
            raise SamplingError("the sum of all priorities is larger than a float64 can be")
        found, values, least = self._find(mass * total)
        if least <= 0:  # by rounding, once in very many draws: the next index that has a value
            for bad in np.flatnonzero(values <= 0).tolist():
                positive = self._arrays[0][: self.size] > 0
                found[bad] = np.roll(positive, -found[bad]).argmax() + found[bad]
            found %= self.size
            values = self._arrays[0][found]
        return found, values

    def _find(self, mass: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """For each ``mass`` in ``[0, total)`` the index whose interval of the running sum contains it; the values there, and
        the smallest of these."""
        running = self._sums()
        # In ascending order: a search that begins where the last one ended costs half.
        order = mass.argsort()
        rest = mass[order]
        child = running[1 : self._top + 1].searchsorted(rest, side="right")
        np.minimum(child, self._top - 1, out=child)
        rest -= running[child]
        each = np.arange(-1, len(mass) * FANOUT - 1, FANOUT)
        for level in range(len(self._rows) - 2, -1, -1):
            np.minimum(child, len(self._rows[level]) - 1, out=child)  # rounding may lead past the last child
            inner = torch.from_numpy(self._rows[level].take(child, 0)).cumsum_(1).numpy()
            inside = _count(inner <= rest[:, None])
            np.minimum(inside, FANOUT - 1, out=inside)
            child *= FANOUT
            child += inside
            if level:
                # The sum of the children before the chosen one; zero for the first.
                before = inner.reshape(-1)[each + inside]
                before *= inside > 0
                rest -= before
        found = np.empty_like(child)
        found[order] = child
        values = self._arrays[0][found]
        return found, values, float(values[values.argmin()]) if len(values) else np.inf


def _add_up(rows: np.ndarray) -> np.ndarray:
    """The sum of each row, float64 ``[n, 16]`` to ``[n]``, from left to right as `SumTree.draw` does."""
    columns = np.ascontiguousarray(rows.T)
    # Column by column, except for a single row, in which NumPy would first add every eighth element.
    sums: np.ndarray = np.add.reduce(columns, 0) if len(rows) > 1 else columns.cumsum(0)[-1]
    return sums


def _count(flags: np.ndarray) -> np.ndarray:
    """The number of flags set in each row, bool ``[n, 16]`` to int64 ``[n]``: bytes of 0 and 1, added as words."""
    words = flags.view(np.uint64)
    words = words[:, 0] + words[:, 1]
    words *= _EVERY_BYTE  # the top byte is now the sum of all
    words >>= _TOP_BYTE
    return words.view(np.int64)


def full(size: int, value: float) -> torch.Tensor:
    """Return a float64 tensor ``[size]``.

    NumPy requests huge pages from the kernel, torch does not: random reads miss less often.
    """
    array = np.empty(size)
    array.fill(value)
    return torch.from_numpy(array)
