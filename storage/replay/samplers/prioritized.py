"""Prioritized experience replay (Schaul, Quan, Antonoglou, Silver, ICLR 2016), proportional variant.

A record with priority p is drawn with probability P = (p + eps)^alpha / sum, and comes with the importance weight
(N P)^-beta, divided by the largest weight: ((p + eps)^alpha / min (p + eps)^alpha)^-beta. The minimum is over the whole
buffer, not the batch. New records get the largest priority seen so far, so that each is drawn soon.

`PrioritizedSliceSampler` draws the starts of slices by priority. A slice must fit into its episode, so none begins at the last
steps of an episode. These steps keep their priority in the tree of all records (weights are relative to its minimum), but are
zero in a second tree from which starts are drawn:

    priorities   3 1 2 4 | 2 5        slices of 3
    starts       3 1 0 0 | 0 0        of an episode of 4 two starts, of one of 2 none
    not strict   3 1 0 0 | 2 0        or, where short episodes give what they have, their first step
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from ....errors import SamplingError, UsageError
from ...keywords import shows_arguments_of, whole_number
from ..draw import Draw
from ..order import Turn
from ..storages.rows import whole_numbers
from ..storages.storage import Storage, require_records
from ..timeline import Key
from ..writers import REDUCTIONS
from .sampler import Sampler
from .slices import EpisodePool, SliceSampler
from .sum_tree import SumTree, full


class PrioritizedSampler(Sampler):
    """Draws in proportion to priorities, with replacement; the weights come as ``priority_weight`` (and ``_weight``).

    - ``max_capacity``: the number of priorities to make room for, the storage's ``max_size``; it grows when later rows come.
    - ``alpha``, ``beta``: the exponents above, numbers or tensors of one; setting ``alpha`` later transforms what is stored.
    - ``eps``: added to every priority. ``dtype``: of the weights.
    - ``reduction``: how a priority of several values becomes one: max, min, mean, median or sum.
    """

    has_priorities = True

    def __init__(
        self,
        max_capacity: int,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float32,
        reduction: str = "max",
    ) -> None:
        max_capacity = whole_number("max_capacity", max_capacity, 1)
        for name, value in (("alpha", alpha), ("beta", beta), ("eps", eps)):
            _check_exponent(name, value)
        if reduction not in REDUCTIONS:
            raise UsageError(f"reduction {reduction!r} is not one of {', '.join(REDUCTIONS)}")
        self.max_capacity, self.eps, self.dtype, self.reduction = max_capacity, eps, dtype, reduction
        self._alpha, self.beta = alpha, beta
        # The priorities themselves, NaN where there is none: exact when alpha changes, also from and to zero.
        self._priorities = full(max_capacity, torch.nan)
        self._largest: float | None = None
        self._known_rows = 0  # rows known to have a priority
        self._tree = SumTree(max_capacity)

    # -- priorities --------------------------------------------------------------------------------------------------

    @property
    def alpha(self) -> float:
        return self._alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        _check_exponent("alpha", value)
        self._alpha = value
        self._refill()

    @property
    def default_priority(self) -> float:
        """The priority of new records: the largest so far, initially 1."""
        return 1.0 if self._largest is None else self._largest

    def update_priority(self, index: Any, priority: Any, *, storage: Storage | None = None) -> None:
        """Set the priorities of rows: one per row, or one for all; rows of -1 are skipped.

        ``index`` is ``[N]``, or ``[N, ndim]`` with the ``storage`` given. Raises SamplingError for priorities that are
        negative, infinite or not numbers, and for rows that do not exist.
        """
        rows, values = _flat(index, storage), _numbers(priority)
        if len(values) not in (1, len(rows)):
            raise SamplingError(f"{len(values)} priorities for {len(rows)} rows")
        if not len(rows):
            return
        check_priorities(values)
        known = len(storage) if storage is not None else len(self._priorities)
        values = np.broadcast_to(values, rows.shape)
        if rows[rows.argmin()] < 0 or rows[rows.argmax()] >= known:
            _check_rows(rows, known)
            rows, values = rows[rows >= 0], values[rows >= 0]
            if not len(rows):
                return
        self._largest = max(float(values[values.argmax()]), self._largest or 0.0)
        self._set(rows, values)

    def _set(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Store priorities (float64 ``[n]``) of rows (int64 ``[n]``)."""
        self._priorities.numpy()[rows] = values
        self._tree.update(rows, self._raised(values))
        self.__dict__["version"] = self.version + 1

    def _raised(self, priorities: Any) -> Any:
        """The values of the tree for priorities: (p + eps)^alpha."""
        return (priorities + float(self.eps)) ** float(self._alpha)

    def _refill(self) -> None:
        self._tree.fill(torch.where(self._priorities.isnan(), 0.0, self._raised(self._priorities)))
        self.__dict__["version"] = self.version + 1

    def mark_update(self, index: Any, *, storage: Storage | None = None) -> None:
        """Give rows the priority of new records; rows of -1 are skipped.

        Raises SamplingError for rows that the ``storage`` does not have; without a storage the sampler grows.
        """
        rows = _flat(index, storage)
        if storage is not None:
            _check_rows(rows, len(storage))
        rows = rows[rows >= 0]
        if not len(rows):
            return
        self._reserve(int(rows.max()) + 1)
        self.update_priority(torch.from_numpy(rows), self.default_priority)

    def _reserve(self, rows: int) -> None:
        """Have room for this many rows: a storage of several dimensions has more of them than its ``max_size``."""
        room = len(self._priorities)
        if rows > room:
            grown = full(max(rows, 2 * room), torch.nan)
            grown[:room] = self._priorities
            self._priorities, self._tree = grown, SumTree(len(grown))
            self._refill()

    def _empty(self) -> None:
        self._priorities.fill_(torch.nan)
        self._largest, self._known_rows = None, 0
        self._refill()

    # -- drawing -----------------------------------------------------------------------------------------------------

    def draw(self, storage: Storage, batch_size: int, turn: Turn) -> Draw:
        size = self._follow(storage)
        mass = turn.floats(batch_size)
        rows, values = self._fallen(self._tree, mass, "no record has a priority above zero")
        if rows[rows.argmax()] >= size:  # marked by a caller that did not name the storage
            self._forget(size)
            rows, values = self._fallen(self._tree, mass, "no record has a priority above zero")
        return Draw(torch.from_numpy(rows), [batch_size] * turn.count, turn.places, self._info(values))

    def _fallen(self, tree: SumTree, mass: np.ndarray, words: str) -> tuple[np.ndarray, np.ndarray]:
        if tree.total <= 0:
            raise SamplingError(words, hint="give the sampler an eps above zero")
        return tree.draw(mass)

    def _forget(self, size: int) -> None:
        """Remove the priorities of all rows except the first ``size``."""
        self._priorities[size:] = torch.nan
        self._refill()

    def _follow(self, storage: Storage) -> int:
        """Give records older than the sampler the priority of new records, remove those of missing rows; returns the rows."""
        size = require_records(storage)
        if size == self._known_rows:
            return size
        if size < self._known_rows:  # another storage, or one that was emptied behind the buffer's back
            self._forget(size)
        self._reserve(size)
        missing = self._known_rows + np.flatnonzero(self._priorities[self._known_rows : size].isnan().numpy())
        if len(missing):
            self._largest = self.default_priority
            self._set(missing, np.full(len(missing), self._largest))
        self._known_rows = size
        return size

    def _info(self, values: np.ndarray) -> dict[Key, torch.Tensor]:
        """The importance weights for values of the tree."""
        weights = torch.from_numpy((values / self._tree.smallest) ** -float(self.beta)).to(self.dtype)
        return {("priority_weight",): weights, ("_weight",): weights.clone()}

    # -- saving ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {
            "alpha": float(self._alpha),
            "beta": float(self.beta),
            "eps": float(self.eps),
            "largest": self._largest,
            "max_capacity": self.max_capacity,
            "priorities": self._priorities.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state from ``state_dict``. Raises UsageError for a state of another size."""
        if "priorities" not in state:
            raise UsageError(f"the state is not that of a {type(self).__name__}")
        priorities, capacity = state["priorities"], state["max_capacity"]
        if capacity != self.max_capacity or len(priorities) < self.max_capacity:
            raise UsageError(f"the state has {capacity} priorities, the sampler {self.max_capacity}")
        if bool((priorities < 0).any()) or bool(priorities.isinf().any()):
            raise UsageError("the state has priorities that are negative or infinite")
        for name in ("alpha", "beta", "eps"):
            _check_exponent(name, state[name])
        self._alpha, self.beta, self.eps, self._largest = (state[name] for name in ("alpha", "beta", "eps", "largest"))
        self._known_rows = 0
        self._priorities, self._tree = priorities.clone(), SumTree(len(priorities))
        self._refill()

    def __getstate__(self) -> dict[str, Any]:
        # As an array: multiprocessing would move a tensor to memory that both processes then share.
        return {**self.__dict__, "_tree": None, "_priorities": self._priorities.numpy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _priorities=torch.from_numpy(state["_priorities"].copy()))
        self._tree = SumTree(len(self._priorities))
        self._refill()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(max_capacity={self.max_capacity}, alpha={self._alpha}, beta={self.beta})"


class PrioritizedSliceSampler(SliceSampler, PrioritizedSampler):
    """`SliceSampler` and `PrioritizedSampler` in one; the weight of a slice's start comes with all its steps.

    Slices may end after their episode (right ``span``, which a single value sets), but not begin before it: a left span is
    turned off with a warning. With a right span, episodes that are too short by at most the span are drawn from as well.
    Positional arguments are those of `PrioritizedSampler`, ``slices`` those of `SliceSampler`.
    """

    _cut_short = True

    @shows_arguments_of(SliceSampler.__init__)
    def __init__(
        self,
        max_capacity: int,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float32,
        reduction: str = "max",
        **slices: Any,
    ) -> None:
        self._starts: tuple[EpisodePool, np.ndarray, SumTree] | None = None
        PrioritizedSampler.__init__(self, max_capacity, alpha, beta, eps, dtype, reduction)
        SliceSampler.__init__(self, **slices)

    def _spans(self) -> tuple[bool | int, bool | int]:
        if not isinstance(self.span, (tuple, list)):
            self.__dict__["span"] = (False, self.span)
        left, right = super()._spans()
        if left:
            message = "a priority belongs to the step a slice begins with: the left span is turned off"
            warnings.warn(message, stacklevel=4)
            self.__dict__["span"] = (False, right)
        return False, right

    def draw(self, storage: Storage, batch_size: int, turn: Turn) -> Draw:
        count, length = self.shape(batch_size)
        self._follow(storage)
        pool = self.pool(storage, length)
        words = f"no step that a slice of {length} could begin with has a priority above zero"
        rows, values = self._fallen(self._start_tree(pool), turn.floats(count), words)
        start = pool.timeline.positions(torch.from_numpy(rows))
        left = pool.timeline.extent_of(pool.timeline.episode_of(start))[1] - start
        lengths = left.clamp(max=length) if bool((left < length).any()) else None
        draw = self._finish(pool, start, lengths, [count] * turn.count, turn)
        assert draw.slices is not None
        each = length if lengths is None or draw.slices.padded else lengths.numpy()
        draw.info = {
            key: torch.from_numpy(np.repeat(value.numpy(), each, 0)) for key, value in self._info(values).items()
        }
        return draw

    def _start_tree(self, pool: EpisodePool) -> SumTree:
        """The tree of starts, built again when the storage's contents have changed."""
        if self._starts is None or self._starts[0] is not pool:
            first, last = pool.first.numpy(), (pool.first + torch.minimum(pool.places, pool.lengths)).numpy()
            bounds = np.zeros(int(pool.timeline.starts[-1]) + 1, np.int64)
            np.add.at(bounds, first, 1)
            np.add.at(bounds, last, -1)
            eligible = np.zeros(len(self._priorities), bool)
            eligible[pool.timeline.rows(torch.from_numpy(np.flatnonzero(bounds.cumsum()[:-1]))).numpy()] = True
            tree = SumTree(len(eligible))
            tree.fill(torch.from_numpy(np.where(eligible, self._tree.values.numpy(), 0.0)))
            self._starts = (pool, eligible, tree)
        return self._starts[2]

    def _set(self, rows: np.ndarray, values: np.ndarray) -> None:
        super()._set(rows, values)
        if self._starts is not None:
            _, eligible, tree = self._starts
            tree.update(rows, np.where(eligible[rows], self._tree[rows], 0.0))

    def _refill(self) -> None:
        super()._refill()
        self._starts = None

    def _empty(self) -> None:
        SliceSampler._empty(self)
        PrioritizedSampler._empty(self)

    state_dict, load_state_dict = PrioritizedSampler.state_dict, PrioritizedSampler.load_state_dict

    def __getstate__(self) -> dict[str, Any]:
        return {**PrioritizedSampler.__getstate__(self), "_pool": None, "_known": None, "_starts": None}


