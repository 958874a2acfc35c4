"""The replay buffer: a storage, a sampler, a writer and transforms, put together.

    extend(data)   transforms (inverse) -> writer -> storage -> sampler (priorities of new records)
    sample()       sampler -> storage -> collation -> transforms -> device            see `batches`

It calls ``sampler.sample(storage, batch_size)``, ``storage.get(index)``, ``writer.extend(data)`` and ``transform(batch)``:
what a class of your own overrides acts because it is called.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self

import torch
from tensordict import is_tensor_collection

from ...errors import SamplingError, SchemaError, UnknownKeyError, UsageError, reason
from ..amounts import MOST_RECORDS
from ..dataset import Dataset
from ..keywords import whole_number
from ..row_index import NoRecordError, is_part_of_all, row_index
from .around import Around
from .batches import Batches, Options, stack_records
from .chain import Transforms
from .order import Order, OrderPlace
from .samplers.sampler import RandomSampler, Sampler
from .storages.dataset_storage import DatasetStorage
from .storages.rows import index_error
from .storages.storage import Storage, reads_by_get
from .storages.trees import tree_copied, tree_map
from .timeline import path_of
from .writers import ImmutableDatasetWriter, RoundRobinWriter, Writer

if TYPE_CHECKING:
    from .iterable import ReplayIterable, ReplayMap


class ReplayBuffer:
    """Writes records to a storage and samples batches from it.

    All arguments by keyword; those of ``torchrl.data.ReplayBuffer`` come first:

    - ``storage``, ``sampler``, ``writer``: instances, or functions that make them. ``storage`` may also be a `Dataset` or the
      path of one. Defaults: ``ListStorage(1000)``, `RandomSampler`, `RoundRobinWriter` (read-only over a dataset).
    - ``collate_fn``: makes a batch of the records that the storage returns; the default stacks the records of a list.
    - ``transform``: see `chain`.
    - ``batch_size``: may be given to `sample` instead, but iteration and prefetching need it here.
    - ``prefetch``: the number of batches that are drawn and made ahead, in as many threads: they lag at most that many behind
      writes and priorities. ``pin_memory``, ``device``: where batches are put.
    - ``dim_extend``: the dimension of the data of `extend` that counts records, by default the last one of the storage.
    - ``generator`` or ``seed``: same seed, same batches. A generator gives the seed, once; without either it comes from torch's
      global generator.
    - ``shared``, ``compilable``: must be False, and has no effect; threads may share any buffer.
    - ``rank``, ``world_size``: the share of this process in data-parallel training. Without replacement all processes follow
      the same order, given by ``seed``, and take every ``world_size``-th step; with replacement each draws independently.
      Together they take every step, so one process may have a batch more than another: ``drop_last`` gives all as many.
    - ``around``: rows around each step, such as ``Around(frame_stack=4, n_step=3)``.

    `sample` of a plain buffer returns the stored records; the sampler's information (``index``, flags, weights) is returned
    with ``return_info=True``. `TensorDictReplayBuffer` puts it into the batch.
    """

    _with_info = False
    _ring_writer: type[Writer] = RoundRobinWriter
    _batches: Batches
    _warned: frozenset[str] = frozenset()
    _pass_ended = False

    def __init__(
        self,
        *,
        storage: Any = None,
        sampler: Any = None,
        writer: Any = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Any = None,
        batch_size: int | None = None,
        dim_extend: int | None = None,
        generator: torch.Generator | None = None,
        shared: bool = False,
        compilable: bool | None = None,
        device: Any = None,
        seed: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        around: Around = Around(),  # noqa: B008
    ) -> None:
        if shared:
            message = "processes do not share a buffer: threads do, without shared=True"
            raise UsageError(message, hint="LazyMemmapStorage keeps the records in files that another process can open")
        if dim_extend is not None and dim_extend < 0:
            raise UsageError(f"dim_extend must not be negative, and is {dim_extend}")
        self.batch_size = None if batch_size is None else check_batch_size(batch_size)
        store = storage_of(storage)
        sampler = sampler_of(sampler)
        order = Order.of(seed, generator, rank, world_size)
        if not sampler.endless and order.world > 1 and seed is None:
            message = f"{world_size} processes that share one pass must shuffle alike"
            raise UsageError(message, hint="give all of them the same seed")
        if self.batch_size is None and getattr(sampler, "drop_last", False):
            raise UsageError("drop_last needs the batch_size given to the buffer")
        if device is not None:
            from .devices import check_device

            device = check_device(device)
        options = Options(
            around=check_part(around, Around, "Around(frame_stack=4)"),
            with_info=self._with_info,
            collate=collate_fn,
            prefetch=check_prefetch(prefetch, self.batch_size),
            device=device,
            pin_memory=pin_memory,
        )
        self._made(store, sampler, order, Transforms.of(transform), options)
        self._dim_extend = dim_extend
        self._writer_ = part(writer, Writer, self._default_writer, "RoundRobinWriter()")
        self._writer_.register_storage(store)
        self._save_hooks: list[Any] = []
        self._load_hooks: list[Any] = []
        #: Batches that the iterator of a data loader, which is under way, has returned.
        self._returned = 0

    def _default_writer(self) -> Writer:
        return ImmutableDatasetWriter() if self.storage.immutable else self._ring_writer()

    def _made(self, storage: Storage, sampler: Sampler, order: Order, transforms: Transforms, options: Options) -> None:
        """Make batches of these parts from now on."""
        if "_batches" in self.__dict__:
            self._batches.close()
        else:
            self._lock, self._last = threading.RLock(), threading.local()
        sampler._order = order
        self._batches = Batches(storage, sampler, order, transforms, options)
        if options.around.names and storage.leaves() is not None:
            self._batches.reader()  # raises the errors of wrong keys

    def _set_goals(self, goals: Any) -> None:
        self._change(options=replace(self._batches.options, goals=goals))
        self._batches.reader()

    def _set_output(self, output: Any) -> None:
        self._change(options=replace(self._batches.options, output=output))

    def _change(self, **parts: Any) -> None:
        """Replace some parts: what was made ahead is dropped."""
        with self._lock:
            now = self._batches
            names = ("storage", "sampler", "order", "transforms", "options")
            self._made(*(parts.get(name, getattr(now, name)) for name in names))

    # -- parts -------------------------------------------------------------------------------------------------------

    @property
    def storage(self) -> Storage:
        return self._batches.storage

    @property
    def sampler(self) -> Sampler:
        return self._batches.sampler

    @property
    def writer(self) -> Writer:
        return self._writer_

    @property
    def transform(self) -> Transforms:
        return self._batches.transforms

    @property
    def dim_extend(self) -> int:
        return self.storage.ndim - 1 if self._dim_extend is None else self._dim_extend

    def set_storage(self, storage: Storage, collate_fn: Callable[[Any], Any] | None = None) -> Storage:
        """Replace the storage; returns the previous one."""
        with self._lock:
            before, options = self.storage, replace(self._batches.options, collate=collate_fn)
            self._change(storage=check_part(storage, Storage, "LazyTensorStorage(1000)"), options=options)
            self._writer_.register_storage(storage)
            if storage is not before and self.sampler.has_priorities:
                self.sampler.empty()  # drop its values for rows of the previous storage
            return before

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Replace the sampler; returns the previous one."""
        before = self.sampler
        self._change(sampler=check_part(sampler, Sampler, "RandomSampler()"))
        return before

    def set_writer(self, writer: Writer) -> Writer:
        """Replace the writer; returns the previous one."""
        with self._lock:
            before, self._writer_ = self._writer_, check_part(writer, Writer, "RoundRobinWriter()")
            writer.register_storage(self.storage)
            return before

    def append_transform(self, transform: Any, *, invert: bool = False) -> Self:
        """Add a transform at the end; returns the buffer."""
        return self.insert_transform(len(self.transform), transform, invert=invert)

    def insert_transform(self, index: int, transform: Any, *, invert: bool = False) -> Self:
        """Add a transform before the one at ``index``; returns the buffer."""
        with self._lock:
            self._batches.forget_queue()
            self.transform.insert(index, transform, invert=invert)
        return self

    def _set_transform(self, transform: Any) -> None:
        self._change(transforms=Transforms.of(transform))

    # TorchRL's examples assign parts under these names.
    _storage: Any = property(lambda self: self.storage, set_storage)  # type: ignore[arg-type]
    _sampler: Any = property(lambda self: self.sampler, set_sampler)  # type: ignore[arg-type]
    _writer: Any = property(lambda self: self._writer_, set_writer)  # type: ignore[arg-type]
    _transform: Any = property(lambda self: self.transform, _set_transform)

    # -- seeds -------------------------------------------------------------------------------------------------------

    def set_seed(self, seed: int) -> None:
        """Start the sequence of batches that a seed determines."""
        self._start_order(seed, None)

    def _start_order(self, seed: Any, generator: Any) -> None:
        order = self._batches.order
        self._change(order=Order.of(seed, generator, order.rank, order.world))
        self._pass_ended = False

    def set_rng(self, generator: torch.Generator | None) -> None:
        """Start the sequence of batches of a seed that is drawn from this generator, once."""
        self._start_order(None, generator)

    # -- sampling ------------------------------------------------------------------------------------------------------

    def sample(self, batch_size: int | None = None, return_info: bool = False, include_info: bool | None = None) -> Any:
        """Draw one batch, or ``(batch, info)``; ``include_info=False`` leaves the sampler's information out of a TensorDict.

        Raises UsageError without a batch size, SamplingError when the batch cannot be drawn.
        """
        size = self.batch_size if batch_size is None else self._size(batch_size)
        if size is None:
            raise UsageError("no batch size", hint="give batch_size to the buffer (or to load()), or to sample()")
        with self._lock:
            batches = self._batches
            finish, drawn = batches.next(size, ahead=size == self.batch_size)
        batch = finish()
        self._last.place = drawn.place
        if not return_info and include_info is not False:
            return batch
        info = batches.info(drawn)
        if include_info is False and is_tensor_collection(batch):
            batch = batch.exclude(*info)
        return (batch, info) if return_info else batch

    def _size(self, batch_size: int) -> int:
        size = check_batch_size(batch_size)
        if self.batch_size is not None and size != self.batch_size:
            self._warn_once("sample", f"sample({size}): the buffer has batch_size={self.batch_size}, the argument wins")
        return size

    def _warn_once(self, what: str, message: str, stacklevel: int = 4) -> None:
        if what not in self._warned:
            self._warned |= {what}
            warnings.warn(message, stacklevel=stacklevel)

    def sample_at(self, index: Any) -> Any:
        """Return the batch that `sample` would give for these records: frame stacks, n-step returns, windows, transforms.

        ``index``: a number, numbers in a sequence or a tensor ``[n]`` (for storages of several dimensions ``[n, ndim]`` or a
        tuple of tensors), or a slice or a mask of all records. Nothing is drawn: the order of batches does not change, and
        there are neither weights nor goals. Raises SamplingError (an IndexError) for rows that do not exist.
        """
        return self._at(index)

    def _at(self, index: Any, *, formed: bool = True) -> Any:
        """`sample_at`, without its ``output`` unless ``formed``."""
        with self._lock:
            count = len(self.storage)
            if self.storage.ndim == 1 and is_part_of_all(index):
                try:
                    index = torch.arange(count, device="cpu")[row_index(index, count, "record")]
                except UnknownKeyError as error:
                    raise NoRecordError(error.message) from error
            rows = self.storage.flat(index)
            if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < count:
                raise NoRecordError(f"there are {count} records, and not all of {rows.tolist()!s:.60} are among them")
            return self._batches.at(rows, formed=formed)

    @property
    def _ran_out(self) -> bool:
        """Whether the batch that this thread sampled last ended a pass."""
        return getattr(self._last, "place", OrderPlace()).ended

    def __iter__(self) -> Iterator[Any]:
        """Endless batches, or the batches of one pass if the sampler has passes."""
        if self.batch_size is None:
            raise UsageError("iteration needs the batch_size given to the buffer (or to load())")
        before = OrderPlace()
        while True:
            batch, after = self.sample(), getattr(self._last, "place", OrderPlace())
            if before.taken and after.rows != before.rows:
                message = "a write has started the pass again: write after the loop, or draw with replacement"
                self._warn_once("pass", message, stacklevel=3)
            before = after
            yield batch
            if after.ended or self._ran_out:  # the loop may sample the end of the pass itself
                return

    def __next__(self) -> Any:
        batch = self.next()
        if batch is None:
            raise StopIteration
        return batch

    def next(self) -> Any:
        """Return the next batch of an iteration that the buffer keeps; None after the last batch of a pass."""
        if self._pass_ended:
            self._pass_ended = False
            return None
        batch = self.sample()
        self._pass_ended = self._ran_out
        return batch

    @property
    def dataset(self) -> Dataset:
        """The dataset of the storage, if it has one."""
        if not isinstance(self.storage, DatasetStorage):
            raise UsageError(f"the buffer stands on a {type(self.storage).__name__}, not on a dataset")
        return self.storage.source

    #: The constants by which `load` changed leaves, see `statistics`.
    _statistics: dict[str, Any] = {}  # noqa: RUF012

    @property
    def statistics(self) -> dict[str, Any]:
        """The constants by which `load` changed leaves, for evaluation: ``(x - mean) / std``, ``scale * reward + shift``.

        ``{"observation": {"mean": float64 array, "std": float64 array}, "next/reward": {"scale": float, "shift": float}}``,
        for the leaves that ``normalize`` and ``reward_scale`` of `load` name; empty without these options. They are copies.
        """
        return deepcopy(self._statistics)

    # -- records -----------------------------------------------------------------------------------------------------

    @property
    def write_count(self) -> int:
        """Records written so far."""
        return getattr(self.writer, "write_count", 0)

    def __len__(self) -> int:
        return len(self.storage)

    @property
    def _swapped_dim(self) -> int:
        """The dimension of the data of `extend` that is the first dimension of the storage; 0 if it is in front."""
        return self.dim_extend if self.storage.ndim > 1 else 0

    def __getitem__(self, index: Any) -> Any:
        """Records by number or slice (several through the ``collate_fn``, all through the transforms), or one column by key.

        Records are single, as they are stored: ``n_step``, ``frame_stack`` and windows apply only to `sample` and `sample_at`.
        """
        if is_key(index):
            whole = self[:]
            try:
                return whole[index]
            except (KeyError, TypeError, IndexError) as error:
                raise UnknownKeyError(f"the records have no {path_of(index)}") from error
        with self._lock:
            storage, data = self.storage, self._stored(index)
        collate = self._batches.options.collate
        if collate is not None and not isinstance(index, Integral):
            data = collate(data)
        elif storage.is_list and isinstance(data, list):
            data = stack_records(data)
        if self.transform.chain:
            data = self.transform(tree_copied(data))  # which may write to it
        return data

    def _stored(self, index: Any) -> Any:
        """The records at an index, whose dimensions are in the order of the data of `extend`."""
        storage, dim = self.storage, self._swapped_dim
        if not dim:
            return storage[index]
        try:
            return tree_map(lambda leaf: leaf.transpose(dim, 0)[index], storage[:])
        except (IndexError, RuntimeError, TypeError) as error:
            raise index_error(index, storage.shape, error) from error

    def __getitems__(self, numbers: Any) -> Any:
        message = "DataLoader(buffer) would read single records, without stacks, n-step returns and goals"
        raise UsageError(message, hint="give it buffer.as_map(), or take buffer.as_iterable().loader()")

    def __setitem__(self, index: Any, value: Any) -> None:
        """Change records by number or slice, or one column by key, whose values have the stored shape and dtype."""
        with self._writing():
            storage = self.storage
            if is_key(index) and not storage.immutable:
                storage[:] = self._with_column(index, value)
                return
            value = self.transform.inv(value)
            if self._swapped_dim:
                rows = (
                    torch.arange(len(storage), device="cpu").view(storage.shape).transpose(self._swapped_dim, 0)[index]
                )
                index = torch.unravel_index(rows, storage.shape)
            storage[index] = value

    def _with_column(self, key: Any, value: Any) -> Any:
        """All records with another column. Raises UnknownKeyError, and SchemaError for values that do not fit."""
        records = self.storage[:]
        if not is_tensor_collection(records):
            message = f"a {type(self.storage).__name__} has no columns to write to"
            raise UsageError(message, hint="use a LazyTensorStorage")
        if records.get(key, None) is None:
            raise UnknownKeyError(f"the records have no {path_of(key)}")
        try:
            return records.copy().set(key, torch.as_tensor(value).transpose(0, self._swapped_dim))
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise SchemaError(f"what is to be written to {path_of(key)} does not fit: {reason(error)}") from error

    @contextmanager
    def _writing(self) -> Iterator[tuple[Storage, Sampler]]:
        """Hold the lock, once the threads have finished their reads; with the storage and the sampler."""
        with self._lock:
            self._batches.wait_for_reads()
            yield self._batches.storage, self._batches.sampler

    def add(self, data: Any) -> Any:
        """Write one record; returns its row (an int; None if the writer does not keep the record).

        Warns once if a TensorDict has a batch dimension: it is stored as one record.
        """
        nested = is_tensor_collection(data)
        if nested and data.ndim and self.storage.ndim == 1:
            message = (
                f"Using `add()` with a TensorDict that has batch_size={tuple(data.batch_size)}: it becomes one record; "
                "extend() writes a record for each of its rows"
            )
            self._warn_once("add", message)
        if self.transform.chain:
            # Transforms are written for batches with a time dimension.
            data = self.transform.inv(data.unsqueeze(-1) if nested else data)
            if data is None:
                return None
            data = data.squeeze(-1) if nested else data
        with self._writing() as (storage, sampler):
            index = self._writer_.add(data)
            if index is not None:
                sampler.mark_update(index, storage=storage)
                sampler.add(index)
            return index

    def extend(self, data: Any, *, update_priority: bool | None = None) -> Any:
        """Write a batch of records; returns their rows, int64 ``[n]`` (``[n, ndim]`` for a storage of more dimensions).

        A list holds records, as does any other iterable of records: a deque, the values of a dict, a generator. A tuple is a
        tree of columns: record i has their i-th elements. If there are more records than room, the newest stay. Raises
        SchemaError if keys, shapes or dtypes differ from the stored ones, ReadOnlyError if the buffer is read-only.
        """
        data = as_list(data)
        if self.transform.chain:
            data = self.transform.inv(data)
            if data is None:
                return torch.zeros((0, self.storage.ndim), dtype=torch.int64, device="cpu")
        with self._writing() as (storage, sampler):
            if storage.ndim > 1 and (dim := self.dim_extend):
                try:
                    data = tree_map(lambda part: part.transpose(0, dim), data)
                except (ValueError, IndexError) as error:
                    raise SchemaError(f"the data have no dimension {dim} (dim_extend)") from error
            index = self._writer_.extend(data)
            sampler.mark_update(index, storage=storage)
            sampler.extend(index)
            return index

    def update_priority(self, index: Any, priority: Any) -> None:
        """Set priorities by row; no effect if the sampler has no priorities."""
        priority = torch.as_tensor(priority, device="cpu") if isinstance(priority, (list, tuple)) else priority
        with self._lock:
            self.sampler.update_priority(index, priority, storage=self.storage)

    def mark_update(self, index: Any) -> None:
        """Give rows the priority of new records. Raises SamplingError for rows that do not exist."""
        with self._lock:
            self.sampler.mark_update(index, storage=self.storage)

    def empty(self, empty_write_count: bool = True) -> None:
        """Remove all records; ``empty_write_count`` also resets `write_count`. Raises ReadOnlyError over a dataset."""
        with self._writing():
            self._batches.forget_queue()
            self.writer.empty(empty_write_count=empty_write_count)
            self.storage.empty()
            self.sampler.empty()

    # -- saving ------------------------------------------------------------------------------------------------------

    def register_save_hook(self, hook: Callable[..., Any]) -> None:
        """Pass the stored data through ``hook(data, path=...)`` before `dumps` writes them (see `ted_hooks`)."""
        self._save_hooks.append(hook)

    def register_load_hook(self, hook: Callable[..., Any]) -> None:
        """Pass the data that `loads` reads through ``hook(data)``."""
        self._load_hooks.append(hook)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of all records, and the place in the order of batches, in memory: ``torch.save`` takes it."""
        with self._lock:
            return {**self._small_state(), "_storage": self.storage.state_dict()}

    def _small_state(self) -> dict[str, Any]:
        """All but the records."""
        parts = {"_sampler": self.sampler, "_writer": self.writer, "_transforms": self.transform}
        kinds = {name: type(one).__name__ for name, one in {**parts, "_storage": self.storage}.items()}
        order = {**self._batches.order.state_dict(), "returned": self._returned, "pass_ended": self._pass_ended}
        states = {name: one.state_dict() for name, one in parts.items()}
        return {"kind": type(self).__name__, "parts": kinds, "order": order, "_batch_size": self.batch_size, **states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state of a buffer made of the same parts: all of it or, with an error, nothing.

        What was prefetched before the state is drawn again after it: from the contents and priorities then. A batch size that
        the buffer was given stays; a buffer without one takes that of the state.
        """
        from .checkpoint import loading

        with self._lock:
            self._batches.forget_queue()
            before = self._small_state()
            try:
                with loading(self):
                    self._check_state(state_dict)
                    self._load_small(state_dict)
                    self.storage.load_state_dict(state_dict["_storage"])
                    self.writer.load_state_dict(state_dict["_writer"])
                if self.batch_size is None:
                    self.batch_size = state_dict["_batch_size"]
            except BaseException:
                self._load_small(before)
                self.writer.load_state_dict(before["_writer"])
                raise

    def _check_state(self, state: dict[str, Any]) -> None:
        """Raise UsageError for the state of a buffer of another kind, or of other parts."""
        lacking = [name for name in ("_storage", "_sampler", "_writer", "order", "parts", "kind") if name not in state]
        if lacking:
            raise UsageError(f"the state lacks {', '.join(name.lstrip('_') for name in lacking)}")
        if state["_batch_size"] is not None:
            check_batch_size(state["_batch_size"])
        if state["kind"] != type(self).__name__:
            raise UsageError(f"the state is of a {state['kind']}, not of a {type(self).__name__}")
        parts = {"_storage": self.storage, "_sampler": self.sampler, "_writer": self.writer}
        for name, one in parts.items():
            stated, own = state["parts"][name], type(one).__name__
            if stated != own and not (name == "_storage" and _in_tensors(stated) and _in_tensors(own)):
                raise UsageError(f"the state's {name[1:]} is a {stated}, the buffer's a {own}")

    def _load_small(self, state: dict[str, Any]) -> None:
        order = state["order"]
        returned, ended = order["returned"], order["pass_ended"]
        if type(returned) is not int or returned < 0 or type(ended) is not bool:
            raise UsageError(f"{order!r:.100} is not a place in the order of batches")
        self.sampler.load_state_dict(state["_sampler"])
        self.transform.load_state_dict(state["_transforms"])
        self._batches.order.load_state_dict(order)
        self._returned, self._pass_ended = returned, ended
        self._last.place = OrderPlace()

    def dumps(self, path: Any) -> None:
        """Write everything to a folder; see `checkpoint`."""
        from pathlib import Path

        from . import checkpoint

        with self._lock:
            records, hooked = {**self.storage.state()}, None
            if self._save_hooks:
                hooked = partial(self._write_hooked, records.pop("_storage", None))
            checkpoint.write_state(Path(path), {**self._small_state(), "_storage": records}, hooked)

    def _write_hooked(self, data: Any, folder: Any) -> None:
        """Write the records as the save hooks make them."""
        if not is_tensor_collection(data):
            raise UsageError(f"save hooks work on TensorDicts; the storage is a {type(self.storage).__name__}")
        for hook in self._save_hooks:
            hook.is_full, hook.shift = self.storage.is_full, self.storage.cursor
            data = hook(data, path=folder)
        if is_tensor_collection(data) and not data.is_memmap():
            data.memmap(folder)

    def loads(self, path: Any) -> None:
        """Read what `dumps` wrote, into a buffer made of the same parts; see `checkpoint`."""
        from pathlib import Path

        from ..tensordict_folder import read_memmap
        from . import checkpoint

        state = checkpoint.read_state(Path(path))
        rows = Path(path) / checkpoint.ROWS
        if rows.is_dir():
            if not self._load_hooks:
                message = "the data were changed by a save hook"
                raise UsageError(message, hint="register the hook that undoes it: register_load_hook(Flat2TED())")
            data = read_memmap(rows)
            for hook in self._load_hooks:
                data = hook(data)
            state["_storage"]["_storage"] = data
        self.load_state_dict(state)

    save = dump = dumps
    load = loads

    # -- data loaders, threads, copies -------------------------------------------------------------------------------

    def as_iterable(self, batches: int | None = None) -> ReplayIterable:
        """Return a ``torch.utils.data.IterableDataset`` of this buffer's batches; see `iterable`."""
        from .iterable import ReplayIterable

        return ReplayIterable(self, batches)

    @property
    def _runs_own_code(self) -> bool:
        """Whether a batch may lie in memory that the user's code reuses for the next batch."""
        now = self._batches
        return bool(now.transforms.chain) or now.options.collate is not None or reads_by_get(now.storage)

    def _one_pass(self) -> Any:
        """The pass that batches make; None if they are endless."""
        assert self.batch_size is not None
        return self.sampler.one_pass(self.storage, self.batch_size)

    def _begin_worker(self, order: Order) -> None:
        """In a worker of a data loader, which makes batches for itself: nothing of the parent's threads is left there."""
        self._lock = threading.RLock()
        self._change(order=order, options=replace(self._batches.options, prefetch=0, output=None))

    def as_map(self) -> ReplayMap:
        """Return a map-style ``torch.utils.data.Dataset`` of this buffer's records; see `iterable`."""
        from .iterable import ReplayMap

        return ReplayMap(self)

    def close(self) -> None:
        """Stop the prefetch threads, if there are any; sampling starts them again."""
        with self._lock:
            self._batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            now = self._batches
            state = {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_last", "_batches")}
            return {**state, "_parts": (now.storage, now.sampler, now.order, now.transforms, now.options)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        parts = state.pop("_parts")
        self.__dict__.update(state)
        self._made(*parts)

    def __repr__(self) -> str:
        transform = f"transform={self.transform!r}, " if len(self.transform) else ""
        return (
            f"{type(self).__name__}(storage={self.storage!r}, sampler={self.sampler!r}, writer={self.writer!r}, "
            f"{transform}batch_size={self.batch_size})"
        )


def is_key(index: Any) -> bool:
    """Return whether an index names a leaf instead of records."""
    if isinstance(index, tuple):
        return bool(index) and all(isinstance(name, str) for name in index)
    return isinstance(index, str)


def as_list(data: Any) -> Any:
    """Return an iterable of records as a list; batches and trees of columns as they are."""
    is_batch = (
        isinstance(data, (torch.Tensor, list, tuple, dict)) or is_tensor_collection(data) or hasattr(data, "dtype")
    )
    return list(data) if not is_batch and hasattr(data, "__iter__") else data


def _in_tensors(kind: str) -> bool:
    return kind in ("TensorStorage", "LazyTensorStorage", "LazyMemmapStorage")


def check_batch_size(batch_size: Any) -> int:
    """Raises SamplingError unless it is a whole number of records that can be read."""
    try:
        return whole_number("batch_size", batch_size, 1, MOST_RECORDS)
    except UsageError as error:
        raise SamplingError(error.message) from error


def check_prefetch(prefetch: Any, batch_size: int | None) -> int:
    """Raises UsageError for a number below 0, and without a batch size."""
    number = 0 if prefetch is None else whole_number("prefetch", prefetch, 0, 1024)
    if number and batch_size is None:
        raise UsageError("prefetching needs the batch_size given to the buffer (or to load())")
    return number


def part(given: Any, kind: type, default: Callable[[], Any], example: str) -> Any:
    """Return a part of a buffer: an instance, or what a function makes. Raises UsageError for anything else."""
    if given is None:
        return default()
    return check_part(given() if callable(given) and not isinstance(given, kind) else given, kind, example)


def check_part(given: Any, kind: type, example: str) -> Any:
    """Raise UsageError unless it is an instance of a kind of part."""
    if not isinstance(given, kind):
        message = f"{kind.__name__.lower()} is wanted, not a {type(given).__name__}"
        theirs = (
            "; TorchRL's take rbdata.torchrl_storage(dataset)" if type(given).__module__.startswith("torchrl.") else ""
        )
        raise UsageError(f"{'an' if kind is Around else 'a'} {message}", hint=f"for example rbdata.{example}{theirs}")
    return given


def sampler_of(given: Any) -> Sampler:
    """Return a sampler, or what a function makes; `RandomSampler` without one."""
    made: Sampler = part(given, Sampler, RandomSampler, "SliceSampler(slice_len=32)")
    return made


def storage_of(given: Any) -> Storage:
    """Return a storage, or that of a dataset or its path; ``ListStorage(1000)`` without one."""
    if isinstance(given, (Dataset, str, os.PathLike)):
        return DatasetStorage(given)
    if given is None:
        from .storages.list_storage import ListStorage

        return ListStorage(1000)
    made: Storage = part(given, Storage, list, "LazyTensorStorage(1_000_000)")
    return made
