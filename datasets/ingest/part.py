"""A unit becomes a part: a folder with the rows of its sections and one record, which appears by a rename.

    .parts/<unit>.<n>/<leaf>.<section>.rows, .lengths      the rows of a leaf (`storage.part_file`)
    .parts/<unit>.<n>/.bits.<section>.rows                 how each step ends (`block`)
    .parts/<unit>.<n>/part.json                            the record (`unit.Part`)

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

import msgspec
import numpy as np

from ...errors import CorruptSourceError, RbdataError, SchemaError
from ...storage.codecs import codec_of
from ...storage.leaf import Leaf
from ...storage.part_file import RowsFile, encoder_of
from ...storage.schema import Schema
from ...storage.work import PART_RECORD, PARTS, read_sealed, sealed
from ..workers.task import OnBlock
from .block import END_CUT, END_TERMINATED, END_TRUNCATED, ENDS, Block, CopiedRows, Rows, RowsSink, final_states, lazy
from .dictionary import dictionary_path, store_dictionaries, trained_leaves
from .trajectories import column_difference, columns_of
from .unit import BITS, LEAD, Part, PartRows, PartSection, Unit, stem_of

#: Bytes and rows that a dictionary is trained on, where a reader gives no sample: the first ones.
SAMPLE_BYTES, SAMPLE_ROWS = 24 << 20, 1500
#: A unit that can be continued becomes a part after this share of the time that it took so far.
_KEPT_SHARE = 1 / 16


# -- the task of a worker --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PartTask:
    """Makes the parts of a unit in a working ``folder``, those that are not there yet.

    ``schema``: the leaves; empty where the first block states them. Where a compressed leaf has no dictionary yet, one is
    trained on the first rows; a task that ``begins`` ends then, as others wait for it. ``level``: of the codec.
    """

    unit: Unit
    folder: Path
    schema: Schema
    threads: int
    begins: bool = False
    level: int | None = None

    @property
    def index(self) -> int:
        return self.unit.index

    @property
    def rows(self) -> int:
        return self.unit.rows

    @property
    def label(self) -> str:
        return self.unit.name

    def __call__(self, on_block: OnBlock) -> Schema:
        """Returns the leaves of the unit; the parts are in the folder."""
        try:
            with self.unit.prepared(self.folder, on_block) as unit:
                return self._write(unit, on_block)
        except _BegunError as begun:
            schema: Schema = begun.args[0]
            return schema

    def _write(self, unit: Unit, on_block: OnBlock) -> Schema:
        before = parts_of(self.folder, unit)
        number, resume = len(before), before[-1].goes_on if before else None
        began = kept = time.monotonic()
        writer = _PartWriter(self, unit, number, self.schema)
        try:
            for block in unit.blocks(resume, self.threads):
                writer.add(block)
                if self.begins and writer.is_begun():
                    raise _BegunError(writer.schema)
                on_block(block.done, block.fetched, block.retries)
                if block.mark is None or not writer.mark(block.mark):
                    continue
                now = time.monotonic()
                if now - kept >= max(unit.keep_seconds, (kept - began) * _KEPT_SHARE):
                    writer.cut()
                    number, kept = number + 1, now
                    writer = _PartWriter(self, unit, number, writer.schema)
            writer.finish()
            return writer.schema
        except BaseException as error:
            if not isinstance(error, _BegunError):
                with suppress(OSError, RbdataError):
                    writer.cut()
            writer.abandon()
            raise


class _BegunError(Exception):
    """The leaves and their dictionaries are known, and other units wait for them; the files of this one are kept for it."""


def count_steps(unit: Unit, on_block: OnBlock) -> Part:
    """Read a unit, and write nothing: what a dry run needs of a lead."""
    steps = episodes = 0
    about: Mapping[str, Any] = {}
    for block in unit.blocks(None, 1):
        if block.bits is not None:
            steps += len(block.bits)
            episodes += int(np.count_nonzero(block.bits & ENDS))
        about = about if block.record is None else block.record
        on_block(block.done, block.fetched, block.retries)
    return Part(unit.index, "", [], [], dict(about), steps, episodes)


# -- writing -----------------------------------------------------------------------------------------------------------------


@dataclass
class _OpenSection:
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

    def record(self) -> PartSection:
        """What was written so far."""
        leaves = {stem: PartRows(f"{stem}.{self.number}", *file.position()) for stem, file in self.files.items()}
        return PartSection(self.place, self.range, leaves)


class _PartWriter:
    """Writes blocks of a unit as one part, for a `PartTask`."""

    def __init__(self, task: PartTask, unit: Unit, number: int, schema: Schema) -> None:
        self._task, self._unit = task, unit
        self._target = part_folder(task.folder, unit.index, number)
        self._path = self._target.with_name(f"{self._target.name}.{uuid.uuid4().hex}")
        self._path.mkdir(parents=True)
        self._sections: dict[tuple[int, ...], _OpenSection] = {}
        #: Rows that wait for the dictionary; None when it is there.
        self._sample: list[tuple[RowsFile, np.ndarray]] | None = None
        self._about: Mapping[str, Any] = {}
        self._steps = self._episodes = 0
        self._marked: Part | None = None
        self._take_schema(schema)

    def _take_schema(self, schema: Schema) -> None:
        self.schema = schema
        after = {leaf.name: schema.get("next/" + leaf.name) for leaf in schema.steps}
        self._twins = {name for name, leaf in after.items() if leaf and leaf.constant is None}
        if any(not dictionary_path(self._task.folder, leaf).is_file() for leaf in trained_leaves(schema.states)):
            self._sample = []

    def is_begun(self) -> bool:
        """Whether there are rows, and all dictionaries."""
        files = (file for section in self._sections.values() for file in section.files.values())
        return self._sample is None and any(file.rows for file in files)

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
            self._steps += len(block.bits)
            self._episodes += int(np.count_nonzero(block.bits & ENDS))
            columns = {**self._flags(block.bits), **columns}
        first = None if final is None else section.starts(final)
        for name, given in columns.items():
            leaf, rows = self.schema[name], given if isinstance(given, CopiedRows) else lazy(given)
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

    def _flags(self, bits: np.ndarray) -> dict[str, Rows]:
        """The columns of the flags, where the schema has them."""
        ends = {"terminated": END_TERMINATED, "truncated": END_TRUNCATED | END_CUT, "done": ENDS}
        leaves = {name: self.schema.get(f"next/{name}") for name in ends}
        return {leaf.name: bits & ends[name] != 0 for name, leaf in leaves.items() if leaf and leaf.constant is None}

    def _section_of(self, block: Block) -> _OpenSection:
        place = block.place or (self._unit.index,)
        if place not in self._sections:
            self._sections[place] = _OpenSection(len(self._sections), place, block.range, block.goes_on)
        return self._sections[place]

    def _file(self, section: _OpenSection, leaf: Leaf) -> RowsFile:
        stem = stem_of(leaf)
        if stem not in section.files:
            encode = None if self._sample is not None else self._encoder(leaf)
            section.files[stem] = RowsFile(self._path / f"{stem}.{section.number}", leaf, encode)
        return section.files[stem]

    def _encoder(self, leaf: Leaf) -> Any:
        return encoder_of(leaf, self._task.folder, self._task.threads, self._task.level)

    # -- rows that wait for a dictionary -------------------------------------------------------------------------------------

    def _sink(self, section: _OpenSection, leaf: Leaf) -> RowsSink:
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
        store_dictionaries(self._task.folder, leaves, chosen, self._unit.identity)
        for file, some in sample:
            file.encode = self._encoder(file.leaf)
            file.append(some)

    # -- the end of a part ---------------------------------------------------------------------------------------------------

    def mark(self, mark: Any) -> bool:
        """Declare that the unit can be continued from here with ``mark``; returns False while rows wait in memory."""
        if self._sample:
            return False
        self._marked = self._record(mark)
        return True

    def _record(self, mark: Any) -> Part:
        unit = self._unit
        return Part(
            unit.index,
            unit.identity,
            [leaf.to_json() for leaf in self.schema],
            [section.record() for section in self._sections.values()],
            dict(self._about),
            self._steps,
            self._episodes,
            mark,
        )

    def finish(self) -> None:
        """Close everything, and give it the part's name."""
        self._train()
        self._keep(self._record(None))

    def cut(self) -> None:
        """Make a part of everything up to the last mark. Raises RbdataError where there is none."""
        if self._marked is None:
            raise RbdataError("there is no mark")
        self._keep(self._marked)

    def _keep(self, record: Part) -> None:
        sections = []
        for one, section in zip(record.sections, self._sections.values()):
            leaves = {
                stem: msgspec.structs.replace(written, lengths=section.files[stem].finish(written.rows))
                for stem, written in one.leaves.items()
            }
            sections.append(msgspec.structs.replace(one, leaves=leaves))
        self._close()  # files that were begun after a mark
        whole = msgspec.to_builtins(msgspec.structs.replace(record, sections=sections))
        (self._path / PART_RECORD).write_bytes(sealed(whole))
        if self._target.exists():
            shutil.rmtree(self._target)
        self._path.rename(self._target)

    def _close(self) -> None:
        for section in self._sections.values():
            for file in section.files.values():
                file.close()

    def abandon(self) -> None:
        """Remove what was written."""
        self._close()
        shutil.rmtree(self._path, ignore_errors=True)


class _Waiting:
    """Rows that go to a file when there is a dictionary for it."""

    def __init__(self, writer: _PartWriter, file: RowsFile) -> None:
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


# -- parts that are there ----------------------------------------------------------------------------------------------------


def part_folder(folder: Path, unit: int, number: int) -> Path:
    """The folder of a unit's part in a working folder."""
    return folder / PARTS / f"{'lead' if unit == LEAD else f'{unit:05d}'}.{number}"


def read_part(folder: Path) -> Part | None:
    """The part in a folder; None where it is not whole."""
    try:
        part = msgspec.convert(read_sealed(folder / PART_RECORD), Part)
        return msgspec.structs.replace(part, where=str(folder))
    except msgspec.ValidationError:
        return None


def parts_of(folder: Path, unit: Unit) -> list[Part]:
    """The parts of a unit that fit it, in order; the last one is unfinished where its record has ``goes_on``."""
    found: list[Part] = []
    while not (found and found[-1].is_last) and (part := read_part(part_folder(folder, unit.index, len(found)))):
        if not unit.fits(part):
            break
        found.append(part)
    return found
