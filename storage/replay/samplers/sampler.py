"""The base class of samplers, and its two methods that draw a batch.

Ours is ``draw``, TorchRL's is ``sample(storage, batch_size) -> (index, info)``. A sampler class defines one of them, and
`_other` makes the other one from it, separately in each class:

    class A(RandomSampler): sample        A.draw calls A.sample, in which super().sample() calls RandomSampler.draw
    class B(A): draw                      B.sample calls B.draw, in which super().draw() calls A.sample

So the most derived definition draws, under either name, and ``super()`` calls the next definition.
"""

from __future__ import annotations

import gc
from abc import ABCMeta
from copy import deepcopy
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
    """How a buffer uses its sampler: prefetched batches, windows around the drawn records, number of processes."""

    prefetch: int = 0
    windows: bool = False
    shared: bool = False
    world_size: int = 1


class _Replacement(ABCMeta):
    """``replacement=False`` gives the variant of a sampler that draws without replacement."""

    # Type checkers would treat every sampler as Any, with any arguments, instead of reading ``__init__``.
    if not TYPE_CHECKING:

        def __call__(cls, *args: Any, replacement: bool = True, **options: Any) -> Any:
            variant = cls if replacement else vars(cls).get("without_replacement")
            if variant is None:
                if cls.replaces:  # type: ignore[attr-defined]
                    raise UsageError(f"{cls.__name__} has no without-replacement variant")
                variant = cls
            return type.__call__(variant, *args, **options)

    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in ("draw", "sample"):  # of an existing class
            other = "sample" if name == "draw" else "draw"
            type.__setattr__(cls, other, getattr(value, MADE, None) or _other(name, value))

    @property
    def __signature__(cls) -> Signature:
        """The signature of ``__init__``; `inspect.signature` would find ``__call__`` of this metaclass."""
        own = cls.__init__  # type: ignore[misc]
        parameters = () if own is object.__init__ else tuple(signature(own).parameters.values())[1:]
        return Signature(parameters)


#: The storages that samplers draw from; stored here because copies and checkpoints would include attributes.
_claimed: WeakKeyDictionary[Sampler, ref[Storage]] = WeakKeyDictionary()


