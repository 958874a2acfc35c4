"""Buffers of TensorDicts: batches contain the sampler's information, and priorities are read from batches."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any

import torch
from tensordict import TensorDictBase
from typing_extensions import Unpack

from ...errors import SamplingError, SchemaError, UsageError
from ..keywords import with_options
from .arguments import BufferOptions, PrioritizedBufferOptions, PrioritizedOptions, resolve_storage
from .buffer import ReplayBuffer
from .samplers.prioritized import PrioritizedSampler
from .storages.storage import is_key, read_records, rows_as_index
from .storages.trees import as_list, stack, stack_records
from .timeline import as_key, entry_at
from .writers import TensorDictRoundRobinWriter, reduce


class TensorDictReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` whose batches carry ``index`` (int64 ``[N]``, or ``[N, ndim]``), weights and slice flags.

    ``priority_key``: the key from which `update_tensordict_priority` and `extend` read priorities.
    """

    _info_in_batch = True
    _ring_writer = TensorDictRoundRobinWriter

    @with_options(BufferOptions, ReplayBuffer.__init__)
    def __init__(self, *, priority_key: Any = "td_error", **options: Unpack[BufferOptions]) -> None:
        super().__init__(**options)
        self.priority_key = priority_key

    def add(self, data: Any) -> Any:
        priority = self._priority(self._tensordict(data), self._storage.ndim - 1)
        index = super().add(data)
        if index is not None and priority is not None:
            self._set_priorities([index] if isinstance(index, int) else index, priority)
        return index

    def extend(self, data: Any, *, update_priority: bool | None = None) -> Any:
        """As `ReplayBuffer.extend`; priorities are read from ``priority_key`` if the data have this key.

        Raises SchemaError or SamplingError for invalid priorities, before anything is written.
        """
        data = as_list(data)
        data = self._tensordict(stack(data) if isinstance(data, list) else data)
        priority = self._priority(data, self._storage.ndim) if update_priority is not False else None
        index = super().extend(data)
        if priority is not None:
            self._set_priorities(index, priority)
        return index

    def sample(self, batch_size: int | None = None, return_info: bool = False, include_info: bool | None = None) -> Any:
        """As `ReplayBuffer.sample`; ``include_info=False`` leaves the sampler's information out of the batch."""
        if include_info is not False:
            return super().sample(batch_size, return_info)
        batch, info = super().sample(batch_size, True)
        batch = batch.exclude(*info)
        return (batch, info) if return_info else batch

    def __setitem__(self, index: Any, value: Any) -> None:
        """As `ReplayBuffer.__setitem__`; records without ``index`` keep the stored ``index``."""
        if isinstance(value, TensorDictBase) and "index" not in value.keys() and not is_key(index):  # noqa: SIM118
            stored: Any = None
            with suppress(IndexError, SchemaError):  # rows that are not there yet
                stored = read_records(self._storage, index, self._swapped_dim)
            fits = isinstance(stored, TensorDictBase) and stored.batch_size[: value.ndim] == value.batch_size
            if fits and "index" in stored.keys():  # noqa: SIM118
                value = value.copy().set("index", stored.get("index").clone())
        super().__setitem__(index, value)

    def _tensordict(self, data: Any) -> TensorDictBase:
        if not isinstance(data, TensorDictBase):
            message = f"a {type(self).__name__} takes TensorDicts, not a {type(data).__name__}"
            raise SchemaError(message, hint="a ReplayBuffer takes anything")
        return data

    def _priority(self, data: TensorDictBase, dims: int) -> torch.Tensor | None:
        """One priority per row, ``[n]``, in the order of writing; ``dims`` leading dimensions of the data count rows. None if
        the data have no priorities. Raises SchemaError or SamplingError for invalid priorities."""
        if not isinstance(self._sampler, PrioritizedSampler):
            return None
        values = self._priority_leaf(data)
        shape = data.batch_size[:dims]
        if values is None or not shape.numel():
            return None
        if not isinstance(values, torch.Tensor) or not values.numel():
            raise SchemaError(f"{self.priority_key} is a {type(values).__name__} without numbers: no priorities")
        priority = reduce(values.detach().reshape(shape.numel(), -1), self._sampler.reduction)
        self._sampler._check_priorities(priority)
        if dims == self._storage.ndim > 1 and self._dim_extend < len(shape):
            priority = priority.reshape(shape).transpose(0, self._dim_extend)
        return priority.reshape(-1)

    def _set_priorities(self, index: Any, priority: torch.Tensor) -> None:
        """Set the priorities of records that were written to the rows ``index``."""
        rows = self._storage.flat(index)
        if len(rows) != len(priority):  # a writer, or a transform, has kept some of them back
            rows = rows[rows >= 0]
            found = self._stored_priority(rows) if len(rows) else None
            if found is None:
                return
            priority = found
        # More records than room: each row holds the last record written to it.
        self.update_priority(rows_as_index(self._storage, rows), priority)

    def _priority_leaf(self, data: TensorDictBase) -> Any:
        """The leaf ``priority_key`` of the data; None if it is missing."""
        return entry_at(data, as_key(self.priority_key))

    def _stored_priority(self, rows: torch.Tensor) -> torch.Tensor | None:
        """The priorities that the records in these rows have, ``[n]``."""
        records = stack_records(self._storage.get(self._storage.coordinates(rows)))
        values = self._priority_leaf(records) if isinstance(records, TensorDictBase) else None
        if values is None:
            message = (
                f"{self.priority_key} is not stored with the records that were kept: theirs is that of new records"
            )
            warnings.warn(message, stacklevel=4)
            return None
        assert isinstance(self._sampler, PrioritizedSampler)
        return reduce(values.reshape(len(rows), -1), self._sampler.reduction)

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Set the priorities of a batch's rows from ``priority_key``, several values reduced to one.

        If the batch lacks the key, its rows get the priority of new records, with a warning. Raises UsageError if it has no
        ``index``.
        """
        if not isinstance(self._sampler, PrioritizedSampler):
            return
        index = data.get("index", None)
        key = as_key(self.priority_key)
        values = self._priority_leaf(data)
        if index is None:
            raise UsageError("the batch has no index: it takes that to set priorities")
        if values is None:
            message = f"the batch has no {'/'.join(key)}: its rows get the priority of new records"
            warnings.warn(message, stacklevel=2)
            values = torch.full(data.batch_size, self._sampler.default_priority, dtype=torch.float64, device="cpu")
        rows = index.reshape(len(index), -1)  # the same for all steps of a record
        rows = rows[:, -self._storage.ndim :] if self._storage.ndim > 1 else rows[:, 0]
        if values.numel() % len(rows):
            raise SamplingError(f"{values.numel()} priorities for {len(rows)} rows")
        self.update_priority(rows, reduce(values.reshape(len(rows), -1), self._sampler.reduction))


class PrioritizedReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` that samples by priority; ``alpha``, ``beta``, ``eps`` and ``reduction`` as in `PrioritizedSampler`.

    ``sampler``: a sampler with priorities, instead of these arguments. ``sampler_device`` has no effect: priorities are kept on
    the CPU.
    """

    @with_options(PrioritizedBufferOptions, ReplayBuffer.__init__)
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
        **options: Unpack[PrioritizedBufferOptions],
    ) -> None:
        made = resolve_storage(storage)
        if sampler is None:
            # A storage of several dimensions rounds its size up to full rows when the first data determine its width.
            room = made.max_size if made.ndim == 1 else 2 * made.max_size
            sampler = PrioritizedSampler(room, alpha, beta, eps, dtype, reduction)
        super().__init__(storage=made, sampler=sampler, **options)


class TensorDictPrioritizedReplayBuffer(PrioritizedReplayBuffer, TensorDictReplayBuffer):
    """A `TensorDictReplayBuffer` that samples by priority."""

    @with_options(PrioritizedOptions, ReplayBuffer.__init__, PrioritizedReplayBuffer.__init__)
    def __init__(
        self, *, alpha: float, beta: float, priority_key: Any = "td_error", **options: Unpack[PrioritizedOptions]
    ) -> None:
        super().__init__(alpha=alpha, beta=beta, **options)
        self.priority_key = priority_key
