"""The replay buffer: a storage, a sampler, a writer and transforms, put together.

extend(data) -> transforms (inverse) -> writer -> storage, and the sampler is told
sample()     -> sampler -> draw -> storage -> collate -> transforms -> device -> batch
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase, is_tensor_collection

from ...errors import SamplingError, SchemaError, UsageError
from ..dataset import Dataset
from .batches import BatchReader, Prepared
from .dataset_storage import DatasetStorage
from .devices import handed_over, to_device
from .draw import Draw
from .edges import Edges, as_key
from .flags import slice_flags
from .n_step import NStep
from .prefetch import Prefetcher
from .samplers import RandomSampler, Sampler
from .storages import ListStorage, Storage
from .stream import Mark, Pending, Stream
from .tensor_storage import stack
from .transforms import Transforms
from .writers import ImmutableDatasetWriter, RoundRobinWriter, Writer

Part = Any  # an instance, or a function without arguments that makes one


class ReplayBuffer:
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

    _in_batch = False

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
        self.batch_size = None if batch_size is None else _checked_size(batch_size)
        self._device = None if device is None else torch.device(device)
        self._pin = pin_memory
        self._lock = threading.RLock()
        self._storage: Storage = _storage(storage)
        self._sampler: Sampler = _made(sampler) or RandomSampler()
        if self._sampler.drop_last and self.batch_size is None:
            raise UsageError("drop_last needs the batch_size given to the buffer")
        self._writer: Writer = _made(writer) or self._default_writer()
        self._writer.register_storage(self._storage)
        self._collate = collate_fn
        if transform_factory is not None:
            transform = transform_factory()
        self._transforms = transform if isinstance(transform, Transforms) else Transforms()
        if transform is not None and not isinstance(transform, Transforms):
            self._transforms.append(transform)
        self._dim_extend = self._storage.ndim - 1 if dim_extend is None else dim_extend
        self._frame_stack, self._stack_keys = frame_stack, stack_keys
        self._n_step = None if n_step is None else NStep(n_step, gamma)
        self._edges = Edges(
            None if traj_key is None else as_key(traj_key), () if end_key is None else (as_key(end_key),)
        )
        self._reader_of: tuple[Any, BatchReader | None] | None = None
        self._save_hooks: list[Any] = []
        self._load_hooks: list[Any] = []
        if shared:
            self.share()
        if prefetch is None and self._device is not None and self._device.type == "cuda" and self._sampler.ahead:
            prefetch = 1 if batch_size is not None else None
        self._depth = _checked_depth(prefetch, self.batch_size)
        self._prefetcher: Prefetcher[Pending] | None = None
        self._iterator: Iterator[Any] | None = None
        self._pid = os.getpid()
        self._rank, self._world = rank, world_size
        self._begin(generator, seed)

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
        with self._lock:
            self._rewind()
            before, self._storage, self._collate = self._storage, storage, collate_fn
            self._writer.register_storage(storage)
            self._reader_of = None
            self._restart_stream()
            return before

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Put another sampler in place; returns the one before."""
        with self._lock:
            self._rewind()
            before, self._sampler = self._sampler, sampler
            self._restart_stream()
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
        with self._lock:
            self._drop_prefetched()
            self._begin(None, seed)

    def set_rng(self, generator: torch.Generator | None) -> None:
        """Draw from this generator from now on."""
        with self._lock:
            self._rewind()
            self._begin(generator, None)

    def _begin(self, generator: torch.Generator | None, seed: int | None) -> None:
        if self._world > 1 and seed is None and not self._sampler.endless:
            message = f"{self._world} processes that share one pass must shuffle alike"
            raise UsageError(message, hint="give all of them the same seed")
        if generator is None:
            generator = torch.Generator()
            own = int(torch.randint(1 << 62, ())) if seed is None else seed
            if self._world > 1:  # each process its own numbers, all of them the one order
                own = int(np.random.SeedSequence((own, self._rank)).generate_state(1, np.uint64)[0] >> np.uint64(1))
            generator.manual_seed(own)
        self._generator = generator
        self._sampler.share = (self._rank, self._world)
        passes = getattr(self._sampler, "passes", None)
        if passes is not None and seed is not None:
            passes.seed(seed)
        self._restart_stream()

    def _restart_stream(self) -> None:
        self._sampler._rng = self._generator
        self._stream = Stream(self._sampler, self._storage, self._generator)
        self._stream.marking = self._sampler.ahead or self._depth > 0

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
        with self._lock:
            return self._told(self._writer.add(data))

    def extend(self, data: Any) -> Any:
        """Write a batch of records; returns their rows, int64 ``[n]`` (``[n, ndim]`` for a storage of more dimensions).

        A list is a list of records, a tuple a tree of columns. More records than there is room for: the newest stay.
        Raises SchemaError for other keys, shapes or dtypes than those stored, ReadOnlyError where nothing can be written.
        """
        if len(self._transforms):
            data = self._transforms.inv(data)
        if data is None:
            return torch.zeros((0, self._storage.ndim), dtype=torch.int64)
        with self._lock:
            return self._told(self._writer.extend(self._time_first(data)))

    def _time_first(self, data: Any) -> Any:
        if not self._dim_extend or isinstance(data, list):
            return data
        if is_tensor_collection(data):
            if data.ndim <= self._dim_extend:
                message = f"data of shape {tuple(data.shape)} have no dimension {self._dim_extend} to extend along"
                raise SchemaError(
                    message, hint=f"a storage with ndim={self._storage.ndim} takes batches of [*batch, time]"
                )
            return data.transpose(self._dim_extend, 0)
        from torch.utils import _pytree as pytree

        return pytree.tree_map(lambda leaf: leaf.transpose(self._dim_extend, 0), data)

    def _told(self, index: Any) -> Any:
        if index is not None:
            self._sampler.extend(self._storage.flat([index] if isinstance(index, int) else index))
        return index

    def update_priority(self, index: Any, priority: Any) -> None:
        """Set priorities by row; nothing happens where the sampler has none."""
        update = getattr(self._sampler, "update_priority", None)
        if update is not None:
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
        with self._lock:
            self._drop_prefetched()
            self._writer.empty()
            self._storage.empty()
            self._sampler.empty()
            self._stream.rewind()

    # -- sampling ----------------------------------------------------------------------------------------------------

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Draw one batch, or ``(batch, info)``.

        Raises UsageError without a batch size, SamplingError when the batch cannot be drawn.
        """
        batch, info = self._sample(self._size(batch_size))
        return (batch, info()) if return_info else batch

    def _sample(self, size: int) -> tuple[Any, Callable[[], dict[Any, Any]]]:
        """A batch, and what makes its info."""
        if self._pid != os.getpid():
            self._after_fork()
        if self._depth and size == self.batch_size:
            batch, info, self._ran_out = self._prefetched(size)
        else:
            with self._lock:
                if self._prefetcher is not None and len(self._prefetcher):
                    self._rewind()
                pending = self._take(size)
                data = self._read(pending.prepared, locked=True)
            (batch, info), self._ran_out = self._finish(data), pending.ran_out
        return handed_over(batch, self._device), info

    def _size(self, batch_size: int | None) -> int:
        if batch_size is None:
            if self.batch_size is None:
                message = "no batch size"
                raise UsageError(message, hint="give batch_size to the buffer (or to load()), or to sample()")
            return self.batch_size
        size = _checked_size(batch_size)
        if self.batch_size is not None and size != self.batch_size and not self.__dict__.get("_warned"):
            self._warned = True
            warnings.warn(
                f"sample({size}) on a buffer with batch_size={self.batch_size}: the argument wins", stacklevel=3
            )
        return size

    def _take(self, size: int) -> Pending:
        reader = self._reader()
        if reader is None:
            return self._stream.take(size, lambda draws: [self._unread(draw) for draw in draws], 1)
        return self._stream.take(size, reader.prepare, reader.ahead(size))

    def _unread(self, draw: Draw) -> Prepared:
        places = draw.places()
        index = places if draw.timeline is None else draw.timeline.rows(places)
        return Prepared(draw, index, None, None, {})

    def _reader(self) -> BatchReader | None:
        """What reads leaf by leaf; None where records can only be had whole."""
        if self._reader_of is not None and (self._storage.immutable or self._reader_of[0] is self._storage.fields()):
            return self._reader_of[1]
        fields = self._storage.fields()
        reader = None
        if (
            self._frame_stack
            or self._n_step
            or (fields is not None and (self._collate is None or self._storage.immutable))
        ):
            reader = BatchReader(
                self._storage,
                frame_stack=self._frame_stack,
                stack_keys=self._stack_keys,
                n_step=self._n_step,
                marked=self._in_batch,
                edges=self._edges,
            )
        self._reader_of = (fields, reader)
        return reader

    def _read(self, prepared: Prepared, *, locked: bool) -> tuple[Prepared, Any]:
        reader = self._reader()
        if locked or self._storage.immutable:
            return prepared, self._read_batch(reader, prepared)
        with self._lock:  # not while somebody writes
            return prepared, self._read_batch(reader, prepared)

    def _read_batch(self, reader: BatchReader | None, prepared: Prepared) -> Any:
        if reader is not None:
            batch = reader.complete(prepared)
            return batch if self._collate is None else self._collate(batch)
        data = self._storage.get(self._storage.coordinates(prepared.index))
        if self._collate is not None:
            return self._collate(data)
        return _stacked(data) if isinstance(self._storage, ListStorage) else data

    def _finish(self, read: tuple[Prepared, Any]) -> tuple[Any, Callable[[], dict[Any, Any]]]:
        prepared, batch = read
        columns: dict[str, torch.Tensor] = prepared.columns
        if prepared.draw.marks is not None and not columns and isinstance(batch, TensorDictBase):
            flags = {key: value for key, value in batch.items(True, True) if isinstance(value, torch.Tensor)}
            columns = {"/".join(as_key(key)): value for key, value in flags.items()}
        if len(self._transforms):
            batch = self._transforms(batch)
        if self._pin or self._device is not None:
            batch = to_device(batch, self._device, self._pin)
        return batch, partial(_info, self._storage, prepared, columns)

    def _prefetched(self, size: int) -> tuple[Any, Callable[[], dict[Any, Any]], bool]:
        with self._lock:
            if self._prefetcher is None:
                self._prefetcher = Prefetcher(self._depth)
            queue = self._prefetcher
            if not len(queue):
                self._submit(queue, size)
        pending, (batch, info) = queue.next()
        with self._lock:
            # One pass at a time: what comes after its end is the next iteration's.
            last = queue.last if len(queue) else pending
            while len(queue) < self._depth and (self._sampler.endless or not last.ran_out):
                last = self._submit(queue, size)
        return batch, info, pending.ran_out

    def _submit(self, queue: Prefetcher[Pending], size: int) -> Pending:
        pending = self._take(size)
        queue.submit(pending, lambda: self._read(pending.prepared, locked=False), self._finish)
        return pending

    def _drop_prefetched(self) -> None:
        if self._prefetcher is not None:
            self._prefetcher.clear()

    def _rewind(self) -> None:
        """Take back all that was drawn ahead."""
        if self._prefetcher is not None and len(self._prefetcher):
            first: Mark = self._prefetcher.first.place
            self._prefetcher.clear()
            self._stream.go_to(first)
        self._stream.rewind()

    def _after_fork(self) -> None:
        """A child has the queue of its parent, but not the threads."""
        self._pid, self._lock = os.getpid(), threading.RLock()
        if self._prefetcher is not None:
            if len(self._prefetcher):
                self._stream.go_to(self._prefetcher.first.place)
            self._prefetcher = None

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

    def __getitem__(self, index: Any) -> Any:
        """Records by number or slice (through the transforms), or one column by key."""
        if isinstance(index, str) or (isinstance(index, tuple) and index and all(isinstance(i, str) for i in index)):
            if isinstance(self._storage, DatasetStorage) and not len(self._transforms):
                return self.dataset[index]
            return self[:][index]
        with self._lock:
            if self._dim_extend:
                data = self._storage.get(index)
                batched = getattr(data, "ndim", 0) > self._dim_extend
                data = data.transpose(self._dim_extend, 0) if batched else data
            else:
                data = self._storage.get(index)
        if isinstance(self._storage, ListStorage) and isinstance(data, list):
            data = (self._collate or _stacked)(data)
        return self._transforms(data) if len(self._transforms) else data

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, str) or (isinstance(index, tuple) and index and all(isinstance(i, str) for i in index)):
            whole = self._storage.get(slice(None))
            whole.get(index).copy_(value)
            self._storage.set(slice(0, self._storage.filled), whole, set_cursor=False)
            return
        if len(self._transforms):
            value = self._transforms.inv(value)
        with self._lock:
            self._storage.set(index, value, set_cursor=False)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(storage={self._storage!r}, sampler={self._sampler!r}, writer={self._writer!r}, "
            f"batch_size={self.batch_size})"
        )

    # -- transforms and hooks ----------------------------------------------------------------------------------------

    def append_transform(self, transform: Any, *, invert: bool = False) -> ReplayBuffer:
        """Add a transform at the end; returns the buffer."""
        with self._lock:
            self._rewind()
            self._transforms.append(transform, invert=invert)
        return self

    def insert_transform(self, index: int, transform: Any, *, invert: bool = False) -> ReplayBuffer:
        """Add a transform before the one at ``index``; returns the buffer."""
        with self._lock:
            self._rewind()
            self._transforms.insert(index, transform, invert=invert)
        return self

    def register_save_hook(self, hook: Callable[..., Any]) -> None:
        """Have the stored data go through ``hook(data, path=...)`` before `dumps` writes them (see `ted_hooks`)."""
        self._save_hooks.append(hook)

    def register_load_hook(self, hook: Callable[..., Any]) -> None:
        """Have the data that `loads` reads go through ``hook(data, out=...)``."""
        self._load_hooks.append(hook)

    # -- saving ------------------------------------------------------------------------------------------------------

    def dumps(self, path: Any) -> None:
        """Write everything to a folder; see `checkpoint`."""
        from .checkpoint import dump

        with self._lock:
            dump(self, path)

    def loads(self, path: Any) -> None:
        """Read what `dumps` wrote, into a buffer made of the same parts; see `checkpoint`."""
        from .checkpoint import load

        with self._lock:
            load(self, path)

    save = dump = dumps
    load = loads

    def state_dict(self) -> dict[str, Any]:
        """Everything, in memory: copies of the data, and the place in the order of batches."""
        with self._lock:
            mark = self._position()
            return {
                "storage": self._storage.state_dict(),
                "sampler": self._sampler.state_dict(),
                "writer": self._writer.state_dict(),
                "transforms": self._transforms.state_dict(),
                "batch_size": self.batch_size,
                "generator": mark.generator,
                "position": mark.sampler,
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave. Raises UsageError or SchemaError when it belongs to another buffer."""
        missing = [name for name in ("storage", "sampler", "writer", "generator") if name not in state]
        if missing:
            raise UsageError(f"the state lacks {', '.join(missing)}: it is not a buffer's")
        with self._lock:
            self._drop_prefetched()
            self._storage.load_state_dict(state["storage"])
            self._sampler.load_state_dict(state["sampler"])
            self._writer.load_state_dict(state["writer"])
            self._transforms.load_state_dict(state["transforms"])
            self.batch_size = state["batch_size"]
            self._stream.go_to(Mark(state["generator"], state["position"]))

    def _position(self) -> Mark:
        if self._prefetcher is not None and len(self._prefetcher):
            return self._prefetcher.first.place
        return self._stream.position()

    # -- processes ---------------------------------------------------------------------------------------------------

    def share(self, shared: bool = True) -> ReplayBuffer:
        """Put the storage in shared memory, where it is not in files already."""
        share = getattr(self._storage, "share_memory_", None)
        if shared and share is None and not self._storage.immutable:
            raise UsageError(f"a {type(self._storage).__name__} cannot be shared", hint="use a LazyTensorStorage")
        if shared and share is not None:
            share()
        return self

    def split(self, rank: int, world_size: int) -> None:
        """Make this buffer the share ``rank`` of ``world_size`` of what it has been: what a data loader's worker does."""
        seed = int(self._generator.initial_seed())
        self._rank, self._world = self._rank * world_size + rank, self._world * world_size
        with self._lock:
            self._drop_prefetched()
            passes = getattr(self._sampler, "passes", None)
            if passes is not None and passes.position()[0] < 0:
                passes.seed(seed)
            mixed = int(np.random.SeedSequence((seed, self._rank)).generate_state(1, np.uint64)[0] >> np.uint64(1))
            self._generator = torch.Generator()
            self._generator.manual_seed(mixed)
            self._sampler.share = (self._rank, self._world)
            self._restart_stream()

    def as_iterable(self, batches: int | None = None) -> Any:
        """A ``torch.utils.data.IterableDataset`` of this buffer's batches; see `iterable`."""
        from .iterable import ReplayIterable

        return ReplayIterable(self, batches)

    def close(self) -> None:
        """Stop the prefetch threads, if there are any; sampling starts them again."""
        with self._lock:
            self._rewind()
            prefetcher, self._prefetcher = self._prefetcher, None
        if prefetcher is not None:
            prefetcher.close()

    def __enter__(self) -> ReplayBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            mark, seed = self._position(), self._generator.initial_seed()
        left_out = ("_lock", "_prefetcher", "_stream", "_generator", "_reader_of")
        state = {name: value for name, value in self.__dict__.items() if name not in left_out}
        return {**state, "_iterator": None, "_mark": (mark.generator.numpy().tobytes(), mark.sampler, seed)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        generator, position, seed = state.pop("_mark")
        self.__dict__.update(state)
        self._lock, self._prefetcher, self._reader_of = threading.RLock(), None, None
        self._pid = os.getpid()
        self._generator = torch.Generator()
        self._generator.manual_seed(seed)
        self._restart_stream()
        self._stream.go_to(Mark(torch.frombuffer(bytearray(generator), dtype=torch.uint8), position))


def _info(storage: Storage, prepared: Prepared, columns: dict[str, torch.Tensor]) -> dict[Any, Any]:
    """The info dictionary of a batch."""
    draw = prepared.draw
    info: dict[Any, Any] = {"index": storage.coordinates(prepared.index), **draw.info}

    def copied(key: tuple[str, ...]) -> torch.Tensor | None:
        column = columns.get("/".join(key))
        return None if column is None else column.clone()

    flags = slice_flags(draw, copied)
    info.update({key if len(key) > 1 else key[0]: value for key, value in flags.items()})
    return info


def _storage(given: Any) -> Storage:
    if given is None:
        return ListStorage(1000)
    if isinstance(given, (Dataset, str, os.PathLike)):
        return DatasetStorage(given)
    made = _made(given)
    if not isinstance(made, Storage):
        message = f"a storage is wanted, not a {type(made).__name__}"
        raise UsageError(message, hint="for example LazyTensorStorage(1_000_000), or the path of a dataset")
    return made


def _made(part: Any) -> Any:
    """An instance: given as such, or by a class or function."""
    if part is None or isinstance(part, (Storage, Sampler, Writer)):
        return part
    return part() if callable(part) else part


def _checked_size(batch_size: int) -> int:
    if not isinstance(batch_size, (int, np.integer)) or isinstance(batch_size, bool) or batch_size < 1:
        raise SamplingError(f"batch_size must be a whole number of at least 1, not {batch_size!r}")
    return int(batch_size)


def _checked_depth(prefetch: int | None, batch_size: int | None) -> int:
    if not prefetch:
        return 0
    if not isinstance(prefetch, int) or prefetch < 0:
        raise UsageError(f"prefetch must be a number of batches, not {prefetch!r}")
    if batch_size is None:
        raise UsageError("prefetching needs the batch_size given to the buffer (or to load())")
    return prefetch


def _stacked(records: Any) -> Any:
    """The records of a list as a batch; numbers become tensors."""
    if not isinstance(records, list) or not records:
        return records
    if is_tensor_collection(records[0]):
        shapes = {(record.batch_size, tuple(sorted(record.keys(True, True), key=str))) for record in records}
        leaves = [tuple(leaf.shape for leaf in record.values(True, True)) for record in records]
        ragged = len(shapes) > 1 or len(set(leaves)) > 1
        return TensorDict.lazy_stack(records) if ragged else torch.stack(records)
    return stack(records)
