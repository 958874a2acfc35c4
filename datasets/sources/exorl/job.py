"""One ExORL archive, from its zip to a dataset."""

from __future__ import annotations

from ...fetch import Location, RemoteObject
from ...ingest.episode_files import EpisodeFilesJob, Unit, raw_object
from ...ingest.job import ConvertOptions
from .episodes import SENTENCES, ExorlReader


class ExorlJob(EpisodeFilesJob):
    """The archive is one unit."""

    source, converter, sentences = "exorl", "exorl 1", SENTENCES
    citation = "Denis Yarats et al. Don't Change the Algorithm, Change the Data. 2022. arXiv:2201.13425"

    def __init__(
        self, name: str | None, location: Location, item: RemoteObject, domain: str | None, options: ConvertOptions
    ) -> None:
        path = f"{name}.zip" if name else item.name
        reader = ExorlReader(domain, options.extra["task"])
        super().__init__(name, location, [Unit(path, 0, (raw_object(location, item, path),))], reader, options)
