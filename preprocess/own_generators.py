"""The random generators that functions of the user reach: of NumPy, torch and Python.

Every process has copies of them in the same state, so numbers would repeat from one process to the next. They are seeded for
every batch or episode, like the global generators.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from ..datasets.user_code_old.identity import content_hash


class OwnGenerators:
    """Generators, in the state that they had before the first call: it decides their numbers, beside the seed."""

    def __init__(self, generators: Iterable[Any]) -> None:
        self._found = [(one, content_hash(one), _state(one)) for one in generators]

    def seed(self, seed: int) -> None:
        for generator, content, _ in self._found:
            _seed(generator, int.from_bytes(hashlib.sha256(f"{content} {seed}".encode()).digest()[:7], "big"))

    @property
    def states(self) -> list[str]:
        """Their states now: what was drawn since `seed`."""
        return [content_hash(one) for one, _, _ in self._found]

    def restore(self) -> None:
        """Put the first states back."""
        for generator, _, state in self._found:
            _set_state(generator, state)


def _seed(generator: Any, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, random.Random):
        generator.seed(seed)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    else:  # also the half of a pair of normal numbers that it may hold
        bits = type(generator._bit_generator)(seed)
        generator.set_state(np.random.RandomState(bits).get_state(legacy=False))


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state(legacy=False)


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:  # torch's and NumPy's older one
        generator.set_state(state)
