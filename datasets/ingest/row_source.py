"""Where the large rows of a part come from: the part of `FillTask` that each provider implements.

RowSource.blocks -> Block(leaf, buffer, runs) -> sink: row i of a run begins at byte starts[i] of the buffer
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ...storage.schema import Leaf

#: Sample rows, uint8 ``[row_bytes]`` each; those of several leaves may differ in size.
SampleRows: TypeAlias = Sequence[np.ndarray] | np.ndarray

#: Decoded bytes in memory at a time, for sources that can choose.
BLOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class Block:
    """Rows of one leaf. ``runs`` are pairs (position of the first row in the part, int64 byte offsets of its rows)."""

    leaf: str
    buffer: Any
    runs: Sequence[tuple[int, np.ndarray]]
    #: Progress so far, out of ``RowSource.rows``; bytes fetched and retries so far.
    done: int
    fetched: int = 0
    retries: int = 0
    #: Of all bytes of the object; in the last block, where it was computed.
    crc32c: str | None = None


class RowSource:
    """Where the large rows of one part come from. Picklable: it is sent to a worker process."""

    @property
    def rows(self) -> int:
        """What progress counts, in all."""
        raise NotImplementedError

    def blocks(self, leaves: Sequence[Leaf], threads: int) -> Generator[Block, None, None]:
        """The rows of these leaves, all of them once, in any order. A buffer is valid until the next block is asked for."""
        raise NotImplementedError

    def adopt(self, leaf: Leaf, folder: Path, index: int) -> dict[str, Any] | None:
        """Make rows that are encoded already part ``index`` of a leaf; returns its record, None where they are not."""
        return None


def block_of_rows(leaf: Leaf, position: int, rows: np.ndarray, done: int) -> Block:
    """A block of consecutive rows, ``[n, *leaf.shape]``."""
    data = np.ascontiguousarray(rows, leaf.np_dtype)
    starts = np.arange(len(rows), dtype=np.int64) * leaf.row_bytes
    return Block(leaf.name, data.reshape(-1).view(np.uint8).data, [(position, starts)], done)
