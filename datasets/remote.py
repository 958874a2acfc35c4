"""Opens converted datasets at a URL, over any scheme that can be read.

    open_remote("s3://lab/rbdata/atari/Pong/5", cache_dir="/fast/cache", cache_limit="20GB")

A revision of the Hub is pinned to its commit. The manifest is read, the version of every file is recorded (so that no other
version is read later), and the dataset's cache in ``cache_dir/<id>`` is opened. `storage.remote` does the rest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import settings
from ..errors import DatasetNotFoundError, FetchError, ObjectNotFoundError
from ..storage.amounts import parse_size, plural
from ..storage.manifest import BLOCK_TABLE, FILENAME, LARGEST_MANIFEST, Manifest, Problem
from ..storage.threads import map_in_threads
from . import mirrors
from .fetch import FetchOptions, Location, RemoteObject, open_location, read_all
from .fetch.location import CONNECTIONS
from .fetch.retries import replaced

if TYPE_CHECKING:
    from ..storage.dataset import Dataset
    from ..storage.integrity import CheckedBlock, Report

#: The folder of caches under the root; lists of datasets skip hidden folders.
CACHE = ".remote"


@dataclass(frozen=True)
class LocatedFiles:
    """The files of one version of a dataset at a location; see `storage.remote.cache.RemoteFiles`."""

    location: Location
    manifest: RemoteObject
    objects: Mapping[str, RemoteObject]

    @property
    def url(self) -> str:
        return self.location.url

    def read(self, path: str, start: int, stop: int) -> bytes:
        return self.location.read_range(self.objects[path], start, stop - start)

    def check(self) -> None:
        now = self.location.refresh(self.manifest)
        if now.version != self.manifest.version or now.size != self.manifest.size:
            raise replaced(self.manifest.url)


def open_remote(
    url: str | os.PathLike[str],
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_limit: int | str | None = None,
    root: str | os.PathLike[str] | None = None,
    fetch: FetchOptions | None = None,
) -> Dataset:
    """Open the converted dataset at a URL; no rows are read.

    ``cache_dir`` is the folder of caches (default: ``.remote`` under the root), ``cache_limit`` the limit of this dataset's
    cache in bytes, such as ``"20GB"``. If the cache is complete, the local files are opened.

    Raises DatasetNotFoundError if there is none, saying what there is instead; the fetch errors; and as `RemoteDataset`.
    """
    from ..storage.dataset import Dataset
    from ..storage.remote.remote_dataset import RemoteDataset

    limit = None if cache_limit is None else parse_size(cache_limit, "cache_limit")
    location, item, text, manifest = _find(url, fetch)
    where = settings.root(root) / CACHE if cache_dir is None else settings.expanded(cache_dir).absolute()
    folder = where / manifest.id
    try:
        is_complete = (folder / FILENAME).read_bytes() == text
    except OSError:
        is_complete = False
    if is_complete:
        return Dataset(folder)
    stated = _stat_files(location, manifest)
    objects = {name: mirrors.check_size(item, manifest, name) for name, item in stated.items()}
    table = None
    if manifest.blocks:
        table = read_all(location, objects[BLOCK_TABLE], limit_bytes=LARGEST_MANIFEST)
    return RemoteDataset(folder, manifest, text, LocatedFiles(location, item, objects), table=table, limit=limit)


def verify_remote(
    url: str | os.PathLike[str],
    *,
    quick: bool = False,
    fetch: FetchOptions | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Compare the remote files of the dataset at a URL with its manifest: sizes, and unless ``quick`` checksums.

    Nothing is kept on disk. Raises as `open_remote` does for what cannot be read.
    """
    from ..storage.checksums import BLOCK
    from ..storage.integrity import BlockChecksums, Report

    location, item, _, manifest = _find(url, fetch)
    objects = _stat_files(location, manifest)
    files, report = LocatedFiles(location, item, objects), Report(files=len(objects))
    ranges = BlockChecksums(manifest, None)
    for name, stated in objects.items():
        size = manifest.size_of(name)
        if stated.size is not None and stated.size != size:
            report.problems.append(Problem(name, f"has {stated.size} bytes instead of {size}"))
    damaged = {problem.path for problem in report.problems}
    blocks = [] if quick else [block for name in objects if name not in damaged for block in ranges.all(name)]

    def is_sound(block: CheckedBlock) -> bool:
        starts = range(block.begin, block.end, BLOCK)
        return block.is_sound(files.read(block.path, low, min(low + BLOCK, block.end)) for low in starts)

    for block, sound in zip(blocks, map_in_threads(is_sound, blocks, CONNECTIONS, "rbdata-verify")):
        report.bytes += block.length
        if not sound:
            files.check()
            what = f"checksum mismatch{ranges.where(block)}"
            report.problems.append(Problem(block.path, what, block.begin, block.length))
        if on_progress is not None:
            on_progress(report.bytes, manifest.bytes)
    return report


def _find(url: str | os.PathLike[str], fetch: FetchOptions | None) -> tuple[Location, RemoteObject, bytes, Manifest]:
    """The location of a dataset, and its manifest: the object, its bytes, and what they say."""
    location = open_location(url, options=fetch).pinned()
    try:
        item = location.stat(FILENAME)
        manifest, text = mirrors.read_remote_manifest(location, item)
    except ObjectNotFoundError as error:
        raise _explain(location, error) from error
    return location, item, text, manifest


def _stat_files(location: Location, manifest: Manifest) -> dict[str, RemoteObject]:
    names = mirrors.check_names(location, manifest)
    return dict(zip(names, map_in_threads(location.stat, names, CONNECTIONS, "rbdata-stat")))


def _explain(location: Location, error: ObjectNotFoundError) -> Exception:
    message = f"{location.url} holds no converted dataset: there is no {FILENAME} in it"
    try:
        objects, folders = location.list(), location.folders()
    except ObjectNotFoundError:
        hint = "check the URL, or give the folder of one dataset: the server may not list its folders (no index page)"
        return DatasetNotFoundError(f"{location.url}: no such folder or bucket ({error.message})", hint=hint)
    except FetchError:
        hint = "give the folder of one dataset; what else is there is not known without a listing (an index page)"
        return DatasetNotFoundError(message, hint=hint)
    inside, there = [*folders, *(item.name for item in objects)], "nothing"
    if inside:
        names = f"{', '.join(inside[:4])}{', ...' if len(inside) > 4 else ''}"
        there = f"{plural(len(objects), 'file')} and {plural(len(folders), 'folder')}: {names}"
    hint = "give the folder of one dataset"
    if folders:
        hint += f"; `{settings.command('mirror', 'ls', location.url)}` lists those below it"
    return DatasetNotFoundError(f"{message}, but {there}", hint=hint)
