"""What a source is made of: a source of another package imports these names from here.

    from rbdata.datasets.sources import Source, SourceOption

They are loaded when first used, so that a source imports only what it uses. docs/new_source.md shows how one is written.
"""

# ruff: noqa: F401 - imported for type checkers
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...storage.checksums import hash_file
    from ...storage.episodes import CUT, TERMINATED, TRUNCATED, EpisodeTable
    from ..fetch import Location, RemoteObject
    from ..ingest.block import END_CUT, END_TERMINATED, END_TRUNCATED, Block, LazyRows
    from ..ingest.counted_stream import CountedStream
    from ..ingest.episode_files import (
        Episode,
        EpisodeFiles,
        EpisodeReader,
        FileGroup,
        RawInput,
        file_groups,
        group_files,
    )
    from ..ingest.reader import Reader
    from ..ingest.records import ConvertOptions, PartSpec, RawObject, count_notes, name_left_out
    from ..ingest.trajectories import Column, count_outcomes, resolve_transitions, to_rewards
    from ..ingest.unit import LEAD, Facts, Part, Unit
    from ..ingest.whole_file import WholeFileReader
    from .catalogue_entry import CatalogueEntry, ListedDataset, Place
    from .options import SourceOption
    from .source import Source, files_below, first_found, only_object

_HOMES = {
    "...storage.checksums": "hash_file",
    "...storage.episodes": "CUT TERMINATED TRUNCATED EpisodeTable",
    "..fetch": "Location RemoteObject",
    "..ingest.block": "END_CUT END_TERMINATED END_TRUNCATED Block LazyRows",
    "..ingest.counted_stream": "CountedStream",
    "..ingest.episode_files": "Episode EpisodeFiles EpisodeReader FileGroup RawInput file_groups group_files",
    "..ingest.reader": "Reader",
    "..ingest.records": "ConvertOptions PartSpec RawObject count_notes name_left_out",
    "..ingest.trajectories": "Column count_outcomes resolve_transitions to_rewards",
    "..ingest.unit": "LEAD Facts Part Unit",
    "..ingest.whole_file": "WholeFileReader",
    ".catalogue_entry": "CatalogueEntry Place ListedDataset",
    ".options": "SourceOption",
    ".source": "Source files_below first_found only_object",
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names.split():
            return getattr(import_module(module, __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(name for names in _HOMES.values() for name in names.split())
