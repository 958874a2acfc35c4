"""Datasets of the catalogue as table rows and JSON, for `list` and `search`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ..storage import amounts
from .console import TableColumn, out, state_style

if TYPE_CHECKING:
    from ..datasets.local import LocalDataset
    from ..datasets.sources.catalogue_entry import CatalogueEntry

#: The column "available" of datasets without a public place.
MIRROR_ONLY = "mirror only"

_COLUMNS = (
    TableColumn("id"),
    TableColumn("state", style=state_style),
    TableColumn("steps", right=True),
    TableColumn("size", right=True),
    TableColumn("observations", optional=True),
    TableColumn("actions", optional=True),
    TableColumn("available", optional=True),
    TableColumn("licence", optional=True),
)
_NUMBERED = re.compile(r"(.+/)(\d+)")

Here = Mapping[str, "LocalDataset"]


def show(entries: Sequence[CatalogueEntry], here: Here) -> None:
    """Print a table without columns that are empty.

    Datasets that differ only in a number (runs of a game) share a row.
    """
    rows = [_row(ids, entry, here) for ids, entry in combine(entries, here)]
    known = [index for index in range(len(_COLUMNS)) if any(row[index] for row in rows)]
    out.table([_COLUMNS[index] for index in known], [[row[index] for index in known] for row in rows])


def combine(entries: Iterable[CatalogueEntry], here: Here) -> list[tuple[str, CatalogueEntry]]:
    """Entries with the id to show: ``atari/Pong/1-3,5`` for consecutive entries that differ only in a number."""
    from ..datasets.ingest.request import format_numbers

    def family(entry: CatalogueEntry) -> Any:
        match = _NUMBERED.fullmatch(entry.id)
        return replace(entry, id=match[1]) if match and entry.id not in here else entry

    rows = []
    for key, members in groupby(entries, family):
        alike = list(members)
        numbers = sorted(int(entry.id[len(key.id) :]) for entry in alike) if len(alike) > 1 else []
        shown = f"{key.id}{format_numbers(numbers).replace(', ', ',')}" if numbers else alike[0].id
        rows.append((shown, alike[0]))
    return rows


def _row(shown: str, entry: CatalogueEntry, here: Here) -> tuple[str | None, ...]:
    local = here.get(entry.id)
    return (
        shown,
        state(local) if local else None,
        amounts.count(local.steps) if local and local.steps is not None else about(entry.steps, entry),
        amounts.size(local.bytes) if local else None if entry.bytes is None else amounts.size(entry.bytes),
        entry.observations,
        entry.actions,
        available(entry),
        entry.licence,
    )


def about(count: int | None, entry: CatalogueEntry) -> str | None:
    """Return a count, marked if it is approximate."""
    return None if count is None else f"{'~' * entry.approximate}{amounts.count(count)}"


def available(entry: CatalogueEntry) -> str | None:
    """Return the public places of a dataset."""
    return ", ".join(entry.available) or (MIRROR_ONLY if entry.places else None)


def state(local: LocalDataset) -> str:
    """Return the state of a dataset on this machine."""
    return f"partial {amounts.percent(local.done)}" if local.state == "partial" else local.state


def record(entry: CatalogueEntry, local: LocalDataset | None = None) -> dict[str, Any]:
    """Return an entry of `list` and `search` as JSON; `info` has the rest."""
    return {
        "id": entry.id,
        "state": local.state if local else "absent",
        "steps": entry.steps,
        "episodes": entry.episodes,
        "bytes": entry.bytes,
        "approximate": entry.approximate,
        "environment": entry.environment,
        "observations": entry.observations,
        "actions": entry.actions,
        "available": entry.available,
        "licence": entry.licence,
    }
