"""Dataset ids: listing and resolving them.

A full id is ``source/name`` (``atari/Pong/5``). A bare name (``Pong/5``) is resolved if exactly one source knows it.
``my/...`` is for datasets that users make. Nothing here uses the network.

A source of another package that cannot be loaded, or raises an unexpected error, is left out with a PluginWarning; requesting
its datasets raises MissingExtraError.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from .. import settings
from ..errors import DatasetNotFoundError, MissingExtraError, PluginWarning, UsageError
from ..storage import plugins
from ..storage.folder import check_id, check_is_text
from .sources.catalogue_entry import CatalogueEntry, RemoteListing
from .sources.source import Source

MINE = plugins.MINE

Answer = TypeVar("Answer")


def source_names() -> tuple[str, ...]:
    """Return the names of all sources, including those that cannot be loaded."""
    return tuple(plugins.registered())


def check_own(dataset_id: str) -> None:
    """Raise UsageError if the id belongs to a source: a user's dataset would be taken for the source's."""
    check_is_text(dataset_id)
    head, _, rest = dataset_id.partition("/")
    if rest and head in source_names():
        message = f"{dataset_id} is the id of a dataset of the source {head}"
        hint = f"call your own {MINE}/{rest}, or anything else that begins with no source's name"
        raise UsageError(message, hint=hint)


def load_source(name: str) -> Source:
    """Return a source by its name.

    Raises DatasetNotFoundError naming the known sources, MissingExtraError if it cannot be loaded.
    """
    source = plugins.load(name)
    if not isinstance(source, Source) or source.name != name:
        message = f"the source {name} is registered as {type(source).__name__}, which is not a source of that name"
        raise MissingExtraError(
            message, hint="its entry point must name a class derived from Source, with the same name"
        )
    return source


def sources(only: str | None = None) -> dict[str, Source]:
    """Return all sources by name, or only the one named; raises as `load_source` for that one."""
    return _of_each(lambda source: source, only)


def is_made(dataset_id: str) -> bool:
    """Return whether a dataset is recorded on this machine instead of fetched."""
    name = dataset_id.partition("/")[0]
    return name in source_names() and load_source(name).makes


def recognise(path: Path, options: Collection[str] = ()) -> str:
    """Return the source whose raw data a file or folder holds, among sources with these options.

    Raises UsageError if there is none, or several.
    """

    def knows(source: Source) -> bool:
        return set(options) <= {option.name for option in source.options} and source.recognises(path)

    def may_know(name: str) -> bool:
        if name not in plugins.BUILT_IN or name == "arrays" or not path.is_file():
            return True
        return path.suffix.lower() in plugins.SINGLE_FILES.get(name, ())

    found = [name for name, known in _of_each(knows, among=may_know).items() if known]
    found = [name for name in found if not load_source(name).reads_any] or found
    if len(found) == 1:
        return found[0]
    message = f"{path} could be from {' or '.join(found)}" if found else f"{path} does not say which source it is from"
    names = [name for name, source in sources().items() if not source.makes]
    raise UsageError(message, hint=f"name it with --source: {', '.join(names)}")


def known_ids(source: str | None = None) -> list[str]:
    """Full ids of all datasets that the sources list."""
    found = _of_each(lambda source: list(source.names()), source)
    return [f"{name}/{dataset}" for name, datasets in found.items() for dataset in datasets]


def remote_listings(source: str | None = None, root: Path | None = None) -> dict[str, RemoteListing]:
    """Return the stored listings of remotes, by source."""
    found = _of_each(lambda source: source.cached_listing(root), source)
    return {name: listing for name, listing in found.items() if listing}


def entries(source: str | None = None, root: Path | None = None) -> dict[str, CatalogueEntry]:
    """Return the catalogue entries of all sources, or of one, by full id.

    Counts and sizes are those of the stored listing of a remote, else those of the source's own catalogue.
    """
    return {
        entry.id: entry
        for found in _of_each(lambda one: list(_entries_of(one, root)), source).values()
        for entry in found
    }


def describe(dataset_id: str, root: Path | None = None) -> CatalogueEntry:
    """Return the catalogue entry of a dataset by its full id, even if its source does not list it."""
    name, _, rest = dataset_id.partition("/")
    if name not in source_names():
        return CatalogueEntry(dataset_id)
    listed = entries(name, root).get(dataset_id)
    if listed is not None and listed.date is not None:
        return listed
    source = load_source(name)
    unlisted = source.describe_unlisted(rest)
    if unlisted is not None:
        return _with_scores(unlisted, source)
    file = source.catalogue_file
    general = _with_scores(file.entry(rest) if file else CatalogueEntry(dataset_id), source)
    general = replace(general, steps=None, figures=(), approximate=False)
    stated = {key: value for key, value in vars(listed).items() if value} if listed else {}
    return replace(general, **stated)


def _entries_of(source: Source, root: Path | None) -> Iterable[CatalogueEntry]:
    known = {entry.id: entry for entry in source.catalogue()}
    for name in source.names():
        known.setdefault(f"{source.name}/{name}", CatalogueEntry(f"{source.name}/{name}"))
    listing = source.cached_listing(root)
    for one in listing.datasets if listing else ():
        dataset_id = f"{source.name}/{one.name}"
        counts: dict[str, Any] = {"steps": one.steps, "episodes": one.episodes, "bytes": one.bytes}
        stated = {name: count for name, count in counts.items() if count is not None}
        entry = known.get(dataset_id, CatalogueEntry(dataset_id))
        known[dataset_id] = replace(entry, **stated, approximate=entry.approximate and "steps" not in stated)
    return [_with_scores(entry, source) for entry in known.values()]


def _with_scores(entry: CatalogueEntry, source: Source) -> CatalogueEntry:
    scores = source.reference_scores({"dataset": entry.name})
    return replace(entry, reference_scores=scores) if scores else entry


def resolve(text: str, local: Iterable[str] = ()) -> tuple[str, Source | None]:
    """Resolve a user's text to a full id and its source.

    ``local`` are ids of datasets on this machine, which are always known; their source is None if no source has the name.
    Raises DatasetNotFoundError with the nearest names if nothing, or more than one dataset, matches.
    """
    local = list(local)
    address = split_address(text)
    text = address[0] if address else text
    if text in local:
        return text, _source_of(text)
    head, _, rest = text.partition("/")
    if head in source_names() and rest:
        source = load_source(head)
        if source.knows(rest):
            return text, source
    else:
        means = _of_each(lambda source: text in source.names() if source.open_ended else source.knows(text))
        mine = [dataset for dataset in local if dataset.partition("/")[2] == text]
        candidates = sorted({f"{name}/{text}" for name, is_meant in means.items() if is_meant} | set(mine))
        if len(candidates) == 1:
            return candidates[0], _source_of(candidates[0])
        if candidates:
            raise DatasetNotFoundError(f"{text!r} could be {' or '.join(candidates)}", hint="write the full id")
    hint = suggestion(text, local)
    if head == MINE and rest:
        check_id(text)
        if "did you mean" not in hint:
            hint = f"`{settings.command('list', '--local')}` shows the datasets that are there"
    raise DatasetNotFoundError(f"unknown dataset {text!r}", hint=hint)


def split_address(text: str) -> tuple[str, str] | None:
    """Return a dataset's address at a provider (``hf://owner/D4RL/door/human-v2``) as (id, mirror); None for an id.

    Raises UsageError for an address that does not name a dataset.
    """
    if "://" not in text:
        return None
    refusal: UsageError | None = None
    for name, source in sources().items():
        try:
            found = source.split_address(text)
        except UsageError as error:
            refusal = refusal or error
            continue
        if found:
            return f"{name}/{found[0]}", found[1]
    if refusal:
        raise refusal
    return None


def is_path(text: str) -> bool:
    """Return whether a text starts like a path, and thus is never an id."""
    return text.startswith(("/", ".", "~"))


def suggestion(text: str, local: Iterable[str] = ()) -> str:
    """Return a hint with the names most similar to an unknown one, those of ``local`` datasets first."""
    if "://" in text or is_path(text):
        return "give the dataset's id, and its location with --mirror"
    if not text:
        return "name a dataset, as `rbdata list` shows them"
    here, known = _by_lower_case(local), _by_lower_case(known_ids())
    wanted = text.lower()
    names = [ids[wanted] for ids in (here, known) if wanted in ids]  # differ only in case
    if not names:
        near = [here[name] for name in difflib.get_close_matches(wanted, here, n=3, cutoff=0.7)]
        names = near + [known[name] for name in difflib.get_close_matches(wanted, known, n=6, cutoff=0.6)]
    if names:
        return f"did you mean {', '.join(list(dict.fromkeys(names))[:3])}?"
    head, _, rest = text.partition("/")
    if rest and head in source_names():
        return f"`{settings.command('list', head)}` shows the datasets of {head}"
    return f"`{settings.command('search', text)}` finds datasets by parts of their names"


def _by_lower_case(ids: Iterable[str]) -> dict[str, str]:
    """Ids by their full and their bare names, in lower case."""
    ids = list(ids)
    return {one.partition("/")[2].lower(): one for one in ids} | {one.lower(): one for one in ids}


def _of_each(
    question: Callable[[Source], Answer], only: str | None = None, among: Callable[[str], bool] = lambda name: True
) -> dict[str, Answer]:
    """The answer of each source ``among`` all, which is asked before it is imported, or only of the one named. If several are
    asked, plug-ins that fail are left out with a warning."""
    if only is not None:
        return {only: question(load_source(only))}
    answers: dict[str, Answer] = {}
    for name in filter(among, source_names()):
        try:
            answers[name] = question(load_source(name))
        except Exception as error:
            if name in plugins.BUILT_IN:
                raise
            message = error.message if isinstance(error, MissingExtraError) else f"the source {name} fails: {error!r}"
            warnings.warn(message, PluginWarning, stacklevel=3)
    return answers


def _source_of(dataset_id: str) -> Source | None:
    """The source of an existing dataset; None if no source has it, or its plug-in can no longer be loaded."""
    name, _, rest = dataset_id.partition("/")
    if name not in source_names():
        return None
    try:
        source = load_source(name)
        return source if source.knows(rest) else None
    except MissingExtraError:
        return None
