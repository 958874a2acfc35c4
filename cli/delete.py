"""``rbdata delete``."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from ..errors import UsageError
from . import text
from .console import Column, out
from .options import AnyLocalIds, DryRun, Root

EXAMPLES = """
  rbdata delete Pong/5
  rbdata delete atari/Pong/1 atari/Pong/2 --dry-run
  rbdata delete my/pong --yes
"""

_COLUMNS = (Column("id"), Column("size", text.size, right=True), Column("path"))


def run(
    ids: AnyLocalIds,
    yes: Annotated[bool, Option("--yes", "-y", help="Delete without asking.")] = False,
    dry_run: DryRun = False,
    root: Root = None,
) -> int:
    """Delete datasets from this machine.

    Shows the datasets and their sizes, then asks. Unfinished downloads are deleted as well. Of a symbolic link only the
    link is deleted, not its target.
    """
    from ..datasets.local import deletable, delete, disk_use

    # Look up every id before deleting anything: with one wrong id the command stops and deletes nothing.
    places = list({place.id: place for place in (deletable(one, root) for one in ids)}.values())
    sizes = [sum(disk_use(path) for path in (place.path, place.working, place.old)) for place in places]
    rows = [(place.id, size, str(place.path)) for place, size in zip(places, sizes)]
    what = places[0].id if len(places) == 1 else text.plural(len(places), "dataset")
    total = f"{what}, {text.size(sum(sizes))}"

    if not yes and not dry_run:
        if not out.can_ask:
            message = f"nothing deleted ({total}): not a terminal; pass --yes"
            raise UsageError(message, hint="--dry-run shows what would be deleted")
        if not out.confirm(f"Delete {total}?", [f"{one}  {text.size(size)}  {path}" for one, size, path in rows]):
            out.note("nothing deleted")
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
        if dry_run or yes:  # otherwise the question showed them
            out.table(_COLUMNS, rows)
        out.note(f"would delete {total}" if dry_run else f"deleted {total}")
    return 0
