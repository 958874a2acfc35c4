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

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from typing_extensions import Unpack

from ....errors import SamplingError, UsageError, reason
from ...keywords import whole_number, with_options
from ..draw import Draw
from ..overrides import is_overridden
from ..storages.rows import whole_numbers
from ..storages.storage import Storage, require_records
from ..timeline import Timeline
from ..writers import REDUCTIONS
from .sampler import Sampler
from .slices import EpisodePool, SliceOptions, SliceSampler
from .sum_tree import SumTree, full


class PrioritizedSampler(Sampler):
    """Draws in proportion to priorities, with replacement; the weights come as ``priority_weight`` (and ``_weight``).

    - ``max_capacity``: the number of priorities to make room for, the storage's ``max_size``; it grows when later rows come.
    - ``alpha``, ``beta``: the exponents above, numbers or tensors of one; setting ``alpha`` later transforms what is stored.
    - ``eps``: added to every priority. ``dtype``: of the weights.
    - ``reduction``: how a priority of several values becomes one: max, min, mean, median or sum.
    - ``max_priority_within_buffer``: new records get the largest priority that is still in the buffer, rather than the
      largest there ever was.
    - ``device``: taken for compatibility, without effect: priorities are in main memory.
    """

    ahead = False
    values_per_row = True

    def __init__(
        self,
        max_capacity: int,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float32,
        reduction: str = "max",
        max_priority_within_buffer: bool = False,
        device: Any = None,
    ) -> None:
        max_capacity = whole_number("max_capacity", max_capacity, 1)
        for name, value in (("alpha", alpha), ("beta", beta), ("eps", eps)):
            _check_exponent(name, value)
        if reduction not in REDUCTIONS:
            raise UsageError(f"reduction {reduction!r} is not one of {', '.join(REDUCTIONS)}")
        self.max_capacity, self.eps, self.dtype, self.reduction = max_capacity, eps, dtype, reduction
        self.max_priority_within_buffer = max_priority_within_buffer
        self._alpha, self.beta = alpha, beta
        # The priorities themselves, NaN where there is none: exact when alpha changes, also from and to zero.
        self._priorities = full(max_capacity, torch.nan)
        self._largest: float | None = None
        self._checked_rows = 0  # rows known to have a priority
        self.tree = SumTree(max_capacity)

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
    def max_size(self) -> int:
        return self.max_capacity

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def room(self) -> int:
        """The current capacity in priorities."""
        return len(self._priorities)

    def _refill(self) -> None:
        self.tree.fill(torch.where(self._priorities.isnan(), 0.0, self._raised(self._priorities)))

    def _raised(self, priorities: Any) -> Any:
        """The values of the tree for priorities: (p + eps)^alpha."""
        return (priorities + self.eps) ** float(self._alpha)

    @property
    def default_priority(self) -> float:
        """The priority of new records: the largest so far, initially 1."""
        if self.max_priority_within_buffer:
            known = self._priorities[~self._priorities.isnan()]
            return float(known.max()) if len(known) else 1.0
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
        largest = _largest(values)
        known = len(storage) if storage is not None else self.room
        if len(values) != len(rows):
            values = np.broadcast_to(values, rows.shape)
        words = rows.view(np.uint64)
        if words[words.argmax()] >= known:  # as unsigned words, negative numbers are huge
            self._check_rows(rows, known)
            rows, values = rows[rows >= 0], values[rows >= 0]
            if not len(rows):
                return
            largest = values.max()
        self._largest = max(float(largest), self._largest if self._largest is not None else 0.0)
        self._set(rows, values)

    def _check_priorities(self, priority: Any) -> None:
        """Raise SamplingError for priorities that `update_priority` refuses for any rows; not if a class overrides it."""
        if not is_overridden(self, "update_priority") and len(values := _numbers(priority)):
            _largest(values)

    @staticmethod
    def _check_rows(rows: np.ndarray, known: int) -> None:
        """Raise SamplingError for a row that is neither below ``known`` nor -1."""
        outside = rows[(rows < -1) | (rows >= known)]
        if len(outside):
            raise SamplingError(f"row {outside[0]} has no priority: there are {known}")

    def _set(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Store priorities (float64 ``[n]``) of rows (int64 ``[n]``)."""
        self._priorities.numpy()[rows] = values
        self.tree.update(rows, self._raised(values))

    def mark_update(self, index: Any, *, storage: Storage | None = None) -> None:
        """Give rows the priority of new records; rows of -1 are skipped.

        Raises SamplingError for rows that the ``storage`` does not have; without a storage the sampler grows.
        """
        if storage is not None:
            rows = _flat(index, storage)
            self._check_rows(rows[rows >= 0], len(storage))
        self._mark(index, storage)

    def _mark(self, index: Any, storage: Storage | None) -> None:
        rows = _flat(index, storage)
        rows = rows[rows >= 0]
        if not len(rows):
            return
        if rows.max() >= self.room:
            self.reserve(max(int(rows.max()) + 1, 2 * self.room))
        if self.max_priority_within_buffer:
            self._priorities.numpy()[rows] = np.nan  # priorities of overwritten records do not count
        if is_overridden(self, "update_priority"):
            self.update_priority(index, self.default_priority, storage=storage)
        else:
            self._set_default(rows)

    def _set_default(self, rows: np.ndarray) -> None:
        self._largest = self.default_priority  # counts as seen, including the initial 1
        self._set(rows, np.full(len(rows), self._largest))

    def reserve(self, rows: int) -> None:
        if rows > self.room:
            priorities = full(rows, torch.nan)
            priorities[: self.room] = self._priorities
            self._priorities, self.tree = priorities, SumTree(rows)
            self._refill()

    def add(self, index: Any) -> None:
        if not is_overridden(self, "mark_update"):  # which was called before
            self._mark(index, self._written)

    extend = add

    def empty(self) -> None:
        self._priorities.fill_(torch.nan)
        self._largest, self._checked_rows = None, 0
        self.tree = SumTree(self.room)
        self._leave()

    # -- drawing -----------------------------------------------------------------------------------------------------

    def draw(self, storage: Storage, batch_size: int, generator: torch.Generator) -> Draw:
        self.add_missing_priorities(storage)
        rows, values = self._draw_rows(batch_size, generator)
        if rows[rows.argmax()] >= len(storage):  # marked by a caller that did not name the storage
            self._forget(len(storage))
            rows, values = self._draw_rows(batch_size, generator)
        return Draw(torch.from_numpy(rows), info=self._info(values))

    def _draw_rows(self, batch_size: int, generator: torch.Generator) -> tuple[np.ndarray, np.ndarray]:
        if self.tree.total <= 0:
            raise SamplingError("no record has a priority above zero", hint="give the sampler an eps above zero")
        return self.tree.draw(batch_size, generator)

    def _forget(self, size: int) -> None:
        """Remove the priorities of all rows except the first ``size``."""
        self._priorities[size:] = torch.nan
        self._refill()

    def add_missing_priorities(self, storage: Storage) -> None:
        """Give records older than the sampler the priority of new records, and remove priorities of missing rows."""
        size = require_records(storage)
        if size == self._checked_rows:
            return
        if size < self._checked_rows:  # another storage, or one that was emptied behind the buffer's back
            self._forget(size)
        self.reserve(size)
        new = self._priorities.numpy()[self._checked_rows : size]  # rows before these were looked at when they came
        missing = self._checked_rows + np.flatnonzero(np.isnan(new))
        if len(missing):
            self._set_default(missing)
        self._checked_rows = size

    def _info(self, values: np.ndarray) -> dict[str, torch.Tensor]:
        """The weights of drawn rows, from their values in the tree."""
        weights = (values / self.tree.smallest) ** -float(self.beta)
        if self.dtype == torch.float32:
            weights = weights.astype(np.float32)  # rounds as torch does, in an eighth of its time
        weight = torch.from_numpy(weights).to(self.dtype)
        return {"priority_weight": weight, "_weight": weight.clone()}

    # -- saving ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {
            "alpha": float(self._alpha),
            "beta": float(self.beta),
            "eps": self.eps,
            "largest": self._largest,
            "max_capacity": self.max_capacity,
            "priorities": self._priorities.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state from ``state_dict``, of this package or of TorchRL. Raises UsageError for a state of another size."""
        if "_sum_tree" in state:
            state = _torchrl_priorities(state, self.max_capacity, within_buffer=self.max_priority_within_buffer)
        if "priorities" not in state:
            raise UsageError(f"the state is not that of a {type(self).__name__}")
        priorities = state["priorities"]
        capacity = state.get("max_capacity", len(priorities))
        numbers: list[Any] = [state.get(name) for name in ("alpha", "beta", "eps", "largest")]
        known = isinstance(priorities, torch.Tensor) and priorities.dtype == torch.float64 and priorities.ndim == 1
        if not known or capacity not in (self.max_capacity, self.room) or len(priorities) < self.max_capacity:
            raise UsageError(f"the state has {len(priorities)} priorities, the sampler {self.max_capacity}")
        given = numbers if numbers[3] is not None else numbers[:3]  # no priority was set yet
        sound = all(isinstance(value, (int, float)) and 0 <= value < math.inf for value in given)
        if not sound or bool((priorities < 0).any()) or bool(priorities.isinf().any()):
            message = f"the state's alpha, beta, eps and largest priority are {numbers}: not all are numbers from 0 on"
            raise UsageError(message)
        self._alpha, self.beta, self.eps, self._largest = numbers
        self._checked_rows = 0
        self._priorities, self.tree = priorities.clone(), SumTree(len(priorities))
        self._refill()

    def __getstate__(self) -> dict[str, Any]:
        # As an array: multiprocessing would move a tensor to memory that both processes then share.
        return {**super().__getstate__(), "tree": None, "_priorities": self._priorities.numpy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _priorities=torch.from_numpy(state["_priorities"]))
        self.tree = SumTree(self.room)
        self._refill()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(max_capacity={self.max_capacity}, alpha={self._alpha}, beta={self.beta})"


def _torchrl_priorities(state: dict[str, Any], capacity: int, *, within_buffer: bool) -> dict[str, Any]:
    """Our state of a prioritized sampler from TorchRL's, which has room for ``capacity`` records. Raises UsageError.

    TorchRL keeps (p + eps)^alpha in a tree of sums: p = tree^(1 / alpha) - eps. With alpha = 0 every value in the tree is 1,
    and every record gets the largest priority. States without ``_schema_version`` have the largest priority within the buffer
    as a value of the tree; the largest of the computed priorities is used instead.
    """
    try:
        alpha, beta, eps = (float(state[name]) for name in ("_alpha", "_beta", "_eps"))
        tree = torch.as_tensor(np.asarray(state["_sum_tree"][np.arange(capacity)]), dtype=torch.float64, device="cpu")
        top = None if state["_max_priority"] is None else state["_max_priority"][0]
        largest = None if top is None else float(top)
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError, OverflowError) as error:
        raise UsageError(f"the state is not that of a prioritized sampler: {reason(error)}") from error
    raw = (tree ** (1 / alpha) - eps).clamp(min=0) if alpha else torch.full_like(tree, largest or 1.0)
    priorities = torch.where(tree > 0, raw, math.nan)
    written = bool((tree > 0).any())
    if within_buffer and alpha and not state.get("_schema_version", 0):
        largest = float(raw[tree > 0].max()) if written else None
    return {"alpha": alpha, "beta": beta, "eps": eps, "largest": largest, "priorities": priorities}


