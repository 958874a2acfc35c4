"""Sends datasets to mirrors, lists what a mirror holds, and removes it; `copies` fetches from one.

A mirror holds converted datasets, raw files, or both. Its layout is that of a root, so a root is a mirror too:

    <mirror>/atari/Pong/5/rbdata.json ...                      a converted dataset
    <mirror>/.raw/atari/dqn/Pong/5/replay_logs/...             raw files, in the provider's layout
    <mirror>/<the provider's layout>                           the same without those two folders: a copy of a bucket

`push` sends the manifest last, and `remove` removes it first, so a mirror never lists an incomplete dataset.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Literal

from .. import settings
from ..errors import (
    DamagedDatasetError,
    DatasetBusyError,
    DatasetExistsError,
    DatasetNotFoundError,
    ObjectNotFoundError,
    UsageError,
)
from ..storage.integrity import verify
from ..storage.manifest import FILENAME, Manifest, read_manifest
from ..storage.snapshot import state_of
from ..storage.threads import map_in_threads
from . import catalogue, local
from .copies import Copy, find_copy, read_copy, same_content
from .fetch import FetchOptions, Location, open_location, open_mirror
from .fetch.location import join_path
from .fetch.upload import LocalFile, open_writable, upload
from .ingest.raw_files import FOLDER as RAW_FOLDER
from .ingest.records import ConvertOptions

#: Connections over which a mirror is written.
CONNECTIONS = 4


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
    root = settings.root(root)
    mirror = open_writable(destination, fetch)
    if raw:
        return _push_raw(dataset_id, mirror, root, on_progress)
    return _push_dataset(local.find(dataset_id, root), mirror, force, on_progress)


def _push_dataset(folder: Path, mirror: Location, force: bool, on_progress: OnProgress | None) -> Pushed:
    before, base = state_of(folder), mirror.url
    manifest = read_manifest(folder)
    if base.startswith("/") and Path(base, manifest.id).resolve() == folder.resolve():
        message = f"{base} is the root that holds {manifest.id}"
        raise UsageError(message, hint="choose another folder or bucket as the mirror")
    check_replaceable(find_copy(mirror, manifest.id), manifest, base, force)
    check_undamaged(folder)
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


def check_undamaged(folder: Path) -> None:
    """Raise DamagedDatasetError if a file differs from the manifest; called before anything is sent."""
    for problem in verify(folder).problems:
        hint = f"nothing was sent; `{settings.command('verify', folder, '--repair')}` repairs it"
        raise DamagedDatasetError(f"{folder / problem.path}: {problem.what}", hint=hint)


def _push_raw(text: str, mirror: Location, root: Path, on_progress: OnProgress | None) -> Pushed:
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


def check_replaceable(existing: Copy | None, manifest: Manifest, place: str, force: bool) -> None:
    """Raise DatasetExistsError if a different dataset is in the way, unless ``force`` is set."""
    if existing is None or force or same_content(existing.manifest, manifest):
        return
    message = f"{place} already holds a different {existing.manifest.id}"
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
        manifest = read_copy(location, folder, location.stat(join_path(folder, FILENAME))).manifest
    except (DatasetNotFoundError, DamagedDatasetError) as error:
        return MirrorEntry("dataset", folder, 0, None, problem=error.message)
    return MirrorEntry("dataset", manifest.id, len(manifest.files), manifest.bytes, manifest.steps, manifest.episodes)


# -- remove ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """The ``files`` that a mirror holds under a name, in the order of removal, and their ``bytes`` as far as sizes are stated.

    The manifest comes first, what lies deepest next: a removal that was interrupted finds the rest again.
    """

    name: str
    url: str
    files: tuple[str, ...]
    bytes: int


def find_held(text: str, destination: str, *, fetch: FetchOptions | None = None) -> Held:
    """What a mirror holds under an id, bare name or folder as `ls` shows it.

    Raises ObjectNotFoundError if no files lie there, and the fetch errors.
    """
    location = open_mirror(destination, options=fetch)
    named, full = text.strip("/"), ""
    with suppress(DatasetNotFoundError, UsageError):
        full = catalogue.resolve(text)[0]
    # A bare name of a dataset that its source does not list is looked for below every source.
    for name in filter(None, dict.fromkeys((named, full, *(f"{one}/{named}" for one in catalogue.source_names())))):
        sizes: dict[str, int] = {}
        with suppress(ObjectNotFoundError):
            for here, objects, names in location.walk(name):
                sizes.update({join_path(here, item.name): item.size or 0 for item in objects})
                if not sizes:  # a folder of datasets is not one
                    names.clear()
        if sizes:
            files = sorted(sizes, key=lambda path: (path != f"{name}/{FILENAME}", -path.count("/"), path))
            return Held(name, location.url, tuple(files), sum(sizes.values()))
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
    mirror, files, done = open_writable(destination, fetch), held.files, 0
    for some in (files[:1], files[1:-1], files[1:][-1:]):
        for _ in map_in_threads(mirror.remove, some, CONNECTIONS, "rbdata-remove"):
            done += 1
            on_progress(done, len(files))
