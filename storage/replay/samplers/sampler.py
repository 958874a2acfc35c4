"""What a sampler is, and the two calls that draw a batch.

Ours is ``draw``, TorchRL's ``sample(storage, batch_size) -> (index, info)``. A class of samplers defines one of them, and
`_link_calls` makes the other one from it, in every class of its own:

    class A(RandomSampler): sample        A.draw calls A.sample, in which super().sample() calls RandomSampler.draw
    class B(A): draw                      B.sample calls B.draw, in which super().draw() calls A.sample

So the most derived definition is what draws, whichever name it has, and ``super()`` reaches the next one.
"""

from __future__ import annotations

import gc
from abc import ABCMeta
from dataclasses import dataclass, replace
from inspect import Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary, ref

import torch

from ....errors import SamplingError, UsageError
from ...tensordict_folder import read_json, read_memmap
from ..draw import Draw, slice_flags
from ..overrides import MADE, ROOT, is_overridden, link
from ..saving import read_state, reading, write_state
from ..storages.storage import Storage
from ..storages.trees import copy_of
from ..timeline import Key, as_key, entry_key


@dataclass(frozen=True)
class Use:
    """What a buffer does with its sampler: batches prefetched, windows around the records drawn, processes."""

    prefetch: int = 0
    windows: bool = False
    shared: bool = False
    world_size: int = 1


class _Replacement(ABCMeta):
    """``replacement=False`` gives the variant of a sampler that draws without replacement."""

    if (
        not TYPE_CHECKING
    ):  # which would take every sampler for an Any, with any arguments, instead of reading ``__init__``

        def __call__(cls, *args: Any, replacement: bool = True, **options: Any) -> Any:
            variant = cls if replacement else vars(cls).get("without_replacement")
            if variant is None:
                if cls.replaces:  # type: ignore[attr-defined]
                    raise UsageError(f"{cls.__name__} has no without-replacement variant")
                variant = cls
            return type.__call__(variant, *args, **options)

    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in ("draw", "sample"):
            _relink(cls, name, value)

    @property
    def __signature__(cls) -> Signature:
        """That of ``__init__``, where `inspect.signature` would find the above."""
        own = cls.__init__  # type: ignore[misc]
        parameters = () if own is object.__init__ else tuple(signature(own).parameters.values())[1:]
        return Signature(parameters)


#: The storages that samplers draw from; not attributes, which copies and checkpoints would have.
_claimed: WeakKeyDictionary[Sampler, ref[Storage]] = WeakKeyDictionary()


