"""``rbdata info``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..storage import amounts
from . import catalogue_table
from .console import out
from .options import AnyId, Root

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
    dataset: AnyId,
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
    here = {"state": local.state if local else "absent", "path": local and str(local.path)}
    if out.programs(lambda: {**entry.to_json(), **here, "mirror": mirror}, [entry.id]):
        return
    recorded = not listed or catalogue.load_source(entry.source).makes
    out.line(entry.id)
    out.facts([*_facts(entry, local, mirror, recorded)])
    if local and local.state == "complete":
        out.hint(settings.command("inspect", entry.id, root=root))
    elif recorded and "@" in entry.id and not mirror:
        out.note("a recording with a name is where it was made: name a mirror that has it with --mirror, or record one")
    elif listed and (mirror or entry.available):
        out.hint(settings.command("download", entry.id, root=root) if mirror else entry.command_at(root))
    elif listed:
        out.note("not published at any known location: name a copy with --mirror, or RBDATA_MIRROR")


def _facts(
    entry: CatalogueEntry, local: LocalDataset | None, mirror: str | None, recorded: bool
) -> Iterator[tuple[str, str]]:
    if local:
        steps = amounts.plural(local.steps or 0, "step"), amounts.plural(local.episodes or 0, "episode")
        counts = f"{' in '.join(steps)}, " if local.steps else ""
        yield "here", f"{catalogue_table.state(local)}, {counts}{amounts.size(local.bytes)}: {local.path}"
    yield "environment", entry.environment or _UNKNOWN
    yield "observations", _joined(", ", entry.observations, entry.observation_space)
    yield "actions", _joined(", ", entry.actions, entry.action_space)
    about = "about " * entry.approximate
    for name, count in (("steps", entry.steps), ("episodes", entry.episodes)):
        yield name, _UNKNOWN if count is None else f"{about}{amounts.count(count)}"
    if entry.horizon is not None:
        yield "time limit", f"{amounts.plural(entry.horizon, 'step')} an episode"
    if scores := entry.reference_scores:
        yield "scores", _joined("; ", scores.description, scores.caveat)
    if not recorded:
        yield "download", _UNKNOWN if entry.bytes is None else amounts.size(entry.bytes)
        yield "licence", entry.licence or "not stated"
    yield "citation", entry.citation or _UNKNOWN
    yield "origin", entry.origin or _UNKNOWN
    if mirror:
        yield "mirror", f"{mirror} (from your settings)"
    yield from (("place", _place(place)) for place in entry.places)
    yield from (("note", note) for note in entry.notes)
    if entry.options:
        yield from (("option", one) for one in _options(entry))
    if entry.date:
        yield "as of", entry.date
        yield from (("from", figure) for figure in entry.figures)


def _joined(separator: str, *parts: str | None) -> str:
    return separator.join(filter(None, parts)) or _UNKNOWN


def _place(place: Place) -> str:
    seen = _joined(", seen ", place.access, place.date)
    return _joined("; ", f"{_joined(': ', place.name, place.url)} ({seen})", place.note)


def _options(entry: CatalogueEntry) -> Iterator[str]:
    """The source's options that matter most for the dataset, as `rbdata download --help` shows them."""
    from ..datasets import catalogue

    for option in catalogue.load_source(entry.source).options:
        if option.name in entry.options:
            choices = "|".join(option.choices) or option.metavar or option.name.upper()
            yield f"{option.flag}{f' {choices}' * (option.type is not bool)}: {option.help}"
