"""Finds datasets by words and kinds. Pure functions over the entries of a catalogue.

A word matches a dataset if it is, begins, or is in one of the words of its id, environment, tags or kinds; all words must
match. The best matches come first: whole words before beginnings, and what is in the id before what is in a tag. Of equals,
first those that can be downloaded today, then ids with the fewest other words, then newer versions.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from ..errors import UsageError
from .sources.catalogue_entry import ACTIONS, OBSERVATIONS, CatalogueEntry

#: What users call kinds and contents; the words on the right are in entries.
SYNONYMS = {
    **dict.fromkeys(("pixel", "pixels", "images", "frame", "frames", "visual"), "image"),
    **dict.fromkeys(("state", "states", "vectors", "features"), "vector"),
    **dict.fromkeys(("demo", "demos", "demonstration", "demonstrations"), "human"),
    **dict.fromkeys(("games",), "game"),
}

_SPLIT = re.compile(r"[^a-z0-9]+")
_CAPITALISED = re.compile(r"[A-Z][a-z0-9]+")
_NUMBER = re.compile(r"v?\d+")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def select(
    entries: Iterable[CatalogueEntry],
    observations: str | None = None,
    actions: str | None = None,
    max_bytes: int | None = None,
) -> tuple[list[CatalogueEntry], int]:
    """Those of the kinds wanted that are not too large, and how many were left out because their size is not known.

    Raises UsageError for kinds that there are not.
    """
    for given, known, what in ((observations, OBSERVATIONS, "observations"), (actions, ACTIONS, "actions")):
        if given is not None and given not in known:
            raise UsageError(f"there is no kind of {what} {given!r}", hint=f"kinds: {', '.join(known)}")
    wanted = [
        entry
        for entry in entries
        if (observations is None or entry.observations == observations)
        and (actions is None or entry.actions == actions)
    ]
    if max_bytes is None:
        return wanted, 0
    small = [entry for entry in wanted if entry.bytes is not None and entry.bytes <= max_bytes]
    return small, sum(entry.bytes is None for entry in wanted)


def rank(entries: Sequence[CatalogueEntry], words: Iterable[str]) -> list[CatalogueEntry]:
    """Those that match all words, the best first; all of them, in their order, where there are no words."""
    wanted = [word for text in words for word in _split(text)]
    if not wanted:
        return list(entries)
    found = []
    for order, entry in enumerate(entries):
        own, other = _words(entry)
        scores = [_score(word, own, other) for word in wanted]
        if all(scores):
            beside = sum(word not in wanted and not _NUMBER.fullmatch(word) for word in _split(entry.id))
            found.append((-sum(scores), _access(entry), beside, -_version(entry.id), order, entry))
    return [entry for *_, entry in sorted(found, key=lambda match: match[:-1])]


def nearest_words(entries: Iterable[CatalogueEntry], words: Iterable[str]) -> list[str]:
    """For each word that no dataset has, the word most like it that one has."""
    known = {word for entry in entries for words_of in _words(entry) for word in words_of}
    unknown = [word for text in words for word in _split(text) if not any(word in other for other in known)]
    near = (difflib.get_close_matches(word, known, n=1, cutoff=0.6) for word in unknown)
    return [match[0] for match in near if match]


def parse_size(text: str | int) -> int:
    """``2GB``, ``1.5 gb``, ``500MiB`` or a number of bytes as bytes. Raises UsageError."""
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None:
        raise UsageError(f"{text!r} is not a size", hint="for example: 500MB or 2GB")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2]])


def _words(entry: CatalogueEntry) -> tuple[set[str], set[str]]:
    """The words of the id, whole and in parts (``CartPole-v1``: cartpole, cart, pole, v1), and those of all else."""
    own = {*_split(entry.id), *(part.lower() for part in _CAPITALISED.findall(entry.id))}
    texts = (entry.environment, *entry.tags, entry.observations, entry.actions)
    return own, {word for text in texts if text for word in _split(text)}


def _split(text: str) -> list[str]:
    return [word for word in _SPLIT.split(text.lower()) if word]


def _score(word: str, own: set[str], other: set[str]) -> int:
    """How well one word matches; 0 where it does not."""
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
    """How likely a download works today: the best place it is at, last where it is at none."""
    order = ("open", "unreliable", "closed")
    return min((order.index(place.access) for place in entry.places), default=len(order))


def _version(dataset_id: str) -> int:
    found = re.search(r"-v(\d+)$", dataset_id)
    return int(found[1]) if found else 0
