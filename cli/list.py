"""``rbdata list``."""

from __future__ import annotations

from collections import defaultdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from . import text
from .colour import of_state
from .console import AMOUNTS, Column, out
from .options import Root, complete_source
from .progress import count_progress

EXAMPLES = """
  rbdata list
  rbdata list --match '*breakout*'
  rbdata list --source minari --refresh
  rbdata list --local --quiet | xargs rbdata verify
"""

#: A terminal shows a summary of the catalogue if it has more rows than this.
MOST_ROWS = 40
#: Lines of names per source in that summary, if it has several sources.
LINES = 4

_COLUMNS = (Column("id"), Column("state", style=of_state), *AMOUNTS)


def run(
    source: Annotated[
        str | None, Option(metavar="NAME", help="Only this source.", autocompletion=complete_source)
    ] = None,
    local: Annotated[bool, Option("--local", help="Only datasets on this machine.")] = False,
    match: Annotated[str | None, Option(metavar="GLOB", help="Only ids or names that match, such as 'pong*'.")] = None,
    refresh: Annotated[
        bool, Option("--refresh", help="Update the lists of sources that have one from their servers.")
    ] = False,
    root: Root = None,
) -> None:
    """List the datasets on this machine and those that can be downloaded.

    State is complete, partial (an unfinished download, with its progress), damaged, or - if not on this machine. In a
    pipe every dataset is one tab-separated row: id, state, steps, episodes, bytes. Only --refresh uses the network; its
    result is stored with the date.
    """
    from .. import settings
    from ..datasets import catalogue
    from ..datasets.local import list_local

    if refresh:
        _refresh(source, root)

    if source is not None and source != catalogue.MINE:
        catalogue.load_source(source)  # raises for unknown names
    here = [one for one in list_local(root) if _matches(one.id, source, match)]
    ids = [one.id for one in here]
    remote = {} if local or source == catalogue.MINE else catalogue.remote_ids(source, root)
    listed = [] if local or source == catalogue.MINE else [*catalogue.known_ids(source), *remote]
    absent = [name for name in dict.fromkeys(listed) if name not in ids and _matches(name, None, match)]
    where = settings.root(root)

    if out.json:
        rows = [_record(one) for one in here] + [_absent(name, remote.get(name)) for name in absent]
        out.document({"root": str(where), "datasets": rows, "remotes": _remotes(source, root)})
    elif out.quiet:
        for name in (*ids, *absent):
            out.line(name)
    elif out.on_terminal and len(absent) > MOST_ROWS:
        if here:
            out.table(_COLUMNS, map(_row, here))
            out.line()
        _summary(absent)
    elif here or absent:
        out.table(_COLUMNS, [*map(_row, here), *((name, None, *_counts(remote.get(name))) for name in absent)])
    if not here and not absent:
        out.note(f"no dataset matches {match!r}" if match else f"no datasets under {where}")
    for one in here:
        if one.problem:
            out.note(f"{one.id}: {one.problem}")
    if remote and out.on_terminal and not out.quiet:
        for name, listing in _remotes(source, root).items():
            out.note(f"{name}: as listed on {listing['date']}; --refresh updates the list from {listing['remote']}")


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

    for name, one in catalogue.sources(source).items():
        if source is None and not one.lists_remotely:
            continue
        with count_progress(f"listing {name}") as on_progress:
            try:
                one.refresh(root, FetchOptions(), on_progress)
            except FetchError as error:
                if source:
                    raise
                out.note(f"{name}: {error.message}")


def _remotes(source: str | None, root: Path | None) -> dict[str, dict[str, str]]:
    """The remotes whose lists are stored, and when they were listed."""
    from ..datasets import catalogue

    if source == catalogue.MINE:
        return {}
    return {
        name: {"remote": one.remote, "date": one.date} for name, one in catalogue.remote_listings(source, root).items()
    }


def _absent(name: str, remote: Any) -> dict[str, Any]:
    return {"id": name, "state": "absent", **dict(zip(("steps", "episodes", "bytes"), _counts(remote)))}


def _counts(remote: Any) -> tuple[int | None, int | None, int | None]:
    """Steps, episodes and bytes of a dataset that is not here, as far as the stored list states them."""
    return (remote.steps, remote.episodes, remote.bytes) if remote else (None, None, None)


def _row(dataset: Any) -> tuple[Any, ...]:
    state = f"partial {text.percent(dataset.done)}" if dataset.state == "partial" else dataset.state
    return dataset.id, state, dataset.steps, dataset.episodes, dataset.bytes


def _record(dataset: Any) -> dict[str, Any]:
    return {
        "id": dataset.id,
        "state": dataset.state,
        "path": str(dataset.path),
        "steps": dataset.steps,
        "episodes": dataset.episodes,
        "bytes": dataset.bytes,
        "done": round(dataset.done, 4),
        "problem": dataset.problem,
    }


def _summary(ids: list[str]) -> None:
    """Print the catalogue on one page, by source; names that differ only in a number are combined."""
    from ..datasets import catalogue

    sources: dict[str, list[str]] = defaultdict(list)
    for one in ids:
        head, _, name = one.partition("/")
        sources[head].append(name)
    alone = len(sources) == 1
    for number, (source, names) in enumerate(sources.items()):
        if number:
            out.line()
        folded = _combine_numbers(names)
        ends = {name.rpartition("/")[2] for name in folded}
        if len(ends) == 1 and len(folded) > 1:
            (end,) = ends
            out.line(f"{source}: {text.plural(len(names), 'dataset')}, {source}/NAME/{end}")
            folded = [name.rpartition("/")[0] for name in folded]
        else:
            out.line(f"{source}: {text.plural(len(names), 'dataset')}")
        lines = text.in_columns(folded, out.width)
        shown = lines if alone or len(lines) <= LINES else lines[: LINES - 1]
        for line in shown:
            out.line(line)
        if len(shown) < len(lines):
            out.line(f"... more: rbdata list --source {source}")
    # A dataset that is made on this machine needs no server.
    makers = {name for name, source in catalogue.sources().items() if source.makes}
    out.hint(f"rbdata download {next((one for one in ids if one.partition('/')[0] in makers), ids[0])}")


def _combine_numbers(names: list[str]) -> list[str]:
    """``Pong/1, Pong/2, Pong/3, Tennis/4`` -> ``Pong/1-3, Tennis/4``."""
    from ..datasets.ingest.number_ranges import format_numbers

    families: dict[str, list[int]] = defaultdict(list)
    folded: list[str] = []
    for name in names:
        head, _, tail = name.rpartition("/")
        if head and tail.isdecimal():
            families[head].append(int(tail))
        else:
            folded.append(name)
    runs = [f"{head}/{format_numbers(sorted(numbers)).replace(', ', ',')}" for head, numbers in families.items()]
    return runs + folded
