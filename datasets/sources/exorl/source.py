"""ExORL: exploratory data of DeepMind Control, ten million steps for each domain and algorithm.

Yarats, Brandfonbrener, Liu, Laskin, Abbeel, Lazaric, Pinto, "Don't Change the Algorithm, Change the Data: Exploratory Data for
Offline Reinforcement Learning", 2022 (https://arxiv.org/abs/2201.13425).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...fetch import Location
from ...ingest.reader import Reader
from ...ingest.records import ConvertOptions
from ..options import declared
from ..source import FoundFile, Source, files_below, only_file, only_object


class ExorlSource(Source):
    """Names are ``<domain>/<algorithm>``."""

    name = "exorl"
    home = "https://dl.fbaipublicfiles.com/exorl"
    options = declared("exorl")
    supports = frozenset({"codec", "layout"})

    def find(self, name: str, location: Location, options: ConvertOptions) -> Reader:
        path = f"{name}.zip"
        return _reader(name, location, [(path, location.stat(path))], options)

    def recognises(self, path: Path) -> bool:
        from ...formats.npy import array_names
        from ...formats.packed import member_names

        pattern = "episode_[0-9]*_[0-9]*.npz"
        if path.is_dir() and (episodes := [*path.glob(pattern), *path.glob(f"buffer/{pattern}")]):
            return {"observation", "action", "reward", "discount", "physics"} <= array_names(min(episodes))
        file = only_file(path, ".zip")
        return file is not None and any(name.startswith("buffer/episode_") for name in member_names(file))

    def find_in_folder(self, location: Location, options: ConvertOptions) -> Reader:
        """An archive, a folder with one, or the folder of episodes that was in it."""
        from .reader import episode_number

        files = [one for one in files_below(location, "", ".npz") if episode_number(one[0]) is not None]
        if not files:
            item = only_object(location, "zip", ".zip")
            files = [(item.name, item)]
        return _reader(None, location, sorted(files, key=lambda one: episode_number(one[0]) or 0), options)


def _reader(name: str | None, location: Location, files: Sequence[FoundFile], options: ConvertOptions) -> Reader:
    """The reader of these files. Raises UsageError, and MissingExtraError before anything is fetched."""
    from ...ingest.episode_files import group_files
    from .reader import ExorlEpisodes, ExorlReader, domain_of

    task = options.extra["task"]
    domain = domain_of(task, name) if task else name and name.partition("/")[0]
    return ExorlReader(name, location, group_files(location, files), ExorlEpisodes(domain, task), options)
