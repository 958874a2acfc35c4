"""Which steps make a batch: drawn with replacement, or pass after pass.

A sampler looks at the length of a storage and at its episodes, never at its data, so a draw costs the same however
large it is. It draws from the one generator it is given: the same seed gives the same batches. Draws that are made
ahead of time can be taken back (`position`), so that reading ahead changes nothing.

`Permutation` is a random permutation of 0..n-1 that is computed, not stored.

Sampling without replacement from 50 M steps with a shuffled index array costs 400 MB and seconds for every pass. A small
Feistel network on the bits of the position is a permutation of [0, 2^2b); positions that fall outside [0, n) are sent
through again until they land inside ("cycle walking"), which keeps it one to one. Black and Rogaway, "Ciphers with
Arbitrary Finite Domains", CT-RSA 2002.

On a handful of bits such a network is far from random: of 5 elements some orders come twice as often as others. Up to
``SMALL`` elements are sorted by random numbers instead, one for each.

`read_torchrl_state` and `priorities_of` take over the states of TorchRL's samplers.

TorchRL's prioritized samplers keep (p + eps)^alpha in a tree of sums, and not the priorities themselves, which are worked
out from it:  p = tree^(1 / alpha) - eps.  With alpha = 0 every record is 1 there, and gets the largest priority.
"""

from __future__ import annotations

import math
from abc import ABCMeta
from collections.abc import Callable
from functools import partial
from inspect import Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from ....errors import DamagedDatasetError, SamplingError, UsageError, reason
from ...tensordict_folder import read_json, read_memmap
from ..draw import Draw
from ..overrides import ROOT, link
from ..storages.storage import Storage
from .calls import link_calls, relink, to_draw

ROUNDS = 6
#: The most elements that are sorted. Beyond it pairs of places, fixed points and neighbours are distributed as they should be
#: in samples of 40,000 orders; of 64 elements successors still stay together too often.
SMALL = 64


