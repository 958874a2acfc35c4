"""Gen-DGRL: the 16 games of Procgen on 1, 40 and 200 levels, expert and suboptimal.

Mediratta, You, Jiang, Raileanu, "The Generalization Gap in Offline Reinforcement Learning", ICLR 2024
(https://arxiv.org/abs/2312.05742). Names are ``<game>-<set>`` (`names`), as TorchRL has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ....errors import ObjectNotFoundError, UsageError
from ...fetch import Location
from ...ingest.job import ConvertOptions
from ..options import SourceOption
from ..source import Source, only_file, only_object
from .names import GAMES, archives, names, split

if TYPE_CHECKING:
    from .job import GenDgrlJob  # loaded when a dataset is opened: lists do without

HOME = "https://dl.fbaipublicfiles.com/DGRL"


class GenDgrlSource(Source):
    """Names are ``<game>-<set>``."""

    name = "gen_dgrl"
    home = HOME
    options = (SourceOption("dataset", "the Gen-DGRL id of the archive", metavar="ID", commands=("convert",)),)

    def names(self) -> Sequence[str]:
        return names()

    def find(self, name: str, location: Location, options: ConvertOptions) -> GenDgrlJob:
        """Finds the archive, in the layout of the project or of TorchRL. Raises FetchErrors."""
        from .job import GenDgrlJob

        tried = archives(name)
        for path in tried:
            try:
                return GenDgrlJob(name, name.partition("-")[0], location, path, location.stat(path), options)
            except ObjectNotFoundError:
                continue
        raise ObjectNotFoundError(f"no archive of {name} at {location.url}", hint=f"looked for {', '.join(tried)}")

    def recognises(self, path: Path) -> bool:
        file = only_file(path, ".xz", ".tar")
        return file is not None and file.name.partition(".")[0] in GAMES

    def find_in_folder(self, location: Location, options: ConvertOptions) -> GenDgrlJob:
        """An archive, or a folder with one."""
        from .job import GenDgrlJob

        wanted = options.extra["dataset"]
        known = split(wanted.removeprefix("gen_dgrl/")) if wanted else None
        if wanted and known is None:
            raise UsageError(f"Gen-DGRL has no dataset {wanted!r}", hint="`rbdata list gen_dgrl` shows all")
        item = only_object(location, "tar", ".tar.xz", ".tar")
        stem = item.name.partition(".")[0]
        game = known[0] if known else stem if stem in GAMES else None
        return GenDgrlJob(None, game, location, item.name, item, options)
