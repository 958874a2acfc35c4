"""Buffers of TensorDicts: batches contain the sampler's information, and priorities are read from batches."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from tensordict import TensorDictBase

from ...errors import SamplingError, SchemaError, UsageError
from ..keywords import shows_arguments_of
from .buffer import ReplayBuffer, as_list, is_key, storage_of
from .storages.rows import is_number, numbers_in, written_rows
from .storages.trees import as_batch
from .timeline import as_key, entry_at
from .writers import TensorDictRoundRobinWriter, reduce


class TensorDictReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` whose batches carry ``index`` (int64 ``[N]``, or ``[N, ndim]``), weights and slice flags.

    ``priority_key``: the key from which `update_tensordict_priority` and `extend` read priorities. ``options``: the arguments
    of `ReplayBuffer`.
    """

    _with_info = True
    _ring_writer = TensorDictRoundRobinWriter

    @shows_arguments_of(ReplayBuffer.__init__)
    def __init__(self, *, priority_key: Any = "td_error", **options: Any) -> None:
        super().__init__(**options)
        self.priority_key = priority_key

    def add(self, data: Any) -> Any:
        if not isinstance(data, TensorDictBase):
            raise self._refused(data)
        priority = self._priority(data, self.storage.ndim - 1)
        index = super().add(data)
        if index is not None and priority is not None:
            self.update_priority([index] if isinstance(index, int) else index, priority)
        return index

    def extend(self, data: Any, *, update_priority: bool | None = None) -> Any:
        """As `ReplayBuffer.extend`; priorities are read from ``priority_key`` if the data have this key.

        Raises SchemaError or SamplingError for invalid priorities, before anything is written.
        """
        data = self._tensordict(data)
        if not self._batches.sampler.has_priorities or update_priority is False:
            return super().extend(data)
        priority = self._priority(data, self.storage.ndim)
        index = super().extend(data)
        if priority is not None and len(index) == len(priority):  # else a transform has kept some of them back
            self.update_priority(index, priority)
        return index

    def __setitem__(self, index: Any, value: Any) -> None:
        """As `ReplayBuffer.__setitem__`; records without ``index`` keep the stored ``index``."""
        is_record = isinstance(value, TensorDictBase) and not is_key(index) and value.get("index", None) is None
        if is_record and "index" in (self.storage.leaves() or {}):
            if self.storage.ndim == 1:
                rows = numbers_in(written_rows(index, len(self.storage)))
                stored = rows[0] if is_number(index) else rows
            else:
                stored = self._stored(index).get("index")
            if stored.shape[: value.ndim] == value.batch_size[: stored.ndim]:
                tail = [*stored.shape, *[1] * (value.ndim - stored.ndim)]
                value = value.copy().set("index", stored.reshape(tail).expand(value.batch_size).clone())
        super().__setitem__(index, value)

    def _tensordict(self, data: Any) -> TensorDictBase:
        """Records as one TensorDict. Raises SchemaError for anything else."""
        if isinstance(data, TensorDictBase):
            return data
        data = as_list(data)
        data = as_batch(data) if isinstance(data, list) else data
        if not isinstance(data, TensorDictBase):
            raise self._refused(data)
        return data

    def _refused(self, data: Any) -> SchemaError:
        message = f"a {type(self).__name__} takes TensorDicts, not a {type(data).__name__}"
        return SchemaError(message, hint="a ReplayBuffer takes anything")

    def _priority(self, data: TensorDictBase, dims: int) -> torch.Tensor | None:
        """One priority per row, ``[n]``, in the order of writing; ``dims`` leading dimensions of the data count rows. None if
        the data have no priorities. Raises SchemaError or SamplingError for invalid priorities."""
        sampler: Any = self.sampler
        if not sampler.has_priorities:
            return None
        from .samplers.prioritized import check_priorities

        values, shape = entry_at(data, as_key(self.priority_key)), data.batch_size[:dims]
        if values is None or not shape.numel():
            return None
        if not isinstance(values, torch.Tensor) or not values.numel():
            raise SchemaError(f"{self.priority_key} is a {type(values).__name__} without numbers: no priorities")
        priority = reduce(values.detach().reshape(shape.numel(), -1), sampler.reduction)
        check_priorities(priority.double().cpu().numpy())
        if dims == self.storage.ndim > 1 and self.dim_extend < len(shape):
            priority = priority.reshape(shape).transpose(0, self.dim_extend)
        return priority.reshape(-1)

    def update_tensordict_priority(self, data: Any) -> None:
        """Set the priorities of a batch's rows from ``priority_key``, several values reduced to one.

        Without effect if the sampler has no priorities. If the batch lacks the key, its rows get the priority of new records,
        with a warning. Raises UsageError for another type than a TensorDict, and for one without ``index``.
        """
        sampler: Any = self.sampler
        if not sampler.has_priorities:
            return
        if not isinstance(data, TensorDictBase):
            message = f"the batch is a {type(data).__name__}, no TensorDict"
            raise UsageError(message, hint='update_priority(batch["index"], priorities) takes arrays')
        index, values = data.get("index", None), entry_at(data, as_key(self.priority_key))
        if index is None:
            raise UsageError("the batch has no index: it takes that to set priorities")
        if values is None:
            message = (
                f"the batch has no {'/'.join(as_key(self.priority_key))}: its rows get the priority of new records"
            )
            warnings.warn(message, stacklevel=2)
            values = torch.full(data.batch_size, sampler.default_priority, dtype=torch.float64, device="cpu")
        rows, ndim = index.reshape(len(index), -1), self.storage.ndim  # the same for all steps of a record
        rows = rows[:, -ndim:] if ndim > 1 else rows[:, 0]
        if values.numel() % len(rows):
            raise SamplingError(f"{values.numel()} priorities for {len(rows)} rows")
        self.update_priority(rows, reduce(values.reshape(len(rows), -1), sampler.reduction))


class PrioritizedReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` that samples by priority; ``alpha``, ``beta``, ``eps`` and ``reduction`` as in `PrioritizedSampler`.

    ``sampler``: a sampler with priorities, instead of these arguments. ``sampler_device`` and ``sync`` have no effect:
    priorities are kept on the CPU. ``options``: the arguments of `ReplayBuffer`.
    """

    @shows_arguments_of(ReplayBuffer.__init__)
    def __init__(
        self,
        *,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float32,
        reduction: str = "max",
        storage: Any = None,
        sampler: Any = None,
        sampler_device: Any = None,
        sync: bool = True,
        **options: Any,
    ) -> None:
        from .samplers.prioritized import PrioritizedSampler

        made = storage_of(storage)
        if sampler is None:
            sampler = PrioritizedSampler(min(made.max_size, 1 << 40), alpha, beta, eps, dtype, reduction)
        super().__init__(storage=made, sampler=sampler, **options)


class TensorDictPrioritizedReplayBuffer(PrioritizedReplayBuffer, TensorDictReplayBuffer):
    """A `TensorDictReplayBuffer` that samples by priority."""

    @shows_arguments_of(ReplayBuffer.__init__, PrioritizedReplayBuffer.__init__)
    def __init__(self, *, alpha: float, beta: float, priority_key: Any = "td_error", **options: Any) -> None:
        super().__init__(alpha=alpha, beta=beta, **options)
        self.priority_key = priority_key
