"""Finds datasets by words and kinds, in the catalogue and on this machine.

A word matches a dataset if it equals, starts, or occurs in a word of its id, environment, tags or kinds; all words must match.
The best matches come first: whole words before prefixes, words of the id before words of tags. Ties are ordered by access
(downloadable today first), then ids with the fewest other words, then newer versions.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .. import settings
from ..errors import DatasetNotFoundError, RbdataError, UsageError
from ..storage import amounts
from ..storage.manifest import read_manifest
from . import catalogue
from .local import LocalDataset, list_local
from .sources.catalogue_entry import (
    ACTIONS,
    OBSERVATIONS,
    Catalogue,
    CatalogueEntry,
    Place,
    action_kind,
    observation_kind,
    space_text,
)

#: Users' words for kinds and contents, and the words that entries use.
SYNONYMS = {
    **dict.fromkeys(("pixel", "pixels", "images", "frame", "frames", "visual"), "image"),
    **dict.fromkeys(("state", "states", "vectors", "features"), "vector"),
    **dict.fromkeys(("demo", "demos", "demonstration", "demonstrations"), "human"),
    "games": "game",
}

_SPLIT = re.compile(r"[^a-z0-9]+")
_CAPITALISED = re.compile(r"[A-Z][a-z0-9]+")
_NUMBER = re.compile(r"v?\d+")


def select(
    entries: Iterable[CatalogueEntry],
    observations: str | None = None,
    actions: str | None = None,
    max_bytes: int | None = None,
) -> tuple[list[CatalogueEntry], int]:
    """Return the entries of these kinds that are not too large, and how many were left out because their size is unknown.

    Raises UsageError for an unknown kind.
    """
    for given, known, what in ((observations, OBSERVATIONS, "observations"), (actions, ACTIONS, "actions")):
        if given is not None and given not in known:
            raise UsageError(f"there is no kind of {what} {given!r}", hint=f"kinds: {', '.join(known)}")
    wanted = [one for one in entries if observations in (None, one.observations) and actions in (None, one.actions)]
    if max_bytes is None:
        return wanted, 0
    small = [entry for entry in wanted if entry.bytes is not None and entry.bytes <= max_bytes]
    return small, sum(entry.bytes is None for entry in wanted)


def rank(entries: Sequence[CatalogueEntry], words: Iterable[str]) -> list[CatalogueEntry]:
    """Return the entries that match all words, the best first; without words, all in their order."""
    wanted = [word for text in words for word in _split(text)]
    if not wanted:
        return list(entries)
    found = []
    for order, entry in enumerate(entries):
        own, other = _words(entry)
        scores = [_score(word, own, other) for word in wanted]
        if all(scores):
            beside = sum(word not in wanted and not _NUMBER.fullmatch(word) for word in _split(entry.id))
            version = re.search(r"-v(\d+)$", entry.id)
            newest_first = -int(version[1]) if version else 0
            found.append((-sum(scores), _access(entry), beside, newest_first, order, entry))
    return [entry for *_, entry in sorted(found, key=lambda match: match[:-1])]


def nearest_words(entries: Iterable[CatalogueEntry], words: Iterable[str]) -> list[str]:
    """For each word that no dataset has, the most similar word that one has."""
    known = {word for entry in entries for words_of in _words(entry) for word in words_of}
    unknown = [word for text in words for word in _split(text) if not any(word in other for other in known)]
    near = (difflib.get_close_matches(word, known, n=1, cutoff=0.6) for word in unknown)
    return [match[0] for match in near if match]


def _words(entry: CatalogueEntry) -> tuple[set[str], set[str]]:
    """The words of the id, whole and in parts (``CartPole-v1``: cartpole, cart, pole, v1), and the words of all other
    fields."""
    own = {*_split(entry.id), *(part.lower() for part in _CAPITALISED.findall(entry.id))}
    texts = (entry.environment, *entry.tags, entry.observations, entry.actions)
    return own, {word for text in texts if text for word in _split(text)}


def _split(text: str) -> list[str]:
    return [word for word in _SPLIT.split(text.lower()) if word]


def _score(word: str, own: set[str], other: set[str]) -> int:
    """How well one word matches; 0 if it does not."""
    if word in own:
        return 8
    if word in other or SYNONYMS.get(word) in own | other:
        return 6
    if any(one.startswith(word) for one in own):
        return 4
    if any(one.startswith(word) for one in other):
        return 3
    return 1 if len(word) > 2 and any(word in one for one in own | other) else 0


def _access(entry: CatalogueEntry) -> int:
    """The rank of the best place that has a dataset, by how likely a download works today."""
    order = ("open", "unreliable", "closed")
    return min((order.index(place.access) for place in entry.places), default=len(order))


@dataclass(frozen=True)
class SearchResult:
    """The result of a search: datasets, the best match first, and how many were left out because their size is unknown.

    ``nearest`` are words to try instead of those that no dataset has.
    """

    entries: Catalogue
    of_unknown_size: int = 0
    nearest: tuple[str, ...] = ()


@dataclass(frozen=True)
class SourceSummary:
    """A source: how many datasets it has, the places that offer them today, and the id of an example.

    ``mirror_only`` counts the datasets that are available only from a mirror of your own.
    """

    source: str
    title: str
    datasets: int
    places: tuple[str, ...]
    mirror_only: int
    example: str


def summarise(entries: Iterable[CatalogueEntry]) -> list[SourceSummary]:
    """Return one summary for each source of these datasets, in their order."""
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
    """Return all datasets that sources describe, or those of one source, without the network.

    Raises DatasetNotFoundError for an unknown source.
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
) -> SearchResult:
    """The datasets that match all words (see `rank`) and are of these kinds, including those that users made under the root.

    ``max_size`` bounds the bytes to download, such as ``"2GB"``. Raises UsageError for an unknown kind or an invalid size,
    DatasetNotFoundError for an unknown source.
    """
    words = list(words)
    max_bytes = None if max_size is None else amounts.parse_size(max_size)
    entries = {} if source == catalogue.MINE else {entry.id: entry for entry in known(source, root)}
    for one in list_local(root):
        if one.id not in entries and source in (None, one.id.partition("/")[0]) and one.state == "complete":
            entries[one.id] = _local_entry(one)
    matched = rank(list(entries.values()), words)
    nearest = () if matched else tuple(nearest_words(entries.values(), words))
    chosen, unknown = select(matched, observations, actions, max_bytes)
    return SearchResult(Catalogue(chosen), unknown, nearest)


def describe(text: str, root: str | os.PathLike[str] | None = None) -> tuple[CatalogueEntry, LocalDataset | None]:
    """Return the catalogue entry of a dataset by id or bare name, without the network, and the local dataset if there is one.

    Raises DatasetNotFoundError with the nearest ids.
    """
    if catalogue.is_path(text):
        hint = f"`{settings.command('inspect', text)}` shows the contents of a folder"
        raise DatasetNotFoundError(f"{text} is a path: datasets are described by their id", hint=hint)
    here = {one.id: one for one in list_local(root)}
    dataset_id, source = catalogue.resolve(text, here)
    local = here.get(dataset_id)
    if source is None and local is not None:
        return _local_entry(local), local
    return catalogue.describe(dataset_id, settings.root(root)), local


def _local_entry(one: LocalDataset) -> CatalogueEntry:
    """The entry of a dataset that no source lists, from its manifest."""
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
