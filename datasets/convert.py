"""Convert: raw data in a folder or file become a dataset, as a download's do."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from .. import settings
from ..errors import DatasetExistsError, ObjectNotFoundError
from ..storage.folder import DatasetPlace, make_writable
from ..storage.lock import when_free
from ..storage.manifest import Manifest, check_sizes
from . import catalogue
from .fetch import open_raw
from .ingest.pipeline import run
from .ingest.reader import Reader
from .ingest.request import Listener, Outcome, Request, extend, find_existing
from .repair import keep
from .sources.source import Source


def convert(path: Path, source_name: str | None, request: Request, listener: Listener | None = None) -> Outcome:
    """Convert raw data in a folder or file, which is not changed, to the dataset ``request.id``.

    Without a source name, the source is recognised from the data. Raises as `download`.
    """
    listener = listener or Listener()
    action = partial(_convert, path, source_name, request, listener)
    return when_free(action, request.wait, listener.on_note, listener.on_stage)


def _convert(path: Path, source_name: str | None, request: Request, listener: Listener) -> Outcome:
    request = replace(request, root=settings.root(request.root))
    if not path.exists():
        raise ObjectNotFoundError(f"no such file or folder: {path}", hint="give a raw file, or the folder of raw files")
    source = catalogue.load_source(source_name or catalogue.recognise(path, request.options.extra))
    source.check(request.options, "convert")
    assert request.root is not None
    if source.reads_any:
        catalogue.check_own(request.id)
    place = DatasetPlace(request.root, request.id)
    existing = find_existing(place, request)
    if existing is not None and not (request.dry_run and check_sizes(place.path, existing)):
        _check_origin(existing, source, path, listener)
        if source.reads_any:  # how it takes its files follows from them
            _check_made_from(existing, _open_raw(path, source, place, request))
        return keep(place, request, existing, str(path.resolve()), listener)
    if not request.dry_run:
        place.lock().check_free()
    request = extend(place, request, [option.name for option in source.options])
    if not request.dry_run:
        make_writable(place.root)
    reader = _open_raw(path, source, place, request)

    def check(existing: Manifest) -> None:
        _check_origin(existing, source, path, listener)
        _check_made_from(existing, reader)

    return run(reader, place, request, listener, str(path.resolve()), check)


def _open_raw(path: Path, source: Source, place: DatasetPlace, request: Request) -> Reader:
    scratch = place.root if place.root.is_dir() else None
    return source.open_folder(open_raw(path, request.fetch), replace(request.options, scratch=scratch))


def _check_made_from(manifest: Manifest, reader: Reader) -> None:
    """Raise DatasetExistsError if an existing dataset was made from other files, or in another way."""
    differs = reader.differences(manifest)
    if differs:
        message = f"{manifest.id} already exists, made with {' and '.join(differs)}"
        hint = "choose another --name, add episodes with from_episodes(..., append=True), or replace it with --force"
        raise DatasetExistsError(message, hint=hint)


def _check_origin(manifest: Manifest, source: Source, path: Path, listener: Listener) -> None:
    """Note if an existing dataset was made from another location. Raises DatasetExistsError if it is another source's."""
    made_by, place = manifest.source.get("name"), manifest.provenance.get("location")
    if made_by != source.name:
        message = f"{manifest.id} already exists, made from {made_by} data"
        raise DatasetExistsError(message, hint="choose another --name, or replace it with --force")
    if place != str(path.resolve()):
        listener.on_note(f"{manifest.id} already exists, made from {place}; --force replaces it")
