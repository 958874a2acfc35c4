"""The order of batches, and where in it the caller stands.

Batches may be drawn ahead of time, to read the small leaves of several together or to prefetch. This does not change the
batches: before every draw the state of the generator and the position of the sampler are kept, so that all draws that the
caller has not received can be taken back. A seed gives the same batches with and without reading ahead, a write is
visible in the next batch, and a checkpoint stores the state of the order instead of the queue.

    drawn         b0  b1  b2 | b3  b4  b5
    delivered     b0  b1  b2 |                   the state of the order is that before b3
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ...errors import SamplingError, UsageError
from .batches import Prepared
from .hindsight import Relabeling
from .overrides import is_overridden
from .sample_units import SampleUnit, expand_draw
from .sample_units import Sequence as Windowed
from .samplers.calls import draw_batch, is_known
from .samplers.uniform import Sampler
from .storages.storage import Storage
from .windows.draw import Draw

Prepare = Callable[[Sequence[Draw]], list[Any]]


@dataclass
class OrderState:
    """The state of the generator and the position of the sampler before a draw, and the batches drawn before it."""

    generator: torch.Tensor
    sampler: Any
    batches: int = 0


def check_count(batches: Any) -> int:
    """The batches drawn before a saved state. Raises UsageError for what is no count."""
    if type(batches) is not int or not 0 <= batches < 1 << 62:
        raise UsageError(f"{batches!r} is no number of batches")
    return batches


@dataclass
class DrawnBatch:
    """A batch that is drawn and prepared; ``ran_out`` says whether it ends a pass."""

    prepared: Prepared
    _before: OrderState | None
    ran_out: bool

    @property
    def state_before(self) -> OrderState:
        """The state of the order before this batch was drawn."""
        assert self._before is not None
        return self._before


class BatchOrder:
    """Draws in order from one sampler with one generator; look-ahead grows while batches of one size are taken."""

    def __init__(
        self,
        sampler: Sampler,
        storage: Storage,
        generator: torch.Generator,
        unit: SampleUnit | None = None,
        *,
        watched: bool = False,
    ) -> None:
        self.sampler, self.storage, self.generator, self.unit = sampler, storage, generator, unit
        #: Whether others may set the generator: they then get batches from its new state, not those drawn ahead before.
        self._watched, self._left_at = watched, None if not watched else generator.get_state()
        self._drawn: deque[DrawnBatch] = deque()
        self._size = 0
        self.batches = 0  # drawn so far
        self.version = 0  # that of the storage when the last batch taken was drawn
        self._ahead = 1
        #: Whether draws can be taken back; keeping the states costs time, and without them nothing is drawn ahead.
        self.keep_states = True
        #: What chooses goals for every draw, see `hindsight`.
        self.relabeling: Relabeling | None = None

    def take(self, batch_size: int, prepare: Prepare, limit: int) -> DrawnBatch:
        """The next batch of this size; up to ``limit`` are prepared together."""
        if self._drawn and (
            batch_size != self._size
            or self.storage.version != self.version
            or "sample" in self.sampler.__dict__  # which a user has set meanwhile
            or self._was_set()
        ):
            self.rewind()
        if not self._drawn:
            self._draw(batch_size, prepare, min(limit, self._ahead) if self._may_look_ahead else 1)
            self._ahead = min(2 * self._ahead, limit)
        return self._drawn.popleft()

    @property
    def _may_look_ahead(self) -> bool:
        # Whether a unit of the user's own, or a method set on the sampler, gives the same again is not known.
        sampler, unit = self.sampler, self.unit
        if not sampler.ahead or (unit is not None and type(unit) is not Windowed):
            return False
        return "sample" not in sampler.__dict__ and "draw" not in sampler.__dict__

    def _draw(self, batch_size: int, prepare: Prepare, count: int) -> None:
        self._size, self.version = batch_size, self.storage.version
        draws: list[Draw] = []
        states: list[OrderState | None] = []
        ends: list[bool] = []
        before = self.batches
        try:
            for _ in range(count):
                states.append(self._current() if self.keep_states else None)
                draw = draw_batch(self.sampler, self.storage, batch_size, self.generator)
                self.batches += 1
                ends.append(self.sampler.ran_out)
                draws.append(draw if self.unit is None else expand_draw(self.unit, draw, self.storage))
                if self.relabeling is not None:
                    self.relabeling.choose(draws[-1], self.storage, self.generator)
            prepared = prepare(draws)
        except BaseException:
            if states[0] is not None:
                self.go_to(states[0])
            self._ahead, self.batches = 1, before
            raise
        self._drawn.extend(map(DrawnBatch, prepared, states, ends))
        if self._watched:
            self._left_at = self.generator.get_state()

    def _current(self) -> OrderState:
        """The state after all that was drawn."""
        return OrderState(self.generator.get_state(), self.sampler.position(), self.batches)

    def _was_set(self) -> bool:
        """Whether somebody else has set the generator, or drawn from it."""
        return self._left_at is not None and not torch.equal(self.generator.get_state(), self._left_at)

    def state(self, oldest: OrderState | None = None) -> OrderState:
        """The state after all that was taken, or that before ``oldest``, the first of those taken in vain."""
        before = oldest or (self._drawn[0].state_before if self._drawn else None)
        if before is None:
            return self._current()
        return replace(before, generator=self.generator.get_state()) if self._was_set() else before

    def go_to(self, state: OrderState) -> None:
        """Continue from a state; draws made ahead of time are discarded."""
        self._drawn.clear()
        self.generator.set_state(state.generator)
        self.sampler.set_position(state.sampler)
        self.batches = state.batches
        if self._watched:
            self._left_at = self.generator.get_state()

    def rewind(self, oldest: OrderState | None = None) -> None:
        """Take back the draws made ahead of time, those from ``oldest`` on included."""
        if self._drawn or oldest is not None:
            self.go_to(self.state(oldest))
        self._ahead = 1

    def can_draw(self, batch_size: int) -> bool:
        """Whether a batch of this size can be drawn."""
        if is_overridden(self.sampler, "can_sample") or not is_known(self.sampler):
            return bool(self.sampler.can_sample(self.storage, batch_size))
        before = self._current()
        try:
            self.sampler.draw(self.storage, batch_size, self.generator)
            return True
        except SamplingError:
            return False
        finally:
            self.generator.set_state(before.generator)
            self.sampler.set_position(before.sampler)
