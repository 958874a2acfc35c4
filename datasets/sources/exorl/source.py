"""ExORL: exploratory data of DeepMind Control, ten million steps for each domain and algorithm.

Yarats, Brandfonbrener, Liu, Laskin, Abbeel, Lazaric, Pinto, "Don't Change the Algorithm, Change the Data: Exploratory Data for
Offline Reinforcement Learning", 2022 (https://arxiv.org/abs/2201.13425).
"""

from __future__ import annotations

from pathlib import Path

from ....errors import UsageError
from ...fetch import Location
from ...ingest.reader import Reader
from ...ingest.records import ConvertOptions
from ..options import declared
from ..source import Source, files_below, only_file, only_object


def _episode_files(path: Path) -> list[Path]:
    return [one for top in (path, path / "buffer") for one in sorted(top.glob("episode_[0-9]*_[0-9]*.npz"))]


class ExorlSource(Source):
    """Names are ``<domain>/<algorithm>``."""

    name = "exorl"
    home = "https://dl.fbaipublicfiles.com/exorl"
    options = declared("exorl")
    supports = frozenset({"codec", "layout"})

    def find(self, name: str, location: Location, options: ConvertOptions) -> Reader:
        from .reader import TASKS, domain_of

        domain, task = name.partition("/")[0], options.extra["task"]
        if task is not None and domain_of(task) != domain:
            of_domain = [f"{domain}_{task}" for task in TASKS.get(domain, ())]
            hint = (
                f"tasks of {domain}: {', '.join(of_domain)}" if of_domain else f"rewards of {domain} cannot be computed"
            )
            raise UsageError(f"{task} is not a task of {domain}", hint=hint)
        return self._job(name, location, domain, options)

    def recognises(self, path: Path) -> bool:
        from ...formats.npy import array_names
        from ...formats.packed import member_names

        if path.is_dir() and (episodes := _episode_files(path)):
            return {"observation", "action", "reward", "discount", "physics"} <= array_names(episodes[0])
        file = only_file(path, ".zip")
        return file is not None and any(name.startswith("buffer/episode_") for name in member_names(file))

    def find_in_folder(self, location: Location, options: ConvertOptions) -> Reader:
        """An archive, a folder with one, or the folder of episodes that was in it."""
        from .reader import domain_of

        task = options.extra["task"]
        return self._job(None, location, task and domain_of(task), options)

    def _job(self, name: str | None, location: Location, domain: str | None, options: ConvertOptions) -> Reader:
        from ...ingest.episode_files import group_files
        from .reader import ExorlFileReader, ExorlJob, ExorlReader, check_task, episode_number

        task = options.extra["task"]
        if task is not None:
            check_task(task)  # before anything is fetched
        found = [] if name else [(episode_number(path), path, item) for path, item in files_below(location, "", ".npz")]
        if episodes := sorted((one[0], *one[1:]) for one in found if one[0] is not None):
            units = group_files(location, [(path, item) for _, path, item in episodes])
            return ExorlJob(name, location, units, ExorlFileReader(domain, task), options)
        item = location.stat(f"{name}.zip") if name else only_object(location, "zip", ".zip")
        units = group_files(location, [(f"{name}.zip" if name else item.name, item)])
        return ExorlJob(name, location, units, ExorlReader(domain, task), options)
