"""ExORL: exploratory data of DeepMind Control, ten million steps for each domain and algorithm.

Yarats, Brandfonbrener, Liu, Laskin, Abbeel, Lazaric, Pinto, "Don't Change the Algorithm, Change the Data: Exploratory Data for
Offline Reinforcement Learning", 2022 (https://arxiv.org/abs/2201.13425).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ....errors import CorruptSourceError, UsageError
from ...fetch import Location
from ...ingest.job import ConvertOptions
from ..options import SourceOption
from ..source import Source, only_file, only_object
from .tasks import TASKS, domain_of

if TYPE_CHECKING:
    from .job import ExorlJob

DOMAINS = ("cartpole", "cheetah", "jaco", "point_mass_maze", "quadruped", "walker")
ALGORITHMS = ("aps", "diayn", "disagreement", "icm", "icm_apt", "proto", "random", "rnd", "smm")


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

    def names(self) -> Sequence[str]:
        return [f"{domain}/{algorithm}" for domain in DOMAINS for algorithm in ALGORITHMS]

    def find(self, name: str, location: Location, options: ConvertOptions) -> ExorlJob:
        from .job import ExorlJob
        from .rewards import check_task

        domain, task = name.partition("/")[0], options.extra["task"]
        if task is not None and domain_of(task) != domain:
            of_domain = [f"{domain}_{task}" for task in TASKS.get(domain, ())]
            hint = (
                f"tasks of {domain}: {', '.join(of_domain)}" if of_domain else f"rewards of {domain} cannot be computed"
            )
            raise UsageError(f"{task} is not a task of {domain}", hint=hint)
        if task is not None:
            check_task(task)  # before anything is fetched
        return ExorlJob(name, location, location.stat(f"{name}.zip"), domain, options)

    def recognises(self, path: Path) -> bool:
        from ...formats.zip_archive import ZipArchive

        file = only_file(path, ".zip")
        if file is None:
            return False
        try:
            with ZipArchive(file, file.name) as archive:
                return any(name.startswith("buffer/episode_") for name in archive.members)
        except (CorruptSourceError, OSError):
            return False

    def find_in_folder(self, location: Location, options: ConvertOptions) -> ExorlJob:
        from .job import ExorlJob
        from .rewards import check_task

        task = options.extra["task"]
        if task is not None:
            check_task(task)
        domain = None if task is None else domain_of(task)
        return ExorlJob(None, location, only_object(location, "zip", ".zip"), domain, options)
