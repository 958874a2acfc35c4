"""Uniform samplers: with replacement, and in passes without replacement.

A sampler uses the length of a storage and its episodes, never its data, so the cost of a draw does not depend on the size of
the data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ....errors import UsageError
from ..draw import Draw
from ..order import Pass, Permutation, Turn
from ..storages.storage import Storage, require_records
from .sampler import Sampler


class RandomSampler(Sampler):
    """Uniform over all rows, with replacement; with ``replacement=False`` a `SamplerWithoutReplacement` is made."""

    def __init__(self, *, replacement: bool = True) -> None: ...

    def draw(self, storage: Storage, batch_size: int, turn: Turn) -> Draw:
        rows = turn.below(require_records(storage), batch_size)
        return Draw(torch.from_numpy(rows), [batch_size] * turn.count, turn.places)


class SamplerWithoutReplacement(Sampler):
    """Every step once a pass. The last batch is short, or with ``drop_last`` left out; the next one begins a new pass.

    A batch larger than the data is the whole pass; with ``drop_last`` it raises SamplingError. ``shuffle=False`` keeps the
    order of the rows.
    """

    endless = False

    def __init__(self, drop_last: bool = False, shuffle: bool = True) -> None:
        self.drop_last, self.shuffle = drop_last, shuffle

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "shuffle" and self._order is not None and value != self.__dict__.get(name):
            self._order.begin_pass()  # the rest of the pass would be in another order
        super().__setattr__(name, value)

    def draw(self, storage: Storage, batch_size: int, turn: Turn) -> Draw:
        one_pass = self.one_pass(storage, batch_size)
        rows = turn.take(one_pass, self.permutation if self.shuffle else None)
        return Draw(torch.from_numpy(rows), turn.sizes, turn.places)

    def one_pass(self, storage: Storage, batch_size: int) -> Pass:
        return Pass(require_records(storage), batch_size, bool(self.drop_last))

    def permutation(self, size: int, seed: int) -> Callable[[np.ndarray], np.ndarray]:
        """The order of a pass."""
        return Permutation(size, seed)

    def state_dict(self) -> dict[str, Any]:
        return {"order": self.order.state_dict(), "drop_last": bool(self.drop_last), "shuffle": bool(self.shuffle)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not {"order", "drop_last", "shuffle"}.issubset(state):
            raise UsageError(f"the state is not that of a {type(self).__name__}")
        self.order.load_state_dict(state["order"])
        self.drop_last, self.shuffle = state["drop_last"], state["shuffle"]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(drop_last={self.drop_last}, shuffle={self.shuffle})"


RandomSampler._without_replacement = SamplerWithoutReplacement  # type: ignore[attr-defined]
SamplerWithoutReplacement._without_replacement = SamplerWithoutReplacement  # type: ignore[attr-defined]
