"""Minari: datasets of the Farama Foundation, and those that its collector records.

https://minari.farama.org; the files are described in `files` and `reader`.

An id is ``(namespace/)name-vN``; namespaces may nest (``D4RL/door/human-v2``). Everywhere the dataset lies below its id, in
``data/``: in Minari's own root on this machine (``~/.minari/datasets``, or MINARI_DATASETS_PATH), in a bucket, below an owner
at the Hugging Face Hub (the first namespace is the repository).
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ....errors import CorruptSourceError, FetchError, ObjectNotFoundError, UsageError
from ....storage.threads import map_in_threads
from ...fetch import Location, RemoteObject, open_location, read_all
from ...fetch.location import join_path
from ...ingest.reader import Reader
from ...ingest.records import ConvertOptions
from ..catalogue_entry import CatalogueEntry, ListedDataset, Place, action_kind, observation_kind, space_text
from ..options import declared
from ..source import Source, files_below, only_file

HOME = "hf://farama-minari"
_ID = re.compile(r"(?:[-\w]+/)*[-\w]+?-v\d+")
METADATA = "metadata.json"
#: What the group of an episode has in an HDF5 file.
_WRITTEN = ("id", "total_steps", "observations", "actions", "rewards", "terminations", "truncations")
#: Atari's is 1 MB: the bounds of its frames are written in full. A listing does not fetch that for two numbers.
_LARGEST_METADATA, _LARGEST_LISTED = 64 << 20, 1 << 18
#: Folders below each other that are searched, in the root on this machine and at remotes.
_DEEPEST_LOCAL, _DEEPEST_REMOTE = 8, 6


def is_id(name: str) -> bool:
    """Whether this could be a Minari id."""
    return _ID.fullmatch(name) is not None


def local_root() -> Path:
    """Where Minari keeps its datasets on this machine; it need not be there."""
    chosen = os.environ.get("MINARI_DATASETS_PATH")
    return Path(chosen) if chosen else Path.home() / ".minari" / "datasets"


def local_names() -> list[str]:
    """Ids of the datasets in the local root, sorted."""
    return sorted(_walk(local_root(), "", 0))


def _walk(folder: Path, prefix: str, depth: int) -> Iterator[str]:
    try:
        entries = [entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    except OSError:
        return
    for entry in entries:
        name = prefix + entry.name
        if (entry / "data").is_dir():
            if is_id(name):
                yield name
        elif depth < _DEEPEST_LOCAL:
            yield from _walk(entry, name + "/", depth + 1)


def as_location(url: str) -> str:
    """A remote as Minari writes it, as a place that can be opened."""
    return "gs://" + url[len("gcp://") :] if url.startswith("gcp://") else url


def local_entries() -> Iterator[CatalogueEntry]:
    """One for each dataset in the local root; of datasets from before Minari 0.5, without a metadata.json, the size only."""
    top = local_root()
    place = Place("this machine", str(top), "open", note="Minari's own root")
    for name in local_names():
        data = top / name / "data"
        size = sum((Path(parent) / file).stat().st_size for parent, _, files in os.walk(data) for file in files)
        try:
            facts = _stated_facts(json.loads((data / METADATA).read_bytes()))
        except (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
            facts = {}  # missing, or not what Minari writes: the download reports the error
        yield CatalogueEntry(f"minari/{name}", bytes=size, places=(place,), **facts)


def _stated_facts(record: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of an entry, as far as a metadata file states them."""
    counts = {"steps": "total_steps", "episodes": "total_episodes"}
    facts: dict[str, Any] = {ours: int(record[theirs]) for ours, theirs in counts.items() if theirs in record}
    for ours, kind in (("observations", observation_kind), ("actions", action_kind)):
        stated = f"{ours[:-1]}_space"
        if space := json.loads(record.get(stated) or "null"):
            facts[ours], facts[stated] = kind(space), space_text(space)
    if spec := json.loads(record.get("env_spec") or "null"):
        facts["environment"] = str(spec["id"])
    return facts


