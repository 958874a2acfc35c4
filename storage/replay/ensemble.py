"""Several buffers sampled as one.

num_buffer_sampled = 3, batch size 12       members drawn  1 0 1
batch [3, 4]                                4 records of member 1 | 4 of member 0 | 4 more of member 1
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase, is_tensor_collection
from torch.utils import _pytree as pytree
from typing_extensions import Unpack

from ...errors import ReadOnlyError, SamplingError, SchemaError, UsageError, reason
from ..keywords import with_options
from ..window import nest
from .arguments import EnsembleOptions, check_batch_size, check_prefetch, check_seed, make_generator
from .buffer import ReplayBuffer
from .checkpoint import Checkpoint, CheckpointWriter, dump_into, load_from, load_part, part_state
from .devices import check_device, to_device
from .draw import check_generator, draw_seed, expand_to_records
from .overrides import is_overridden
from .pipeline import OrderState
from .samplers.sampler import Sampler, fills_up
from .saving import reading
from .storages.storage import Storage
from .storages.trees import copy_of, on_one_device, stack
from .timeline import Key, as_key
from .transforms import Transforms, as_transforms
from .writers import Writer


def _pick_members(index: Any, count: int) -> int | list[int]:
    """A member's number for an int index, a list of numbers for any other. Raises IndexError if there is no such member."""
    if index is Ellipsis or isinstance(index, slice):
        return list(range(count))[slice(None) if index is Ellipsis else index]
    numbers = torch.as_tensor(index, device="cpu")
    if numbers.ndim > 1 or numbers.dtype == torch.bool or numbers.is_floating_point():
        message = f"members are named by whole numbers, a slice or one dimension of numbers, not {index!r}"
        raise UsageError(message)
    numbers = torch.where(numbers < 0, numbers + count, numbers)
    if bool(((numbers < 0) | (numbers >= count)).any()):
        raise IndexError(f"there is no member {index!r}: the ensemble has {count}")
    chosen: int | list[int] = numbers.tolist()
    return chosen


class _EnsemblePart:
    """Base of the storages, samplers and writers of ensembles; ``parts`` has the part of each member."""

    parts: tuple[Any, ...]

    def _some(self, chosen: list[int]) -> Any:
        """An ensemble of some of the parts."""
        return type(self)(*(self.parts[member] for member in chosen))

    def __getitem__(self, index: Any) -> Any:
        members, *rows = index if isinstance(index, tuple) else (index,)
        chosen = _pick_members(members, len(self.parts))
        if not rows:
            return self.parts[chosen] if isinstance(chosen, int) else self._some(chosen)
        place = rows[0] if len(rows) == 1 else tuple(rows)
        return self.parts[chosen][place] if isinstance(chosen, int) else [self.parts[part][place] for part in chosen]

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.parts)

    def empty(self, empty_write_count: bool = True) -> None:
        """Empty all parts."""
        for part in self.parts:
            part.empty()

    _empty = empty

    def state_dict(self) -> dict[str, Any]:
        """The states of all parts, by member number."""
        return {str(member): part_state(part) for member, part in enumerate(self.parts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        names = [str(member) for member in range(len(self.parts))]
        if set(state) != set(names):
            raise UsageError(f"the state has {len(state)} members, the ensemble {len(self.parts)}")
        self._load([state[name] for name in names])

    def _load(self, states: list[Any]) -> None:
        """Load the state of each part, or none of them."""
        before = [part_state(part) for part in self.parts]
        try:
            for part, own in zip(self.parts, states):
                load_part(part, own)
        except BaseException:
            for part, own in zip(self.parts, before):
                load_part(part, own)
            raise

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.parts))})"


