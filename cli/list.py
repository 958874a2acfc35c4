"""``rbdata list``."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from ..storage import amounts
from . import catalogue_table
from .console import AMOUNTS, TableColumn, out, state_style
from .options import Root, complete_source

if TYPE_CHECKING:
    from ..datasets.local import LocalDataset
    from ..datasets.search import SourceSummary
    from ..datasets.sources.catalogue_entry import CatalogueEntry

EXAMPLES = """
  rbdata list
  rbdata list atari
  rbdata list --match '*breakout*'
  rbdata list minari --refresh
  rbdata list --local --quiet | xargs rbdata verify
"""

_COLUMNS = (TableColumn("id"), TableColumn("state", style=state_style), *AMOUNTS)
_SOURCES = (
    TableColumn("source"),
    TableColumn("datasets", right=True),
    TableColumn("from", optional=True),
    TableColumn("example", optional=True),
)


def run(
    source: Annotated[
        str | None, Argument(metavar="SOURCE", help="Show the datasets of this source.", autocompletion=complete_source)
    ] = None,
    local: Annotated[bool, Option("--local", help="Only datasets on this machine.")] = False,
    match: Annotated[str | None, Option(metavar="GLOB", help="Only ids or names that match, such as 'pong*'.")] = None,
    refresh: Annotated[bool, Option("--refresh", help="Update the lists that sources have at servers.")] = False,
    root: Root = None,
) -> None:
    """List the datasets on this machine and the sources of other datasets; with SOURCE, the datasets of one source.

    State is complete, partial (an unfinished download, with its progress), damaged, or - if not on this machine. Only
    --refresh uses the network; its result is stored with the date. Counts that are approximate are marked with ~. For
    programs: --quiet prints an id a line, --json all that is known.
    """
    from .. import settings
    from ..datasets import catalogue
    from ..datasets.local import list_local
    from ..datasets.search import summarise
    from ..errors import DatasetNotFoundError

    if source is not None and source not in (*catalogue.source_names(), catalogue.MINE):
        names = ", ".join(catalogue.source_names())
        hint = f"sources: {names}; `{settings.command('search', source)}` finds datasets"
        raise DatasetNotFoundError(f"there is no source {source!r}", hint=hint)
    if refresh:
        _refresh(source, root)

    folder = settings.root(root)
    everything = list_local(root)
    here = {one.id: one for one in everything if _matches(one.id, source, match)}
    known = {} if local or source == catalogue.MINE else catalogue.entries(source, folder)
    absent = [entry for entry in known.values() if entry.id not in here and _matches(entry.id, None, match)]
    listings = {} if source == catalogue.MINE else catalogue.remote_listings(source, root)
    remotes = {name: {"remote": one.remote, "date": one.date} for name, one in listings.items()}

    def document() -> dict[str, Any]:
        rows = [_record(one, known) for one in here.values()] + [catalogue_table.record(entry) for entry in absent]
        sources = [vars(one) for one in summarise(known.values())]
        return {"root": str(folder), "datasets": rows, "sources": sources, "remotes": remotes}

    if not out.programs(document, (*here, *(entry.id for entry in absent))):
        _show(here, absent, known, narrowed=bool(source or match))

    if root is not None and not folder.is_dir():  # perhaps misspelt; the first download creates the default root
        what = "not a folder" if os.path.lexists(folder) else "no such folder"
        out.note(f"{folder}: {what}; choose another with --root or RBDATA_ROOT")
    elif not here and not absent:
        wanted = f"{source} datasets" if source else "datasets"
        elsewhere = f"; {amounts.count(len(everything))} of other sources" if everything else ""
        out.note(f"no dataset matches {match!r}" if match else f"no {wanted} under {folder}{elsewhere}")
    elif not here and out.on_terminal and not (source or match):
        out.note(f"no datasets on this machine yet (in {folder})")
    for one in here.values():
        if one.problem:
            out.note(f"{one.id}: {one.problem}")
    if out.on_terminal and not out.json and absent:
        for remote, listing in remotes.items():
            out.note(f"{remote}: as listed on {listing['date']}; --refresh updates the list from {listing['remote']}")
        usable = next((entry for entry in absent if entry.available), absent[0])
        first = ("search", "hopper", "medium") if here else ("download", "gymnasium/CartPole-v1")
        out.hint(settings.command(*(("info", usable.id) if source or match else first), root=root))


def _show(
    here: dict[str, LocalDataset], absent: list[CatalogueEntry], known: dict[str, CatalogueEntry], *, narrowed: bool
) -> None:
    """Print tables of the datasets on this machine and of the absent ones: these by source, unless the list is ``narrowed``
    to a source or a pattern."""
    from ..datasets.search import summarise

    rows = [_row(one) for one in here.values() if not (absent and narrowed and one.id in known)]
    if rows:
        out.table(_COLUMNS, rows)
        if absent:
            out.line()
    if absent and narrowed:
        catalogue_table.show([*(known[one] for one in here if one in known), *absent], here)
    elif absent:
        out.table(_SOURCES, map(_source_row, summarise(known.values())))


def _matches(dataset_id: str, source: str | None, match: str | None) -> bool:
    if source is not None and not dataset_id.startswith(source + "/"):
        return False
    if match is None:
        return True
    name, pattern = dataset_id.lower(), match.lower()
    return fnmatchcase(name, pattern) or fnmatchcase(name.partition("/")[2], pattern)


def _refresh(source: str | None, root: Path | None) -> None:
    """Update the lists of remote datasets. With several sources, one that fails is noted and skipped."""
    from ..datasets import catalogue
    from ..datasets.fetch import FetchOptions
    from ..errors import FetchError
    from .progress import count_progress

    for name, one in catalogue.sources(source).items():
        if source is None and not one.lists_remotely:
            continue
        with count_progress(f"listing {name}") as on_progress:
            try:
                one.refresh_listing(root, FetchOptions(), on_progress)
            except FetchError as error:
                if source:
                    raise
                out.note(f"{name}: {error.message}")


def _source_row(summary: SourceSummary) -> tuple[str | None, ...]:
    places = [*summary.places, *["your mirror"] * bool(summary.mirror_only)]
    return summary.source, f"{summary.datasets:,}", ", ".join(places) or None, summary.example


def _row(dataset: Any) -> tuple[Any, ...]:
    return dataset.id, catalogue_table.state(dataset), dataset.steps, dataset.episodes, dataset.bytes


def _record(dataset: Any, known: dict[str, CatalogueEntry]) -> dict[str, Any]:
    entry = known.get(dataset.id)
    facts = catalogue_table.record(entry) if entry else {}
    return {
        **facts,
        "id": dataset.id,
        "state": dataset.state,
        "path": str(dataset.path),
        "steps": dataset.steps,
        "episodes": dataset.episodes,
        "bytes": dataset.bytes,
        "approximate": False,
        "done": round(dataset.done, 4),
        "problem": dataset.problem,
    }
