"""Colour with meaning, on streams that want it.

A terminal gets colour unless ``NO_COLOR`` is set (https://no-color.org) or ``TERM`` is ``dumb``. ``FORCE_COLOR`` asks for it
on a dumb terminal too, and for messages (stderr) that go to a file, such as the log of a CI job; rows in a pipe stay plain,
as programs read them.
"""

from __future__ import annotations

import os

#: What a text means, and its code (ECMA-48, "select graphic rendition").
STYLES = {"strong": "1", "faint": "2", "bad": "31", "good": "32", "doubtful": "33", "next": "36", "error": "1;31"}

#: The states of datasets and the results of commands, by their first word.
_STATES = {
    "complete": "good",
    "good": "good",
    "written": "good",
    "repaired": "good",
    "partial": "doubtful",
    "planned": "doubtful",
    "not": "doubtful",
    "absent": "faint",
    "damaged": "bad",
    "failed": "bad",
}


def of_state(state: object) -> str:
    """The style of a state: ``complete``, ``partial 37%``, ``damaged``; none where it is not known."""
    return _STATES.get(str(state).partition(" ")[0], "")


def is_wanted(*, terminal: bool, messages: bool) -> bool:
    """Whether to colour a stream: a terminal or not, with messages (stderr) or results (stdout)."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return terminal or messages
    return terminal and os.environ.get("TERM") not in (None, "", "dumb")


def paint(content: str, style: str) -> str:
    """The text in a style of `STYLES`; unchanged where the style or the text is empty."""
    return f"\x1b[{STYLES[style]}m{content}\x1b[0m" if style and content else content
