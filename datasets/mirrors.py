"""Copies datasets from mirrors and to them, lists what a mirror holds, and removes it.

A mirror holds converted datasets, raw files, or both. Its layout is that of a root, so a root is a mirror too:

    <mirror>/atari/Pong/5/rbdata.json ...                      a converted dataset
    <mirror>/.raw/atari/dqn/Pong/5/replay_logs/...             raw files, in the provider's layout
    <mirror>/<the provider's layout>                           the same without those two folders: a copy of a bucket

Raw files are converted. Of a converted dataset the manifest is read first; its files are fetched into the working folder (an
interrupted copy continues) and compared with the checksums of the manifest; then the folder becomes the dataset. `push` sends
the manifest last, and `remove` removes it first, so a mirror never lists an incomplete dataset.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

from .. import settings
from ..errors import (
    ChecksumError,
    DamagedDatasetError,
    DatasetBusyError,
    DatasetExistsError,
    DatasetNotFoundError,
    FetchError,
    ForbiddenError,
    ObjectNotFoundError,
    TransientFetchError,
    UsageError,
)
from ..storage.folder import RUN, DatasetPlace, check_id, free_bytes, remove_tree
from ..storage.integrity import find_damage
from ..storage.manifest import FILENAME, LARGEST_MANIFEST, Manifest, parse_manifest, read_manifest, write_manifest
from ..storage.snapshot import state_of
from ..storage.threads import map_in_threads
from ..storage.work import Work, fingerprint
from . import catalogue, local
from .fetch import FetchOptions, Location, RemoteObject, open_location, open_mirror, read_all
from .fetch.location import find_object, is_hub_dataset, is_plain_name, join_path
from .fetch.reading import bytes_there
from .fetch.retries import failure_at
from .ingest.raw_files import FOLDER as RAW_FOLDER
from .ingest.raw_files import fetch_all
from .ingest.reader import Reader
from .ingest.records import ConvertOptions, RawObject
from .ingest.request import Estimate, Listener
from .sources.source import Source
from .workers.task import TaskProgress

if TYPE_CHECKING:  # downloads send nothing
    from .fetch.upload import LocalFile

_DAMAGED_MIRROR = "the mirror's copy is damaged: push it again, or use another mirror"
#: Connections over which a mirror is written.
CONNECTIONS = 4


# -- where a dataset is ------------------------------------------------------------------------------------------------


def resolve(text: str, mirror: str | None, here: Callable[[], Iterable[str]] = tuple) -> tuple[str, Source | None]:
    """`catalogue.resolve`, extended to ids without a source, which a mirror may have. ``here`` returns the ids on this machine;
    it is called for names that no source knows."""
    try:
        return catalogue.resolve(text)
    except DatasetNotFoundError:
        known = list(here())
    try:
        return catalogue.resolve(text, known)
    except DatasetNotFoundError:
        namespace = text.partition("/")[0]
        if "/" not in text or namespace in catalogue.source_names() or not (mirror or settings.mirror(namespace)):
            raise
        check_id(text)
        return text, None


def open_raw_objects(source: Source, name: str, url: str, options: ConvertOptions, fetch: FetchOptions) -> Reader:
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
) -> Reader:
    """Open a dataset's raw objects at the first of the source's own places that has them.

    ``reader.why`` gives the failures at the places before it. A place whose copy is faulty raises its error: the next place is
    not tried. Raises the error of the only place, or one with the failures at all places.
    """
    failures: dict[str, FetchError] = {}
    for url in source.places(name, options):
        location = open_location(url, options=fetch)
        on_place(location.url)
        try:
            reader = open_raw_objects(source, name, url, options, fetch)
        except FetchError as error:
            partly_there = isinstance(error, ObjectNotFoundError) and error.partly_there
            if partly_there or isinstance(error, ChecksumError):
                raise
            failures[location.url] = error
            continue
        if failures:
            options_used = [f"{key} {value}" for key, value in reader.resolved_options.items()]
            reader.why = ", ".join([*options_used, f"because {_list_failures(failures)}"])
        return reader
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


# -- pull --------------------------------------------------------------------------------------------------------------


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


def same_request(one: Manifest, other: Manifest) -> bool:
    """Whether two datasets of one id were asked for with the same options and shards: their contents must then be the same."""
    return all(one.source.get(name) == other.source.get(name) for name in ("options", "shards", "upstream"))


def _copy_mark(manifest: Manifest) -> str:
    """The fingerprint of an unfinished copy of this dataset."""
    return fingerprint({"copy": manifest.to_json()["checksum"], "id": manifest.id})


def estimate_copy(copy: Copy, place: DatasetPlace, *, force: bool) -> Estimate:
    """The estimate of what `copy_converted` would fetch. Raises DamagedDatasetError for a manifest that names files outside its
    dataset."""
    location, manifest = copy.location, copy.manifest
    names = check_names(location, manifest)
    begun = Work.belongs(place, _copy_mark(manifest), restart=force)
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
        notes=manifest.notes,
        why="converted dataset",
    )


def copy_converted(
    copy: Copy, place: DatasetPlace, listener: Listener, *, force: bool, command: str
) -> tuple[Estimate, Manifest]:
    """Copy a converted dataset; the caller holds the lock of ``place``.

    Continues an interrupted copy. Raises ChecksumError if a file does not match the manifest, and as `Work` does.
    """
    location, manifest = copy.location, copy.manifest
    estimate, names = estimate_copy(copy, place, force=force), sorted(manifest.files)
    listener.on_estimate(estimate)
    work = Work(place, _copy_mark(manifest), restart=force, command=command)
    stated = map_in_threads(copy.stat, names, 8, "rbdata-stat")
    objects = [RawObject(name, check_size(item, manifest, name), location) for name, item in zip(names, stated)]

    def on_progress(name: str, done: int, total: int) -> None:
        listener.on_progress([TaskProgress(0, done, max(1, total), done, 0)])

    if not work.remembered("copy"):
        work.remember("copy", True)
    wanted: Sequence[RawObject] = objects
    for _ in range(2):  # a file that an earlier run began to fetch may have changed since: it is then fetched once more
        wanted = _drop_changed(work.folder, wanted, manifest)
        fetch_all(work.folder, wanted, on_progress)
    for raw in wanted:
        if problem := find_damage(work.folder, manifest, raw.path):
            (work.folder / raw.path).unlink()
            raise ChecksumError(f"{copy.url}/{raw.path}: {problem}", hint=_DAMAGED_MIRROR)
    listener.on_part_done(0)
    listener.on_stage("committing")
    copied = {"mirror": location.url, "copied": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    manifest = replace(manifest, provenance={**manifest.provenance, **copied})
    write_manifest(work.folder, manifest)
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
    except (DamagedDatasetError, DatasetNotFoundError) as error:
        raise type(error)(error.message, hint=_DAMAGED_MIRROR) from None


def check_names(location: Location, manifest: Manifest) -> list[str]:
    """The files of an untrusted manifest, sorted. Raises DamagedDatasetError for one outside the dataset's folder."""
    for name in manifest.files:
        plain = all(is_plain_name(part) and part[0] != "." and "\\" not in part for part in name.split("/"))
        if not plain or name in (FILENAME, RUN):
            message = f"the manifest at {location.url} names a file outside its dataset: {name!r}"
            raise DamagedDatasetError(message, hint="do not use this mirror")
    return sorted(manifest.files)


