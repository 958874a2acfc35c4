"""The rows of a table of transitions as blocks of steps and states; `trajectories` says what becomes of each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .trajectories import Column, TransitionRows, compare_successors, to_rewards

#: Bytes and rows of a block.
_BLOCK_BYTES, _BLOCK_ROWS = 16 << 20, 1 << 16


@dataclass(frozen=True)
class TransitionTable:
    """Arrays of one table. ``read`` gives the rows ``low`` to ``high - 1`` of one by its name; ``title`` is for messages.

    ``names``: the array of each column, by its key. ``successors``: those that state the next observation, by the key of
    the observation. ``reward``: an array, or what each reward is. ``has_final_states``: the observations have a row more for
    each episode.
    """

    title: str
    read: Callable[[str, int, int], np.ndarray]
    names: Mapping[str, str]
    successors: Mapping[str, str]
    reward: str | float
    has_final_states: bool = False

    def blocks(
        self, columns: Sequence[Column], transitions: TransitionRows, most_rows: int = _BLOCK_ROWS
    ) -> Iterator[tuple[list[np.ndarray], np.ndarray, np.ndarray]]:
        """The steps in order, read this many rows at a time: the rows of each column, of a state column one more for each
        episode that ends in them; the rewards; the bits of the ends (`block`).

        Cuts an episode where a stated successor is not the observation of the next row, and counts that in ``transitions``.
        """
        rows = len(transitions.keep)
        size = max(1, min(most_rows, _BLOCK_BYTES // max(1, sum(column.row_bytes for column in columns))))
        shared = {column.key for column in columns if column.per == "state" and column.dtype.startswith("float")}
        names, first_state = {**self.names, **{f"next/{key}": name for key, name in self.successors.items()}}, 0
        for low in range(0, rows, size):
            high = min(low + size, rows)
            if self.successors:
                self._find_seams(transitions, low, high, shared)
            states = high - low + int(np.count_nonzero(transitions.last[low:high]))
            kept = transitions.keep[low:high]
            block = []
            for column in columns:
                if column.per == "step":
                    values = self.read(names[column.key], low, high)
                    values = values if kept.all() else values[kept]
                elif self.has_final_states:
                    values = self.read(names[column.key], first_state, first_state + states)
                else:
                    values = self._states(transitions, column.key, low, high)
                block.append(np.ascontiguousarray(values, column.dtype).reshape(-1, *column.shape))
            yield block, self._rewards(transitions, low, high), transitions.bits(low, high)[kept]
            first_state += states

    def _states(self, transitions: TransitionRows, key: str, low: int, high: int) -> np.ndarray:
        """The state rows of rows ``low`` to ``high - 1``: observations, and final states of the episodes that end there."""
        here = self.read(self.names[key], low, min(high + 1, len(transitions.keep)))
        stated = [self.read(self.successors[key], low, high)] if key in self.successors else []
        rows = transitions.state_rows(low, high, len(here), has_next=bool(stated))
        return np.concatenate([here, *stated, np.zeros_like(here[:1])])[rows]

    def _find_seams(self, transitions: TransitionRows, low: int, high: int, shared: set[str]) -> None:
        """Inside an episode the successor of a row is the next row's observation; where it is not, the episode is cut.

        Counts the successors that become the next row's observation but for rounding: those of the keys ``shared``.
        """
        rows = len(transitions.keep)
        goes_on = np.flatnonzero(~transitions.last[low : min(high, rows - 1)])
        differs, rounded = np.zeros(len(goes_on), bool), np.zeros(len(goes_on), bool)
        for key, name in self.successors.items():
            here, stated = self.read(self.names[key], low, min(high + 1, rows)), self.read(name, low, high)
            other, near = compare_successors(here[1:][goes_on], stated[goes_on])
            differs |= other
            if key in shared:
                rounded |= near
        transitions.cut_after(low + goes_on[differs])
        for name, count in (("seams", differs), ("rounded_successors", rounded & ~differs)):
            transitions.counts[name] = transitions.counts.get(name, 0) + int(count.sum())

    def _rewards(self, transitions: TransitionRows, low: int, high: int) -> np.ndarray:
        """The rewards of the rows that are kept, float32."""
        kept = transitions.keep[low:high]
        if not isinstance(self.reward, str):
            return np.full(int(kept.sum()), self.reward, np.float32)
        return to_rewards(self.read(self.reward, low, high), f"{self.title}: {self.reward}", "row", low)[kept]
