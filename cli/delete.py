"""``rbdata delete``."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import UsageError
from . import text
from .console import Column, out
from .options import DryRun, RemainingIds, Root

EXAMPLES = """
  rbdata delete Pong/5
  rbdata delete atari/Pong/1 atari/Pong/2 --dry-run
  rbdata delete my/pong --yes
"""

_COLUMNS = (Column("id"), Column("size", text.size, right=True), Column("path"))


def run(
    ids: RemainingIds,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: DryRun = False,
    root: Root = None,
) -> int:
    """Remove datasets from this machine.

    Says what and how much, and asks. What an unfinished download left is removed as well. Links are removed, never what
    they lead to.
    """
    from ..datasets.local import deletable, delete, disk_use

    # All ids are looked up before anything is removed: a wrong one stops the command while nothing has happened.
    places = list({place.id: place for place in (deletable(one, root) for one in ids)}.values())
    sizes = [sum(disk_use(path) for path in (place.path, place.working, place.old)) for place in places]
    rows = [(place.id, size, str(place.path)) for place, size in zip(places, sizes)]
    what = places[0].id if len(places) == 1 else text.many(len(places), "dataset")
    total = f"{what}, {text.size(sum(sizes))}"

    if not yes and not dry_run:
        if not out.can_ask:
            message = f"nothing deleted ({total}): nobody is there to confirm it"
            raise UsageError(message, hint="say --yes to delete without being asked")
        if not out.confirm(f"Delete {total}?", [f"{one}  {text.size(size)}  {path}" for one, size, path in rows]):
            out.note("nothing is deleted")
            return 1
    if not dry_run:
        for place in places:
            delete(place)
    if out.json:
        records = [{"id": dataset, "bytes": size, "path": path} for dataset, size, path in rows]
        out.document({"deleted": not dry_run, "datasets": records})
    elif out.quiet:
        for dataset, *_ in rows:
            out.line(dataset)
    else:
        if dry_run or yes:  # otherwise they were shown with the question
            out.table(_COLUMNS, rows)
        out.note(f"would delete {total}" if dry_run else f"deleted {total}")
    return 0
