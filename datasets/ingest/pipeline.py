"""The one path by which anything becomes a dataset: units are read as blocks, each becomes a part, the parts are joined.

    plan      whole files, the lead, the units, what of them is there (here)
    read      a unit's blocks (`block`, `unit`; the sources)
    write     a part of each unit, by workers (`part`), encoded (`storage.part_file`)
    commit    episodes, manifest, pieces (`commit`), joined to files (`storage.join`)

Resuming is: the part is there, and its record fits. A larger dataset of the same id begins with the parts of the one that is
there, and one that is appended to with all of it: their rows are copied from its files when the parts are joined. The lock is
held from plan to rename.
"""

from __future__ import annotations

import copy
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import (
    ChecksumError,
    CorruptSourceError,
    DamagedDatasetError,
    DatasetExistsError,
    UnfinishedDatasetError,
)
from ...storage.codecs import level_of
from ...storage.folder import DatasetPlace, check_space, make_writable, remove_tree
from ...storage.join import Piece, is_joining, join
from ...storage.leaf import Leaf
from ...storage.manifest import Manifest, read_manifest
from ...storage.old_dataset import OldDataset
from ...storage.schema import LARGE_ROW, Schema
from ...storage.threads import map_in_threads
from ...storage.work import Work, fingerprint
from ..workers.here import HereEngine, call, memory_for, open_local, threads_of_task, usual_procs
from ..workers.task import Engine, TaskProgress, do_task, modules_of
from .append import Base
from .block import ENDS
from .commit import begin_commit
from .dictionary import dictionary_mark, dictionary_path, has_dictionaries, store_dictionaries, trained_leaves
from .estimate import bytes_of_state, estimate_expected, estimate_fetch, estimate_join, estimate_units
from .part import CountTask, PartTask, part_folder, parts_of, read_part
from .raw_files import bytes_left, fetch_whole, paths_of, remote_files
from .reader import Reader
from .request import Estimate, Listener, Outcome, Request, announce_replacement, find_existing, read_objects
from .trajectories import column_difference, columns_of
from .unit import BITS, LEAD, Part, Unit, written_of

#: What a run is likely to write may be guessed several times too much: it is refused beforehand where not even this part fits.
_FAR_TOO_MUCH = 8


def run(
    reader: Reader,
    place: DatasetPlace,
    request: Request,
    listener: Listener,
    url: str,
    check: Callable[[Manifest], object] = lambda existing: None,
) -> Outcome:
    """Make the dataset of a reader at a place; ``url`` is recorded as where it comes from. For ``check`` see `write_dataset`.

    Raises the fetch errors of `errors`, CorruptSourceError, DiskError, DatasetBusyError, DatasetExistsError. What is finished
    before an error or KeyboardInterrupt is kept for the next run.
    """
    if request.dry_run:
        began = time.monotonic()
        announce_replacement(place, request, reader.shards(), url, listener)
        estimate = dry_run(reader, place, request, listener)
        listener.on_estimate(estimate)
        return Outcome(place.id, place.path, "planned", None, time.monotonic() - began, estimate)

    def write() -> tuple[Estimate, Manifest]:
        announce_replacement(place, request, reader.shards(), url, listener)
        if request.force and place.exists():
            reader.set_previous_objects(read_objects(place))
        return make(reader, place, request, listener, url)

    return write_dataset(place, request, write, check)


def restore(reader: Reader, place: DatasetPlace, request: Request, listener: Listener, url: str) -> Estimate:
    """Make the damaged dataset at a place again, from its sound parts and the reader's data: the same bytes as before.

    Raises as `run`, and DamagedDatasetError where the data have changed; the dataset is then as it was.
    """
    with place.lock():
        place.recover()
        return make(reader, place, request, listener, url, read_manifest(place.path))[0]


def write_dataset(
    place: DatasetPlace,
    request: Request,
    write: Callable[[], tuple[Estimate, Manifest]],
    check: Callable[[Manifest], object] = lambda existing: None,
) -> Outcome:
    """Have ``write`` put a dataset at a place, with the place's lock, unless another process has made it by then.

    ``check`` raises if the dataset that process made is not the requested one.
    """
    began = time.monotonic()
    make_writable(place.root)
    try:
        with place.lock():
            place.recover()
            existing = find_existing(place, request)  # another process may have finished it meanwhile
            if existing is not None:
                check(existing)
                return Outcome(place.id, place.path, "complete", existing)
            estimate, manifest = write()
    except BaseException:
        place.prune_parents()
        raise
    return Outcome(place.id, place.path, "written", manifest, time.monotonic() - began, estimate)


