"""A unit becomes a part: a folder with the rows of its sections and one record, which appears by a rename.

    .parts/<unit>.<n>/<leaf>.<section>.rows, .lengths      the rows of a leaf (`storage.part_file`)
    .parts/<unit>.<n>/.bits.<section>.rows                 how each step ends (`block`)
    .parts/<unit>.<n>/part.json                            the record: the unit, its sections, what it says of itself;
                                                           before it its crc32c

A part that is there, and whose record fits its unit, is not made again. A unit that can be continued in its middle
(`Block.mark`) becomes several parts, one after the other.
"""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CorruptSourceError, RbdataError, SchemaError
from ...storage.checksums import crc32c
from ...storage.codecs import codec_of
from ...storage.durable import sync_folder, write_atomically, write_durably
from ...storage.episodes import EpisodeTable
from ...storage.leaf import Leaf
from ...storage.part_file import RowsFile, encoder_of
from ...storage.schema import Schema
from ...storage.untrusted_json import parse_json
from ...storage.work import PARTS
from ..workers.task import OnBlock
from .block import (
    END_CUT,
    END_MIDWAY,
    END_TERMINATED,
    END_TRUNCATED,
    ENDS,
    Block,
    LazyRows,
    StoredRows,
    final_states,
    outcomes,
)
from .trajectories import column_difference, columns_of
from .unit import BITS, LEAD, Part, Unit

RECORD = "part.json"
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


class _DictionaryMadeError(Exception):
    """The dictionary is there, and other units wait for it."""

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        self.schema = schema


