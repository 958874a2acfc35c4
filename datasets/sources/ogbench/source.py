"""OGBench: mazes, soccer, cubes, puzzles and drawing, of states and of pixels; sets without rewards, and single tasks.

Park, Frans, Eysenbach, Levine, "OGBench: Benchmarking Offline Goal-Conditioned RL", ICLR 2025
(https://arxiv.org/abs/2410.20092). Names are those of OGBench:

    antmaze-large-navigate-v0                          antmaze-large-navigate-v0.npz
    antmaze-large-navigate-v0-val                      antmaze-large-navigate-v0-val.npz
    cube-double-play-100m-v0                           cube-double-play-100m-v0/cube-double-play-v0-000.npz, 001 ... 099
    cube-double-play-100m-v0-val                       the files beside them that end in -val.npz
    antmaze-large-navigate-singletask-v0               a set with the rewards of the environment's default task
    antmaze-large-navigate-singletask-task3-v0-val     of task 3, validation

From seohongpark/ogbench: data_gen_scripts/commands.sh (the 85 sets), README (those of 100M steps), ogbench/utils.py (tasks).
``catalogue.json`` lists the sets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ....errors import FetchError, ObjectNotFoundError
from ...fetch import Location, RemoteObject
from ...ingest.reader import Reader
from ...ingest.records import ConvertOptions
from ..catalogue_entry import CatalogueEntry
from ..known_environment import KnownEnvironment
from ..options import declared
from ..source import FoundFile, Source, only_file

HOME = "https://rail.eecs.berkeley.edu/datasets/ogbench"
COPY = "hf://datasets/zhouzypaul/ogbench_datasets"
#: Files of a set of 100M steps.
FILES = 100
_NAME = re.compile(
    r"(?P<environment>(?:visual-)?[a-z]+(?:-[a-z0-9]+)?)-(?P<kind>navigate|stitch|explore|play|noisy)(?P<large>-100m)?"
    r"(?P<single>-singletask(?:-task(?P<task>[1-5]))?)?-v0(?P<validation>-val)?"
)


@dataclass(frozen=True)
class SetName:
    """A dataset. ``task`` is that of a single-task set: its number, 0 for the environment's default, None for no task."""

    environment: str
    kind: str
    large: bool = False
    task: int | None = None
    validation: bool = False

    def __str__(self) -> str:
        return f"{self.environment}-{self.kind}{'-100m' * self.large}{self.single}-v0{'-val' * self.validation}"

    @property
    def single(self) -> str:
        """What the names of sets and environments have for the task."""
        return "" if self.task is None else f"-singletask-task{self.task}" if self.task else "-singletask"

    @property
    def base(self) -> SetName:
        """The set whose file or folder has the data: that of training, without a task."""
        return replace(self, task=None, validation=False)

    @property
    def files(self) -> list[str]:
        """The paths of its files at the provider."""
        stem, end = f"{self.environment}-{self.kind}-v0", "-val" * self.validation + ".npz"
        return [f"{self.base}/{stem}-{number:03}{end}" for number in range(FILES)] if self.large else [stem + end]


@cache
def sets() -> frozenset[str]:
    """The names of the sets of training data, without tasks: those of the catalogue."""
    file = OgbenchSource().catalogue_file
    return frozenset(name for name in file.names() if not name.endswith("-val")) if file else frozenset()


def parse(text: str) -> SetName | None:
    """The dataset of a name; None if no dataset has the name. Powderworld has no single tasks."""
    match = _NAME.fullmatch(text)
    if match is None or (match["single"] and match["environment"].startswith("powderworld")):
        return None
    task = int(match["task"] or 0) if match["single"] else None
    name = SetName(match["environment"], match["kind"], bool(match["large"]), task, bool(match["validation"]))
    return name if str(name.base) in sets() else None


def parse_file(name: str) -> SetName | None:
    """The set that a file of this name belongs to; None for other files."""
    match = re.fullmatch(r"(.+)-v0(-\d{3})?(-val)?\.npz", name)
    return match and parse(f"{match[1]}{'-100m' if match[2] else ''}-v0{match[3] or ''}")