def make(
    reader: Reader,
    place: DatasetPlace,
    request: Request,
    listener: Listener,
    url: str,
    original: Manifest | None = None,
) -> tuple[Estimate, Manifest]:
    """Make the dataset with the place's lock held; ``original``: the manifest of the dataset that is made again."""
    base = Base.at(place) if request.append else None
    if base is not None:
        base.check(reader)
        if not is_joining(place):  # nothing is read, and no work removed, for a dataset that is damaged
            listener.on_stage("checking what is there")
            _ = base.all_pieces
    mark = mark_of(reader, place, original, base)
    work = Work(place, mark, restart=request.force, command=request.command, continues=reader.continues)
    if work.discarded and not request.force:
        listener.on_note(
            f"{place.id} was begun before and is made from the beginning: nothing states how to go on with it"
        )
    going_on, run = (
        work.holds_work(),
        _Run(reader, place, request, listener, work, base or _old(reader, place, request)),
    )
    try:
        try:
            estimate = estimate_join(reader, place) if is_joining(place) else run.plan_and_write(url, original, base)
            listener.on_stage("committing")
            return estimate, join(place)
        except DamagedDatasetError:
            remove_tree(work.folder)
            raise
        except (ChecksumError, CorruptSourceError):
            if not remote_files(reader):
                raise
            remove_tree(work.folder)  # the next run is to fetch the files again
            if not going_on:
                raise
            # Perhaps what an earlier run left was damaged on its way: not every place states checksums.
            return make(reader, place, request, listener, url, original)
    except BaseException:
        if not work.holds_work():
            remove_tree(work.folder)  # nothing worth keeping for the next run
        raise


def mark_of(reader: Reader, place: DatasetPlace, original: Manifest | None = None, base: Base | None = None) -> str:
    """Identifies everything that the resulting bytes depend on; ``base`` is appended to."""
    # Not a smaller dataset, which may be gone when the run is continued.
    identity = {"id": place.id, **reader.identity()}
    if original is not None:
        identity["restores"] = original.to_json()["checksum"]
    if base is not None:
        identity["appends_to"] = base.manifest.to_json()["checksum"]
    return fingerprint(identity)


def dry_run(reader: Reader, place: DatasetPlace, request: Request, listener: Listener) -> Estimate:
    """What a run would do, without the work that an interrupted run has finished; writes nothing, leaves the reader as it is.

    Where raw files must be fetched whole before they can be read, only their sizes are known.
    """
    reader = copy.copy(reader)
    old = _old(reader, place, request)
    folder = place.working if Work.belongs(place, mark_of(reader, place), restart=request.force) else None
    expected = reader.expect()
    if expected is None and remote_files(reader):
        return estimate_fetch(reader, place, bytes_left(reader, folder))
    with _opened(reader, paths_of(reader) if expected is None else {}, request) as engine:
        expected = expected or reader.expect()
        if expected is not None:
            units = reader.units(None)
            return estimate_expected(reader, place, expected, len(units), len(_done(folder, units)))
        lead, about = reader.lead(), dict[str, Any]()
        if lead is not None:
            about = _do_one(CountTask(lead), engine, listener)
        units = reader.units(Part(place.working, {"unit": LEAD, "sections": [], **about}) if about else None)
        done = _done(folder, units) | set(range(_common(old, units)))
        state_bytes = old.bytes_of_state if old else partial(bytes_of_state, reader, partial(_samples, reader))
        return estimate_units(reader, place, units, done, (about["steps"], about["episodes"]), state_bytes)


def _done(folder: Path | None, units: Sequence[Unit]) -> set[int]:
    """The units whose parts are in a working folder."""
    return {unit.index for unit in units if folder is not None and _is_done(parts_of(folder, unit))}


def _is_done(parts: Sequence[Part]) -> bool:
    return bool(parts) and parts[-1].is_last


def _old(reader: Reader, place: DatasetPlace, request: Request) -> OldDataset | None:
    """The dataset that is about to become larger."""
    grows = reader.schema.leaves and not request.force and place.exists()
    return OldDataset.open(place.path, reader.schema) if grows else None


