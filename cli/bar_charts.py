"""Text histograms from block characters, or from ASCII where a terminal lacks those. Pure functions."""

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

#: Width of a chart with its axis, and the gap between two charts: 80 columns hold two charts, 120 hold three.
WIDTH, GAP = 38, 3
#: Height of a chart with bins, in lines.
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
    bar_width, peak = max(4, WIDTH - sum(margins) - 5), max(max(histogram.counts), 1)
    lines = []
    for name, share, count in zip(names, shares, histogram.counts):
        bar = _bar(count / peak, bar_width, _GROWING if blocks else " #")
        lines.append(f"  {name.rjust(margins[0])}  {share.rjust(margins[1])} {bar}".rstrip())
    return lines


def _columns(histogram: Histogram, blocks: bool) -> list[str]:
    """Columns that rise from an axis with the smallest and the largest value."""
    counts, levels = histogram.counts, _RISING if blocks else _PLAIN
    peak = max(counts)
    top = f"{peak / 1000:.3g}k" if peak > 999 else str(peak)
    margin = max(2, len(top))
    # A bin takes up to three characters, so that charts of few bins are not tiny.
    bin_width = max(1, min(3, (WIDTH - margin - 4) // len(counts)))
    lines = []
    for row in reversed(range(HEIGHT)):
        scale = top if row == HEIGHT - 1 else ""
        cells = [_cell(count / peak * HEIGHT - row, count > 0 and row == 0, levels) * bin_width for count in counts]
        lines.append(f"  {scale.rjust(margin)} {'│' if blocks else '|'}{''.join(cells).rstrip()}")
    span = bin_width * len(counts)
    low, high = _brief(histogram.low or 0), _brief(histogram.high or 0)
    lines.append(f"  {'0'.rjust(margin)} {'└' if blocks else '+'}{('─' if blocks else '-') * span}")
    lines.append(f"  {' ' * margin}  {low}{high.rjust(max(span - len(low), len(high) + 1))}")
    return lines


def sparkline(histogram: Histogram, *, blocks: bool = True) -> str:
    """The histogram on one line: a character per value, or per two bins."""
    counts: Sequence[int] = histogram.counts
    if histogram.edges:
        counts = [sum(counts[first : first + 2]) for first in range(0, len(counts), 2)]
    peak = max(counts, default=1) or 1
    return "".join(_cell(count / peak, count > 0, _RISING if blocks else _PLAIN) for count in counts)


def side_by_side(charts: Sequence[Sequence[str]], width: int) -> list[str]:
    """Charts in rows that fill ``width`` columns, with an empty line between rows."""
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


def _cell(height: float, visible: bool, levels: str) -> str:
    """The character for a cell filled up to ``height`` (1 is full); a ``visible`` one is never empty."""
    level = round(min(max(height, 0.0), 1.0) * (len(levels) - 1))
    return levels[max(level, 1) if visible else level]


def _bar(share: float, width: int, levels: str) -> str:
    """A bar of ``share`` of the width, in steps of the last character's ``levels``."""
    steps = len(levels) - 1
    filled = max(round(share * width * steps), 1) if share > 0 else 0
    full, rest = divmod(filled, steps)
    return levels[-1] * full + (levels[rest] if rest else "")
