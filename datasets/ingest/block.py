"""The one currency: everything that becomes a dataset is read as blocks of consecutive steps and states.

    steps            a0  a1  a2 | b0  b1
    bits              0   0   T |  0   C            T: terminated, C: cut
    states       s0  s1  s2  s3 | t0  t1  t2        one after the last step of each episode

A block has the rows of some leaves, or of all. An episode may go on in the next block; its end and last state come then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ...storage.episodes import CUT, TERMINATED, TRUNCATED
from ...storage.schema import Schema

#: How a step ends, in its bits: the state after it is terminal; a time limit ended the episode there; the data end there. Two
#: may be set. MIDWAY: the episode that ends there began before the data do.
END_TERMINATED, END_TRUNCATED, END_CUT, END_MIDWAY = 1, 2, 4, 8
ENDS = END_TERMINATED | END_TRUNCATED | END_CUT


class RowsSink(Protocol):
    """What rows are written to."""

    def append(self, rows: np.ndarray) -> None: ...

    def append_stored(self, data: Any, lengths: np.ndarray) -> None: ...


@dataclass(frozen=True)
class LazyRows:
    """Rows of ``shape`` that are decoded when they are needed: ``blocks`` yields them in order, ``[k, *shape]`` each, once."""

    dtype: str
    shape: tuple[int, ...]
    blocks: Iterable[np.ndarray]

    def write(self, sink: RowsSink) -> int:
        """Append them; returns how many there are."""
        count = 0
        for rows in self.blocks:
            sink.append(rows)
            count += len(rows)
        return count


@dataclass(frozen=True)
class CopiedRows:
    """Rows ``first`` to ``stop - 1`` of an open state leaf (`codecs.CompressedRows`) that is stored as the new one: they are
    copied as they are."""

    rows: Any
    first: int
    stop: int

    def write(self, sink: RowsSink) -> int:
        """Append them; returns how many there are."""
        sink.append_stored(*self.rows.stored(self.first, self.stop))
        return self.stop - self.first


#: The rows of a column in a block.
Rows = np.ndarray | LazyRows | CopiedRows


def lazy(rows: np.ndarray | LazyRows) -> LazyRows:
    """Rows as those of one block, where they are an array."""
    if isinstance(rows, np.ndarray):
        return LazyRows(rows.dtype.newbyteorder("=").name, rows.shape[1:], [rows])
    return rows


@dataclass(frozen=True)
class Block:
    """Consecutive steps.

    ``columns``: by leaf, the rows in order, of its dtype and shape: a row per step of a step leaf, per state of a state leaf. A
    step leaf ``key`` without its ``next/key``, where the schema has both, has a row per state too, and fills both.
    Rows of one number, such as those of ``next/reward``, may be ``[n]``. The flags under ``next`` follow from ``bits`` and need
    not be given.

    ``bits``: uint8 ``[n]``, how each step ends (0: the episode goes on). None where the block has states alone; ``final`` (bool
    ``[states]``) then says which are the last of their episode (needed only where states fill two step leaves).
    """

    columns: Mapping[str, Rows]
    bits: np.ndarray | None = None
    final: np.ndarray | None = None
    #: Where the rows belong: sections of all units are joined in this order; () is ``(unit.index,)``. Blocks of one section are
    #: consecutive, those of several sections may alternate.
    place: tuple[int, ...] = ()
    #: Of the first block of a section: whether its first state is not the first of its episode.
    goes_on: bool = False
    #: Sections next to each other with the same number, of one unit, are one checksum range of a large leaf.
    range: int = 0
    #: Progress so far, out of ``Unit.rows``; bytes fetched and retries so far.
    done: int = 0
    fetched: int = 0
    retries: int = 0
    #: JSON that the unit can be continued with after this block, whose last step ends an episode; None: not here.
    mark: Any = None
    #: JSON that the unit says of all that it has read so far; the newest is in its part's record.
    record: Mapping[str, Any] | None = None
    #: The leaves, in the first block of a unit whose reader learns them from the data.
    schema: Schema | None = None


def final_states(bits: np.ndarray) -> np.ndarray:
    """Which of the states of steps with these bits are the last of their episode, bool ``[steps + ends]``."""
    ends = np.flatnonzero(bits & ENDS)
    final = np.zeros(len(bits) + len(ends), bool)
    final[ends + np.arange(len(ends)) + 1] = True
    return final


def outcomes(bits: np.ndarray) -> np.ndarray:
    """The outcome, for the episode table, of episodes whose last steps have these bits; uint8."""
    cut = np.where(bits & END_CUT, CUT, TRUNCATED)
    return np.where(bits & END_TERMINATED, TERMINATED, cut).astype(np.uint8)
