"""One Gen-DGRL dataset, from its archive to a dataset folder."""

from __future__ import annotations

from ...fetch import Location, RemoteObject
from ...ingest.episode_files import EpisodeFilesJob, Unit, raw_object
from ...ingest.job import ConvertOptions
from .reader import GenDgrlReader

SENTENCES = {
    "given_up_steps": (
        "Dropped: the last steps of {n} episodes that are as long as the game's time limit. What follows them is not in "
        "the data; the observation of such a step is the final one of the step before it."
    ),
    "unknown_next_steps": "{n} last steps at the time limit are kept, truncated, with a next observation of zeros.",
    "other_names": "{n} files have another length or return than their name states, which info/stated_return holds.",
    "other_files": "{n} files of the archive are no episodes, and are left out.",
}


class GenDgrlJob(EpisodeFilesJob):
    """The archive is one unit. ``game``: see `GenDgrlReader`."""

    source, converter = "gen_dgrl", "gen_dgrl 1"
    licence = "CC-BY-NC-4.0"
    citation = (
        "Ishita Mediratta, Qingfei You, Minqi Jiang, Roberta Raileanu. The Generalization Gap in Offline Reinforcement "
        "Learning. ICLR 2024. arXiv:2312.05742"
    )
    sentences = SENTENCES

    def __init__(
        self,
        name: str | None,
        game: str | None,
        location: Location,
        path: str,
        item: RemoteObject,
        options: ConvertOptions,
    ) -> None:
        units = [Unit(item.name, 0, (raw_object(location, item, path),))]
        super().__init__(name, location, units, GenDgrlReader(game, options.unknown_next == "zero"), options)
