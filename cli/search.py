"""``rbdata search``."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Argument, Option

from ..storage import amounts
from . import catalogue_table
from .console import out
from .options import Root, complete_source

EXAMPLES = """
  rbdata search atari breakout
  rbdata search maze continuous --max-size 500MB
  rbdata search --observations image --actions discrete
  rbdata search human --source minari --quiet
"""

#: Rows without --limit.
MOST_ROWS = 40


def run(
    words: Annotated[list[str] | None, Argument(metavar="WORDS", help="Words of ids, kinds and tags.")] = None,
    source: Annotated[
        str | None, Option(metavar="NAME", help="Only this source.", autocompletion=complete_source)
    ] = None,
    observations: Annotated[str | None, Option(metavar="KIND", help="Only image, vector, discrete or dict.")] = None,
    actions: Annotated[str | None, Option(metavar="KIND", help="Only these actions: discrete, continuous.")] = None,
    max_size: Annotated[str | None, Option(metavar="SIZE", help="Only downloads up to this size, such as 2GB.")] = None,
    limit: Annotated[int | None, Option(min=1, metavar="N", help="Show at most N, the best matches.")] = None,
    root: Root = None,
) -> None:
    """Search the catalogue of datasets to download, to record, and on this machine; the best match comes first.

    Works offline. Approximate counts are marked with ~, unknown ones are -. For programs: --quiet prints an id a line, --json
    all that is known.
    """
    from .. import settings
    from ..datasets import search as search_datasets
    from ..datasets.local import list_local

    found = search_datasets.find(
        words or (), source=source, observations=observations, actions=actions, max_size=max_size, root=root
    )
    entries = list(found.entries)[:limit]
    here = {one.id: one for one in list_local(root)}

    def document() -> dict[str, Any]:
        records = [catalogue_table.record(entry, here.get(entry.id)) for entry in entries]
        return {"matches": len(found.entries), "of_unknown_size": found.of_unknown_size, "datasets": records}

    if not out.programs(document, (entry.id for entry in entries)) and entries:
        rows = catalogue_table.combine(entries, here)
        shown = len(entries)
        if limit is None and len(rows) > MOST_ROWS:
            shown = entries.index(rows[MOST_ROWS][1])
        catalogue_table.show(entries[:shown], here)
        if shown < len(entries):
            out.note(f"{len(entries) - shown:,} more match: --limit {len(entries)} shows all")
        out.hint(settings.command("info", entries[0].id, root=root))
    if not found.entries:
        out.note(f"no dataset matches {' '.join(words or ())}".rstrip())
        if found.nearest:
            out.hint(settings.command("search", *found.nearest, root=root))
        elif len(words or ()) > 1:
            out.note("every word must match: try fewer")
    if found.of_unknown_size:
        out.note(f"left out, because their size is unknown: {amounts.plural(found.of_unknown_size, 'dataset')}")
