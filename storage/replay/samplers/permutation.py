"""A random permutation of 0..n-1 that is computed, not stored.

Sampling without replacement from 50 M steps with a shuffled index array costs 400 MB and seconds for every pass. A small
Feistel network on the bits of the position is a permutation of [0, 2^2b); positions that fall outside [0, n) are sent
through again until they land inside ("cycle walking"), which keeps it one to one. Black and Rogaway, "Ciphers with
Arbitrary Finite Domains", CT-RSA 2002.

On a handful of bits such a network is far from random: of 5 elements some orders come twice as often as others. Up to
``SMALL`` elements are sorted by random numbers instead, one for each.
"""

from __future__ import annotations

import numpy as np

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
