"""The plan of a dataset that is being written, for readers that do not wait until it is complete.

    plan.json    in the working folder: the manifest as it will be, but for what is known only at the end

It is there while the leaves that the plan has written (the small ones, the episode table, the dictionaries) are whole and
synced, which its ``files`` list with their checksums; a run that writes them anew removes it first. Together with the journal
it says what may be read: the state rows of the parts that were appended without a gap, and whole episodes of these alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from .durable import sync_files, sync_folder
from .episodes import EpisodeTable
from .folder import JOURNAL
from .journal import Journal
from .manifest import Manifest, read_manifest, write_manifest

PLAN = "plan.json"


def write_plan(folder: Path, manifest: Manifest) -> None:
    """Let readers in: ``manifest.files`` are synced, and then the plan is written."""
    sync_files(folder, manifest.files)
    write_manifest(folder, manifest, PLAN)


def remove_plan(folder: Path) -> None:
    """Let no further reader in: the leaves are about to be written anew."""
    if (folder / PLAN).exists():
        (folder / PLAN).unlink()
        sync_folder(folder)


def read_plan(folder: Path) -> Manifest:
    """The manifest as it was planned. Raises as `read_manifest`."""
    return read_manifest(folder, PLAN)


def finished_in_order(folder: Path) -> int:
    """How many parts are finished before the first that is not, by the journal."""
    merged = Journal(folder / JOURNAL).find("merged")
    return next(number for number in range(len(merged) + 1) if number not in merged)


def whole_episodes(table: EpisodeTable, parts: Sequence[dict[str, int]]) -> int:
    """How many episodes lie wholly in the first parts (as the manifest records them); ``table`` is of the whole dataset."""
    states = sum(part.get("states", 0) for part in parts)
    ends = table.start + table.length + np.arange(1, len(table) + 1)  # an episode of n steps has n + 1 states
    return int(np.searchsorted(ends, states, "right"))


def is_outcome(plan: Manifest, manifest: Manifest) -> bool:
    """Whether a finished dataset, or another plan, is what was planned: its small leaves and its parts are the same."""
    if (plan.id, plan.steps, plan.episodes) != (manifest.id, manifest.steps, manifest.episodes):
        return False
    same_files = all(manifest.files.get(path) == ranges for path, ranges in plan.files.items())
    return same_files and _layouts(plan) == _layouts(manifest) and plan.schema == manifest.schema


def _layouts(manifest: Manifest) -> list[tuple[object, object]]:
    return [(part.get("layout"), part.get("states")) for part in manifest.parts]


def first_episodes(manifest: Manifest, table: EpisodeTable, episodes: int) -> tuple[Manifest, EpisodeTable]:
    """The manifest and the episode table of a dataset's first episodes alone."""
    columns = (table.start, table.length, table.returns, table.outcome, table.midway)
    first = EpisodeTable(*(column[:episodes] for column in columns))
    returns, lengths = first.summary()
    kept = replace(manifest, steps=first.steps, episodes=episodes, returns=returns, lengths=lengths)
    return kept, first
