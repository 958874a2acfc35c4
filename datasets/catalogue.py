"""Dataset ids: which there are, and which one is meant.

A full id is ``source/name`` (``atari/Pong/5``). A bare name (``Pong/5``) is resolved when exactly one source knows it.
``my/...`` is for datasets that users make. Nothing here asks the network.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from ..errors import UnknownDatasetError
from ..storage.folder import check_id
from .ingest.listing import RemoteDataset
from .ingest.protocol import Source

#: Source name -> module below this package and class in it. Loaded when asked for.
_SOURCES = {
    "atari": ("sources.atari.source", "AtariSource"),
    "d4rl": ("sources.d4rl.source", "D4rlSource"),
    "minari": ("sources.minari.source", "MinariSource"),
    "openml": ("sources.openml.source", "OpenmlSource"),
    "gymnasium": ("sources.gymnasium.source", "GymnasiumSource"),
}

#: The namespace of datasets that come from no source.
MINE = "my"


def source_names() -> tuple[str, ...]:
    """The sources there are."""
    return tuple(_SOURCES)


def load_source(name: str) -> Source:
    """A source by its name; raises UnknownDatasetError naming those there are."""
    if name not in _SOURCES:
        message = f"there is no source {name!r}"
        raise UnknownDatasetError(message, hint=f"sources: {', '.join(_SOURCES)}")
    module, attribute = _SOURCES[name]
    return getattr(import_module(f".{module}", __package__), attribute)()


def known_ids(source: str | None = None) -> list[str]:
    """Full ids of everything the sources list by themselves."""
    names = (source,) if source else source_names()
    return [f"{name}/{dataset}" for name in names for dataset in load_source(name).names()]


def remote_ids(source: str | None = None, root: Path | None = None) -> dict[str, RemoteDataset]:
    """Full ids of what remotes held when they were last asked, with what they said of each."""
    listings = {name: load_source(name).listing(root) for name in ((source,) if source else source_names())}
    return {f"{name}/{one.name}": one for name, found in listings.items() if found for one in found.datasets}


def resolve(text: str, local: Iterable[str] = ()) -> tuple[str, Source | None]:
    """The full id and the source that is meant by what a user typed.

    ``local`` are ids of datasets on this machine, which are known whatever the sources say; their source is None where
    no source has that name. Raises UnknownDatasetError with the nearest names when nothing, or more than one, fits.
    """
    local = list(local)
    address = split_address(text)
    text = address[0] if address else text
    if text in local:
        return text, _source_of(text)
    head, _, rest = text.partition("/")
    if head in _SOURCES and rest:
        source = load_source(head)
        if source.knows(rest):
            return text, source
    else:
        matches = [name for name in _SOURCES if _means(load_source(name), text)]
        mine = [dataset for dataset in local if dataset.partition("/")[2] == text]
        candidates = sorted({f"{name}/{text}" for name in matches} | set(mine))
        if len(candidates) == 1:
            return candidates[0], _source_of(candidates[0])
        if candidates:
            raise UnknownDatasetError(f"{text!r} could be {' or '.join(candidates)}", hint="write the full id")
    if head == MINE and rest:
        check_id(text)
    raise UnknownDatasetError(f"no dataset is called {text!r}", hint=suggestion(text, local))


def split_address(text: str) -> tuple[str, str] | None:
    """A dataset's address at a provider as (id, mirror): ``hf://owner/D4RL/door/human-v2``; None for what is an id.

    Raises UsageError for an address of no dataset.
    """
    if "://" not in text:
        return None
    from .sources.minari.names import split_url  # the one provider with addresses of its own

    found = split_url(text)
    return (f"minari/{found[1]}", found[0]) if found else None


def suggestion(text: str, local: Iterable[str] = ()) -> str:
    """The nearest names to one that is not known."""
    ids = [*local, *known_ids()]
    bare = {dataset.partition("/")[2].lower(): dataset for dataset in ids} | {
        dataset.lower(): dataset for dataset in ids
    }
    near = difflib.get_close_matches(text.lower(), list(bare), n=6, cutoff=0.6)
    names = list(dict.fromkeys(bare[name] for name in near))[:3]
    if names:
        return f"did you mean {', '.join(names)}? `rbdata list` shows all"
    return "`rbdata list` shows all"


def _means(source: Source, name: str) -> bool:
    """Whether a bare name is one of a source's. Where any name could be (``open_ended``), only those it lists are."""
    return name in source.names() if source.open_ended else source.knows(name)


def _source_of(dataset_id: str) -> Source | None:
    name, _, rest = dataset_id.partition("/")
    if name not in _SOURCES:
        return None
    source = load_source(name)
    return source if source.knows(rest) else None
