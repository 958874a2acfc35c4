"""The replay buffer: a storage, a sampler, a writer and transforms, put together.

extend(data) -> transforms (inverse) -> writer -> storage -> sampler (priorities of new records)
sample()     -> sampler -> draw -> storage -> collate -> transforms -> device -> batch
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from ...amounts import MOST_RECORDS, html_table, plural
from ...errors import UsageError
from ...keywords import check_keywords
from .argument_checks import (
    check_batch_size,
    check_consumption,
    check_prefetch,
    check_seed,
    make_generator,
    rank_seed,
    resolve_sampler,
    resolve_storage,
    resolve_writer,
)
from .checkpoints.mixin import CheckpointMixin
from .conditional_update import ConditionalUpdateMixin
from .devices import check_device
from .overrides import check_part
from .pipeline import BatchSpec, Pipeline
from .sample_units import check_unit
from .samplers.uniform import Sampler
from .sampling import SamplingMixin
from .storages.storage import Storage
from .storages.trees import stack_records
from .transforms.chain import Transforms, as_transforms, share_state
from .windows.edges import Edges, as_key
from .windows.n_step_return import NStep
from .writers.base import ImmutableDatasetWriter, Writer
from .writers.round_robin import RoundRobinWriter

Part = Any  # an instance, or a function without arguments that makes one


@dataclass(frozen=True)
class GivenParts:
    """What the parts of a buffer are made of, when they are made; ``one_ahead``: prefetch a batch if the sampler can."""

    storage: Part
    sampler: Part
    writer: Part
    transform: Any
    transform_factory: Callable[[], Any] | None
    dim_extend: int | None
    generator: torch.Generator | None
    seed: int | None
    one_ahead: bool
    consume_after: int | None


class ReplayBuffer(SamplingMixin, ConditionalUpdateMixin, CheckpointMixin):
    """Writes records to a storage and samples batches from it.

    All arguments by keyword; those of ``torchrl.data.ReplayBuffer`` come first:

    - ``storage``, ``sampler``, ``writer``: instances, or functions that make them. ``storage`` may also be a `Dataset` or the
      path of one. Defaults: ``ListStorage(1000)``, `RandomSampler`, `RoundRobinWriter` (read-only over a dataset).
    - ``collate_fn``: makes a batch of what the storage returns; the default stacks the records of a list.
    - ``transform`` or ``transform_factory``: see `transforms`.
    - ``batch_size``: may be given to `sample` instead, but iteration and prefetching need it here.
    - ``prefetch``: how many batches are drawn and made ahead, in as many threads. ``pin_memory``, ``device``: where batches
      are put; with a CUDA device one batch is prefetched unless ``prefetch`` says otherwise, so that it is copied meanwhile.
    - ``dim_extend``: the dimension along which `extend` is given records, by default the last of the storage's.
    - ``generator`` or ``seed``: same seed, same batches. With neither, the seed comes from torch's global generator.
    - ``frame_stack``, ``stack_keys``, ``n_step``, ``gamma``: windows, see `batches` and `n_step`; they never cross an episode.
    - ``checkpointer``: its hooks, if it has any, are registered as by `register_save_hook` and `register_load_hook`.
    - ``consume_after_n_samples``: records are removed once they were in so many batches, see `ConsumingSampler`.
    - ``sample_unit``: what is read for each record drawn, see `SampleUnit`.
    - ``delayed_init``: make the parts when they are first used, which may be in another process. The default is True with a
      ``transform_factory``.
    - ``compilable``, ``service_backend_options``, ``transport_options``: without effect, as nothing is compiled or served
      here. ``service_backend`` and ``transport`` may be "direct" (or "auto").
    - ``end_key``, ``traj_key``: where windows find the edges of episodes, if not under the usual keys (see `edges`).
    - ``rank``, ``world_size``: the part of this process in data-parallel training. Without replacement all processes walk
      the one order of ``seed`` and take every ``world_size``-th step; with replacement each draws on its own.

    `sample` of a plain buffer returns what was stored; what the sampler knows (``index``, flags, weights) comes with
    ``return_info=True``. `TensorDictReplayBuffer` puts it into the batch.
    """

    _info_in_batch = False
    _storage: Storage
    _sampler: Sampler
    _writer: Writer

    @check_keywords
    def __init__(
        self,
        *,
        storage: Part = None,
        sampler: Part = None,
        sample_unit: Any = None,
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
        consume_after_n_samples: int | None = None,
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
        if frame_stack is not None and (not isinstance(frame_stack, int) or not 1 <= frame_stack <= MOST_RECORDS):
            raise UsageError(f"frame_stack must be at least 1 and at most {MOST_RECORDS:,}, not {frame_stack!r}")
        if {service_backend, transport} - {"direct", "auto"}:
            raise UsageError("a buffer is where it is made: service_backend and transport must be direct")
        if not 0 <= rank < world_size:
            raise UsageError(f"rank {rank} is not among {world_size} processes")
        self.batch_size = None if batch_size is None else check_batch_size(batch_size)
        if checkpointer is not None and not hasattr(checkpointer, "_save_hooks"):
            checkpointer = checkpointer()
        self._save_hooks = list(getattr(checkpointer, "_save_hooks", None) or ())
        self._load_hooks = list(getattr(checkpointer, "_load_hooks", None) or ())
        self.shared = shared
        self._rank, self._world = rank, world_size
        self._sample_unit = check_unit(sample_unit)
        edges = Edges(None if traj_key is None else as_key(traj_key), () if end_key is None else (as_key(end_key),))
        keys, look_ahead = (
            None if stack_keys is None else tuple(stack_keys),
            None if n_step is None else NStep(n_step, gamma),
        )
        ahead, place = check_prefetch(prefetch, self.batch_size), None if device is None else check_device(device)
        windows = (frame_stack, keys, look_ahead, edges, self._info_in_batch)
        self._spec = BatchSpec(*windows, collate_fn, ahead, place, pin_memory, unit=self._sample_unit)
        self._pass_ended = self._warned = False
        self._make_lock()
        #: What `_make_parts` is called with, until that has happened.
        one_ahead = prefetch is None and place is not None and place.type == "cuda"
        seed = None if seed is None else check_seed(seed)
        parts = GivenParts(
            storage=storage,
            sampler=sampler,
            writer=writer,
            transform=transform,
            transform_factory=transform_factory,
            dim_extend=dim_extend,
            generator=generator,
            seed=seed,
            one_ahead=one_ahead,
            consume_after=consume_after_n_samples,
        )
        self._unmade: GivenParts | None = parts
        if not (transform_factory is not None if delayed_init is None else delayed_init):
            self._make_parts(parts)

    def _make_parts(self, given: GivenParts) -> None:
        self._unmade = None
        self._storage = resolve_storage(given.storage)
        self._sampler = resolve_sampler(given.sampler, given.consume_after)
        if self._sampler.drop_last and self.batch_size is None:
            raise UsageError("drop_last needs the batch_size given to the buffer")
        self._writer = resolve_writer(given.writer, self._default_writer)
        self._check_parts(self._sampler, self._storage, self._writer)
        check_part(self)
        self._writer.register_storage(self._storage)
        transform = given.transform if given.transform_factory is None else given.transform_factory()
        self._transforms = as_transforms(transform)
        self._dim_extend = self._storage.ndim - 1 if given.dim_extend is None else given.dim_extend
        if given.one_ahead and self._sampler.ahead and self.batch_size:
            self._spec = replace(self._spec, prefetch=1)
        self._start_order(given.generator, given.seed)
        if self.shared:
            self.share()

    if not TYPE_CHECKING:  # which would take every name for one of a buffer's

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
        """Raise UsageError for parts that do not work together, or whose classes define what would not be called."""
        for part in (sampler, storage, writer):
            check_part(part)
        spec = self._spec
        windows = spec.frame_stack is not None or spec.n_step is not None
        check_consumption(sampler, storage, writer, spec.prefetch, windows=windows, world_size=self._world)

    # -- parts -------------------------------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        """TorchRL's names of the parts may be assigned, as its examples do; of what cannot be changed, UsageError says so."""
        instead = _ASSIGNED.get(name)
        if instead is None or ("_pipeline" not in self.__dict__ and self.__dict__.get("_unmade") is None):
            super().__setattr__(name, value)
        elif isinstance(instead, str):
            raise UsageError(f"assigning {name} to a {type(self).__name__} would have no effect", hint=instead)
        else:
            _ = self.initialized or self._storage  # which makes the parts
            instead(self, value)

    @property
    def _transform(self) -> Transforms:
        return self._transforms

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
    def dim_extend(self) -> int:
        return self._dim_extend

    def set_storage(self, storage: Storage, collate_fn: Callable[[Any], Any] | None = None) -> Storage:
        """Put another storage in place; returns the one before."""
        with self._exclusive():
            before = self._storage
            self._check_parts(self._sampler, storage, self._writer)
            if self._dim_extend == before.ndim - 1:
                self.__dict__.update(_dim_extend=storage.ndim - 1)
            self.__dict__.update(_storage=storage, _spec=replace(self._spec, collate=collate_fn))
            self._writer.register_storage(storage)
            self._make_pipeline(self._rng)
            return before

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Put another sampler in place; returns the one before."""
        with self._exclusive():
            self._check_parts(sampler, self._storage, self._writer)
            before = self._sampler
            self.__dict__.update(_sampler=sampler)
            self._make_pipeline(self._rng)
            return before

    def set_writer(self, writer: Writer) -> Writer:
        """Put another writer in place; returns the one before."""
        with self._lock:
            self._check_parts(self._sampler, self._storage, writer)
            before = self._writer
            self.__dict__.update(_writer=writer)
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
        self._rng_given = generator is not None
        if generator is None:
            own = int(torch.randint(1 << 62, ())) if seed is None else seed
            # In data-parallel training each process has its own numbers, and all of them the one order.
            generator = make_generator(rank_seed(own, self._rank) if self._world > 1 else own)
        passes = getattr(self._sampler, "passes", None)
        if passes is not None and seed is not None:
            passes.seed(seed)
        self._make_pipeline(generator)
        self._pipeline.order.batches = 0
        self._storage.start_order()

    def _make_pipeline(self, generator: torch.Generator) -> None:
        """A pipeline of the parts there are now, in the place of the last one."""
        if "_pipeline" in self.__dict__:
            self._pipeline.retire()
        batches = self._pipeline.order.batches if "_pipeline" in self.__dict__ else 0
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


#: What an assignment to an attribute does once the buffer is made, or what to do instead.
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
    **dict.fromkeys(("_replay_lock", "_write_lock", "_futures_lock"), "the buffer has a lock of its own"),
}
