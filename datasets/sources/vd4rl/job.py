"""One V-D4RL dataset: the files of a folder, in the order of their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...fetch import Location, RemoteObject
from ...fetch.location import join_path
from ...ingest.episode_files import EpisodeFilesJob, EpisodeReader, raw_object, units_of_files
from ...ingest.job import ConvertOptions
from ..dm_env_order import SENTENCES
from .episodes import EpisodeFileReader, ShardReader


class VD4RLJob(EpisodeFilesJob):
    """``files`` are all npz files (64px) or all HDF5 shards (84px)."""

    source, converter, licence = "vd4rl", "vd4rl 1", "MIT"
    citation = (
        "Cong Lu, Philip J. Ball, Tim G. J. Rudner, Jack Parker-Holder, Michael A. Osborne, Yee Whye Teh. Challenges and "
        "Opportunities in Offline Reinforcement Learning from Visual Observations. TMLR 2023. arXiv:2206.04779"
    )
    sentences: Mapping[str, str] = {
        **SENTENCES,
        "files_with_more_flags": "{n} files have more flags than images: the images count (V-D4RL issue 13).",
        "cut_beginnings": (
            "{n} shards begin inside an episode: those rows are an episode of their own, and the step across the cut is lost."
        ),
    }

    def __init__(
        self, name: str | None, location: Location, folder: str, files: Sequence[RemoteObject], options: ConvertOptions
    ) -> None:
        files = sorted(files, key=lambda item: item.name)
        objects = [raw_object(location, item, join_path(folder, item.name)) for item in files]
        self._folder_name = folder
        reader: EpisodeReader = EpisodeFileReader() if files[0].name.endswith(".npz") else ShardReader()
        super().__init__(name, location, units_of_files(objects), reader, options)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "folder": self._folder_name}
