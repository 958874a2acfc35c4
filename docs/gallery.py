"""Writes the tables of docs/datasets.md from the catalogues of the sources: ``python docs/gallery.py``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rbdata.cli.catalogue_table import about, available, combine
from rbdata.datasets.catalogue import load_source
from rbdata.datasets.sources.catalogue_entry import CatalogueEntry, CatalogueFile, Place
from rbdata.storage.amounts import size
from rbdata.storage.plugins import BUILT_IN

PAGE = Path(__file__).with_name("datasets.md")
BEGIN, END = "<!-- tables: docs/gallery.py writes them -->", "<!-- end of the tables -->"


def page(text: str) -> str:
    """The page with new tables between the two marks."""
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n\n{chr(10).join(_tables())}\n{END}{tail}"


def _tables() -> Iterator[str]:
    for name in BUILT_IN:
        source = load_source(name)
        file = source.catalogue_file
        if file is None:  # what it reads is on the user's machine
            continue
        # Of an open-ended source, what is on this machine is in its catalogue too, and is not in the file.
        entries = list(file.entries()) if source.open_ended else source.catalogue()
        yield from _section(name, file, entries)


def _section(name: str, file: CatalogueFile, entries: Sequence[CatalogueEntry]) -> Iterator[str]:
    yield f"## {name}"
    yield ""
    yield f"{file.content['title']}. {len(entries)} datasets; as of {file.content['date']}."
    yield f"[What is stored, options](sources/{name}.md); <{file.content['all']['origin']}>."
    yield ""
    for place in (Place(**one) for one in file.content["places"].values()):
        url, note = f" `{place.url}`" * bool(place.url), f"; {place.note}" * bool(place.note)
        yield f"- {place.name}{url}: {place.access}, seen {place.date}{note}"
    yield ""
    scores = {entry.id: load_source(name).reference_scores({"dataset": entry.name}) for entry in entries}
    scored = any(scores.values())
    titles = ["id", "environment", "observations", "actions", "steps", "episodes", "download", "available"]
    yield _row([*titles, *["returns: score 0, 100"] * scored])
    yield _row(["---"] * (len(titles) + scored))
    for shown, entry in combine(entries, {}):
        known = scores[entry.id]
        returns = f"{known.low:,.5g}, {known.high:,.5g}" if known else "-"
        yield _row([f"`{shown}`", *_cells(entry), *[returns] * scored])
    yield ""
    yield "Where the figures are from:"
    yield ""
    yield from (f"- {figure}" for figure in file.content["figures"])
    yield ""


def _cells(entry: CatalogueEntry) -> list[str]:
    kinds = ((entry.observations, entry.observation_space), (entry.actions, entry.action_space))
    values = (
        entry.environment,
        *(": ".join(part for part in pair if part) for pair in kinds),
        about(entry.steps, entry),
        about(entry.episodes, entry),
        None if entry.bytes is None else size(entry.bytes),
        available(entry),
    )
    return [value or "-" for value in values]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
