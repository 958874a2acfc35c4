"""``rbdata config``, ``rbdata config set`` and ``rbdata config unset``."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Context

from .console import TableColumn, out
from .options import Root

HELP = """Show the settings and where each comes from, or change the configuration file.

Flags override environment variables (RBDATA_ROOT, RBDATA_PROCS, RBDATA_MIRROR, RBDATA_<SOURCE>_MIRROR, RBDATA_UPSTREAM),
which override the configuration file (RBDATA_CONFIG names another one), which overrides the defaults.
"""

EXAMPLES = """
  rbdata config
  rbdata config set root /data/rbdata
  rbdata config set mirrors.atari gs://my-bucket/dqn
  rbdata config unset mirrors.atari
"""

_COLUMNS = (TableColumn("setting"), TableColumn("value"), TableColumn("from"))


def _complete_key(incomplete: str) -> list[str]:
    from .. import settings

    return [one.name for one in settings.effective() if one.name.startswith(incomplete) and one.name != "config"]


Key = Annotated[
    str,
    Argument(
        metavar="KEY",
        help="root, procs, mirror, mirrors.SOURCE, or an option of a source.",
        autocompletion=_complete_key,
    ),
]


def run(ctx: Context, root: Root = None) -> None:
    """The command without a verb."""
    if ctx.invoked_subcommand:
        return
    from .. import settings

    found = settings.effective(root)
    lines = (f"{one.name}={'' if one.value is None else one.value}" for one in found)
    if not out.programs(lambda: {one.name: {"value": one.value, "from": one.origin} for one in found}, lines):
        out.table(_COLUMNS, [(one.name, None if one.value is None else str(one.value), one.origin) for one in found])
        if found[0].value is None and settings.path() is not None:
            out.note(f"no configuration file; its path would be {settings.path()}")


def set_value(key: Key, value: Annotated[str, Argument(metavar="VALUE", help="Its new value.")]) -> None:
    """Set a value in the configuration file."""
    _store(key, value)


def unset(key: Key) -> None:
    """Remove a value from the configuration file."""
    _store(key, None)


def _store(key: str, value: str | None) -> None:
    from .. import settings

    file = settings.store(key, value)
    now = next((one for one in settings.effective() if one.name == key), None)  # None for the mirror of every source
    if not out.programs(lambda: {"file": str(file), "setting": key, "value": value}, [str(file)]):
        stored = now.value if now and now.origin == str(file) else value
        out.line(f"{file}: {key} {'removed' if value is None else f'set to {stored}'}")
    if now and now.origin not in (str(file), "default"):
        out.warn(f"{now.origin} overrides it: {key} is {now.value}")


VERBS = {"set": set_value, "unset": unset}
