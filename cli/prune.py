"""``rbdata prune``."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from ..storage import amounts
from .console import TableColumn, out
from .options import DryRun, Root, Yes

EXAMPLES = """
  rbdata prune
  rbdata prune --dry-run
  rbdata prune --raw --yes
"""

_COLUMNS = (TableColumn("id"), TableColumn("what"), TableColumn("size", amounts.size, right=True), TableColumn("path"))

_WHAT = {
    "unfinished": "unfinished work",
    "replaced": "replaced dataset",
    "lock": "lock of an ended process",
    "part": "part of a file",
    "raw": "raw files",
    "empty": "empty folder",
}


def run(
    yes: Yes = False,
    dry_run: DryRun = False,
    raw: Annotated[bool, Option("--raw", help="Also the raw files that `download --keep-raw` kept.")] = False,
    root: Root = None,
) -> int:
    """Delete what interrupted work left behind.

    Shows the left-overs and their sizes, then asks. An unfinished download or preprocess run can be continued until it is
    deleted here. Datasets, and files that a running process uses, are never deleted.
    """
    from ..datasets.cleanup import find_leftovers, remove_leftovers

    found = find_leftovers(root, raw=raw)
    rows = [(one.id or None, _WHAT[one.kind], one.bytes, str(one.path)) for one in found]
    total = f"{amounts.plural(len(found), 'left-over')}, {amounts.size(sum(one.bytes for one in found))}"
    if found and not out.confirm_deletion(total, _COLUMNS, rows, yes=yes, dry_run=dry_run):
        return 1
    kept = [] if dry_run else remove_leftovers(found, root)
    records = [{**vars(one), "path": str(one.path), "deleted": not dry_run and one not in kept} for one in found]
    gone = (str(one.path) for one in found if one not in kept)
    if not out.programs(lambda: {"deleted": not dry_run, "leftovers": records}, gone):
        out.note("nothing to delete" if not found else f"would delete {total}" if dry_run else f"deleted {total}")
    for one in kept:
        out.note(f"kept {one.path}: a process is using it")
    return 0
