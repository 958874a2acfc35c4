"""How batches leave a buffer: one at a time, by iteration, and records by number."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from tensordict import TensorDictBase, is_tensor_collection
from tensordict.utils import expand_as_right

from ...errors import PassRestartedWarning, UsageError
from ..dataset import Dataset
from ..partial_dataset import PartialDataset
from .argument_checks import check_batch_size
from .overrides import is_overridden, is_own_code, reads_by_get
from .pipeline import BatchSpec, Info, RetiredError
from .storages.column_access import is_key, read_column, read_records
from .storages.dataset_storage import DatasetStorage
from .storages.list_storage import ListStorage
from .storages.trees import copy_of, stack_records
from .writing import WritingMixin

#: ``ran_out`` is that of the thread's last batch.
_thread = threading.local()


class SamplingMixin(WritingMixin):
    """The part of `ReplayBuffer` that samples."""

    _spec: BatchSpec
    _pass_ended: bool
    _warned: bool
    _warned_of_restart = False
    _info_in_batch: bool
    batch_size: int | None
    _unmade: Any

    @property
    def write_count(self) -> int:
        """Records written so far."""
        return getattr(self._writer, "write_count", 0)

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Draw one batch, or ``(batch, info)``.

        Raises UsageError without a batch size, SamplingError when the batch cannot be drawn.
        """
        size = self._size(batch_size)
        if type(self)._sample is not SamplingMixin._sample or "_sample" in self.__dict__:
            found = self._sample(size)
            if self._info_in_batch and isinstance(found[0], TensorDictBase):
                _put_in(*found)
            return found if return_info else found[0]
        batch, info = self._next_batch(size, size == self.batch_size)
        return (batch, info()) if return_info else batch

    def _sample(self, batch_size: int) -> tuple[Any, dict[Any, Any]]:
        """What `sample` calls where a subclass overrides it, as TorchRL's does: a batch, and what the sampler says of it."""
        batch, info = self._next_batch(batch_size, batch_size == self.batch_size)
        return batch, info()

    def _next_batch(self, size: int, ahead: bool) -> tuple[Any, Info]:
        """A batch, and what makes its info; ``ahead``: further batches of this size may be prefetched."""
        if self._storage.may_grow:
            self._grow_if_due()
        while True:
            with suppress(RetiredError):
                batch, info, _thread.ran_out = self._pipeline.sample(size, ahead)
                return batch, info

    @property
    def _runs_own_code(self) -> bool:
        """Whether a batch may lie in memory of the user's code, which uses it again for the next one."""
        return self._pipeline.runs_own_code or is_own_code(self)

    @property
    def _ran_out(self) -> bool:
        """Whether the batch that this thread sampled last ended a pass."""
        return getattr(_thread, "ran_out", False)

    def can_sample(self, batch_size: int | None = None) -> bool:
        """Whether `sample` of this size would give a batch."""
        size = self._size(batch_size)
        with self._lock:
            return self._pipeline.order.can_draw(size)

    def sample_at(self, index: Any) -> Any:
        """The batch that `sample` would give for these records: frame stacks, n-step returns, windows, transforms.

        ``index`` is what batches have under ``index``: an int, a sequence or a tensor ``[n]``, for storages of more dimensions
        ``[n, ndim]`` or a tuple of tensors. Nothing is drawn: the order of batches goes on as if this had not been
        called, weights of the sampler are left out, and `HERReplayBuffer` does not replace goals. Raises SamplingError for
        rows that are not there.
        """
        given = [index] if isinstance(index, int) else index
        with self._lock:
            return self._pipeline.at(self._storage.flat(given))

    def _size(self, batch_size: int | None) -> int:
        if batch_size is None:
            if self.batch_size is None:
                message = "no batch size"
                raise UsageError(message, hint="give batch_size to the buffer (or to load()), or to sample()")
            return self.batch_size
        size = check_batch_size(batch_size)
        if self.batch_size is not None and size != self.batch_size and not self._warned:
            self._warned = True
            warnings.warn(
                f"sample({size}) on a buffer with batch_size={self.batch_size}: the argument wins", stacklevel=3
            )
        return size

    def __iter__(self) -> Iterator[Any]:
        """Batches for ever, or one pass where the sampler has passes."""
        if self.batch_size is None:
            raise UsageError("iteration needs the batch_size given to the buffer (or to load())")
        if is_overridden(self._sampler, "ran_out") and self._sampler.ran_out:
            self._sampler.ran_out = False  # as TorchRL does: a user's sampler may wait for it
        restarts = None
        while True:
            batch = self.sample()
            if restarts is not None:
                self._warn_of_restart(restarts)
            restarts = self._restarts
            yield batch
            if self._ran_out and not self._sampler.endless:
                return

    @property
    def _restarts(self) -> int:
        return getattr(getattr(self._sampler, "passes", None), "restarts", 0)

    def _warn_of_restart(self, before: int) -> None:
        if self._restarts > before and not self._warned_of_restart:
            self._warned_of_restart = True
            message = (
                "a write during an iteration without replacement has started the pass again, from its first batch: "
            )
            warnings.warn(
                message + "write after the loop, or sample with replacement", PassRestartedWarning, stacklevel=3
            )

    def __next__(self) -> Any:
        return self.next()

    def next(self) -> Any:
        """The next batch of an iteration that goes on by itself; None after the last of a pass."""
        if self._pass_ended:
            self._pass_ended = False
            return None
        restarts = self._restarts
        batch = self.sample()
        self._warn_of_restart(restarts)
        self._pass_ended = self._ran_out and not self._sampler.endless
        return batch

    @property
    def dataset(self) -> Dataset:
        """The dataset below, where there is one."""
        if not isinstance(self._storage, DatasetStorage):
            raise UsageError(f"the buffer stands on a {type(self._storage).__name__}, not on a dataset")
        return self._storage.source

    # -- datasets that are being written -----------------------------------------------------------------------------

    def refresh(self, wait: float = 0.0) -> bool:
        """Sample from what was finished since of a dataset that is being written; returns whether that is more than before.

        A pass without replacement goes on with what was there when it began: what is new comes with the next pass. ``wait``
        and errors as in `PartialDataset.refresh`. Where less than a whole dataset is shown, since the state of a buffer was
        loaded that had seen no more, all of it is.
        """
        dataset = self.dataset
        if isinstance(dataset, PartialDataset):
            dataset.refresh(wait)
        return self._show(len(dataset))

    def _grow_if_due(self) -> None:
        storage = self._storage
        assert isinstance(storage, DatasetStorage)
        with self._lock:
            batches = self._pipeline.state().batches
        steps = storage.due(batches)
        if steps is not None:
            self._show(steps)

    def _show(self, steps: int) -> bool:
        storage = self._storage
        if not isinstance(storage, DatasetStorage) or steps <= len(storage):
            return False
        with self._exclusive():
            passes = getattr(self._sampler, "passes", None)
            if passes is not None and passes.position()[2]:
                storage.show_later()
                return False
            storage.show(steps, self._pipeline.state().batches)
        return True

    # -- looking at it -----------------------------------------------------------------------------------------------

    def query(self, predicate: Callable[[Any], Any] | None = None, *, trajectory_key: Any = None) -> Any:
        """The stored trajectories for which a predicate holds, as `Trajectory`, oldest first: ``query(traj.length > 9)``.

        ``predicate`` is made with `traj`, or any function of a `Trajectory`. Trajectories are told apart by
        ``trajectory_key``, the usual ids, end-of-episode flags, or a dataset's episode table. Those of memory are views
        where nothing transforms them; those of a dataset are read when they are taken out of the sequence returned.
        Raises UnknownKeyError where edges or keys are missing, ArgumentTypeError for records that are no TensorDicts.
        """
        from .trajectory_query import query_trajectories

        with self._lock:
            return query_trajectories(self._storage, self._transforms, predicate, trajectory_key)

    def __len__(self) -> int:
        with self._lock:
            return self._sampler.live(self._storage)

    def stats(self) -> dict[str, int | float | bool]:
        """Counts for monitoring: ``size``, ``write_count``, ``capacity`` (records), ``utilization`` (size / capacity),
        ``prefetch_queue_size`` (batches) and ``initialized``."""
        made = self._unmade is None
        counts = (len(self), self.write_count, self._pipeline.queued) if made else (0, 0, 0)
        stats: dict[str, int | float | bool] = dict(zip(("size", "write_count", "prefetch_queue_size"), counts))
        stats["initialized"] = made
        if isinstance(
            capacity := getattr(self._unmade.storage if self._unmade else self._storage, "max_size", None), int
        ):
            stats.update(capacity=capacity, utilization=stats["size"] / capacity)
        return stats

    def read_all_in_order(self, end: int | None = None) -> Any:
        """``self[:end]``: the records by row."""
        return self[:end]

    def __getitem__(self, index: Any) -> Any:
        """Records by number or slice (through the transforms), or one column by key.

        They are single records: ``n_step``, ``frame_stack`` and ``sample_unit`` apply to `sample` and `sample_at`.
        """
        if is_key(index):
            by_leaf = (
                type(self._storage) is DatasetStorage and not len(self._transforms) and not reads_by_get(self._storage)
            )
            whole = self._storage.dataset if by_leaf else self[:]  # type: ignore[attr-defined]
            return read_column(self._storage, whole, index)
        with self._lock:
            data = self._storage.read_whole(partial(read_records, self._storage, index, self._swapped_dim))
        if isinstance(self._storage, ListStorage) and isinstance(data, list):
            data = (self._spec.collate or stack_records)(data)
        if not len(self._transforms):
            return data
        # A record of a list and what lies in a file are the storage's own: transforms set keys in a copy of the outer level.
        data = self._transforms(data.copy() if is_tensor_collection(data) else data)
        # A data loader collects records one by one before it makes a batch of them.
        return copy_of(data) if isinstance(index, int) and self._transforms.are_own_code else data


def _put_in(batch: TensorDictBase, info: dict[Any, Any]) -> None:
    """Set what a user's ``_sample`` says of a batch in it, as TorchRL does."""
    for key, value in info.items():
        values = torch.stack(value, -1) if isinstance(value, tuple) else torch.as_tensor(value, device=batch.device)
        batch.set(key, expand_as_right(values, batch) if values.ndim < batch.ndim else values)
