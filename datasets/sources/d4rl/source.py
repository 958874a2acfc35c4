"""D4RL: HDF5 files of transitions, one for each dataset.

Fu, Kumar, Nachum, Tucker, Levine, "D4RL: Datasets for Deep Data-Driven Reinforcement Learning", 2020
(https://arxiv.org/abs/2004.07219). Its server answers over HTTP and is often down; anything that holds the files serves as
a mirror, in the site's layout or flat (as the copy on Hugging Face has them, and D4RL's own cache, ``~/.d4rl/datasets``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ....storage.reference_scores import ReferenceScores
from ...fetch import Location
from ...ingest.reader import Reader
from ...ingest.records import ConvertOptions
from ..catalogue_entry import CatalogueEntry
from ..known_environment import KnownEnvironment
from ..options import declared
from ..source import Source, first_found, only_file, only_object
from .registry import FLAT_COPY, HOME, registry

_NEEDED, _MORE = ("observations", "actions", "rewards", "terminals"), ("timeouts", "next_observations")


#: By the first word of a dataset's name. D4RL used Gym's MuJoCo -v2 and mj_envs, which have the same observations.
ENVIRONMENTS = {
    "halfcheetah": "HalfCheetah-v4",
    "hopper": "Hopper-v4",
    "walker2d": "Walker2d-v4",
    "ant": "Ant-v4",
    "pen": "AdroitHandPen-v1",
    "hammer": "AdroitHandHammer-v1",
    "door": "AdroitHandDoor-v1",
    "relocate": "AdroitHandRelocate-v1",
}
#: The largest reward of tasks with goals, by the first word of a name; the smallest is 0. Kitchen counts its four subtasks.
REWARDS = {"antmaze": 1.0, "maze2d": 1.0, "minigrid": 1.0, "kitchen": 4.0}


class D4rlSource(Source):
    """Names are D4RL's own (``hopper-medium-v2``)."""

    name = "d4rl"
    home = HOME
    copy = FLAT_COPY
    own_cache = "~/.d4rl/datasets"
    options = declared("d4rl")

    def catalogue(self) -> Sequence[CatalogueEntry]:
        """The catalogue, with the time limits of the registry."""
        return [replace(entry, horizon=registry()[entry.name].horizon) for entry in super().catalogue()]

    def reference_scores(self, record: Mapping[str, Any]) -> ReferenceScores | None:
        """Those of D4RL's table (as the D4RL paper has them, section 5; ``d4rl.get_normalized_score`` leaves out the 100)."""
        entry = registry().get(str(record.get("dataset")))
        if entry is None or entry.low is None or entry.high is None:
            return None
        return ReferenceScores(entry.low, entry.high, origin="D4RL")

    def reward_range(self, record: Mapping[str, Any]) -> tuple[float, float, str] | None:
        """The range for tasks with goals; the D4RL paper states it (https://arxiv.org/abs/2004.07219, section 5)."""
        most = REWARDS.get(str(record.get("dataset")).partition("-")[0])
        return None if most is None else (0.0, most, "the D4RL paper")

    def environment(self, record: Mapping[str, Any]) -> KnownEnvironment | None:
        """For MuJoCo and Adroit datasets, the environments of Gymnasium and Gymnasium-Robotics with the same observations; the
        other datasets were made in D4RL's own environments."""
        name = str(record.get("dataset"))
        environment = ENVIRONMENTS.get(name.partition("-")[0])
        if environment is None or registry().get(name) is None:
            return None
        package = "gymnasium-robotics" if environment.startswith("Adroit") else "gymnasium[mujoco]"
        arguments = {"use_contact_forces": True} if environment.startswith("Ant") else {}
        return KnownEnvironment(environment, arguments, requirements=package)

    def places(self, name: str, options: ConvertOptions) -> Sequence[str]:
        """The site, and the copy where the catalogue says that it has the file; in the order of the catalogue."""
        urls = {HOME: self.home, FLAT_COPY: self.copy}
        entry = next(entry for entry in super().catalogue() if entry.name == name)
        return [urls[place.url] for place in entry.places]

    def find(self, name: str, location: Location, options: ConvertOptions) -> Reader:
        """Finds the file: where the site has it, one level up or down from there, or flat by its base name.

        Raises FetchErrors.
        """
        from .reader import D4rlReader

        entry = registry()[name]
        paths = dict.fromkeys((entry.path, entry.file, f"offline_rl/{entry.path}", f"datasets/offline_rl/{entry.path}"))
        missing = f"no {entry.file} at {location.url}"
        hint = "looked for {paths}; without --mirror, the public places are asked"
        _, item = first_found(list(paths), location.stat, missing, hint)
        published = location.url.rstrip("/") in {url.rstrip("/") for url in (self.home, self.copy)}
        return D4rlReader(entry, location, item, options, published=published)

    def recognises(self, path: Path) -> bool:
        from ...ingest.raw_files import hdf5_names

        file = only_file(path, ".hdf5", ".h5")
        names = hdf5_names(file) if file is not None else {}
        arrays = {name: kind.split()[1:] for name, kind in names.items() if kind and "/" not in name}
        if not {*_NEEDED} <= arrays.keys() or [len(arrays[name]) for name in ("observations", "rewards")] != [2, 1]:
            return False
        # Files of others have these four names, too: one more row for each episode, or other arrays that state the episodes.
        rows = {arrays[name][0] for name in _NEEDED}
        return len(rows) == 1 and (bool({"infos", "metadata"} & names.keys()) or arrays.keys() <= {*_NEEDED, *_MORE})

    def find_in_folder(self, location: Location, options: ConvertOptions) -> Reader:
        """A folder with one HDF5 file, or with that of ``dataset``."""
        from .reader import D4rlReader

        wanted = self.asked_dataset(options)
        entry = registry()[wanted] if wanted else None
        named = [item for item in location.list() if entry and item.name == entry.file]
        item = named[0] if named else only_object(location, "HDF5", ".hdf5", ".h5")
        if entry is None:  # ids may share a file
            same = [one for one in registry().values() if one.file == item.name]
            entry = same[0] if len(same) == 1 else None
        return D4rlReader(entry, location, item, options, published=False)
