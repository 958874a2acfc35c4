"""Copies a converted dataset from a mirror, and opens the raw files of a mirror.

The manifest is read first. Its files are fetched into the working folder (an interrupted copy continues) and compared
with the checksums of the manifest; then the folder becomes the dataset. `contents` describes the layout of a mirror.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ... import settings
from ...errors import (
    ChecksumError,
    DamagedDatasetError,
    FetchError,
    ForbiddenError,
    NotADatasetError,
    ObjectChangedError,
    ObjectNotFoundError,
    TransientFetchError,
    UnknownDatasetError,
)
from ...storage.folder import JOURNAL, DatasetPlace, check_id, free_bytes, remove_tree
from ...storage.integrity import find_damage
from ...storage.manifest import FILENAME, LARGEST_MANIFEST, Manifest, parse_manifest, write_manifest
from ...storage.threads import map_in_threads
from ...storage.writer import DatasetWriter, fingerprint, finished_parts
from .. import catalogue
from ..fetch import FetchOptions, Location, RemoteObject, open_location, read_all
from ..fetch.location import is_hub_dataset, is_plain_name, join_path
from ..fetch.reading import bytes_there
from ..fetch.retries import failure_at
from ..fetch.upload import find_object
from ..ingest.job import ConvertOptions, Job, RawObject
from ..ingest.raw_files import FOLDER as RAW_FOLDER
from ..ingest.raw_files import fetch_all
from ..ingest.request import Estimate, Listener
from ..sources.source import Source
from ..workers.task import TaskProgress

_DAMAGED_MIRROR = "the mirror's copy is damaged: push it again, or use another mirror"


def resolve(
    text: str, mirror: str | None, fetch: FetchOptions | None = None, local: Callable[[], Iterable[str]] = tuple
) -> tuple[str, Source | None]:
    """`catalogue.resolve`, extended to names that only a mirror knows: bare names that a source does not list (Minari's), and
    ids without a source. ``local`` returns the ids on this machine; it is called for names that no source knows."""
    try:
        return catalogue.resolve(text)
    except UnknownDatasetError:
        here = list(local())
    try:
        return catalogue.resolve(text, here)
    except UnknownDatasetError:
        found = _find_bare(text, mirror, fetch) if mirror else None
        if found:
            return found
        namespace = text.partition("/")[0]
        if "/" not in text or namespace in catalogue.source_names() or not (mirror or settings.mirror(namespace)):
            raise
        check_id(text)
        return text, None


def _find_bare(text: str, mirror: str, fetch: FetchOptions | None) -> tuple[str, Source] | None:
    """The id and source of a bare name that a mirror holds for a source with open-ended names."""
    if text.partition("/")[0] in catalogue.source_names():
        return None
    for source in catalogue.sources().values():
        if not source.open_ended or source.makes or not source.knows(text):
            continue
        location, dataset_id = open_location(mirror, options=fetch), f"{source.name}/{text}"
        try:
            if fetch_manifest(location, dataset_id) is None:
                open_raw_objects(source, text, mirror, ConvertOptions(), location.options)
        except (ObjectNotFoundError, ForbiddenError):
            continue
        return dataset_id, source
    return None


def open_raw_objects(source: Source, name: str, url: str, options: ConvertOptions, fetch: FetchOptions) -> Job:
    """Open a dataset's raw objects at a location: in the provider's layout, or in that of ``push --raw``."""
    try:
        return source.open(name, open_location(url, options=fetch), options)
    except ObjectNotFoundError as error:
        if url in source.places(name, options):
            raise
        pushed = open_location(join_path(url.rstrip("/"), RAW_FOLDER, source.name), options=fetch)
        try:
            return source.open(name, pushed, options)
        except ObjectNotFoundError:
            raise error from None


def open_published(
    source: Source, name: str, options: ConvertOptions, fetch: FetchOptions, on_place: Callable[[str], None]
) -> Job:
    """Open a dataset's raw objects at the first of the source's own places that has them.

    ``job.why`` gives the failures at the places before it. A place whose copy is faulty raises its error: the next place is
    not tried. Raises the error of the only place, or one with the failures at all places.
    """
    failures: dict[str, FetchError] = {}
    for url in source.places(name, options):
        location = open_location(url, options=fetch)
        on_place(location.url)
        try:
            job = open_raw_objects(source, name, url, options, fetch)
        except FetchError as error:
            partly_there = isinstance(error, ObjectNotFoundError) and error.partly_there
            if partly_there or isinstance(error, (ChecksumError, ObjectChangedError)):
                raise
            failures[location.url] = error
            continue
        if failures:
            options_used = [f"{key} {value}" for key, value in job.resolved_options.items()]
            job.why = ", ".join([*options_used, f"because {_list_failures(failures)}"])
        return job
    raise _unavailable(source, name, failures) from next(iter(failures.values())).__cause__


def _unavailable(source: Source, name: str, failures: Mapping[str, FetchError]) -> FetchError:
    """The error if no place has a dataset; of several classes, the one that another attempt is most likely to mend."""
    errors, hint = list(failures.values()), source.where_else(name)
    if len(errors) == 1 and hint is None:
        return errors[0]
    kinds = (TransientFetchError, ForbiddenError, ObjectNotFoundError)
    kind = next((one for one in kinds if any(isinstance(error, one) for error in errors)), FetchError)
    if all(isinstance(error, TransientFetchError) and error.unresolved for error in errors):
        hint = f"check the network of this machine; or {hint}"
    return kind(f"{source.name}/{name} is not available: {_list_failures(failures)}", hint=hint)


def _list_failures(failures: Mapping[str, FetchError]) -> str:
    return "; ".join(f"{place}: {failure_at(error, place)}" for place, error in failures.items())


@dataclass(frozen=True)
class Copy:
    """A converted dataset in a folder of a location ('' for the location itself)."""

    location: Location
    folder: str
    manifest: Manifest

    @property
    def url(self) -> str:
        return f"{self.location.url}/{self.folder}" if self.folder else self.location.url

    def find(self, name: str) -> RemoteObject | None:
        return find_object(self.location, join_path(self.folder, name))

    def stat(self, name: str) -> RemoteObject:
        return self.location.stat(join_path(self.folder, name))


def open_copy(url: str, fetch: FetchOptions) -> Copy | None:
    """The converted dataset whose folder a URL names, None if there is none. A revision of the Hub is pinned."""
    location = open_location(url, options=fetch)
    manifest = fetch_manifest(location, "")
    return None if manifest is None else Copy(location.pinned(), "", manifest)


def find_converted(url: str, dataset_id: str, fetch: FetchOptions) -> Copy | None:
    """A converted dataset in a mirror, or the one that is a repository of the Hub; None if there is none of that id.

    Raises DamagedDatasetError.
    """
    location = open_location(url, options=fetch)
    manifest = fetch_manifest(location, dataset_id)
    if manifest is None:
        copy = open_copy(url, fetch) if is_hub_dataset(url) else None
        return copy if copy is not None and copy.manifest.id == dataset_id else None
    if manifest.id != dataset_id:
        message = f"{location.url}/{dataset_id} holds the manifest of {manifest.id}"
        raise DamagedDatasetError(message, hint="use `rbdata mirror push` instead of copying folders")
    return Copy(location.pinned(), dataset_id, manifest)


def same_content(one: Manifest, other: Manifest) -> bool:
    """Whether two datasets are equal in all fields that two conversions of the same data have in common."""

    def content(manifest: Manifest) -> dict[str, Any]:
        own = dict.fromkeys(("provenance", "checksum", "files", "blocks"))
        return {**manifest.to_json(), **own, "content": manifest.content}

    return content(one) == content(other)


def _copy_mark(manifest: Manifest) -> str:
    """The fingerprint of an unfinished copy of this dataset."""
    return fingerprint({"copy": manifest.to_json()["checksum"], "id": manifest.id})


def estimate_copy(copy: Copy, place: DatasetPlace, *, force: bool) -> Estimate:
    """The estimate of what `copy_converted` would fetch. Raises DamagedDatasetError for a manifest that names files outside its
    dataset."""
    location, manifest = copy.location, copy.manifest
    names = check_names(location, manifest)
    begun = finished_parts(place.working, _copy_mark(manifest), restart=force) is not None
    left = manifest.bytes - (sum(bytes_there(place.working / name) for name in names) if begun else 0)
    return Estimate(
        id=place.id,
        path=place.path,
        location=location.url,
        shards=1,
        fetch_bytes=left,
        steps=manifest.steps,
        episodes=manifest.episodes,
        disk_bytes=left,
        free_bytes=free_bytes(place.path),
        done_parts=0,
        parts=1,
        part_names=["dataset"],
        notes=manifest.notes,
        why="converted dataset",
    )


def copy_converted(
    copy: Copy, place: DatasetPlace, listener: Listener, *, force: bool, command: str
) -> tuple[Estimate, Manifest]:
    """Copy a converted dataset; the caller holds the lock of ``place``.

    Continues an interrupted copy. Raises ChecksumError if a file does not match the manifest, and as `DatasetWriter` does.
    """
    location, manifest = copy.location, copy.manifest
    estimate, names = estimate_copy(copy, place, force=force), sorted(manifest.files)
    listener.on_estimate(estimate)
    writer = DatasetWriter(place, manifest.schema, _copy_mark(manifest), restart=force, command=command)
    stated = map_in_threads(copy.stat, names, 8, "rbdata-stat")
    objects = [RawObject(name, check_size(item, manifest, name), location) for name, item in zip(names, stated)]

    def on_progress(name: str, done: int, total: int) -> None:
        listener.on_progress([TaskProgress(0, done, max(1, total), done, 0)])

    if not writer.remembered("copy"):
        writer.remember("copy", {})
    wanted = _drop_changed(writer.folder, objects, manifest)
    # A file that an earlier run began to fetch may have changed since; it is then fetched once more.
    resumed = [raw for raw in wanted if bytes_there(writer.folder / raw.path)]
    fetch_all(writer.folder, wanted, on_progress)
    again = _drop_changed(writer.folder, resumed, manifest)
    fetch_all(writer.folder, again, on_progress)
    for raw in (*again, *(one for one in wanted if one not in resumed)):
        problem = find_damage(writer.folder, manifest, raw.path)
        if problem:
            (writer.folder / raw.path).unlink()
            raise ChecksumError(f"{copy.url}/{raw.path}: {problem}", hint=_DAMAGED_MIRROR)
    listener.on_part_done(0)
    listener.on_stage("committing")
    copied = {"mirror": location.url, "copied": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    manifest = replace(manifest, provenance={**manifest.provenance, **copied})
    write_manifest(writer.folder, manifest)
    place.install()
    return estimate, manifest


def _drop_changed(folder: Path, objects: Sequence[RawObject], manifest: Manifest) -> list[RawObject]:
    """The objects whose files are missing or differ from the manifest; differing files are removed."""
    wanted = [raw for raw in objects if find_damage(folder, manifest, raw.path)]
    for raw in wanted:
        remove_tree(folder / raw.path)
    return wanted


def fetch_manifest(location: Location, folder: str) -> Manifest | None:
    """The manifest of the dataset in a folder of a mirror, None if it is missing or access is denied."""
    try:
        item = find_object(location, join_path(folder, FILENAME))
        return None if item is None else read_remote_manifest(location, item)[0]
    except ForbiddenError:
        return None  # without permission to list, stores deny access to objects that do not exist
    except (ObjectNotFoundError, TransientFetchError, ChecksumError):
        raise
    except FetchError:
        return None  # a web server that answers every request with a web page


def read_remote_manifest(location: Location, item: RemoteObject) -> tuple[Manifest, bytes]:
    """Fetch and parse a manifest; it and its bytes. Raises as `read_manifest` does."""
    data = read_all(location, item, limit_bytes=LARGEST_MANIFEST)
    try:
        return parse_manifest(data, item.url.removesuffix(f"/{FILENAME}")), data
    except (DamagedDatasetError, NotADatasetError) as error:
        raise type(error)(error.message, hint=_DAMAGED_MIRROR) from None


def check_names(location: Location, manifest: Manifest) -> list[str]:
    """The files of an untrusted manifest, sorted. Raises DamagedDatasetError for one outside the dataset's folder."""
    for name in manifest.files:
        plain = all(is_plain_name(part) and part[0] != "." and "\\" not in part for part in name.split("/"))
        if not plain or name in (FILENAME, JOURNAL):
            message = f"the manifest at {location.url} names a file outside its dataset: {name!r}"
            raise DamagedDatasetError(message, hint="do not use this mirror")
    return sorted(manifest.files)


def check_size(item: RemoteObject, manifest: Manifest, name: str) -> RemoteObject:
    """The object with the size that the manifest states. Raises ChecksumError if it has another one."""
    size = manifest.size_of(name)
    if item.size not in (None, size):
        raise ChecksumError(f"{item.url}: {item.size} bytes, expected {size}", hint=_DAMAGED_MIRROR)
    return replace(item, size=size)
