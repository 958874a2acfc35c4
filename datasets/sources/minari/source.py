"""Minari: datasets of the Farama Foundation, and of anybody who records with its collector.

https://minari.farama.org; the format is described in `hdf5` and `arrow`, the places in `names`. Wherever a dataset lies, its
files are below ``<id>/data``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ....errors import CorruptSourceError, FetchError, ObjectNotFoundError
from ...fetch import FetchOptions, Location, RemoteObject, open_location, read_all
from ...fetch.location import join_path
from ...ingest.listing import RemoteListing, kept
from ...ingest.protocol import ConvertOptions
from ..catalogue_entry import CatalogueEntry
from ..options import TEXT
from ..source import Source, only_file
from .names import HOME, KNOWN, is_id, local_entries, local_names, local_root, remote_url, split_url
from .remote_counts import remote_list

if TYPE_CHECKING:
    from .job import MinariJob  # loaded when a dataset is opened: lists do without

METADATA = "metadata.json"
#: Atari's is 1 MB: the bounds of its frames are written in full.
_LARGEST_METADATA = 64 << 20


class MinariSource(Source):
    """Names are Minari ids (``D4RL/door/human-v2``).

    Without a mirror, a dataset is taken from Minari's own root on this machine where it is there, else from the remote that
    MINARI_REMOTE names, else from the Farama Foundation.
    """

    name = "minari"
    scores_in_datasets = True
    options = (TEXT,)
    open_ended = True
    lists_remotely = True

    @property
    def home(self) -> str:
        return remote_url()

    def place(self, name: str) -> str:
        """Minari's own root where it has the dataset, else the remote."""
        return _root_url() if (local_root() / name / "data").is_dir() else self.home

    def names(self) -> Sequence[str]:
        """What is in the local root, what the remote held when it was last asked, and what is known to be published."""
        known = KNOWN if self.home == HOME else ()
        listing = self.listing()
        return list(
            dict.fromkeys([*local_names(), *(one.name for one in (listing.datasets if listing else ())), *known])
        )

    def catalogue(self) -> Sequence[CatalogueEntry]:
        """The Foundation's datasets, unless MINARI_REMOTE names another remote, and those in the local root."""
        file = self.catalogue_file
        published = {entry.id: entry for entry in file.entries()} if file and self.home == HOME else {}
        for here in local_entries():
            known = published.get(here.id, CatalogueEntry(here.id))
            stated = {name: value for name, value in vars(here).items() if value not in (None, (), False)}
            published[here.id] = replace(
                known, **{**stated, "places": (*here.places, *known.places), "approximate": False}
            )
        return list(published.values())

    def listing(self, root: Path | None = None) -> RemoteListing | None:
        return kept(self.name, self.home, root)

    def refresh(self, root: Path | None, fetch: FetchOptions, on_progress: Callable[[int, int], None]) -> RemoteListing:
        return remote_list(True, root=root, fetch=fetch, on_progress=on_progress)

    def knows(self, name: str) -> bool:
        return is_id(name)

    def split_address(self, text: str) -> tuple[str, str] | None:
        """``hf://owner/D4RL/door/human-v2`` and the like."""
        return split_url(text)

    def find(self, name: str, location: Location, options: ConvertOptions) -> MinariJob:
        """Finds the files and reads the metadata. Raises FetchErrors, CorruptSourceError, UsageError."""
        why = f"it is in Minari's own root {location.url}" if location.url == _root_url() else ""
        try:
            return _open(name, join_path(name, "data"), location, options, why)
        except ObjectNotFoundError as error:
            error.hint = _instead(name, location) or error.hint
            raise

    def recognises(self, path: Path) -> bool:
        from ...ingest.raw_reading import hdf5_names
        from .hdf5 import FILE

        if any((path / folder / name).is_file() for folder in ("", "data") for name in (METADATA, FILE)):
            return True
        file = only_file(path, ".hdf5", ".h5")
        return file is not None and not {"episode_0", "minari_version", "total_episodes"}.isdisjoint(hdf5_names(file))

    def find_in_folder(self, location: Location, options: ConvertOptions) -> MinariJob:
        """A folder that holds a dataset's ``data``, or what is in that, or an HDF5 file of any name."""
        from .hdf5 import FILE
        from .job import MinariJob

        if "data" in location.folders():
            return _open(None, "data", location, options, "")
        files = [item for item in location.list() if item.name.endswith((".hdf5", ".h5"))]
        if len(files) == 1 and files[0].name != FILE:
            return MinariJob(None, location, [(FILE, files[0])], None, None, options, "")
        return _open(None, "", location, options, "")


def _root_url() -> str:
    return open_location(local_root()).url


def _open(name: str | None, folder: str, location: Location, options: ConvertOptions, why: str) -> MinariJob:
    from .arrow import is_part
    from .hdf5 import FILE
    from .job import MinariJob
    from .metadata import parse_metadata

    try:
        item = location.stat(join_path(folder, METADATA))
    except ObjectNotFoundError as missing:  # a dataset older than it must have its HDF5 file
        try:
            objects = [(FILE, location.stat(join_path(folder, FILE)))]
        except ObjectNotFoundError:
            message = f"{location.url}/{folder} holds no Minari dataset: there is neither {METADATA} nor {FILE}"
            raise ObjectNotFoundError(message, hint=missing.hint) from missing
        return MinariJob(name, location, objects, None, None, options, why)
    data = read_all(location, item, limit_bytes=_LARGEST_METADATA)
    metadata = parse_metadata(data, item.url)
    if metadata.format == "hdf5":
        objects = [(FILE, location.stat(join_path(folder, FILE)))]
    else:
        objects = [(path, item) for path, item in _tree(location, folder) if is_part(path)]
        if not objects:
            raise CorruptSourceError(f"{location.url}/{folder} holds no episodes in {metadata.format} format")
    return MinariJob(name, location, objects, (item, data), metadata, options, why)


def _tree(location: Location, folder: str) -> list[tuple[str, RemoteObject]]:
    """Everything two levels below a folder, with its path relative to it."""
    whole = getattr(location, "tree", None)
    if whole is not None:
        prefix = folder + "/" if folder else ""
        return [(path[len(prefix) :], item) for path, item in whole(folder)]
    pool = ThreadPoolExecutor(8, "rbdata-list")
    try:
        names = location.folders(folder)
        listed = pool.map(lambda name: location.list(join_path(folder, name)), names)
        return [(f"{name}/{item.name}", item) for name, items in zip(names, listed) for item in items]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _instead(name: str, location: Location) -> str:
    """What else there is: other versions and neighbours at the same place, or the nearest names known."""
    parent, _, last = name.rpartition("/")
    try:
        there = [join_path(parent, folder) for folder in location.folders(parent)]
    except FetchError:
        there = []
    stem = last.rpartition("-v")[0]
    near = [one for one in there if is_id(one) and one.rpartition("/")[2].rpartition("-v")[0] == stem]
    near = near or difflib.get_close_matches(name, there, n=3, cutoff=0.6)
    near = near or difflib.get_close_matches(name, KNOWN, n=3, cutoff=0.85)
    return f"did you mean {', '.join(f'minari/{one}' for one in near[:3])}?" if near else ""
