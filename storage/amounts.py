"""Sizes, counts, shares and durations as people read them, and sizes as they write them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..errors import UsageError

#: Limit of records in a batch, a stack, a slice or a look-ahead, so that numbers and sizes of reads fit into 64 bits.
MOST_RECORDS = 1 << 32

_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def size(amount: float) -> str:
    """Return bytes in decimal units, as disks and networks count: 1.1 MB."""
    unit = 0
    while amount >= 999.5 and unit < len(_UNITS) - 1:
        amount /= 1000
        unit += 1
    if unit == 0:
        return f"{amount:.0f} byte{'' if amount == 1 else 's'}"
    return f"{amount:.{2 if amount < 9.995 else 1 if amount < 99.95 else 0}f} {_UNITS[unit]}"


def parse_size(text: str | int, name: str = "") -> int:
    """``2GB``, ``1.5 gb``, ``500MiB`` or a number of bytes as bytes. Raises UsageError with the option's ``name``."""
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None:
        raise UsageError(f"{name}{name and ': '}{text!r} is not a size", hint="for example: 500MB or 2GB")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2]])


def count(number: int) -> str:
    """Digits in groups of three: 49,999,750."""
    return f"{number:,}"


def plural(number: int, what: str) -> str:
    """Return a count with its noun: 1 episode, 2 episodes."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def listed(texts: Iterable[str], most: int, between: str = ", ") -> str:
    """Return the first few of some texts: a, b and 3 more."""
    some = list(texts)
    more = f" and {len(some) - most} more" if len(some) > most else ""
    return between.join(some[:most]) + more


def real(number: float) -> str:
    """Return a measured number with five significant digits: -3.2104, 1,032.4, 2e+20."""
    if float(number).is_integer() and abs(number) < 1e15:
        return f"{int(number):,}"
    return f"{number:,.1f}" if 1000 <= abs(number) < 1e15 else f"{number:.5g}"


def percent(share: float) -> str:
    """Return a share (0 to 1) in percent, rounded down."""
    return f"{int(min(max(share, 0.0), 1.0) * 100 + 1e-9)}%"


def exact_percent(share: float) -> str:
    """Return a share in percent with one decimal: 2.1%. Only 0 is 0%, and only 1 is 100%."""
    return "<0.1%" if 0 < share < 0.0005 else f"{100 * share:.3g}%" if share < 0.9995 or share == 1 else ">99.9%"


def duration(seconds: float) -> str:
    """Two units at most: 0.4 s, 12 s, 4 min 12 s, 2 h 05 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
