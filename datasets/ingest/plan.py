"""What a run has to do: its units, and the parts of them that are there, from an interrupted run or in a smaller dataset."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from typing import Any

from ...errors import DamagedDatasetError, DatasetExistsError
from ...storage.folder import DatasetPlace, remove_tree
from ...storage.join import Piece
from ...storage.leaf import Leaf
from ...storage.old_dataset import OldDataset
from ...storage.schema import LARGE_ROW, Schema
from ...storage.threads import map_in_threads
from ...storage.work import Work
from .dictionary import dictionary_mark, dictionary_path, has_dictionaries, store_dictionaries, trained_leaves
from .estimate import estimate_work
from .part import parts_of
from .reader import Reader
from .request import Estimate, Listener, Request
from .trajectories import columns_of
from .unit import Part, PartSection, SampleRows, Unit


class OldPart(Part, frozen=True, kw_only=True):
    """A part whose rows a smaller dataset holds: the pieces of each large leaf."""

    old: Mapping[str, Sequence[Piece]]

    def pieces(self, section: PartSection, leaf: Leaf, range: Any) -> Sequence[Piece]:
        return self.old.get(leaf.name, ())


@dataclass
class Plan:
    """One run with the place's lock held: its units, once the ``lead`` is read, and their ``parts``; ``old`` is the dataset to
    be extended or appended to."""

    reader: Reader
    place: DatasetPlace
    request: Request
    listener: Listener
    work: Work
    old: OldDataset | None
    lead: Part | None = None
    units: Sequence[Unit] = ()
    #: Those that are there, of each unit.
    parts: dict[int, list[Part]] = field(default_factory=dict)

    @cached_property
    def _samples(self) -> SampleRows | None:
        return self.reader.sample_rows()

    def find_parts(self) -> None:
        """Find the parts that an interrupted run made, where they are sound, and those that a smaller dataset holds."""
        self.work.remember("units", len(self.units))
        self._check_digest()
        self.parts = {unit.index: parts_of(self.work.folder, unit) for unit in self.units}
        for unit in self.units:
            if self.parts[unit.index]:
                self.take_schema(Schema(tuple(map(Leaf.from_json, self.parts[unit.index][0].leaves))))
        self._prepare_dictionaries()
        if self.work.part_folders():
            self._drop_damaged()
        if count := common(self.old, self.units):
            self.listener.on_stage("checking the shards that are there")
        for unit in self.units[:count]:
            if not self.parts[unit.index] and (old := self._old_part(unit)):
                self.parts[unit.index] = [old]

    def _drop_damaged(self) -> None:
        """Remove the parts that are damaged, and those after them in their units, which go on from what they were."""
        self.listener.on_stage("checking what is finished")
        there = [part for parts in self.parts.values() for part in parts]
        is_sound = map_in_threads(Part.is_sound, there, 8, "rbdata-proof")
        sound = {part.folder for part, kept in zip(there, is_sound) if kept}
        for index, parts in self.parts.items():
            self.parts[index] = list(takewhile(lambda part: part.folder in sound, parts))
        kept = {part.folder for parts in self.parts.values() for part in parts}
        for folder in self.work.part_folders():
            if folder not in kept and int(folder.name.partition(".")[0]) in self.parts:
                remove_tree(folder)

    def _old_part(self, unit: Unit) -> OldPart | None:
        """The rows of a unit in the old dataset; None if they are damaged."""
        assert self.old is not None
        part, leaves = self.old.manifest.parts[unit.index], [self.reader.schema[name] for name in self.reader.bulk]
        first, stop = part["first_state"], part["first_state"] + part["states"]
        try:
            pieces = {leaf.name: self.old.pieces(leaf, first, stop, unit.index) for leaf in leaves}
        except (OSError, DamagedDatasetError):
            return None
        section, about = PartSection((unit.index,), 0, {}), {"crc32c": part["object"]["crc32c"]}
        return OldPart(unit.index, "", [], [section], about, 0, 0, where=str(self.old.folder), old=pieces)

    def _prepare_dictionaries(self) -> None:
        """Keep the dictionaries that an interrupted run stored, or make them: given ones, or trained on the reader's sample.
        Without either, the first rows of the first unit train them."""
        folder, reader = self.work.folder, self.reader
        leaves = trained_leaves(reader.schema.states)
        if not reader.schema.leaves:  # those that an interrupted run has learnt
            leaves = [Leaf.from_json(leaf) for leaf in (dictionary_mark(folder) or {}).get("leaves", ())]
        if not leaves:
            return
        every = hashlib.sha256(json.dumps([unit.identity for unit in self.units]).encode()).hexdigest()
        first = next((unit for unit in self.units if not self._is_empty(unit)), self.units[0])
        given: Any = reader.dictionaries()
        identities = [every, first.identity]
        if self.old:
            given = {leaf.name: self.old.dictionary(leaf) for leaf in leaves}
            identities = [f"old {self.old.manifest.content}"]
        if any(has_dictionaries(folder, leaves, identity) for identity in identities):
            return
        self.discard_parts()
        for leaf in leaves:
            remove_tree(dictionary_path(folder, leaf))
        if given is None and type(reader).sample_rows is not Reader.sample_rows:
            self.listener.on_stage("sampling frames")
            given = self._samples
        if given is not None:
            store_dictionaries(folder, {leaf.name: leaf for leaf in leaves}, given, identities[0])

    def _is_empty(self, unit: Unit) -> bool:
        """Whether a unit is done, and gave nothing."""
        parts = self.parts[unit.index]
        return is_done(parts) and all(part.is_empty for part in parts)

    def discard_parts(self) -> None:
        """Remove those of another dictionary, or without rows."""
        for folder in self.work.part_folders():
            remove_tree(folder)
        self.parts = {unit.index: [] for unit in self.units}

    def estimate(self) -> Estimate:
        done = {index for index, parts in self.parts.items() if is_done(parts)}
        return estimate_work(self.reader, self.place, self.units, done, self.lead, self.old, lambda: self._samples)

    def left(self, units: Iterable[Unit]) -> list[Unit]:
        return [unit for unit in units if not is_done(self.parts[unit.index])]

    def is_begun(self) -> bool:
        """Whether the leaves and their dictionaries are known, and what the first unit decides."""
        folder, reader = self.work.folder, self.reader
        known = all(dictionary_path(folder, leaf).is_file() for leaf in trained_leaves(reader.schema.states))
        decided = not reader.first_decides or self.first_part() is not None
        return bool(reader.schema.leaves) and known and decided

    def first_part(self) -> Part | None:
        """The first part with a step, if all units before it are done."""
        for unit in self.units:
            parts = self.parts[unit.index]
            if not is_done(parts):
                return None
            if parts[0].steps:
                return parts[0]
        return None

    def take_schema(self, schema: Schema) -> None:
        """Take the leaves from the first part, where the reader does not know them; others are made like it (`PartTask`)."""
        reader = self.reader
        if not reader.schema.leaves and schema.leaves:
            reader.schema, reader.bulk, reader.columns = schema, bulk_of(schema), columns_of(schema)

    def _check_digest(self) -> None:
        """Raise DatasetExistsError if the parts that are there were made from other data."""
        before, now = self.work.remembered("digest"), self.reader.digest
        if before not in (None, now) and self.work.holds_work():
            message = f"the source files of the unfinished {self.place.id} have changed since it was started"
            hint = f"start over with --force ({self.work.folder})"
            raise DatasetExistsError(message, hint=hint, unfinished=True)
        if before != now:
            self.work.remember("digest", now)


def is_done(parts: Sequence[Part]) -> bool:
    return bool(parts) and parts[-1].is_last


def common(old: OldDataset | None, units: Sequence[Unit]) -> int:
    """How many of the first units an older dataset begins with, too."""
    specs = [unit.spec.to_json() for unit in units if unit.spec]
    return old.common(specs) if old and len(specs) == len(units) else 0


def bulk_of(schema: Schema) -> tuple[str, ...]:
    """The large leaves: of states, and the twins that plain TED has in their place."""
    twins = [leaf.name for leaf in schema.steps if leaf.row_bytes >= LARGE_ROW and "next/" + leaf.name in schema]
    return (*(leaf.name for leaf in schema.states), *(name for twin in twins for name in (twin, "next/" + twin)))
