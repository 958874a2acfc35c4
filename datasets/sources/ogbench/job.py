"""One OGBench dataset, from its files to a dataset folder: each file is a unit, which one worker decodes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ...fetch import Location, RemoteObject
from ...ingest.episode_files import EpisodeFilesJob, Unit, raw_object
from ...ingest.job import ConvertOptions
from .names import SetName
from .reader import OgbenchReader
from .tasks import single_task

CITATION = (
    "Seohong Park, Kevin Frans, Benjamin Eysenbach, Sergey Levine. OGBench: Benchmarking Offline Goal-Conditioned RL. "
    "ICLR 2025. arXiv:2410.20092"
)

SENTENCES = {
    "steps_without_reward": (
        "The files have no rewards: all {n} are 0. The sets of single tasks have some (-singletask), and load(goals=...) "
        "computes them."
    ),
    "relabelled_steps": (
        "Rewards and masks are those of the task in the record of the source, of the state before the action; episodes "
        "go on where it is solved ({steps_at_the_goal} of {n} steps)."
    ),
}


class OgbenchJob(EpisodeFilesJob):
    """``files`` are pairs of the path in a mirror and the object; ``known`` is the set, None for files of no known one."""

    source, converter, citation = "ogbench", "ogbench 1", CITATION
    sentences = SENTENCES

    def __init__(
        self,
        name: str | None,
        known: SetName | None,
        location: Location,
        files: Sequence[tuple[str, RemoteObject]],
        options: ConvertOptions,
    ) -> None:
        self._task = single_task(known) if known else None
        self._known_set = known
        units = [
            Unit(item.name, _number(item.name, place), (raw_object(location, item, path),))
            for place, (path, item) in enumerate(files)
        ]
        reader = OgbenchReader(self._task)
        super().__init__(name, location, units, reader, options)

    def describe(self) -> dict[str, Any]:
        task = {"task": self._task.describe()} if self._task else {}
        return {**super().describe(), "set": str(self._known_set) if self._known_set else None, **task}


def _number(name: str, place: int) -> int:
    """The number of a file of a set of 100M steps; of any other file its place."""
    match = re.fullmatch(r".*-v0-(\d{3})(?:-val)?\.npz", name)
    return int(match[1]) if match else place