class StorageEnsemble(_EnsemblePart, Storage):
    """The storages of an ensemble's members; ``transforms``: one (or None) for each, applied to what is sampled.

    ``len()`` counts members, as in TorchRL. Nothing can be written: write to the members.
    """

    def __init__(self, *storages: Storage, transforms: Sequence[Any] | None = None) -> None:
        if transforms is not None and len(transforms) != len(storages):
            raise UsageError(f"{len(transforms)} transforms for {len(storages)} storages")
        super().__init__(sum(storage.max_size for storage in storages) or 1)
        self.parts, self.transforms = storages, transforms

    def _some(self, chosen: list[int]) -> StorageEnsemble:
        transforms = None if self.transforms is None else [self.transforms[member] for member in chosen]
        return StorageEnsemble(*(self.parts[member] for member in chosen), transforms=transforms)

    def get(self, index: Any) -> list[tuple[int, Any]]:
        """``(member, records)`` for each entry of a TensorDict of ``buffer_ids`` ``[k]`` and ``index`` ``[k, n]``."""
        found = []
        for member, rows in zip(index["buffer_ids"].tolist(), index["index"]):
            storage = self.parts[member]
            records = storage.get(rows if storage.ndim == 1 else rows.unbind(-1))
            transform = None if self.transforms is None else self.transforms[member]
            found.append((member, records if transform is None else transform(records)))
        return found

    def _load(self, states: list[Any]) -> None:
        for part, own in zip(self.parts, states):
            with part.checking():
                load_part(part, own)
        for part, own in zip(self.parts, states):
            load_part(part, own)

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        raise ReadOnlyError("an ensemble's storages are written by its members", hint="ensemble[0].extend(...)")


class WriterEnsemble(_EnsemblePart, Writer):
    """The writers of an ensemble's members; it writes nothing itself."""

    def __init__(self, *writers: Writer) -> None:
        self.parts = writers

    def register_storage(self, storage: Any) -> None:
        """Give each writer the storage of its member."""
        if len(storage) != len(self.parts):
            raise UsageError(f"{len(self.parts)} writers for {len(storage)} storages")
        for writer, own in zip(self.parts, storage):
            writer.register_storage(own)

    @property
    def write_count(self) -> int:
        """Records that all members have written."""
        return sum(getattr(writer, "write_count", 0) for writer in self.parts)

    def add(self, data: Any) -> Any:
        raise ReadOnlyError("an ensemble's writers write to their members only", hint="ensemble[0].extend(...)")

    extend = add


