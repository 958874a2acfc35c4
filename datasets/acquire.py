"""Download: resolve a request, and make the dataset from the provider's or a mirror's raw data while they are fetched, or from
a copy on a mirror."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
from .ingest.request import extend, find_existing, list_missing
from .local import find, known_here
from .published import open_published, open_raw_objects
from .repair import keep
from .sources.source import Source


def download(request: Request, listener: Listener | None = None) -> Outcome:
    """Get one dataset from its source, or from a mirror.

    Raises DatasetNotFoundError, the fetch errors of `errors`, CorruptSourceError, DiskError,
    DatasetBusyError, DatasetExistsError. Work finished before an error or Ctrl-C is kept for the next run.
    """
    listener = listener or Listener()
    return when_free(lambda: _download(request, listener), request.wait, listener.on_note, listener.on_stage)


def _download(request: Request, listener: Listener) -> Outcome:
    request, source, copy = _resolve(request)
    mirror = request.mirror or (None if request.append else settings.mirror(request.id.partition("/")[0]))
    return _Download(
        request, source, mirror, copy, DatasetPlace(settings.root(request.root), request.id), listener
    ).run()


@dataclass
class _Download:
    """One download: a request, what its id means, and the converted copy, once one is found."""

    request: Request
    source: Source | None
    mirror: str | None
    copy: Copy | None
    place: DatasetPlace
    listener: Listener

    def run(self) -> Outcome:
        request, source, place = self.request, self.source, self.place
        existing = find_existing(place, request)
        if existing is not None:
            self.check(existing)
        if source is None and self.mirror is None:
            existing = _made_here(place, request)
        if existing is not None and not (request.dry_run and check_sizes(place.path, existing)):
            return keep(place, request, existing, request.mirror, self.listener)
        if not request.dry_run:
            place.lock().check_free()  # before a provider is asked for it
        self.request = extend(place, request, [option.name for option in source.options] if source else ())
        if self.mirror:
            self.on_place(open_mirror(self.mirror, options=request.fetch).url)
            if not request.keep_raw:  # which asks for raw objects
                self.copy = self.copy or find_converted(self.mirror, place.id, request.fetch)
        differs = _differences(self.copy, source, self.request) if self.copy else []
        if self.copy and not differs:
            return self.take_copy(self.copy)
        if source is None:
            message = (
                f"unknown dataset {place.id!r}, and {open_location(self.mirror or '').url} holds none of that name"
            )
            raise DatasetNotFoundError(message, hint=catalogue.suggestion(place.id))
        if differs:
            self.listener.on_note(f"{self.mirror} holds it with {', '.join(differs)}; it is made here instead")
        else:
            source.check_new(place.id.partition("/")[2], self.request.options, request.mirror)
        try:
            reader = self.open(source)
        except ObjectNotFoundError as error:
            if differs:
                error.hint = f"{self.mirror} holds it with {', '.join(differs)}: request that, or use another mirror"
            elif self.request.options.parts != request.options.parts:
                error.hint = f"the shards that {place.id} already has are kept, so they must exist too; or use --force"
            raise
        return self.convert(source, reader)

    def check(self, existing: Manifest) -> None:
        """Raise DatasetExistsError if the dataset that is there is not the one that is asked for."""
        if self.request.mirror:
            named = self.source is not None and not self.source.makes
            try:
                there = self.copy or find_converted(self.request.mirror, existing.id, self.request.fetch)
            except TransientFetchError:
                if not named:
                    raise
                there = None  # the name says what it is, also where no network is
            # Only its contents tell what an id means that no provider gave.
            if not named or (there and same_request(existing, there.manifest)):
                _check_same(existing, self.request.mirror, there)
        if self.source is not None:
            self.source.check_existing(existing, self.request.options)

    def on_place(self, where: str) -> None:
        if self.mirror or not (self.source and self.source.makes):  # recordings are made here, not looked for
            self.listener.on_stage(f"looking for {self.place.id} at {where}")

    def take_copy(self, copy: Copy) -> Outcome:
        """Copy a converted dataset."""
        request, place, listener = self.request, self.place, self.listener
        plan = partial(estimate_copy, copy, place, force=request.force)
        write = partial(copy_dataset, copy, place, listener, force=request.force, command=request.command)
        shards, url = copy.manifest.source.get("shards", ()), copy.location.url
        return write_dataset(place, request, listener, shards, url, plan, write, self.check)

    def open(self, source: Source) -> Reader:
        """Open the raw objects on the mirror, or at the provider's places."""
        request, name = self.request, self.place.id.partition("/")[2]
        if self.mirror:
            return open_raw_objects(source, name, self.mirror, request.options, request.fetch)
        return open_published(source, name, request.options, request.fetch, self.on_place)

    def convert(self, source: Source, reader: Reader) -> Outcome:
        """Convert raw objects while they are fetched; with ``keep_raw``, from a folder under the root where they go first."""
        request, place = self.request, self.place
        url = reader.location.url
        if not request.keep_raw or request.dry_run:
            return run(reader, place, request, self.listener, url, self.check)
        make_writable(place.root)
        self.listener.on_stage("fetching the raw files")
        folder = place.root / RAW_FOLDER / source.name
        fetch_all(folder, reader.raw_objects(), self.listener.on_fetched)
        options = replace(request.options, extra={**request.options.extra, **reader.resolved_options})
        kept = source.open(place.id.partition("/")[2], open_location(folder, options=request.fetch), options)
        kept.why, kept.unverified_before = reader.why, reader.unverified()
        try:
            return run(kept, place, request, self.listener, url, self.check)
        except CorruptSourceError as error:
            error.hint = f"delete the file under {folder}: the next run fetches it again"
            raise


