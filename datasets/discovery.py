"""Which datasets there are: those that sources describe, and those on this machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .. import settings
from ..errors import RbdataError, UnknownDatasetError
from ..storage.manifest import read_manifest
from . import catalogue, matching
from .local import LocalDataset, list_local
from .sources.catalogue_entry import Catalogue, CatalogueEntry, Place, action_kind, observation_kind, space_text


@dataclass(frozen=True)
class Found:
    """The result of a search: datasets, the best match first, and how many were left out because their size is unknown.

    ``nearest`` are words to try instead of those that no dataset has.
    """

    entries: Catalogue
    of_unknown_size: int = 0
    nearest: tuple[str, ...] = ()


@dataclass(frozen=True)
class SourceSummary:
    """What one source has: how many datasets, where they can be had today, and the id of one to begin with.

    ``mirror_only`` counts the datasets that can be had from a mirror of your own only.
    """

    source: str
    title: str
    datasets: int
    places: tuple[str, ...]
    mirror_only: int
    example: str


def summarise(entries: Iterable[CatalogueEntry]) -> list[SourceSummary]:
    """One summary for each source of these datasets, in their order."""
    by_source: dict[str, list[CatalogueEntry]] = {}
    for entry in entries:
        by_source.setdefault(entry.source, []).append(entry)
    found = []
    for name, members in by_source.items():
        file = catalogue.load_source(name).catalogue_file
        places = tuple(dict.fromkeys(place for entry in members for place in entry.available))
        shut = sum(bool(entry.places) and not entry.available for entry in members)
        about = file.content if file else {}
        example = f"{name}/{about['example']}" if "example" in about else members[0].id
        found.append(SourceSummary(name, about.get("title", ""), len(members), places, shut, example))
    return found


def known(source: str | None = None, root: str | os.PathLike[str] | None = None) -> Catalogue:
    """All datasets that sources describe, by source; of one source only if it is named. The network is not used.

    Raises UnknownDatasetError for a source that there is not.
    """
    return Catalogue(catalogue.entries(source, settings.root(root)).values())


def find(
    words: Iterable[str],
    *,
    source: str | None = None,
    observations: str | None = None,
    actions: str | None = None,
    max_size: str | int | None = None,
    root: str | os.PathLike[str] | None = None,
) -> Found:
    """The datasets that match all words (see `matching`) and are of these kinds, with those users made under the root.

    ``max_size`` bounds the bytes to download, such as ``"2GB"``. Raises UsageError for kinds and sizes that are none,
    UnknownDatasetError for a source that there is not.
    """
    words = list(words)
    max_bytes = None if max_size is None else matching.parse_size(max_size)
    entries = {} if source == catalogue.MINE else {entry.id: entry for entry in known(source, root)}
    for one in list_local(root):
        if one.id not in entries and source in (None, one.id.partition("/")[0]) and one.state == "complete":
            entries[one.id] = _local_entry(one)
    matched = matching.rank(list(entries.values()), words)
    nearest = () if matched else tuple(matching.nearest_words(entries.values(), words))
    chosen, unknown = matching.select(matched, observations, actions, max_bytes)
    return Found(Catalogue(chosen), unknown, nearest)


def describe(text: str, root: str | os.PathLike[str] | None = None) -> tuple[CatalogueEntry, LocalDataset | None]:
    """What is known of a dataset without the network, by id or bare name, and the dataset itself where it is here.

    Raises UnknownDatasetError with the nearest ids.
    """
    if catalogue.is_path(text):
        hint = f"`{settings.command('inspect', text)}` shows what a folder holds"
        raise UnknownDatasetError(f"{text} is a path: datasets are described by their id", hint=hint)
    here = {one.id: one for one in list_local(root)}
    dataset_id, source = catalogue.resolve(text, here)
    local = here.get(dataset_id)
    if source is None and local is not None:
        return _local_entry(local), local
    return catalogue.describe(dataset_id, settings.root(root)), local


def _local_entry(one: LocalDataset) -> CatalogueEntry:
    """A dataset that no source lists, as its manifest describes it."""
    place = Place("this machine", str(one.path), "open")
    try:
        manifest = read_manifest(one.path)
    except RbdataError:
        return CatalogueEntry(one.id, places=(place,))
    facts: dict[str, Any] = {"environment": manifest.environment}
    with contextlib.suppress(KeyError, TypeError, AttributeError):  # of a manifest that others wrote
        observation, action = manifest.spaces.get("observation"), manifest.spaces.get("action")
        if observation:
            facts.update(observations=observation_kind(observation), observation_space=space_text(observation))
        if action:
            facts.update(actions=action_kind(action), action_space=space_text(action))
    return CatalogueEntry(
        one.id,
        steps=one.steps,
        episodes=one.episodes,
        licence=manifest.licence,
        citation=manifest.citation,
        places=(place,),
        **facts,
    )
