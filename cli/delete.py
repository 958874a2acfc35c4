"""``rbdata delete``."""

from __future__ import annotations

import os
from pathlib import Path

from ..storage import amounts
from .console import TableColumn, out
from .options import AnyLocalIds, DryRun, Root, Yes

EXAMPLES = """
  rbdata delete Pong/5
  rbdata delete atari/Pong/1 atari/Pong/2 --dry-run
  rbdata delete my/pong --yes
  rbdata delete 'my/test-*'
"""


def _with_target(path: Path) -> str:
    return f"{path} (only the link to {path.readlink()})" if path.is_symlink() else str(path)


_COLUMNS = (TableColumn("id"), TableColumn("size", amounts.size, right=True), TableColumn("path", _with_target))


def run(
    ids: AnyLocalIds,
    yes: Yes = False,
    dry_run: DryRun = False,
    root: Root = None,
) -> int:
    """Delete datasets from this machine. An ID may be a pattern, such as 'my/*'.

    Shows the datasets and their sizes, then asks. Unfinished downloads and the raw files that `download --keep-raw` kept
    are deleted as well. Of a symbolic link only the link is deleted, not its target.
    """
    from ..datasets.cleanup import kept_raw
    from ..datasets.local import deletable, delete, expand, list_local
    from ..storage.folder import disk_use

    # Look up every id before deleting anything: with one wrong id the command stops and deletes nothing.
    places = list({place.id: place for place in (deletable(one, root) for one in expand(ids, root))}.values())
    shown = {one.id: 0 if one.path.is_symlink() else one.bytes for one in list_local(root)}
    rows: list[tuple[str, int, Path]] = []
    raw: dict[str, int] = {}
    for place in places:
        rest = [path for path in (place.working, place.old) if os.path.lexists(place.path) and path.exists()]
        rows.append((place.id, shown.get(place.id, 0) + sum(map(disk_use, rest)), place.path))
        raw[place.id] = sum(map(disk_use, kept_raw(place)))
        if raw[place.id]:
            rows.append((f"{place.id} (raw files)", raw[place.id], place.root / ".raw" / place.id.partition("/")[0]))
    what = places[0].id if len(places) == 1 else amounts.plural(len(places), "dataset")
    total = f"{what}, {amounts.size(sum(size for _, size, _ in rows))}"

    if not out.confirm_deletion(total, _COLUMNS, rows, yes=yes, dry_run=dry_run):
        return 1
    if not dry_run:
        for place in places:
            delete(place)
    sizes = {one: size for one, size, _ in rows}
    records = [
        {"id": place.id, "bytes": sizes[place.id], "raw_bytes": raw[place.id], "path": str(place.path)}
        for place in places
    ]
    if not out.programs(lambda: {"deleted": not dry_run, "datasets": records}, (place.id for place in places)):
        out.note(f"would delete {total}" if dry_run else f"deleted {total}")
    return 0
