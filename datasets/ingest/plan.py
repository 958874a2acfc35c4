"""What a run has to do: its units, and the parts of them that are there, from an interrupted run or in a smaller dataset."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CorruptSourceError, DamagedDatasetError, DatasetExistsError
from ...storage.folder import DatasetPlace, remove_tree
from ...storage.join import Piece
from ...storage.leaf import Leaf
from ...storage.old_dataset import OldDataset
from ...storage.schema import LARGE_ROW, Schema
from ...storage.threads import map_in_threads
from ...storage.work import Work
from .block import ENDS
from .dictionary import dictionary_mark, dictionary_path, has_dictionaries, store_dictionaries, trained_leaves
from .estimate import bytes_of_state, estimate_expected, estimate_units
from .part import parts_of
from .raw_files import remote_files
from .reader import Reader
from .request import Estimate, Listener
from .trajectories import column_difference, columns_of
from .unit import BITS, Part, PartContents, PartSection, Unit


@dataclass(frozen=True)
class OldPart(Part):
    """A part whose rows a smaller dataset holds: the pieces of each large leaf."""

    old: Mapping[str, Sequence[Piece]]

    def pieces(self, section: PartSection, leaf: Leaf, range: Any) -> Sequence[Piece]:
        return self.old.get(leaf.name, ())


@dataclass
class Plan:
    """The units of one run, whose ``lead`` is read, and their ``parts``; ``old`` is the dataset to be extended."""

    reader: Reader
    place: DatasetPlace
    listener: Listener
    work: Work
    old: OldDataset | None
    lead: Part | None
    units: Sequence[Unit]
    #: Those that are there, of each unit.
    parts: dict[int, list[Part]] = field(default_factory=dict)

    @cached_property
    def _samples(self) -> Any:
        return samples_of(self.reader)

    def find_parts(self) -> None:
        """Find the parts that an interrupted run made, where they are sound, and those that a smaller dataset holds."""
        self.work.remember("units", len(self.units))
        self._check_digest()
        self.parts = {unit.index: parts_of(self.work.folder, unit) for unit in self.units}
        for unit in self.units:
            if self.parts[unit.index]:
                self.take_leaves(unit, self.parts[unit.index][0].record.leaves)
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
        there = [(unit, part) for unit in self.units for part in self.parts[unit.index]]
        sound = set[Path]()
        for (unit, part), is_sound in zip(there, list(map_in_threads(_is_sound, there, 8, "rbdata-proof"))):
            self._check_object(unit, part)
            if is_sound:
                sound.add(part.folder)
        for index, parts in self.parts.items():
            self.parts[index] = list(takewhile(lambda part: part.folder in sound, parts))
        kept = {part.folder for parts in self.parts.values() for part in parts}
        for folder in self.work.part_folders():
            if folder not in kept and int(folder.name.partition(".")[0]) in self.parts:
                remove_tree(folder)

    def _check_object(self, unit: Unit, part: Part) -> None:
        """Raise DatasetExistsError for a part that came from another object than the one that is there now."""
        spec, then = unit.spec, part.record.objects
        if spec is not None and then:
            pairs = [(spec.object["crc32c"], part.about.get("crc32c")), (spec.object["size"], then[0]["size"])]
            if any(None not in pair and pair[0] != pair[1] for pair in pairs):
                message = f"{unit.name} of the unfinished {self.place.id} came from another file than the one here"
                raise DatasetExistsError(message, hint=f"start over with --force ({self.work.folder})")

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
        return OldPart(self.old.folder, PartContents(unit.index, "", [], [], [section], about), pieces)

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
        given, identities = reader.dictionaries(), [every, first.identity]
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
        expected = self.reader.expect()
        if expected is not None:
            return estimate_expected(self.reader, self.place, expected, len(self.units), len(done))
        lead = self.lead
        assert lead is not None
        bits = [lead.rows(section, BITS) for section in lead.sections if section.steps]
        counted = lead.steps, sum(int(np.count_nonzero(some & ENDS)) for some in bits)
        # Nothing is read from parts that a smaller dataset holds.
        state_bytes = (
            self.old.bytes_of_state if self.old else partial(bytes_of_state, self.reader, lambda: self._samples)
        )
        fetched = bool(remote_files(self.reader))
        return estimate_units(self.reader, self.place, self.units, done, counted, state_bytes, fetched=fetched)

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

    def take_leaves(self, unit: Unit, leaves_json: Sequence[Mapping[str, Any]]) -> None:
        """Take the leaves from the first part, and compare those of the others with them."""
        reader, leaves = self.reader, tuple(map(Leaf.from_json, leaves_json))
        if not leaves:
            return
        if not reader.schema.leaves:
            reader.schema = Schema(leaves)
            reader.bulk, reader.columns = bulk_of(reader.schema), columns_of(reader.schema)
        elif leaves != reader.schema.leaves:
            odd = column_difference(columns_of(Schema(leaves)), columns_of(reader.schema))
            raise CorruptSourceError(f"{unit.name} is unlike the first: {odd}")

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


def samples_of(reader: Reader) -> Any:
    rows = reader.sample_rows()
    return [] if rows is None else rows


def _is_sound(there: tuple[Unit, Part]) -> bool:
    return there[1].is_sound()


def bulk_of(schema: Schema) -> tuple[str, ...]:
    """The large leaves: of states, and the twins that plain TED has in their place."""
    twins = [leaf.name for leaf in schema.steps if leaf.row_bytes >= LARGE_ROW and "next/" + leaf.name in schema]
    return (*(leaf.name for leaf in schema.states), *(name for twin in twins for name in (twin, "next/" + twin)))