class MinariSource(Source):
    """Names are Minari ids (``D4RL/door/human-v2``).

    Without a mirror, a dataset is taken from Minari's own root on this machine where it is there, else from the remote that
    MINARI_REMOTE names, else from the Farama Foundation.
    """

    name = "minari"
    scores_in_datasets = True
    options = declared("minari")
    open_ended = True

    @property
    def home(self) -> str:
        """The remote that Minari itself would use: MINARI_REMOTE (``hf://owner``, ``gcp://bucket``), else the Foundation's."""
        return as_location(os.environ.get("MINARI_REMOTE") or HOME)

    @property
    def remote(self) -> str:
        return self.home

    def places(self, name: str, options: ConvertOptions) -> Sequence[str]:
        """Minari's own root where it has the dataset, else the remote."""
        return [_root_url() if (local_root() / name / "data").is_dir() else self.home]

    def names(self) -> Sequence[str]:
        """The datasets in the local root, those of the remote when it was last asked, and those known to be published."""
        listing, file = self.cached_listing(), self.catalogue_file
        listed = [one.name for one in listing.datasets] if listing else []
        known = file.names() if file and self.home == HOME else []
        return list(dict.fromkeys([*local_names(), *listed, *known]))

    def catalogue(self) -> Sequence[CatalogueEntry]:
        """The Foundation's datasets, unless MINARI_REMOTE names another remote, and those in the local root."""
        published = {entry.id: entry for entry in super().catalogue()} if self.home == HOME else {}
        for here in local_entries():
            known = published.get(here.id, CatalogueEntry(here.id))
            stated = {name: value for name, value in vars(here).items() if value not in (None, (), False)}
            stated |= {"places": (*here.places, *known.places), "approximate": False}
            published[here.id] = replace(known, **stated)
        return list(published.values())

    def list_remote(self, location: Location, on_progress: Callable[[int, int], None]) -> list[ListedDataset]:
        """Counts from the metadata of each dataset, sizes from listings."""
        found, datasets = list(_datasets_at(location)), list[ListedDataset]()
        with closing(map_in_threads(lambda entry: _counts_of(location, *entry), found, 8, "rbdata-list")) as counted:
            for dataset in counted:
                datasets.append(dataset)
                on_progress(len(datasets), len(found))
        return datasets

    def knows(self, name: str) -> bool:
        return is_id(name)

    def split_address(self, text: str) -> tuple[str, str] | None:
        """``hf://owner/D4RL/door/human-v2`` and the like."""
        scheme, separator, rest = text.partition("://")
        if not separator or scheme not in ("hf", "gcp", "gs") or text.startswith("hf://datasets/"):
            return None
        owner, _, name = rest.partition("/")
        if not owner or not is_id(name):
            message = f"{text} is not the address of a Minari dataset"
            raise UsageError(message, hint="write hf://owner/namespace/name-v0 or gcp://bucket/namespace/name-v0")
        return name, as_location(f"{scheme}://{owner}")

    def find(self, name: str, location: Location, options: ConvertOptions) -> Reader:
        """Finds the files and reads the metadata. Raises FetchErrors, CorruptSourceError, UsageError."""
        why = f"it is in Minari's own root {location.url}" if location.url == _root_url() else ""
        try:
            return _make_reader(name, join_path(name, "data"), location, options, why)
        except ObjectNotFoundError as error:
            error.hint = _other_names(name, location, self.names()) or error.hint
            raise

    def recognises(self, path: Path) -> bool:
        from ...ingest.raw_files import hdf5_names
        from .files import FILE

        for folder in (path, path / "data"):
            if (folder / FILE).is_file():
                return True
            with suppress(OSError):  # a metadata.json may be anyone's
                about = (folder / METADATA).read_bytes()
                if b'"total_episodes"' in about and b'"total_steps"' in about:
                    return True
        file = only_file(path, ".hdf5", ".h5")
        names = hdf5_names(file) if file is not None else {}
        first = next(iter(names), "")  # groups of a user's own may be called episode_0
        return {f"{first}/{name}" for name in _WRITTEN} <= names.keys() and first.startswith("episode_")

    def find_in_folder(self, location: Location, options: ConvertOptions) -> Reader:
        """A folder that holds a dataset's ``data``, or what is in that, or an HDF5 file of any name."""
        from .files import FILE
        from .reader import MinariReader

        if "data" in location.folders():
            return _make_reader(None, "data", location, options)
        files = [item for item in location.list() if item.name.endswith((".hdf5", ".h5"))]
        if len(files) == 1 and files[0].name != FILE:
            return MinariReader(None, location, [(FILE, files[0])], None, None, options)
        return _make_reader(None, "", location, options)


