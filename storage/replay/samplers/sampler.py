"""Samplers: which records the next batch has. The base class, and the uniform ones.

A buffer calls ``sample(storage, batch_size)``, which returns an index and the sampler's information about each record. A
sampler of your own defines or overrides it, and draws from ``self._rng``, a generator of torch's that the seed and the number
of the batch determine.

The built-in samplers define ``draw`` instead, a pure function of the storage's contents and of a `Turn` of the order: it draws
several batches at once, and what is drawn ahead needs never to be taken back. It uses the length of a storage and its episodes,
never its data, so the cost of a draw does not depend on the size of the data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ....errors import SamplingError, UsageError
from ...keywords import goes_with
from ..draw import Draw, flags_of
from ..order import Order, Pass, Permutation, Turn, draw_seed
from ..saved import Saved
from ..storages.storage import Storage, require_records
from ..timeline import Key, as_key, entry_key


class Sampler(Saved):
    """Base of all samplers."""

    #: Whether every record comes with the same chance at any time: otherwise batches make passes, and iteration ends with one.
    endless = True
    #: The exponents and values that belong to records, see `PrioritizedSampler`.
    has_priorities = False
    #: The generator of the next batch, for a `sample` of your own.
    _rng: torch.Generator | None = None
    _order: Order | None = None
    #: Grows when an attribute is assigned, or a priority changes: what was drawn ahead is then drawn again.
    version = 0

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if not name.startswith("_"):
            self._changed()

    def _changed(self) -> None:
        """An attribute was assigned."""
        self.__dict__["version"] = self.version + 1

    @property
    def order(self) -> Order:
        """The order of the buffer; without one, of a seed from torch's global generator."""
        if self._order is None:
            self._order = Order(draw_seed())
        return self._order

    # -- drawing -----------------------------------------------------------------------------------------------------

    def sample(self, storage: Storage, batch_size: int) -> tuple[Any, dict[Any, Any]]:
        """Return the index of the next batch (int64 ``[N]``, or a tuple, one a dimension), and the info on its records."""
        draw = self.draw(storage, batch_size, self.order.turn())
        self.order.place = draw.places[0]
        info = {entry_key(key): value for key, value in draw.info.items()}
        if draw.slices is not None:
            flags = flags_of(draw.slices, lambda key: storage.leaf_at(key, draw.rows), storage.batch_tail)
            info |= {entry_key(key): value for key, value in flags.items()}
        return storage.coordinates(draw.rows), info

    def draw(self, storage: Storage, batch_size: int, turn: Turn) -> Draw:
        """Return the next ``turn.count`` batches, or fewer. Raises SamplingError if there is none."""
        raise NotImplementedError(f"a {type(self).__name__} defines sample(storage, batch_size)")

    def one_pass(self, storage: Storage, batch_size: int) -> Pass | None:
        """Return the pass that batches of this size make; None if they are endless."""
        return None

    @property
    def ran_out(self) -> bool:
        """Whether the last batch ended a pass."""
        return self.order.place.ended

    @ran_out.setter
    def ran_out(self, value: bool) -> None:
        self.order.place = self.order.place._replace(ended=bool(value))

    # -- what was written --------------------------------------------------------------------------------------------

    def mark_update(self, index: Any, *, storage: Storage | None = None) -> None:
        """Rows have new records; the writer's index of them."""

    def add(self, index: Any) -> None:
        """One record was written, and its row marked."""

    def extend(self, index: Any) -> None:
        """Records were written, and their rows marked."""

    def update_priority(self, index: Any, priority: Any, *, storage: Storage | None = None) -> None:
        """Set priorities by row; without effect where there are none."""

    @property
    def default_priority(self) -> float:
        return 1.0

    def empty(self) -> None:
        """All records were removed."""
        self._empty()

    def _empty(self) -> None:
        pass

    # -- saving ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if type(self).state_dict is Sampler.state_dict and state:
            raise UsageError(f"the state is not that of a {type(self).__name__}: it has {', '.join(map(str, state))}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class RandomSampler(Sampler):
    """Uniform over all rows, with replacement; with ``replacement=False`` a `SamplerWithoutReplacement` is made."""

    def __init__(self, *, replacement: bool = True, drop_last: bool = False, shuffle: bool = True) -> None:
        if replacement:
            goes_with("replacement=False", drop_last=drop_last, shuffle=not shuffle)
        else:
            self.__class__ = SamplerWithoutReplacement  # type: ignore[assignment]
            SamplerWithoutReplacement.__init__(self, drop_last, shuffle)  # type: ignore[arg-type]

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
        """Return the order of a pass."""
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


def draws_ahead(sampler: Sampler) -> bool:
    """Return whether batches may be drawn before they are asked for: with the built-in ``sample`` alone."""
    return type(sampler).sample is Sampler.sample and "sample" not in vars(sampler)


def checked(found: Any, sampler: Sampler, storage: Storage) -> tuple[torch.Tensor, dict[Key, torch.Tensor]]:
    """Return flat rows (int64 ``[n]``) and info by key, from what a user's ``sample`` returned. Raises SamplingError."""
    name = f"{type(sampler).__name__}.sample()"
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict)):
        raise SamplingError(f"{name} must return an index and a dictionary, not {found!r:.60}")
    rows, count = storage.flat(found[0]), len(storage)
    if storage.ndim == 1:
        rows = torch.where(rows < 0, rows + count, rows)
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < count:
        raise SamplingError(f"rows {found[0]!s:.60} of {name} are not among {count}")
    info = {as_key(key): torch.as_tensor(value) for key, value in found[1].items() if key != "index"}
    for key, value in info.items():
        if value.ndim and len(value) != len(rows):
            raise SamplingError(f"{'/'.join(key)} of {name} has shape {list(value.shape)}, for {len(rows)} rows")
    return rows, info