def _check_exponent(name: str, value: Any) -> None:
    """Raise UsageError unless the value is a number >= 0."""
    if not value >= 0:
        raise UsageError(f"{name} must be greater or equal to 0, and is {value!r}")


def _numbers(priority: Any) -> np.ndarray:
    """Priorities as float64 ``[n]``. Raises SamplingError for values that are not numbers."""
    try:
        tensor = torch.as_tensor(priority, device="cpu").detach()
        try:
            return tensor.numpy().astype(np.float64).reshape(-1)
        except (TypeError, RuntimeError):  # NumPy cannot view bfloat16, or a negation that torch defers
            return tensor.to(torch.float64).resolve_neg().numpy().reshape(-1)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SamplingError(f"priorities are numbers, not {priority!r}") from error


def _largest(values: np.ndarray) -> np.float64:
    """The largest priority. Raises SamplingError for priorities that are negative, infinite or not numbers."""
    largest: np.float64 = values[values.argmax()]  # four times as fast as max(); NaN comes first in both
    if not (values[values.argmin()] >= 0 and largest < np.inf):
        bad = values[~((values >= 0) & (values < np.inf))][0]
        raise SamplingError(f"a priority of {bad}: priorities are finite and not negative")
    return largest


def _flat(index: Any, storage: Storage | None) -> np.ndarray:
    """Flat rows, int64 ``[n]``."""
    if isinstance(index, torch.Tensor) and index.ndim == 1 and index.dtype == torch.int64 and not index.is_cuda:
        return index.numpy()  # the usual case, called once a training step
    if storage is not None:
        return storage.flat(index).numpy()
    return whole_numbers(index).reshape(-1).numpy()


