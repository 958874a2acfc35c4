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
    from ...storage.episodes import CUT, TERMINATED, TRUNCATED
    from ...storage.writer import ColumnWriter
    from ..fetch import Location, RemoteObject
    from ..ingest.episode_files import (
        Episode,
        EpisodeFilesJob,
        EpisodeReader,
        LazyRows,
        RawInput,
        Unit,
        raw_object,
        units_of_files,
    )
    from ..ingest.job import ConvertOptions, Job, PartSpec, Plan, RawObject, StagedJob, count_notes, name_left_out
    from ..ingest.raw_files import WholeFileJob
    from ..ingest.row_source import Block, CountedStream, RowSource, block_of_rows
    from ..ingest.trajectories import Column, TrajectoryWriter, resolve_transitions, reward_columns, to_rewards
    from .catalogue_entry import CatalogueEntry, Place, RemoteDataset
    from .options import SourceOption
    from .source import Source, files_below, first_found, only_object

_HOMES = {
    "...storage.checksums": ("hash_file",),
    "...storage.episodes": ("CUT", "TERMINATED", "TRUNCATED"),
    "...storage.writer": ("ColumnWriter",),
    "..fetch": ("Location", "RemoteObject"),
    "..ingest.episode_files": (
        "Episode",
        "EpisodeFilesJob",
        "EpisodeReader",
        "LazyRows",
        "RawInput",
        "Unit",
        "raw_object",
        "units_of_files",
    ),
    "..ingest.job": (
        "ConvertOptions",
        "Job",
        "PartSpec",
        "Plan",
        "RawObject",
        "StagedJob",
        "count_notes",
        "name_left_out",
    ),
    "..ingest.row_source": ("Block", "CountedStream", "RowSource", "block_of_rows"),
    "..ingest.raw_files": ("WholeFileJob",),
    "..ingest.trajectories": ("Column", "TrajectoryWriter", "resolve_transitions", "reward_columns", "to_rewards"),
    ".catalogue_entry": ("CatalogueEntry", "Place", "RemoteDataset"),
    ".options": ("SourceOption",),
    ".source": ("Source", "files_below", "first_found", "only_object"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module, __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(name for names in _HOMES.values() for name in names)