def check_size(item: RemoteObject, manifest: Manifest, name: str) -> RemoteObject:
    """The object with the size that the manifest states. Raises ChecksumError if it has another one."""
    size = manifest.size_of(name)
    if item.size not in (None, size):
        raise ChecksumError(f"{item.url}: {item.size} bytes, expected {size}", hint=_DAMAGED_MIRROR)
    return replace(item, size=size)


# -- push --------------------------------------------------------------------------------------------------------------


OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Pushed:
    """Result of a push: the mirror lacked ``sent`` of the ``files`` at ``url``; likewise for bytes."""

    id: str
    kind: Literal["dataset", "raw"]
    url: str
    files: int
    bytes: int
    sent: int
    sent_bytes: int


def push(
    dataset_id: str,
    destination: str,
    *,
    root: Path | None = None,
    raw: bool = False,
    force: bool = False,
    fetch: FetchOptions | None = None,
    on_progress: OnProgress | None = None,
) -> Pushed:
    """Copy a converted dataset, or with ``raw`` its kept raw files, to a mirror.

    ``destination`` is a directory, ``gs://``, or with the extra ``remote`` a URL that fsspec can write to. Files that the
    mirror already holds are not sent again, so an interrupted push continues; every file is verified on the mirror.
    ``force`` replaces a different dataset of the same id. ``on_progress`` is called with a file's name, the bytes done and
    the total bytes.

    Raises DatasetNotFoundError if there is nothing to push, DamagedDatasetError if the dataset's files do not match its
    manifest, DatasetExistsError if the mirror holds a different dataset of this id, UsageError for a read-only location,
    DatasetBusyError if it is replaced during the push, and the fetch errors.
    """
    from .fetch.upload import open_writable

    root = settings.root(root)
    mirror = open_writable(destination, fetch)
    if raw:
        return _push_raw(dataset_id, mirror, root, on_progress)
    return _push_dataset(local.find(dataset_id, root), mirror, force, on_progress)


