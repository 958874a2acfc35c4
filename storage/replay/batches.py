"""From steps drawn to a TED batch, with one read for each leaf.

The window decides everything: with a frame stack of k the k - 1 states before a step are read with it, its successor is
the one state after it, and both stacks are overlapping views of the rows read.
"""

from __future__ import annotations

import torch
from tensordict import TensorDict

from ...errors import UsageError
from ..dataset import Dataset
from ..rows import Rows
from ..ted import nest
from ..window import read_window
from .samplers import Draw


class BatchReader:
    """Reads batches from a dataset; ``frame_stack`` applies to ``stacked`` leaves (default: the observations)."""

    def __init__(self, dataset: Dataset, *, frame_stack: int | None = None) -> None:
        if frame_stack is not None and frame_stack < 1:
            raise UsageError(f"frame_stack must be at least 1, not {frame_stack}")
        self.dataset, self.stack = dataset, frame_stack
        self._states = [rows for rows in dataset.rows.values() if rows.leaf.kind == "state"]
        self._steps = [rows for rows in dataset.rows.values() if rows.leaf.kind == "step"]
        if frame_stack and not self._states and "observation" not in dataset.schema:
            raise UsageError(f"{dataset.id} has no observation to stack")

    def read(self, draw: Draw) -> TensorDict:
        """The batch of a draw: flat TED ``[steps drawn]`` with ``index``; slices end with ``truncated``."""
        index = draw.index()
        columns = self._transitions(index) if draw.length == 1 else self._slices(draw, index)
        columns["index"] = index
        return nest(columns, (len(index),))

    def _transitions(self, index: torch.Tensor) -> dict[str, torch.Tensor]:
        columns = {rows.leaf.name: rows.windows(index, 1).squeeze(1) for rows in self._steps}
        if self._states or self.stack:
            episode = self.dataset.episode_of(index)
        for rows in self._states:
            name = rows.leaf.name
            if self.stack:
                columns[name], columns["next/" + name] = self._stacked(rows, index, episode)
            else:
                pair = rows.windows(index + episode, 2)
                columns[name], columns["next/" + name] = pair[:, 0], pair[:, 1]
        if self.stack:
            for rows in self._stackable_steps():
                columns[rows.leaf.name] = self._stacked_steps(rows, index, episode)
        return columns

    def _stacked(self, rows: Rows, index: torch.Tensor, episode: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Stacks of a state leaf and of its successors, ``[B, k, *shape]`` each: views of k + 1 rows."""
        assert self.stack
        starts = self.dataset.episode_starts
        low, high = starts[episode] + episode, starts[episode + 1] + episode + 1
        read = read_window(rows, index + episode - (self.stack - 1), self.stack + 1, low, high)
        return read[:, :-1], read[:, 1:]

    def _stackable_steps(self) -> list[Rows]:
        """Observations laid out as plain TED: root and successor are leaves of their own."""
        return [rows for rows in self._steps if rows.leaf.name in ("observation", "next/observation")]

    def _stacked_steps(self, rows: Rows, index: torch.Tensor, episode: torch.Tensor) -> torch.Tensor:
        assert self.stack
        starts = self.dataset.episode_starts
        stack = read_window(rows, index - (self.stack - 1), self.stack, starts[episode], starts[episode + 1])
        if rows.leaf.name.startswith("next/"):
            # Early in an episode the oldest frame of a successor's stack is the first observation, which no earlier step
            # has as its successor.
            age = index - starts[episode]
            few = (age < self.stack - 1).nonzero().squeeze(1)
            if len(few):
                first = self.dataset.rows["observation"].windows(starts[episode[few]], 1).squeeze(1)
                stack[few, (self.stack - 2 - age[few])] = first
        return stack

    def _slices(self, draw: Draw, index: torch.Tensor) -> dict[str, torch.Tensor]:
        if draw.lengths is not None or self.stack:
            columns = self._transitions(index)
        else:
            columns = self._whole_slices(draw)
        lengths = draw.lengths if draw.lengths is not None else torch.full((len(draw.start),), draw.length)
        ends = lengths.cumsum(0) - 1
        for flag in ("next/truncated", "next/done"):
            columns[flag].index_fill_(0, ends, True)
        return columns

    def _whole_slices(self, draw: Draw) -> dict[str, torch.Tensor]:
        columns = {rows.leaf.name: rows.windows(draw.start, draw.length).flatten(0, 1) for rows in self._steps}
        episode = self.dataset.episode_of(draw.start) if self._states else None
        for rows in self._states:
            name, first = rows.leaf.name, draw.start + episode
            if rows.leaf.codec == "raw":
                columns[name] = rows.windows(first, draw.length).flatten(0, 1)
                columns["next/" + name] = rows.windows(first + 1, draw.length).flatten(0, 1)
            else:
                # Decoding costs more than copying: each row once, then both views of it made flat.
                read = rows.windows(first, draw.length + 1)
                columns[name], columns["next/" + name] = read[:, :-1].flatten(0, 1), read[:, 1:].flatten(0, 1)
        return columns
