"""``rbdata config``."""

from __future__ import annotations

from .console import Column, out
from .options import Root

EXAMPLES = """
  rbdata config
  rbdata config --json
  RBDATA_ROOT=/data rbdata config
"""

_COLUMNS = (Column("setting"), Column("value"), Column("from"))


def run(root: Root = None) -> None:
    """Show the settings and where each comes from.

    Flags override environment variables (RBDATA_ROOT, RBDATA_PROCS, RBDATA_MIRROR, RBDATA_<SOURCE>_MIRROR, RBDATA_UPSTREAM),
    which override the configuration file (RBDATA_CONFIG names another one), which overrides the defaults.
    """
    from .. import settings

    found = settings.effective(root)
    if out.json:
        out.document({one.name: {"value": one.value, "from": one.origin} for one in found})
    elif out.quiet:
        for one in found:
            out.line(f"{one.name}={'' if one.value is None else one.value}")
    else:
        out.table(_COLUMNS, [(one.name, None if one.value is None else str(one.value), one.origin) for one in found])
        if found[0].value is None and settings.path() is not None:
            out.note(f"no configuration file; its path would be {settings.path()}")
