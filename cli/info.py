"""``rbdata info``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from ..storage import amounts
from . import catalogue_table
from .console import Fact, out
from .options import Root, complete_any

if TYPE_CHECKING:
    from ..datasets.local import LocalDataset
    from ..datasets.sources.catalogue_entry import CatalogueEntry, Place

EXAMPLES = """
  rbdata info hopper-medium-v2
  rbdata info atari/Pong/1
  rbdata info minari/D4RL/door/human-v2 --json
"""

_UNKNOWN = "-"


def run(
    dataset: Annotated[
        str,
        Argument(
            metavar="ID",
            help="A dataset id: source/name, or the name alone where only one source has it.",
            autocompletion=complete_any,
            show_default=False,
        ),
    ],
    root: Root = None,
) -> None:
    """Show what is known about a dataset before it is downloaded, and the command to download it. Works offline.

    Unknown values are shown as -. For a dataset on this machine, rbdata inspect ID shows its contents.
    """
    from .. import settings
    from ..datasets import catalogue
    from ..datasets.search import describe

    entry, local = describe(dataset, root)
    listed = entry.source in catalogue.source_names()
    mirror = settings.mirror(entry.source) if listed else None
    if out.json:
        here = {"state": local.state if local else "absent", "path": local and str(local.path)}
        out.document({**entry.to_json(), **here, "mirror": mirror})
        return
    if out.quiet:
        out.line(entry.id)
        return
    if out.on_terminal:
        out.line(entry.id)
    facts = [Fact("id", entry.id)] if not out.on_terminal else []
    recorded = not listed or catalogue.load_source(entry.source).makes
    out.facts([*facts, *_facts(entry, local, mirror, recorded)])
    if local and local.state == "complete":
        out.hint(settings.command("inspect", entry.id, root=root))
    elif recorded and "@" in entry.id and not mirror:
        out.note("a recording with a name is where it was made: name a mirror that has it with --mirror, or record one")
    elif listed and (mirror or entry.available):
        out.hint(settings.command("download", entry.id, root=root) if mirror else entry.command_at(root))
    elif listed:
        out.note("not published at any known location: name a copy with --mirror, or RBDATA_MIRROR")


def _facts(entry: CatalogueEntry, local: LocalDataset | None, mirror: str | None, recorded: bool) -> Iterator[Fact]:
    if local:
        shown = f"{catalogue_table.state(local)}, "
        if local.steps:
            shown += f"{amounts.plural(local.steps, 'step')} in {amounts.plural(local.episodes or 0, 'episode')}, "
        yield Fact("here", f"{shown}{amounts.size(local.bytes)}: {local.path}", str(local.path))
    yield Fact("environment", entry.environment or _UNKNOWN)
    yield Fact("observations", _kind(entry.observations, entry.observation_space))
    yield Fact("actions", _kind(entry.actions, entry.action_space))
    yield _count("steps", entry.steps, entry)
    yield _count("episodes", entry.episodes, entry)
    if entry.horizon is not None:
        yield Fact("time limit", f"{amounts.count(entry.horizon)} steps an episode", entry.horizon)
    scores = entry.reference_scores
    if scores:
        shown = "; ".join(part for part in (scores.description, scores.caveat) if part)
        yield Fact("scores", shown, f"{scores.low} {scores.high}")
    if not recorded:
        yield Fact("download", _UNKNOWN if entry.bytes is None else amounts.size(entry.bytes), entry.bytes)
        yield Fact("licence", entry.licence or "not stated", entry.licence or _UNKNOWN)
    yield Fact("citation", entry.citation or _UNKNOWN)
    yield Fact("origin", entry.origin or _UNKNOWN)
    if mirror:
        yield Fact("mirror", f"{mirror} (from your settings)", mirror)
    for place in entry.places:
        yield Fact("place", _place(place), f"{place.access} {place.url or place.name}")
    yield from (Fact("note", note) for note in entry.notes)
    if entry.options:
        yield from (Fact("option", one) for one in _options(entry))
    if entry.date:
        yield Fact("as of", entry.date)
        yield from (Fact("from", figure) for figure in entry.figures)


def _kind(kind: str | None, space: str | None) -> str:
    return ", ".join(part for part in (kind, space) if part) or _UNKNOWN


def _count(name: str, count: int | None, entry: CatalogueEntry) -> Fact:
    shown = _UNKNOWN if count is None else f"{'about ' * entry.approximate}{amounts.count(count)}"
    return Fact(name, shown, _UNKNOWN if count is None else count)


def _place(place: Place) -> str:
    seen = f"{place.access}{f', seen {place.date}' * bool(place.date)}"
    note = f"; {place.note}" if place.note else ""
    return f"{place.name}{f': {place.url}' * bool(place.url)} ({seen}{note})"


def _options(entry: CatalogueEntry) -> Iterator[str]:
    """The source's options that matter most for the dataset, as `rbdata download --help` shows them."""
    from ..datasets import catalogue

    for option in catalogue.load_source(entry.source).options:
        if option.name in entry.options:
            choices = f" {'|'.join(option.choices)}" if option.choices else f" {option.metavar or option.name.upper()}"
            yield f"{option.flag}{choices if option.type is not bool else ''}: {option.help}"
