"""Appending: a dataset grows by what another run makes, which comes after the rows that it has.

    old files      pieces by offset, if they hold what the manifest says
    parts          pieces after them
    manifest       the old one with new counts; ``source["appended"]`` says what was added, and when

All of it is joined beside the old dataset, which is replaced by a rename at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UsageError
from ...storage.episodes import FOLDER, EpisodeTable, open_episodes
from ...storage.folder import DatasetPlace
from ...storage.join import Piece
from ...storage.leaf import Leaf
from ...storage.manifest import Manifest, read_manifest
from ...storage.old_dataset import OldDataset

if TYPE_CHECKING:
    from .reader import Reader


class Base(OldDataset):
    """The dataset in a folder, which is about to grow."""

    @classmethod
    def at(cls, place: DatasetPlace) -> Base | None:
        """The dataset at a place; None without one. Raises as `read_manifest`."""
        return cls(place.path, read_manifest(place.path)) if place.exists() else None

    def check(self, reader: Reader) -> None:
        """Raise UsageError for a reader with other leaves, and as `Reader.check_append`."""
        there, new = ({leaf.name: leaf for leaf in schema} for schema in (self.manifest.schema, reader.schema))
        odd = [name for name in {**there, **new} if there.get(name) != new.get(name)]
        if odd:
            how = "; ".join(f"{name} is {_told(there.get(name))} there, {_told(new.get(name))} here" for name in odd)
            message = f"{self.manifest.id} has other leaves than what is to be appended: {how}"
            raise UsageError(message, hint="give the same keys, dtypes and shapes, or make a dataset of another id")
        reader.check_append(self.manifest)

    @cached_property
    def all_pieces(self) -> Mapping[str, Sequence[Piece]]:
        """The rows of each leaf that is not constant. Reads all files once.

        Raises DamagedDatasetError where one does not hold what the manifest says.
        """
        for path in self.manifest.files:
            if (path.startswith(f"{FOLDER}/") or path.endswith(("/dictionary", "/offsets"))) and self.damaged_in(path):
                raise self.damaged(path)
        leaves = [leaf for leaf in self.manifest.schema if leaf.constant is None]
        return {leaf.name: self.pieces(leaf, 0, self.manifest.rows(leaf), "old", with_empty=True) for leaf in leaves}

    def episodes(self, added: EpisodeTable) -> EpisodeTable:
        """The episodes of the whole."""
        manifest = self.manifest
        old = open_episodes(self.folder, manifest.episodes, manifest.steps)
        columns = {name: np.concatenate([rows, vars(added)[name]]) for name, rows in vars(old).items()}
        columns["starts"][len(old) :] += manifest.steps
        return EpisodeTable(**columns)

    def grown(self, added: Manifest, episodes: EpisodeTable) -> Manifest:
        """The manifest of the whole, without its files; ``added`` is that of what is appended, alone."""
        old, provenance = self.manifest, added.provenance
        # What is said of the first data is said of the others only where it is something else.
        other = {name: value for name, value in added.source.items() if value != old.source.get(name)}
        other = {name: value for name, value in other.items() if name != "objects" and value != provenance["location"]}
        told = {"steps": added.steps, "episodes": added.episodes, "from": provenance["location"], **other}
        appended = [*old.source.get("appended", ()), {"created": provenance["created"], **told}]
        objects = [*old.source.get("objects", ()), *added.source["objects"]]
        number = max((part.get("number", 0) for part in old.parts), default=-1) + 1
        parts = [
            {**part, "number": number + at, "first_state": old.states + part.get("first_state", 0)}
            for at, part in enumerate(added.parts)
        ]
        returns, lengths = episodes.summary()
        return replace(
            old,
            steps=episodes.steps,
            episodes=len(episodes),
            source={**old.source, "objects": objects, "appended": appended},
            parts=[*old.parts, *parts],
            counts=_sum_counts(old.counts, added.counts),
            notes=list(dict.fromkeys([*old.notes, *added.notes])),
            returns=returns,
            lengths=lengths,
            files={},
            blocks=None,
            provenance={**old.provenance, **{name: provenance[name] for name in ("created", "rbdata_version")}},
        )


def _told(leaf: Leaf | None) -> str:
    return "missing" if leaf is None else f"{leaf.dtype} {list(leaf.shape)}, {leaf.codec}, per {leaf.kind}"


def _sum_counts(old: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Whole numbers are added; of others, the old one stays."""
    counts = {**added, **old}
    for name in old.keys() & added.keys():
        if type(old[name]) is int and type(added[name]) is int:
            # Side by side in one recording, not in all of them together.
            counts[name] = (max if name == "environments" else int.__add__)(old[name], added[name])
    return counts
