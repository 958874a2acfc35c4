"""Download: resolve a request, and make the dataset from the provider's or a mirror's raw data while they are fetched, or from
a copy on a mirror."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from .. import settings
from ..errors import (
    CorruptSourceError,
    DatasetExistsError,
    DatasetNotFoundError,
    ObjectNotFoundError,
    TransientFetchError,
    UsageError,
)
from ..storage.folder import DatasetPlace, check_id, check_is_text, make_writable
from ..storage.lock import when_free
from ..storage.manifest import FILENAME, Manifest, check_sizes, read_manifest
from . import catalogue
from .convert import keep_or_repair, option_names
from .copies import Copy, copy_dataset, estimate_copy, find_converted, find_copy, same_content, same_request
from .fetch import open_location, open_mirror
from .fetch.location import is_hub_dataset
from .ingest.pipeline import run, write_dataset
from .ingest.raw_files import FOLDER as RAW_FOLDER
from .ingest.raw_files import fetch_all
from .ingest.reader import Reader
from .ingest.request import Estimate as Estimate
from .ingest.request import Listener as Listener
from .ingest.request import Outcome as Outcome
from .ingest.request import Request as Request
from .ingest.request import announce_replacement, extend, find_existing, list_missing
from .local import find, known_here
from .published import open_published, open_raw_objects
from .sources.source import Source


def download(request: Request, listener: Listener | None = None) -> Outcome:
    """Get one dataset from its source.

    Raises DatasetNotFoundError, the fetch errors of `errors`, CorruptSourceError, DiskError,
    DatasetBusyError, DatasetExistsError. Work finished before an error or Ctrl-C is kept for the next run.
    """
    listener = listener or Listener()
    return when_free(lambda: _download(request, listener), request.wait, listener.on_note, listener.on_stage)


def _download(request: Request, listener: Listener) -> Outcome:
    request, source, hub = _resolve(request)
    dataset_id, place = request.id, DatasetPlace(settings.root(request.root), request.id)
    mirror = request.mirror or (None if request.append else settings.mirror(dataset_id.partition("/")[0]))
    existing = find_existing(place, request)
    if existing is not None:
        _check_requested(existing, request, source, hub)
    if source is None and mirror is None:
        existing = _made_here(place, request)
    if existing is not None and not (request.dry_run and check_sizes(place.path, existing)):
        return keep_or_repair(place, request, existing, request.mirror, listener)
    if not request.dry_run:
        place.lock().check_free()  # before a provider is asked for it
    asked, request = request.options.parts, extend(place, request, option_names(source))

    def on_place(where: str) -> None:
        if mirror or not (source and source.makes):  # recordings are made here, not looked for
            listener.on_stage(f"looking for {dataset_id} at {where}")

    check = partial(_check_requested, request=request, source=source, hub=hub)
    if mirror:
        on_place(open_mirror(mirror, options=request.fetch).url)
    copied = _copy(mirror, place, request, source, listener, check) if mirror else None
    if isinstance(copied, Outcome):
        return copied
    if source is None:
        message = f"unknown dataset {dataset_id!r}, and {open_location(mirror or '').url} holds none of that name"
        raise DatasetNotFoundError(message, hint=catalogue.suggestion(dataset_id))
    if copied is None:
        source.check_new(dataset_id.partition("/")[2], request.options, request.mirror)
    try:
        reader = _open_reader(source, mirror, request, on_place)
    except ObjectNotFoundError as error:
        if copied is not None:
            message = f"{mirror} holds {dataset_id} with {', '.join(copied)}, and no raw files to convert"
            raise ObjectNotFoundError(message, hint="request it with these options, or use another mirror") from error
        if request.options.parts != asked:
            error.hint = f"the shards that {dataset_id} already has are kept, so they must exist too; or use --force"
        raise
    if request.keep_raw and not request.dry_run:
        return _run_keeping_raw(source, reader, place, request, listener, check)
    return run(reader, place, request, listener, reader.location.url, check)


def _resolve(request: Request) -> tuple[Request, Source | None, Copy | None]:
    """The request with root and full id, its source (None: only mirrors know it), and the dataset of the Hub that it names.

    Raises UsageError for options that the source does not have, before any location is asked.
    """
    check_is_text(request.id)
    root = settings.root(request.root)
    hub = _open_hub_dataset(request) if is_hub_dataset(request.id) else None
    address = (hub.manifest.id, hub.url) if hub else catalogue.split_address(request.id)
    if address:
        request = replace(request, id=address[0], mirror=request.mirror or address[1])
    dataset_id, source = _resolve_id(request.id, request.mirror, root)
    if source is not None:
        source.check(request.options, "download")
        dataset_id = f"{source.name}/{source.full_name(dataset_id.partition('/')[2], request.options)}"
    return replace(request, id=dataset_id, root=root), source, hub


def _resolve_id(text: str, mirror: str | None, root: Path) -> tuple[str, Source | None]:
    """`catalogue.resolve`, extended to ids of no source, which a dataset on this machine or on a mirror may have."""
    try:
        return catalogue.resolve(text)
    except DatasetNotFoundError:
        known = known_here(root)
    try:
        return catalogue.resolve(text, known)
    except DatasetNotFoundError:
        namespace = text.partition("/")[0]
        if "/" not in text or namespace in catalogue.source_names() or not (mirror or settings.mirror(namespace)):
            raise
        check_id(text)
        return text, None


def _open_reader(source: Source, mirror: str | None, request: Request, on_place: Callable[[str], None]) -> Reader:
    """The conversion of the raw objects at a mirror, or where the provider has published them."""
    name, options = request.id.partition("/")[2], request.options
    if mirror:
        return open_raw_objects(source, name, mirror, options, request.fetch)
    return open_published(source, name, options, request.fetch, on_place)


def _run_keeping_raw(
    source: Source,
    reader: Reader,
    place: DatasetPlace,
    request: Request,
    listener: Listener,
    check: Callable[[Manifest], None],
) -> Outcome:
    """Fetch the raw objects to a folder under the root, and convert them from there."""
    make_writable(place.root)
    listener.on_stage("fetching the raw files")
    raw_folder = place.root / RAW_FOLDER / source.name
    fetch_all(raw_folder, reader.raw_objects(), listener.on_fetched)
    options = replace(request.options, extra={**request.options.extra, **reader.resolved_options})
    local = source.open(request.id.partition("/")[2], open_location(raw_folder, options=request.fetch), options)
    local.why, local.unverified_before = reader.why, reader.unverified()
    try:
        return run(local, place, request, listener, reader.location.url, check)
    except CorruptSourceError as error:
        error.hint = f"delete the file under {raw_folder}: the next run fetches it again"
        raise


def _open_hub_dataset(request: Request) -> Copy:
    """The converted dataset of a repository of the Hub, at its current commit."""
    if request.mirror:
        raise UsageError(f"{request.id} is itself a location: it takes no --mirror", hint="give the id, or no --mirror")
    if request.keep_raw:
        raise UsageError(f"{request.id} has no raw files to keep", hint="download it without --keep-raw")
    found = find_copy(open_location(request.id, options=request.fetch))
    if found is None:
        open_location(request.id, options=request.fetch).pinned()  # raises for a repository that cannot be read
        message = f"{request.id} holds no converted dataset: there is no {FILENAME} in it"
        raise DatasetNotFoundError(message, hint="`rbdata mirror push` makes such a repository")
    return found


def _check_requested(existing: Manifest, request: Request, source: Source | None, hub: Copy | None) -> None:
    """Raise DatasetExistsError if the dataset that is there is not what a download asks for."""
    if request.mirror:
        try:
            there = hub or find_converted(request.mirror, existing.id, request.fetch)
        except TransientFetchError:
            if source is None or source.makes:
                raise
            there = None  # the provider's name says what it is, also where no network is
        # Only its contents tell what an id means that no provider gave.
        if source is None or source.makes or (there and same_request(existing, there.manifest)):
            _check_same(existing, request.mirror, there)
    if source is not None:
        source.check_existing(existing, request.options)


def _check_same(existing: Manifest, mirror: str, there: Copy | None) -> None:
    """Raise DatasetExistsError if the dataset of a mirror is not the existing one of that id."""
    if there is None:
        message = f"{existing.id} already exists, and {open_location(mirror).url} holds none of that name"
        raise DatasetExistsError(message, hint="use another mirror, or none to keep the dataset that exists")
    if not same_content(existing, there.manifest):
        message = f"{existing.id} already exists, and is not the dataset of {there.url}"
        raise DatasetExistsError(message, hint="replace it with --force, or use another --root")


def _copy(
    url: str,
    place: DatasetPlace,
    request: Request,
    source: Source | None,
    listener: Listener,
    check: Callable[[Manifest], object],
) -> Outcome | list[str] | None:
    """Copy a converted dataset from a mirror. Returns None if there is none; if it differs from the request, its values.
    For ``check`` see `write_dataset`."""
    if request.keep_raw:
        return None  # raw objects are requested
    found = find_converted(url, place.id, request.fetch)
    if found is None:
        return None
    differs = list_missing(found.manifest, request.options)
    if differs:
        recorded = found.manifest.source.get("options", {})
        return [f"{name} {recorded.get(name, 'not stated')}" for name in differs]
    location, manifest = found.location, found.manifest
    if source is not None and any(value is not None for value in request.options.extra.values()):
        try:
            source.check_existing(manifest, request.options)
        except DatasetExistsError as error:
            listener.on_note(f"{location.url}: {error.message}; it is made here instead")
            return [error.message]
    shards = manifest.source.get("shards", ())
    if request.dry_run:
        began = time.monotonic()
        announce_replacement(place, request, shards, location.url, listener)
        estimate = estimate_copy(found, place, force=request.force)
        listener.on_estimate(estimate)
        return Outcome(place.id, place.path, "planned", None, time.monotonic() - began, estimate)

    def write() -> tuple[Estimate, Manifest]:
        announce_replacement(place, request, shards, location.url, listener)
        return copy_dataset(found, place, listener, force=request.force, command=request.command)

    return write_dataset(place, request, write, check)


def _made_here(place: DatasetPlace, request: Request) -> Manifest:
    """The manifest of a dataset that users made here. Raises UsageError for options that need a source, and as `local.find` if
    it is incomplete."""
    given = [name for name, value in request.options.extra.items() if value is not None]
    if request.force or given or request.options.parts is not None:
        what = "--force" if request.force else f"option {given[0]}" if given else "choice of shards"
        message = f"{place.id} comes from no source and cannot be downloaded: it takes no {what}"
        raise UsageError(message, hint="make it with the command that made it, or name a mirror that holds a copy")
    return read_manifest(find(place.id, place.root))
