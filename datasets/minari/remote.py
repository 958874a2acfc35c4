"""What Minari remotes hold: asked for once, and kept with a date, so that it can be looked at without a network.

The answer is kept below the root in ``.remote/minari-<remote>.json``:

    {"format": 1, "remote": url, "date": UTC, "datasets": [{"name", "episodes", "steps", "bytes"}, ...]}

Counts come from each dataset's ``metadata.json``, sizes from listings; null where they were too much to ask for.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ... import config
from ...errors import CorruptSourceError, ObjectNotFoundError
from ...storage.checksums import crc32c
from ...storage.manifest import write_atomically
from ..fetch import FetchOptions, Location, RemoteObject, open_location, read_all
from ..fetch.location import joined
from .metadata import parse_metadata
from .names import as_location, is_id, remote_url

FOLDER, FORMAT = ".remote", 1
#: Metadata larger than this (Atari's bounds, written in full) are not fetched for two numbers.
_LARGEST_METADATA = 1 << 18
_DEEPEST = 6
_CONNECTIONS = 8


@dataclass(frozen=True)
class RemoteDataset:
    """One dataset at a remote; what is not known is None."""

    name: str
    episodes: int | None = None
    steps: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class RemoteListing:
    """What a remote held at a date (``YYYY-MM-DDTHH:MM:SSZ``)."""

    remote: str
    date: str
    datasets: tuple[RemoteDataset, ...]


def remote_list(
    refresh: bool = False,
    *,
    root: Path | None = None,
    remote: str | None = None,
    fetch: FetchOptions | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> RemoteListing:
    """The datasets of a remote (default: the one that Minari itself would use), from the cache if there is one.

    ``refresh`` asks anew. Raises FetchErrors when the remote must be asked and cannot be.
    """
    url = as_location(remote) if remote else remote_url()
    kept = None if refresh else _kept(url, root)
    if kept is not None:
        return kept
    location = open_location(url, options=fetch)
    found = list(_find(location))
    pool = ThreadPoolExecutor(_CONNECTIONS, "rbdata-list")
    try:
        datasets = []
        for number, dataset in enumerate(pool.map(lambda entry: _describe(location, *entry), found)):
            datasets.append(dataset)
            on_progress(number + 1, len(found))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    listing = RemoteListing(url, date, tuple(sorted(datasets, key=lambda dataset: dataset.name)))
    _keep(listing, root)
    return listing


def cached_names(url: str, root: Path | None = None) -> list[str]:
    """Names in the cache, none where there is none. Never asks the network."""
    kept = _kept(url, root)
    return [dataset.name for dataset in kept.datasets] if kept else []


# -- the remote --------------------------------------------------------------------------------------------------------


def _find(location: Location) -> Iterator[tuple[str, RemoteObject | None, int | None]]:
    """Name, metadata object and size of every dataset."""
    whole = getattr(location, "tree", None)
    if whole is None:
        yield from _search(location, "", 0)
        return
    for repository in location.folders():
        files: dict[str, list[tuple[str, RemoteObject]]] = {}
        for path, item in whole(repository):
            name, marker, inside = path.partition("/data/")
            if marker and is_id(name):
                files.setdefault(name, []).append((inside, item))
        for name, items in files.items():
            described = next((item for inside, item in items if inside == "metadata.json"), None)
            yield name, described, sum(item.size or 0 for _, item in items)


def _search(location: Location, folder: str, depth: int) -> Iterator[tuple[str, RemoteObject | None, int | None]]:
    """The same folder by folder, where a place cannot list all at once."""
    if depth > _DEEPEST:
        return
    names = location.folders(folder)
    if "data" in names and is_id(folder):
        items = location.list(joined(folder, "data"))
        described = next((item for item in items if item.name == "metadata.json"), None)
        whole = all(item.size is not None for item in items) and any(item.name.endswith(".hdf5") for item in items)
        yield folder, described, sum(item.size or 0 for item in items) if whole else None
        return
    for name in names:
        if not name.startswith("."):
            yield from _search(location, joined(folder, name), depth + 1)


def _describe(location: Location, name: str, item: RemoteObject | None, size: int | None) -> RemoteDataset:
    if item is None or (item.size or 0) > _LARGEST_METADATA:
        return RemoteDataset(name, bytes=size)
    try:
        metadata = parse_metadata(read_all(location, item, limit_bytes=_LARGEST_METADATA), item.url)
    except (CorruptSourceError, ObjectNotFoundError, ValueError):
        return RemoteDataset(name, bytes=size)  # one bad entry must not hide the others
    return RemoteDataset(name, metadata.episodes, metadata.steps, size)


# -- the cache ---------------------------------------------------------------------------------------------------------


def _path(url: str, root: Path | None) -> Path:
    return config.root(root) / FOLDER / f"minari-{crc32c(url.encode())}.json"


def _kept(url: str, root: Path | None) -> RemoteListing | None:
    try:
        record: Any = json.loads(_path(url, root).read_text(encoding="utf-8"))
        if record["format"] != FORMAT or record["remote"] != url:
            return None
        datasets = tuple(RemoteDataset(**entry) for entry in record["datasets"])
        return RemoteListing(url, str(record["date"]), datasets)
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not there, or of another time: it is asked for again


def _keep(listing: RemoteListing, root: Path | None) -> None:
    path = _path(listing.remote, root)
    record = {"format": FORMAT, **asdict(listing)}
    with contextlib.suppress(OSError):  # a root that cannot be written to is no reason not to answer
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(record, indent=1).encode())