class Sampler(metaclass=_Replacement):
    """Base of all samplers; one of your own needs ``draw``, or TorchRL's ``sample(storage, batch_size)``.

    Overridden methods act as in TorchRL; a subclass that defines a method of TorchRL's that is never called here is refused
    by the buffer. Batches of a subclass are drawn on request (or prefetched), not earlier, unless it sets ``ahead``.

    ``ran_out`` is True after the draw that ended a pass. ``endless`` is False for samplers with passes. The constructors of
    samplers that have a variant without replacement accept ``replacement=False``, and then make that variant.
    """

    #: The variant without replacement; derived classes do not inherit it.
    without_replacement: ClassVar[type[Sampler] | None] = None
    #: Whether a record may be drawn again before all other records were drawn; False in the variants without replacement.
    replaces: ClassVar[bool] = True

    ran_out = False
    endless = True
    #: Whether the sampler keeps a value for every row; it has no values for rows that another process writes.
    values_per_row = False
    #: Whether a draw depends on nothing but the storage and the generator, so that it may be made ahead of time.
    ahead = True
    #: Arguments of the constructor that may be assigned while the sampler is in use: they act from the next draw on.
    arguments: ClassVar[frozenset[str]] = frozenset()
    #: How often one of these arguments was assigned; batches drawn ahead before an assignment are drawn again.
    changes = 0
    #: The share of the data of this process in data-parallel training: (rank, world size).
    share: tuple[int, int] = (0, 1)
    drop_last = False

    _rng: torch.Generator | None = None
    #: The coordinates of the rows passed to a user's ``add`` or ``extend``: [n, ndim], for storages of several dimensions.
    _written: Storage | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        link(cls, "draw", "sample", _other)
        link(cls, "empty", "_empty")
        link(cls, "sampleable", "_sampleable_count")
        own = vars(cls)
        if cls.__module__.partition(".")[0] == ROOT:
            return
        if "ahead" not in own and any(callable(value) for name, value in own.items() if name not in _HARMLESS):
            cls.ahead = False  # the draws of a user's class may depend on anything
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
        """Compute attributes from the arguments. Raises UsageError for arguments that contradict each other."""

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
        """The number of records (or starts of slices) to draw a batch of this size from; 0 if it cannot be drawn now."""
        return len(storage)

    def live(self, storage: Storage) -> int:
        """The number of records that the sampler can draw: ``len(buffer)``."""
        return len(storage)

    def _check_parts(self, storage: Storage, writer: Any, use: Use) -> None:
        """Raise UsageError if the sampler does not work with these parts of a buffer, or with this use."""

    def _writer_for(self, writer: Any, storage: Storage) -> Any:
        """The writer of new records: ``writer`` itself, or a writer that chooses other rows."""
        return writer

    def reserve(self, rows: int) -> None:
        """A storage of several dimensions has rounded its size up to this many rows."""

    _sampleable_count = sampleable

    def add(self, index: Any) -> None:
        """A record was written to this row: an int, or ``[1]``."""

    def extend(self, index: Any) -> None:
        """Records were written to these rows, ``[n]``; a user's method gets ``[n, ndim]`` for a storage of more dimensions."""

    def update_priority(self, index: Any, priority: Any, *, storage: Storage | None = None) -> Any:
        """Set the priorities of rows, if the sampler has priorities."""

    def mark_update(self, index: Any, *, storage: Storage | None = None) -> Any:
        """Give rows the priority of new records, if the sampler has priorities."""

    def empty(self) -> None:
        """The storage was emptied."""

    _empty = empty

    @property
    def keeps_of_records(self) -> bool:
        """Whether the sampler holds state about the records of one storage: values of rows, or an unfinished pass."""
        return self.values_per_row

    def _claim(self, storage: Storage) -> None:
        """Note the storage of the drawn records. Raises SamplingError while the sampler holds state about another storage."""
        before = _claimed.get(self)
        if before is not None and before() is storage:
            return
        if before is not None and before() is not None and self.keeps_of_records:
            gc.collect()  # of a buffer that was dropped
            if before() is not None:
                message = f"this {type(self).__name__} is in use by a buffer with other records"
                hint = "give each buffer its own sampler, or call the sampler's empty() before it changes buffers"
                raise SamplingError(message, hint=hint)
        _claimed[self] = ref(storage)

    def _leave(self) -> None:
        """Called when the buffer gets another storage or another sampler."""
        _claimed.pop(self, None)

    def position(self) -> Any:
        """The state that drawing changes, besides the generator."""
        return None

    def set_position(self, position: Any) -> None:
        """Go back (or forward) to a position."""

    def state_dict(self) -> dict[str, Any]:
        """The whole state: JSON values and tensors, by name."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state from ``state_dict``. Raises UsageError for the state of another kind of sampler."""

    def dumps(self, path: Any) -> None:
        """Write the state to the folder ``path`` (see `saving`)."""
        write_state(Path(path), self.state_dict())

    def loads(self, path: Any) -> None:
        """Read a folder written by `dumps` of this sampler, or of TorchRL's sampler of the same name."""
        state = _read_torchrl_state(Path(path))
        self.load_state_dict(read_state(Path(path)) if state is None else state)

    def __getstate__(self) -> dict[str, Any]:
        # Generators do not pickle; the buffer carries its own over.
        return {name: value for name, value in self.__dict__.items() if name != "_rng"}

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


#: The names that a subclass may define without changing the draws.
_HARMLESS = frozenset(("__init__", "__repr__", "__str__"))


_METADATA_BYTES = 1 << 20


def _read_torchrl_state(folder: Path) -> dict[str, Any] | None:
    """The ``state_dict`` that a sampler of TorchRL wrote to a folder, if any. Raises DamagedDatasetError, UsageError."""
    if (folder / "consuming_sampler.pt").exists():
        raise UsageError(f"{folder} holds a pickle, which is not read", hint="pass the sampler's state_dict()")
    with reading(f"the state in {folder}"):
        if (folder / "sampler_metadata.json").exists():
            state: dict[str, Any] = read_json(folder / "sampler_metadata.json", _METADATA_BYTES)
            data = (folder / "sumtree.memmap").read_bytes()
            tree = torch.frombuffer(bytearray(data), dtype=torch.float64) if data else torch.zeros(0, device="cpu")
            if len(tree) != state["_max_capacity"]:
                raise ValueError(f"{len(tree)} priorities for {state['_max_capacity']} rows")
            return {**state, "_sum_tree": tree}
        if (folder / "meta.json").exists():
            leaves = read_memmap(folder).items()
            return {name: leaf if leaf.ndim else leaf.item() for name, leaf in leaves}
    return None


