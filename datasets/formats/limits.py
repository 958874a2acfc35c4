"""Limits on what the bytes of a file can hold: readers check them before they allocate.

A packed file may declare a thousand times what it holds, and real ones do: black frames shrink 250-fold, flags that are never
set a thousandfold. So most readers work in pieces, whatever the ratio; what must be in memory as a whole is compared with
the size of the file. A conversion then stays below 600 MB for any input below 10 MB, which `benchmarks/campaign/inputs.py`
measures. The memory of C libraries in worker processes has a limit of its own (`workers.task.memory_for`).
"""

from __future__ import annotations

from ...errors import CorruptSourceError

#: Bytes that all values of one step may have: five pictures of 1080 x 1920 in colour.
LARGEST_ROW = 32 << 20
#: What to do about a damaged file.
REFETCH = "fetch it again, or use another mirror (--mirror)"


def check_rows(rows: int, size: int, name: str) -> int:
    """The number of steps of a file of ``size`` bytes. Raises CorruptSourceError if the file cannot hold that many.

    Every step keeps a few numbers in memory, whatever its values: up to 4 M need no justification, more need two bytes each.
    """
    if rows > max(1 << 22, size // 2):
        hint = f"the file is damaged, or not what its provider publishes: {REFETCH}"
        raise CorruptSourceError(f"{name} declares {rows} rows in {size} bytes", hint=hint)
    return rows


def check_row_bytes(row_bytes: int, name: str) -> None:
    """Raise CorruptSourceError where the values of one step take more than ``LARGEST_ROW``."""
    if row_bytes > LARGEST_ROW:
        message = f"{name}: one row has {row_bytes} bytes, the largest that is read has {LARGEST_ROW}"
        raise CorruptSourceError(message)


def most_unpacked(size: int) -> int:
    """Bytes that one packed piece of ``size`` bytes may unpack to, where it can only be unpacked as a whole."""
    return max(64 << 20, 4 * size)