class PartWriter:
    """Writes blocks of a unit as a part.

    ``folder`` is the working folder, ``schema`` the leaves (None: the first block states them). Where a compressed leaf has no
    dictionary there yet, one is trained on the first rows; with ``begins``, _DictionaryMadeError is raised as soon as all
    dictionaries are there.
    """

    def __init__(
        self, folder: Path, unit: Unit, number: int, schema: Schema | None, threads: int, *, begins: bool = False
    ) -> None:
        self._folder, self._unit, self._threads, self._begins = folder, unit, threads, begins
        self._target = part_folder(folder, unit.index, number)
        self._path = self._target.with_name(f"{self._target.name}.{uuid.uuid4().hex}")
        self._path.mkdir(parents=True)
        self._sections: dict[tuple[int, ...], _Section] = {}
        #: Rows that wait for the dictionary, and their bytes; None when it is there.
        self._waiting: list[tuple[RowsFile, Leaf, np.ndarray]] | None = None
        self._waiting_bytes = 0
        self._about: Mapping[str, Any] = {}
        self._marked: dict[str, Any] | None = None
        self.schema = Schema(()) if schema is None else schema
        if schema is not None:
            self._begin(schema)

    def _begin(self, schema: Schema) -> None:
        self.schema = schema
        self._compressed = [leaf for leaf in schema if not codec_of(leaf).fixed_rows]
        self._twins = {
            leaf.name for leaf in schema.steps if (after := schema.get("next/" + leaf.name)) and after.constant is None
        }
        if any(not dictionary_path(self._folder, leaf).is_file() for leaf in self._trained()):
            self._waiting = []

    def _trained(self) -> list[Leaf]:
        return [leaf for leaf in self._compressed if codec_of(leaf).uses_dictionary]

    def add(self, block: Block) -> None:
        """Append a block. Raises SchemaError for rows that do not fit the schema, or each other."""
        if block.schema is not None and not self.schema.leaves:
            self._begin(block.schema)
        elif block.schema is not None and block.schema != self.schema:
            odd = column_difference(columns_of(block.schema), columns_of(self.schema))
            raise CorruptSourceError(f"{self._unit.name} is unlike the first: {odd}")
        section = self._section_of(block)
        final = block.final
        if block.bits is not None:
            final = final_states(block.bits)
            flags = {
                "next/terminated": (block.bits & END_TERMINATED) != 0,
                "next/truncated": (block.bits & (END_TRUNCATED | END_CUT)) != 0,
                "next/done": (block.bits & ENDS) != 0,
            }
            self._file(section, BITS).append(block.bits)
            for name, values in flags.items():
                if name in self.schema and self.schema[name].constant is None and name not in block.columns:
                    self._file(section, self.schema[name]).append(values[:, None])
        first = None
        if final is not None and len(final):
            first = np.concatenate([[not section.inside], final[:-1]])
            section.inside = not final[-1]
        for name, rows in block.columns.items():
            leaf = self.schema[name]
            if leaf.kind == "step" and name in self._twins and "next/" + name not in block.columns:
                assert final is not None
                self._append_twins(section, leaf, rows, final, first)
                continue
            steps = None if block.bits is None else len(block.bits)
            wanted = steps if leaf.kind == "step" else None if final is None else len(final)
            self._append(section, leaf, rows, wanted)
        self._about = self._about if block.record is None else block.record
        if self._begins and self._waiting is None and any(file.rows for file in section.files.values()):
            raise _DictionaryMadeError(self.schema)

    def _append(self, section: _Section, leaf: Leaf, rows: Any, wanted: int | None) -> None:
        file, done = self._file(section, leaf), 0
        if isinstance(rows, StoredRows):
            file.append_stored(*rows.rows.stored(rows.first, rows.stop))
            done = rows.stop - rows.first
        for some in _pieces(rows):
            done += len(some)
            if leaf.name == "next/reward":
                some = some.reshape(len(some), 1)
            if self._waiting is None or leaf not in self._compressed:
                file.append(some)
            else:
                self._waiting.append((file, leaf, some.copy()))
                self._waiting_bytes += some.nbytes
                if self._waiting_bytes >= SAMPLE_BYTES:
                    self._train()
        if wanted is not None and done != wanted:
            raise SchemaError(f"{self._unit.name}: {leaf.name} has {done} rows where {wanted} belong")

    def _append_twins(
        self, section: _Section, leaf: Leaf, rows: Any, final: np.ndarray, first: np.ndarray | None
    ) -> None:
        """States that fill two step leaves: all but the final ones are those that steps begin in, all but the first ones those
        that they lead to."""
        root, after = self._file(section, leaf), self._file(section, self.schema["next/" + leaf.name])
        at = 0
        for some in _pieces(rows):
            here = slice(at, at + len(some))
            at += len(some)
            if first is not None and len(some) == len(final[here]):
                root.append(some[~final[here]] if final[here].any() else some)
                after.append(some[~first[here]] if first[here].any() else some)
        if at != len(final):
            raise SchemaError(f"{self._unit.name}: {leaf.name} has {at} rows where {len(final)} states belong")

    def _section_of(self, block: Block) -> _Section:
        place = block.place or (self._unit.index,)
        if place not in self._sections:
            self._sections[place] = _Section(len(self._sections), place, block.range, block.goes_on)
        return self._sections[place]

    def _file(self, section: _Section, leaf: Leaf) -> RowsFile:
        name = "" if leaf is BITS else leaf.name
        if name not in section.files:
            encode = None if self._waiting is not None else encoder_of(leaf, self._folder, self._threads)
            section.files[name] = RowsFile(self._path / _stem(leaf, section.number), leaf, encode)
        return section.files[name]

    def _train(self) -> None:
        """Train the dictionary on the waiting rows, then write them."""
        waiting, self._waiting = self._waiting or [], None
        if not waiting:
            return
        rows = [row for _, _, block in waiting for row in block]
        size = max(row.nbytes for row in rows)
        want = max(1, min(SAMPLE_ROWS, SAMPLE_BYTES // size, len(rows)))
        chosen = [rows[i] for i in np.unique(np.linspace(0, len(rows) - 1, want).astype(int))]
        store_dictionaries(self._folder, {leaf.name: leaf for leaf in self._trained()}, chosen, self._unit.identity)
        for file, leaf, block in waiting:
            file.set_encoder(encoder_of(leaf, self._folder, self._threads))
            file.append(block)

    # -- the end of a part ---------------------------------------------------------------------------------------------

    def mark(self, mark: Any) -> bool:
        """Declare that the unit can be continued from here with ``mark``; returns False while rows wait in memory."""
        if self._waiting:
            return False
        self._marked = self._record(mark)
        return True

    def _record(self, mark: Any) -> dict[str, Any]:
        sections = []
        for section in self._sections.values():
            written = {
                name: {"stem": _stem(BITS if not name else self.schema[name], section.number), **file.position()}
                for name, file in section.files.items()
            }
            bits = written.pop("", None)
            sections.append({"place": section.place, "range": section.range, "bits": bits, "leaves": written})
        return {
            "unit": self._unit.index,
            "identity": self._unit.identity,
            "objects": self._unit.objects(),
            "dictionary": dictionary_mark(self._folder),
            "leaves": [leaf.to_json() for leaf in self.schema],
            "sections": sections,
            "about": dict(self._about),
            "goes_on": mark,
        }

    def finish(self) -> dict[str, Any]:
        """Make everything durable under the part's name; returns the record."""
        self._train()
        return self._keep(self._record(None))

    def cut(self) -> dict[str, Any]:
        """Make a part of everything up to the last mark. Raises RbdataError where there is none."""
        if self._marked is None:
            raise RbdataError("there is no mark")
        return self._keep(self._marked)

    def _keep(self, record: dict[str, Any]) -> dict[str, Any]:
        for section, told in zip(self._sections.values(), record["sections"]):
            for name, file in section.files.items():
                file.finish()
                written = told["leaves"].get(name) if name else told["bits"]
                if written is not None and (lengths := file.sum_lengths(written["rows"])):
                    written["lengths"] = lengths
        data = json.dumps(record).encode()
        write_durably(self._path / RECORD, f"{crc32c(data)} ".encode() + data)
        sync_folder(self._path)
        if self._target.exists():
            shutil.rmtree(self._target)
        self._path.rename(self._target)
        sync_folder(self._target.parent)
        return record

    def abandon(self) -> None:
        """Remove what was written."""
        for section in self._sections.values():
            for file in section.files.values():
                file.abandon()
        shutil.rmtree(self._path, ignore_errors=True)


def _pieces(rows: Any) -> Iterator[np.ndarray]:
    if isinstance(rows, StoredRows):
        return
    if isinstance(rows, LazyRows):
        yield from rows.blocks
    else:
        yield rows


def _stem(leaf: Leaf, section: int) -> str:
    return f".bits.{section}" if leaf is BITS else f"{'.'.join(leaf.key)}.{section}"


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
    schema: Schema | None
    threads: int
    begins: bool = False

    def __call__(self, on_block: OnBlock) -> dict[str, Any]:
        """Returns the record of the unit's last part; of one that ``begins`` ended early, the leaves alone."""
        try:
            with self.unit.prepared(self.folder, on_block) as unit:
                return self._write(unit, on_block)
        except _DictionaryMadeError as made:
            return {"leaves": [leaf.to_json() for leaf in made.schema]}

    def _write(self, unit: Unit, on_block: OnBlock) -> dict[str, Any]:
        before = parts_of(self.folder, unit)
        number, resume = len(before), before[-1].record["goes_on"] if before else None
        began = kept = time.monotonic()
        writer = PartWriter(self.folder, unit, number, self.schema, self.threads, begins=self.begins)
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
                    writer = PartWriter(self.folder, unit, number, writer.schema, self.threads)
            return writer.finish()
        except _DictionaryMadeError:
            writer.abandon()
            raise
        except BaseException:
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
    try:
        checksum, _, data = (folder / RECORD).read_bytes().partition(b" ")
        if checksum != crc32c(data).encode():
            return None
        part = Part(folder, parse_json(data))
        return part if isinstance(part.unit, int) and isinstance(part.sections(), list) else None
    except (OSError, ValueError, TypeError, LookupError):
        return None


def parts_of(folder: Path, unit: Unit) -> list[Part]:
    """The parts of a unit that fit it, in order; the last one is unfinished where its record has ``goes_on``."""
    found: list[Part] = []
    while part := read_part(part_folder(folder, unit.index, len(found))):
        if not unit.fits(part.record) or (found and found[-1].record["goes_on"] is None):
            break
        found.append(part)
    return found


# -- dictionaries ------------------------------------------------------------------------------------------------------------

_MARK = "dictionary.json"


def dictionary_path(folder: Path, leaf: Leaf) -> Path:
    """The file of a leaf's dictionary."""
    return folder / codec_of(leaf).path("dictionary")


def store_dictionaries(
    folder: Path, leaves: Mapping[str, Leaf], samples: Sequence[np.ndarray] | Mapping[str, bytes], identity: str
) -> None:
    """Store the dictionaries of leaves: given, or trained on rows. ``identity``: what they come from."""
    made: dict[str, Any] = {}
    trained: dict[type, bytes] = {}
    for name, leaf in leaves.items():
        codec = codec_of(leaf)
        if isinstance(samples, Mapping):
            data = samples[name]
        else:
            data = trained[type(codec)] = trained.get(type(codec)) or codec.train(samples)
        path = dictionary_path(folder, leaf)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
        made[name] = crc32c(data)
    (folder / PARTS).mkdir(exist_ok=True)
    stated = {"identity": identity, "crc32c": made, "leaves": [leaf.to_json() for leaf in leaves.values()]}
    write_atomically(folder / PARTS / _MARK, json.dumps(stated).encode())


def dictionary_mark(folder: Path) -> Any:
    """What `store_dictionaries` recorded; None before that."""
    try:
        return parse_json((folder / PARTS / _MARK).read_bytes())
    except (OSError, ValueError):
        return None


def has_dictionaries(folder: Path, leaves: Sequence[Leaf], identity: str) -> bool:
    """Whether the dictionaries of these leaves are there, unchanged, and come from ``identity``."""
    mark = dictionary_mark(folder)
    try:
        return (
            mark is not None
            and mark["identity"] == identity
            and all(crc32c(dictionary_path(folder, leaf).read_bytes()) == mark["crc32c"][leaf.name] for leaf in leaves)
        )
    except (OSError, LookupError, TypeError):
        return False


# -- episodes ----------------------------------------------------------------------------------------------------------------


def episodes_of(
    sections: Sequence[tuple[Part, Mapping[str, Any]]], reward: Leaf, size: int, where: Callable[[], str]
) -> EpisodeTable:
    """The episodes of sections, in their order. Rewards are summed in blocks of ``size`` steps of each unit's section.

    Raises SchemaError where the last one has no end.
    """
    lengths, returns, ends = [np.zeros(0, np.int64)], [np.zeros(0)], [np.zeros(0, np.uint8)]
    length, total = 0, 0.0
    for bits, rewards in _stretches(sections, reward, size):
        last = np.flatnonzero(bits & ENDS)
        starts = np.concatenate([np.zeros(1, np.int64), last + 1])
        counts = np.diff(np.append(starts, len(bits)))
        sums, filled = np.zeros(len(starts)), counts > 0
        sums[filled] = np.add.reduceat(rewards, starts[filled], dtype=np.float64)
        counts[0] += length
        sums[0] += total
        length, total = int(counts[-1]), float(sums[-1])
        lengths.append(counts[:-1])
        returns.append(sums[:-1])
        ends.append(bits[last])
    if length:
        message = f"the last {length} steps of {where()} belong to an episode without an end"
        raise SchemaError(message, hint="the last step of an episode says how it ended: END_CUT where the data end")
    every, bits = np.concatenate(lengths), np.concatenate(ends)
    midway = (bits & END_MIDWAY) != 0
    return EpisodeTable(np.cumsum(every) - every, every, np.concatenate(returns), outcomes(bits), midway)


def _stretches(
    sections: Sequence[tuple[Part, Mapping[str, Any]]], reward: Leaf, size: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Bits and rewards in blocks of ``size`` steps, none of which spans two places."""
    place, held_bits, held_rewards = None, np.zeros(0, np.uint8), np.zeros(0, np.float32)
    for part, section in sections:
        if section["bits"] is None:
            continue
        if section["place"] != place and len(held_bits):
            yield held_bits, held_rewards
            held_bits, held_rewards = held_bits[:0], held_rewards[:0]
        place = section["place"]
        bits = part.rows(section, BITS)
        rewards = part.rows(section, reward) if reward.constant is None else np.full(len(bits), reward.constant)
        low = 0
        while low < len(bits):
            high = min(len(bits), low + size - len(held_bits))
            held_bits = np.concatenate([held_bits, bits[low:high]])
            held_rewards = np.concatenate([held_rewards, rewards[low:high]])
            low = high
            if len(held_bits) == size:
                yield held_bits, held_rewards
                held_bits, held_rewards = held_bits[:0], held_rewards[:0]
    if len(held_bits):
        yield held_bits, held_rewards
