"""Opens converted datasets at a URL, over any scheme that can be read.

    open_remote("s3://lab/rbdata/atari/Pong/5", cache_dir="/fast/cache", cache_limit="20GB")

A revision of the Hub is pinned to its commit. The manifest is read, the version of every file is recorded (so that no other
version is read later), and the dataset's cache in ``cache_dir/<id>`` is opened. `storage.remote` does the rest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import settings
from ..errors import DatasetNotFoundError, ObjectNotFoundError
from ..storage.amounts import parse_size
from ..storage.checksums import BLOCK
from ..storage.integrity import CheckedBlock, Report
from ..storage.manifest import FILENAME, Problem
from ..storage.threads import map_in_threads
from .copies import Copy, read_copy
from .fetch import FetchOptions, Location, RemoteObject, open_location
from .fetch.location import CONNECTIONS
from .fetch.retries import replaced

if TYPE_CHECKING:
    from ..storage.dataset import Dataset

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

    Raises DatasetNotFoundError if there is none, the fetch errors, and as `RemoteDataset` does.
    """
    from ..storage.dataset import Dataset
    from ..storage.remote.remote_dataset import RemoteDataset

    limit = None if cache_limit is None else parse_size(cache_limit, "cache_limit")
    copy = _find(url, fetch)
    where = settings.root(root) / CACHE if cache_dir is None else settings.expanded(cache_dir).absolute()
    folder = where / copy.manifest.id
    with suppress(OSError):
        if (folder / FILENAME).read_bytes() == copy.text:
            return Dataset(folder)
    objects = {name: copy.checked(name, item) for name, item in copy.stat_all().items()}
    files = LocatedFiles(copy.location, copy.item, objects)
    return RemoteDataset(folder, copy.manifest, copy.text, files, table=copy.table, limit=limit)


def verify_remote(
    url: str | os.PathLike[str],
    *,
    quick: bool = False,
    fetch: FetchOptions | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Compare the remote files of the dataset at a URL with its manifest: sizes, and unless ``quick`` the checksums of blocks.

    Nothing is kept on disk. Raises as `open_remote` does for what cannot be read, and ChecksumError or DamagedDatasetError for
    a damaged table of blocks.
    """
    copy = _find(url, fetch)
    manifest, files = copy.manifest, LocatedFiles(copy.location, copy.item, copy.stat_all())
    sizes = {name: (item.size, manifest.size_of(name)) for name, item in files.objects.items()}
    wrong = {name: there for name, (there, size) in sizes.items() if there not in (None, size)}
    problems = [Problem(name, f"has {there} bytes instead of {sizes[name][1]}") for name, there in wrong.items()]
    report = Report(len(sizes), problems=problems)
    if quick:
        return report
    blocks = [block for name in sorted(sizes.keys() - wrong.keys()) for block in copy.checksums.all(name)]

    def is_sound(block: CheckedBlock) -> bool:
        starts = range(block.begin, block.end, BLOCK)  # without a table, a block may be gigabytes
        return block.is_sound(files.read(block.path, low, min(low + BLOCK, block.end)) for low in starts)

    for block, sound in zip(blocks, map_in_threads(is_sound, blocks, CONNECTIONS, "rbdata-verify")):
        report.bytes += block.length
        if not sound:
            files.check()
            what = f"checksum mismatch{copy.checksums.where(block)}"
            report.problems.append(Problem(block.path, what, block.begin, block.length))
        on_progress(report.bytes, manifest.bytes)
    return report


def _find(url: str | os.PathLike[str], fetch: FetchOptions | None) -> Copy:
    location = open_location(url, options=fetch).pinned()
    try:
        return read_copy(location, "", location.stat(FILENAME))
    except ObjectNotFoundError as error:
        message = f"{location.url} holds no converted dataset: there is no {FILENAME} in it"
        listing = settings.command("mirror", "ls", location.url)
        hint = f"give the folder of one dataset: `{listing}` lists those below a folder"
        raise DatasetNotFoundError(message, hint=hint) from error