# -- the two calls ----------------------------------------------------------------------------------------------------


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
    """The next draw; by ``sample`` of the instance, if it was set there."""
    sampler._claim(storage)
    own = sampler.__dict__.get("sample")
    if own is not None and "draw" not in sampler.__dict__:
        return _to_draw(sampler, storage, own(storage, batch_size))
    draw = sampler.draw(storage, batch_size, generator)
    return draw if is_known(sampler) else _copied(draw)


#: Methods by which a class of a user learns what happens between draws.
_BETWEEN_DRAWS = ("add", "extend", "update_priority", "mark_update")


def own_state(sampler: Sampler) -> Any:
    """A copy of the ``state_dict`` of a user's class, which drawing changes; None if there is nothing to go back to, if the
    class has ``position``, or if it is told of writes or priorities, which an earlier state would not have."""
    if not is_overridden(sampler, "state_dict") or not is_overridden(sampler, "load_state_dict"):
        return None
    told = any(is_overridden(sampler, name) for name in _BETWEEN_DRAWS)
    if told or sampler.values_per_row or is_overridden(sampler, "position"):
        return None
    try:
        return deepcopy(sampler.state_dict()) or None
    except NotImplementedError:  # as TorchRL's abstract methods
        return None


def position_of(sampler: Sampler) -> Any:
    """The sampler's position; of a user's class in new memory."""
    position = sampler.position()
    return deepcopy(position) if is_overridden(sampler, "position") else position


def _copied(draw: Draw) -> Draw:
    """The same draw in new memory, because the user's sampler may reuse its own for the next batch."""
    start, lengths, goals, info = copy_of([draw.start, draw.lengths, draw.goals, draw.info])
    return replace(draw, start=start, lengths=lengths, goals=goals, info=info, notes=copy_of(draw.notes))


def fills_up(sampler: Sampler, ran_out: bool) -> bool:
    """Whether the next pass fills up a part that ``ran_out``; not with ``num_slices``: its slices would be shorter."""
    return ran_out and not getattr(sampler, "num_slices", None)


def is_known(sampler: Sampler) -> bool:
    """Whether no method that draws is overridden, so that draws can be taken back by `Sampler.position`."""
    return not (is_overridden(sampler, "draw") or is_overridden(sampler, "sample"))


# -- from one to the other ---------------------------------------------------------------------------------------------


def _by_row(draw: Draw, storage: Storage) -> tuple[Any, dict[Any, Any]]:
    """A draw as `sample` returns it: rows, and their info, including slice flags."""
    rows = draw.rows()

    def column(key: Key) -> torch.Tensor | None:
        values = storage.column_as_read(key)
        return None if values is None else values[rows].clone()

    flags = {entry_key(key): flag for key, flag in slice_flags(draw, column).items()}
    return storage.coordinates(rows), {**draw.info, **flags, **draw.notes}


def _to_draw(sampler: Sampler, storage: Storage, found: Any) -> Draw:
    """The draw for the result of a user's ``sample``. Raises SamplingError unless it is ``(index, info)`` of this storage.

    ``index``: rows as a tensor, an array or a list, ``[N]`` (negative numbers count from the end), or a tuple of one of these
    for each dimension of the storage. ``info``: values ``[N, ...]``, or single values, which are repeated for each record.
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
            values = torch.as_tensor(value, device="cpu")
        except (TypeError, ValueError, RuntimeError) as error:
            message = f"info[{key!r}] that {name} returned is not a tensor but a {type(value).__name__}"
            raise SamplingError(message) from error
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
            index = torch.stack([torch.as_tensor(part, device="cpu") for part in index], -1)
        rows = torch.as_tensor(index, device="cpu")
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
    sizes = torch.tensor(shape, device="cpu")
    if len(rows) and not bool(((rows >= -sizes) & (rows < sizes)).all()):
        raise SamplingError(f"{what} has rows that are not among the {list(shape)} there are")
    return storage.flat(torch.where(rows < 0, rows + sizes, rows))