class OgbenchSource(Source):
    """Names are those of OGBench, with ``-val`` for validation."""

    name = "ogbench"
    home = HOME
    copy = COPY
    own_cache = "~/.ogbench/data"
    options = declared("ogbench")
    supports = frozenset({"parts", "codec", "layout"})

    def knows(self, name: str) -> bool:
        """Those of `names`, and their single tasks."""
        return parse(name) is not None

    def describe_unlisted(self, name: str) -> CatalogueEntry | None:
        """The set that a single task relabels."""
        entry = self._entry(name)
        return entry and replace(entry, id=f"{self.name}/{name}", notes=entry.notes[1:])

    def environment(self, record: Mapping[str, Any]) -> KnownEnvironment | None:
        """The environment that ogbench registers: for a single task with its rewards, else without a goal until it is reset."""
        name = parse(str(record.get("set") or record.get("dataset")))
        if name is None:
            return None
        return KnownEnvironment(f"{name.environment}{name.single}-v0", requirements="ogbench")

    def places(self, name: str, options: ConvertOptions) -> Sequence[str]:
        """Its authors' server, and the copy where the catalogue says that it has the set; in the order of the catalogue."""
        urls, entry = {HOME: self.home, COPY: self.copy}, self._entry(name)
        return [urls[place.url] for place in entry.places] if entry else [self.home]

    def _entry(self, name: str) -> CatalogueEntry | None:
        """The entry of a set, without its task."""
        wanted = (known := parse(name)) and str(replace(known, task=None))
        return next((entry for entry in self.catalogue() if entry.name == wanted), None)

    def find(self, name: str, location: Location, options: ConvertOptions) -> Reader:
        """Finds the files. Raises FetchErrors, UsageError."""
        known = parse(name)
        assert known is not None
        paths = known.files
        files = _numbered(location, known, options) if known.large else [(path, location.stat(path)) for path in paths]
        return _reader(name, known, location, files, options)

    def recognises(self, path: Path) -> bool:
        from ...formats.npy import array_names

        file = only_file(path, ".npz")
        if file is None:
            return path.is_dir() and any(parse_file(one.name) for one in path.glob("*-v0*.npz"))
        keys = array_names(file)
        # A user's own file may have the same three keys, and mean something else by the last row of an episode.
        named = parse_file(file.name) is not None or {"qpos", "qvel"} <= keys
        return named and {"observations", "actions", "terminals"} <= keys and not keys & {"rewards", "timeouts"}

    def find_in_folder(self, location: Location, options: ConvertOptions) -> Reader:
        """One file, or a folder with the files of one set; beside those of training, those of validation are left out."""
        from ...formats.npy import array_names
        from ...ingest.episode_files import check_keys
        from .reader import REQUIRED

        known = parse(self.asked_dataset(options) or "")
        every = [item for item in location.list() if item.name.endswith(".npz")]
        training = [item for item in every if not item.name.endswith("-val.npz")]
        own = {path.rpartition("/")[2] for path in known.files} if known else set()
        files = [item for item in every if item.name in own] or (every if known else training or every)
        stems = {parse_file(item.name) for item in files}
        if not files or (len(files) > 1 and (len(stems) > 1 or None in stems)):
            message = f"{location.url} holds {len(files)} npz files, not those of one dataset"
            raise ObjectNotFoundError(message, hint="say which with --dataset, or give a folder with one dataset")
        if there := sorted(array_names(Path(files[0].url))):  # other arrays are refused before a dry run has a plan
            check_keys(REQUIRED, files[0].name, there)
        known = known or next(iter(stems))
        return _reader(None, known, location, [(item.name, item) for item in files], options)


def _reader(
    name: str | None, known: SetName | None, location: Location, files: Sequence[FoundFile], options: ConvertOptions
) -> Reader:
    """``known`` is the set, None for files of no known one."""
    from ...ingest.episode_files import file_groups
    from .reader import OgbenchEpisodes, OgbenchReader, single_task

    # The number of a file is the one in its name in a set of 100M steps, and its place in any other set.
    matches = [re.fullmatch(r".*-v0-(\d{3})(?:-val)?\.npz", item.name) for _, item in files]
    groups = file_groups(location, files, [int(match[1]) if match else place for place, match in enumerate(matches)])
    task = single_task(known.environment, known.task) if known else None
    return OgbenchReader(name, location, groups, OgbenchEpisodes(task, str(known) if known else None), options)


def _numbered(location: Location, name: SetName, options: ConvertOptions) -> list[FoundFile]:
    """The files of a set of 100M steps, in the order of their numbers, from its folder or directly at the location.

    Raises ObjectNotFoundError where some are missing at a server; a folder of this machine is taken as it is.
    """
    chosen = [path for number, path in enumerate(name.files) if options.parts is None or number in options.parts]
    wanted = {path.rpartition("/")[2]: path for path in chosen}

    def listed(folder: str) -> list[RemoteObject]:
        try:
            return [item for item in location.list(folder) if item.name in wanted]
        except ObjectNotFoundError:
            return []
        except FetchError:  # no index of the folder: its files are known all the same
            return [location.stat(path) for path in chosen] if folder else []

    found = listed(str(name.base)) or listed("")
    missing = sorted(wanted.keys() - {item.name for item in found})
    if not found or (missing and "://" in location.url):
        message = f"{location.url} has {len(found)} of {len(wanted)} files of {name}"
        hint = f"the first that is missing is {missing[0]}" if missing else f"it has the files 0 to {FILES - 1}"
        raise ObjectNotFoundError(message, hint=f"{hint}; --shards takes some of them")
    return [(wanted[item.name], item) for item in sorted(found, key=lambda item: item.name)]
