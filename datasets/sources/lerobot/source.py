"""LeRobot: robot datasets in the layout of Hugging Face's lerobot, v3 and v2.1.

https://huggingface.co/docs/lerobot; the files are described in `formats.lerobot` and `reader`. An id is that of a dataset
repository at the Hugging Face Hub, ``<owner>/<repository>``; a mirror has a folder for each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ...fetch import Location
from ...ingest.reader import Reader
from ...ingest.records import ConvertOptions
from ..options import declared
from ..source import Source

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class LerobotSource(Source):
    """Names are repositories of the Hub, such as ``lerobot/pusht``."""

    name = "lerobot"
    home = "hf://lerobot"
    open_ended = True
    supports = frozenset({"codec", "layout"})
    options = declared("lerobot")

    def knows(self, name: str) -> bool:
        return _ID.fullmatch(name) is not None and ".." not in name

    def places(self, name: str, options: ConvertOptions) -> Sequence[str]:
        return [f"hf://datasets/{name}"]

    def where_else(self, name: str) -> str:
        return f"check the name at https://huggingface.co/datasets/{name}, or name a folder that has it with --mirror"

    def find(self, name: str, location: Location, options: ConvertOptions) -> Reader:
        """Reads the metadata. Raises FetchErrors, CorruptSourceError, UsageError, MissingExtraError."""
        from .reader import LerobotReader

        is_repository = getattr(location, "repository", None) == name
        return LerobotReader(name, "" if is_repository else name, location, options)

    def recognises(self, path: Path) -> bool:
        try:
            return b'"codebase_version"' in (path / "meta" / "info.json").read_bytes()[: 1 << 16]
        except OSError:
            return False

    def find_in_folder(self, location: Location, options: ConvertOptions) -> Reader:
        from .reader import LerobotReader

        return LerobotReader(None, "", location, options)
