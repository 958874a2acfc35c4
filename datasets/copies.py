"""Converted datasets at a location: found, copied to this machine, and what a damaged dataset is repaired from.

A copy is a repair of an empty folder: the blocks that the folder lacks are fetched, compared with the table of blocks (or,
without one, with the ranges of the manifest) and written where they belong. So an interrupted copy continues, and whatever the
location sends, the dataset has the bytes that its manifest states, or there is none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby
from pathlib import Path
from threading import Lock
from typing import IO, Any

import numpy as np

from ..errors import (
    ChecksumError,
    DamagedDatasetError,
    DatasetNotFoundError,
    DiskError,
    FetchError,
    ForbiddenError,
    ObjectNotFoundError,
    TransientFetchError,
)
from ..storage.checksums import Crc32c
from ..storage.durable import is_full
from ..storage.folder import RUN, DatasetPlace, check_space, free_bytes, remove_tree
from ..storage.integrity import BlockChecksums, CheckedBlock
from ..storage.manifest import BLOCK_TABLE, FILENAME, LARGEST_MANIFEST, Manifest, parse_manifest, write_manifest
from ..storage.threads import call_in_threads, map_in_threads
from ..storage.work import Work, fingerprint
from .fetch import FetchOptions, Location, RemoteObject, open_location, read_all, stream
from .fetch.location import CONNECTIONS, find_object, is_hub_dataset, is_plain_name, join_path
from .ingest.request import Estimate, Listener
from .workers.task import TaskProgress

DAMAGED = "the mirror's copy is damaged: push it again, or use another mirror"
#: Files that are fetched at a time.
_FILES = 4


@dataclass(frozen=True)
class Copy:
    """A converted dataset in a folder of a location ('' for the location itself); ``item`` is its manifest, with ``text``."""

    location: Location
    folder: str
    item: RemoteObject
    text: bytes
    manifest: Manifest

    @property
    def url(self) -> str:
        return f"{self.location.url}/{self.folder}" if self.folder else self.location.url

    def stat(self, name: str) -> RemoteObject:
        """One of its files."""
        return self.location.stat(join_path(self.folder, name))

    def stat_all(self) -> dict[str, RemoteObject]:
        """All its files, by name."""
        names = sorted(self.manifest.files)
        return dict(zip(names, map_in_threads(self.stat, names, CONNECTIONS, "rbdata-stat")))

    def checked(self, name: str, item: RemoteObject) -> RemoteObject:
        """A file with the size that the manifest states. Raises ChecksumError if it has another one."""
        size = self.manifest.size_of(name)
        if item.size not in (None, size):
            raise ChecksumError(f"{item.url}: {item.size} bytes, expected {size}", hint=DAMAGED)
        return replace(item, size=size)

    @cached_property
    def table(self) -> bytes | None:
        """The table of blocks; None for a dataset of small files, which has none."""
        if not self.manifest.blocks:
            return None
        item = self.checked(BLOCK_TABLE, self.stat(BLOCK_TABLE))
        return read_all(self.location, item, limit_bytes=LARGEST_MANIFEST)

    @cached_property
    def checksums(self) -> BlockChecksums:
        """The blocks of all files. Raises DamagedDatasetError for a damaged table."""
        try:
            return BlockChecksums(self.manifest, self.table)
        except DamagedDatasetError as error:
            raise DamagedDatasetError(f"{self.url}: {error.message}", hint=DAMAGED) from None


# -- find ----------------------------------------------------------------------------------------------------------------


def read_copy(location: Location, folder: str, item: RemoteObject) -> Copy:
    """The dataset of a manifest. Raises as `read_manifest` does, and DamagedDatasetError for one that names files outside its
    dataset: a mirror is not trusted."""
    text = read_all(location, item, limit_bytes=LARGEST_MANIFEST)
    try:
        manifest = parse_manifest(text, item.url.removesuffix(f"/{FILENAME}"))
    except (DamagedDatasetError, DatasetNotFoundError) as error:
        raise type(error)(error.message, hint=DAMAGED) from None
    for name in manifest.files:
        plain = all(is_plain_name(part) and part[0] != "." and "\\" not in part for part in name.split("/"))
        if not plain or name in (FILENAME, RUN):
            message = f"the manifest at {location.url} names a file outside its dataset: {name!r}"
            raise DamagedDatasetError(message, hint="do not use this mirror")
    return Copy(location, folder, item, text, manifest)


def find_copy(location: Location, folder: str = "") -> Copy | None:
    """The dataset in a folder of a location; None if there is none, or access is denied. A revision of the Hub is pinned."""
    try:
        item = find_object(location, join_path(folder, FILENAME))
        found = None if item is None else read_copy(location, folder, item)
    except ForbiddenError:
        return None  # without permission to list, stores deny access to objects that do not exist
    except (ObjectNotFoundError, TransientFetchError, ChecksumError):
        raise
    except FetchError:
        return None  # a web server that answers every request with a web page
    return None if found is None else replace(found, location=location.pinned())


def find_converted(url: str, dataset_id: str, fetch: FetchOptions) -> Copy | None:
    """A converted dataset in a mirror, or the one that is a repository of the Hub; None if there is none of that id.

    Raises DamagedDatasetError.
    """
    location = open_location(url, options=fetch)
    copy = find_copy(location, dataset_id)
    if copy is None:
        copy = find_copy(location) if is_hub_dataset(url) else None
        return copy if copy is not None and copy.manifest.id == dataset_id else None
    if copy.manifest.id != dataset_id:
        message = f"{location.url}/{dataset_id} holds the manifest of {copy.manifest.id}"
        raise DamagedDatasetError(message, hint="use `rbdata mirror push` instead of copying folders")
    return copy


def same_content(one: Manifest, other: Manifest) -> bool:
    """Whether two datasets are equal in all fields that two conversions of the same data have in common."""

    def content(manifest: Manifest) -> dict[str, Any]:
        own = dict.fromkeys(("provenance", "checksum", "files", "blocks"))
        return {**manifest.to_json(), **own, "content": manifest.content}

    return content(one) == content(other)


def same_request(one: Manifest, other: Manifest) -> bool:
    """Whether two datasets of one id were asked for with the same options and shards: their contents must then be the same."""
    return all(one.source.get(name) == other.source.get(name) for name in ("options", "shards", "upstream"))


# -- copy ----------------------------------------------------------------------------------------------------------------


def estimate_copy(copy: Copy, place: DatasetPlace, *, force: bool) -> Estimate:
    """What `copy_dataset` would fetch."""
    manifest, left = copy.manifest, copy.manifest.bytes
    if Work.belongs(place, _mark(manifest), restart=force):
        left -= sum(_whole_blocks(copy, place.working, name) for name in manifest.files)
    return Estimate(
        id=place.id,
        path=place.path,
        location=copy.location.url,
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


def copy_dataset(
    copy: Copy, place: DatasetPlace, listener: Listener, *, force: bool, command: str
) -> tuple[Estimate, Manifest]:
    """Copy a converted dataset, or continue an interrupted copy; the caller holds the lock of ``place``.

    Raises ChecksumError if a file does not match the manifest, DiskError, and as `Work` does.
    """
    estimate = estimate_copy(copy, place, force=force)
    listener.on_estimate(estimate)
    items = {name: copy.checked(name, item) for name, item in copy.stat_all().items()}
    work = Work(place, _mark(copy.manifest), restart=force, command=command)
    if not work.remembered("copy"):
        work.remember("copy", True)
    check_space(work.folder, estimate.fetch_bytes, place.id)
    done, lock = 0, Lock()

    def fetch(name: str, go_on: Callable[[], None]) -> None:
        def on_bytes(count: int) -> None:
            nonlocal done
            go_on()
            with lock:
                done += count
                total = max(done, estimate.fetch_bytes)  # blocks of an earlier run may be damaged
                listener.on_progress([TaskProgress(0, done, max(1, total), done, 0)])

        fetch_blocks(copy, name, items[name], work.folder, copy.checksums.all(name), on_bytes)

    _ = copy.checksums  # before the threads ask for it
    call_in_threads(fetch, items, _FILES, "rbdata-copy")
    listener.on_part_done(0)
    listener.on_stage("committing")
    copied = {"mirror": copy.location.url, "copied": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    manifest = replace(copy.manifest, provenance={**copy.manifest.provenance, **copied})
    write_manifest(work.folder, manifest)
    place.install()
    return estimate, manifest


def _mark(manifest: Manifest) -> str:
    """The fingerprint of an unfinished copy of this dataset."""
    return fingerprint({"copy": manifest.to_json()["checksum"], "id": manifest.id})


def _whole_blocks(copy: Copy, folder: Path, name: str) -> int:
    """Bytes of the blocks that a file has to their ends."""
    path, edges = folder / name, copy.checksums.edges[name]
    size = path.stat().st_size if path.is_file() else 0
    return int(edges[np.searchsorted(edges, size, "right") - 1])


def fetch_blocks(
    copy: Copy,
    name: str,
    item: RemoteObject,
    folder: Path,
    blocks: Iterable[CheckedBlock],
    on_bytes: Callable[[int], None] = lambda count: None,
) -> int:
    """Fetch those blocks of a file that a folder does not hold, and write them in place; returns how many bytes.

    Consecutive blocks are read as one stream. A link or a folder in the place of the file is replaced; the target of a link is
    not changed. Raises ChecksumError for a block that differs from its checksum, DiskError, and the fetch errors.
    """
    path, fetched = folder / name, 0
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or not path.is_file():
        remove_tree(path)
        path.touch()
    try:
        with path.open("r+b") as file:
            for is_there, missing in groupby(blocks, lambda block: block.is_in(folder)):
                if not is_there:
                    fetched += _receive(copy, item, file, missing, on_bytes)
            file.truncate(copy.manifest.size_of(name))
            os.fsync(file.fileno())
    except OSError as error:
        if not is_full(error):
            raise
        message = f"{path}: the disk is full; no space for {item.url}"
        raise DiskError(message, hint="free some space and run the same command again: it continues") from error
    return fetched


def _receive(
    copy: Copy, item: RemoteObject, file: IO[bytes], blocks: Iterator[CheckedBlock], on_bytes: Callable[[int], None]
) -> int:
    """Write consecutive blocks of an object to their places in a file; returns how many bytes."""
    first = next(blocks)
    end, rest = first.begin, b""
    with closing(stream(copy.location, item, start=end)) as pieces:
        for block in chain([first], blocks):
            checksum = Crc32c()
            file.seek(block.begin)
            while (left := block.length - checksum.length) and (rest := rest or next(pieces, b"")):
                piece, rest = rest[:left], rest[left:]
                on_bytes(len(piece))
                file.write(piece)
                checksum.update(piece)
            if checksum.range != (block.length, block.crc32c):
                message = f"{copy.url}/{block.path}: checksum mismatch, bytes {block.begin}-{block.end}"
                raise ChecksumError(message, hint=DAMAGED)
            end = block.end
    return end - first.begin
