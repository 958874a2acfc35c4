"""Where a worker puts the state rows of one part.

A part is the rows of one source object (an Atari shard). Its worker writes rows as they come out of the stream, which
need not be row order (the last row of a ring file comes before its first one in time). The codec of the leaf decides
where they go; leaves of plain TED take every state twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .codecs import codec_of
from .codecs.codec import Sink
from .episodes import FOLDER as EPISODES
from .leaf import Leaf
from .parts import RowsInPlace, check_rows
from .schema import Schema


class TedSink:
    """Rows in place, twice: as ``observation`` of the step they begin and as ``next/observation`` of the one before.

    ``state_starts`` holds the first state row of every episode of the dataset (int64, ascending); ``first`` is the
    part's first state row. State row s of episode e is the root row of step s - e, unless it is the episode's last,
    and the next row of step s - e - 1, unless it is the first.
    """

    def __init__(self, folder: Path, leaf: Leaf, first: int, rows: int, state_starts: np.ndarray, states: int) -> None:
        self._first, self._rows, self._starts = first, rows, state_starts
        self._ends = np.append(state_starts[1:], states) - 1
        begin, end = self._rows_before(first), self._rows_before(first + rows)
        next_leaf = Leaf("next/" + leaf.name, "step", leaf.dtype, leaf.shape)
        self._begin = begin
        self._root = RowsInPlace(folder, leaf, begin[0], end[0] - begin[0])
        self._next = RowsInPlace(folder, next_leaf, begin[1], end[1] - begin[1])

    def _rows_before(self, state: int) -> tuple[int, int]:
        """How many root rows and how many next rows come from the states before this one."""
        return (
            state - int(np.searchsorted(self._ends, state, "left")),
            state - int(np.searchsorted(self._starts, state, "left")),
        )

    def write(self, position: int, buffer: Any, starts: np.ndarray) -> None:
        check_rows(position, len(starts), self._rows)
        states = self._first + position + np.arange(len(starts))
        episode = np.searchsorted(self._starts, states, "right") - 1
        is_first = self._starts[episode] == states
        is_last = self._ends[episode] == states
        for file, begin, chosen, steps in (
            (self._root, self._begin[0], ~is_last, states - episode),
            (self._next, self._begin[1], ~is_first, states - episode - 1),
        ):
            if chosen.any():
                # The steps of consecutive states are consecutive, also across episodes.
                file.write(int(steps[chosen][0]) - begin, buffer, starts[chosen])

    def finish(self) -> dict[str, Any]:
        return {"ranges": {**self._root.finish()["ranges"], **self._next.finish()["ranges"]}}


def open_sink(
    folder: Path, schema: Schema, name: str, number: int, first: int, rows: int, states: int, threads: int = 1
) -> Sink:
    """The sink for one part of a bulk leaf in a working folder. Called in the workers.

    ``first`` and ``rows`` are the part's state rows, ``states`` those of the whole dataset. A leaf that is a step leaf
    takes state rows all the same, and its ``next/`` twin is filled with it. ``threads`` encode at the same time.
    """
    leaf = schema[name]
    if leaf.kind == "step":
        start = np.fromfile(folder / EPISODES / "start.memmap", "<i8")
        return TedSink(folder, leaf, first, rows, start + np.arange(len(start)), states)
    return codec_of(leaf).open_sink(folder, number, first, rows, threads)
