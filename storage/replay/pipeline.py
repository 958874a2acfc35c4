"""How a batch comes about: drawn, read, finished; in order, and ahead of time where that was asked for.

    draw       which steps, in the caller's thread                       `stream`
    read       small leaves of several batches, then the large ones      `batches`
    finish     transforms, pinned memory, device

Without prefetching all of it happens in `sample`; with it, reading and finishing happen in threads (`prefetch`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tensordict import TensorDictBase

from .batch_order import BatchOrder, DrawnBatch, OrderState
from .devices import record_stream, to_device
from .prefetch import Prefetcher
from .samplers.uniform import Sampler
from .storages.list_storage import ListStorage
from .storages.storage import Storage
from .storages.trees import stack_records
from .transforms.chain import Transforms
from .windows.batches import BatchReader, Prepared
from .windows.draw import Draw
from .windows.edges import Edges, as_key
from .windows.n_step_return import NStep
from .windows.slice_flags import slice_flags

Info = Callable[[], dict[Any, Any]]


@dataclass(frozen=True)
class BatchSpec:
    """What batches are to be: windows (see `batches`), and what is done with them when they are read.

    ``info_in_batch`` puts what the sampler knows into the batch; ``depth`` batches are prefetched.
    """

    frame_stack: int | None = None
    stack_keys: tuple[str, ...] | None = None
    n_step: NStep | None = None
    edges: Edges | None = None
    info_in_batch: bool = False
    collate: Callable[[Any], Any] | None = None
    depth: int = 0
    device: torch.device | None = None
    pin: bool = False


class Pipeline:
    """Batches of one sampler over one storage. ``lock`` is held by whoever writes to the storage."""

    def __init__(
        self,
        storage: Storage,
        sampler: Sampler,
        generator: torch.Generator,
        transforms: Transforms,
        spec: BatchSpec,
        lock: threading.RLock,
    ) -> None:
        self.storage, self.spec, self.transforms = storage, spec, transforms
        self.order = BatchOrder(sampler, storage, generator)
        self.order.keep_states = sampler.ahead or spec.depth > 0
        sampler._rng = generator
        self._lock = lock
        self._queue: Prefetcher[DrawnBatch] | None = None
        self._known: tuple[Any, BatchReader | None] | None = None
        self._pid = os.getpid()

    def sample(self, size: int, ahead: bool) -> tuple[Any, Info, bool]:
        """A batch, what makes its info, and whether it ends a pass; ``ahead``: it may have been prefetched."""
        if self._pid != os.getpid():
            self._after_fork()
        if self.spec.depth and ahead:
            batch, info, ran_out = self._prefetched(size)
        else:
            with self._lock:
                if self._queue is not None and len(self._queue):
                    self.rewind()
                drawn = self._take(size)
                read = self._read_batch(drawn.prepared)
            batch, info = self._finish(drawn.prepared, read)
            ran_out = drawn.ran_out
        return record_stream(batch, self.spec.device), info, ran_out

    # -- drawing -----------------------------------------------------------------------------------------------------

    def _take(self, size: int) -> DrawnBatch:
        reader = self._reader()
        if reader is None:
            return self.order.take(size, lambda draws: [_unread(draw) for draw in draws], 1)
        return self.order.take(size, reader.prepare, reader.ahead(size))

    def _reader(self) -> BatchReader | None:
        """What reads leaf by leaf; None where records can only be had whole."""
        if self._known is not None and (self.storage.immutable or self._known[0] is self.storage.fields()):
            return self._known[1]
        fields, spec, reader = self.storage.fields(), self.spec, None
        windows = spec.frame_stack is not None or spec.n_step is not None
        # Whoever collates the records of a storage themselves gets them as the storage has them.
        if windows or (fields is not None and (spec.collate is None or self.storage.immutable)):
            reader = BatchReader(
                self.storage,
                frame_stack=spec.frame_stack,
                stack_keys=spec.stack_keys,
                n_step=spec.n_step,
                with_info=spec.info_in_batch,
                edges=spec.edges,
            )
        self._known = (fields, reader)
        return reader

    # -- reading and finishing ---------------------------------------------------------------------------------------

    def read(self, prepared: Prepared) -> Any:
        """Read what is drawn, beside other threads; not while somebody writes."""
        if self.storage.immutable:
            return self._read_batch(prepared)
        with self._lock:
            return self._read_batch(prepared)

    def _read_batch(self, prepared: Prepared) -> Any:
        reader, storage, collate = self._reader(), self.storage, self.spec.collate
        if reader is not None:
            batch: Any = reader.complete(prepared)
        else:
            batch = storage.get(storage.coordinates(prepared.index))
            if collate is None and isinstance(storage, ListStorage):
                batch = stack_records(batch)
        if collate is not None:
            batch = collate(batch)
        if self.spec.info_in_batch and isinstance(batch, TensorDictBase):
            self._put_in(batch, prepared, read_whole=reader is None)
        return batch

    def _put_in(self, batch: TensorDictBase, prepared: Prepared, *, read_whole: bool) -> None:
        """What a reader has not put into the batch already."""
        if self.storage.ndim > 1:
            batch.set("index", torch.stack(torch.unravel_index(prepared.index, self.storage.shape), -1))
        if not read_whole:
            return
        if self.storage.ndim == 1:
            batch.set("index", prepared.index)
        flags = slice_flags(prepared.draw, lambda key: batch.get(_key(key), None))
        for name, value in (*prepared.draw.info.items(), *((_key(key), value) for key, value in flags.items())):
            batch.set(name, value)

    def _finish(self, prepared: Prepared, batch: Any) -> tuple[Any, Info]:
        columns: dict[str, torch.Tensor] = prepared.columns
        if prepared.draw.marks is not None and not columns and isinstance(batch, TensorDictBase):
            tensors = {key: value for key, value in batch.items(True, True) if isinstance(value, torch.Tensor)}
            columns = {"/".join(as_key(key)): value for key, value in tensors.items()}
        if len(self.transforms):
            batch = self.transforms(batch)
        if self.spec.pin or self.spec.device is not None:
            batch = to_device(batch, self.spec.device, self.spec.pin)
        return batch, partial(_info, self.storage, prepared, columns)

    # -- ahead of time -----------------------------------------------------------------------------------------------

    def _prefetched(self, size: int) -> tuple[Any, Info, bool]:
        with self._lock:
            if self._queue is None:
                self._queue = Prefetcher(self.spec.depth)
            queue = self._queue
            if not len(queue):
                self._submit(queue, size)
        drawn, (batch, info) = queue.next()
        with self._lock:
            # One pass at a time: what comes after its end is the next iteration's.
            last = queue.last if len(queue) else drawn
            while len(queue) < self.spec.depth and (self.order.sampler.endless or not last.ran_out):
                last = self._submit(queue, size)
        return batch, info, drawn.ran_out

    def _submit(self, queue: Prefetcher[DrawnBatch], size: int) -> DrawnBatch:
        drawn = self._take(size)
        queue.submit(drawn, partial(self.read, drawn.prepared), partial(self._finish, drawn.prepared))
        return drawn

    def state(self) -> OrderState:
        """Where the order stands for the caller."""
        if self._queue is not None and len(self._queue):
            return self._queue.first.state_before
        return self.order.state()

    def go_to(self, state: OrderState) -> None:
        """Go on from a place in the order."""
        self.drop()
        self.order.go_to(state)

    def rewind(self) -> None:
        """Take back all that was drawn ahead."""
        if self._queue is not None and len(self._queue):
            self.go_to(self._queue.first.state_before)
        self.order.rewind()

    def drop(self) -> None:
        """Throw away what is on its way."""
        if self._queue is not None:
            self._queue.clear()

    def close(self) -> None:
        """Take back what was drawn ahead, and stop the threads."""
        self.rewind()
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.close()

    def _after_fork(self) -> None:
        """A child has the queue of its parent, but not the threads (nor the one that may have held the lock)."""
        self._pid, self._lock = os.getpid(), threading.RLock()
        queue, self._queue = self._queue, None
        if queue is not None and len(queue):
            self.order.go_to(queue.first.state_before)


def _unread(draw: Draw) -> Prepared:
    places = draw.indices()
    return Prepared(draw, places if draw.timeline is None else draw.timeline.rows(places), None, None, {})


def _key(key: tuple[str, ...]) -> Any:
    return key if len(key) > 1 else key[0]


def _info(storage: Storage, prepared: Prepared, columns: dict[str, torch.Tensor]) -> dict[Any, Any]:
    """The info dictionary of a batch."""
    info: dict[Any, Any] = {"index": storage.coordinates(prepared.index), **prepared.draw.info}

    def copied(key: tuple[str, ...]) -> torch.Tensor | None:
        column = columns.get("/".join(key))
        return None if column is None else column.clone()

    info.update({_key(key): value for key, value in slice_flags(prepared.draw, copied).items()})
    return info