# -- what is asked for -----------------------------------------------------------------------------------------------------


def _resolve(request: Request) -> tuple[Request, Source | None, Copy | None]:
    """The request with root and full id, its source (None: only mirrors know it), and the dataset of the Hub that it names.

    Raises UsageError for options that the source does not have, before any location is asked.
    """
    check_is_text(request.id)
    root = settings.root(request.root)
    copy = _open_hub_dataset(request) if is_hub_dataset(request.id) else None
    address = (copy.manifest.id, copy.url) if copy else catalogue.split_address(request.id)
    if address:
        request = replace(request, id=address[0], mirror=request.mirror or address[1])
    dataset_id, source = _resolve_id(request.id, request.mirror, root)
    if source is not None:
        source.check(request.options, "download")
        dataset_id = f"{source.name}/{source.full_name(dataset_id.partition('/')[2], request.options)}"
    return replace(request, id=dataset_id, root=root), source, copy


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


# -- what is there already -------------------------------------------------------------------------------------------------


def _check_same(existing: Manifest, mirror: str, there: Copy | None) -> None:
    """Raise DatasetExistsError if the dataset of a mirror is not the existing one of that id."""
    if there is None:
        message = f"{existing.id} already exists, and {open_location(mirror).url} holds none of that name"
        raise DatasetExistsError(message, hint="use another mirror, or none to keep the dataset that exists")
    if not same_content(existing, there.manifest):
        message = f"{existing.id} already exists, and is not the dataset of {there.url}"
        raise DatasetExistsError(message, hint="replace it with --force, or use another --root")


def _made_here(place: DatasetPlace, request: Request) -> Manifest:
    """The manifest of a dataset that users made here. Raises UsageError for options that need a source, and as `local.find` if
    it is incomplete."""
    given = [name for name, value in request.options.extra.items() if value is not None]
    if request.force or given or request.options.parts is not None:
        what = "--force" if request.force else f"option {given[0]}" if given else "choice of shards"
        message = f"{place.id} comes from no source and cannot be downloaded: it takes no {what}"
        raise UsageError(message, hint="make it with the command that made it, or name a mirror that holds a copy")
    return read_manifest(find(place.id, place.root))


# -- get it ----------------------------------------------------------------------------------------------------------------


def _differences(copy: Copy, source: Source | None, request: Request) -> list[str]:
    """In which options the dataset of a mirror is another one than asked for."""
    recorded = copy.manifest.source.get("options", {})
    missing = list_missing(copy.manifest, request.options)
    differs = [f"{name} {recorded.get(name, 'not stated')}" for name in missing]
    if not differs and source is not None and any(value is not None for value in request.options.extra.values()):
        try:
            source.check_existing(copy.manifest, request.options)
        except DatasetExistsError as error:
            differs.append(error.message)
    return differs
