"""A unit becomes a part: a folder with the rows of its sections and one record, which appears by a rename.

    .parts/<unit>.<n>/<leaf>.<section>.rows, .lengths      the rows of a leaf (`storage.part_file`)
    .parts/<unit>.<n>/.bits.<section>.rows                 how each step ends (`block`)
    .parts/<unit>.<n>/part.json                            the record: the unit, its sections, what it says of itself

A part that is there, and whose record fits its unit, is not made again. A unit that can be continued in its middle
(`Block.mark`) becomes several parts, one after the other.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CorruptSourceError, RbdataError, SchemaError
from ...storage.codecs import codec_of
from ...storage.leaf import Leaf
from ...storage.part_file import RowsFile, encoder_of
from ...storage.schema import Schema
from ...storage.work import PART_RECORD, PARTS, read_sealed, sealed
from ..workers.task import OnBlock
from .block import END_CUT, END_TERMINATED, END_TRUNCATED, ENDS, Block, Rows, RowsSink, StoredRows, final_states, lazy
from .dictionary import dictionary_mark, dictionary_path, store_dictionaries, trained_leaves
from .trajectories import column_difference, columns_of
from .unit import BITS, LEAD, Part, Unit, stem_of

#: Bytes and rows that a dictionary is trained on, where a reader gives no sample: the first ones.
SAMPLE_BYTES, SAMPLE_ROWS = 24 << 20, 1500
#: A unit that can be continued becomes a part after this share of the time that it took so far.
_KEPT_SHARE = 1 / 16


@dataclass
class _Section:
    number: int
    place: tuple[int, ...]
    range: int
    #: Whether the next state continues an episode.
    inside: bool
    files: dict[str, RowsFile] = field(default_factory=dict)

    def starts(self, final: np.ndarray) -> np.ndarray:
        """Which states are the first of their episode, given which of them are the last, bool ``[states]``."""
        if not len(final):
            return final
        first = np.concatenate([[not self.inside], final[:-1]])
        self.inside = not final[-1]
        return first


class DictionaryMadeError(Exception):
    """The dictionary is there, and other units wait for it."""

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        self.schema = schema


class PartWriter:
    """Writes blocks of a unit as a part.

    ``folder`` is the working folder, ``schema`` the leaves (empty: the first block states them). Where a compressed leaf has no
    dictionary there yet, one is trained on the first rows; with ``begins``, DictionaryMadeError is raised as soon as all
    dictionaries are there.
    """

    def __init__(
        self,
        folder: Path,
        unit: Unit,
        number: int,
        schema: Schema,
        threads: int,
        *,
        begins: bool = False,
        level: int | None = None,
    ) -> None:
        self._folder, self._unit, self._threads, self._begins, self._level = folder, unit, threads, begins, level
        self._target = part_folder(folder, unit.index, number)
        self._path = self._target.with_name(f"{self._target.name}.{uuid.uuid4().hex}")
        self._path.mkdir(parents=True)
        self._sections: dict[tuple[int, ...], _Section] = {}
        #: Rows that wait for the dictionary; None when it is there.
        self._sample: list[tuple[RowsFile, np.ndarray]] | None = None
        self._about: Mapping[str, Any] = {}
        self._marked: dict[str, Any] | None = None
        self._take_schema(schema)

    def _take_schema(self, schema: Schema) -> None:
        self.schema = schema
        after = {leaf.name: schema.get("next/" + leaf.name) for leaf in schema.steps}
        self._twins = {name for name, leaf in after.items() if leaf and leaf.constant is None}
        if any(not dictionary_path(self._folder, leaf).is_file() for leaf in trained_leaves(schema.states)):
            self._sample = []

    def add(self, block: Block) -> None:
        """Append a block. Raises SchemaError for rows that do not fit the schema, or each other."""
        if block.schema is not None and block.schema != self.schema:
            if self.schema.leaves:
                odd = column_difference(columns_of(block.schema), columns_of(self.schema))
                raise CorruptSourceError(f"{self._unit.name} is unlike the first: {odd}")
            self._take_schema(block.schema)
        section, columns, final = self._section_of(block), dict(block.columns), block.final
        if block.bits is not None:
            final = final_states(block.bits)
            self._file(section, BITS).append(block.bits)
            columns = {**self._flags(block.bits), **columns}
        first = None if final is None else section.starts(final)
        for name, given in columns.items():
            leaf, rows = self.schema[name], given if isinstance(given, StoredRows) else lazy(given)
            sink, wanted = self._sink(section, leaf), None if final is None else len(final)
            if leaf.kind == "step" and name in self._twins and "next/" + name not in columns:
                assert final is not None and first is not None
                sink = _Twins(sink, self._sink(section, self.schema["next/" + name]), final, first)
            elif leaf.kind == "step":
                wanted = None if block.bits is None else len(block.bits)
            done = rows.write(sink)
            if wanted not in (None, done):
                raise SchemaError(f"{self._unit.name}: {name} has {done} rows where {wanted} belong")
        self._about = self._about if block.record is None else block.record
        if self._begins and self._sample is None and any(file.rows for file in section.files.values()):
            raise DictionaryMadeError(self.schema)

    def _flags(self, bits: np.ndarray) -> dict[str, Rows]:
        """The columns of the flags, where the schema has them."""
        ends = {"terminated": END_TERMINATED, "truncated": END_TRUNCATED | END_CUT, "done": ENDS}
        leaves = {name: self.schema.get(f"next/{name}") for name in ends}
        return {leaf.name: bits & ends[name] != 0 for name, leaf in leaves.items() if leaf and leaf.constant is None}

    def _section_of(self, block: Block) -> _Section:
        place = block.place or (self._unit.index,)
        if place not in self._sections:
            self._sections[place] = _Section(len(self._sections), place, block.range, block.goes_on)
        return self._sections[place]

    def _file(self, section: _Section, leaf: Leaf) -> RowsFile:
        stem = stem_of(leaf)
        if stem not in section.files:
            encode = None if self._sample is not None else encoder_of(leaf, self._folder, self._threads, self._level)
            section.files[stem] = RowsFile(self._path / f"{stem}.{section.number}", leaf, encode)
        return section.files[stem]

    def _sink(self, section: _Section, leaf: Leaf) -> RowsSink:
        file = self._file(section, leaf)
        return file if self._sample is None or codec_of(leaf).fixed_rows else _Waiting(self, file)

    def wait(self, file: RowsFile, rows: np.ndarray) -> None:
        """Keep rows for the dictionary, or write them where they just had one trained."""
        if self._sample is None:
            file.append(rows)
            return
        self._sample.append((file, rows.copy()))
        if sum(some.nbytes for _, some in self._sample) >= SAMPLE_BYTES:
            self._train()

    def _train(self) -> None:
        """Train the dictionary on the waiting rows, then write them."""
        sample, self._sample = self._sample, None
        if not sample:
            return
        rows = [row for _, some in sample for row in some]
        want = max(1, min(SAMPLE_ROWS, SAMPLE_BYTES // max(row.nbytes for row in rows), len(rows)))
        chosen = [rows[i] for i in np.unique(np.linspace(0, len(rows) - 1, want).astype(int))]
        leaves = {leaf.name: leaf for leaf in trained_leaves(self.schema.states)}
        store_dictionaries(self._folder, leaves, chosen, self._unit.identity)
        for file, some in sample:
            file.encode = encoder_of(file.leaf, self._folder, self._threads, self._level)
            file.append(some)

    # -- the end of a part ---------------------------------------------------------------------------------------------

    def mark(self, mark: Any) -> bool:
        """Declare that the unit can be continued from here with ``mark``; returns False while rows wait in memory."""
        if self._sample:
            return False
        self._marked = self._record(mark)
        return True

    def _record(self, mark: Any) -> dict[str, Any]:
        sections = [
            {
                "place": section.place,
                "range": section.range,
                "leaves": {
                    stem: {"stem": f"{stem}.{section.number}", **file.position()}
                    for stem, file in section.files.items()
                },
            }
            for section in self._sections.values()
        ]
        return {"sections": sections, "about": dict(self._about), "goes_on": mark}

    def finish(self) -> dict[str, Any]:
        """Close everything, and give it the part's name; returns the record."""
        self._train()
        return self._keep(self._record(None))

    def cut(self) -> dict[str, Any]:
        """Make a part of everything up to the last mark. Raises RbdataError where there is none."""
        if self._marked is None:
            raise RbdataError("there is no mark")
        return self._keep(self._marked)

    def _keep(self, marked: dict[str, Any]) -> dict[str, Any]:
        for section in self._sections.values():
            for file in section.files.values():
                file.finish()
        for section, told in zip(self._sections.values(), marked["sections"]):
            for stem, written in told["leaves"].items():
                if lengths := section.files[stem].sum_lengths(written["rows"]):
                    written["lengths"] = lengths
        unit = self._unit
        record = {
            "unit": unit.index,
            "identity": unit.identity,
            "objects": unit.objects(),
            "dictionary": dictionary_mark(self._folder),
            "leaves": [leaf.to_json() for leaf in self.schema],
            **marked,
        }
        (self._path / PART_RECORD).write_bytes(sealed(record))
        if self._target.exists():
            shutil.rmtree(self._target)
        self._path.rename(self._target)
        return record

    def abandon(self) -> None:
        """Remove what was written."""
        for section in self._sections.values():
            for file in section.files.values():
                file.abandon()
        shutil.rmtree(self._path, ignore_errors=True)