class Sampler(metaclass=_Replacement):
    """Base of all samplers; one of your own needs ``draw``, or TorchRL's ``sample(storage, batch_size)``.

    What a subclass overrides acts as in TorchRL; where it defines a method of TorchRL's that is never called here, the buffer
    refuses it. Batches of a subclass are drawn when they are asked for (or prefetched), not before, unless it sets ``ahead``.

    ``ran_out`` is True after the draw that ended a pass. ``endless`` is False where there are passes. ``replacement=False``
    is taken by the constructors of samplers that have a variant without replacement, and makes that one.
    """

    #: The variant without replacement; only of the very class that names it, not of those derived from it.
    without_replacement: ClassVar[type[Sampler] | None] = None
    #: Whether a record may come again before all others have come; False in the variants without replacement.
    replaces: ClassVar[bool] = True

    ran_out = False
    endless = True
    #: Whether the sampler keeps a value of every row; rows that another process writes have none here.
    values_per_row = False
    #: Whether a draw depends on nothing but the storage and the generator, so that it may be made ahead of time.
    ahead = True
    #: Arguments of the constructor that may be assigned while the sampler is in use: they act from the next draw on.
    arguments: ClassVar[frozenset[str]] = frozenset()
    #: How often one of them was assigned; what was drawn ahead before is drawn again.
    changes = 0
    #: The part of the data that is this process's own, in data-parallel training: (rank, world size).
    share: tuple[int, int] = (0, 1)
    drop_last = False

    _rng: torch.Generator | None = None
    #: Where the rows lie that a user's ``add`` or ``extend`` is told of: [n, ndim] of a storage of several dimensions.
    _written: Storage | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _link_calls(cls)
        link(cls, "empty", "_empty")
        link(cls, "sampleable", "_sampleable_count")
        own = vars(cls)
        if cls.__module__.partition(".")[0] == ROOT:
            return
        if "ahead" not in own and any(callable(value) for name, value in own.items() if name not in _HARMLESS):
            cls.ahead = False  # what the draws of a user's class depend on is not known
        if "ran_out" in own and "endless" not in own:
            cls.endless = False

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.arguments or name not in self.__dict__:
            super().__setattr__(name, value)
            return
        before = dict(self.__dict__)
        super().__setattr__(name, value)
        try:
            self._configure()
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        self.__dict__["changes"] = self.changes + 1

    def _configure(self) -> None:
        """Work out what follows from the arguments. Raises UsageError where they do not go together."""

    def draw(self, storage: Storage, batch_size: int, generator: torch.Generator) -> Draw:
        """The next batch. Raises SamplingError when it cannot be drawn."""
        return _to_draw(self, storage, self.sample(storage, batch_size))

    def sample(self, storage: Storage, batch_size: int) -> tuple[Any, dict[Any, Any]]:
        """TorchRL's call: ``(index, info)`` of a batch, drawn from the generator the buffer has set."""
        raise NotImplementedError(f"{type(self).__name__} defines neither draw() nor sample()")

    def can_sample(self, storage: Storage, batch_size: int) -> bool:
        """Whether a batch of this size can be drawn."""
        return int(self.sampleable(storage, batch_size)) > 0

    def sampleable(self, storage: Storage, batch_size: int) -> int:
        """How many records (or starts of slices) a batch of this size can be drawn from now, 0 when it cannot be drawn."""
        return len(storage)

    def live(self, storage: Storage) -> int:
        """How many records the buffer has for its sampler: ``len(buffer)``."""
        return len(storage)

    def _check_parts(self, storage: Storage, writer: Any, use: Use) -> None:
        """Raise UsageError where the sampler cannot work with these parts of a buffer, or with its use."""

    def _writer_for(self, writer: Any, storage: Storage) -> Any:
        """What writes new records: ``writer`` itself, or one that chooses their rows."""
        return writer

    def reserve(self, rows: int) -> None:
        """A storage of several dimensions has rounded its size up to this many rows."""

    _sampleable_count = sampleable

    def add(self, index: Any) -> None:
        """A record was written to this row: an int, or ``[1]``."""

    def extend(self, index: Any) -> None:
        """Records were written to these rows, ``[n]``; a user's method gets ``[n, ndim]`` for a storage of more dimensions."""

    def update_priority(self, index: Any, priority: Any, *, storage: Storage | None = None) -> Any:
        """Set the priorities of rows, where the sampler has any."""

    def mark_update(self, index: Any, *, storage: Storage | None = None) -> Any:
        """Give rows the priority of new records, where the sampler has priorities."""

    def empty(self) -> None:
        """The storage was emptied."""

    _empty = empty

    @property
    def keeps_of_records(self) -> bool:
        """Whether it keeps what is true of one storage's records alone: values of rows, or a pass under way."""
        return self.values_per_row

    def _claim(self, storage: Storage) -> None:
        """Note whose records are drawn. Raises SamplingError while it keeps something of another storage's."""
        before = _claimed.get(self)
        if before is not None and before() is storage:
            return
        if before is not None and before() is not None and self.keeps_of_records:
            gc.collect()  # of a buffer that was dropped
            if before() is not None:
                message = f"this {type(self).__name__} is in use by a buffer with other records"
                hint = "give each buffer a sampler of its own, or call the sampler's empty() before it changes buffers"
                raise SamplingError(message, hint=hint)
        _claimed[self] = ref(storage)

    def _leave(self) -> None:
        """Its buffer has another storage, or another sampler, from now on."""
        _claimed.pop(self, None)

    def position(self) -> Any:
        """What drawing changes, besides the generator."""
        return None

    def set_position(self, position: Any) -> None:
        """Go back (or on) to a position."""

    def state_dict(self) -> dict[str, Any]:
        """Everything: JSON values and tensors, by name."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what ``state_dict`` gave. Raises UsageError when it belongs to another kind of sampler."""

    def dumps(self, path: Any) -> None:
        """Write the state to the folder ``path`` (see `saving`)."""
        write_state(Path(path), self.state_dict())

    def loads(self, path: Any) -> None:
        """Read what `dumps` of this sampler wrote, or that of TorchRL's sampler of the same name."""
        state = _read_torchrl_state(Path(path))
        self.load_state_dict(read_state(Path(path)) if state is None else state)

    def __getstate__(self) -> dict[str, Any]:
        # Generators do not pickle; the buffer carries its own over.
        return {name: value for name, value in self.__dict__.items() if name != "_rng"}

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


