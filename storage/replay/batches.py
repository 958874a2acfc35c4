"""From steps drawn to TED batches, with one read for each leaf.

The window decides everything: with a frame stack of k the k - 1 states before a step are read with it, its successor is
the one state after it, and both stacks are overlapping views of the rows read.

Rewards, flags and the like are a few bytes a step: reading them costs calls, not bytes. So several batches are drawn
ahead and their small leaves read together (``prepare``); what is left for each batch is the one large read
(``complete``). Batches never share memory with each other or with the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tensordict import TensorDict

from ...errors import UsageError
from ..dataset import Dataset
from ..rows import Rows
from ..schema import LARGE_ROW
from ..ted import nest
from ..window import read_window
from .samplers import Draw

#: Small leaves of this many batches are read together, as long as they stay within ``AHEAD_BYTES``.
AHEAD = 16
AHEAD_BYTES = 1 << 20


@dataclass(frozen=True)
class Prepared:
    """A batch whose small leaves are read: columns by name, each ``[steps]`` long."""

    draw: Draw
    index: torch.Tensor
    columns: dict[str, torch.Tensor]


class BatchReader:
    """Reads batches from a dataset; ``frame_stack`` applies to the observations."""

    def __init__(self, dataset: Dataset, *, frame_stack: int | None = None) -> None:
        if frame_stack is not None and frame_stack < 1:
            raise UsageError(f"frame_stack must be at least 1, not {frame_stack}")
        self.dataset, self.stack = dataset, frame_stack
        rows = dataset.rows.values()
        self._states = [leaf for leaf in rows if leaf.leaf.kind == "state"]
        self._stacked_steps = [
            leaf for leaf in rows if frame_stack and leaf.leaf.name in ("observation", "next/observation")
        ]
        self._stacked_steps = [leaf for leaf in self._stacked_steps if leaf.leaf.kind == "step"]
        steps = [leaf for leaf in rows if leaf.leaf.kind == "step" and leaf not in self._stacked_steps]
        self._small = [leaf for leaf in steps if leaf.leaf.row_bytes < LARGE_ROW]
        self._large = [leaf for leaf in steps if leaf.leaf.row_bytes >= LARGE_ROW]
        self.small_bytes = sum(leaf.leaf.row_bytes for leaf in self._small) + 8
        if frame_stack and not self._states and not self._stacked_steps:
            raise UsageError(f"{dataset.id} has no observation to stack")

    def ahead(self, batch_size: int) -> int:
        """How many batches of this size are worth preparing together."""
        return max(1, min(AHEAD, AHEAD_BYTES // (batch_size * self.small_bytes)))

    def prepare(self, draws: Sequence[Draw]) -> list[Prepared]:
        """Read the small leaves of several draws of one kind at once."""
        together = draws[0] if len(draws) == 1 else Draw.join(draws)
        index = together.index()
        columns = {rows.leaf.name: self._rows_at(rows, together, index) for rows in self._small}
        if together.length > 1:
            lengths = together.lengths
            ends = together.length * torch.arange(1, len(together.start) + 1) if lengths is None else lengths.cumsum(0)
            for flag in ("next/truncated", "next/done"):
                columns[flag].index_fill_(0, ends - 1, True)
        if len(draws) == 1:
            return [Prepared(together, index, columns)]
        sizes = [draw.steps for draw in draws]
        pieces = {name: column.split(sizes) for name, column in columns.items()}
        indices = index.split(sizes)
        return [
            Prepared(draw, indices[number], {name: piece[number] for name, piece in pieces.items()})
            for number, draw in enumerate(draws)
        ]

    def complete(self, prepared: Prepared) -> TensorDict:
        """Read the large leaves, and make the batch: flat TED ``[steps]`` with ``index``."""
        draw, index, columns = prepared.draw, prepared.index, prepared.columns
        for rows in self._large:
            columns[rows.leaf.name] = self._rows_at(rows, draw, index)
        if self.stack:
            episode = self.dataset.episode_of(index)
            for rows in self._states:
                name = rows.leaf.name
                columns[name], columns["next/" + name] = self._stack_states(rows, index, episode)
            for rows in self._stacked_steps:
                columns[rows.leaf.name] = self._stack_steps(rows, index, episode)
        else:
            for rows in self._states:
                name = rows.leaf.name
                columns[name], columns["next/" + name] = self._states_at(rows, draw, index)
        columns["index"] = index
        return nest(columns, (len(index),))

    def _rows_at(self, rows: Rows, draw: Draw, index: torch.Tensor) -> torch.Tensor:
        """The rows of a step leaf, ``[steps, *shape]``."""
        if draw.length > 1 and draw.lengths is None:
            return rows.windows(draw.start, draw.length).flatten(0, 1)
        return rows.take(index)

    def _states_at(self, rows: Rows, draw: Draw, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """A state leaf at the steps drawn, and after them."""
        if draw.length == 1 or draw.lengths is not None:
            return rows.windows(index + self.dataset.episode_of(index), 2).unbind(1)
        first = draw.start + self.dataset.episode_of(draw.start)
        if rows.leaf.codec == "raw":
            return (
                rows.windows(first, draw.length).flatten(0, 1),
                rows.windows(first + 1, draw.length).flatten(0, 1),
            )
        # Decoding costs more than copying: each row once, then both views of it made flat.
        read = rows.windows(first, draw.length + 1)
        return read[:, :-1].flatten(0, 1), read[:, 1:].flatten(0, 1)

    def _stack_states(
        self, rows: Rows, index: torch.Tensor, episode: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Stacks of a state leaf and of its successors, ``[B, k, *shape]`` each: views of k + 1 rows."""
        assert self.stack
        starts = self.dataset.episode_starts
        low, high = starts[episode] + episode, starts[episode + 1] + episode + 1
        read = read_window(rows, index + episode - (self.stack - 1), self.stack + 1, low, high)
        return read[:, :-1], read[:, 1:]

    def _stack_steps(self, rows: Rows, index: torch.Tensor, episode: torch.Tensor) -> torch.Tensor:
        """The same for observations laid out as plain TED, where root and successor are leaves of their own."""
        assert self.stack
        starts = self.dataset.episode_starts
        stack = read_window(rows, index - (self.stack - 1), self.stack, starts[episode], starts[episode + 1])
        if rows.leaf.name.startswith("next/"):
            # Early in an episode the first observation is in the stack of a successor, but it is no step's successor.
            age = index - starts[episode]
            few = (age < self.stack - 1).nonzero().squeeze(1)
            if len(few):
                stack[few, self.stack - 2 - age[few]] = self.dataset.rows["observation"].take(starts[episode[few]])
        return stack
