"""Several buffers sampled as one.

num_buffer_sampled = 3, batch size 12       members drawn  1 0 1
batch [3, 4]                                4 records of member 1 | 4 of member 0 | 4 more of member 1
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from typing_extensions import Unpack

from ...errors import ReadOnlyError, SamplingError, UsageError, reason
from ...keywords import with_options
from .argument_checks import check_batch_size, check_prefetch, check_seed, make_generator
from .batch_order import OrderState
from .buffer import ReplayBuffer
from .buffer_options import EnsembleOptions
from .checkpoints.checkpoint import CheckpointWriter
from .devices import check_device, to_device
from .ensemble_parts import SamplerEnsemble, StorageEnsemble, WriterEnsemble, pick_members
from .member_parts import check_members, draw_part, index_of, info_of, stack_parts, with_info
from .member_routing import Router
from .state_files import reading
from .transforms.chain import Transforms, as_transforms
from .windows.slice_flags import expand_to_records


class ReplayBufferEnsemble:
    """Draws ``num_buffer_sampled`` of the ``buffers`` (default: as many as there are), and a part of the batch from each.

    - ``storages``, ``samplers``, ``writers``: a `StorageEnsemble`, `SamplerEnsemble` and `WriterEnsemble` instead of buffers.
    - ``p``: probability that a part of a batch comes from each member, any positive numbers; without it they are alike. It is
      the share over many batches: in one batch it is a multiple of 1 / ``num_buffer_sampled``. ``"sampleable"``: in proportion
      to what each holds at that moment. ``sample_from_all``: a part from every member, in order; excludes ``p``.
    - ``prefetch``: each member makes so many of its parts ahead, see `ReplayBuffer`.
    - ``transform`` or ``transform_factory``: applied after the members' own.
    - ``collate_fn``: makes a batch of the parts; the default stacks them. ``collate_fns``: one for each member, in the place
      of its own.
    - ``routing_key``, ``routing_dim``: how `extend` shares records out to the members, see `Router`; without either an ensemble
      is read-only: write to the members.
    - ``generator`` or ``seed``: same seed, same batches, also of the members. ``shared``: see `ReplayBuffer`.

    ``checkpointer``, ``compilable``, ``delayed_init``, ``dim_extend``, ``service_backend`` and ``transport`` (with their
    options) are accepted, without effect.

    A batch is ``[num_buffer_sampled, batch_size / num_buffer_sampled]``. Members of unlike keys or shapes give a lazy stack:
    what all have can be read of the whole, the rest of its parts. ``index`` is a TensorDict of ``buffer_ids`` and ``index``, in
    batches of TensorDicts and in the info. Where a member's pass ends within a part, the next one fills it up.
    """

    @with_options(EnsembleOptions, ReplayBuffer.__init__)
    def __init__(
        self,
        *buffers: ReplayBuffer,
        storages: StorageEnsemble | None = None,
        samplers: SamplerEnsemble | None = None,
        writers: WriterEnsemble | None = None,
        transform: Any = None,
        transform_factory: Callable[[], Any] | None = None,
        batch_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        collate_fns: Sequence[Callable[[Any], Any] | None] | None = None,
        p: Any = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
        routing_key: Any = None,
        routing_dim: int | None = None,
        generator: torch.Generator | None = None,
        seed: int | None = None,
        shared: bool = False,
        pin_memory: bool = False,
        device: Any = None,
        prefetch: int | None = None,
        **without_effect: Unpack[EnsembleOptions],
    ) -> None:
        if generator is not None and seed is not None:
            raise UsageError("give generator or seed, not both")
        if transform is not None and transform_factory is not None:
            raise UsageError("give transform or transform_factory, not both")
        self.batch_size = None if batch_size is None else check_batch_size(batch_size)
        if storages is not None or samplers is not None or writers is not None:
            if buffers or storages is None or samplers is None or writers is None:
                raise UsageError("give buffers, or all of storages, samplers and writers")
            self._sampler = samplers
            buffers = self._make_members(storages, samplers, writers, collate_fns)
        else:
            check_members(buffers)
            self._sampler = SamplerEnsemble(
                *(buffer.sampler for buffer in buffers),
                p=p,
                sample_from_all=sample_from_all,
                num_buffer_sampled=num_buffer_sampled,
            )
            if collate_fns is not None:
                for buffer, collate in zip(buffers, collate_fns, strict=True):
                    buffer._change_spec(collate=collate)
        self.buffers = buffers
        self._router = Router(buffers, routing_key, routing_dim)
        transform = transform_factory() if transform_factory is not None else transform
        self._transforms = as_transforms(transform)
        self._collate = collate_fn
        self._prefetch = check_prefetch(prefetch, self.batch_size)
        for buffer in buffers:
            if self._prefetch:
                buffer._change_spec(prefetch=self._prefetch)
            if shared:
                buffer.share()
        self._pin, self._device = pin_memory, None if device is None else check_device(device)
        self._generator = make_generator(int(torch.randint(1 << 62, ())))
        if generator is not None:
            self.set_rng(generator)
        if seed is not None:
            self.set_seed(seed)

    def _make_members(
        self,
        storages: StorageEnsemble,
        samplers: SamplerEnsemble,
        writers: WriterEnsemble,
        collate_fns: Sequence[Any] | None,
    ) -> tuple[ReplayBuffer, ...]:
        count = len(storages)
        transforms, collate_fns = storages.transforms or [None] * count, collate_fns or [None] * count
        if not count or {len(samplers), len(writers), len(collate_fns)} != {count}:
            raise UsageError(f"an ensemble of {count} storages needs as many samplers, writers and collate_fns")
        part = None if self.batch_size is None else samplers.part_size(self.batch_size)
        return tuple(
            ReplayBuffer(
                storage=storage,
                sampler=sampler,
                writer=writer,
                transform=transform,
                collate_fn=collate,
                batch_size=part,
            )
            for storage, sampler, writer, transform, collate in zip(
                storages, samplers, writers, transforms, collate_fns, strict=True
            )
        )

    # -- parts -------------------------------------------------------------------------------------------------------

    @property
    def storage(self) -> StorageEnsemble:
        return StorageEnsemble(
            *(buffer.storage for buffer in self.buffers), transforms=[buffer.transform for buffer in self.buffers]
        )

    @property
    def sampler(self) -> SamplerEnsemble:
        return self._sampler

    @property
    def writer(self) -> WriterEnsemble:
        return WriterEnsemble(*(buffer.writer for buffer in self.buffers))

    @property
    def transform(self) -> Transforms:
        return self._transforms

    @property
    def p(self) -> Any:
        """The members' probabilities, see `SamplerEnsemble`."""
        return self._sampler.p

    @property
    def sample_from_all(self) -> bool:
        return self._sampler.sample_from_all

    @property
    def num_buffer_sampled(self) -> int:
        return self._sampler.num_buffer_sampled

    def append_transform(self, transform: Any, *, invert: bool = False) -> ReplayBufferEnsemble:
        """Add a transform at the end; returns the ensemble."""
        self._transforms.append(transform, invert=invert)
        return self

    def insert_transform(self, index: int, transform: Any, *, invert: bool = False) -> ReplayBufferEnsemble:
        """Add a transform before the one at ``index``; returns the ensemble."""
        self._transforms.insert(index, transform, invert=invert)
        return self

    # -- sampling ----------------------------------------------------------------------------------------------------

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Draw one batch, or ``(batch, info)``. Raises SamplingError when the batch cannot be divided among the members."""
        size = self.batch_size if batch_size is None else batch_size
        if size is None:
            raise UsageError("no batch size", hint="give batch_size to the ensemble, or to sample()")
        part = self._sampler.part_size(check_batch_size(size))
        ids = self._sampler.draw_members([buffer.storage for buffer in self.buffers], part, self._generator).tolist()
        parts = [draw_part(self.buffers[member], part, ahead=self._prefetch > 0, copied=len(ids) > 1) for member in ids]
        batch = self._join(ids, parts)
        if len(self._transforms):
            batch = self._transforms.apply_beside(batch, self._info_keys(parts))
        if self._pin or self._device is not None:
            batch = to_device(batch, self._device, self._pin)
        return (batch, info_of(ids, [info for _, info in parts])) if return_info else batch

    def _info_keys(self, parts: list[tuple[Any, dict[Any, Any]]]) -> set[Any]:
        """What samplers say of records, without flags, which belong to the data as well."""
        return {"index"} | {key for _, info in parts for key in info if isinstance(key, str)}

    def _join(self, ids: list[int], parts: list[tuple[Any, dict[Any, Any]]]) -> Any:
        batches = [data for data, _ in parts]
        if self._collate is not None:
            return self._collate(batches)
        if not isinstance(batches[0], TensorDictBase):
            return stack_parts(batches)
        lengths = {len(batch) for batch in batches}
        if len(lengths) > 1:
            message = f"the members' parts have {', '.join(map(str, sorted(lengths)))} records"
            raise SamplingError(message, hint="sample with strict_length or with replacement, or give a collate_fn")
        complete = []
        for member, (batch, info) in zip(ids, parts):
            batch = batch.exclude("index")
            complete.append(batch if self.buffers[member]._info_in_batch else with_info(batch, info))
        joined = stack_parts(complete)
        rows = [info["index"] for _, info in parts]
        if len(rows[0]) != len(complete[0]):  # a transform has made other records of them
            return joined
        tails = [tuple(batch.batch_size[1:]) for batch in complete]
        expanded = [expand_to_records(row, tail) for row, tail in zip(rows, tails)]
        return joined.set("index", index_of(ids, expanded, min(map(len, tails)) + 1))

    def __iter__(self) -> Iterator[Any]:
        if self.batch_size is None:
            raise UsageError("iteration needs the batch_size given to the ensemble")
        while True:
            yield self.sample()

    def __next__(self) -> Any:
        return self.sample()

    next = __next__

    # -- priorities --------------------------------------------------------------------------------------------------

    def update_priority(self, index: Any, priority: Any) -> None:
        """Set priorities of the members' rows; ``index`` is that of a batch (``buffer_ids`` and ``index``)."""
        ids, rows = index["buffer_ids"], index["index"]
        values = torch.as_tensor(priority)
        values = values.reshape(ids.shape) if values.numel() == ids.numel() else values.expand(ids.shape)
        for member in ids.unique().tolist():
            chosen = ids == member
            self.buffers[member].update_priority(rows[chosen], values[chosen])

    def update_tensordict_priority(self, data: TensorDictBase, priority_key: Any = "td_error") -> None:
        """Set the priorities of a batch's rows from ``priority_key``, one value for each; those of windows go to anchors."""
        index, values = data["index"], data[priority_key]
        if data.get("anchor_index", None) is None:
            self.update_priority(index, values)
            return
        for member in index["buffer_ids"].unique().tolist():
            chosen = index["buffer_ids"] == member
            to_anchors = getattr(self.buffers[member], "_anchor_reduced_priority", lambda *_: None)
            reduced = to_anchors(data[chosen], values[chosen])
            self.buffers[member].update_priority(*(reduced or (index["index"][chosen], values[chosen])))

    # -- writing -----------------------------------------------------------------------------------------------------

    def extend(self, data: Any) -> TensorDict:
        """Share records out to the members; returns ``buffer_ids`` and ``index`` of each, batch ``[n]``, see `Router`.

        Raises ReadOnlyError without ``routing_key`` or ``routing_dim``.
        """
        if not self._router.active:
            raise ReadOnlyError(
                "an ensemble doesn't allow writing", hint="write to its members: ensemble[0].extend(...)"
            )
        return self._router.extend(self._transforms.inv(data) if len(self._transforms) else data)

    def add(self, data: Any) -> TensorDict:
        """Write one record to the member it names; as `extend`, batch ``[]``."""
        return self.extend(data.unsqueeze(0))[0]

    def empty(self) -> None:
        """Forget the records of all members."""
        for buffer in self.buffers:
            buffer.empty()

    @property
    def write_count(self) -> int:
        """Records written by all members."""
        return sum(buffer.write_count for buffer in self.buffers)

    # -- seeds -------------------------------------------------------------------------------------------------------

    def set_seed(self, seed: int) -> None:
        """Start the sequence of batches that belongs to a seed, in the members as well."""
        seed = check_seed(seed)
        self._generator.manual_seed(seed)
        for number, buffer in enumerate(self.buffers):
            buffer.set_seed(seed + 1 + number)

    def set_rng(self, generator: torch.Generator | None) -> None:
        """Draw members from this generator from now on; the members get seeds of their own from it."""
        self._generator = make_generator(int(torch.randint(1 << 62, ()))) if generator is None else generator
        for buffer in self.buffers:
            buffer.set_seed(int(torch.randint(1 << 62, (), generator=self._generator)))

    # -- members -----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many members there are, as in TorchRL."""
        return len(self.buffers)

    def __getitem__(self, index: Any) -> Any:
        """A member by number, by slice or list an ensemble of some of them.

        ``[members, rows]`` are records of each, through all transforms: ``[members, rows]``, or a lazy stack.
        """
        members, *rows = index if isinstance(index, tuple) else (index,)
        chosen = pick_members(members, len(self.buffers))
        place = rows[0] if len(rows) == 1 else tuple(rows)
        if isinstance(chosen, int):
            return self.buffers[chosen][place] if rows else self.buffers[chosen]
        if rows:
            records = [self.buffers[member][place] for member in chosen]
            found = (self._collate or stack_parts)(records)
            return self._transforms(found) if len(self._transforms) else found
        if chosen == list(range(len(self.buffers))):
            return self
        sampler = self._sampler[chosen]
        return ReplayBufferEnsemble(
            *(self.buffers[member] for member in chosen),
            transform=self._transforms,
            batch_size=self.batch_size,
            collate_fn=self._collate,
            p=sampler.p,
            sample_from_all=sampler.sample_from_all,
            num_buffer_sampled=sampler.num_buffer_sampled,
            pin_memory=self._pin,
            device=self._device,
        )

    # -- saving ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The members' states, and where the ensemble's own draws stand."""
        return {
            "members": [buffer.state_dict() for buffer in self.buffers],
            "generator": self._generator.get_state(),
            "transforms": self._transforms.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave. An ensemble that refuses it is as before."""
        if len(state.get("members", ())) != len(self.buffers) or not {"generator", "transforms"} <= set(state):
            raise UsageError(f"the state has {len(state.get('members', ()))} members, the ensemble {len(self.buffers)}")
        members = zip(self.buffers, state["members"])
        self._load([partial(buffer.load_state_dict, own) for buffer, own in members], state)

    def _load(self, loads: list[Callable[[], None]], own: dict[str, Any]) -> None:
        """Load each member, and what is the ensemble's own. All is checked before rows are written."""
        try:
            torch.Generator().set_state(own["generator"])
        except (TypeError, RuntimeError) as error:
            raise UsageError(f"the state of the generator is none: {reason(error)}") from error
        for buffer, load in zip(self.buffers, loads):
            with buffer._exclusive(), buffer.storage.checking():
                load()
        self._transforms.load_state_dict(own["transforms"])
        for buffer, load in zip(self.buffers, loads):
            with buffer._exclusive():
                load()
        self._generator.set_state(own["generator"])

    def dumps(self, path: Any) -> None:
        """Write every member to a folder of its own below ``path``, all or nothing; see `checkpoint`."""
        from .checkpoints.checkpoint import dump_into

        with CheckpointWriter(path) as folder:
            for number, buffer in enumerate(self.buffers):
                with buffer._lock:
                    dump_into(buffer, folder.part(str(number)))
            folder.describe("ReplayBufferEnsemble", {"members": len(self.buffers)})
            folder.tensors("rng", {"generator": OrderState(self._generator.get_state(), None).generator})
            folder.tensors("transforms", self._transforms.state_dict())

    save = dump = dumps

    def loads(self, path: Any) -> None:
        """Read what `dumps` wrote, into an ensemble of the same members. One that refuses it is as before."""
        from .checkpoints.checkpoint import Checkpoint, load_from

        checkpoint = Checkpoint(path, "ReplayBufferEnsemble")
        members = checkpoint.about.get("members")
        if members != len(self.buffers):
            raise UsageError(f"the checkpoint has {members} members, the ensemble {len(self.buffers)}")
        with reading(checkpoint.path):
            parts = [checkpoint.part(str(n), type(buffer).__name__) for n, buffer in enumerate(self.buffers)]
            own = {**checkpoint.tensors("rng"), "transforms": checkpoint.tensors("transforms")}
            self._load([partial(load_from, buffer, part) for buffer, part in zip(self.buffers, parts)], own)

    load = loads

    def __repr__(self) -> str:
        return f"ReplayBufferEnsemble({', '.join(map(repr, self.buffers))}, batch_size={self.batch_size})"