#: What a subclass may define without changing what is drawn.
_HARMLESS = frozenset(("__init__", "__repr__", "__str__"))


_METADATA_BYTES = 1 << 20


def _read_torchrl_state(folder: Path) -> dict[str, Any] | None:
    """What a sampler of TorchRL wrote to a folder, as its ``state_dict`` has it; None where none did.

    Raises DamagedDatasetError when it is not whole, UsageError for a pickle, which is not read.
    """
    if (folder / "consuming_sampler.pt").exists():
        raise UsageError(f"{folder} holds a pickle, which is not read", hint="pass the sampler's state_dict()")
    with reading(f"the state in {folder}"):
        if (folder / "sampler_metadata.json").exists():
            state: dict[str, Any] = read_json(folder / "sampler_metadata.json", _METADATA_BYTES)
            data = (folder / "sumtree.memmap").read_bytes()
            tree = torch.frombuffer(bytearray(data), dtype=torch.float64) if data else torch.zeros(0)
            if len(tree) != state["_max_capacity"]:
                raise ValueError(f"{len(tree)} priorities for {state['_max_capacity']} rows")
            return {**state, "_sum_tree": tree}
        if (folder / "meta.json").exists():
            leaves = read_memmap(folder).items()
            return {name: leaf if leaf.ndim else leaf.item() for name, leaf in leaves}
    return None


# -- the two calls ----------------------------------------------------------------------------------------------------


def _link_calls(cls: type) -> None:
    """Give a class of samplers the one of the two methods that it does not define."""
    link(cls, "draw", "sample", _other)


def _relink(cls: type, name: str, value: Any) -> None:
    """The class was given a ``draw`` or ``sample`` after it was made: the other one follows."""
    other = "sample" if name == "draw" else "draw"
    type.__setattr__(cls, other, getattr(value, MADE, None) or _other(name, value))


def _other(given: str, function: Any) -> Any:
    """``sample`` made from a ``draw``, or ``draw`` from a ``sample``."""

    def draw(self: Sampler, storage: Storage, batch_size: int, generator: torch.Generator) -> Draw:
        before, self._rng = self._rng, generator
        try:
            return _to_draw(self, storage, _bound(function, self)(storage, batch_size))
        finally:
            self._rng = before

    def sample(self: Sampler, storage: Storage, batch_size: int) -> tuple[Any, dict[Any, Any]]:
        generator = self._rng if self._rng is not None else torch.default_generator
        return _by_row(_bound(function, self)(storage, batch_size, generator), storage)

    made = sample if given == "draw" else draw
    setattr(made, MADE, function)
    made.__doc__ = {
        "draw": "The next batch: what `sample` returns.",
        "sample": "TorchRL's call: ``(index, info)`` of a batch, drawn from the generator the buffer has set.",
    }[made.__name__]
    return made


def _bound(function: Any, sampler: Sampler) -> Any:
    return function.__get__(sampler, type(sampler)) if hasattr(type(function), "__get__") else function


def draw_batch(sampler: Sampler, storage: Storage, batch_size: int, generator: torch.Generator) -> Draw:
    """The next draw; by the ``sample`` that was set on this very sampler, if one was."""
    sampler._claim(storage)
    own = sampler.__dict__.get("sample")
    if own is not None and "draw" not in sampler.__dict__:
        return _to_draw(sampler, storage, own(storage, batch_size))
    draw = sampler.draw(storage, batch_size, generator)
    return draw if is_known(sampler) else _copied(draw)


def _copied(draw: Draw) -> Draw:
    """The same, in memory that the user's sampler does not use again for the next batch."""
    start, lengths, goals, info = copy_of([draw.start, draw.lengths, draw.goals, draw.info])
    return replace(draw, start=start, lengths=lengths, goals=goals, info=info, notes=copy_of(draw.notes))