class _Waiting:
    """Rows that go to a file when there is a dictionary for it."""

    def __init__(self, writer: PartWriter, file: RowsFile) -> None:
        self._writer, self._file = writer, file

    def append(self, rows: np.ndarray) -> None:
        self._writer.wait(self._file, rows)

    def append_stored(self, data: Any, lengths: np.ndarray) -> None:
        self._file.append_stored(data, lengths)


class _Twins:
    """States that fill two step leaves: all but the final ones are those that steps begin in, all but the first ones those that
    they lead to; ``final``, ``first`` are bool ``[states]``."""

    def __init__(self, root: RowsSink, after: RowsSink, final: np.ndarray, first: np.ndarray) -> None:
        self._root, self._after, self._final, self._first, self._at = root, after, final, first, 0

    def append(self, rows: np.ndarray) -> None:
        here = slice(self._at, self._at + len(rows))
        self._at += len(rows)
        for sink, left_out in ((self._root, self._final[here]), (self._after, self._first[here])):
            if len(left_out) == len(rows):  # the writer refuses too many
                sink.append(rows[~left_out] if left_out.any() else rows)

    def append_stored(self, data: Any, lengths: np.ndarray) -> None:
        raise NotImplementedError


def part_folder(folder: Path, unit: int, number: int) -> Path:
    """The folder of a unit's part in a working folder."""
    return folder / PARTS / f"{'lead' if unit == LEAD else f'{unit:05d}'}.{number}"