def _push_dataset(folder: Path, mirror: Location, force: bool, on_progress: OnProgress | None) -> Pushed:
    from .fetch.upload import LocalFile, upload

    before, base = state_of(folder), mirror.url
    manifest = read_manifest(folder)
    if base.startswith("/") and Path(base, manifest.id).resolve() == folder.resolve():
        message = f"{base} is the root that holds {manifest.id}"
        raise UsageError(message, hint="choose another folder or bucket as the mirror")
    check_replaceable(fetch_manifest(mirror, manifest.id), manifest, base, force)
    check_undamaged(folder, manifest)
    files = [(LocalFile(folder / name), f"{manifest.id}/{name}") for name in sorted(manifest.files)]
    sent, sent_bytes = _send(mirror, files, on_progress)
    if state_of(folder) != before:
        message = f"{folder} was replaced while it was pushed: the mirror got no manifest"
        raise DatasetBusyError(message, hint="push it again: files that are there already are not sent again")
    last = LocalFile(folder / FILENAME)
    sent_manifest = upload(mirror, last, f"{manifest.id}/{FILENAME}")
    return Pushed(
        manifest.id,
        "dataset",
        f"{base}/{manifest.id}",
        len(files) + 1,
        manifest.bytes + last.size,
        sent + sent_manifest,
        sent_bytes + last.size * sent_manifest,
    )


def check_undamaged(folder: Path, manifest: Manifest) -> None:
    """Raise DamagedDatasetError if a file differs from the manifest; called before anything is sent."""

    def check(name: str) -> None:
        problem = find_damage(folder, manifest, name)
        if problem:
            hint = f"nothing was sent; `{settings.command('verify', folder, '--repair')}` repairs it"
            raise DamagedDatasetError(f"{folder / name}: {problem}", hint=hint)

    list(map_in_threads(check, sorted(manifest.files), CONNECTIONS, "rbdata-check"))


def _push_raw(text: str, mirror: Location, root: Path, on_progress: OnProgress | None) -> Pushed:
    from .fetch.upload import LocalFile

    dataset_id, source = catalogue.resolve(text)
    if source is None:
        raise UsageError(f"{dataset_id} has no source, so it has no raw files", hint="push it without --raw")
    folder = f"{RAW_FOLDER}/{source.name}"
    raw_folder = root / folder
    try:
        reader = source.open(dataset_id.partition("/")[2], open_location(raw_folder), ConvertOptions())
        paths = [Path(raw.item.url) for raw in reader.raw_objects()]
    except ObjectNotFoundError as error:
        message = f"no raw files of {dataset_id} under {raw_folder}"
        hint = f"keep them with `{settings.command('download', dataset_id, '--keep-raw', root=root)}`"
        raise DatasetNotFoundError(message, hint=hint) from error
    files = [(LocalFile(path), f"{folder}/{path.relative_to(raw_folder)}") for path in paths]
    total = sum(file.size for file, _ in files)
    sent, sent_bytes = _send(mirror, files, on_progress)
    return Pushed(dataset_id, "raw", f"{mirror.url}/{folder}", len(files), total, sent, sent_bytes)


def _send(mirror: Location, files: list[tuple[LocalFile, str]], on_progress: OnProgress | None) -> tuple[int, int]:
    """Upload the files that the mirror lacks, over several connections; returns their number and bytes."""
    from .fetch.upload import upload

    total = sum(file.size for file, _ in files)
    done, lock = 0, Lock()

    def send(entry: tuple[LocalFile, str]) -> int:
        file, path = entry

        def count(length: int) -> None:
            nonlocal done
            with lock:
                done += length
            if on_progress is not None:
                on_progress(path, done, total)

        return file.size if upload(mirror, file, path, count) else -1

    sizes = [size for size in map_in_threads(send, files, CONNECTIONS, "rbdata-push") if size >= 0]
    return len(sizes), sum(sizes)


