"""One RoboSet dataset: the logs of a folder, in the order of their names."""

from __future__ import annotations

from collections.abc import Sequence

from ...fetch import Location
from ...ingest.episode_files import EpisodeFilesJob, raw_object, units_of_files
from ...ingest.job import ConvertOptions
from ..source import FoundFile
from .trials import SENTENCES, TrialReader


class RobosetJob(EpisodeFilesJob):
    """``files`` are the logs with their paths below the location."""

    source, converter, licence, sentences = "roboset", "roboset 1", "MIT", SENTENCES
    citation = (
        "Vikash Kumar et al. RoboHive: A Unified Framework for Robot Learning. NeurIPS 2023. arXiv:2310.06828. "
        "Homanga Bharadhwaj et al. RoboAgent: Generalization and Efficiency in Robot Manipulation. ICRA 2024. arXiv:2309.01918"
    )

    def __init__(
        self, name: str | None, location: Location, files: Sequence[FoundFile], options: ConvertOptions
    ) -> None:
        objects = [raw_object(location, item, path) for path, item in sorted(files, key=lambda found: found[0])]
        super().__init__(
            name, location, units_of_files(objects), TrialReader(tuple(raw.path for raw in objects)), options
        )