def _root_url() -> str:
    return open_location(local_root()).url


def _make_reader(name: str | None, folder: str, location: Location, options: ConvertOptions, why: str = "") -> Reader:
    """The reader of a dataset whose files are in a folder. Raises ObjectNotFoundError where there is none."""
    from .files import FILE, is_part
    from .metadata import parse_metadata
    from .reader import MinariReader

    try:
        item = location.stat(join_path(folder, METADATA))
    except ObjectNotFoundError as missing:  # a dataset older than it must have its HDF5 file
        try:
            objects = [(FILE, location.stat(join_path(folder, FILE)))]
        except ObjectNotFoundError:
            message = f"{location.url}/{folder} holds no Minari dataset: there is neither {METADATA} nor {FILE}"
            raise ObjectNotFoundError(message, hint=missing.hint) from missing
        return MinariReader(name, location, objects, None, None, options, why)
    data = read_all(location, item, limit_bytes=_LARGEST_METADATA)
    metadata = parse_metadata(data, item.url)
    if metadata.format == "hdf5":
        objects = [(FILE, location.stat(join_path(folder, FILE)))]
    else:
        top = folder + "/" if folder else ""
        found = files_below(location, folder, ".arrow", ".parquet", ".feather", ".json")
        objects = [(path.removeprefix(top), item) for path, item in found if is_part(path.removeprefix(top))]
        if not objects:
            raise CorruptSourceError(f"{location.url}/{folder} holds no episodes in {metadata.format} format")
    return MinariReader(name, location, objects, (item, data), metadata, options, why)


def _other_names(name: str, location: Location, known: Sequence[str]) -> str:
    """The nearest names, to suggest: those of neighbours at the same place, else known ones."""
    parent, there = name.rpartition("/")[0], list[str]()
    with suppress(FetchError):
        there = [join_path(parent, folder) for folder in location.folders(parent)]
    near = difflib.get_close_matches(name, there, n=3, cutoff=0.6)
    near = near or difflib.get_close_matches(name, known, n=3, cutoff=0.85)
    return f"did you mean {', '.join(f'minari/{one}' for one in near)}?" if near else ""


# -- what remotes hold -------------------------------------------------------------------------------------------------


def _datasets_at(location: Location) -> Iterator[tuple[str, RemoteObject | None, int | None]]:
    """Name, metadata object and size of every dataset: of all files at once where the place lists them so, else folder by
    folder, which says no size for a folder per episode."""
    whole = getattr(location, "tree", None)
    found: dict[str, dict[str, RemoteObject]] = {}
    for path, item in (one for repository in location.folders() for one in whole(repository)) if whole else ():
        name, marker, inside = path.partition("/data/")
        if marker and is_id(name):
            found.setdefault(name, {})[inside] = item
    for folder, _, names in () if whole else location.walk(deepest=_DEEPEST_REMOTE):
        if "data" in names and is_id(folder):
            found[folder] = {item.name: item for item in location.list(join_path(folder, "data"))}
            names.clear()
        names[:] = [name for name in names if not name.startswith(".")]
    for name, items in found.items():
        sizes = [item.size for item in items.values()]
        is_whole = None not in sizes and (whole or any(inside.endswith(".hdf5") for inside in items))
        yield name, items.get(METADATA), sum(size or 0 for size in sizes) if is_whole else None


def _counts_of(location: Location, name: str, item: RemoteObject | None, size: int | None) -> ListedDataset:
    if item is None or (item.size or 0) > _LARGEST_LISTED:
        return ListedDataset(name, bytes=size)
    try:
        stated = json.loads(read_all(location, item, limit_bytes=_LARGEST_LISTED))
        counts = [int(stated[key]) for key in ("total_episodes", "total_steps")]
    except (CorruptSourceError, ObjectNotFoundError, ValueError, TypeError, LookupError):
        return ListedDataset(name, bytes=size)
    return ListedDataset(name, counts[0], counts[1], size)
