"""The question before something is deleted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from typer import Option

from ..errors import UsageError
from .console import out

Yes = Annotated[bool, Option("--yes", "-y", help="Delete without asking.")]


def is_given(what: str, lines: Sequence[str]) -> bool:
    """Ask whether to delete ``what``, of which the ``lines`` are the parts. Raises UsageError where nobody can answer."""
    if not out.can_ask:
        message = f"nothing deleted ({what}): not a terminal; pass --yes"
        raise UsageError(message, hint="--dry-run shows what would be deleted")
    if out.confirm(f"Delete {what}?", lines):
        return True
    out.note("nothing deleted")
    return False
