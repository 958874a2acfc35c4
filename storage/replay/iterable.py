"""A buffer as a dataset of PyTorch's data loaders.

    loader = buffer.as_iterable().loader(num_workers=4)      batches as the buffer's sampler draws them
    loader = DataLoader(buffer.as_map(), batch_size=256)     records by number, in the loader's order
    loader = DataLoader(buffer, batch_size=256)              ``buffer[i]`` of each: slower, and single steps as stored

Each worker process has a copy of the buffer, not of the data: files are mapped again, shared memory is shared.
Without replacement the workers divide each pass, so that together they return every step once; with replacement each worker
draws its own numbers from the buffer's seed. Every iterator of a loader gives a new pass (or new numbers), which the buffer's
seed determines: workers end with their iterator, so the buffer counts the iterators of its loaders. Its states hold the count,
so a resumed run continues with the next pass. A ``DataLoader`` not made by ``loader`` does not count: its batches also
depend on the seed that it draws for its workers. Give it ``batch_size=None, collate_fn=lambda batch: batch``: torch would
otherwise put each batch into a batch of 1, or without a batch size treat a TensorDict as a dictionary.

A user's sampler is copied to each worker unchanged. If it draws from ``self._rng`` or torch's global generator, each worker
draws different records; with a counter of its own all draw the same, unless it uses ``self.share`` (rank, number of workers).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import Any

import torch
from tensordict import TensorDictBase
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from ...errors import UsageError
from ..row_index import row_index
from .overrides import is_overridden
from .storages.trees import copy_of


class ReplayIterable(IterableDataset):
    """The batches of a buffer: ``batches`` of them per worker, or one pass, or endless without passes.

    Raises UsageError for a buffer without a batch size.
    """

    def __init__(self, buffer: Any, batches: int | None = None) -> None:
        if buffer.batch_size is None:
            raise UsageError("a data loader needs the batch_size given to the buffer (or to load())")
        if batches is not None and batches < 1:
            raise UsageError(f"batches must be at least 1, not {batches}")
        self.buffer, self.batches = buffer, batches
        #: Number of iterators that loaders began before the current one; None while no `ReplayLoader` counts them.
        self.epoch: int | None = None
        self._split = False

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if worker is not None and not self._split:
            # A loader that does not count draws a seed from torch's generator for every iterator, the same for all its workers.
            epoch = 1 + (worker.seed - worker.id) % (1 << 48) if self.epoch is None else self.epoch
            self.buffer.split(worker.id, worker.num_workers, epoch)
            self._split = True
        elif worker is not None:  # with persistent_workers, whose last iterator may have been left early
            self.buffer._leave_pass()
        # A worker sends batches in another thread, while the user's functions make the next one.
        copied = worker is not None and getattr(self.buffer, "_runs_own_code", True)
        for number, batch in enumerate(self.buffer, 1):
            yield copy_of(batch) if copied else batch
            if number == self.batches:
                return

    def loader(self, num_workers: int = 0, **options: Any) -> DataLoader:
        """A ``DataLoader`` over this dataset; it returns the batches unchanged."""
        return ReplayLoader(self, batch_size=None, collate_fn=identity, num_workers=num_workers, **options)


class ReplayLoader(DataLoader):
    """A loader of a `ReplayIterable` that tells its workers the number of earlier iterators."""

    dataset: ReplayIterable

    def __iter__(self) -> Any:
        # Counted by the buffer, also in its states: a loader may be made for every epoch, and a run may be resumed.
        buffer: Any = self.dataset.buffer
        self.dataset.epoch = buffer._loader_epochs
        buffer._loader_epochs += 1
        return super().__iter__()


class ReplayMap(Dataset):
    """The records of a buffer by number, through its transforms; a batch of a loader is read at once.

    Frame stacks, n-step returns, windows and sample units apply as in batches of the buffer (`ReplayBuffer.sample_at`).

    Raises UsageError for storages of several dimensions, whose records have no single number, and for buffers that draw goals
    with their batches.
    """

    def __init__(self, buffer: Any) -> None:
        if buffer.storage.ndim > 1:
            message = f"records of a storage of {buffer.storage.ndim} dimensions have no single number"
            raise UsageError(message, hint="buffer.as_iterable().loader() gives batches of its sampler")
        if buffer._spec.relabeling is not None:
            message = "goals are drawn with the batches of a buffer: records by number have none"
            raise UsageError(message, hint="buffer.as_iterable().loader() gives batches of its sampler")
        if buffer._spec.reads_windows and is_overridden(buffer, "__getitem__"):
            message = f"{type(buffer).__name__}.__getitem__() would not be called: buffer[i] has no windows"
            raise UsageError(message, hint="override sample_at(index), which gives them, instead")
        self.buffer = buffer

    def __len__(self) -> int:
        return len(self.buffer.storage)

    def __getitem__(self, number: Any) -> Any:
        if not self.buffer._spec.reads_windows:
            return self._own(self.buffer[number])
        is_one = isinstance(number, Integral)
        # `sample_at` takes no negative numbers.
        batch = self.buffer.sample_at(row_index(int(number), len(self), "record") if is_one else number)
        is_record = is_one and self.buffer._spec.expand is None  # a unit expands one record to several
        return self._own(batch[0] if is_record else batch)

    def __getitems__(self, numbers: Sequence[int]) -> Any:
        """The records of a batch, ``[N, ...]``."""
        return self[torch.as_tensor(numbers, device="cpu")]

    def _own(self, records: Any) -> Any:
        """A copy of records that the user's code made: it may reuse their memory before they are collated or sent."""
        return copy_of(records) if getattr(self.buffer, "_runs_own_code", True) else records


def identity(batch: Any) -> Any:
    """A ``collate_fn`` that changes nothing."""
    return batch


# PyTorch's hook to collate a type that ``DataLoader(buffer)`` does not know; batches of `ReplayMap` are complete.
default_collate_fn_map.setdefault(
    TensorDictBase, lambda batch, **_: batch if isinstance(batch, TensorDictBase) else torch.stack(batch)
)
