"""The order of batches: which numbers draw *k* gets, and where in a pass it is.

A batch is a function of the seed, its number and the contents:

    numbers of draw k      hash(seed, rank, k, i) for i = 0, 1, 2 ...      splitmix64, over whole arrays
    order of pass p        a permutation computed from (seed, p)           `Permutation`

So nothing is ever taken back. Batches may be drawn ahead, in groups, in threads or in other processes: each is what it would
have been alone. The state of an order is its `OrderPlace`: a few whole numbers.

Data-parallel training: with replacement every rank has numbers of its own. Without, all follow one order of the pass, and a
batch of rank r of w takes places ``taken + r, taken + r + w, ...``; ``taken`` counts the places of all ranks, so that any
other number of processes may take the rest of a pass:

    order       4 1 7 0 6 2 5 3
    rank 0 of 2 4   7   6   5
    rank 1 of 2   1   0   2   3
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import torch

from ...errors import SamplingError, UsageError
from ..keywords import whole_number

#: The step of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
GOLDEN = 0x9E3779B97F4A7C15
WORD = (1 << 64) - 1
_SHIFTS = [np.uint64(bits) for bits in (30, 27, 31)]
_FACTORS = [np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)]
#: Bits of a number in [0, 1): with 52, its product with a size below 2^52 is always rounded below that size.
_BITS = 52


def mix(values: np.ndarray) -> np.ndarray:
    """Return the finaliser of splitmix64, in place: every bit of uint64 ``values`` reaches every bit of the result."""
    for shift, factor in zip(_SHIFTS, _FACTORS):
        values ^= values >> shift
        values *= factor
    values ^= values >> _SHIFTS[2]
    return values


@lru_cache(1024)
def hashed(*numbers: int) -> int:
    """Return one number in [0, 2^64) from several."""
    value = 0
    for number in numbers:
        value = int(mix(np.array([(value * GOLDEN + number + GOLDEN) & WORD], np.uint64))[0])
    return value


@lru_cache(64)
def _multiples(count: int) -> np.ndarray:
    """``GOLDEN * i`` for i below ``count``, uint64."""
    return np.arange(count, dtype=np.uint64) * np.uint64(GOLDEN)


def draw_seed() -> int:
    """Return a seed from torch's global generator."""
    return int(torch.randint(1 << 62, (), device="cpu"))


class OrderPlace(NamedTuple):
    """A place in the order: ``number`` batches were drawn before.

    Without replacement also: the number of the pass (``passed`` before it), the places ``taken`` of it by all processes
    together, how many it has (``rows``), and whether the last batch ``ended`` a pass.
    """

    number: int = 0
    passed: int = 0
    taken: int = 0
    rows: int = 0
    ended: bool = False

    @classmethod
    def of(cls, given: Any) -> OrderPlace:
        """From a list as `Order.state_dict` has it. Raises UsageError for anything else."""
        values = list(given) if isinstance(given, (list, tuple)) else []
        if len(values) != 5 or any(type(value) not in (int, bool) or not 0 <= value < 1 << 62 for value in values):
            raise UsageError(f"{given!r} is not a place in the order of batches")
        number, passed, taken, rows, ended = map(int, values)
        if taken > rows:
            raise UsageError(f"{given!r} is not a place in the order of batches: {taken} of {rows} rows are taken")
        return cls(number, passed, taken, rows, bool(ended))


class Pass(NamedTuple):
    """A pass without replacement: it has ``size`` places, of which a batch takes ``each``."""

    size: int
    each: int
    drop_last: bool


