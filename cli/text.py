"""Formats sizes, counts, durations and paragraphs as text. Pure functions."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Sequence

#: What a terminal acts upon, or shows in another order than it is stored: control characters, direction marks, lone surrogates.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
#: User name and password in a URL.
_LOGIN = re.compile(r"(?<=://)[^/\s\"'<>]+:[^/\s\"'<>]*@")
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def size(amount: float) -> str:
    """Bytes in decimal units, as disks and networks count: 1.1 MB."""
    unit = 0
    while amount >= 999.5 and unit < len(_UNITS) - 1:
        amount /= 1000
        unit += 1
    if unit == 0:
        return f"{amount:.0f} byte{'' if amount == 1 else 's'}"
    return f"{amount:.{2 if amount < 9.995 else 1 if amount < 99.95 else 0}f} {_UNITS[unit]}"


def count(number: int) -> str:
    """Digits in groups of three: 49,999,750."""
    return f"{number:,}"


def plural(number: int, what: str) -> str:
    """A count with its noun: 1 episode, 2 episodes."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def real(number: float) -> str:
    """A measured number with five significant digits: -3.2104, 1,032.4."""
    if float(number).is_integer() and abs(number) < 1e15:
        return f"{int(number):,}"
    return f"{number:,.1f}" if abs(number) >= 1000 else f"{number:.5g}"


def percent(share: float) -> str:
    """A share (0 to 1) in percent, rounded down."""
    return f"{int(min(max(share, 0.0), 1.0) * 100 + 1e-9)}%"


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


def printable(content: str, *, one_line: bool = False) -> str:
    """Text from elsewhere (names, notes, licences, messages of servers), its control characters as escapes (``\\x1b``).

    The login in a URL becomes ``***``: outputs end up in logs and bug reports. Tabs and ends of lines stay, unless it is to
    be ``one_line``.
    """
    if one_line:
        content = content.replace("\n", "\\n").replace("\t", "\\t")
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), _LOGIN.sub("***@", content))


def command(*words: object) -> str:
    """A command line that can be pasted into a shell."""
    return shlex.join(str(word) for word in words)


def wrapped(text: str, width: int | None, prefix: str = "", rest: str | None = None) -> str:
    """A paragraph behind a prefix, its other lines behind ``rest`` (spaces); one line where the width is None (pipes)."""
    if width is None:
        return prefix + text
    indent = " " * len(prefix) if rest is None else rest
    return textwrap.fill(
        text,
        max(width, len(indent) + 20),
        initial_indent=prefix,
        subsequent_indent=indent,
        # Paths, URLs and commands stay whole, so that they can be copied.
        break_long_words=False,
        break_on_hyphens=False,
    )


def in_columns(words: Sequence[str], width: int, indent: str = "  ") -> list[str]:
    """Lines with the words in columns, filled downwards, as ``ls`` does."""
    if not words:
        return []
    cell = max(map(len, words)) + 2
    columns = max(1, (width - len(indent) + 2) // cell)
    rows = -(-len(words) // columns)
    return [(indent + "".join(word.ljust(cell) for word in words[row::rows])).rstrip() for row in range(rows)]
