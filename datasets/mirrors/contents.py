"""The contents of a mirror: listing them, and removing a dataset or a folder of raw files.

A dataset's manifest is removed first, so that an incomplete dataset is never listed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...errors import DamagedDatasetError, NotADatasetError, ObjectNotFoundError, UnknownDatasetError, UsageError
from ...storage.folder import holds_files
from ...storage.manifest import FILENAME
from ...storage.threads import map_in_threads
from .. import catalogue
from ..fetch import FetchOptions, Location, RemoteObject
from ..fetch.location import DirectoryLocation, join_path
from ..fetch.transports import open_mirror
from ..fetch.upload import DirectoryUploader, open_uploader
from ..ingest.raw_files import FOLDER as RAW_FOLDER
from .pull import read_remote_manifest

CONNECTIONS = 4


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
