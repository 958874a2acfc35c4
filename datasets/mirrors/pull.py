"""Taking a converted dataset from a mirror as it is, and finding raw objects there.

The manifest is read first, its files are fetched into the working folder (an interrupted copy is continued), each is
compared with the checksums of the manifest, and only then the folder becomes the dataset. See `mirror` for the layout.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from ... import settings
from ...errors import (
    ChecksumError,
    DamagedDatasetError,
    FetchError,
    ForbiddenError,
    ObjectNotFoundError,
    TransientFetchError,
    UnknownDatasetError,
)
from ...storage.checksums import check_ranges
from ...storage.folder import JOURNAL, RAW, DatasetPlace, check_id, free_bytes, remove_tree
from ...storage.manifest import FILENAME, Manifest, read_manifest, write_manifest
from ...storage.writer import DatasetWriter, fingerprint
from .. import catalogue
from ..fetch import FetchOptions, Location, RemoteObject, open_location, read_all
from ..fetch.location import is_plain_name, joined
from ..fetch.upload import find
from ..ingest.protocol import ConvertOptions, Job, RawObject
from ..ingest.raw_files import FOLDER as KEPT
from ..ingest.raw_files import fetch_all
from ..ingest.request import Listener, Outlook
from ..sources.source import Source
from ..workers.task import TaskProgress

#: A manifest of a run with thousands of parts takes a few MB.
LARGEST_MANIFEST = 1 << 28


def resolve(text: str, mirror: str | None) -> tuple[str, Source | None]:
    """Like `catalogue.resolve`; a mirror may also hold datasets that no source knows."""
    try:
        return catalogue.resolve(text)
    except UnknownDatasetError:
        namespace = text.partition("/")[0]
        if "/" not in text or namespace in catalogue.source_names() or not (mirror or settings.mirror(namespace)):
            raise
        check_id(text)
        return text, None


def open_raw(source: Source, name: str, url: str, options: ConvertOptions, fetch: FetchOptions) -> Job:
    """A dataset's raw objects at a place: in the provider's own layout, or where ``push --raw`` puts them."""
    try:
        return source.open(name, open_location(url, options=fetch), options)
    except ObjectNotFoundError as error:
        if url == source.home:
            raise
        try:
            return source.open(name, open_location(joined(url.rstrip("/"), KEPT, source.name), options=fetch), options)
        except ObjectNotFoundError:
            raise error from None


def find_converted(url: str, dataset_id: str, fetch: FetchOptions) -> tuple[Location, Manifest] | None:
    """The converted dataset that a mirror holds, if it does. Raises DamagedDatasetError for one that cannot be used."""
    location = open_location(url, options=fetch)
    manifest = stated_manifest(location, dataset_id)
    if manifest is None:
        return None
    if manifest.id != dataset_id:
        message = f"{location.url}/{dataset_id} says it is {manifest.id}"
        raise DamagedDatasetError(message, hint="the mirror was put together by hand; push the dataset to it instead")
    return location, manifest


def fetch_converted(
    location: Location, manifest: Manifest, place: DatasetPlace, listener: Listener, *, force: bool, dry_run: bool
) -> tuple[Outlook, Manifest]:
    """Copy a converted dataset; call with the place's lock held, unless it is a ``dry_run``.

    An interrupted copy is continued. Raises ChecksumError when a file is not what the manifest says, and as
    `DatasetWriter` does.
    """
    names = [_safe(name, location) for name in sorted(manifest.files)]
    outlook = _outlook(location, manifest, place)
    listener.outlook(outlook)
    if dry_run:
        return outlook, manifest
    mark = {"copy": manifest.to_json()["checksum"], "id": manifest.id}
    writer = DatasetWriter(place, manifest.schema, fingerprint(mark), restart=force)
    base = f"{location.url}/{manifest.id}/"
    with ThreadPoolExecutor(8, "rbdata-stat") as pool:
        stated = list(pool.map(lambda name: location.stat(f"{manifest.id}/{name}"), names))
    objects = [RawObject(name, _checked_size(item, manifest, name), location) for name, item in zip(names, stated)]

    def told(name: str, done: int, total: int) -> None:
        listener.progress([TaskProgress(0, manifest.bytes - total + done, manifest.bytes, done, 0)])

    fetch_all(writer.folder, objects, told)
    for name in names:
        problem = wrong_bytes(writer.folder / name, manifest.files[name])
        if problem:
            (writer.folder / name).unlink()
            message = f"{base}{name} {problem}"
            raise ChecksumError(message, hint="the mirror's copy is damaged: push it again, or use another mirror")
    listener.part_done(0)
    listener.stage("writing the manifest")
    copied = {"mirror": location.url, "copied": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    manifest = replace(manifest, provenance={**manifest.provenance, **copied})
    write_manifest(writer.folder, manifest)
    remove_tree(writer.folder / RAW)
    (writer.folder / JOURNAL).unlink()
    place.install()
    return outlook, manifest


def _outlook(location: Location, manifest: Manifest, place: DatasetPlace) -> Outlook:
    return Outlook(
        id=place.id,
        path=place.path,
        location=location.url,
        shards=1,
        fetch_bytes=manifest.bytes,
        steps=manifest.steps,
        episodes=manifest.episodes,
        disk_bytes=manifest.bytes,
        free_bytes=free_bytes(place.path),
        done_parts=0,
        parts=1,
        part_names=["dataset"],
        notes=manifest.notes,
        why="converted already",
    )


def stated_manifest(location: Location, dataset_id: str) -> Manifest | None:
    """The manifest of a dataset in a mirror, None where there is none (or where we may not even ask for it)."""
    try:
        item = find(location, f"{dataset_id}/{FILENAME}")
        return None if item is None else parse_manifest(read_all(location, item, limit_bytes=LARGEST_MANIFEST))
    except ForbiddenError:
        return None  # stores that must not be listed say so of what is not there, too
    except (ObjectNotFoundError, TransientFetchError, ChecksumError):
        raise
    except FetchError:
        return None  # a web server that answers every question with a page


def parse_manifest(data: bytes) -> Manifest:
    """A manifest out of its bytes."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="rbdata-manifest-") as folder:
        Path(folder, FILENAME).write_bytes(data)
        manifest = read_manifest(Path(folder))
    for name, ranges in manifest.files.items():
        well_formed = isinstance(ranges, list) and all(
            isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], int) and entry[0] >= 0
            for entry in ranges
        )
        if not well_formed:
            raise DamagedDatasetError(f"the manifest of {manifest.id} is malformed at {name!r}")
    return manifest


