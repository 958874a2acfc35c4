"""OGBench: mazes, soccer, cubes, puzzles and drawing, of states and of pixels; sets without rewards, and single tasks.

Park, Frans, Eysenbach, Levine, "OGBench: Benchmarking Offline Goal-Conditioned RL", ICLR 2025
(https://arxiv.org/abs/2410.20092). Names are those of OGBench (`names`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....errors import FetchError, ObjectNotFoundError, UsageError
from ...fetch import Location, RemoteObject
from ...ingest.job import ConvertOptions
from ..catalogue_entry import CatalogueEntry
from ..known_environment import KnownEnvironment
from ..options import SourceOption
from ..source import Source, only_file
from .names import FILES, SetName, parse, parse_file, sets

if TYPE_CHECKING:
    from .job import OgbenchJob  # loaded when a dataset is opened: lists do without

HOME = "https://rail.eecs.berkeley.edu/datasets/ogbench"
COPY = "hf://datasets/zhouzypaul/ogbench_datasets"
#: What a set has of validation: a tenth of the episodes.
_VALIDATION = 10


class OgbenchSource(Source):
    """Names are those of OGBench, with ``-val`` for validation."""

    name = "ogbench"
    home = HOME
    copy = COPY
    options = (SourceOption("dataset", "the OGBench id of the file", metavar="ID", commands=("convert",)),)
    supports = frozenset({"parts", "codec", "layout"})

    def names(self) -> Sequence[str]:
        return [str(replace(name, validation=validation)) for validation in (False, True) for name in sets()]

    def knows(self, name: str) -> bool:
        """Those of `names`, and their single tasks."""
        return parse(name) is not None

    def catalogue(self) -> Sequence[CatalogueEntry]:
        """The file has the sets of training data."""
        file = self.catalogue_file
        return [] if file is None else [*file.entries(), *(_validation(entry) for entry in file.entries())]

    def describe_unlisted(self, name: str) -> CatalogueEntry | None:
        """The set that a single task relabels."""
        known = parse(name)
        entries = {entry.name: entry for entry in self.catalogue()}
        entry = entries.get(str(replace(known, task=None))) if known else None
        return entry and replace(entry, id=f"{self.name}/{name}", notes=entry.notes[1:])

    def environment(self, record: Mapping[str, Any]) -> KnownEnvironment | None:
        """The one that ogbench registers: of a single task with its rewards, else without a goal until it is reset."""
        name = parse(str(record.get("set") or record.get("dataset")))
        if name is None:
            return None
        task = "" if name.task is None else f"-singletask{f'-task{name.task}' if name.task else ''}"
        return KnownEnvironment(f"{name.environment}{task}-v0", requirements="ogbench")

    def places(self, name: str, options: ConvertOptions) -> Sequence[str]:
        """Its authors' server, and the copy where the catalogue says that it has the set; in the order of the catalogue."""
        urls = {HOME: self.home, COPY: self.copy}
        known = parse(name)
        entries = {entry.name: entry for entry in super().catalogue()}
        entry = entries.get(str(known.base)) if known else None
        return [urls[place.url] for place in entry.places] if entry else [self.home]

    def where_else(self, name: str) -> str:
        return (
            "name a folder or server that has the files with --mirror (or RBDATA_OGBENCH_MIRROR), such as OGBench's own "
            "cache: --mirror ~/.ogbench/data"
        )

    def find(self, name: str, location: Location, options: ConvertOptions) -> OgbenchJob:
        """Finds the files. Raises FetchErrors, UsageError."""
        from .job import OgbenchJob

        known = parse(name)
        assert known is not None
        files = (
            _numbered(location, known, options)
            if known.large
            else [(path, location.stat(path)) for path in known.files]
        )
        return OgbenchJob(name, known, location, files, options)

    def recognises(self, path: Path) -> bool:
        from ....errors import CorruptSourceError
        from ...formats.npz import NpzArchive

        file = only_file(path, ".npz")
        if file is None:
            return path.is_dir() and any(parse_file(one.name) for one in path.glob("*-v0*.npz"))
        try:
            with NpzArchive(file, file.name) as archive:
                keys = set(archive.keys)
        except (CorruptSourceError, OSError):
            return False
        # A user's own file may have the same three keys, and mean something else by the last row of an episode.
        named = parse_file(file.name) is not None or {"qpos", "qvel"} <= keys
        return named and {"observations", "actions", "terminals"} <= keys and not keys & {"rewards", "timeouts"}

    def find_in_folder(self, location: Location, options: ConvertOptions) -> OgbenchJob:
        """One file, or a folder with the files of one set; beside those of training, those of validation are left out."""
        from .job import OgbenchJob

        wanted = options.extra["dataset"]
        known = parse(wanted.removeprefix("ogbench/")) if wanted else None
        if wanted and known is None:
            raise UsageError(f"OGBench has no dataset {wanted!r}", hint="`rbdata list ogbench` shows all")
        files = [item for item in location.list() if item.name.endswith(".npz")]
        training = [item for item in files if not item.name.endswith("-val.npz")]
        if known:
            files = [item for item in files if item.name in {path.rpartition("/")[2] for path in known.files}] or files
        elif training:
            files = training
        stems = {parse_file(item.name) for item in files}
        if not files or (len(files) > 1 and len(stems) > 1) or (len(files) > 1 and None in stems):
            message = f"{location.url} holds {len(files)} npz files, not those of one dataset"
            raise ObjectNotFoundError(message, hint="say which with --dataset, or give a folder with one dataset")
        known = known or next(iter(stems))
        return OgbenchJob(None, known, location, [(item.name, item) for item in files], options)


def _numbered(location: Location, name: SetName, options: ConvertOptions) -> list[tuple[str, RemoteObject]]:
    """The files of a set of 100M steps, in the order of their numbers, from its folder or directly at the location.

    Raises ObjectNotFoundError where some are missing at a server; a folder of this machine is taken as it is.
    """
    chosen = [path for number, path in enumerate(name.files) if options.parts is None or number in options.parts]
    wanted = {path.rpartition("/")[2]: path for path in chosen}
    found: list[RemoteObject] = []
    for folder in (str(name.base), ""):
        try:
            found = [item for item in location.list(folder) if item.name in wanted]
        except ObjectNotFoundError:
            continue
        except FetchError:  # no index of the folder: its files are known all the same
            if folder:
                found = [location.stat(path) for path in wanted.values()]
        if found:
            break
    missing = sorted(wanted.keys() - {item.name for item in found})
    if not found or (missing and "://" in location.url):
        message = f"{location.url} has {len(found)} of {len(wanted)} files of {name}"
        hint = f"the first that is missing is {missing[0]}" if missing else f"it has the files 0 to {FILES - 1}"
        raise ObjectNotFoundError(message, hint=f"{hint}; --shards takes some of them")
    return [(wanted[item.name], item) for item in sorted(found, key=lambda item: item.name)]


def _validation(entry: CatalogueEntry) -> CatalogueEntry:
    """The entry of the validation set that belongs to one of training."""
    tenth = {key: value // _VALIDATION for key in ("steps", "episodes") if (value := getattr(entry, key)) is not None}
    return replace(entry, id=f"{entry.id}-val", bytes=None, approximate=True, **tenth)