def check_priorities(values: np.ndarray) -> None:
    """Raise SamplingError for priorities that are negative, infinite or not numbers."""
    if len(values) and not (values[values.argmin()] >= 0 and values[values.argmax()] < np.inf):
        bad = values[~((values >= 0) & (values < np.inf))][0]
        raise SamplingError(f"a priority of {bad}: priorities are finite and not negative")


def _check_exponent(name: str, value: Any) -> None:
    """Raise UsageError unless the value is a number >= 0."""
    if not value >= 0:
        raise UsageError(f"{name} must be greater or equal to 0, and is {value!r}")


def _check_rows(rows: np.ndarray, known: int) -> None:
    """Raise SamplingError for a row that is neither below ``known`` nor -1."""
    outside = rows[(rows < -1) | (rows >= known)]
    if len(outside):
        raise SamplingError(f"row {outside[0]} has no priority: there are {known}")


def _numbers(priority: Any) -> np.ndarray:
    """Priorities as float64 ``[n]``. Raises SamplingError for values that are not numbers."""
    try:
        return torch.as_tensor(priority, device="cpu").detach().to(torch.float64).resolve_neg().numpy().reshape(-1)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SamplingError(f"priorities are numbers, not {priority!r}") from error


def _flat(index: Any, storage: Storage | None) -> np.ndarray:
    """Flat rows, int64 ``[n]``."""
    if isinstance(index, torch.Tensor) and index.ndim == 1 and index.dtype == torch.int64 and not index.is_cuda:
        return index.numpy()  # the usual case, called once a training step
    if storage is not None:
        return storage.flat(index).numpy()
    return whole_numbers(index).reshape(-1).numpy()
