"""A buffer as a dataset of PyTorch's data loaders.

    loader = buffer.as_iterable().loader(num_workers=4)

Each worker process has a copy of the buffer, not of the data: files are mapped again, shared memory is shared.
Without replacement the workers divide each pass among them, so that together they give every step once;
with replacement each worker draws its own numbers from the buffer's seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ...errors import UsageError


class SplittableBuffer(Protocol):
    """What a data loader needs of a buffer."""

    batch_size: int | None

    def split(self, rank: int, world_size: int) -> None: ...

    def __iter__(self) -> Iterator[Any]: ...


class ReplayIterable(IterableDataset):
    """The batches of a buffer: ``batches`` of them per worker, or one pass, or endless without passes.

    Raises UsageError for a buffer without a batch size.
    """

    def __init__(self, buffer: SplittableBuffer, batches: int | None = None) -> None:
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
        """A ``DataLoader`` over this; batches pass unchanged, as they are complete already."""
        return DataLoader(self, batch_size=None, collate_fn=identity, num_workers=num_workers, **options)


def identity(batch: Any) -> Any:
    """A ``collate_fn`` that changes nothing."""
    return batch
