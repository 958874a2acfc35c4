"""The replay buffer: a storage, a sampler, a writer and transforms, put together.

extend(data) -> transforms (inverse) -> writer -> storage, and the sampler is told
sample()     -> sampler -> draw -> storage -> collate -> transforms -> device -> batch
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from tensordict import is_tensor_collection

from ...errors import UsageError
from ..dataset import Dataset
from .argument_checks import (
    check_batch_size,
    check_prefetch,
    check_seed,
    make_generator,
    rank_seed,
    resolve_sampler,
    resolve_storage,
    resolve_writer,
)
from .checkpoints.mixin import CheckpointMixin
from .pipeline import BatchSpec, Info, Pipeline, RetiredError
from .samplers.uniform import Sampler
from .storages.column_access import is_key, read_column, read_records, write_column, write_records
from .storages.dataset_storage import DatasetStorage
from .storages.list_storage import ListStorage
from .storages.storage import Storage
from .storages.trees import move_dim_first, stack_records
from .transforms.chain import Transforms
from .windows.edges import Edges, as_key
from .windows.n_step_return import NStep
from .writers.base import ImmutableDatasetWriter, Writer
from .writers.round_robin import RoundRobinWriter

Part = Any  # an instance, or a function without arguments that makes one


class ReplayBuffer(CheckpointMixin):
    """Writes records to a storage and samples batches from it.

    All arguments by keyword; those of ``torchrl.data.ReplayBuffer`` come first:

    - ``storage``, ``sampler``, ``writer``: instances, or functions that make them. ``storage`` may also be a `Dataset` or the
      path of one. Defaults: ``ListStorage(1000)``, `RandomSampler`, `RoundRobinWriter` (read-only over a dataset).
    - ``collate_fn``: makes a batch of what the storage returns; the default stacks the records of a list.
    - ``transform`` or ``transform_factory``: see `transforms`.
    - ``batch_size``: may be given to `sample` instead, but iteration and prefetching need it here.
    - ``prefetch``: how many batches are made ahead, in as many threads. ``pin_memory``, ``device``: where batches are put;
      with a CUDA device one batch is prefetched unless ``prefetch`` says otherwise, so that it is copied meanwhile.
    - ``dim_extend``: the dimension along which `extend` is given records, by default the last of the storage's.
    - ``generator`` or ``seed``: same seed, same batches. With neither, the seed comes from torch's global generator.
    - ``frame_stack``, ``stack_keys``, ``n_step``, ``gamma``: windows, see `batches` and `n_step`; they never cross an episode.
    - ``end_key``, ``traj_key``: where windows find the edges of episodes, if not under the usual keys (see `edges`).
    - ``rank``, ``world_size``: the part of this process in data-parallel training. Without replacement all processes walk
      the one order of ``seed`` and take every ``world_size``-th step; with replacement each draws on its own.

    `sample` of a plain buffer returns what was stored; what the sampler knows (``index``, flags, weights) comes with
    ``return_info=True``. `TensorDictReplayBuffer` puts it into the batch.
    """

    _info_in_batch = False

    def __init__(
        self,
        *,
        storage: Part = None,
        sampler: Part = None,
        writer: Part = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Any = None,
        transform_factory: Callable[[], Any] | None = None,
        batch_size: int | None = None,
        dim_extend: int | None = None,
        generator: torch.Generator | None = None,
        shared: bool = False,
        device: Any = None,
        seed: int | None = None,
        frame_stack: int | None = None,
        stack_keys: Sequence[str] | None = None,
        n_step: int | None = None,
        gamma: float = 0.99,
        end_key: Any = None,
        traj_key: Any = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if transform is not None and transform_factory is not None:
            raise UsageError("give transform or transform_factory, not both")
        if generator is not None and seed is not None:
            raise UsageError("give generator or seed, not both")
        if dim_extend is not None and dim_extend < 0:
            raise UsageError(f"dim_extend must not be negative, and is {dim_extend}")
        if frame_stack is not None and (not isinstance(frame_stack, int) or frame_stack < 1):
            raise UsageError(f"frame_stack must be at least 1, not {frame_stack!r}")
        if not 0 <= rank < world_size:
            raise UsageError(f"rank {rank} is not among {world_size} processes")
        self.batch_size = None if batch_size is None else check_batch_size(batch_size)
        self._make_lock()
        self._storage: Storage = resolve_storage(storage)
        self._sampler: Sampler = resolve_sampler(sampler)
        if self._sampler.drop_last and self.batch_size is None:
            raise UsageError("drop_last needs the batch_size given to the buffer")
        self._writer: Writer = resolve_writer(writer, self._default_writer)
        self._writer.register_storage(self._storage)
        if transform_factory is not None:
            transform = transform_factory()
        self._transforms = transform if isinstance(transform, Transforms) else Transforms()
        if transform is not None and not isinstance(transform, Transforms):
            self._transforms.append(transform)
        self._dim_extend = self._storage.ndim - 1 if dim_extend is None else dim_extend
        place = None if device is None else torch.device(device)
        if prefetch is None and place is not None and place.type == "cuda" and self._sampler.ahead and batch_size:
            prefetch = 1
        self._spec = BatchSpec(
            frame_stack,
            None if stack_keys is None else tuple(stack_keys),
            None if n_step is None else NStep(n_step, gamma),
            Edges(None if traj_key is None else as_key(traj_key), () if end_key is None else (as_key(end_key),)),
            self._info_in_batch,
            collate_fn,
            check_prefetch(prefetch, self.batch_size),
            place,
            pin_memory,
        )
        self._save_hooks: list[Any] = []
        self._load_hooks: list[Any] = []
        self._iterator: Iterator[Any] | None = None
        self._ran_out = self._warned = False
        if shared:
            self.share()
        self._rank, self._world = rank, world_size
        self._start_order(generator, None if seed is None else check_seed(seed))

    # -- parts -------------------------------------------------------------------------------------------------------

    def _default_writer(self) -> Writer:
        return ImmutableDatasetWriter() if self._storage.immutable else RoundRobinWriter()

    @property
    def storage(self) -> Storage:
        return self._storage

    @property
    def sampler(self) -> Sampler:
        return self._sampler

    @property
    def writer(self) -> Writer:
        return self._writer

    @property
    def transform(self) -> Transforms:
        return self._transforms

    @property
    def dataset(self) -> Dataset:
        """The dataset below, where there is one."""
        if not isinstance(self._storage, DatasetStorage):
            raise UsageError(f"the buffer stands on a {type(self._storage).__name__}, not on a dataset")
        return self._storage.dataset

    @property
    def dim_extend(self) -> int:
        return self._dim_extend

    @property
    def write_count(self) -> int:
        """Records written so far."""
        return getattr(self._writer, "write_count", 0)

    def set_storage(self, storage: Storage, collate_fn: Callable[[Any], Any] | None = None) -> Storage:
        """Put another storage in place; returns the one before."""
        with self._exclusive():
            before = self._storage
            if self._dim_extend == before.ndim - 1:
                self._dim_extend = storage.ndim - 1
            self._storage, self._spec = storage, replace(self._spec, collate=collate_fn)
            self._writer.register_storage(storage)
            self._make_pipeline(self._generator)
            return before

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Put another sampler in place; returns the one before."""
        with self._exclusive():
            before, self._sampler = self._sampler, sampler
            self._make_pipeline(self._generator)
            return before

    def set_writer(self, writer: Writer) -> Writer:
        """Put another writer in place; returns the one before."""
        with self._lock:
            before, self._writer = self._writer, writer
            writer.register_storage(self._storage)
            return before

    # -- seeds -------------------------------------------------------------------------------------------------------

    def set_seed(self, seed: int) -> None:
        """Start the sequence of batches that belongs to a seed."""
        seed = check_seed(seed)
        with self._exclusive():
            self._start_order(None, seed)

    def set_rng(self, generator: torch.Generator | None) -> None:
        """Draw from this generator from now on."""
        with self._exclusive():
            self._start_order(generator, None)

    def _start_order(self, generator: torch.Generator | None, seed: int | None) -> None:
        if self._world > 1 and seed is None and not self._sampler.endless:
            message = f"{self._world} processes that share one pass must shuffle alike"
            raise UsageError(message, hint="give all of them the same seed")
        if generator is None:
            own = int(torch.randint(1 << 62, ())) if seed is None else seed
            # In data-parallel training each process has its own numbers, and all of them the one order.
            generator = make_generator(rank_seed(own, self._rank) if self._world > 1 else own)
        passes = getattr(self._sampler, "passes", None)
        if passes is not None and seed is not None:
            passes.seed(seed)
        self._make_pipeline(generator)

    def _make_pipeline(self, generator: torch.Generator) -> None:
        """A pipeline of the parts there are now, in the place of the last one."""
        if hasattr(self, "_pipeline"):
            self._pipeline.retire()
        self._generator = generator
        self._sampler.share = (self._rank, self._world)
        self._pipeline = Pipeline(self._storage, self._sampler, generator, self._transforms, self._spec, self._lock)

    # -- writing -----------------------------------------------------------------------------------------------------

    def add(self, data: Any) -> Any:
        """Write one record; returns its row (an int; None where the writer does not keep it)."""
        if len(self._transforms):
            # Transforms are written for batches with a time dimension.
            nested = is_tensor_collection(data)
            data = self._transforms.inv(data.unsqueeze(-1) if nested else data)
            if data is None:
                return None
            data = data.squeeze(-1) if nested else data
        with self._writing():
            return self._notify_sampler(self._writer.add(data))

    def extend(self, data: Any) -> Any:
        """Write a batch of records; returns their rows, int64 ``[n]`` (``[n, ndim]`` for a storage of more dimensions).

        A list is a list of records, a tuple a tree of columns. More records than there is room for: the newest stay.
        Raises SchemaError for other keys, shapes or dtypes than those stored, ReadOnlyError where nothing can be written.
        """
        if len(self._transforms):
            data = self._transforms.inv(data)
        if data is None:
            return torch.zeros((0, self._storage.ndim), dtype=torch.int64)
        with self._writing():
            return self._notify_sampler(self._writer.extend(move_dim_first(data, self._dim_extend, self._storage.ndim)))

    def _notify_sampler(self, index: Any) -> Any:
        if index is not None:
            if self._storage.ndim > 1:
                self._sampler.reserve(self._storage.capacity * self._storage.width)
            self._sampler.extend(self._storage.flat([index] if isinstance(index, int) else index))
        return index

    def update_priority(self, index: Any, priority: Any) -> None:
        """Set priorities by row; nothing happens where the sampler has none."""
        update = getattr(self._sampler, "update_priority", None)
        if update is not None:
            self._check_process()
            with self._lock:
                update(index, priority, storage=self._storage)

    def mark_update(self, index: Any) -> None:
        """Give rows the priority of new records."""
        mark = getattr(self._sampler, "mark_update", None)
        if mark is not None:
            with self._lock:
                mark(index, storage=self._storage)

    def empty(self) -> None:
        """Forget all records. Raises ReadOnlyError over a dataset."""
        with self._exclusive():
            self._writer.empty()
            self._storage.empty()
            self._sampler.empty()

    # -- sampling ----------------------------------------------------------------------------------------------------

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Draw one batch, or ``(batch, info)``.

        Raises UsageError without a batch size, SamplingError when the batch cannot be drawn.
        """
        size = self._size(batch_size)
        batch, info = self._sample(size, size == self.batch_size)
        return (batch, info()) if return_info else batch

    def _sample(self, size: int, ahead: bool) -> tuple[Any, Info]:
        """A batch, and what makes its info; ``ahead``: further batches of this size may be prefetched."""
        while True:
            with suppress(RetiredError):
                batch, info, self._ran_out = self._pipeline.sample(size, ahead)
                return batch, info

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
        while True:
            yield self.sample()
            if self._ran_out and not self._sampler.endless:
                return

    def __next__(self) -> Any:
        return self.next()

    def next(self) -> Any:
        """The next batch of an iteration that goes on by itself; None after the last of a pass."""
        if self._iterator is None:
            self._iterator = iter(self)
        batch = next(self._iterator, None)
        if batch is None:
            self._iterator = None
        return batch

    # -- looking at it -----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._storage)

    @property
    def _swapped_dim(self) -> int:
        """Where `extend` is given the first dimension of the storage, if elsewhere than in front."""
        return self._dim_extend if self._storage.ndim > 1 else 0

    def __getitem__(self, index: Any) -> Any:
        """Records by number or slice (through the transforms), or one column by key."""
        if is_key(index):
            whole = self.dataset if isinstance(self._storage, DatasetStorage) and not len(self._transforms) else self[:]
            return read_column(self._storage, whole, index)
        with self._lock:
            data = read_records(self._storage, index, self._swapped_dim)
        if isinstance(self._storage, ListStorage) and isinstance(data, list):
            data = (self._spec.collate or stack_records)(data)
        return self._transforms(data) if len(self._transforms) else data

    def __setitem__(self, index: Any, value: Any) -> None:
        if is_key(index):
            with self._writing():
                write_column(self._storage, index, value, self._swapped_dim)
            return
        if len(self._transforms):
            value = self._transforms.inv(value)
        with self._writing():
            write_records(self._storage, index, value, self._swapped_dim)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(storage={self._storage!r}, sampler={self._sampler!r}, writer={self._writer!r}, "
            f"batch_size={self.batch_size})"
        )

    # -- transforms ----------------------------------------------------------------------------------------

    def append_transform(self, transform: Any, *, invert: bool = False) -> ReplayBuffer:
        """Add a transform at the end; returns the buffer."""
        with self._exclusive():
            self._transforms.append(transform, invert=invert)
        return self

    def insert_transform(self, index: int, transform: Any, *, invert: bool = False) -> ReplayBuffer:
        """Add a transform before the one at ``index``; returns the buffer."""
        with self._exclusive():
            self._transforms.insert(index, transform, invert=invert)
        return self