class SamplerEnsemble(_EnsemblePart, Sampler):
    """The samplers of an ensemble's members, and which members a batch comes from.

    - ``p``: probabilities of the members, as weights >= 0 of any sum; None: equal. ``"sampleable"``: in proportion to the
      number of records (or starts of slices) to draw a part from that each has at that moment.
    - ``sample_from_all``: a part from every member, in order; excludes ``p``.
    - ``num_buffer_sampled``: the number of parts of a batch; the default is the number of members.

    ``p`` may be assigned at any time.
    """

    def __init__(
        self,
        *samplers: Sampler,
        p: Any = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
    ) -> None:
        if sample_from_all and p is not None:
            raise UsageError("sample_from_all leaves no room for p")
        self.parts, self.sample_from_all = samplers, sample_from_all
        self._p: torch.Tensor | Literal["sampleable"] | None = None
        self.p = p
        count = len(samplers) if sample_from_all or num_buffer_sampled is None else num_buffer_sampled
        if count < 1:
            raise UsageError(f"num_buffer_sampled must be at least 1, not {count}")
        self.num_buffer_sampled = count

    @property
    def p(self) -> torch.Tensor | Literal["sampleable"] | None:
        """The probabilities, summing to 1, float64 ``[members]``; or None, or ``"sampleable"``."""
        return self._p

    @p.setter
    def p(self, given: Any) -> None:
        if given is None or (isinstance(given, str) and given == "sampleable"):
            self._p = None if given is None else "sampleable"
            return
        try:
            values = torch.as_tensor(given, dtype=torch.float64, device="cpu")
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f"p is one number for each member, or 'sampleable', not {given!r}") from error
        if values.shape != (len(self.parts),) or not bool((values >= 0).all()) or not 0 < float(values.sum()) < 1e300:
            raise UsageError(f"p must be {len(self.parts)} numbers, not negative and not all zero: {given!r}")
        self._p = values / values.sum()

    def _some(self, chosen: list[int]) -> SamplerEnsemble:
        p = self.p[chosen] if isinstance(self.p, torch.Tensor) else self.p
        return SamplerEnsemble(
            *(self.parts[member] for member in chosen),
            p=p,
            sample_from_all=self.sample_from_all,
            num_buffer_sampled=self.num_buffer_sampled,
        )

    def part_size(self, batch_size: int) -> int:
        """Records of each part. Raises SamplingError when the batch cannot be divided."""
        if batch_size % self.num_buffer_sampled:
            message = f"batch_size {batch_size} cannot be divided by num_buffer_sampled {self.num_buffer_sampled}"
            raise SamplingError(message)
        return batch_size // self.num_buffer_sampled

    def draw_members(self, storages: Sequence[Storage], part: int, generator: torch.Generator | None) -> torch.Tensor:
        """The members that the parts of a batch come from, int64 ``[num_buffer_sampled]``."""
        if self.sample_from_all:
            return torch.arange(len(self.parts), device="cpu")
        p = self.p
        if p is None:
            return torch.randint(len(self.parts), (self.num_buffer_sampled,), generator=generator, device="cpu")
        if isinstance(p, str):
            counts = [sampler.sampleable(storage, part) for sampler, storage in zip(self.parts, storages)]
            if not any(counts):
                message = f"no member has what a part of {part} records takes"
                raise SamplingError(message, hint="extend the members first, or take smaller batches")
            p = torch.tensor(counts, dtype=torch.float64, device="cpu")
        return torch.multinomial(p, self.num_buffer_sampled, replacement=True, generator=generator)

    def sample(self, storage: Storage, batch_size: int) -> tuple[Any, Any]:
        """``(index, infos)``: a TensorDict of ``buffer_ids`` ``[k]`` and ``index`` ``[k, n]``, and the info of each sampler."""
        if not isinstance(storage, StorageEnsemble):
            raise UsageError(f"a SamplerEnsemble samples from a StorageEnsemble, not from a {type(storage).__name__}")
        part = self.part_size(batch_size)
        ids = self.draw_members(storage.parts, part, self._rng)
        drawn = [self.parts[member].sample(storage.parts[member], part) for member in ids.tolist()]
        rows = [torch.stack(index, -1) if isinstance(index, tuple) else index for index, _ in drawn]
        index = TensorDict({"buffer_ids": ids, "index": torch.stack(rows)}, [len(ids)])
        return index, [info for _, info in drawn]


def _check_members(buffers: Sequence[Any]) -> None:
    """Raise UsageError if there are no buffers, an element is not a buffer, or its draw method is never called here."""
    strangers = [type(buffer).__name__ for buffer in buffers if not isinstance(buffer, ReplayBuffer)]
    if not buffers or strangers:
        message = f"an ensemble needs buffers, not {', '.join(strangers) or 'nothing'}"
        raise UsageError(message, hint="of an ensemble, give the members: *ensemble.buffers" if strangers else None)
    for buffer in buffers:
        _check_called(buffer, ("sample", "_sample"), "give the member a sampler or a transform of your own")


def _check_called(part: Any, names: Sequence[str], instead: str) -> None:
    for name in names:
        if is_overridden(part, name):
            message = (
                f"{type(part).__name__}.{name}() would never be called: an ensemble draws from the parts of its members"
            )
            raise UsageError(message, hint=instead)


def _draw_part(buffer: ReplayBuffer, size: int, *, ahead: bool, copied: bool) -> tuple[Any, dict[Any, Any]]:
    """``size`` records of a member, and their info; if a pass of its sampler ends, records of the next pass follow.

    ``ahead``: parts of this size may be prefetched. ``copied``: copy data from the user's code, which then makes another part.
    """
    pieces: list[tuple[Any, dict[Any, Any]]] = []
    missing = size
    while True:
        data, info = buffer._next_batch(missing, missing == size and (ahead or size == buffer.batch_size))
        found = info()
        if isinstance(found["index"], tuple):
            found["index"] = torch.stack(found["index"], -1)
        missing -= len(found["index"])
        is_last = missing <= 0 or not fills_up(buffer.sampler, buffer._ran_out)
        if buffer._runs_own_code and (copied or not is_last):
            data = copy_of(data)
        pieces.append((data, found))
        if is_last:
            break
    if len(pieces) == 1:
        return pieces[0]
    joined = {key: torch.cat([info[key] for _, info in pieces]) for key in pieces[0][1]}
    batches = [data for data, _ in pieces]
    if is_tensor_collection(batches[0]):
        return torch.cat(batches), joined
    return pytree.tree_map(lambda *leaves: torch.cat(leaves), *batches), joined


