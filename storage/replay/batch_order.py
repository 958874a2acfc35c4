"""The order of batches, and where in it the caller stands.

Batches may be drawn ahead of time, to read the small leaves of several together or to prefetch. To the caller this must
not show: whatever was drawn ahead can be taken back, because with every draw the generator's state and the sampler's
position before it are kept (a mark). So the batches a seed gives are the same with and without reading ahead, a write in
between is seen by the very next batch, and a checkpoint stores the position, not the queue.

    drawn         b0  b1  b2 | b3  b4  b5
    delivered     b0  b1  b2 |                   position = the mark of b3
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .samplers.uniform import Sampler
from .storages.storage import Storage
from .windows.batches import Prepared
from .windows.draw import Draw

Prepare = Callable[[Sequence[Draw]], list[Any]]


@dataclass
class Mark:
    """Where the order stands before a draw."""

    generator: torch.Tensor
    sampler: Any


@dataclass
class Pending:
    """A batch that is drawn and prepared; ``ran_out`` is whether it ends a pass."""

    prepared: Prepared
    mark: Mark | None
    ran_out: bool

    @property
    def place(self) -> Mark:
        """Where the order stood before it."""
        assert self.mark is not None
        return self.mark


class Stream:
    """Draws in order from one sampler with one generator; look-ahead grows while batches of one size are taken."""

    def __init__(self, sampler: Sampler, storage: Storage, generator: torch.Generator) -> None:
        self.sampler, self.storage, self.generator = sampler, storage, generator
        self._pending: deque[Pending] = deque()
        self._size = self._version = 0
        self._ahead = 1
        #: Whether draws may have to be taken back; without it nothing is ever drawn ahead.
        self.marking = True

    def take(self, batch_size: int, prepare: Prepare, limit: int) -> Pending:
        """The next batch of this size; up to ``limit`` are prepared together."""
        if self._pending and (batch_size != self._size or self.storage.version != self._version):
            self.rewind()
        if not self._pending:
            self._draw(batch_size, prepare, min(limit, self._ahead) if self.sampler.ahead else 1)
            self._ahead = min(2 * self._ahead, limit)
        return self._pending.popleft()

    def _draw(self, batch_size: int, prepare: Prepare, count: int) -> None:
        self._size, self._version = batch_size, self.storage.version
        draws: list[Draw] = []
        marks: list[Mark | None] = []
        ends: list[bool] = []
        try:
            for _ in range(count):
                marks.append(self.mark() if self.marking else None)
                draws.append(self.sampler.draw(self.storage, batch_size, self.generator))
                ends.append(self.sampler.ran_out)
            prepared = prepare(draws)
        except BaseException:
            if marks[0] is not None:
                self.go_to(marks[0])
            self._ahead = 1
            raise
        self._pending.extend(map(Pending, prepared, marks, ends))

    def mark(self) -> Mark:
        """The place after all that was drawn."""
        return Mark(self.generator.get_state(), self.sampler.position())

    def position(self) -> Mark:
        """The place after all that was taken."""
        return self._pending[0].place if self._pending else self.mark()

    def go_to(self, mark: Mark) -> None:
        """Go on from a place; what was drawn ahead is forgotten."""
        self._pending.clear()
        self.generator.set_state(mark.generator)
        self.sampler.set_position(mark.sampler)

    def rewind(self) -> None:
        """Take back what was drawn ahead."""
        if self._pending:
            self.go_to(self._pending[0].place)
        self._ahead = 1
