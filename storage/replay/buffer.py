"""The replay buffer: a storage, a sampler, a writer and transforms, put together.

extend(data) -> transforms (inverse) -> writer -> storage -> sampler (priorities of new records)
sample()     -> sampler -> draw -> storage -> collate -> transforms -> device -> batch
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from multiprocessing import parent_process
from multiprocessing.context import get_spawning_popen
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

import torch
from tensordict import TensorDict, TensorDictBase, is_tensor_collection
from tensordict.utils import expand_as_right
from typing_extensions import Self

from ...errors import PassRestartedWarning, RowIndexError, UsageError
from ..amounts import html_table, plural
from ..dataset import Dataset
from ..keywords import check_keywords, whole_number
from ..load_options import check_companions
from ..row_index import NoRecordError, is_part_of_all, row_index
from . import checkpoint
from .arguments import (
    check_batch_size,
    check_frame_stack,
    check_parts,
    check_prefetch,
    check_seed,
    make_generator,
    rank_seed,
    resolve,
    resolve_storage,
)
from .batches import KeyWindows, NStep
from .devices import check_device
from .draw import check_generator, draw_seed
from .iterable import LoaderPlace, ReplayIterable, ReplayMap
from .locks import watch_forks
from .overrides import check_part, is_overridden, is_own_code, reads_by_get
from .pipeline import BatchSpec, Info, OrderState, Pipeline, RowsChangedError
from .prefetch import wait_for
from .samplers.sampler import Sampler, Use
from .samplers.uniform import RandomSampler
from .storages.dataset_storage import DatasetStorage
from .storages.list_storage import ListStorage
from .storages.storage import Storage, is_key, read_column, read_records, write_leaf, write_records
from .storages.trees import as_list, copy_of, move_dim_first, stack_records
from .timeline import Edges, as_key, path_of
from .transforms import Transforms, as_transforms, share_state
from .writers import ImmutableDatasetWriter, RoundRobinWriter, Writer, check_newest


def _put_in(batch: TensorDictBase, info: dict[Any, Any]) -> None:
    """Set the info that a user's ``_sample`` returned in the batch, as TorchRL does."""
    for key, value in info.items():
        values = torch.stack(value, -1) if isinstance(value, tuple) else torch.as_tensor(value, device=batch.device)
        batch.set(key, expand_as_right(values, batch) if values.ndim < batch.ndim else values)


Part = Any  # an instance, or a function without arguments that makes one


