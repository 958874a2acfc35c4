"""The values of a leaf: not finite, constant, outside the stated space, far outside of what is usual."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...storage import amounts
from ...storage.bounds import LeafBounds
from .blocks import Array, StepBlock, Usual, extremes
from .findings import Finding, Hits, Severity, find

#: How far outside the usual range an outlier lies, in widths of that range. Rewards may have rare bonuses.
_FAR, _FAR_REWARD = 100.0, 1e4
#: A larger share of outliers is a normal part of the data.
_RARE = 0.001
#: Tolerance of bounds, relative to the bound: float32 rounds.
_ROUNDED = 1e-5


def outlier_limits(usual: Usual, far: float) -> tuple[Array, Array]:
    """Return the smallest and largest value of each column that is not an outlier, float64 ``[elements]``.

    A column whose usual range is much narrower than those of the others of its leaf (contact forces that are mostly zero) is
    measured by a tenth of theirs; a column without any range has no outliers.
    """
    width = usual.high - usual.low
    some = width[width > 0]
    wide = np.maximum(width, np.median(some) / 10) if len(some) else width
    reach = np.where(width > 0, far * wide, np.inf)
    return usual.low - reach, usual.high + reach


class ColumnValues:
    """The values of one leaf, block by block. ``role`` is observation, action or other."""

    def __init__(self, name: str, role: str, bounds: LeafBounds | None, usual: Usual) -> None:
        self.name, self.role, self.bounds = name, role, bounds
        self.low = self.high = np.empty(0)
        self.steps = 0
        self.not_finite, self.outside, self.far = Hits(), Hits(), Hits()
        self.bad_columns: Array | None = None
        self.far_value = self.outside_value = ""
        self._limits = outlier_limits(usual, _FAR)
        self._bounds = _stated(bounds)

    def see(self, block: StepBlock) -> None:
        """Look at the rows of a block, and at the final state of each episode that ends in it."""
        self.steps += len(block)
        self._look(block.rows[self.name], np.arange(block.low, block.high))
        successor = block.rows.get("next/" + self.name)
        if successor is not None and block.is_last.any():
            self._look(successor[block.is_last], block.numbers(block.is_last))

    def _look(self, values: Array, steps: Array) -> None:
        low, high = extremes(values)
        if values.dtype.kind == "f" and not (np.isfinite(low).all() and np.isfinite(high).all()):
            bad = ~np.isfinite(values)
            self.not_finite.add(steps[bad.any(1)])
            self.bad_columns = bad.any(0) if self.bad_columns is None else self.bad_columns | bad.any(0)
            low, high = np.where(bad, np.inf, values).min(0), np.where(bad, -np.inf, values).max(0)
        self.low = np.minimum(self.low, low) if len(self.low) else low
        self.high = np.maximum(self.high, high) if len(self.high) else high
        self.outside_value = self._beyond(values, steps, low, high, self._bounds, self.outside) or self.outside_value
        self.far_value = self._beyond(values, steps, low, high, self._limits, self.far) or self.far_value

    def _beyond(self, values: Array, steps: Array, low: Array, high: Array, limits: Any, hits: Hits) -> str:
        """Note the rows beyond limits; the first such value as text, if it is the first of all."""
        if limits is None or not ((low < limits[0]).any() or (high > limits[1]).any()):
            return ""
        beyond = (values < limits[0]) | (values > limits[1])
        rows, first = np.flatnonzero(beyond.any(1)), hits.count == 0
        hits.add(steps[rows])
        if not first or not len(rows):
            return ""
        column = int(beyond[rows[0]].argmax())
        return f"{amounts.real(float(values[rows[0], column]))}" + (f" in column {column}" if len(low) > 1 else "")

    @property
    def constant(self) -> Array:
        """Which columns have one value in all steps, bool ``[elements]``."""
        return np.asarray(self.low == self.high)

    def findings(self) -> Iterator[Finding]:
        """Yield what is wrong with the leaf, apart from a constant one (`constants`)."""
        name, role = self.name, self.role
        if self.not_finite.count:
            columns = [] if self.bad_columns is None else np.flatnonzero(self.bad_columns).tolist()
            of = f" in columns {amounts.listed(map(str, columns), 5)}" if len(self.low) > 1 else ""
            yield find(f"{role}_not_finite", f"values are NaN or infinite{of}", self.not_finite, self.steps, leaf=name)
        if role == "other":
            return
        if self.outside.count:
            kind = self.bounds.space.get("type") if self.bounds is not None else ""
            is_choice = kind in ("Discrete", "MultiDiscrete", "MultiBinary")
            code = "action_no_choice" if role == "action" and is_choice else f"{role}_out_of_space"
            severity: Severity | None = "error" if is_choice else None
            what = f"values lie outside the stated {kind} space, the first is {self.outside_value}"
            yield find(code, what, self.outside, self.steps, leaf=name, severity=severity)
        elif self.far.count and self.far.count <= max(3, _RARE * self.steps):
            what = f"a few values lie more than {_FAR:g} times the usual range outside of it, the first is {self.far_value}"
            yield find(f"{role}_outlier", what, self.far, self.steps, leaf=name)


def constants(role: str, leaves: Sequence[ColumnValues], *, alone: bool) -> Iterator[Finding]:
    """Yield leaves and columns of observations or actions that never vary.

    ``alone``: no other leaf (frames) may vary instead.
    """
    steps = max((leaf.steps for leaf in leaves), default=0)
    if steps < 2:
        return
    if alone and all(leaf.constant.all() for leaf in leaves):
        for leaf in leaves:
            what = f"every {role} is the same"
            yield find(f"{role}_constant", what, Hits(steps, (0,)), steps, leaf=leaf.name)
        return
    for leaf in leaves:
        same = np.flatnonzero(leaf.constant)
        if len(same):
            what = "the leaf never varies" if leaf.constant.all() else "columns that never vary"
            hits, total = Hits.of(same), len(leaf.constant)
            yield find(f"{role}_constant_column", what, hits, total, leaf=leaf.name, unit="column")


class RewardValues:
    """Rewards, block by block; ``stated`` is the range that the task allows, with the words for where that is from."""

    def __init__(self, stated: tuple[float, float, str] | None, usual: Usual) -> None:
        self.stated, self.steps = stated, 0
        self.not_finite, self.outside, self.far = Hits(), Hits(), Hits()
        self.low, self.high = np.inf, -np.inf
        self._limits = tuple(float(limit[0]) for limit in outlier_limits(usual, _FAR_REWARD))

    def see(self, block: StepBlock) -> None:
        reward = block.rows["next/reward"]
        self.steps += len(block)
        finite = np.isfinite(reward)
        self.not_finite.add(block.numbers(~finite))
        if finite.any():
            self.low = min(self.low, float(reward[finite].min()))
            self.high = max(self.high, float(reward[finite].max()))
        if self.stated is not None:
            low, high = (bound + sign * _ROUNDED * max(1, abs(bound)) for bound, sign in zip(self.stated[:2], (-1, 1)))
            self.outside.add(block.numbers(finite & ((reward < low) | (reward > high))))
        beyond = finite & ((reward < self._limits[0]) | (reward > self._limits[1]))
        self.far.add(block.numbers(beyond & ~block.is_last))  # the last step may have a bonus

    def findings(self) -> Iterator[Finding]:
        name = "next/reward"
        if self.not_finite.count:
            yield find("reward_not_finite", "rewards are NaN or infinite", self.not_finite, self.steps, leaf=name)
        low, high = amounts.real(self.low), amounts.real(self.high)
        if self.stated is not None and self.outside.count:
            what = f"rewards from {low} to {high}, outside {self.stated[0]:g} to {self.stated[1]:g} ({self.stated[2]})"
            yield find("reward_out_of_range", what, self.outside, self.steps, leaf=name)
        elif 0 < self.far.count <= max(3, _RARE * self.steps):
            what = f"a few rewards are more than 10,000 times as far out as usual (all: {low} to {high})"
            yield find("reward_outlier", what, self.far, self.steps, leaf=name)
        if self.low == self.high and self.steps > 1:
            code = "reward_constant" if self.low else "reward_zero"
            yield find(code, f"every reward is {low}", Hits(self.steps, (0,)), self.steps, leaf=name)


def _stated(bounds: LeafBounds | None) -> tuple[Array, Array] | None:
    """The bounds of a leaf with their tolerance, float64 ``[elements]`` or ``[1]``; None if there are none."""
    if bounds is None or bounds.low is None:
        return None
    low = np.asarray(bounds.low, np.float64).reshape(-1)
    high = np.full(1, np.inf) if bounds.high is None else np.asarray(bounds.high, np.float64).reshape(-1)
    slack = _ROUNDED if np.dtype(bounds.leaf.dtype).kind == "f" else 0.0
    with np.errstate(invalid="ignore"):
        return low - slack * np.maximum(1, np.abs(low)), high + slack * np.maximum(1, np.abs(high))