class PrioritizedSliceSampler(SliceSampler, PrioritizedSampler):
    """`SliceSampler` and `PrioritizedSampler` in one; the weight of a slice's start comes with all its steps.

    Slices may end after their episode (right ``span``, which a single value sets), but not begin before it: a left span is
    turned off with a warning. With a right span, episodes that are too short by at most the span are drawn from as well.
    Positional arguments and ``device`` are those of `PrioritizedSampler`, all others those of `SliceSampler`.
    """

    ahead = False
    _cut_short = True

    @with_options(SliceOptions, SliceSampler.__init__)
    def __init__(
        self,
        max_capacity: int,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float32,
        reduction: str = "max",
        *,
        max_priority_within_buffer: bool = False,
        device: Any = None,
        **slices: Unpack[SliceOptions],
    ) -> None:
        SliceSampler.__init__(self, **slices)
        self._starts: SumTree | None = None
        own = (max_capacity, alpha, beta, eps, dtype, reduction, max_priority_within_buffer)
        PrioritizedSampler.__init__(self, *own)
        self._configure()
        self._eligible = torch.zeros(max_capacity, dtype=torch.bool, device="cpu")
        self._known: tuple[Timeline, int] | None = None

    def draw(self, storage: Storage, batch_size: int, generator: torch.Generator) -> Draw:
        count, length = self.shape(batch_size)
        self.add_missing_priorities(storage)
        pool = self.pool(storage, length)
        starts = self._start_tree(pool, length)
        if starts.total <= 0:
            raise SamplingError(f"no step that a slice of {length} could begin with has a priority above zero")
        rows = torch.from_numpy(starts.draw(count, generator)[0])
        position = pool.timeline.positions(rows)
        left = pool.timeline.extent_of(pool.timeline.episode_of(position))[1] - position
        lengths = left.clamp(max=length) if bool((left < length).any()) else None
        padded = self.pad_output and pool.short
        each = length if lengths is None or padded else lengths.numpy()
        known = self._info(self.tree[rows.numpy()])
        info = {name: torch.from_numpy(np.repeat(value.numpy(), each, 0)) for name, value in known.items()}
        return self._finish(Draw(position, length, lengths, pool.timeline, padded, self.marks, info))

    def _configure(self) -> None:
        if not isinstance(self.span, Sequence):
            self.__dict__["span"] = (False, self.span)
        SliceSampler._configure(self)
        if self.span[0]:
            message = "a priority belongs to the step a slice begins with: the left span is turned off"
            warnings.warn(message, stacklevel=3)
            self.__dict__["span"] = (False, self.span[1])
        self._starts = self._known = None

    def _start_tree(self, pool: EpisodePool, length: int) -> SumTree:
        """The tree of starts, built again when the storage's contents have changed."""
        known = self._known
        if self._starts is None or known is None or known[0] is not pool.timeline or known[1] != length:
            ends = torch.zeros(int(pool.timeline.starts[-1]) + 1, dtype=torch.int64, device="cpu")
            last = pool.first + torch.minimum((pool.places - 1) * pool.stride + 1, pool.lengths)
            ends.index_add_(0, pool.first, torch.ones_like(pool.first))
            ends.index_add_(0, last, -torch.ones_like(last))
            position = (ends.cumsum(0)[:-1] > 0).nonzero().squeeze(1)
            if pool.stride > 1:
                ahead = position - pool.timeline.starts[pool.timeline.episode_of(position)]
                position = position[ahead % pool.stride == 0]
            self._eligible.fill_(False)
            self._eligible[pool.timeline.rows(position)] = True
            self._starts = SumTree(self.room)
            self._starts.fill(torch.where(self._eligible, self.tree.values, 0.0))
            self._known = (pool.timeline, length)
        return self._starts

    def _set(self, rows: np.ndarray, values: np.ndarray) -> None:
        super()._set(rows, values)
        if self._starts is not None:
            stored = self.tree[rows]
            self._starts.update(rows, np.where(self._eligible.numpy()[rows], stored, 0.0))

    def _refill(self) -> None:
        super()._refill()
        self._eligible = torch.zeros(self.room, dtype=torch.bool, device="cpu")
        self._starts = self._known = None

    def empty(self) -> None:
        SliceSampler.empty(self)
        PrioritizedSampler.empty(self)
        self._starts = self._known = None

    def __getstate__(self) -> dict[str, Any]:
        state = {**PrioritizedSampler.__getstate__(self), "_pools": {}, "_starts": None, "_known": None}
        del state["_eligible"]
        return state