class ReplayBuffer:
    """Writes records to a storage and samples batches from it.

    All arguments by keyword; those of ``torchrl.data.ReplayBuffer`` come first:

    - ``storage``, ``sampler``, ``writer``: instances, or functions that make them. ``storage`` may also be a `Dataset` or the
      path of one. Defaults: ``ListStorage(1000)``, `RandomSampler`, `RoundRobinWriter` (read-only over a dataset).
    - ``collate_fn``: makes a batch of the records that the storage returns; the default stacks the records of a list.
    - ``transform`` or ``transform_factory``: see `transforms`.
    - ``batch_size``: may be given to `sample` instead, but iteration and prefetching need it here.
    - ``prefetch``: the number of batches that are drawn and made ahead, in as many threads. ``pin_memory``, ``device``: where
      batches are put. With a CUDA device one batch of a dataset is prefetched unless ``prefetch`` is given: copies overlap with
      work. Not with priorities or functions of yours, whose batches would lag, nor of buffers that are written to.
    - ``dim_extend``: the dimension of the data of `extend` that counts records, by default the last one of the storage.
    - ``generator`` or ``seed``: same seed, same batches. With neither, the seed comes from torch's global generator.
    - ``frame_stack``, ``stack_keys``, ``n_step``, ``gamma``: windows, see `batches` and `n_step`; they never cross an episode.
    - ``checkpointer``: its hooks, if it has any, are registered as by `register_save_hook` and `register_load_hook`.
    - ``delayed_init``: make the parts at the first use, perhaps in another process; True by default with ``transform_factory``.
    - ``compilable``, ``service_backend_options``, ``transport_options``: no effect, because nothing is compiled or served here.
      ``service_backend`` and ``transport`` may be "direct" (or "auto").
    - ``end_key``, ``traj_key``: where windows (and the slices of ``rbdata.load``) find the edges of episodes, if not under the
      usual keys (see `Edges`).
    - ``rank``, ``world_size``: the share of this process in data-parallel training. Without replacement all processes follow
      the same order, given by ``seed``, and take every ``world_size``-th step; with replacement each draws independently.
      Together they take every step, so one process may have a batch more than another: ``drop_last`` gives all as many.

    `sample` of a plain buffer returns the stored records; the sampler's information (``index``, flags, weights) is returned
    with ``return_info=True``. `TensorDictReplayBuffer` puts it into the batch.
    """

    _info_in_batch = False
    _ring_writer: type[Writer] = RoundRobinWriter
    _warned_of_add = _warned_of_restart = False
    _storage: Storage
    _sampler: Sampler
    _writer: Writer
    _rng: torch.Generator
    _pipeline: Pipeline

    @check_keywords
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
        checkpointer: Any = None,
        generator: torch.Generator | None = None,
        shared: bool = False,
        compilable: bool | None = None,
        delayed_init: bool | None = None,
        service_backend: str = "direct",
        service_backend_options: dict[str, Any] | None = None,
        transport: str = "auto",
        transport_options: dict[str, Any] | None = None,
        device: Any = None,
        seed: int | None = None,
        frame_stack: int | None = None,
        stack_keys: str | Sequence[str | tuple[str, ...]] | None = None,
        n_step: int | None = None,
        gamma: float = 0.99,
        end_key: Any = None,
        traj_key: Any = None,
        rank: int = 0,
        world_size: int = 1,
        windows: Mapping[Any, tuple[int, int]] | None = None,
        padding: Literal["repeat", "zero"] = "repeat",
    ) -> None:
        if transform is not None and transform_factory is not None:
            raise UsageError("give transform or transform_factory, not both")
        if generator is not None and seed is not None:
            raise UsageError("give generator or seed, not both")
        if dim_extend is not None and dim_extend < 0:
            raise UsageError(f"dim_extend must not be negative, and is {dim_extend}")
        frame_stack = None if frame_stack is None else check_frame_stack(frame_stack)
        if padding not in ("repeat", "zero"):
            raise UsageError(f"padding is {padding!r}, not 'repeat' or 'zero'")
        reading = {"frame_stack": frame_stack, "stack_keys": stack_keys, "n_step": n_step, "gamma": gamma}
        check_companions({**reading, "windows": windows, "padding": padding})
        if {service_backend, transport} - {"direct", "auto"}:
            raise UsageError("a buffer is where it is made: service_backend and transport must be direct")
        rank, world_size = whole_number("rank", rank, 0), whole_number("world_size", world_size, 1)
        if rank >= world_size:
            raise UsageError(f"rank {rank} is not among {world_size} processes")
        self.batch_size = None if batch_size is None else check_batch_size(batch_size)
        if checkpointer is not None and not hasattr(checkpointer, "_save_hooks"):
            checkpointer = checkpointer()
        self._save_hooks = list(getattr(checkpointer, "_save_hooks", None) or ())
        self._load_hooks = list(getattr(checkpointer, "_load_hooks", None) or ())
        self.shared = shared
        self._rank, self._world = rank, world_size
        self._loader_epochs = 0
        self._loader_place: LoaderPlace | None = None
        self._spec = BatchSpec(
            frame_stack=frame_stack,
            stack_keys=None if stack_keys is None else _paths(stack_keys),
            padding=padding,
            edges=Edges(None if traj_key is None else as_key(traj_key), () if end_key is None else (as_key(end_key),)),
            n_step=None if n_step is None else NStep(n_step, gamma),
            key_windows=None if windows is None else KeyWindows.of(windows, padding),
            info_in_batch=self._info_in_batch,
            collate=collate_fn,
            prefetch=check_prefetch(prefetch, self.batch_size),
            device=None if device is None else check_device(device),
            pin_memory=pin_memory,
        )
        self._pass_ended = self._warned = False
        #: By thread: whether the batch that it sampled last ended a pass.
        self._ended: dict[int, bool] = {}
        self._make_lock()
        on_gpu = self._spec.device is not None and self._spec.device.type == "cuda"
        #: The arguments of `_make_parts`, until it is called.
        self._unmade: dict[str, Any] | None = {
            "storage": storage,
            "sampler": sampler,
            "writer": writer,
            "transform": transform,
            "transform_factory": transform_factory,
            "dim_extend": dim_extend,
            "generator": generator,
            "seed": None if seed is None else check_seed(seed),
            "one_ahead": prefetch is None and on_gpu,
        }
        if not (transform_factory is not None if delayed_init is None else delayed_init):
            self._make_parts(self._unmade)

    def _make_parts(self, given: dict[str, Any]) -> None:
        """Make the parts from the arguments of the constructor; ``one_ahead``: prefetch a batch where it is the same then."""
        self._unmade = None
        self._storage = resolve_storage(given["storage"])
        self._sampler = resolve(given["sampler"], Sampler, RandomSampler, "SliceSampler(slice_len=32)")
        if self._sampler.drop_last and self.batch_size is None:
            raise UsageError("drop_last needs the batch_size given to the buffer")
        self._writer = resolve(given["writer"], Writer, self._default_writer, "RoundRobinWriter()")
        self._check_parts(self._sampler, self._storage, self._writer)
        check_part(self)
        self._writer.register_storage(self._storage)
        factory, dim_extend = given["transform_factory"], given["dim_extend"]
        self._transforms = as_transforms(given["transform"] if factory is None else factory())
        self._dim_extend = self._storage.ndim - 1 if dim_extend is None else dim_extend
        if given["one_ahead"] and self._sampler.ahead and self._storage.immutable and self.batch_size:
            self._spec = replace(self._spec, prefetch=1, prefetch_is_default=True)
        self._start_order(given["generator"], given["seed"])
        if self.shared:
            self.share()

    if not TYPE_CHECKING:  # type checkers would accept any attribute name

        def __getattr__(self, name: str) -> Any:
            """Make the parts of a buffer that was made with ``delayed_init``."""
            if not name.startswith("__") and "_lock" in self.__dict__:
                with self._lock:  # another thread may be making them
                    if self.__dict__.get("_unmade") is not None:
                        self._make_parts(self._unmade)
                    if name in self.__dict__:
                        return self.__dict__[name]
            raise AttributeError(f"a {type(self).__name__} has no attribute {name!r}")

    @property
    def initialized(self) -> bool:
        """Whether the parts are made: False until the first use of a buffer made with ``delayed_init``."""
        return self._unmade is None

    def _check_parts(self, sampler: Sampler, storage: Storage, writer: Writer) -> None:
        """Raise UsageError for parts that do not work together, or whose classes define methods that would not be called."""
        for part in (sampler, storage, writer):
            check_part(part)
        spec = self._spec
        if spec.key_windows is not None and (spec.frame_stack or spec.n_step):
            message = "windows are read instead of frame_stack and n_step"
            raise UsageError(message, hint="give windows alone")
        check_parts(sampler, storage, writer, Use(spec.prefetch, spec.has_windows, world_size=self._world))

    # -- parts -------------------------------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        """Assign parts under TorchRL's names, as its examples do. Raises UsageError for attributes that cannot change."""
        instead = _ASSIGNED.get(name)
        if instead is None or ("_pipeline" not in self.__dict__ and self.__dict__.get("_unmade") is None):
            super().__setattr__(name, value)
        elif isinstance(instead, str):
            raise UsageError(f"assigning {name} to a {type(self).__name__} would have no effect", hint=instead)
        else:
            _ = self.initialized or self._storage  # which makes the parts
            instead(self, value)

    @property
    def _collate_fn(self) -> Callable[[Any], Any]:
        return self._spec.collate or stack_records

    def _set_transform(self, transform: Any) -> None:
        with self._exclusive():
            self._transforms = as_transforms(transform)
            if self.shared:
                share_state(self._transforms)
            self._make_pipeline(self._rng)

    def _set_batch_size(self, batch_size: int | None) -> None:
        with self._exclusive():
            self.__dict__.update(batch_size=None if batch_size is None else check_batch_size(batch_size))

    def _default_writer(self) -> Writer:
        return ImmutableDatasetWriter() if self._storage.immutable else self._ring_writer()

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

    _transform = transform

    @property
    def dim_extend(self) -> int:
        return self._dim_extend

    def set_storage(self, storage: Storage, collate_fn: Callable[[Any], Any] | None = None) -> Storage:
        """Replace the storage; returns the previous one."""
        with self._exclusive():
            before = self._storage
            self._check_parts(self._sampler, storage, self._writer)
            self._writer.register_storage(storage)
            if self._dim_extend == before.ndim - 1:
                self.__dict__.update(_dim_extend=storage.ndim - 1)
            self.__dict__.update(_storage=storage, _spec=replace(self._spec, collate=collate_fn))
            if storage is not before:
                self._sampler._leave()
                if self._sampler.values_per_row:
                    self._sampler.empty()  # drop its values for rows of the previous storage
            self._make_pipeline(self._rng)
            return before

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Replace the sampler; returns the previous one."""
        with self._exclusive():
            self._check_parts(sampler, self._storage, self._writer)
            before = self._sampler
            if sampler is not before:
                before._leave()
            self.__dict__.update(_sampler=sampler)
            self._make_pipeline(self._rng)
            return before

    def set_writer(self, writer: Writer) -> Writer:
        """Replace the writer; returns the previous one."""
        with self._lock:
            self._check_parts(self._sampler, self._storage, writer)
            before = self._writer
            self.__dict__.update(_writer=writer)
            writer.register_storage(self._storage)
            return before

    # -- seeds -------------------------------------------------------------------------------------------------------

    def set_seed(self, seed: int) -> None:
        """Start the sequence of batches that a seed determines."""
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
        check_generator(generator)
        self._rng_given = generator is not None
        if generator is None:
            own = draw_seed() if seed is None else seed
            # In data-parallel training each process draws its own numbers, and all processes share one order.
            generator = make_generator(rank_seed(own, self._rank) if self._world > 1 else own)
        passes = getattr(self._sampler, "passes", None)
        if passes is not None and seed is not None:
            passes.seed(seed)
        self._make_pipeline(generator)
        self._pass_ended = False
        self._pipeline.order.batches = 0

    def _make_pipeline(self, generator: torch.Generator) -> None:
        """Replace the pipeline by one of the current parts."""
        batches = 0
        if "_pipeline" in self.__dict__:
            self._pipeline.close()
            batches = self._pipeline.order.batches
        self.__dict__.update(_rng=generator)
        self._sampler.share = (self._rank, self._world)
        self._pipeline = Pipeline(
            self._storage, self._sampler, generator, self._transforms, self._spec, self._lock, watched=self._rng_given
        )
        self._pipeline.order.batches = batches

    # -- transforms ----------------------------------------------------------------------------------------

    def append_transform(self, transform: Any, *, invert: bool = False) -> ReplayBuffer:
        """Add a transform at the end; returns the buffer."""
        return self.insert_transform(len(self._transforms), transform, invert=invert)

    def insert_transform(self, index: int, transform: Any, *, invert: bool = False) -> ReplayBuffer:
        """Add a transform before the one at ``index``; returns the buffer."""
        with self._exclusive():
            if self.shared:
                share_state(transform)
            self._transforms.insert(index, transform, invert=invert)
        return self

    def _repr_html_(self) -> str:
        if not self.initialized:
            return html_table(f"{type(self).__name__}, not yet made", ())
        parts = ("storage", "sampler", "writer", "transform")
        rows = [(name, repr(getattr(self, name))) for name in parts if name != "transform" or len(self._transforms)]
        rows += [("batch_size", str(self.batch_size))]
        return html_table(f"{type(self).__name__}: {plural(len(self), 'record')}", rows)

    def __repr__(self) -> str:
        transform = f"transform={self._transforms!r}, " if len(self._transforms) else ""
        return (
            f"{type(self).__name__}(storage={self._storage!r}, sampler={self._sampler!r}, writer={self._writer!r}, "
            f"{transform}batch_size={self.batch_size})"
        )

    # -- sampling ------------------------------------------------------------------------------------------------------

    @property
    def write_count(self) -> int:
        """Records written so far."""
        return getattr(self._writer, "write_count", 0)

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Draw one batch, or ``(batch, info)``.

        Raises UsageError without a batch size, SamplingError when the batch cannot be drawn.
        """
        size = self._size(batch_size)
        if type(self)._sample is not ReplayBuffer._sample or "_sample" in self.__dict__:
            found = self._sample(size)
            if self._info_in_batch and isinstance(found[0], TensorDictBase):
                _put_in(*found)
            return found if return_info else found[0]
        batch, info = self._next_batch(size, size == self.batch_size)
        return (batch, info()) if return_info else batch

    def _sample(self, batch_size: int) -> tuple[Any, dict[Any, Any]]:
        """A batch and its info. `sample` calls this method if a subclass overrides it, as in TorchRL."""
        batch, info = self._next_batch(batch_size, batch_size == self.batch_size)
        return batch, info()

    def _next_batch(self, size: int, ahead: bool) -> tuple[Any, Info]:
        """A batch, and a function that makes its info; ``ahead``: further batches of this size may be prefetched."""
        while True:
            try:
                with self._lock:
                    make = self._pipeline.begin(size, ahead)
                batch, info, self._ended[threading.get_ident()] = make()
                return batch, info
            except RowsChangedError:
                ahead = False  # drawn again, and read at once
            except RuntimeError as error:
                if "doesn't have storage" not in str(error):
                    raise
                message = 'torch.vmap(..., randomness="different") has no numbers in memory that rows could be drawn by'
                raise UsageError(message, hint='sample before vmap, or give it randomness="same"') from error

    @property
    def _gives_columns(self) -> bool:
        """Whether `_next_columns` can take the place of `_next_batch`."""
        return type(self)._next_batch is ReplayBuffer._next_batch and self._pipeline.gives_columns

    def _next_columns(self, size: int, count: int) -> tuple[dict[str, torch.Tensor], list[int]]:
        """See `Pipeline.sample_columns`."""
        with self._lock:
            return self._pipeline.sample_columns(size, count)

    @property
    def _runs_own_code(self) -> bool:
        """Whether a batch may lie in memory that the user's code reuses for the next batch."""
        return self._pipeline.runs_own_code or is_own_code(self)

    @property
    def _ran_out(self) -> bool:
        """Whether the batch that this thread sampled last ended a pass."""
        return self._ended.get(threading.get_ident(), False)

    def can_sample(self, batch_size: int | None = None) -> bool:
        """Whether `sample` with this size would return a batch."""
        size = self._size(batch_size)
        with self._lock:
            return self._pipeline.order.can_draw(size)

    def sample_at(self, index: Any) -> Any:
        """The batch that `sample` would give for these records: frame stacks, n-step returns, windows, transforms.

        ``index``: a number, numbers in a sequence or a tensor ``[n]`` (for storages of several dimensions ``[n, ndim]`` or a
        tuple of tensors), or a slice or a mask of all records. Nothing is drawn: the order of batches does not change, and
        there are no weights. Raises SamplingError (an IndexError) for rows that do not exist.
        """
        with self._lock:
            if self._storage.ndim == 1 and is_part_of_all(index):
                count = len(self._storage)
                try:
                    rows = row_index(index, count, "record")
                except RowIndexError as error:
                    raise NoRecordError(error.message) from error
                index = torch.arange(count, device="cpu")[rows]
            return self._pipeline.at(self._storage.flat(index))

    def _size(self, batch_size: int | None) -> int:
        if batch_size is None:
            if self.batch_size is None:
                raise UsageError("no batch size", hint="give batch_size to the buffer (or to load()), or to sample()")
            return self.batch_size
        size = check_batch_size(batch_size)
        if self.batch_size is not None and size != self.batch_size and not self._warned:
            self._warned = True
            message = f"sample({size}) on a buffer with batch_size={self.batch_size}: the argument wins"
            warnings.warn(message, stacklevel=3)
        return size

    def __iter__(self) -> Iterator[Any]:
        """Endless batches, or the batches of one pass if the sampler has passes."""
        if self.batch_size is None:
            raise UsageError("iteration needs the batch_size given to the buffer (or to load())")
        if is_overridden(self._sampler, "ran_out") and self._sampler.ran_out:
            self._sampler.ran_out = False  # as TorchRL does: a user's sampler may wait for it
        restarts = None
        while True:
            batch = self.sample()
            if restarts is not None:
                self._warn_of_restart(restarts)
            restarts, ended = self._restarts, self._ran_out
            yield batch
            if (ended or self._ran_out) and not self._sampler.endless:  # the loop may sample the end of the pass itself
                return

    @property
    def _restarts(self) -> int:
        return getattr(getattr(self._sampler, "passes", None), "restarts", 0)

    def _warn_of_restart(self, before: int) -> None:
        if self._restarts > before and not self._warned_of_restart:
            self._warned_of_restart = True
            message = (
                "a write during an iteration without replacement has started the pass again, from its first batch: "
                "write after the loop, or sample with replacement"
            )
            warnings.warn(message, PassRestartedWarning, stacklevel=3)

    def __next__(self) -> Any:
        batch = self.next()
        if batch is None:
            raise StopIteration
        return batch

    def next(self) -> Any:
        """The next batch of an iteration that the buffer keeps; None after the last batch of a pass."""
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
        """The dataset of the storage, if it has one."""
        if not isinstance(self._storage, DatasetStorage):
            raise UsageError(f"the buffer stands on a {type(self._storage).__name__}, not on a dataset")
        return self._storage.source

    @property
    def statistics(self) -> dict[str, Any]:
        """The constants by which `load` changed leaves, for evaluation: ``(x - mean) / std``, ``scale * reward + shift``.

        ``{"observation": {"mean": float64 array, "std": float64 array}, "next/reward": {"scale": float, "shift": float}}``,
        for the leaves that ``normalize`` and ``reward_scale`` of `load` name; empty without these options. They are copies.
        """
        return deepcopy(self._storage.statistics) if isinstance(self._storage, DatasetStorage) else {}

    # -- looking at it -----------------------------------------------------------------------------------------------

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
        storage = self._storage if self._unmade is None else self._unmade["storage"]
        capacity = getattr(storage, "max_size", None)
        if isinstance(capacity, int):
            stats.update(capacity=capacity, utilization=stats["size"] / capacity)
        return stats

    def read_all_in_order(self, end: int | None = None) -> Any:
        """``self[:end]``: the records by row."""
        return self[:end]

    def __getitem__(self, index: Any) -> Any:
        """Records by number or slice (several through the ``collate_fn``, all through the transforms), or one column by key.

        Records are single: ``n_step`` and ``frame_stack`` apply only to `sample` and `sample_at`.
        """
        if is_key(index):
            plain = not len(self._transforms) and self._spec.collate is None and not reads_by_get(self._storage)
            by_leaf = plain and type(self._storage) is DatasetStorage
            whole = self._storage.dataset if by_leaf else self[:]  # type: ignore[attr-defined]
            return read_column(self._storage, whole, index)
        with self._lock:
            data = self._storage.read_whole(partial(read_records, self._storage, index, self._swapped_dim))
        if self._spec.collate is not None and not isinstance(index, Integral):
            data = self._spec.collate(copy_of(data))
        elif isinstance(self._storage, ListStorage) and isinstance(data, list):
            data = stack_records(data)
        data = self._transforms.apply_to_stored(data)
        # A data loader collects records one by one before it makes a batch of them.
        return copy_of(data) if isinstance(index, int) and self._transforms.are_own_code else data

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """The records that ``DataLoader(buffer)`` collates. Raises UsageError where the buffer's batches hold more."""
        spec = self._spec
        given = {"n_step": spec.n_step, "frame_stack": spec.frame_stack, "windows": spec.key_windows}
        names = [name for name, value in given.items() if value is not None]
        if names:
            message = f"DataLoader(buffer) reads single records, without {' and '.join(names)}"
            raise UsageError(
                message, hint="give it buffer.as_map(), which reads them as the buffer's batches have them"
            )
        if spec.relabeling is not None:
            message = "DataLoader(buffer) reads single records, without goals"
            raise UsageError(message, hint="buffer.as_iterable().loader() gives batches of the buffer")
        return [self[number] for number in numbers]

    # -- writing -------------------------------------------------------------------------------------------------------

    @property
    def _swapped_dim(self) -> int:
        """The dimension of the data of `extend` that is the first dimension of the storage; 0 if it is in front."""
        return self._dim_extend if self._storage.ndim > 1 else 0

    def add(self, data: Any) -> Any:
        """Write one record; returns its row (an int; None if the writer does not keep the record).

        Warns once if a TensorDict has a batch dimension: it is stored as one record.
        """
        if not self._warned_of_add and is_tensor_collection(data) and data.ndim:
            self._warned_of_add = True
            message = (
                f"Using `add()` with a TensorDict that has batch_size={tuple(data.batch_size)}: it becomes one record; "
                "extend() writes a record for each of its rows"
            )
            warnings.warn(message, stacklevel=3)
        if len(self._transforms):
            # Transforms are written for batches with a time dimension.
            nested = is_tensor_collection(data)
            data = self._transforms.inv(data.unsqueeze(-1) if nested else data)
            if data is None:
                return None
            data = data.squeeze(-1) if nested else data
        with self._writing():
            return self._notify_sampler(self._sampler._writer_for(self._writer, self._storage).add(data), single=True)

    def extend(self, data: Any, *, update_priority: bool | None = None) -> Any:
        """Write a batch of records; returns their rows, int64 ``[n]`` (``[n, ndim]`` for a storage of more dimensions).

        A list holds records, as does any other iterable of records: a deque, the values of a dict, a generator. A tuple is a
        tree of columns: record i has their i-th elements. If there are more records than room, the newest stay. Raises
        SchemaError if keys, shapes or dtypes differ from the stored ones, ReadOnlyError if the buffer is read-only.
        """
        data = self._transforms.inv(as_list(data))
        if data is None:
            return torch.zeros((0, self._storage.ndim), dtype=torch.int64, device="cpu")
        with self._writing():
            writer = self._sampler._writer_for(self._writer, self._storage)
            return self._notify_sampler(writer.extend(move_dim_first(data, self._dim_extend, self._storage.ndim)))

    def _notify_sampler(self, index: Any, *, single: bool = False) -> Any:
        """Tell the sampler which rows were written; returns them. Methods that users override get them in TorchRL's form."""
        if index is None:
            return None
        sampler, storage = self._sampler, self._storage
        if is_own_code(self._writer):
            check_newest(storage, index)
        if storage.ndim > 1:
            sampler.reserve(storage.capacity * storage.width)
        if is_overridden(sampler, "mark_update"):
            sampler.mark_update(index, storage=storage)
        name = "add" if single else "extend"
        if not is_overridden(sampler, name):
            getattr(sampler, name)(storage.flat([index] if isinstance(index, int) else index))
            return index
        sampler._written = storage
        try:
            getattr(sampler, name)(index)
        finally:
            sampler._written = None
        return index

    def update_priority(self, index: Any, priority: Any) -> None:
        """Set priorities by row; no effect if the sampler has no priorities."""
        if is_overridden(self._sampler, "update_priority"):  # which gets what TorchRL's gets
            index = torch.stack(index, -1) if isinstance(index, tuple) else index
            priority = torch.as_tensor(priority)
        self._check_process()
        with self._lock:
            self._sampler.update_priority(index, priority, storage=self._storage)

    def mark_update(self, index: Any) -> None:
        """Give rows the priority of new records. Raises SamplingError for rows that do not exist."""
        self._check_process()
        with self._lock:
            self._sampler.mark_update(index, storage=self._storage)

    def empty(self, empty_write_count: bool = True) -> None:
        """Remove all records; ``empty_write_count`` also resets `write_count`. Raises ReadOnlyError over a dataset."""
        self._check_process()
        with self._exclusive():
            self._writer.empty(empty_write_count=empty_write_count)
            self._storage.empty()
            self._sampler.empty()

    def __setitem__(self, index: Any, value: Any) -> None:
        if is_key(index):
            with self._writing():
                write_leaf(self._storage, index, value, dim=self._swapped_dim)
            return
        value = self._transforms.inv(value)
        with self._writing():
            write_records(self._storage, index, value, self._swapped_dim)

    def write_all(self, data: Any, end: int | None = None) -> None:
        """``self[:end] = data``; ``end`` is the number of records in the data if not given."""
        end = len(data) if end is None and not self._swapped_dim else end
        self[:end] = data

    def set_(self, key: Any, value: Any) -> Self:
        """Change a leaf of all records, as they are stored: ``[*storage.shape, ...]``, without transforms."""
        with self._writing():
            write_leaf(self._storage, key, value)
        return self

    def set_at_(self, key: Any, value: Any, index: Any) -> Self:
        """Change a leaf of the records at ``index``, as they are stored."""
        with self._writing():
            write_leaf(self._storage, key, value, index)
        return self

    def update_(self, input_dict_or_td: Any, clone: bool = False, *, keys_to_update: Any = None) -> Self:
        """Change the given leaves of all records (or only ``keys_to_update`` of them); values are always copied."""
        wanted = None if keys_to_update is None else {as_key(key) for key in keys_to_update}
        values = self._storage._copied_if_own(TensorDict(input_dict_or_td, []))  # one leaf may be a view of another
        for key, value in values.items(True, True):
            path = as_key(key)
            if wanted is None or any(path[: len(key)] == key for key in wanted):
                self.set_(key, value)
        return self

    # -- saving ------------------------------------------------------------------------------------------------------

    def register_save_hook(self, hook: Callable[..., Any]) -> None:
        """Pass the stored data through ``hook(data, path=...)`` before `dumps` writes them (see `ted_hooks`)."""
        self._save_hooks.append(hook)

    def register_load_hook(self, hook: Callable[..., Any]) -> None:
        """Pass the data that `loads` reads through ``hook(data, out=...)``."""
        self._load_hooks.append(hook)

    def dumps(self, path: Any) -> None:
        """Write everything to a folder; see `checkpoint`."""
        with self._saving:
            checkpoint.dump(self, path)

    def loads(self, path: Any) -> None:
        """Read what `dumps` wrote, into a buffer made of the same parts; see `checkpoint`."""
        self._check_process()
        with self._saving, self._exclusive():
            checkpoint.load(self, path)

    save = dump = dumps
    load = loads

    def state_dict(self) -> dict[str, Any]:
        """Copies of all data and the state of the order of batches, in memory, under TorchRL's names."""
        with self._lock, self._storage.read_lock:
            return checkpoint.state_of(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state from `state_dict`, of this package or of TorchRL 0.14, whose prefetched batches are dropped.

        Raises UsageError or SchemaError for the state of a different buffer; this buffer then stays unchanged.
        """
        self._check_process()
        with self._exclusive():
            checkpoint.load_state(self, state_dict)

    # -- locks: `prefetch` says who waits for whom -------------------------------------------------------------------

    def _make_lock(self) -> None:
        self._lock = threading.RLock()
        self._saving = threading.RLock()  # held while a checkpoint is written or read, outside of the other
        self._made_in = os.getpid()
        watch_forks(self)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Inside, rows may be written: no thread reads, and all drawn rows have been read."""
        self._check_process()
        with self._lock:
            self._pipeline.prepare_write()
            with self._storage.write_lock:
                yield

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Inside, anything may be changed: draws made ahead are taken back; running jobs ended before the lock was taken."""
        with self._lock:
            running = self._pipeline.rewind()
        wait_for(running)
        with self._lock:
            self._pipeline.rewind()
            with self._storage.write_lock:
                yield

    def _check_process(self) -> None:
        """Raise UsageError in a process whose sampler or writer is a copy, while the rows are shared with the original."""
        if self._made_in == os.getpid() or not self._storage.is_shared:
            return
        for part in (self._sampler, self._writer):
            if part.values_per_row:
                message = f"a {type(part).__name__} keeps values of every row in the process that made the buffer"
                raise UsageError(message, hint="write in that process, or sample without priorities and rank keys")

    def _after_fork(self) -> None:
        self._lock, self._saving = threading.RLock(), threading.RLock()
        pipeline: Pipeline | None = self.__dict__.get("_pipeline")
        if pipeline is not None:
            pipeline.after_fork(self._lock)

    # -- processes ---------------------------------------------------------------------------------------------------

    def share(self, shared: bool = True) -> Self:
        """Put the storage and the write state of transforms in shared memory. Warns where the storage cannot be shared."""
        if not shared:
            self.shared = False
            return self
        check_parts(self._sampler, self._storage, self._writer, Use(shared=True))
        if hasattr(self._storage, "share_memory_"):
            self._share_storage()
        elif not self._storage.immutable:
            warnings.warn(f"a {type(self._storage).__name__} is copied to other processes, not shared", stacklevel=2)
        share_state(self._transforms)
        self.shared = True
        return self

    def _share_storage(self) -> None:
        if not self._storage.is_shared:
            with self._writing():  # memory moves
                self._storage.share_memory_()  # type: ignore[attr-defined]
                self._writer._share_count()

    def split(self, rank: int, world_size: int, epoch: int = 0) -> None:
        """Restrict this buffer to the share ``rank`` of ``world_size`` of its steps, as a data loader's worker does.

        ``epoch``: the number of the loader's iterator, from 0. Each iterator has a different pass, or different random numbers.
        """
        check_parts(self._sampler, self._storage, self._writer, Use(world_size=world_size))
        seed = int(self._rng.initial_seed())
        with self._exclusive():
            self._undivided = self._rank, self._world, seed
            passes = getattr(self._sampler, "passes", None)
            if passes is not None and passes.position()[0] < 0:
                passes.seed(seed)
            if passes is not None and epoch:
                passes.skip(epoch)
            self._begin_share(rank, world_size, epoch)

    def _split_again(self, rank: int, world_size: int, epoch: int) -> None:
        """What `split` would do in a new worker, in one that persists: its next iterator."""
        with self._exclusive():
            passes = getattr(self._sampler, "passes", None)
            if passes is not None and passes.position()[2]:  # the last iterator was left inside its pass
                passes.skip(1)
            self._begin_share(rank, world_size, epoch)

    def _begin_share(self, rank: int, world_size: int, epoch: int) -> None:
        process, processes, seed = self._undivided
        # Every world-th place of this process's share, whatever the number of workers of other processes.
        self._rank, self._world = process + processes * rank, processes * world_size
        own = rank_seed(seed, self._rank)
        self._make_pipeline(make_generator(rank_seed(own, epoch) if epoch else own))

    def _change_spec(self, **changes: Any) -> None:
        with self._exclusive():
            self._spec = replace(self._spec, **changes)
            self._make_pipeline(self._rng)

    def as_iterable(self, batches: int | None = None) -> ReplayIterable:
        """A ``torch.utils.data.IterableDataset`` of this buffer's batches; see `iterable`."""
        return ReplayIterable(self, batches)

    def as_map(self) -> ReplayMap:
        """A map-style ``torch.utils.data.Dataset`` of this buffer's records; see `iterable`."""
        return ReplayMap(self)

    def close(self) -> None:
        """Stop the prefetch threads, if there are any; sampling starts them again."""
        with self._exclusive():
            self._pipeline.close()

    service_backend = "direct"
    is_alive = True

    def client(self) -> Self:
        """The buffer itself."""
        return self

    start = client

    def shutdown(self, timeout: float | None = None) -> None:
        """As `close`; ``is_alive`` is False afterwards."""
        self.close()
        self.is_alive = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy of one moment: a thread that wrote meanwhile would leave rows, cursor and priorities of different moments."""
        with self._lock:
            if self._unmade is not None:
                return self._copied(memo)
            with self._storage.read_lock:
                return self._copied(memo)

    def _copied(self, memo: dict[int, Any]) -> Self:
        reduced: Any = self.__reduce_ex__(4)
        make, arguments, *state = reduced
        copied = memo[id(self)] = make(*deepcopy(arguments, memo))
        if state and state[0] is not None:
            copied.__setstate__(deepcopy(state[0], memo))
        return copied

    def __getstate__(self) -> dict[str, Any]:
        if self._unmade is not None:
            return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_saving")}
        if get_spawning_popen() is not None and getattr(self._storage, "initialized", False):
            self._share_storage()  # otherwise the pickler would do it while threads write
        with self._lock:
            order, seed = self._pipeline.state(), self._rng.initial_seed()
            # Memory that processes share is not set back: the batches on their way are the other one's.
            before: dict[str, Any] | None = None
            if self._pipeline.queued and not self.shared:
                with suppress(Exception):  # of a state that cannot be copied: the copy counts those batches twice
                    before = self._pipeline.transforms_state()
        left_out = ("_lock", "_saving", "_pipeline", "_rng")
        state = {name: value for name, value in self.__dict__.items() if name not in left_out}
        place = (order.generator.numpy().tobytes(), order.sampler, seed, order.batches, order.own)
        return {**state, "_order": place, "_before": before}

    def __setstate__(self, state: dict[str, Any]) -> None:
        generator, position, seed, batches, own = state.pop("_order", (None, None, None, 0, None))
        transforms = state.pop("_before", None)
        self.__dict__.update(state)
        self._make_lock()
        if self._unmade is not None:
            return
        if parent_process() is not None:  # a process of multiprocessing: other processes share the rows
            self._made_in = state["_made_in"]
        self._writer._share_count()
        self._make_pipeline(make_generator(seed))
        generator = torch.frombuffer(bytearray(generator), dtype=torch.uint8)
        self._pipeline.go_to(OrderState(generator, position, batches, own))
        if transforms and parent_process() is None:
            self._transforms.load_state_dict(transforms)


def _paths(keys: str | Sequence[str | tuple[str, ...]]) -> tuple[str, ...]:
    return (keys,) if isinstance(keys, str) else tuple(path_of(key) for key in keys)


#: The effect of assigning an attribute after the buffer is made, or the call to use instead.
_ASSIGNED: dict[str, Callable[[Any, Any], Any] | str] = {
    "_storage": lambda buffer, storage: buffer.set_storage(storage, buffer._spec.collate),
    "_sampler": ReplayBuffer.set_sampler,
    "_writer": ReplayBuffer.set_writer,
    "_transform": ReplayBuffer._set_transform,
    "_collate_fn": lambda buffer, collate: buffer._change_spec(collate=collate),
    "_rng": ReplayBuffer.set_rng,
    "batch_size": ReplayBuffer._set_batch_size,
    "_batch_size": ReplayBuffer._set_batch_size,
    **dict.fromkeys(("_prefetch", "_prefetch_cap"), "make the buffer with prefetch="),
    "_pin_memory": "make the buffer with pin_memory=",
    "_priority_key": "assign priority_key",
    **dict.fromkeys(("dim_extend", "_dim_extend"), "make the buffer with dim_extend="),
    **dict.fromkeys(("_replay_lock", "_write_lock", "_futures_lock"), "the buffer has its own lock"),
}