def _safe(name: str, location: Location) -> str:
    """A file's name out of a manifest that somebody else wrote."""
    parts = name.split("/")
    plain = all(is_plain_name(part) and not part.startswith(".") and "\\" not in part for part in parts)
    if not plain or name in (FILENAME, JOURNAL):
        message = f"the manifest at {location.url} names a file outside its dataset: {name!r}"
        raise DamagedDatasetError(message, hint="do not use this mirror")
    return name


def _checked_size(item: RemoteObject, manifest: Manifest, name: str) -> RemoteObject:
    size = sum(length for length, _ in manifest.files[name])
    if item.size is not None and item.size != size:
        message = f"{item.url} has {item.size} bytes, the manifest says {size}"
        raise ChecksumError(message, hint="the mirror's copy is damaged: push it again, or use another mirror")
    return replace(item, size=size)


def wrong_bytes(path: Path, ranges: list[list[Any]]) -> str | None:
    """What is wrong with a file, None when it is what the manifest says."""
    expected = sum(length for length, _ in ranges)
    try:
        found = path.stat().st_size
    except OSError:
        return "is missing"
    if found != expected:
        return f"has {found} bytes instead of {expected}"
    at = 0
    for (length, _), (_, sound) in zip(ranges, check_ranges(path, ranges)):
        if not sound:
            return f"is not what the manifest says in bytes {at} to {at + length}"
        at += length
    return None
