"""Batches are read leaf by leaf: those of small rows for several batches at once, those of large rows batch by batch."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict

from ...errors import UsageError
from ..window import nest
from .around import Around
from .columns import At, Column, step_columns
from .draw import Draw, flags_of, mask_error, over_tail
from .order import Place, Turn
from .storages.storage import Storage, reads_by_get
from .timeline import path_of

#: Small leaves of this many batches are read together, as long as they stay within ``AHEAD_BYTES``.
AHEAD = 16
AHEAD_BYTES = 1 << 20
#: Columns that take fewer bytes for a step are small.
SMALL = 4096


class Reader:
    """Reads batches leaf by leaf, from a storage with leaves; ``with_info``: with index, weights and the flags of slices.

    Raises UsageError for windows of storages that hold whole records, and as the columns of `windows`.
    """

    def __init__(self, storage: Storage, around: Around, *, with_info: bool, goals: Any = None) -> None:
        self.storage, self.around, self._with_info, self._goals = storage, around, with_info, goals
        self.leaves = storage.leaves()
        columns = self._columns(around) if goals is None else goals.columns(storage, around, self._columns(around))
        self._late = [column for column in columns if column.bytes >= SMALL]
        self._early = [column for column in columns if column.bytes < SMALL]
        self._names = {name for column in columns for name in column.names}
        self._small_bytes = sum(column.bytes for column in self._early) + 8
        self._tail, self._device = storage.batch_tail, storage.device

    def _columns(self, around: Around) -> list[Column]:
        if self.leaves is None or (around.names and reads_by_get(self.storage)):
            kind = type(self.storage).__name__
            if reads_by_get(self.storage):
                message = f"frame_stack, n_step and windows read leaf by leaf, and {kind}.get is your own"
                raise UsageError(message, hint="leave them out, or do in a transform what get() does")
            message = f"n_step, frame_stack and windows are read leaf by leaf, and a {kind} holds whole records"
            raise UsageError(
                message,
                hint="tensor storages have leaves: TensorDicts, contiguous and of one batch size",
            )
        if around.names:
            from .windows import columns_around

            return columns_around(self.storage, self.leaves, around, with_info=self._with_info)
        return step_columns(self.storage, self.leaves, with_info=self._with_info)

    def ahead(self, batch_size: int) -> int:
        """How many batches of this size are worth reading together."""
        return max(1, min(AHEAD, AHEAD_BYTES // (batch_size * self._small_bytes)))

    def begin(self, draw: Draw, turn: Turn | None) -> list[tuple[At, dict[str, torch.Tensor]]]:
        """The small leaves of each batch of a draw, by path, and where its steps lie."""
        edges, storage = self.around.edges, self.storage
        at = At(lambda: storage.timeline(edges), draw.rows, draw.slices, self.around.n_step)
        if self._goals is not None and turn is not None:
            self._goals.choose(at, draw, turn)
        columns: dict[str, torch.Tensor] = {}
        for column in self._early:
            columns.update(zip(column.names, column.read(at)))
        for column in self._late:
            column.plan(at)
        if self._with_info:
            self._add_info(draw, columns)
        if len(draw.sizes) == 1:
            return [(at, columns)]
        # `split` would go through Python in torch: this is done for every leaf of small batches.
        parts = zip(*(column.split_with_sizes(draw.sizes) for column in columns.values()))
        ats = at.split(draw.sizes, draw.counts) if self._late else map(At.of_size, draw.sizes)
        return [(own, dict(zip(columns, part))) for own, part in zip(ats, parts)]

    def _add_info(self, draw: Draw, columns: dict[str, torch.Tensor]) -> None:
        for key, value in draw.info.items():
            value = value.clone() if value.ndim else value.repeat(len(draw.rows))
            name, value = path_of(key), over_tail(value, self._tail)
            stored = columns.get(name)
            columns[name] = value if stored is None or self.around.n_step is None else _either(value, stored)
        if draw.slices is not None:
            if draw.slices.padded and "collector" in self._names:
                raise mask_error()
            columns.update(self.flags(draw, columns))
        columns["index"] = over_tail(self.storage.index_of(draw.rows).clone(), self._tail)

    def flags(self, draw: Draw, columns: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The flags of slices by path; those in ``columns`` are written to."""
        slices = draw.slices
        assert slices is not None

        def column(key: tuple[str, ...]) -> torch.Tensor | None:
            found = columns.get("/".join(key))
            return self.storage.leaf_at(key, draw.rows) if found is None else found

        return {"/".join(key): flag for key, flag in flags_of(slices, column, self._tail).items()}

    def finish(self, at: At, columns: dict[str, torch.Tensor]) -> TensorDict:
        """The batch, with the large leaves, which are read now."""
        for column in self._late:
            columns.update(zip(column.names, column.read(at)))
        if self._device is not None and self._device.type != "cpu":  # the sampler's information is on the CPU
            columns = {name: column.to(self._device) for name, column in columns.items()}
        return nest(columns, (at.size, *self._tail), self._device)


def _either(drawn: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
    """A sampler's flag of the steps drawn, or that of the steps that n-step returns end with."""
    if stored.dtype != torch.bool:
        return drawn
    return drawn.reshape(len(drawn), *[1] * (stored.ndim - 1)).bool() | stored


def read_steps(storage: Storage, steps: torch.Tensor, around: Around) -> TensorDict:
    """These steps (int64 ``[n]``) as batches have them, for a preprocessing run."""
    reader = Reader(storage, around, with_info=False)
    draw = Draw(steps, [len(steps)], [Place()])
    return reader.finish(*reader.begin(draw, None)[0]).clone()  # stacks are overlapping views of the same memory