# -- the task of a worker --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _UnitTask:
    """A task about one unit; picklable if the unit is."""

    unit: Unit

    @property
    def index(self) -> int:
        return self.unit.index

    @property
    def rows(self) -> int:
        return self.unit.rows

    @property
    def label(self) -> str:
        return self.unit.name


@dataclass(frozen=True)
class PartTask(_UnitTask):
    """Makes the parts of a unit in a working ``folder``, those that are not there yet."""

    folder: Path
    schema: Schema
    threads: int
    begins: bool = False
    #: Of the codec (`storage.codecs.level_of`).
    level: int | None = None

    def __call__(self, on_block: OnBlock) -> dict[str, Any]:
        """Returns the record of the unit's last part; of one that ``begins`` ended early, the leaves alone."""
        try:
            with self.unit.prepared(self.folder, on_block) as unit:
                return self._write(unit, on_block)
        except DictionaryMadeError as made:
            return {"leaves": [leaf.to_json() for leaf in made.schema]}

    def _write(self, unit: Unit, on_block: OnBlock) -> dict[str, Any]:
        before = parts_of(self.folder, unit)
        number, resume = len(before), before[-1].record["goes_on"] if before else None
        began = kept = time.monotonic()
        writer = PartWriter(self.folder, unit, number, self.schema, self.threads, begins=self.begins, level=self.level)
        try:
            for block in unit.blocks(resume, self.threads):
                writer.add(block)
                on_block(block.done, block.fetched, block.retries)
                if block.mark is None or not writer.mark(block.mark):
                    continue
                now = time.monotonic()
                if now - kept >= max(unit.keep_seconds, (kept - began) * _KEPT_SHARE):
                    writer.cut()
                    number, kept = number + 1, now
                    writer = PartWriter(self.folder, unit, number, writer.schema, self.threads, level=self.level)
            return writer.finish()
        except BaseException as error:
            if not isinstance(error, DictionaryMadeError):
                with suppress(OSError, RbdataError):
                    writer.cut()
            writer.abandon()
            raise


@dataclass(frozen=True)
class CountTask(_UnitTask):
    """Reads a unit, and writes nothing: what a dry run needs of a lead."""

    def __call__(self, on_block: OnBlock) -> dict[str, Any]:
        steps = episodes = 0
        about: Mapping[str, Any] = {}
        for block in self.unit.blocks(None, 1):
            if block.bits is not None:
                steps += len(block.bits)
                episodes += int(np.count_nonzero(block.bits & ENDS))
            about = about if block.record is None else block.record
            on_block(block.done, block.fetched, block.retries)
        return {"about": dict(about), "steps": steps, "episodes": episodes}


# -- parts that are there ----------------------------------------------------------------------------------------------------


def read_part(folder: Path) -> Part | None:
    """The part in a folder; None where it is not whole."""
    record = read_sealed(folder / PART_RECORD)
    is_one = isinstance(record, dict) and isinstance(record.get("unit"), int) and isinstance(record["sections"], list)
    return Part(folder, record) if is_one else None


def parts_of(folder: Path, unit: Unit) -> list[Part]:
    """The parts of a unit that fit it, in order; the last one is unfinished where its record has ``goes_on``."""
    found: list[Part] = []
    while not (found and found[-1].is_last) and (part := read_part(part_folder(folder, unit.index, len(found)))):
        if not unit.fits(part.record):
            break
        found.append(part)
    return found
