"""What Minari remotes hold: counts from each dataset's ``metadata.json``, sizes from listings; cached by `ingest.listing`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

from ....errors import CorruptSourceError, ObjectNotFoundError
from ...fetch import FetchOptions, Location, RemoteObject, open_location, read_all
from ...fetch.location import check_search, join_path
from ...ingest.listing import RemoteDataset, RemoteListing, keep, kept
from .names import as_location, is_id, remote_url

#: Metadata larger than this (Atari's bounds, written in full) are not fetched for two numbers.
_LARGEST_METADATA = 1 << 18
#: Folders below each other that are searched, and requests at once.
_DEEPEST, _CONNECTIONS = 6, 8


def remote_list(
    refresh: bool = False,
    *,
    root: Path | None = None,
    remote: str | None = None,
    fetch: FetchOptions | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> RemoteListing:
    """The datasets of a remote (default: the one that Minari itself would use), from the cache if there is one.

    ``refresh`` asks the remote again. Raises FetchErrors when the remote must be asked and cannot be.
    """
    url = as_location(remote) if remote else remote_url()
    known = None if refresh else kept("minari", url, root)
    if known is not None:
        return known
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
    return keep("minari", url, datasets, root)


# -- remotes -----------------------------------------------------------------------------------------------------------


def _find(location: Location) -> Iterator[tuple[str, RemoteObject | None, int | None]]:
    """Name, metadata object and size of every dataset."""
    whole, numbers = getattr(location, "tree", None), count(1)
    if whole is None:
        yield from _search(location, "", 0, numbers)
        return
    for repository in location.folders():
        check_search(location.url, next(numbers))
        files: dict[str, list[tuple[str, RemoteObject]]] = {}
        for path, item in whole(repository):
            name, marker, inside = path.partition("/data/")
            if marker and is_id(name):
                files.setdefault(name, []).append((inside, item))
        for name, items in files.items():
            check_search(location.url, next(numbers))
            described = next((item for inside, item in items if inside == "metadata.json"), None)
            yield name, described, sum(item.size or 0 for _, item in items)


def _search(
    location: Location, folder: str, depth: int, numbers: Iterator[int]
) -> Iterator[tuple[str, RemoteObject | None, int | None]]:
    """The same folder by folder, where a place cannot list all at once; ``numbers`` counts the folders."""
    if depth > _DEEPEST:
        return
    check_search(location.url, next(numbers))
    names = location.folders(folder)
    if "data" in names and is_id(folder):
        items = location.list(join_path(folder, "data"))
        described = next((item for item in items if item.name == "metadata.json"), None)
        whole = all(item.size is not None for item in items) and any(item.name.endswith(".hdf5") for item in items)
        yield folder, described, sum(item.size or 0 for item in items) if whole else None
        return
    for name in names:
        if not name.startswith("."):
            yield from _search(location, join_path(folder, name), depth + 1, numbers)


def _describe(location: Location, name: str, item: RemoteObject | None, size: int | None) -> RemoteDataset:
    if item is None or (item.size or 0) > _LARGEST_METADATA:
        return RemoteDataset(name, bytes=size)
    from .metadata import parse_metadata  # here, since it needs numpy: what was kept is listed without

    try:
        metadata = parse_metadata(read_all(location, item, limit_bytes=_LARGEST_METADATA), item.url)
    except (CorruptSourceError, ObjectNotFoundError, ValueError):
        return RemoteDataset(name, bytes=size)  # one bad entry must not hide the others
    return RemoteDataset(name, metadata.episodes, metadata.steps, size)
