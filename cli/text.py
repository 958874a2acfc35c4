"""Formats sizes, counts, durations and paragraphs as text. Pure functions."""

from __future__ import annotations

import textwrap

from ..amounts import count as count
from ..amounts import duration as duration
from ..amounts import percent as percent
from ..amounts import plural as plural
from ..amounts import real as real
from ..amounts import size as size
from ..errors import printable as escaped
from ..errors import without_logins


def printable(content: str, *, one_line: bool = False) -> str:
    """Text from elsewhere (names, notes, licences, messages of servers), its control characters as escapes (``\\x1b``).

    The login in a URL becomes ``***``: outputs end up in logs and bug reports. Tabs and ends of lines stay, unless it is to
    be ``one_line``.
    """
    if one_line:
        content = content.replace("\n", "\\n").replace("\t", "\\t")
    return escaped(without_logins(content))


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


def shortened(text: str, length: int) -> str:
    """The beginning of a text that is too long, with an ellipsis."""
    return text if len(text) <= length else text[: max(0, length - 1)] + "…"