def check_replaceable(existing: Manifest | None, manifest: Manifest, place: str, force: bool) -> None:
    """Raise DatasetExistsError if a different dataset is in the way, unless ``force`` is set."""
    if existing is None or force or same_content(existing, manifest):
        return
    message = f"{place} already holds a different {existing.id}"
    raise DatasetExistsError(message, hint="replace it with --force, or push to another mirror")


# -- ls --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MirrorEntry:
    """An entry of a mirror: a converted ``dataset`` (by id), or a folder of ``raw`` files (by path).

    ``bytes`` is None if the location states no sizes (web servers); only datasets have steps and episodes.
    """

    kind: Literal["dataset", "raw"]
    name: str
    files: int
    bytes: int | None
    steps: int | None = None
    episodes: int | None = None
    problem: str | None = None


def ls(destination: str, *, fetch: FetchOptions | None = None) -> list[MirrorEntry]:
    """The entries of a mirror, sorted by kind and name. Reads listings and manifests; raises the fetch errors."""
    location = open_mirror(destination, options=fetch)
    found: list[MirrorEntry] = []
    datasets: list[str] = []
    for folder, objects, names in location.walk():
        if any(item.name == FILENAME for item in objects):
            datasets.append(folder)
            names.clear()
            continue
        if objects and folder:
            size = None if any(item.size is None for item in objects) else sum(item.size or 0 for item in objects)
            found.append(MirrorEntry("raw", folder, len(objects), size))
    found += map_in_threads(lambda folder: _describe(location, folder), datasets, 8, "rbdata-ls")
    return sorted(found, key=lambda entry: (entry.kind, entry.name))


def _describe(location: Location, folder: str) -> MirrorEntry:
    try:
        manifest, _ = read_remote_manifest(location, location.stat(join_path(folder, FILENAME)))
    except (DatasetNotFoundError, DamagedDatasetError) as error:
        return MirrorEntry("dataset", folder, 0, None, problem=error.message)
    return MirrorEntry("dataset", manifest.id, len(manifest.files), manifest.bytes, manifest.steps, manifest.episodes)


# -- remove ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """What a mirror holds under a name: paths of ``files`` in the order of removal, and ``bytes`` as far as sizes are stated.

    The manifest comes first; last comes the file by which an interrupted removal is found again.
    """

    name: str
    url: str
    files: tuple[str, ...]
    bytes: int


def find_held(text: str, destination: str, *, fetch: FetchOptions | None = None) -> Held:
    """What a mirror holds under an id, bare name or folder as `ls` shows it.

    Raises ObjectNotFoundError if it holds nothing of that name, and the fetch errors.
    """
    location = open_mirror(destination, options=fetch)
    named, full = text.strip("/"), ""
    with suppress(DatasetNotFoundError, UsageError):
        full = catalogue.resolve(text)[0]
    # A bare name of a dataset that its source does not list is looked for below every source.
    for name in filter(None, dict.fromkeys((named, full, *(f"{one}/{named}" for one in catalogue.source_names())))):
        if objects := _objects(location, name):
            last = f"{name}/meta.json"
            files = sorted(objects, key=lambda path: (not path.endswith("/" + FILENAME), path == last, path))
            return Held(name, location.url, tuple(files), sum(item.size or 0 for item in objects.values()))
    message = f"{location.url} holds no dataset and no raw files named {text}"
    raise ObjectNotFoundError(message, hint="`rbdata mirror ls` shows what it holds")


def remove(
    held: Held,
    destination: str,
    *,
    fetch: FetchOptions | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Remove ``held``, reporting ``on_progress(files removed, all files)``.

    Raises UsageError for a read-only location, and the fetch errors.
    """
    from .fetch.directory import DirectoryLocation
    from .fetch.upload import open_writable

    mirror, files, done = open_writable(destination, fetch), held.files, 0
    for some in (files[:1], files[1:-1], files[1:][-1:]):
        for _ in map_in_threads(mirror.remove, some, CONNECTIONS, "rbdata-remove"):
            done += 1
            on_progress(done, len(files))
    if isinstance(mirror, DirectoryLocation):
        mirror.prune(held.name)


def _objects(location: Location, folder: str) -> dict[str, RemoteObject]:
    """The files of a folder, and of its subfolders if it holds a dataset; empty if it has no files itself."""
    files: dict[str, RemoteObject] = {}
    try:
        for here, objects, names in location.walk(folder):
            files.update({join_path(here, item.name): item for item in objects})
            if here == folder and not any(path.endswith((".memmap", "/meta.json", "/" + FILENAME)) for path in files):
                names.clear()
    except ObjectNotFoundError:
        if files:
            raise
    return files
