"""ExORL: exploratory data of DeepMind Control, ten million steps for each domain and algorithm.

Yarats, Brandfonbrener, Liu, Laskin, Abbeel, Lazaric, Pinto, "Don't Change the Algorithm, Change the Data: Exploratory Data for
Offline Reinforcement Learning", 2022 (https://arxiv.org/abs/2201.13425).
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...fetch import Location
from ...ingest.job import ConvertOptions
from ..source import Source, only_file, only_object

if TYPE_CHECKING:
    from .job import ExorlJob

DOMAINS = ("cartpole", "cheetah", "jaco", "point_mass_maze", "quadruped", "walker")
ALGORITHMS = ("aps", "diayn", "disagreement", "icm", "icm_apt", "proto", "random", "rnd", "smm")


class ExorlSource(Source):
    """Names are ``<domain>/<algorithm>``."""

    name = "exorl"
    home = "https://dl.fbaipublicfiles.com/exorl"

    def names(self) -> Sequence[str]:
        return [f"{domain}/{algorithm}" for domain in DOMAINS for algorithm in ALGORITHMS]

    def find(self, name: str, location: Location, options: ConvertOptions) -> ExorlJob:
        from .job import ExorlJob

        return ExorlJob(name, location, location.stat(f"{name}.zip"), options)

    def recognises(self, path: Path) -> bool:
        file = only_file(path, ".zip")
        if file is None or not zipfile.is_zipfile(file):
            return False
        with zipfile.ZipFile(file) as archive:
            return any(name.startswith("buffer/episode_") for name in archive.namelist())

    def find_in_folder(self, location: Location, options: ConvertOptions) -> ExorlJob:
        from .job import ExorlJob

        return ExorlJob(None, location, only_object(location, "zip", ".zip"), options)
