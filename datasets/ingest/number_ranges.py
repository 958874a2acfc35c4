"""Selections of numbered things, such as shards, as users write them: ``0-4,7``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...errors import UsageError

#: Numbers in one range; more is a typing error.
_LONGEST = 10_000


def parse_numbers(selection: str | Sequence[int] | None) -> tuple[int, ...] | None:
    """``"0-4,7"`` -> (0, 1, 2, 3, 4, 7); numbers sorted, each once; None, for all, as it is. Raises UsageError."""
    if selection is None:
        return None
    if not isinstance(selection, str):
        return tuple(sorted(set(selection)))
    chosen: set[int] = set()
    for part in selection.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if not match:
            raise UsageError(f"--shards {selection!r} is not a list of numbers and ranges", hint="for example: 0-4,7")
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low or high - low > _LONGEST:
            raise UsageError(f"--shards: the range {part.strip()} is empty or too long", hint="for example: 0-4,7")
        chosen.update(range(low, high + 1))
    return tuple(sorted(chosen))


def format_numbers(numbers: Sequence[int]) -> str:
    """Sorted numbers with ranges: [0, 1, 2, 5] -> "0-2, 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
