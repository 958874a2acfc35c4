"""What a source is made of: a source of another package imports these names from here.

    from rbdata.datasets.sources import Source, SourceOption

They are loaded when first used, so that a source imports only what it uses. docs/new_source.md shows how one is written.
"""

# ruff: noqa: F401 - imported for type checkers
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...storage.episodes import CUT, TERMINATED, TRUNCATED
    from ...storage.writer import ColumnWriter
    from ..fetch import Location, RemoteObject
    from ..ingest.job import ConvertOptions, Job, PartSpec, Plan, RawObject
    from ..ingest.row_source import Block, RowSource, block_of_rows
    from ..ingest.trajectories import Column, TrajectoryWriter, lay_out
    from .catalogue_entry import CatalogueEntry, Place
    from .options import SourceOption
    from .source import Source

_HOMES = {
    "...storage.episodes": ("CUT", "TERMINATED", "TRUNCATED"),
    "...storage.writer": ("ColumnWriter",),
    "..fetch": ("Location", "RemoteObject"),
    "..ingest.job": ("ConvertOptions", "Job", "PartSpec", "Plan", "RawObject"),
    "..ingest.row_source": ("Block", "RowSource", "block_of_rows"),
    "..ingest.trajectories": ("Column", "TrajectoryWriter", "lay_out"),
    ".catalogue_entry": ("CatalogueEntry", "Place"),
    ".options": ("SourceOption",),
    ".source": ("Source",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module, __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(name for names in _HOMES.values() for name in names)
