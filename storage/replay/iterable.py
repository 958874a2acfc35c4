"""A buffer as a dataset of PyTorch's data loaders.

    loader = buffer.as_iterable().loader(num_workers=4)      batches as the buffer's sampler draws them
    loader = DataLoader(buffer.as_map(), batch_size=256)     records by number, in the loader's order
    loader = DataLoader(buffer, batch_size=256)              ``buffer[i]`` of each: slower, and of single steps only

Each worker process has a copy of the buffer, not of the data: files are mapped again, shared memory is shared. Without
replacement the workers divide each pass, so that together they return every step once; with replacement each worker draws its
own numbers from the buffer's seed. Every iterator of a loader gives a new pass (or new numbers), which the buffer's seed
determines: workers end with their iterator, so the buffer counts the iterators of its loaders (persistent workers begin each as
new ones would). Its states hold the count, and the number of batches that the iterator under way has returned: a run that is
resumed with the same number of workers continues there; with another number it begins the next pass, and warns. A
``DataLoader`` not made by ``loader`` does not count: its batches also depend on the seed that it draws for its workers. Give it
``batch_size=None, collate_fn=lambda batch: batch``: torch would otherwise put each batch into a batch of 1, or without a batch
size treat a TensorDict as a dictionary.

A user's sampler is copied to each worker unchanged. If it draws from ``self._rng`` or torch's global generator, each worker
draws different records; with a counter of its own all draw the same, unless it uses ``self.share`` (rank, number of workers).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from tensordict import TensorDictBase
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from ...errors import PassRestartedWarning, UsageError
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
        #: Batches of the current iterator, of all workers, that were returned before the run was resumed.
        self.returned = 0
        self._begun = 0  # iterators of this worker

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        skipped = 0
        if worker is not None:
            # A loader that does not count draws a seed from torch's generator for every iterator, the same for all its workers.
            epoch = 1 + (worker.seed - worker.id) % (1 << 48) if self.epoch is None else self.epoch
            # A loader takes the batches of its workers in turn, from the first one on: after a resumption that is the worker
            # whose turn it was.
            returned = 0 if self._begun else self.returned
            number = (worker.id + returned) % worker.num_workers
            skipped = len(range(number, returned, worker.num_workers))
            if not self._begun:
                self.buffer.split(number, worker.num_workers, epoch)
            else:  # with persistent_workers
                self.buffer._split_again(number, worker.num_workers, epoch + self._begun)
            self._begun += 1
        # A worker sends batches in another thread, while the user's functions make the next one.
        copied = worker is not None and getattr(self.buffer, "_runs_own_code", True)
        for count, batch in enumerate(self.buffer, 1):
            if count > skipped:
                yield copy_of(batch) if copied else batch
            if count == self.batches:
                return

    def loader(self, num_workers: int = 0, **options: Any) -> DataLoader:
        """A ``DataLoader`` over this dataset; it returns the batches unchanged."""
        return ReplayLoader(self, batch_size=None, collate_fn=identity, num_workers=num_workers, **options)


@dataclass
class LoaderPlace:
    """Where the newest iterator of a buffer's loaders is, that has ``workers`` in each of ``world`` processes."""

    world: int
    workers: int
    #: Batches that it has returned in this process.
    returned: int = 0
    #: From a state: no iterator goes on from there yet.
    is_loaded: bool = False

    def state(self) -> list[int]:
        return [self.world, self.workers, self.returned]

    @classmethod
    def of(cls, state: Any) -> LoaderPlace | None:
        """From a result of ``state``; an empty one stands for none. Raises UsageError for anything else."""
        counts: list[Any] = list(state) if isinstance(state, (list, tuple)) else [None]
        if not counts:
            return None
        if len(counts) != 3 or any(type(count) is not int or not 0 <= count < 1 << 62 for count in counts):
            raise UsageError(f"{state!r} is not the place of a data loader")
        world, workers, returned = counts
        return cls(world, workers, returned, is_loaded=True)


class ReplayLoader(DataLoader):
    """A loader of a `ReplayIterable` that tells its workers the number of earlier iterators, and counts its batches."""

    dataset: ReplayIterable

    def __iter__(self) -> Any:
        # Counted by the buffer, also in its states: a loader may be made for every epoch, and a run may be resumed.
        buffer: Any = self.dataset.buffer
        resumed, place = buffer._loader_place, LoaderPlace(buffer._world, self.num_workers)
        if resumed is not None and resumed.is_loaded:
            if (resumed.world, resumed.workers) == (place.world, place.workers):
                buffer._loader_epochs -= 1  # the same iterator once more
                place.returned = resumed.returned
            else:
                message = (
                    f"the state is from the middle of a pass of a loader with {resumed.workers} workers in each of "
                    f"{resumed.world} processes, which another division cannot go on with: the rest of that pass is left "
                    "out, and the next one begins"
                )
                warnings.warn(message, PassRestartedWarning, stacklevel=2)
        self.dataset.epoch, self.dataset.returned = buffer._loader_epochs, place.returned
        buffer._loader_epochs += 1
        # Without workers the buffer itself goes through the pass. Workers whose batches come in any order cannot be told
        # which of them were returned.
        buffer._loader_place = place if self.num_workers and getattr(self, "in_order", True) else None
        iterator = super().__iter__()
        return iterator if buffer._loader_place is None else self._counted(iterator, place)

    def _counted(self, batches: Iterator[Any], place: LoaderPlace) -> Iterator[Any]:
        before, buffer = place.returned, self.dataset.buffer
        try:
            for batch in batches:
                place.returned += 1
                yield batch
        finally:  # at its end, and where the loop over it is left
            if buffer._loader_place is place:
                buffer._loader_place = None
        if before and place.returned == before:  # the state was that after the last batch
            yield from self


class ReplayMap(Dataset):
    """The records of a buffer by number, through its transforms; a batch of a loader is read at once.

    Frame stacks, n-step returns and windows apply as in batches of the buffer (`ReplayBuffer.sample_at`).

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
        is_record = is_one
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
