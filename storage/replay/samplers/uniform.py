"""Uniform samplers: with replacement, in passes without replacement, and in passes whose order suits data being fetched.

A sampler uses the length of a storage and its episodes, never its data, so the cost of a draw does not depend on the size
of the data. It draws only from the given generator: the same seed gives the same batches.

`Permutation` is a random permutation of 0..n-1 that is computed, not stored: a shuffled index array of 50 M steps costs 400 MB
and seconds for every pass. A small Feistel network on the bits of the position is a permutation of [0, 2^2b); positions that
fall outside [0, n) are sent through again until they land inside ("cycle walking"), which keeps it one to one. Black and
Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002. On a few bits such a network is far from random: for 5 elements,
some orders are twice as frequent as others. Up to ``SMALL`` elements are sorted by random numbers instead.

`BlockOrder` is a random order that reads a few groups of consecutive steps at a time.

    groups    consecutive steps, each the same number (but for the last group)       0 1 2 3 | 4 5 6 7 | 8 9 ...
    pools     a few groups at a time, in an order by the seed                        {4..7, 12..15} {0..3, 8..9} ...
    order     all steps of a pool, shuffled, then all of the next one                13 5 4 14 7 ... | 2 8 0 ...

Every step comes once. Inside a pool the order is uniformly random. Unlike in a full shuffle a batch has steps of one pool only
(unless all groups fit into one), so batches near each other in time share their groups. The order is computed, not stored.

`Passes` walks such an order, pass after pass, and holds the position of a sampler without replacement.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from ....errors import SamplingError, UsageError
from ..draw import Draw, draw_seed
from ..storages.storage import Storage, require_records
from .sampler import Sampler

ROUNDS = 6
#: Maximum number of elements that are sorted. Beyond it, pairs of places, fixed points and neighbours are distributed as
#: expected in samples of 40,000 orders; with 64 elements, successors still stay together too often.
SMALL = 64
#: Groups in a pool.
POOL = 8


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


class BlockOrder:
    """The order of ``0..size-1`` that belongs to a seed; ``order(positions)`` maps int64 arrays."""

    def __init__(self, size: int, seed: int, group: int, pool: int = POOL) -> None:
        self.size, self.group, self.pool = size, max(1, group), pool
        self._seed = seed
        self._groups = -(-size // self.group)
        self._missing = self._groups * self.group - size  # steps missing from the last group
        self._order = Permutation(self._groups, seed)
        everywhere = self._order(np.arange(self._groups))
        #: The pool of the last group: later pools begin earlier than they would with whole groups only.
        self._short = int(np.flatnonzero(everywhere == self._groups - 1)[0]) // pool if size else 0
        self.pools = -(-self._groups // pool)
        self._within: tuple[int, np.ndarray, Permutation] | None = None

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        positions = np.asarray(positions, np.int64)
        found = np.empty(len(positions), np.int64)
        pools = self.pool_of(positions)
        for pool in np.unique(pools).tolist():
            here = pools == pool
            groups, order = self._of_pool(pool)
            places = order(positions[here] - self._begin(pool))
            found[here] = groups[places // self.group] * self.group + places % self.group
        return found

    def pool_of(self, positions: np.ndarray) -> np.ndarray:
        """The pool that each place of the order lies in."""
        late = positions >= self._begin(self._short + 1)
        result: np.ndarray = (positions + self._missing * late) // (self.pool * self.group)
        return result

    def ranges(self, pool: int) -> list[tuple[int, int]]:
        """The steps ``(start, stop)`` of the groups of a pool; none behind the last one."""
        if not 0 <= pool < self.pools:
            return []
        starts = (self._groups_of(pool) * self.group).tolist()
        return [(start, min(start + self.group, self.size)) for start in starts]

    def _begin(self, pool: int) -> int:
        """The first place of a pool."""
        return min(pool * self.pool * self.group, self._groups * self.group) - self._missing * (pool > self._short)

    def _of_pool(self, pool: int) -> tuple[np.ndarray, Permutation]:
        if self._within is None or self._within[0] != pool:
            number = int(np.random.SeedSequence((self._seed, pool)).generate_state(1)[0])
            order = Permutation(self._begin(pool + 1) - self._begin(pool), number)
            self._within = (pool, self._groups_of(pool), order)
        return self._within[1:]

    def _groups_of(self, pool: int) -> np.ndarray:
        """The groups of a pool, the short one last."""
        groups = self._order(np.arange(pool * self.pool, min((pool + 1) * self.pool, self._groups)))
        return np.concatenate([groups[groups < self._groups - 1], groups[groups == self._groups - 1]])


class Passes:
    """Walks ``0..size-1`` pass after pass, each in a new order if shuffled; the last batch of a pass may be short.

    The order of a pass is computed from one seed and the number of the pass, so a position is three numbers. With a
    ``share`` (r, w) it takes the places r, r + w, r + 2w ... of the order that all w processes share:

        order        4 1 7 0 6 2 5 3
        share 0 of 2 4   7   6   5
        share 1 of 2   1   0   2   3

    All w processes are assumed to have advanced equally, so that any other number of processes can divide the rest of a pass:
    processes that continue from a position take their shares of the remaining places, together every place once.
    """

    def __init__(self, *, shuffle: bool, drop_last: bool, order: Callable[[int, int], Any] = Permutation) -> None:
        self.shuffle, self.drop_last, self._make_order = shuffle, drop_last, order
        self.ran_out = False
        #: Number of passes that a change of the storage's size ended early.
        self.restarts = 0
        self._seed: int | None = None
        self._pass = self._next = self._size = 0
        self._world = 1  # processes that have each taken _next places
        self._order: Callable[[np.ndarray], np.ndarray] | None = None
        self._given: torch.Tensor | None = None  # the rest of the first pass, if given as a list

    def take(self, size: int, count: int, generator: torch.Generator, share: tuple[int, int] = (0, 1)) -> torch.Tensor:
        """The next ``count`` numbers, or the rest of the pass."""
        rank, world = share
        if size != self._size:  # the storage has grown or shrunk: the old position is meaningless
            self.restarts += self._next > 0
            self._size, self._next, self._order, self._given = size, 0, None, None
        # With drop_last all processes take the same number of batches, else together they take everything.
        own = size // world if self.drop_last else len(range(rank, size, world))
        if self.drop_last and count > own:
            message = f"a batch of {count} cannot be drawn from {own} without replacement and without a short batch"
            raise SamplingError(message, hint="take smaller batches, or drop_last=False")
        if world != self._world:
            together = self._next * self._world
            self._next, self._world = -(-max(0, together - rank) // world), world
            if self._next >= own and (self.drop_last or together >= size):  # otherwise the others take the last places
                self._next, self._pass, self._order = 0, self._pass + 1, None
        if self.shuffle and self._seed is None:
            self._seed = draw_seed(generator)
        order = self._current_order()
        stop = min(self._next + count, own)
        places = torch.arange(rank + world * self._next, rank + world * stop, world, device="cpu")
        left = own - stop
        self.ran_out = left == 0 or (self.drop_last and left < count)
        taken = places if order is None else torch.from_numpy(order(places.numpy()))
        if self.ran_out:
            self._next, self._pass, self._order = 0, self._pass + 1, None
        else:
            self._next = stop
        return taken

    def _current_order(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """The order of the current pass, as a function of places; None for the identity."""
        if self._order is None and self._given is not None and self._pass == 0:
            self._order = partial(_listed, self._given, self._size - len(self._given))
        elif self._order is None and self.shuffle:
            assert self._seed is not None
            number = int(np.random.SeedSequence((self._seed, self._pass)).generate_state(1)[0])
            self._order = self._make_order(self._size, number)
        return self._order

    def ahead(self) -> tuple[Callable[[np.ndarray], np.ndarray] | None, int]:
        """The order of the current (or next) pass, and the number of places that this process has taken."""
        return self._current_order() if self._size else None, self._next

    def rest(self) -> torch.Tensor | None:
        """The rest of the current pass, in order, int64 ``[n]``; None before the first draw."""
        if not self._size or (self.shuffle and self._seed is None and self._given is None):
            return None
        places, order = np.arange(self._next, self._size), self._current_order()
        return torch.from_numpy(places if order is None else order(places).copy())

    def state(self) -> dict[str, Any]:
        """The position, and the list of the first pass if one was given; JSON and tensors, by name."""
        given = {} if self._given is None else {"rest": self._given.clone()}
        return {"passes": list(self.position()), **given}

    def load_state(self, state: dict[str, Any], world: int = 1) -> None:
        """Continue from a result of ``state``; ``rest`` (int64 ``[n]``) is the rest of the first pass."""
        before, rest = self.position(), state.get("rest")
        if rest is not None:
            rest = torch.as_tensor(rest, device="cpu").reshape(-1).long().clone()
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
        """Go to the beginning of the pass ``count`` passes after the current (or next) one."""
        self._pass, self._next, self._order, self._given, self.ran_out = self._pass + count, 0, None, None, False

    def restart(self) -> None:
        """Forget the current pass."""
        self._next, self._size, self._order, self._given, self.ran_out = 0, 0, None, None, False

    def position(self) -> tuple[int, int, int, int, bool, int]:
        seed = -1 if self._seed is None else self._seed
        return (seed, self._pass, self._next, self._size, self.ran_out, self._world)

    def set_position(self, position: Any, world: int = 1) -> None:
        """Continue from a result of ``position``; ``world``: the processes, if it does not state them. Raises UsageError."""
        given = list(position) if isinstance(position, (list, tuple)) else []
        if len(given) == 5:  # from TorchRL, and from versions without this number
            given.append(world)
        if len(given) != 6 or not all(type(value) in (int, bool) and -1 <= value < 1 << 63 for value in given):
            raise UsageError(f"{position!r} is not the position of a sampler without replacement")
        seed, number, after, size, ran_out, world = (int(value) for value in given)
        if min(number, after) < 0 or not 0 <= after <= size or world < 1:
            raise UsageError(f"{position!r} is not the position of a sampler without replacement")
        self._pass, self._next, self._size, self._world = number, after, size, world
        self._seed, self.ran_out, self._order = None if seed < 0 else seed, bool(ran_out), None


def _listed(values: torch.Tensor, first: int, places: np.ndarray) -> np.ndarray:
    """The values at ``places`` of a list that begins at the place ``first``."""
    found: np.ndarray = values.numpy()[places - first]
    return found


class RandomSampler(Sampler):
    """Uniform over all rows, with replacement; with ``replacement=False`` a `SamplerWithoutReplacement` is made."""

    def __init__(self, *, replacement: bool = True) -> None: ...

    def draw(self, storage: Storage, batch_size: int, generator: torch.Generator) -> Draw:
        return Draw(torch.randint(require_records(storage), (batch_size,), generator=generator, device="cpu"))


class SamplerWithoutReplacement(Sampler):
    """Every step once a pass. The last batch is short, or with ``drop_last`` left out; the next one begins a new pass.

    A batch larger than the data is the whole pass; with ``drop_last`` it raises SamplingError. ``shuffle=False`` keeps the
    order of the rows. ``passes`` says where in the pass the sampler is. Two buffers cannot share the sampler, unless they
    share the storage as well: each would lose the records that the other takes (SamplingError).
    """

    endless = False
    replaces = False
    arguments = frozenset(("drop_last", "shuffle"))

    def __init__(self, drop_last: bool = False, shuffle: bool = True) -> None:
        self.drop_last, self.shuffle = drop_last, shuffle
        self.passes = Passes(shuffle=shuffle, drop_last=drop_last)

    def _configure(self) -> None:
        if bool(self.shuffle) != self.passes.shuffle:
            self.passes.restart()  # the rest of the pass changes its order
        self.passes.shuffle, self.passes.drop_last = bool(self.shuffle), bool(self.drop_last)

    @property
    def keeps_of_records(self) -> bool:
        return self.passes.position()[2] > 0  # a pass is under way

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


class BlockSampler(SamplerWithoutReplacement):
    """Every step once a pass, from ``pool`` groups of ``group`` consecutive steps at a time.

    The order depends only on the seed and these two numbers. The storage is told which steps come next
    (`Storage.will_read`), so that they can be fetched.
    """

    def __init__(self, group: int, pool: int = POOL, drop_last: bool = False, **options: Any) -> None:
        super().__init__(drop_last, True, **options)
        self.group, self.pool = group, pool
        order = partial(BlockOrder, group=group, pool=pool)
        self.passes = Passes(shuffle=True, drop_last=drop_last, order=order)
        self._announced: tuple[int, int] | None = None

    def draw(self, storage: Storage, batch_size: int, generator: torch.Generator) -> Draw:
        draw = super().draw(storage, batch_size, generator)
        self._announce(storage)
        return draw

    def _announce(self, storage: Storage) -> None:
        """Tell the storage the steps of the current pool and of the next one."""
        order, place = self.passes.ahead()
        if not isinstance(order, BlockOrder):
            return
        pool = int(order.pool_of(np.array([place * self.share[1] + self.share[0]]))[0])
        if self._announced != (id(order), pool):
            self._announced = (id(order), pool)
            storage.will_read(order.ranges(pool) + order.ranges(pool + 1))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_announced": None}

    def __repr__(self) -> str:
        return f"BlockSampler(group={self.group}, pool={self.pool}, drop_last={self.drop_last})"
