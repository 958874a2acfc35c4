"""A buffer as a dataset of PyTorch's data loaders.

    loader = buffer.as_iterable().loader(num_workers=4)

Each worker process has its own copy of the buffer, not of the data: files are mapped again, shared memory is shared.
Without replacement the workers share the passes out among each other, so that together they give every step once;
with replacement each draws its own numbers from the buffer's seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ...errors import UsageError
from .buffer import ReplayBuffer


class ReplayIterable(IterableDataset):
    """The batches of a buffer: so many (``batches``), one pass, or endless ones; per worker where there are several."""

    def __init__(self, buffer: ReplayBuffer, batches: int | None = None) -> None:
        if buffer.batch_size is None:
            raise UsageError("a data loader needs the batch_size given to the buffer (or to load())")
        if batches is not None and batches < 1:
            raise UsageError(f"batches must be at least 1, not {batches}")
        self.buffer, self.batches = buffer, batches
        self._split = False

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if worker is not None and not self._split:
            self.buffer.split(worker.id, worker.num_workers)
            self._split = True
        for number, batch in enumerate(self.buffer, 1):
            yield batch
            if number == self.batches:
                return

    def loader(self, num_workers: int = 0, **options: Any) -> DataLoader:
        """A ``DataLoader`` over this: batches are made here, and handed on as they are (its own collation takes apart)."""
        return DataLoader(self, batch_size=None, collate_fn=as_it_is, num_workers=num_workers, **options)


def as_it_is(batch: Any) -> Any:
    """A ``collate_fn`` that changes nothing."""
    return batch