def fills_up(sampler: Sampler, ran_out: bool) -> bool:
    """Whether a part of a batch that ``ran_out`` of its pass is filled up from the next one.

    With ``num_slices`` it is not: what is missing would be cut into shorter slices.
    """
    return ran_out and not getattr(sampler, "num_slices", None)


def is_known(sampler: Sampler) -> bool:
    """Whether nothing of how the sampler draws was overridden, so that its draws can be taken back by `Sampler.position`."""
    return not (is_overridden(sampler, "draw") or is_overridden(sampler, "sample"))


# -- from one to the other ---------------------------------------------------------------------------------------------


def _by_row(draw: Draw, storage: Storage) -> tuple[Any, dict[Any, Any]]:
    """What `sample` returns of a draw: rows, and what is known of them, slice flags included."""
    rows = draw.rows()

    def column(key: Key) -> torch.Tensor | None:
        values = storage.column_as_read(key)
        return None if values is None else values[rows].clone()

    flags = {entry_key(key): flag for key, flag in slice_flags(draw, column).items()}
    return storage.coordinates(rows), {**draw.info, **flags, **draw.notes}


def _to_draw(sampler: Sampler, storage: Storage, found: Any) -> Draw:
    """The draw that a user's ``sample`` stands for. Raises SamplingError for what is not ``(index, info)`` of this storage.

    ``index``: rows as a tensor, an array or a list, ``[N]`` (negative ones count from the end), or a tuple of one of these for
    each dimension of the storage. ``info``: values ``[N, ...]``, or single ones, which are repeated for each record.
    """
    name = f"{type(sampler).__name__}.sample"
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[1], dict):
        raise SamplingError(f"{name} must return (index, info), with a dict as info, not {found!r:.100}")
    rows = rows_of(found[0], storage, f"the index that {name} returned")
    given = {key: value for key, value in found[1].items() if key not in ("index", ("index",))}
    each = {}
    for key, value in given.items():
        if not isinstance(key, (str, tuple)) or any("/" in part for part in as_key(key)):
            raise SamplingError(f"info[{key!r}] that {name} returned has no key that a batch could have")
        try:
            values = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise SamplingError(
                f"info[{key!r}] that {name} returned is not a tensor but a {type(value).__name__}"
            ) from error
        if not values.ndim:
            values = values.expand(len(rows))
        if values.shape[0] != len(rows):
            message = f"info[{key!r}] that {name} returned has shape {list(values.shape)}, for {len(rows)} records"
            raise SamplingError(message, hint="a value for each record, or one for all of them")
        each[key] = values
    return _copied(Draw(rows, info=each, notes=given))


def rows_of(index: Any, storage: Storage, what: str) -> torch.Tensor:
    """Flat rows, int64 ``[N]``, of an index that a user's function returned. Raises SamplingError for anything else."""
    shape = tuple(storage.shape) if storage.ndim > 1 else (len(storage),)
    try:
        if isinstance(index, tuple):
            index = torch.stack([torch.as_tensor(part) for part in index], -1)
        rows = torch.as_tensor(index)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SamplingError(f"{what} is a {type(index).__name__}: rows are whole numbers, [N]") from error
    if rows.is_floating_point() or rows.is_complex() or rows.dtype == torch.bool:
        raise SamplingError(f"{what} holds {rows.dtype}: rows are whole numbers, [N]")
    if rows.ndim == 1 and storage.ndim == 1:
        rows = rows[:, None]
    if rows.ndim != 2 or rows.shape[1] != len(shape):
        wanted = "[N]" if len(shape) == 1 else f"[N, {len(shape)}], or a tuple of {len(shape)} tensors [N]"
        raise SamplingError(f"{what} has shape {list(rows.shape)}", hint=f"return {wanted}")
    rows = rows.long().cpu()
    sizes = torch.tensor(shape)
    if len(rows) and not bool(((rows >= -sizes) & (rows < sizes)).all()):
        raise SamplingError(f"{what} has rows that are not among the {list(shape)} there are")
    return storage.flat(torch.where(rows < 0, rows + sizes, rows))