def _stack_parts(parts: list[Any]) -> Any:
    """The stacked parts; TensorDicts whose layouts differ become a lazy stack."""
    if not isinstance(parts[0], TensorDictBase):
        return stack(parts)
    return LazyStackedTensorDict.maybe_dense_stack(on_one_device(parts))


def _with_info(batch: TensorDictBase, info: dict[Any, Any]) -> TensorDictBase:
    """A part with its sampler's info, unless a transform has changed the number of records."""
    if len(info["index"]) == len(batch):
        for key, value in info.items():
            if key != "index":
                batch.set(key, value)
    return batch


def _index_of(ids: list[int], rows: list[torch.Tensor] | torch.Tensor, dims: int = 1) -> TensorDictBase:
    """``buffer_ids`` and ``index`` of each record, int64, ``[parts, records, ...]``, a lazy stack if the parts differ in shape;
    ``dims`` dimensions of the rows count records."""
    if len({row.shape for row in rows}) > 1:
        return LazyStackedTensorDict.lazy_stack([_index_of([member], [row], dims)[0] for member, row in zip(ids, rows)])
    stacked = rows if isinstance(rows, torch.Tensor) else torch.stack(rows)
    shape = stacked.shape[: dims + 1]
    members = torch.tensor(ids, device="cpu").view(-1, *[1] * dims).expand(shape).contiguous()
    return TensorDict({"buffer_ids": members, "index": stacked}, shape)


def _info_of(ids: list[int], infos: list[dict[Any, Any]]) -> TensorDict:
    """``index`` of all parts, and info whose shape all samplers share: ``[parts, records, ...]``, batch ``[parts]``."""
    index = _index_of(ids, [info.pop("index") for info in infos])
    stacked = {}
    for key in infos[0]:
        values = [info[key] for info in infos if isinstance(info.get(key), torch.Tensor)]
        if len(values) == len(infos) and len({value.shape for value in values}) == 1:
            stacked[key] = torch.stack(values)
    return TensorDict({**stacked, "index": index}, [len(ids)])


def _members_of(data: Any, count: int, key: Key | None, dim: int | None) -> torch.Tensor:
    """The member of each record, int64 ``[n]``, by ``key`` or by its place along ``dim``. Raises SchemaError."""
    if not isinstance(data, TensorDictBase):
        raise SchemaError(f"only TensorDicts are shared out to members, not a {type(data).__name__}")
    if key is None:
        dim = dim or 0
        if not -data.ndim <= dim < data.ndim or data.shape[dim] != count:
            raise SchemaError(f"data of shape {tuple(data.shape)} have no {count} members along dimension {dim}")
        shape = [1] * data.ndim
        shape[dim] = count
        return torch.arange(count, device="cpu").reshape(shape).expand(data.batch_size).reshape(-1)
    name = "/".join(key)
    ids = data.get(key, None)
    if ids is None or ids.numel() != data.numel():
        raise SchemaError(f"the data have no {name} with the number of a member for each record")
    ids = ids.reshape(-1).cpu()
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise SchemaError(f"members are named by whole numbers, and {name} is {ids.dtype}")
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < count:
        raise SchemaError(f"{name} names members {int(ids.min())}..{int(ids.max())} of {count}")
    return ids.long()


