"""Histograms as lines of text, in blocks or, where those cannot be shown, in ASCII. Pure functions."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from ..storage import amounts
from ..storage.amounts import exact_percent

if TYPE_CHECKING:
    from ..datasets.card.overview import Histogram

#: Columns of a chart, its axis included, and between two: two stand side by side on 80 columns, three on 120.
WIDTH, GAP = 38, 3
#: Rows of a chart with bins.
HEIGHT = 4

_RISING = " ▁▂▃▄▅▆▇█"
_GROWING = " ▏▎▍▌▋▊▉█"
_PLAIN = " .:#"
#: Terminals whose fonts lack block characters.
_WITHOUT_BLOCKS = ("", "dumb", "linux", "vt100", "vt102", "vt220")


def shows_blocks() -> bool:
    """Whether stdout and the terminal can show block characters."""
    if os.environ.get("TERM", "") in _WITHOUT_BLOCKS:
        return False
    try:
        (_RISING + _GROWING).encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def chart(title: str, histogram: Histogram, *, blocks: bool = True) -> list[str]:
    """A title and the histogram below it, WIDTH columns wide at most: a bar for each value, or columns for bins."""
    lines = [title]
    if histogram.not_finite:
        lines.append(f"  not finite: {amounts.count(histogram.not_finite)}")
    if not histogram.counts:
        return lines
    if len(histogram.values) == 1:
        return [*lines, f"  always {amounts.real(histogram.values[0])}"]
    return lines + (_rows(histogram, blocks) if histogram.values else _columns(histogram, blocks))


def _rows(histogram: Histogram, blocks: bool) -> list[str]:
    """Each value with its share and a bar to the right."""
    names, shares = [_brief(value) for value in histogram.values], [exact_percent(one) for one in histogram.shares]
    margins = max(map(len, names)), max(map(len, shares))
    room, most = max(4, WIDTH - sum(margins) - 5), max(max(histogram.counts), 1)
    lines = []
    for name, share, count in zip(names, shares, histogram.counts):
        bar = _bar(count / most, room, _GROWING if blocks else " #")
        lines.append(f"  {name.rjust(margins[0])}  {share.rjust(margins[1])} {bar}".rstrip())
    return lines


def _columns(histogram: Histogram, blocks: bool) -> list[str]:
    """Columns that rise from an axis with the smallest and the largest value."""
    counts, signs = histogram.counts, _RISING if blocks else _PLAIN
    most = max(counts)
    top = f"{most / 1000:.3g}k" if most > 999 else str(most)
    margin = max(2, len(top))
    # Each bin takes as many characters as there is room for, so that charts of few bins are not tiny.
    wide = max(1, min(3, (WIDTH - margin - 4) // len(counts)))
    lines = []
    for row in reversed(range(HEIGHT)):
        scale = top if row == HEIGHT - 1 else ""
        cells = "".join(_cell(count / most * HEIGHT - row, count > 0 and row == 0, signs) * wide for count in counts)
        lines.append(f"  {scale.rjust(margin)} {'│' if blocks else '|'}{cells.rstrip()}")
    span = wide * len(counts)
    low, high = _brief(histogram.low or 0), _brief(histogram.high or 0)
    lines.append(f"  {'0'.rjust(margin)} {'└' if blocks else '+'}{('─' if blocks else '-') * span}")
    lines.append(f"  {' ' * margin}  {low}{high.rjust(max(span - len(low), len(high) + 1))}")
    return lines


def sparkline(histogram: Histogram, *, blocks: bool = True) -> str:
    """The histogram in one line: a character for each value, or for two bins."""
    counts: Sequence[int] = histogram.counts
    if histogram.edges:
        counts = [sum(counts[first : first + 2]) for first in range(0, len(counts), 2)]
    most = max(counts, default=1) or 1
    return "".join(_cell(count / most, count > 0, _RISING if blocks else _PLAIN) for count in counts)


def side_by_side(charts: Sequence[Sequence[str]], width: int) -> list[str]:
    """Charts in rows of as many as fit into ``width`` columns, an empty line between rows."""
    across = max(1, (width + GAP) // (WIDTH + GAP))
    lines: list[str] = []
    for first in range(0, len(charts), across):
        if first:
            lines.append("")
        for parts in zip_longest(*charts[first : first + across], fillvalue=""):
            lines.append((" " * GAP).join(part.ljust(WIDTH) for part in parts).rstrip())
    return lines


def _brief(number: float) -> str:
    return amounts.real(number) if abs(number) < 1e7 else f"{number:.4g}"


def _cell(height: float, shown: bool, signs: str) -> str:
    """The character of one cell that is filled up to ``height`` (1: all of it); ``shown``: at least the lowest mark."""
    level = round(min(max(height, 0.0), 1.0) * (len(signs) - 1))
    return signs[max(level, 1) if shown else level]


def _bar(share: float, room: int, signs: str) -> str:
    parts = len(signs) - 1
    eighths = max(round(share * room * parts), 1) if share > 0 else 0
    return signs[-1] * (eighths // parts) + (signs[eighths % parts] if eighths % parts else "")
