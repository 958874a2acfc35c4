"""Opens converted datasets where they lie: in a mirror, over any scheme that can be read from.

    open_remote("s3://lab/rbdata/atari/Pong/5", cache_dir="/fast/cache", cache_limit="20GB")

The manifest is read, the version of every file is noted (so that nothing of another version is read later), and the cache of
the dataset, in ``cache_dir/<id>``, is opened. `storage.remote` does the rest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import settings
from ..errors import DatasetNotFoundError, FetchError, NotADatasetError, ObjectNotFoundError
from ..storage.amounts import plural
from ..storage.durable import read_plain
from ..storage.manifest import BLOCK_TABLE, FILENAME, LARGEST_MANIFEST, Manifest
from .fetch import FetchOptions, Location, RemoteObject, open_location, read_all
from .fetch.location import CONNECTIONS
from .fetch.reading import stream
from .fetch.retries import replaced
from .mirrors import pull
from .search import parse_size

if TYPE_CHECKING:
    from ..storage.dataset import Dataset
    from ..storage.integrity import Report

#: Where caches are, under the root: a name that lists of datasets leave out.
CACHE = ".remote"


@dataclass(frozen=True)
class LocatedFiles:
    """The files of one version of a dataset at a location; see `storage.remote.block_cache.RemoteFiles`."""

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

    ``cache_dir`` is the folder of caches (default: ``.remote`` under the root), ``cache_limit`` the bytes that the one of this
    dataset may take, such as ``"20GB"``. Of a dataset whose cache is complete the local files are opened.

    Raises NotADatasetError where there is none, saying what there is instead; the fetch errors; and as `RemoteDataset`.
    """
    from ..storage.dataset import Dataset
    from ..storage.remote.remote_dataset import RemoteDataset

    limit = None if cache_limit is None else parse_size(cache_limit)
    location, item, text, manifest = _find(url, fetch)
    where = settings.root(root) / CACHE if cache_dir is None else settings.expanded(cache_dir).absolute()
    folder = where / manifest.id
    try:
        is_complete = read_plain(folder / FILENAME, len(text)) == text
    except OSError:
        is_complete = False
    if is_complete:
        return Dataset(folder)
    objects = {
        name: pull.check_size(stated, manifest, name) for name, stated in _stat_files(location, manifest).items()
    }
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
    """Compare the files of the dataset at a URL with its manifest, there: sizes, and unless ``quick`` checksums.

    Nothing is kept on disk. Raises as `open_remote` does for what cannot be read.
    """
    from ..storage.checksums import BLOCK, Crc32c
    from ..storage.integrity import Report
    from ..storage.manifest import Problem

    location, item, _, manifest = _find(url, fetch)
    objects = _stat_files(location, manifest)
    files, report = LocatedFiles(location, item, objects), Report(files=len(objects))
    ranges: list[tuple[str, int, int, str]] = []
    for name, stated in objects.items():
        at, size = 0, sum(int(length) for length, _ in manifest.files[name])
        if stated.size is not None and stated.size != size:
            report.problems.append(Problem(name, f"has {stated.size} bytes instead of {size}"))
            continue
        for length, wanted in () if quick else manifest.files[name]:
            ranges.append((name, at, int(length), wanted))
            at += int(length)

    whole: dict[str, None] = {}  # files that the server sends as a whole only

    def check(one: tuple[str, int, int, str]) -> bool | None:
        name, begin, length, wanted = one
        checksum = Crc32c()
        try:
            for low in range(begin, begin + length, BLOCK) if name not in whole else ():
                checksum.update(files.read(name, low, min(low + BLOCK, begin + length)))
        except FetchError as error:
            if not error.whole_files_only:
                raise
            whole[name] = None
        return None if name in whole else checksum.hex == wanted

    noted: set[tuple[str, int]] = set()

    def note(name: str, begin: int, length: int, sound: bool) -> None:
        if (name, begin) in noted:
            return
        noted.add((name, begin))
        report.bytes += length
        if not sound:
            files.check()
            what = f"checksum mismatch, bytes {begin}-{begin + length}"
            report.problems.append(Problem(name, what, begin, length))
        if on_progress is not None:
            on_progress(report.bytes, manifest.bytes)

    pool = ThreadPoolExecutor(CONNECTIONS, "rbdata-verify")
    try:
        for (name, begin, length, _), sound in zip(ranges, pool.map(check, ranges)):
            if sound is not None:
                note(name, begin, length, sound)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    for name in whole:
        for begin, length, sound in _check_whole(location, objects[name], manifest.files[name]):
            note(name, begin, length, sound)
    return report


def _check_whole(
    location: Location, item: RemoteObject, ranges: Sequence[Sequence[Any]]
) -> Iterator[tuple[int, int, bool]]:
    """The ranges of a file (first byte, length) and whether each is as the manifest states; the file is read once."""
    from ..storage.checksums import Crc32c

    with closing(stream(location, item)) as pieces:
        rest, at = b"", 0
        for length, wanted in ranges:
            checksum, left = Crc32c(), int(length)
            while left and (rest := rest or next(pieces, b"")):
                checksum.update(rest[:left])
                rest, left = rest[left:], left - len(rest[:left])
            yield at, int(length), not left and checksum.hex == wanted
            at += int(length)


def _find(url: str | os.PathLike[str], fetch: FetchOptions | None) -> tuple[Location, RemoteObject, bytes, Manifest]:
    """The location of a dataset, and its manifest: the object, its bytes, and what they say."""
    location = open_location(url, options=fetch)
    try:
        item = location.stat(FILENAME)
        manifest, text = pull.read_remote_manifest(location, item)
    except ObjectNotFoundError as error:
        raise _explain(location, error) from error
    return location, item, text, manifest


def _stat_files(location: Location, manifest: Manifest) -> dict[str, RemoteObject]:
    names = [pull.check_name(name, location) for name in sorted(manifest.files)]
    with ThreadPoolExecutor(CONNECTIONS, "rbdata-stat") as pool:
        return dict(zip(names, pool.map(location.stat, names)))


def _explain(location: Location, error: ObjectNotFoundError) -> Exception:
    """What is at a URL that holds no dataset."""
    message = f"{location.url} holds no converted dataset: there is no {FILENAME} in it"
    try:
        objects, folders = location.list(), location.folders()
    except ObjectNotFoundError:
        hint = "check the URL, or give the folder of one dataset: the server may not list its folders (no index page)"
        return DatasetNotFoundError(f"{location.url}: no such folder or bucket ({error.message})", hint=hint)
    except FetchError:
        hint = "give the folder of one dataset; what else is there is not known without a listing (an index page)"
        return NotADatasetError(message, hint=hint)
    inside = [*folders, *(item.name for item in objects)]
    there = f"{plural(len(objects), 'file')} and {plural(len(folders), 'folder')}" if inside else "nothing"
    names = f": {', '.join(inside[:4])}{', ...' if len(inside) > 4 else ''}" if inside else ""
    hint = "give the folder of one dataset"
    if folders:
        hint += f"; `{settings.command('mirror', 'ls', location.url)}` lists those below it"
    return NotADatasetError(f"{message}, but {there}{names}", hint=hint)