def _common(old: OldDataset | None, units: Sequence[Unit]) -> int:
    """How many of the first units an older dataset begins with, too."""
    specs = [unit.spec.to_json() for unit in units if unit.spec]
    return old.common(specs) if old and len(specs) == len(units) else 0


def _samples(reader: Reader) -> Any:
    rows = reader.sample_rows()
    return [] if rows is None else rows


# -- whole files and the lead ----------------------------------------------------------------------------------------------


@contextmanager
def _opened(reader: Reader, paths: Mapping[str, Path], request: Request) -> Iterator[Engine]:
    """A reader that has looked into its whole files, and what reads them: processes if C libraries do it, else this one."""
    libraries = reader.native_libraries
    procs = usual_procs(64, request.procs) if libraries else 0
    memory = memory_for(reader.native_bytes(paths)) if libraries else None
    with closing(open_local(procs, [type(reader).__module__, *libraries], memory=memory)) as engine:
        if paths:
            label = next(iter(paths)) if len(paths) == 1 else reader.location.url
            reader.seen(call(engine, label, _look, reader, paths))
        yield engine


def _look(reader: Reader, paths: Mapping[str, Path], _: Any) -> Any:
    return reader.look(paths)


def _do_one(task: PartTask | CountTask, engine: Engine, listener: Listener) -> dict[str, Any]:
    """Do the task of a lead."""

    def report(tasks: list[TaskProgress]) -> None:
        for one in tasks:
            listener.on_planned(one.rows, one.total)

    ((_, record),) = engine.run(do_task, [task], report)
    return record


# -- one run ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _OldPart(Part):
    """A part whose rows a smaller dataset holds: the pieces of each large leaf."""

    old: Mapping[str, Sequence[Piece]]

    def pieces(self, section: Mapping[str, Any], leaf: Leaf, range: Any) -> Sequence[Piece]:
        return self.old.get(leaf.name, ())


