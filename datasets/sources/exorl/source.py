"""ExORL: exploratory data of DeepMind Control, ten million steps for each domain and algorithm.

Yarats, Brandfonbrener, Liu, Laskin, Abbeel, Lazaric, Pinto, "Don't Change the Algorithm, Change the Data: Exploratory Data for
Offline Reinforcement Learning", 2022 (https://arxiv.org/abs/2201.13425).
"""

from __future__ import annotations

from pathlib import Path

from ....errors import UsageError
from ...fetch import Location
from ...ingest.job import ConvertOptions, Job
from ..options import SourceOption
from ..source import Source, only_file, only_object


class ExorlSource(Source):
    """Names are ``<domain>/<algorithm>``."""

    name = "exorl"
    home = "https://dl.fbaipublicfiles.com/exorl"
    options = (
        SourceOption(
            "task",
            "whose rewards the dataset has, computed from the states of the simulator (walker_run); as stored without",
            metavar="TASK",
        ),
    )
    supports = frozenset({"codec", "layout"})

    def find(self, name: str, location: Location, options: ConvertOptions) -> Job:
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
        from ...formats.packed import member_names

        file = only_file(path, ".zip")
        return file is not None and any(name.startswith("buffer/episode_") for name in member_names(file))

    def find_in_folder(self, location: Location, options: ConvertOptions) -> Job:
        from .reader import domain_of

        task = options.extra["task"]
        return self._job(None, location, task and domain_of(task), options)

    def _job(self, name: str | None, location: Location, domain: str | None, options: ConvertOptions) -> Job:
        from ...ingest.episode_files import units_of_files
        from .reader import ExorlJob, ExorlReader, check_task

        task = options.extra["task"]
        if task is not None:
            check_task(task)  # before anything is fetched
        item = location.stat(f"{name}.zip") if name else only_object(location, "zip", ".zip")
        units = units_of_files(location, [(f"{name}.zip" if name else item.name, item)])
        return ExorlJob(name, location, units, ExorlReader(domain, task), options)
