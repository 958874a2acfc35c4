"""RoboSet: RoboHive's demonstrations of simulated hands and kitchens, and of real robots with four cameras; HDF5 logs.

Kumar et al., "RoboHive: A Unified Framework for Robot Learning", NeurIPS 2023 (https://arxiv.org/abs/2310.06828);
Bharadhwaj et al., "RoboAgent: Generalization and Efficiency in Robot Manipulation via Semantic Augmentations and Action
Chunking", ICRA 2024 (https://arxiv.org/abs/2309.01918).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ....errors import ObjectNotFoundError
from ...fetch import Location
from ...ingest.reader import Reader
from ...ingest.records import ConvertOptions
from ..known_environment import KnownEnvironment
from ..source import FoundFile, Source, files_below, files_in, first_found, visible_files

SIMULATED = "hf://jdvakil/RoboSet_Sim"
TELEOPERATION = "hf://jdvakil/RoboSet-Teleoperation"
#: The first part of names of data of real robots: the rest is a folder or file of `TELEOPERATION`.
REAL = "real"

_NAME = re.compile(r"[\w(][\w.()+-]*(/[\w(][\w.()+-]*)+")
_ENVIRONMENT = re.compile(r"\w+_v2d-v\d+")
_SUFFIX = ".h5"


class RobosetSource(Source):
    """Names are the folders of the simulated data, and ``real/...`` for folders and files of the teleoperated ones."""

    name = "roboset"
    home = SIMULATED
    supports = frozenset({"parts", "codec", "layout"})
    open_ended = True

    def knows(self, name: str) -> bool:
        return _NAME.fullmatch(name) is not None

    def places(self, name: str, options: ConvertOptions) -> Sequence[str]:
        return [TELEOPERATION if name.startswith(f"{REAL}/") else self.home]

    def environment(self, record: Mapping[str, Any]) -> KnownEnvironment | None:
        """RoboHive's environment, whose id is the last part of the name of a simulated dataset."""
        last = str(record.get("dataset")).rpartition("/")[2]
        return KnownEnvironment(last, requirements="robohive") if _ENVIRONMENT.fullmatch(last) else None

    def find(self, name: str, location: Location, options: ConvertOptions) -> Reader:
        """All logs in the dataset's folder, or the log of its name. Raises FetchErrors."""

        def logs_at(path: str) -> list[FoundFile]:
            with suppress(ObjectNotFoundError):
                if found := files_below(location, path, _SUFFIX):
                    return found
            file = path.removesuffix(_SUFFIX) + _SUFFIX
            return [(file, location.stat(file))]

        paths = list(dict.fromkeys([name, name.removeprefix(f"{REAL}/")]))
        missing = f"{location.url} holds no logs of {name}"
        _, found = first_found(paths, logs_at, missing, "looked for .h5 files in {paths}")
        return _reader(name, location, found, options)

    def recognises(self, path: Path) -> bool:
        from ...ingest.raw_files import hdf5_names

        files = visible_files(path, _SUFFIX)
        names = hdf5_names(files[0]) if files else {}
        first = next(iter(names), "")
        written = {f"{first}/{name}" for name in ("observations", "actions", "rewards", "done")}
        known = f"{first}/data/ctrl_arm" in names or written <= names.keys()
        return known and all(re.fullmatch(r"Trial\d+", name) for name in names if "/" not in name)

    def find_in_folder(self, location: Location, options: ConvertOptions) -> Reader:
        """A log, or a folder of logs."""
        return _reader(None, location, files_in(location, _SUFFIX, deep=True), options)


def _reader(name: str | None, location: Location, files: Sequence[FoundFile], options: ConvertOptions) -> Reader:
    from ...ingest.episode_files import group_files
    from .reader import RobosetReader, Trials

    return RobosetReader(
        name, location, group_files(location, files), Trials(tuple(path for path, _ in files)), options
    )