class ReplayBufferEnsemble:
    """Draws ``num_buffer_sampled`` of the ``buffers`` (default: as many as there are), and a part of the batch from each.

    - ``storages``, ``samplers``, ``writers``: a `StorageEnsemble`, `SamplerEnsemble` and `WriterEnsemble` instead of buffers.
    - ``p``, ``sample_from_all``: see `SamplerEnsemble`. ``p`` is the share over many batches: in one batch, shares are
      multiples of 1 / ``num_buffer_sampled``.
    - ``prefetch``: the number of parts that each member makes ahead, see `ReplayBuffer`. Members with functions of yours draw
      ahead, and make their parts in the caller's thread: the functions may be the same, or share what they use.
    - ``transform`` or ``transform_factory``: applied after the members' own.
    - ``collate_fn``: makes a batch of the parts; the default stacks them. ``collate_fns``: one for each member, which replaces
      the member's own.
    - ``routing_key``, ``routing_dim``: `extend` distributes records to the members by the integer under this key, or by their
      place along this dimension; without either an ensemble is read-only: write to the members.
    - ``generator`` or ``seed``: same seed, same batches, also of the members. ``shared``: see `ReplayBuffer`.

    ``checkpointer``, ``compilable``, ``delayed_init``, ``dim_extend``, ``service_backend`` and ``transport`` (with their
    options) are accepted, without effect.

    A batch is ``[num_buffer_sampled, batch_size / num_buffer_sampled]``. If keys or shapes of the members differ, it is a lazy
    stack: common leaves can be read from the whole stack, other leaves from its parts. ``index`` is a TensorDict of
    ``buffer_ids`` and ``index``, in batches of TensorDicts and in the info. If a member's pass ends within a part, its next
    pass fills the part up.
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
            _check_called(samplers, ("sample", "draw"), "override draw_members, or sample of a member's sampler")
            _check_called(storages, ("get",), "override get of a member's storage")
            _check_called(writers, ("add", "extend"), "override add and extend of a member's writer")
            self._sampler = samplers
            buffers = self._make_members(storages, samplers, writers, collate_fns)
        else:
            _check_members(buffers)
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
        if routing_key is not None and routing_dim is not None:
            raise UsageError("give routing_key or routing_dim, not both")
        if routing_dim is not None and type(routing_dim) is not int:
            raise UsageError(f"routing_dim is the number of a dimension, not {routing_dim!r}")
        self._routing_key, self._routing_dim = None if routing_key is None else as_key(routing_key), routing_dim
        self._transforms = as_transforms(transform if transform_factory is None else transform_factory())
        self._collate = collate_fn
        self._prefetch = check_prefetch(prefetch, self.batch_size)
        for buffer in buffers:
            if self._prefetch:
                buffer._change_spec(prefetch=self._prefetch, prefetch_is_default=False)
            if buffer._spec.prefetch:
                buffer._change_spec(in_ensemble=True)
            if shared:
                buffer.share()
        self._pin, self._device = pin_memory, None if device is None else check_device(device)
        self._generator = make_generator(draw_seed())
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
        names = ("storage", "sampler", "writer", "transform", "collate_fn")
        members = zip(storages, samplers, writers, transforms, collate_fns, strict=True)
        return tuple(ReplayBuffer(**dict(zip(names, parts)), batch_size=part) for parts in members)

    # -- parts -------------------------------------------------------------------------------------------------------

    @property
    def storage(self) -> StorageEnsemble:
        transforms = [buffer.transform for buffer in self.buffers]
        return StorageEnsemble(*(buffer.storage for buffer in self.buffers), transforms=transforms)

    @property
    def sampler(self) -> SamplerEnsemble:
        self._sampler.parts = tuple(buffer.sampler for buffer in self.buffers)  # a member may have got another one
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
        sampler = self.sampler
        part = sampler.part_size(check_batch_size(size))
        ids = sampler.draw_members([buffer.storage for buffer in self.buffers], part, self._generator).tolist()
        as_read = self._collate is None and not len(self._transforms) and not return_info
        if as_read and all(self.buffers[member]._gives_columns for member in set(ids)):
            parts, batch = [], self._sample_columns(ids, part)
        else:
            draw = partial(_draw_part, ahead=self._prefetch > 0, copied=len(ids) > 1)
            parts = [draw(self.buffers[member], part) for member in ids]
            batch = self._join(ids, parts)
        if len(self._transforms):
            # Flags, whose keys are tuples, are leaves of the data too.
            keys = {"index"} | {key for _, info in parts for key in info if isinstance(key, str)}
            batch = self._transforms.apply_beside(batch, keys)
        if self._pin or self._device is not None:
            batch = to_device(batch, self._device, self._pin)
        return (batch, _info_of(ids, [info for _, info in parts])) if return_info else batch

    def _join(self, ids: list[int], parts: list[tuple[Any, dict[Any, Any]]]) -> Any:
        batches = [data for data, _ in parts]
        if self._collate is not None:
            return self._collate(batches)
        if not isinstance(batches[0], TensorDictBase):
            return _stack_parts(batches)
        lengths = {len(batch) for batch in batches}
        if len(lengths) > 1:
            message = f"the members' parts have {', '.join(map(str, sorted(lengths)))} records"
            raise SamplingError(message, hint="sample with strict_length or with replacement, or give a collate_fn")
        complete = []
        for member, (batch, info) in zip(ids, parts):
            batch = batch.exclude("index")
            complete.append(batch if self.buffers[member]._info_in_batch else _with_info(batch, info))
        joined = _stack_parts(complete)
        rows = [info["index"] for _, info in parts]
        if len(rows[0]) != len(complete[0]):  # a transform has changed the number of records
            return joined
        tails = [tuple(batch.batch_size[1:]) for batch in complete]
        expanded = [expand_to_records(row, tail) for row, tail in zip(rows, tails)]
        return joined.set("index", _index_of(ids, expanded, min(map(len, tails)) + 1))

    def _sample_columns(self, ids: list[int], part: int) -> Any:
        """The batch if parts are only read: all parts of a member are read at once, and each leaf is joined for all members."""
        places: dict[int, list[int]] = {}
        for place, member in enumerate(ids):
            places.setdefault(member, []).append(place)
        drawn = {member: self.buffers[member]._next_columns(part, len(own)) for member, own in places.items()}
        devices = {member: self.buffers[member].storage.device for member in drawn}
        lengths = {length for _, of_parts in drawn.values() for length in of_parts}
        first, *others = [columns for columns, _ in drawn.values()]
        layouts = [{key: (leaf.dtype, leaf.shape[1:]) for key, leaf in columns.items()} for columns in (first, *others)]
        if len(lengths) > 1 or any(layout != layouts[0] for layout in layouts):
            parts: list[Any] = [None] * len(ids)
            for member, (columns, of_parts) in drawn.items():
                for place, leaves in zip(places[member], zip(*(leaf.split(of_parts) for leaf in columns.values()))):
                    found = dict(zip(columns, leaves))
                    parts[place] = nest(found, (len(found["index"]),), devices[member]), {"index": found["index"]}
            return self._join(ids, parts)
        order = torch.tensor([place for own in places.values() for place in own], device="cpu").argsort()
        is_ordered = len(places) in (1, len(ids))
        shape = (len(ids), *lengths)
        joined = {}
        for key in first:
            leaf = torch.cat([first[key], *(columns[key] for columns in others)]).unflatten(0, shape)
            joined[key] = leaf if is_ordered else leaf.index_select(0, order)
        index = _index_of(ids, joined.pop("index"))
        device = None if set(devices.values()) == {None} else torch.device("cpu")
        return nest(joined, shape, device).set("index", index)

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
        """Set priorities of the members' rows; ``index`` comes from a batch (``buffer_ids`` and ``index``)."""
        ids, rows = index["buffer_ids"], index["index"]
        values = torch.as_tensor(priority, device="cpu")
        values = values.reshape(ids.shape) if values.numel() == ids.numel() else values.expand(ids.shape)
        for member in ids.unique().tolist():
            chosen = ids == member
            self.buffers[member].update_priority(rows[chosen], values[chosen])

    def update_tensordict_priority(self, data: TensorDictBase, priority_key: Any = "td_error") -> None:
        """Set the priorities of a batch's rows from ``priority_key``, one value per row."""
        index, values = data["index"], data[priority_key]
        self.update_priority(index, values)

    # -- writing -----------------------------------------------------------------------------------------------------

    def extend(self, data: Any) -> TensorDict:
        """Distribute records to the members; each member keeps their order.

        Returns ``buffer_ids`` and ``index`` of each, int64, batch ``[n]``; ``n`` counts the records of all batch dimensions.
        Raises ReadOnlyError without ``routing_key`` or ``routing_dim``, SchemaError for data that do not name members, before
        anything is written.
        """
        if self._routing_key is None and self._routing_dim is None:
            hint = "write to its members: ensemble[0].extend(...)"
            raise ReadOnlyError("an ensemble doesn't allow writing", hint=hint)
        data = self._transforms.inv(data)
        ids = _members_of(data, len(self.buffers), self._routing_key, self._routing_dim)
        flat = data.reshape(-1)
        index: torch.Tensor | None = None
        for member in ids.unique().tolist():
            chosen = (ids == member).nonzero().squeeze(1)
            rows = torch.as_tensor(self.buffers[member].extend(flat[chosen]), device="cpu")
            if index is None:
                index = torch.full((len(ids), *rows.shape[1:]), -1, device="cpu")
            index[chosen] = rows
        return TensorDict({"buffer_ids": ids, "index": ids.clone() if index is None else index}, [len(ids)])

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
        """Start the sequence of batches that a seed determines, in the members as well."""
        seed = check_seed(seed)
        self._generator.manual_seed(seed)
        for number, buffer in enumerate(self.buffers):
            buffer.set_seed(seed + 1 + number)

    def set_rng(self, generator: torch.Generator | None) -> None:
        """Draw members from this generator from now on; it also gives each member a seed."""
        check_generator(generator)
        self._generator = make_generator(draw_seed()) if generator is None else generator
        for buffer in self.buffers:
            buffer.set_seed(draw_seed(self._generator))

    # -- members -----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of members, as in TorchRL."""
        return len(self.buffers)

    def __getitem__(self, index: Any) -> Any:
        """A member by number, by slice or list an ensemble of some of them.

        ``[members, rows]`` are records of each, through all transforms: ``[members, rows]``, or a lazy stack.
        """
        members, *rows = index if isinstance(index, tuple) else (index,)
        chosen = _pick_members(members, len(self.buffers))
        place = rows[0] if len(rows) == 1 else tuple(rows)
        if isinstance(chosen, int):
            return self.buffers[chosen][place] if rows else self.buffers[chosen]
        if rows:
            records = [self.buffers[member][place] for member in chosen]
            found = (self._collate or _stack_parts)(records)
            return self._transforms.apply_to_stored(found)
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
        """The members' states, and the state of the ensemble's own draws."""
        return {
            "members": [buffer.state_dict() for buffer in self.buffers],
            "generator": self._generator.get_state(),
            "transforms": self._transforms.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state from `state_dict`. If it is refused, the ensemble stays unchanged."""
        if len(state.get("members", ())) != len(self.buffers) or not {"generator", "transforms"} <= set(state):
            raise UsageError(f"the state has {len(state.get('members', ()))} members, the ensemble {len(self.buffers)}")
        members = zip(self.buffers, state["members"])
        self._load([partial(buffer.load_state_dict, own) for buffer, own in members], state)

    def _load(self, loads: list[Callable[[], None]], own: dict[str, Any]) -> None:
        """Load each member, and the ensemble's own state. Everything is checked before rows are written."""
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
        """Write every member to a separate folder below ``path``, all or nothing; see `checkpoint`."""
        with CheckpointWriter(path) as folder:
            for number, buffer in enumerate(self.buffers):
                with buffer._lock:
                    dump_into(buffer, folder.part(str(number)))
            folder.describe("ReplayBufferEnsemble", {"members": len(self.buffers)})
            folder.tensors("rng", {"generator": OrderState(self._generator.get_state(), None).generator})
            folder.tensors("transforms", self._transforms.state_dict())

    save = dump = dumps

    def loads(self, path: Any) -> None:
        """Read what `dumps` wrote, into an ensemble of the same members. If it is refused, the ensemble stays unchanged."""
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