class Order:
    """The seed, the share (``rank`` of ``world`` processes) and the ``place`` after the last batch that was taken.

    With a ``stride`` of w only every w-th batch is taken: a worker of a data loader takes batches by their number.
    """

    def __init__(
        self,
        seed: int,
        rank: int = 0,
        world: int = 1,
        place: OrderPlace = OrderPlace(),  # noqa: B008
        stride: int = 1,
    ) -> None:
        self.seed, self.rank, self.world, self.place, self.stride = seed, rank, world, place, stride

    @classmethod
    def of(cls, seed: Any, generator: torch.Generator | None, rank: Any = 0, world_size: Any = 1) -> Order:
        """Of a seed as given, drawn once from a ``generator``, or else from torch's global one. Raises UsageError."""
        rank, world_size = whole_number("rank", rank, 0), whole_number("world_size", world_size, 1)
        if rank >= world_size:
            raise UsageError(f"rank {rank} is not among {world_size} processes")
        if seed is not None and generator is not None:
            raise UsageError("give generator or seed, not both")
        if generator is not None:
            if generator.device.type != "cpu":
                message = f"the generator is on {generator.device}, and rows are drawn on the CPU"
                raise UsageError(message, hint="give torch.Generator() without a device")
            return cls(int(torch.randint(1 << 62, (), generator=generator, device="cpu")), rank, world_size)
        return cls(draw_seed() if seed is None else whole_number("seed", seed, 0, WORD), rank, world_size)

    def turn(self, count: int = 1, place: OrderPlace | None = None) -> Turn:
        """Return the numbers of ``count`` draws from ``place`` on, by default the present one; the order does not move."""
        return Turn(self, self.place if place is None else place, count)

    def begin_pass(self) -> None:
        """Leave the rest of the pass that is under way, if any."""
        place = self.place
        if place.taken:
            self.place = OrderPlace(place.number, place.passed + 1, 0, place.rows)

    def skip(self, count: int, one_pass: Pass | None) -> bool:
        """Go past ``count`` batches of this process, at most to the end of the pass; returns whether it ended."""
        place = self.place
        if one_pass is None:
            self.place = place._replace(number=place.number + count, ended=False)
            return False
        place = self._begun(place, one_pass)
        for _ in range(count):
            place = self._after(place, one_pass)
            if place.ended:
                break
        self.place = place
        return bool(count) and place.ended

    def steps(self, one_pass: Pass, place: OrderPlace, count: int) -> list[tuple[OrderPlace, int, OrderPlace]]:
        """Return up to ``count`` batches of a pass from a place on: the place before each, its rows, and the place after it.

        Raises SamplingError where ``drop_last`` leaves no batch.
        """
        size, each, drop_last = one_pass
        if drop_last and each > size // self.world:
            message = (
                f"a batch of {each} cannot be drawn from {size // self.world} without replacement and a short batch"
            )
            raise SamplingError(message, hint="take smaller batches, or drop_last=False")
        place = self._begun(place, one_pass)
        found: list[tuple[OrderPlace, int, OrderPlace]] = []
        while len(found) < count:
            before, place = place, self._after(place, one_pass)
            for _ in range(self.stride - 1):
                if place.ended:
                    break
                place = self._after(place, one_pass)
            place = place._replace(number=before.number + self.stride)
            found.append((before, min(each, self._left(before, drop_last)), place))
            if place.ended:
                break
        return found

    def _begun(self, place: OrderPlace, one_pass: Pass) -> OrderPlace:
        """A place from which at least one batch is left, if need be in the next pass."""
        size, each, drop_last = one_pass
        if place.rows != size:  # the storage has grown or shrunk: the old place is meaningless
            place = OrderPlace(place.number, place.passed, 0, size)
        if drop_last and self._left(place, drop_last) < each:
            place = OrderPlace(place.number, place.passed + 1, 0, size)
        return place

    def _after(self, place: OrderPlace, one_pass: Pass) -> OrderPlace:
        """The place after the next batch."""
        size, each, drop_last = one_pass
        left = self._left(place, drop_last)
        own = min(each, left)
        if left == own or (drop_last and left - own < each):
            return OrderPlace(place.number + 1, place.passed + 1, 0, size, True)
        return OrderPlace(place.number + 1, place.passed, place.taken + own * self.world, size)

    def _left(self, place: OrderPlace, drop_last: bool) -> int:
        """The rows that this process still takes of the pass."""
        left = place.rows - place.taken
        return left // self.world if drop_last else len(range(self.rank, left, self.world))

    def state_dict(self) -> dict[str, Any]:
        return {"seed": self.seed, "place": list(self.place)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        place, seed = OrderPlace.of(state["place"]), state["seed"]
        if type(seed) is not int or not 0 <= seed <= WORD:
            raise UsageError(f"{seed!r} is not a seed")
        self.place, self.seed = place, seed


class Turn:
    """What a sampler draws ``count`` batches with.

    Every call that returns numbers returns ``each`` for each batch, in order, other ones every time. ``places``: the place
    after each batch; fewer than ``count`` where a pass ends.
    """

    def __init__(self, order: Order, place: OrderPlace, count: int) -> None:
        self.order, self.count, self._place, self._calls = order, count, place, 0
        self._key = hashed(order.seed, order.rank)
        numbers = range(place.number + order.stride, place.number + order.stride * (count + 1), order.stride)
        self.places = list(map(OrderPlace, numbers, repeat(place.passed), repeat(place.taken), repeat(place.rows)))

    def _bits(self, each: int) -> np.ndarray:
        """uint64 ``[count * each]``."""
        stride = np.uint64(self.order.stride)
        keys = mix(np.uint64((self._key + self._place.number * GOLDEN) & WORD) + _multiples(self.count) * stride)
        self._calls += 1
        keys ^= np.uint64(hashed(self._calls))
        return mix((keys[:, None] + _multiples(each)).reshape(-1))

    def floats(self, each: int) -> np.ndarray:
        """Return numbers in [0, 1), float64 ``[count * each]``."""
        bits = self._bits(each)
        bits >>= np.uint64(64 - _BITS)
        return bits * 2.0**-_BITS

    def per_step(self, sizes: list[int]) -> np.ndarray:
        """As `floats`, for batches of these sizes, float64 ``[sum(sizes)]``."""
        each = max(sizes, default=0)
        found = self.floats(each)
        if all(size == each for size in sizes):
            return found
        return np.concatenate([found[each * part : each * part + size] for part, size in enumerate(sizes)])

    def below(self, size: int, each: int) -> np.ndarray:
        """Return numbers below ``size``, all equally likely, int64 ``[count * each]``."""
        bits = self._bits(each)
        bits >>= np.uint64(64 - _BITS)
        return (bits * (size * 2.0**-_BITS)).astype(np.int64)

    def take(
        self, one_pass: Pass, permute: Callable[[int, int], Callable[[np.ndarray], np.ndarray]] | None
    ) -> np.ndarray:
        """Return the numbers of the pass that come next, int64 ``[n]``; ``count`` and ``places`` become those of these batches.

        ``permute(size, seed)`` returns the order of a pass, as a function of places; None: as they are.
        """
        order = self.order
        steps = order.steps(one_pass, self._place, self.count)
        self.sizes, self.places, self.count = [step[1] for step in steps], [step[2] for step in steps], len(steps)
        sizes, ends = np.array(self.sizes), np.cumsum(self.sizes)
        begin = np.array([step[0].taken for step in steps]) + order.rank
        places = np.arange(ends[-1]) * order.world + np.repeat(begin - (ends - sizes) * order.world, sizes)
        return places if permute is None else permute(one_pass.size, hashed(order.seed, steps[0][0].passed, 1))(places)

    #: Steps that each batch takes of the pass, after `take`.
    sizes: list[int]

    def generator(self) -> torch.Generator:
        """Return a generator of torch's for the first of these draws."""
        seed = hashed(self._key, self._place.number, 2)
        return torch.Generator(device="cpu").manual_seed(seed >> 1)


# -- permutations --------------------------------------------------------------------------------------------------------

ROUNDS = 6
#: Maximum number of elements that are sorted. Beyond it, pairs of places, fixed points and neighbours are distributed as
#: expected in samples of 40,000 orders; with 64 elements, successors still stay together too often.
SMALL = 64


class Permutation:
    """The permutation of ``0..size-1`` that belongs to a seed; ``permutation(places)`` maps int64 arrays.

    It is computed, not stored: a shuffled index of 50 M steps costs 400 MB and seconds for every pass. A small Feistel network
    on the bits of a place is a permutation of [0, 2^2b); places that fall outside [0, size) are sent through again until they
    land inside ("cycle walking"), which keeps it one to one. Black and Rogaway, "Ciphers with Arbitrary Finite Domains",
    CT-RSA 2002. On a few bits such a network is far from random: up to ``SMALL`` elements are sorted by random numbers instead.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        keys = mix(np.uint64(hashed(seed)) + _multiples(max(ROUNDS, min(size, SMALL))))
        self._sorted = np.argsort(keys[:size], kind="stable") if size <= SMALL else None
        self._keys = keys[:ROUNDS]
        self._half = np.uint64((max(1, size - 1).bit_length() + 1) // 2)
        self._mask = np.uint64((1 << int(self._half)) - 1)

    def __call__(self, places: np.ndarray) -> np.ndarray:
        if self._sorted is not None:
            return self._sorted[places]
        values = self._network(places.astype(np.uint64))
        outside = np.flatnonzero(values >= self.size)
        while len(outside):  # the domain is less than 4 times the size: about two rounds
            values[outside] = again = self._network(values[outside])
            outside = outside[again >= self.size]
        return values.astype(np.int64)

    def _network(self, values: np.ndarray) -> np.ndarray:
        left, right = values >> self._half, values & self._mask
        for key in self._keys:
            left, right = right, left ^ (mix(right ^ key) & self._mask)
        return (left << self._half) | right


# -- the generator of a batch --------------------------------------------------------------------------------------------

_now = threading.local()


@contextmanager
def drawing_for(order: Order, number: int) -> Iterator[None]:
    """Inside, `batch_generator` returns the generator of batch ``number``."""
    _now.batch = (order.seed, order.rank, number)
    try:
        yield
    finally:
        _now.batch = _now.generator = None


def batch_generator() -> torch.Generator | None:
    """Return the generator for transforms that draw random numbers: that of the batch which this thread finishes; None outside.

    Transforms may run in threads, several batches at a time: with torch's global generator two equal runs would differ.
    """
    batch = getattr(_now, "batch", None)
    if batch is not None and getattr(_now, "generator", None) is None:
        _now.generator = torch.Generator(device="cpu").manual_seed(hashed(*batch, 3) >> 1)
    return getattr(_now, "generator", None)
