"""Copies datasets to a mirror, lists what it holds, and removes it; a mirror holds converted datasets, raw files, or both.

`push` uses the layout of a root, so a root is a mirror too:

    <mirror>/atari/Pong/5/rbdata.json ...                      a converted dataset
    <mirror>/.raw/atari/dqn/Pong/5/replay_logs/...             raw files, in the provider's layout
    <mirror>/<the provider's layout>                           the same without those two folders: a copy of a bucket

Downloads copy a converted dataset and compare its files with its manifest; raw files are converted. The manifest is sent
last and removed first, so a mirror never lists an incomplete dataset.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Literal

from ... import settings
from ...errors import (
    DamagedDatasetError,
    DatasetBusyError,
    DatasetExistsError,
    DatasetNotFoundError,
    NotADatasetError,
    ObjectNotFoundError,
    UnknownDatasetError,
    UsageError,
)
from ...storage.folder import holds_files
from ...storage.integrity import find_damage
from ...storage.manifest import FILENAME, Manifest, read_manifest
from ...storage.snapshot import Pin, pinned
from ...storage.threads import map_in_threads
from .. import catalogue, local
from ..fetch import FetchOptions, Location, RemoteObject, open_location, open_mirror
from ..fetch.location import DirectoryLocation, join_path
from ..fetch.upload import DirectoryUploader, LocalFile, Uploader, open_uploader, upload
from ..ingest.job import ConvertOptions
from ..ingest.raw_files import FOLDER as RAW_FOLDER
from .pull import fetch_manifest, read_remote_manifest, same_content

CONNECTIONS = 4

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
    root = settings.root(root)
    uploader = open_uploader(destination, fetch)
    if raw:
        return _push_raw(dataset_id, uploader, root, on_progress)
    with pinned(local.find(dataset_id, root)) as pin:
        return _push_dataset(pin, uploader, force, on_progress)


def _push_dataset(pin: Pin, uploader: Uploader, force: bool, on_progress: OnProgress | None) -> Pushed:
    folder, base = pin.folder, uploader.location.url
    manifest = read_manifest(folder)
    if base.startswith("/") and Path(base, manifest.id).resolve() == folder.resolve():
        message = f"{base} is the root that holds {manifest.id}"
        raise UsageError(message, hint="choose another folder or bucket as the mirror")
    check_replaceable(fetch_manifest(uploader.location, manifest.id), manifest, base, force)
    check_undamaged(folder, manifest)
    files = [(LocalFile(folder / name), f"{manifest.id}/{name}") for name in sorted(manifest.files)]
    sent, sent_bytes = _send(uploader, files, on_progress)
    if not pin.is_unchanged():
        message = f"{folder} was replaced while it was pushed: the mirror got no manifest"
        raise DatasetBusyError(message, hint="push it again: files that are there already are not sent again")
    last = LocalFile(folder / FILENAME)
    sent_manifest = upload(uploader, last, f"{manifest.id}/{FILENAME}")
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


def _push_raw(text: str, uploader: Uploader, root: Path, on_progress: OnProgress | None) -> Pushed:
    dataset_id, source = catalogue.resolve(text)
    if source is None:
        raise UsageError(f"{dataset_id} has no source, so it has no raw files", hint="push it without --raw")
    folder = f"{RAW_FOLDER}/{source.name}"
    raw_folder = root / folder
    try:
        job = source.open(dataset_id.partition("/")[2], open_location(raw_folder), ConvertOptions())
        paths = [Path(raw.item.url) for raw in job.raw_objects()]
    except ObjectNotFoundError as error:
        message = f"no raw files of {dataset_id} under {raw_folder}"
        hint = f"keep them with `{settings.command('download', dataset_id, '--keep-raw', root=root)}`"
        raise DatasetNotFoundError(message, hint=hint) from error
    files = [(LocalFile(path), f"{folder}/{path.relative_to(raw_folder)}") for path in paths]
    total = sum(file.size for file, _ in files)
    sent, sent_bytes = _send(uploader, files, on_progress)
    return Pushed(dataset_id, "raw", f"{uploader.location.url}/{folder}", len(files), total, sent, sent_bytes)


def _send(uploader: Uploader, files: list[tuple[LocalFile, str]], on_progress: OnProgress | None) -> tuple[int, int]:
    """Upload the files that the mirror lacks, over several connections; returns their number and bytes."""
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

        return file.size if upload(uploader, file, path, count) else -1

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
        # Names with a leading dot belong to unfinished work, except for the folder of raw files.
        names[:] = [name for name in names if not name.startswith(".") or name == RAW_FOLDER]
        plain = [item for item in objects if not item.name.startswith(".")]
        if plain and folder:
            size = None if any(item.size is None for item in plain) else sum(item.size or 0 for item in plain)
            found.append(MirrorEntry("raw", folder, len(plain), size))
    found += map_in_threads(lambda folder: _describe(location, folder), datasets, 8, "rbdata-ls")
    return sorted(found, key=lambda entry: (entry.kind, entry.name))


def _describe(location: Location, folder: str) -> MirrorEntry:
    try:
        manifest, _ = read_remote_manifest(location, location.stat(join_path(folder, FILENAME)))
    except (NotADatasetError, DamagedDatasetError) as error:
        return MirrorEntry("dataset", folder, 0, None, problem=error.message)
    return MirrorEntry("dataset", manifest.id, len(manifest.files), manifest.bytes, manifest.steps, manifest.episodes)


# -- remove ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """What a mirror holds under a name: paths of ``files`` in the order of removal, and ``bytes`` as far as sizes are stated.

    The manifest comes first; last comes the file by which an interrupted removal is found again. ``files`` is empty if only
    empty folders are left.
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
    with suppress(UnknownDatasetError, UsageError):
        full = catalogue.resolve(text)[0]
    # A bare name of a dataset that its source does not list is looked for below every source.
    for name in dict.fromkeys((named, full, *(f"{one}/{named}" for one in catalogue.source_names()))):
        objects = _objects(location, name) if name else {}
        if objects or (name and _is_empty(location, name)):
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
    uploader, files, done = open_uploader(destination, fetch), held.files, 0
    for some in (files[:1], files[1:-1], files[1:][-1:]):
        for _ in map_in_threads(uploader.remove, some, CONNECTIONS, "rbdata-remove"):
            done += 1
            on_progress(done, len(files))
    if isinstance(uploader, DirectoryUploader):
        uploader.prune(held.name)


def _is_empty(location: Location, name: str) -> bool:
    """Whether this is a folder on disk, reached without symbolic links, that holds no file."""
    if not isinstance(location, DirectoryLocation):
        return False
    folder = Path(location.url).resolve() / name
    return folder.is_dir() and folder.resolve() == folder and not holds_files(folder)


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
