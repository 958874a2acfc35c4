"""A buffer as a dataset of PyTorch's data loaders.

    loader = buffer.as_iterable().loader(num_workers=4)      batches as the buffer's sampler draws them
    loader = DataLoader(buffer.as_map(), batch_size=256)     records by number, in the loader's order

Each worker process has a copy of the buffer, not of the data: files are mapped again, shared memory is shared. Worker w of W
makes the batches whose number is w more than a multiple of W, so that a loader returns the batches of the buffer, in order,
whatever the number of workers:

    batches       0 1 2 3 4 5 ...       worker 0 of 2 makes 0 2 4, worker 1 makes 1 3 5

The parent counts the batches that were returned: that is the place of its own order, in its states too, and where the next
iterator begins, or a run that is resumed. An iterator that is left inside a pass does not continue: the next one begins the
next pass. A ``DataLoader`` not made by ``loader`` does not count: each of its iterators draws from a seed of its own. Give it
``batch_size=None, collate_fn=lambda batch: batch``: torch would otherwise put each batch into a batch of 1, or without a batch
size treat a TensorDict as a dictionary.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import Any

import torch
from tensordict import TensorDictBase
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from ...errors import UsageError
from ..row_index import row_index
from .order import Order, OrderPlace, hashed
from .output import record
from .storages.trees import tree_copied


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
        #: Where the iterator under way begins, for its workers: an `OrderPlace`, and how many batches came before; -1: unknown.
        self.start = torch.tensor([-1, 0, 0, 0, 0, 0], device="cpu").share_memory_()

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if worker is None:
            return self._here()
        return self._of_worker(worker.id, worker.num_workers, worker.seed - worker.id)

    def _here(self) -> Iterator[Any]:
        returned = max(0, int(self.start[5]))
        for count, batch in enumerate(self.buffer, 1 + returned):
            yield batch
            if count == self.batches:
                return

    def _of_worker(self, number: int, workers: int, seed: int) -> Iterator[Any]:
        """Every ``workers``-th batch, from ``number`` on."""
        # A forked worker ends without Python's own end, in which a spawned one that still sends batches is aborted.
        atexit.register(os._exit, 0)
        *place, returned = self.start.tolist()
        now: Order = self.buffer._batches.order
        # `ReplayLoader` makes the form itself: tensors go through shared memory, and JAX is no guest of worker processes.
        output = self.buffer._batches.options.output if place[0] < 0 else None
        if place[0] < 0:  # a loader of the user's, which draws a seed for every iterator
            order = Order(hashed(now.seed, seed), now.rank, now.world)
        else:
            order = Order(now.seed, now.rank, now.world, OrderPlace.of([*place[:4], bool(place[4])]))
        if order.skip(number, self.buffer._one_pass()):
            return
        order.stride = workers
        self.buffer._begin_worker(order)
        left = None if self.batches is None else len(range(number, self.batches * workers - returned, workers))
        # A worker sends batches in another thread, while the user's functions make the next one.
        copied = self.buffer._runs_own_code
        while left is None or left > 0:
            batch = self.buffer.sample()
            batch = tree_copied(batch) if copied else batch
            yield batch if output is None else output.on_host(batch)
            if self.buffer._ran_out:
                return
            left = None if left is None else left - 1

    def loader(self, num_workers: int = 0, **options: Any) -> DataLoader:
        """Return a ``DataLoader`` over this dataset; it returns the batches unchanged.

        Where JAX is in use, workers are started anew (``multiprocessing_context="spawn"``): its threads do not survive a fork.
        """
        if num_workers and "jax" in sys.modules:
            options.setdefault("multiprocessing_context", "spawn")
        return ReplayLoader(self, batch_size=None, collate_fn=identity, num_workers=num_workers, **options)


class ReplayLoader(DataLoader):
    """A loader of a `ReplayIterable` that tells its workers where to begin, and counts its batches."""

    dataset: ReplayIterable

    def __iter__(self) -> Any:
        # The buffer counts, also in its states: a loader may be made for every epoch, and a run may be resumed.
        dataset, buffer = self.dataset, self.dataset.buffer
        limit = None if dataset.batches is None else dataset.batches * max(1, self.num_workers)
        if limit is not None and buffer._returned >= limit:  # the state was that after the last batch
            buffer._returned = 0
        dataset.start[:] = torch.tensor([*map(int, buffer._batches.order.place), buffer._returned], device="cpu")
        return self._counted(super().__iter__(), buffer)

    def _counted(self, batches: Iterator[Any], buffer: Any) -> Iterator[Any]:
        order: Order = buffer._batches.order
        output = buffer._batches.options.output if self.num_workers else None
        ended = False
        try:
            for batch in batches:
                buffer._returned += 1
                if self.num_workers:
                    ended = order.skip(1, buffer._one_pass())
                else:
                    ended = buffer._ran_out
                yield batch if output is None else output(batch)
        finally:  # at its end, and where the loop over it is left
            buffer._returned = 0
            if not ended:
                order.begin_pass()


class ReplayMap(Dataset):
    """The records of a buffer by number, through its transforms; a batch of a loader is read at once.

    Frame stacks, n-step returns and windows apply as in batches of the buffer (`ReplayBuffer.sample_at`). With ``output`` of
    `load` a record is a dictionary, of NumPy arrays for JAX as well, and ``__getitems__`` gives a list of them, which a
    loader's ``collate_fn`` (torch's own makes tensors) or grain's ``batch`` stacks.

    Raises UsageError for storages of several dimensions, whose records have no single number, and for buffers that draw goals
    with their batches.
    """

    def __init__(self, buffer: Any) -> None:
        if buffer.storage.ndim > 1:
            message = f"records of a storage of {buffer.storage.ndim} dimensions have no single number"
            raise UsageError(message, hint="buffer.as_iterable().loader() gives batches of its sampler")
        if buffer._batches.options.goals is not None:
            message = "goals are drawn with the batches of a buffer: records by number have none"
            raise UsageError(message, hint="buffer.as_iterable().loader() gives batches of its sampler")
        self.buffer, self._output = buffer, buffer._batches.options.output

    def __len__(self) -> int:
        return len(self.buffer.storage)

    def __getitem__(self, number: Any) -> Any:
        found = self._own(self._read(number))
        return found if self._output is None else self._output.on_host(found)

    def _read(self, number: Any) -> Any:
        if not self.buffer._batches.options.around.names:
            return self.buffer[number]
        if isinstance(number, Integral):
            return self.buffer._at(row_index(int(number), len(self), "record"), formed=False)[0]
        return self.buffer._at(number, formed=False)

    def __getitems__(self, numbers: Sequence[int]) -> Any:
        """The records of a batch, ``[N, ...]``; a list of dictionaries with ``output`` of `load`."""
        found = self[torch.as_tensor(numbers, device="cpu")]
        return found if self._output is None else [record(found, place) for place in range(len(numbers))]

    _getitems = __getitems__  # grain's name for it

    def _own(self, records: Any) -> Any:
        """A copy of records that the user's code made: it may reuse their memory before they are collated or sent."""
        return tree_copied(records) if self.buffer._runs_own_code else records


def identity(batch: Any) -> Any:
    """Return a ``collate_fn`` that changes nothing."""
    return batch


# PyTorch's hook to collate a type that it does not know; batches of `ReplayMap` are complete.
default_collate_fn_map.setdefault(
    TensorDictBase, lambda batch, **_: batch if isinstance(batch, TensorDictBase) else torch.stack(batch)
)