class Permutation:
    """The permutation of ``0..size-1`` that belongs to a seed; ``permutation(positions)`` maps int64 arrays."""

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self._sorted: np.ndarray | None = None
        if size <= SMALL:
            self._sorted = np.argsort(np.random.SeedSequence(seed).generate_state(size, np.uint64), kind="stable")
            return
        self._half = np.uint64(max(1, ((max(1, size - 1)).bit_length() + 1) // 2))
        self._mask = np.uint64((1 << int(self._half)) - 1)
        self._keys = np.random.SeedSequence(seed).generate_state(ROUNDS, np.uint64)

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        if self._sorted is not None:
            return self._sorted[np.asarray(positions, np.int64)]
        values = self._network(np.asarray(positions, np.uint64))
        outside = values >= self.size
        while outside.any():  # the domain is less than 4 times the size: about two rounds
            values[outside] = self._network(values[outside])
            outside = values >= self.size
        return values.astype(np.int64)

    def _network(self, values: np.ndarray) -> np.ndarray:
        left, right = values >> self._half, values & self._mask
        for key in self._keys:
            left, right = right, left ^ (_mix(right ^ key) & self._mask)
        return (left << self._half) | right


def _mix(values: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014): every input bit reaches every output bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


METADATA_BYTES = 1 << 20


def priorities_of(state: dict[str, Any], capacity: int, *, within_buffer: bool) -> dict[str, Any]:
    """Our state of a prioritized sampler from TorchRL's, which has room for ``capacity`` records.

    States without ``_schema_version`` are of a time when the largest priority within the buffer was kept as it is in the
    tree; it is then that of the priorities. Raises UsageError for what is no such state.
    """
    try:
        alpha, beta, eps = (float(state[name]) for name in ("_alpha", "_beta", "_eps"))
        tree = torch.as_tensor(np.asarray(state["_sum_tree"][np.arange(capacity)]), dtype=torch.float64)
        top = None if state["_max_priority"] is None else state["_max_priority"][0]
        largest = None if top is None else float(top)
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError, OverflowError) as error:
        raise UsageError(f"the state is not that of a prioritized sampler: {reason(error)}") from error
    raw = (tree ** (1 / alpha) - eps).clamp(min=0) if alpha else torch.full_like(tree, largest or 1.0)
    priorities = torch.where(tree > 0, raw, math.nan)
    written = bool((tree > 0).any())
    if within_buffer and alpha and not state.get("_schema_version", 0):
        largest = float(raw[tree > 0].max()) if written else None
    return {"alpha": alpha, "beta": beta, "eps": eps, "largest": largest, "priorities": priorities}


def read_torchrl_state(folder: Path) -> dict[str, Any] | None:
    """What a sampler of TorchRL wrote to a folder, as its ``state_dict`` has it; None where none did.

    Raises DamagedDatasetError when it is not whole, UsageError for a pickle, which is not read.
    """
    if (folder / "consuming_sampler.pt").exists():
        raise UsageError(f"{folder} holds a pickle, which is not read", hint="pass the sampler's state_dict()")
    try:
        if (folder / "sampler_metadata.json").exists():
            state: dict[str, Any] = read_json(folder / "sampler_metadata.json", METADATA_BYTES)
            data = (folder / "sumtree.memmap").read_bytes()
            tree = torch.frombuffer(bytearray(data), dtype=torch.float64) if data else torch.zeros(0)
            if len(tree) != state["_max_capacity"]:
                raise ValueError(f"{len(tree)} priorities for {state['_max_capacity']} rows")
            return {**state, "_sum_tree": tree}
        if (folder / "meta.json").exists():
            leaves = read_memmap(folder).items()
            return {name: leaf if leaf.ndim else leaf.item() for name, leaf in leaves}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        raise DamagedDatasetError(f"the state in {folder} is damaged: {reason(error)}") from error
    return None


class _Replacement(ABCMeta):
    """``replacement=False`` gives the variant of a sampler that draws without replacement."""

    if (
        not TYPE_CHECKING
    ):  # which would take every sampler for an Any, with any arguments, instead of reading ``__init__``

        def __call__(cls, *args: Any, replacement: bool = True, **options: Any) -> Any:
            variant = cls if replacement else vars(cls).get("without_replacement")
            if variant is None:
                if not issubclass(cls, SamplerWithoutReplacement):
                    raise UsageError(f"{cls.__name__} has no without-replacement variant")
                variant = cls
            return type.__call__(variant, *args, **options)

    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in ("draw", "sample"):
            relink(cls, name, value)

    @property
    def __signature__(cls) -> Signature:
        """That of ``__init__``, where `inspect.signature` would find the above."""
        own = cls.__init__  # type: ignore[misc]
        parameters = () if own is object.__init__ else tuple(signature(own).parameters.values())[1:]
        return Signature(parameters)


class Sampler(metaclass=_Replacement):
    """Base of all samplers; one of your own needs ``draw``, or TorchRL's ``sample(storage, batch_size)`` (see `calls`).

    What a subclass overrides acts as in TorchRL; where it defines a method of TorchRL's that is never called here, the buffer
    refuses it. Batches of a subclass are drawn when they are asked for (or prefetched), not before, unless it sets ``ahead``.

    ``ran_out`` is True after the draw that ended a pass. ``endless`` is False where there are passes. ``replacement=False``
    is taken by the constructors of samplers that have a variant without replacement, and makes that one.
    """

    #: The variant without replacement; only of the very class that names it, not of those derived from it.
    without_replacement: ClassVar[type[Sampler] | None] = None

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
        link_calls(cls)
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
        return to_draw(self, storage, self.sample(storage, batch_size))

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

    def reserve(self, rows: int) -> None:
        """A storage of several dimensions has rounded its size up to so many rows."""

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
        """Write the state to the folder ``path`` (see `state_files`)."""
        from ..state_files import write_state

        write_state(Path(path), self.state_dict())

    def loads(self, path: Any) -> None:
        """Read what `dumps` of this sampler wrote, or that of TorchRL's sampler of the same name."""
        from ..state_files import read_state

        state = read_torchrl_state(Path(path))
        self.load_state_dict(read_state(Path(path)) if state is None else state)

    def __getstate__(self) -> dict[str, Any]:
        # Generators do not pickle; the buffer carries its own over.
        return {name: value for name, value in self.__dict__.items() if name != "_rng"}

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


#: What a subclass may define without changing what is drawn.
_HARMLESS = frozenset(("__init__", "__repr__", "__str__"))


def _listed(values: torch.Tensor, first: int, places: np.ndarray) -> np.ndarray:
    """What a list holds that begins at the place ``first``."""
    found: np.ndarray = values.numpy()[places - first]
    return found


def require_records(storage: Storage) -> int:
    """The storage's length. Raises SamplingError when there is nothing in it."""
    size = len(storage)
    if not size:
        raise SamplingError("cannot sample from an empty storage", hint="extend the buffer first")
    return size


class RandomSampler(Sampler):
    """Uniform over all rows, with replacement; with ``replacement=False`` a `SamplerWithoutReplacement` is made."""

    def __init__(self, *, replacement: bool = True) -> None: ...

    def draw(self, storage: Storage, batch_size: int, generator: torch.Generator) -> Draw:
        return Draw(torch.randint(require_records(storage), (batch_size,), generator=generator))


class Passes:
    """Walks ``0..size-1`` pass after pass, each in a new order if shuffled; the last batch of a pass may be short.

    The order of a pass is computed from one seed and the number of the pass, so where it stands is three numbers. With a
    ``share`` (r, w) it takes the places r, r + w, r + 2w ... of the one order that all w processes have:

        order        4 1 7 0 6 2 5 3
        share 0 of 2 4   7   6   5
        share 1 of 2   1   0   2   3

    All w are taken to be equally far, so that any other number of processes can divide what is left of a pass: those that
    go on from a position take of the places behind it what is theirs, together every place once.
    """

    def __init__(self, *, shuffle: bool, drop_last: bool, order: Callable[[int, int], Any] = Permutation) -> None:
        self.shuffle, self.drop_last, self._make_order = shuffle, drop_last, order
        self.ran_out = False
        #: Passes that were begun and not ended, since the storage had another size.
        self.restarts = 0
        self._seed: int | None = None
        self._pass = self._next = self._size = 0
        self._world = 1  # of which _next places each are behind
        self._order: Callable[[np.ndarray], np.ndarray] | None = None
        self._given: torch.Tensor | None = None  # what was left of the first pass, where that was given as a list

    def take(self, size: int, count: int, generator: torch.Generator, share: tuple[int, int] = (0, 1)) -> torch.Tensor:
        """The next ``count`` of them, or what is left of the pass."""
        rank, world = share
        if size != self._size:  # the storage has grown or shrunk: what was walked means nothing now
            self.restarts += self._next > 0
            self._size, self._next, self._order, self._given = size, 0, None, None
        # With drop_last all processes take the same number of batches, else together they take everything.
        own = size // world if self.drop_last else len(range(rank, size, world))
        if self.drop_last and count > own:
            message = f"a batch of {count} cannot be drawn from {own} without replacement and without a short batch"
            raise SamplingError(message, hint="take smaller batches, or drop_last=False")
        if world != self._world:
            self._next, self._world = -(-max(0, self._next * self._world - rank) // world), world
            if self._next >= own:  # others take the last places
                self._next, self._pass, self._order = 0, self._pass + 1, None
        if self.shuffle and self._seed is None:
            self._seed = int(torch.randint(1 << 62, (), generator=generator))
        order = self._current_order()
        stop = min(self._next + count, own)
        places = torch.arange(rank + world * self._next, rank + world * stop, world)
        left = own - stop
        self.ran_out = left == 0 or (self.drop_last and left < count)
        taken = places if order is None else torch.from_numpy(order(places.numpy()))
        if self.ran_out:
            self._next, self._pass, self._order = 0, self._pass + 1, None
        else:
            self._next = stop
        return taken

    def _current_order(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """What the places of the pass under way hold; None where they hold themselves."""
        if self._order is None and self._given is not None and self._pass == 0:
            self._order = partial(_listed, self._given, self._size - len(self._given))
        elif self._order is None and self.shuffle:
            assert self._seed is not None
            number = int(np.random.SeedSequence((self._seed, self._pass)).generate_state(1)[0])
            self._order = self._make_order(self._size, number)
        return self._order

    def ahead(self) -> tuple[Callable[[np.ndarray], np.ndarray] | None, int]:
        """The order of the pass under way (or next), and how many of this process's places are behind."""
        return self._current_order() if self._size else None, self._next

    def rest(self) -> torch.Tensor | None:
        """What is left of the pass under way, in order, int64 ``[n]``; None before the first draw."""
        if not self._size or (self.shuffle and self._seed is None and self._given is None):
            return None
        places, order = np.arange(self._next, self._size), self._current_order()
        return torch.from_numpy(places if order is None else order(places).copy())

    def state(self) -> dict[str, Any]:
        """The position, and the list that the first pass goes by if it was given one; JSON and tensors, by name."""
        given = {} if self._given is None else {"rest": self._given.clone()}
        return {"passes": list(self.position()), **given}

    def load_state(self, state: dict[str, Any], world: int = 1) -> None:
        """Continue from what ``state`` gave; ``rest`` (int64 ``[n]``) is what the first pass ends with."""
        before, rest = self.position(), state.get("rest")
        if rest is not None:
            rest = torch.as_tensor(rest).reshape(-1).long().clone()
        self.set_position(state["passes"], world)
        if rest is not None:
            too_early = not self._pass and self._next < self._size - len(rest)
            if too_early or (len(rest) and not 0 <= rest.min() <= rest.max() < self._size):
                self.set_position(before)
                raise UsageError(
                    f"the {len(rest)} rows that a pass over {self._size} ends with are not those of its end"
                )
        self._given = rest

    def seed(self, seed: int) -> None:
        """Fix the seed of the orders; all processes of a data-parallel run need the same one."""
        self.__dict__.update(_seed=seed, _pass=0, _next=0, _order=None, _given=None)

    def skip(self, count: int) -> None:
        """Go to the beginning of the pass that is ``count`` after the one under way (or next)."""
        self._pass, self._next, self._order, self._given, self.ran_out = self._pass + count, 0, None, None, False

    def restart(self) -> None:
        """Forget the pass under way."""
        self._next, self._size, self._order, self._given, self.ran_out = 0, 0, None, None, False

    def position(self) -> tuple[int, int, int, int, bool, int]:
        seed = -1 if self._seed is None else self._seed
        return (seed, self._pass, self._next, self._size, self.ran_out, self._world)

    def set_position(self, position: Any, world: int = 1) -> None:
        """Continue from what ``position`` gave; ``world``: of how many processes, where it does not say that.

        Raises UsageError for anything else.
        """
        given = list(position) if isinstance(position, (list, tuple)) else []
        if len(given) == 5:  # of TorchRL, and before the position had it
            given.append(world)
        if len(given) != 6 or not all(type(value) in (int, bool) and -1 <= value < 1 << 63 for value in given):
            raise UsageError(f"{position!r} is not the position of a sampler without replacement")
        seed, number, after, size, ran_out, world = (int(value) for value in given)
        if min(number, after) < 0 or not 0 <= after <= size or world < 1:
            raise UsageError(f"{position!r} is not the position of a sampler without replacement")
        self._pass, self._next, self._size, self._world = number, after, size, world
        self._seed, self.ran_out, self._order = None if seed < 0 else seed, bool(ran_out), None


class SamplerWithoutReplacement(Sampler):
    """Every step once a pass. The last batch is short, or with ``drop_last`` left out; the next one begins a new pass.

    A batch larger than the data is the whole pass; with ``drop_last`` it raises SamplingError. ``shuffle=False`` keeps the
    order of the rows. ``passes`` says where in the pass the sampler is.
    """

    endless = False
    arguments = frozenset(("drop_last", "shuffle"))

    def __init__(self, drop_last: bool = False, shuffle: bool = True) -> None:
        self.drop_last, self.shuffle = drop_last, shuffle
        self.passes = Passes(shuffle=shuffle, drop_last=drop_last)

    def _configure(self) -> None:
        if bool(self.shuffle) != self.passes.shuffle:
            self.passes.restart()  # the rest of the pass has another order
        self.passes.shuffle, self.passes.drop_last = bool(self.shuffle), bool(self.drop_last)

    def draw(self, storage: Storage, batch_size: int, generator: torch.Generator) -> Draw:
        return Draw(self.passes.take(require_records(storage), batch_size, generator, self.share))

    @property
    def ran_out(self) -> bool:
        return self.passes.ran_out

    @ran_out.setter
    def ran_out(self, value: bool) -> None:
        self.passes.ran_out = value

    @property
    def _sample_list(self) -> torch.Tensor | None:
        return self.passes.rest()

    def empty(self) -> None:
        super().empty()
        self.passes.restart()

    def position(self) -> Any:
        return self.passes.position()

    def set_position(self, position: Any) -> None:
        self.passes.set_position(position, self.share[1])

    def state_dict(self) -> dict[str, Any]:
        return {**self.passes.state(), "drop_last": self.drop_last, "shuffle": self.shuffle}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what ``state_dict`` gave, here or in TorchRL."""
        if "_sample_list" in state:
            rest, size = state["_sample_list"], int(state["len_storage"])
            position = (-1, 0, size - (size if rest is None else len(rest)), size, bool(state["_ran_out"]))
            self.passes.load_state({"passes": position, "rest": rest}, self.share[1])
            self.drop_last = bool(state["drop_last"])
        elif "passes" in state:
            self.passes.load_state(state, self.share[1])
        else:
            raise UsageError(f"the state is not that of a {type(self).__name__}")

    def sampleable(self, storage: Storage, batch_size: int) -> int:
        return 0 if self.drop_last and batch_size > len(storage) else len(storage)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(drop_last={self.drop_last}, shuffle={self.shuffle})"


RandomSampler.without_replacement = SamplerWithoutReplacement