@dataclass
class _Run:
    """One run with the place's lock held; ``old`` is the dataset to be extended or appended to."""

    reader: Reader
    place: DatasetPlace
    request: Request
    listener: Listener
    work: Work
    old: OldDataset | None
    units: Sequence[Unit] = ()
    #: Those that are there, of each unit.
    parts: dict[int, list[Part]] = field(default_factory=dict)

    def plan_and_write(self, url: str, original: Manifest | None, base: Base | None) -> Estimate:
        """Everything up to the join."""
        reader = self.reader
        with _opened(reader, fetch_whole(reader, self.place, self.work, self.listener), self.request) as engine:
            lead = self._read_lead(engine)
            reader.prepare(self.work)
            self.units = list(reader.units(lead))
            self.work.remember("units", len(self.units))
            self._check_digest()
            samples = cache(partial(_samples, reader))
            self._find_parts(samples)
            estimate = self._estimate(lead, samples)
            self.listener.on_estimate(estimate)
            needed = estimate.disk_bytes // (_FAR_TOO_MUCH if estimate.estimated else 1)
            check_space(self.place.path, needed + (base.manifest.bytes if base else 0), self.place.id)
            reader.check_input()
            self._fill(engine)
        leads, parts = [] if lead is None else [lead], [part for unit in self.units for part in self.parts[unit.index]]
        try:
            begin_commit(reader, self.place, leads, parts, url, original, base)
        except CorruptSourceError:
            if not any(part.steps for part in (*leads, *parts)):
                self._discard_parts()  # empty ones are not worth keeping for the next run
            raise
        return estimate

    def _task(self, unit: Unit, threads: int, begins: bool = False) -> PartTask:
        level = level_of(self.reader.options.codec)
        return PartTask(unit, self.work.folder, self.reader.schema, threads, begins, level)

    def _read_lead(self, engine: Engine) -> Part | None:
        lead = self.reader.lead()
        if lead is None:
            return None
        folder = part_folder(self.work.folder, LEAD, 0)
        remove_tree(folder)
        _do_one(self._task(lead, 1), engine, self.listener)
        return read_part(folder)

    def _check_digest(self) -> None:
        """Raise UnfinishedDatasetError if the parts that are there were made from other data."""
        before, now = self.work.remembered("digest"), self.reader.digest
        if before not in (None, now) and self.work.holds_work():
            message = f"the source files of the unfinished {self.place.id} have changed since it was started"
            raise UnfinishedDatasetError(message, hint=f"start over with --force ({self.work.folder})")
        if before != now:
            self.work.remember("digest", now)

    # -- what is there ---------------------------------------------------------------------------------------------------

    def _find_parts(self, samples: Callable[[], Any]) -> None:
        """The parts that an interrupted run made, where they are sound, and those that a smaller dataset holds."""
        self.parts = {unit.index: parts_of(self.work.folder, unit) for unit in self.units}
        for unit in self.units:
            if self.parts[unit.index]:
                self._take_leaves(unit, self.parts[unit.index][0].record)
        self._prepare_dictionaries(samples)
        if self.work.part_folders():
            self._drop_damaged()
        common = _common(self.old, self.units)
        if common:
            self.listener.on_stage("checking the shards that are there")
        for unit in self.units[:common]:
            if not self.parts[unit.index] and (old := self._old_part(unit)):
                self.parts[unit.index] = [old]

    def _drop_damaged(self) -> None:
        """Remove the parts that are damaged, or were compressed with another dictionary, and those after them in their units,
        which go on from what they were."""
        self.listener.on_stage("checking what is finished")
        there = [(unit, part) for unit in self.units for part in self.parts[unit.index]]
        mark, sound = dictionary_mark(self.work.folder), set[Path]()
        for (unit, part), is_sound in zip(there, list(map_in_threads(_is_sound, there, 8, "rbdata-proof"))):
            self._check_object(unit, part)
            if is_sound and part.record["dictionary"] in (None, mark):
                sound.add(part.folder)
        for index, parts in self.parts.items():
            self.parts[index] = list(takewhile(lambda part: part.folder in sound, parts))
        kept = {part.folder for parts in self.parts.values() for part in parts}
        for folder in self.work.part_folders():
            if folder not in kept and int(folder.name.partition(".")[0]) in self.parts:
                remove_tree(folder)

    def _check_object(self, unit: Unit, part: Part) -> None:
        """Raise DatasetExistsError for a part that came from another object than the one that is there now."""
        spec, then = unit.spec, part.record["objects"]
        if spec is not None and then:
            pairs = [(spec.object["crc32c"], part.about.get("crc32c")), (spec.object["size"], then[0]["size"])]
            if any(None not in pair and pair[0] != pair[1] for pair in pairs):
                message = f"{unit.name} of the unfinished {self.place.id} came from another file than the one here"
                raise DatasetExistsError(message, hint=f"start over with --force ({self.work.folder})")

    def _old_part(self, unit: Unit) -> _OldPart | None:
        """The rows of a unit in the old dataset; None if they are damaged."""
        assert self.old is not None
        part, leaves = self.old.manifest.parts[unit.index], [self.reader.schema[name] for name in self.reader.bulk]
        first, stop = part["first_state"], part["first_state"] + part["states"]
        try:
            pieces = {leaf.name: self.old.pieces(leaf, first, stop, unit.index) for leaf in leaves}
        except (OSError, DamagedDatasetError):
            return None
        section = {"place": [unit.index], "range": 0, "leaves": {}}
        about = {"crc32c": part["object"]["crc32c"]}
        record = {"unit": unit.index, "sections": [section], "about": about, "goes_on": None}
        return _OldPart(self.old.folder, record, pieces)

    def _prepare_dictionaries(self, samples: Callable[[], Any]) -> None:
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
        self._discard_parts()
        for leaf in leaves:
            remove_tree(dictionary_path(folder, leaf))
        if given is None and type(reader).sample_rows is not Reader.sample_rows:
            self.listener.on_stage("sampling frames")
            given = samples()
        if given is not None:
            store_dictionaries(folder, {leaf.name: leaf for leaf in leaves}, given, identities[0])

    def _is_empty(self, unit: Unit) -> bool:
        """Whether a unit is done, and gave nothing."""
        parts = self.parts[unit.index]
        return _is_done(parts) and all(part.is_empty for part in parts)

    def _discard_parts(self) -> None:
        """Remove those of another dictionary, or without rows."""
        for folder in self.work.part_folders():
            remove_tree(folder)
        self.parts = {unit.index: [] for unit in self.units}

    def _estimate(self, lead: Part | None, samples: Callable[[], Any]) -> Estimate:
        done = {index for index, parts in self.parts.items() if _is_done(parts)}
        expected = self.reader.expect()
        if expected is not None:
            return estimate_expected(self.reader, self.place, expected, len(self.units), len(done))
        assert lead is not None
        bits = [lead.rows(section, BITS) for section in lead.sections() if written_of(section, BITS)]
        counted = sum(map(len, bits)), sum(int(np.count_nonzero(some & ENDS)) for some in bits)
        # Nothing is read from parts that a smaller dataset holds.
        state_bytes = self.old.bytes_of_state if self.old else partial(bytes_of_state, self.reader, samples)
        fetched = bool(remote_files(self.reader))
        return estimate_units(self.reader, self.place, self.units, done, counted, state_bytes, fetched=fetched)

    # -- the parts -------------------------------------------------------------------------------------------------------

    def _fill(self, engine: Engine) -> None:
        """Have workers make the parts that are not there; ``engine`` reads whole files."""
        reader = self.reader
        left = self._left(self.units)
        if not left:
            return
        count = 0 if reader.here else usual_procs(len(left), self.request.procs)
        threads = threads_of_task(count, self.request.engine)
        with self._workers(count, self._task(left[0], threads), engine) as workers:
            while left and not self._is_begun():
                begins = len(left) > 1 and not reader.first_decides
                self._do([self._task(left[0], threads, begins)], workers)
                left = self._left(left[:1]) + left[1:]
            if reader.first_decides and (first := self._first_part()):
                left = [reader.decided(unit, first) for unit in left]
            # Large units first, where their sizes are known: no process ends long after the others.
            if workers.parallel > 1 and not any(unit.spec for unit in left):
                left = sorted(left, key=lambda unit: -unit.rows)
            self._do([self._task(unit, threads) for unit in left], workers)

    @contextmanager
    def _workers(self, count: int, task: PartTask, reading: Engine) -> Iterator[Engine]:
        """An engine that was given, the one that reads whole files, this process, or ``count`` new ones."""
        reader, given = self.reader, self.request.engine
        if given is None and reader.native_libraries:
            given = reading
        if reader.here or (given is None and count <= 1 and not reader.in_worker):
            given = HereEngine()
        if given is not None:
            yield given  # it goes on to the next dataset
            return
        with closing(open_local(count, modules_of(task))) as engine:
            yield engine

    def _left(self, units: Iterable[Unit]) -> list[Unit]:
        return [unit for unit in units if not _is_done(self.parts[unit.index])]

    def _is_begun(self) -> bool:
        """Whether the leaves and their dictionaries are known, and what the first unit decides."""
        folder, reader = self.work.folder, self.reader
        known = all(dictionary_path(folder, leaf).is_file() for leaf in trained_leaves(reader.schema.states))
        decided = not reader.first_decides or self._first_part() is not None
        return bool(reader.schema.leaves) and known and decided

    def _first_part(self) -> Part | None:
        """The first part with a step, if all units before it are done."""
        for unit in self.units:
            parts = self.parts[unit.index]
            if not _is_done(parts):
                return None
            if parts[0].steps:
                return parts[0]
        return None

    def _do(self, tasks: Sequence[PartTask], engine: Engine) -> None:
        for index, record in engine.run(do_task, tasks, self.listener.on_progress):
            self._take_leaves(self.units[index], record)
            if "unit" in record:
                self.parts[index] = parts_of(self.work.folder, self.units[index])
                self.reader.check_parts({one: parts[-1].about for one, parts in self.parts.items() if parts}, index)
                self.listener.on_part_done(index)

    def _take_leaves(self, unit: Unit, record: Mapping[str, Any]) -> None:
        """Take the leaves from the first part, and compare those of the others with them."""
        reader, leaves = self.reader, tuple(map(Leaf.from_json, record["leaves"]))
        if not leaves:
            return
        if not reader.schema.leaves:
            reader.schema = Schema(leaves)
            reader.bulk, reader.columns = bulk_of(reader.schema), columns_of(reader.schema)
        elif leaves != reader.schema.leaves:
            odd = column_difference(columns_of(Schema(leaves)), columns_of(reader.schema))
            raise CorruptSourceError(f"{unit.name} is unlike the first: {odd}")


def _is_sound(there: tuple[Unit, Part]) -> bool:
    return there[1].is_sound()


def bulk_of(schema: Schema) -> tuple[str, ...]:
    """The large leaves: of states, and the twins that plain TED has in their place."""
    twins = [leaf.name for leaf in schema.steps if leaf.row_bytes >= LARGE_ROW and "next/" + leaf.name in schema]
    return (*(leaf.name for leaf in schema.states), *(name for twin in twins for name in (twin, "next/" + twin)))
