"""The one path by which anything becomes a dataset: units are read as blocks, each becomes a part, the parts are joined.

    whole files -> lead -> dictionary -> parts, by workers -> join -> manifest -> rename

Resuming is: the part is there, and its record fits. A larger dataset of the same id begins with the parts of the one that is
there, and one that is appended to with all of it: their rows are copied from its files when the parts are joined. The lock is
held from plan to rename.
"""

from __future__ import annotations

import copy
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from ..._version import __version__
from ...errors import (
    ChecksumError,
    CorruptSourceError,
    DamagedDatasetError,
    DatasetExistsError,
    RbdataError,
    UnfinishedDatasetError,
)
from ...storage.checksums import crc32c, place_cells, sum_cells, sum_range
from ...storage.codecs import codec_of
from ...storage.episodes import EpisodeTable
from ...storage.folder import RAW, DatasetPlace, check_space, make_writable, remove_tree
from ...storage.join import Piece, begin_join, is_joining, join
from ...storage.leaf import Leaf
from ...storage.manifest import Manifest, read_manifest
from ...storage.old_dataset import OldDataset
from ...storage.schema import LARGE_ROW, Schema
from ...storage.threads import map_in_threads
from ...storage.work import Work, fingerprint
from ..fetch import RemoteObject
from ..fetch.reading import bytes_there
from ..workers.local_engine import LocalEngine, call, memory_for, run_tasks, threads_of_task, usual_procs
from ..workers.task import Engine, TaskProgress, modules_of
from .append import Base
from .block import ENDS
from .estimate import bytes_of_state, estimate_expected, estimate_fetch, estimate_join, estimate_units
from .part import (
    CountTask,
    PartTask,
    dictionary_mark,
    dictionary_path,
    episodes_of,
    has_dictionaries,
    part_folder,
    parts_of,
    read_part,
    store_dictionaries,
)
from .raw_files import drop_changed, fetch_all, remember_fetched
from .reader import Reader
from .records import RawObject
from .request import Estimate, Listener, Outcome, Request, announce_replacement, find_existing, read_objects
from .trajectories import column_difference, columns_of
from .unit import BITS, LEAD, Facts, Part, Unit

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
        return _write(reader, place, request, listener, url)

    return write_dataset(place, request, write, check)


def restore(reader: Reader, place: DatasetPlace, request: Request, listener: Listener, url: str) -> Estimate:
    """Make the damaged dataset at a place again, from its sound parts and the reader's data: the same bytes as before.

    Raises as `run`, and DamagedDatasetError where the data have changed; the dataset is then as it was.
    """
    with place.lock():
        place.recover()
        return _write(reader, place, request, listener, url, read_manifest(place.path))[0]


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


def dry_run(reader: Reader, place: DatasetPlace, request: Request, listener: Listener) -> Estimate:
    """What a run would do, without the work that an interrupted run has finished; writes nothing, leaves the reader as it is.

    Where raw files must be fetched whole before they can be read, only their sizes are known.
    """
    reader = copy.copy(reader)
    old = _old(reader, place, request)
    folder = place.working if Work.belongs(place, mark_of(reader, place), restart=request.force) else None
    expected = reader.expect()
    if expected is not None:
        units = reader.units(None)
        return estimate_expected(reader, place, expected, len(units), len(_done(folder, units)))
    remote = remote_files(reader)
    if remote:
        return estimate_fetch(reader, place, bytes_left(remote, None if folder is None else folder / RAW))
    with _Reading(reader, {item.url: Path(item.url) for item in reader.files()}, request) as reading:
        reading.look()
        lead, about = reader.lead(), dict[str, Any]()
        if lead is not None:
            about = reading.do(CountTask(lead), listener.on_planned)
        units = reader.units(Part(place.working, {"unit": LEAD, "sections": [], **about}) if about else None)
        done = _done(folder, units) | set(range(_common(old, units)))
        state_bytes = old.bytes_of_state if old else partial(bytes_of_state, reader, partial(_samples, reader))
        return estimate_units(reader, place, units, done, (about["steps"], about["episodes"]), state_bytes)


def _done(folder: Path | None, units: Sequence[Unit]) -> set[int]:
    """The units whose parts are in a working folder."""
    found = {} if folder is None else {unit.index: parts_of(folder, unit) for unit in units}
    return {index for index, parts in found.items() if parts and parts[-1].record["goes_on"] is None}


def _first_part(folder: Path, units: Sequence[Unit]) -> Part | None:
    """The first part with a step, if all units before it are done."""
    for unit in units:
        parts = parts_of(folder, unit)
        if not parts or parts[-1].record["goes_on"] is not None:
            return None
        if parts[0].steps:
            return parts[0]
    return None


def _is_empty(folder: Path, unit: Unit) -> bool:
    """Whether a unit is done, and gave nothing."""
    parts = parts_of(folder, unit)
    written = [leaf for part in parts for section in part.sections() for leaf in section["leaves"].values()]
    return bool(parts) and parts[-1].record["goes_on"] is None and not any(leaf["rows"] for leaf in written)


def mark_of(reader: Reader, place: DatasetPlace, original: Manifest | None = None, base: Base | None = None) -> str:
    """Identifies everything that the resulting bytes depend on; ``base`` is appended to."""
    # Not a smaller dataset, which may be gone when the run is continued.
    identity = {"id": place.id, **reader.identity()}
    if original is not None:
        identity["restores"] = original.to_json()["checksum"]
    if base is not None:
        identity["appends_to"] = base.manifest.to_json()["checksum"]
    return fingerprint(identity)


def _old(reader: Reader, place: DatasetPlace, request: Request) -> OldDataset | None:
    """The dataset that is about to become larger."""
    return None if request.force or not reader.schema.leaves else OldDataset.open(place.path, reader.schema)


def _common(old: OldDataset | None, units: Sequence[Unit]) -> int:
    """How many of the first units an older dataset begins with, too."""
    specs = [unit.spec.to_json() for unit in units if unit.spec]
    return old.common(specs) if old and len(specs) == len(units) else 0


def _samples(reader: Reader) -> Any:
    rows = reader.sample_rows()
    return [] if rows is None else rows


def _write(
    reader: Reader,
    place: DatasetPlace,
    request: Request,
    listener: Listener,
    url: str,
    original: Manifest | None = None,
) -> tuple[Estimate, Manifest]:
    """Make the dataset with the place's lock held; ``original``: the manifest of the dataset that is made again."""
    base = Base.open(place) if request.append else None
    if base is not None:
        base.check(reader)
        if not is_joining(place):  # nothing is read, and no work removed, for a dataset that is damaged
            listener.on_stage("checking what is there")
            base.pieces(reader.bulk)
    old = OldDataset(base.folder, base.manifest) if base else _old(reader, place, request)
    mark = mark_of(reader, place, original, base)
    work = Work(place, mark, restart=request.force, command=request.command, continues=reader.continues)
    if work.discarded and not request.force:
        listener.on_note(
            f"{place.id} was begun before and is made from the beginning: nothing states how to go on with it"
        )
    going_on, run = work.holds_work(), _Run(reader, place, request, listener, work, old, base)
    try:
        try:
            estimate = estimate_join(reader, place) if is_joining(place) else run.read(url, original)
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
            return _write(reader, place, request, listener, url, original)
    except BaseException:
        if not work.holds_work():
            remove_tree(work.folder)  # nothing worth keeping for the next run
        raise


class _Reading:
    """Where the files of a reader are read: in worker processes if C libraries do it, else in this process."""

    def __init__(self, reader: Reader, paths: Mapping[str, Path], request: Request) -> None:
        self.reader, self._paths = reader, paths
        modules = [type(reader).__module__, *reader.native_libraries]
        memory = memory_for(reader.native_bytes(paths)) if reader.native_libraries else None
        self.engine = LocalEngine(
            usual_procs(64, request.procs) if reader.native_libraries else 0, modules, memory=memory
        )

    def __enter__(self) -> _Reading:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()

    def look(self) -> None:
        """`Reader.look`, and `seen`."""
        if not self._paths:
            return
        label = next(iter(self._paths)) if len(self._paths) == 1 else self.reader.location.url
        self.reader.seen(call(self.engine, label, _look, self.reader, self._paths))

    def do(self, task: PartTask | CountTask, on_planned: Callable[[int, int], None]) -> dict[str, Any]:
        """Do one task, for a lead."""
        if not self.engine.separate:
            return task(lambda rows, fetched, retries: on_planned(rows, task.rows))

        def report(tasks: list[TaskProgress]) -> None:
            for one in tasks:
                on_planned(one.rows, one.total)

        ((_, record),) = run_tasks([task], 1, report, self.engine)
        return record


def _look(reader: Reader, paths: Mapping[str, Path], _: Any) -> Any:
    return reader.look(paths)


@dataclass
class _Run:
    """One run with the place's lock held; ``old`` is the dataset to be extended, ``base`` the same one if all of it stays and
    the run's steps come after it."""

    reader: Reader
    place: DatasetPlace
    request: Request
    listener: Listener
    work: Work
    old: OldDataset | None
    base: Base | None = None

    def read(self, url: str, original: Manifest | None) -> Estimate:
        """Everything up to the join."""
        reader, folder = self.reader, self.work.folder
        with _Reading(reader, self._fetch(), self.request) as reading:
            reading.look()
            lead = self._lead(reading)
            units = list(reader.units(lead))
            self.work.remember("plan", {"parts": len(units)})
            self._check_digest()
            samples = cache(partial(_samples, reader))
            for index in _done(folder, units):
                self._know_schema(index)
            self._prepare_dictionaries(units, samples)
            there = self._parts_there(units)
            taken = self._take_over(units, there)
            estimate = self._estimate(lead, units, {*_done(folder, units), *taken}, samples)
            self.listener.on_estimate(estimate)
            needed = estimate.disk_bytes // (_FAR_TOO_MUCH if estimate.estimated else 1)
            needed += self.base.manifest.bytes if self.base else 0
            check_space(self.place.path, needed, self.place.id)
            self._fill(units, taken, reading)
            parts = [part for unit in units for part in parts_of(folder, unit)]
            self._commit(lead, parts, taken, units, url, original)
        return estimate

    # -- before the units ------------------------------------------------------------------------------------------------

    def _fetch(self) -> dict[str, Path]:
        """The paths of the whole files by url: in place where the source is a directory, else fetched."""
        reader, folder, remote = self.reader, self.work.folder / RAW, remote_files(self.reader)
        drop_changed(self.work)
        if remote:
            self.listener.on_estimate(estimate_fetch(reader, self.place, bytes_left(remote, folder)))
            self.listener.on_stage("fetching the raw files")
            raw = [RawObject(file_name(item), item, reader.location) for item in remote]
            fetch_all(folder, raw, self.listener.on_fetched, partial(remember_fetched, self.work))
        return {item.url: Path(item.url) if is_local(item) else folder / file_name(item) for item in reader.files()}

    def _lead(self, reading: _Reading) -> Part | None:
        lead = self.reader.lead()
        if lead is None:
            return None
        folder = part_folder(self.work.folder, LEAD, 0)
        remove_tree(folder)
        reading.do(PartTask(lead, self.work.folder, self.reader.schema, 1), self.listener.on_planned)
        return read_part(folder)

    def _check_digest(self) -> None:
        """Raise UnfinishedDatasetError if the parts that are there were made from other data."""
        before = self.work.remembered("digest").get(None, {}).get("digest")
        if before not in (None, self.reader.digest) and self.work.holds_work():
            message = f"the source files of the unfinished {self.place.id} have changed since it was started"
            raise UnfinishedDatasetError(message, hint=f"start over with --force ({self.work.folder})")
        if before != self.reader.digest:
            self.work.remember("digest", {"digest": self.reader.digest})

    def _trained(self) -> list[Leaf]:
        return [leaf for leaf in self.reader.compressed() if codec_of(leaf).uses_dictionary]

    def _prepare_dictionaries(self, units: Sequence[Unit], samples: Callable[[], Any]) -> None:
        """Keep the dictionaries that an interrupted run stored, or make them: those of the old dataset, or trained on the
        reader's sample. Without either, the first rows of the first unit train them."""
        folder, leaves = self.work.folder, self._trained()
        if not self.reader.schema.leaves:  # those that an interrupted run has learnt
            leaves = [Leaf.from_json(leaf) for leaf in (dictionary_mark(folder) or {}).get("leaves", ())]
        if not leaves:
            return
        if self.old:
            given = {leaf.name: self.old.dictionary(leaf) for leaf in leaves}
            identity = f"old {self.old.manifest.content}"
            if not has_dictionaries(folder, leaves, identity):
                self._discard_parts()
                store_dictionaries(folder, {leaf.name: leaf for leaf in leaves}, given, identity)
            return
        every = hashlib.sha256(json.dumps([unit.identity for unit in units]).encode()).hexdigest()
        first = next((unit for unit in units if not _is_empty(folder, unit)), units[0])
        if any(has_dictionaries(folder, leaves, identity) for identity in (every, first.identity)):
            return
        self._discard_parts()
        for leaf in leaves:
            remove_tree(dictionary_path(folder, leaf))
        if type(self.reader).sample_rows is not Reader.sample_rows:
            self.listener.on_stage("sampling frames")
            store_dictionaries(folder, {leaf.name: leaf for leaf in leaves}, samples(), every)

    def _discard_parts(self) -> None:
        """Remove those of another dictionary, or without rows."""
        for folder in self.work.part_folders():
            if folder.name[:4] != "lead":
                remove_tree(folder)

    def _parts_there(self, units: Sequence[Unit]) -> set[int]:
        """The units of which parts are there, without those that are damaged. Raises DatasetExistsError for a part that came
        from another object than the one that is there now."""
        folder = self.work.folder
        found = [(unit, part) for unit in units for part in parts_of(folder, unit)]
        if found:
            self.listener.on_stage("checking what is finished")
        mark = dictionary_mark(folder)
        sound = list(map_in_threads(lambda one: one[1].is_sound(), found, 8, "rbdata-proof"))
        for (unit, part), is_sound in zip(found, sound):
            spec, then = unit.spec, part.record["objects"]
            if spec is not None and then:
                pairs = [(spec.object["crc32c"], part.about.get("crc32c")), (spec.object["size"], then[0]["size"])]
                if any(None not in pair and pair[0] != pair[1] for pair in pairs):
                    message = f"{unit.name} of the unfinished {self.place.id} came from another file than the one here"
                    raise DatasetExistsError(message, hint=f"start over with --force ({folder})")
            if not is_sound or part.record["dictionary"] not in (None, mark):
                remove_tree(part.folder)  # and the parts after it are not found
        return {part.unit for _, part in found}

    # -- the parts of a smaller dataset ------------------------------------------------------------------------------------

    def _take_over(self, units: Sequence[Unit], there: set[int]) -> dict[int, _OldPart]:
        """The units whose rows a smaller dataset already holds."""
        common = _common(self.old, units)
        if common:
            self.listener.on_stage("checking the shards that are there")
        found = {unit.index: self._old_part(unit) for unit in units[:common] if unit.index not in there}
        return {index: part for index, part in found.items() if part is not None}

    def _old_part(self, unit: Unit) -> _OldPart | None:
        """The rows of a unit in the old dataset; None if they are damaged."""
        assert self.old is not None
        part = self.old.manifest.parts[unit.index]
        first, rows = part["first_state"], part["states"]
        try:
            pieces = {
                name: _old_pieces(self.old, self.reader.schema[name], unit.index, first, rows)
                for name in self.reader.bulk
            }
        except (OSError, RbdataError):
            return None
        record = {"unit": unit.index, "sections": [], "about": {"crc32c": part["object"]["crc32c"]}}
        return _OldPart(Part(self.old.folder, record), pieces)

    # -- the units -------------------------------------------------------------------------------------------------------

    def _estimate(
        self, lead: Part | None, units: Sequence[Unit], done: set[int], samples: Callable[[], Any]
    ) -> Estimate:
        expected = self.reader.expect()
        if expected is not None:
            return estimate_expected(self.reader, self.place, expected, len(units), len(done))
        assert lead is not None
        bits = [lead.rows(section, BITS) for section in lead.sections()]
        counted = sum(map(len, bits)), sum(int(np.count_nonzero(some & ENDS)) for some in bits)
        # Nothing is read from parts that a smaller dataset holds.
        state_bytes = self.old.bytes_of_state if self.old else partial(bytes_of_state, self.reader, samples)
        fetched = bool(remote_files(self.reader))
        return estimate_units(self.reader, self.place, units, done, counted, state_bytes, fetched=fetched)

    def _fill(self, units: Sequence[Unit], taken: Mapping[int, _OldPart], reading: _Reading) -> None:
        reader, folder = self.reader, self.work.folder
        done = {*_done(folder, units), *taken}
        left = [unit for unit in units if unit.index not in done]
        if not left:
            return
        count = usual_procs(len(left), self.request.procs)
        engine: Engine | None = self.request.engine or (reading.engine if reader.native_libraries else None)
        if reader.here or (engine is None and count <= 1 and not reader.in_worker):
            count, engine = 0, LocalEngine(0)
        with ExitStack() as made:
            if engine is None:  # one that was given goes on to the next dataset
                engine = made.enter_context(closing(LocalEngine(count, modules_of(PartTask(left[0], folder, None, 1)))))
            threads = threads_of_task(count, self.request.engine)
            while left and not self._is_begun(units):
                begins = len(left) > 1 and not reader.first_decides
                self._do([PartTask(left[0], folder, reader.schema, threads, begins=begins)], engine)
                left = left[1:] if _done(folder, left[:1]) else left
            if reader.first_decides and (first := _first_part(folder, units)):
                left = [reader.decided(unit, first) for unit in left]
            # Large units first, where their sizes are known: no process ends long after the others.
            left = left if any(unit.spec for unit in left) else sorted(left, key=lambda unit: -unit.rows)
            self._do([PartTask(unit, folder, reader.schema, threads) for unit in left], engine)

    def _is_begun(self, units: Sequence[Unit]) -> bool:
        """Whether the leaves and their dictionaries are known, and what the first unit decides."""
        folder, reader = self.work.folder, self.reader
        known = all(dictionary_path(folder, leaf).is_file() for leaf in self._trained())
        decided = not reader.first_decides or _first_part(folder, units) is not None
        return bool(reader.schema.leaves) and known and decided

    def _do(self, tasks: Sequence[PartTask], engine: Engine) -> None:
        for index, record in run_tasks(tasks, 0, self.listener.on_progress, engine):
            self._know_schema(index, record)
            if "unit" in record:
                self.work.remember("part", {}, index)
                self.listener.on_part_done(index)

    def _know_schema(self, index: int, record: Mapping[str, Any] | None = None) -> None:
        """Take the leaves from the first part, and compare those of the others with them."""
        if record is None:
            part = read_part(part_folder(self.work.folder, index, 0))
            record = {} if part is None else part.record
        leaves = tuple(map(Leaf.from_json, record.get("leaves", ())))
        if not leaves:
            return
        if not self.reader.schema.leaves:
            self.reader.schema = Schema(leaves)
            self.reader.bulk, self.reader.columns = bulk_of(self.reader.schema), columns_of(self.reader.schema)
        elif leaves != self.reader.schema.leaves:
            odd = column_difference(columns_of(Schema(leaves)), columns_of(self.reader.schema))
            raise CorruptSourceError(f"unit {index} is unlike the first: {odd}")

    # -- the dataset -----------------------------------------------------------------------------------------------------

    def _commit(
        self,
        lead: Part | None,
        parts: Sequence[Part],
        taken: Mapping[int, _OldPart],
        units: Sequence[Unit],
        url: str,
        original: Manifest | None,
    ) -> None:
        reader, place = self.reader, self.place
        every = sorted([*parts, *(old.part for old in taken.values())], key=lambda part: part.unit)
        sections = [(part, section) for part in [lead, *every] if part for section in part.sections()]
        sections.sort(key=lambda one: tuple(one[1]["place"]))
        if not reader.schema.leaves:
            raise CorruptSourceError(f"{reader.title} holds no episode with a step")
        episodes = episodes_of(sections, reader.schema["next/reward"], reader.return_steps, lambda: place.id)
        wrong = ~np.isfinite(episodes.returns)
        if wrong.any():
            message = f"{place.id}: rewards of episode {int(wrong.argmax())} are not finite numbers, as float32"
            raise CorruptSourceError(message, hint="the source must leave them out, or clip them")
        try:
            facts = reader.facts(every, episodes)
        except CorruptSourceError:
            if not len(episodes):
                self._discard_parts()  # empty ones are not worth keeping for the next run
            raise
        if facts.midway is not None:
            episodes = replace(episodes, midway=facts.midway)
        pieces = {
            leaf.name: self._pieces(leaf, sections, taken, units) for leaf in reader.schema if leaf.constant is None
        }
        manifest = _manifest(reader, facts, episodes, place.id, url)
        if self.base:
            before, episodes = self.base.pieces(reader.bulk), self.base.episodes(episodes)
            manifest = self.base.grown(manifest, episodes)
            pieces = {name: [*before[name], *some] for name, some in pieces.items()}
        begin_join(place, manifest, episodes, pieces, reader.bulk, original)

    def _pieces(
        self,
        leaf: Leaf,
        sections: Sequence[tuple[Part, Mapping[str, Any]]],
        taken: Mapping[int, _OldPart],
        units: Sequence[Unit],
    ) -> list[Piece]:
        """The pieces of a leaf in order."""
        found: list[tuple[tuple[int, ...], Piece]] = []
        for part, section in sections:
            piece = part.piece(section, leaf, (part.unit, section["range"]))
            if piece is not None:
                found.append((tuple(section["place"]), piece))
        for index, old in taken.items():
            found += [((index, number), piece) for number, piece in enumerate(old.pieces.get(leaf.name, ()))]
        if not codec_of(leaf).fixed_rows:  # a part without rows has a range all the same
            there = {piece.range[0] for _, piece in found}
            empty = [unit.index for unit in units if unit.index not in there]
            found += [((i,), Piece(self.work.folder, 0, 0, "", 0, (i, 0), np.zeros(0, np.int64))) for i in empty]
        return [piece for _, piece in sorted(found, key=lambda one: one[0])]


@dataclass(frozen=True)
class _OldPart:
    """A part of a smaller dataset: for each large leaf, where its rows are."""

    part: Part
    pieces: Mapping[str, Sequence[Piece]]


def _old_pieces(old: OldDataset, leaf: Leaf, index: int, first: int, rows: int) -> list[Piece]:
    """The rows of part ``index`` in the files of an older dataset. Raises RbdataError for those that are damaged."""
    codec, lengths = codec_of(leaf), None
    begin, end = first * leaf.row_bytes, (first + rows) * leaf.row_bytes
    if not codec.fixed_rows:
        offsets, path = np.fromfile(old.folder / codec.path("offsets"), "<i8", rows + 1, offset=8 * first), "offsets"
        begin, end, lengths = int(offsets[0]), int(offsets[-1]), np.diff(offsets)
        low = 8 * (first + 1) if index else 0
        stated = list(old.manifest.files[codec.path(path)][index])
        if sum_range(old.folder / codec.path(path), low, 8 * (first + rows + 1) - low) != stated:
            raise RbdataError("the old offsets are damaged")
    path, at, pieces = codec.path("blob"), 0, list[Piece]()
    for length, checksum in old.manifest.files[path]:
        if begin <= at and at + length <= end and length:
            found, cells = sum_cells(old.folder / path, at, length)
            piece = Piece(
                old.folder / path,
                at,
                length,
                cells,
                rows if lengths is not None else length // leaf.row_bytes,
                (index, len(pieces)),
                lengths,
            )
            if (
                found != length
                or place_cells(piece.path, at, length, cells, 0)[:2] != [length, checksum]
                or (lengths is not None and (at, at + length) != (begin, end))
            ):
                raise RbdataError("the old part is damaged")
            pieces.append(piece)
        at += length
    if sum(piece.rows for piece in pieces) != rows:
        raise RbdataError("the old part is not in ranges of its own")
    return pieces


def bulk_of(schema: Schema) -> tuple[str, ...]:
    """The large leaves: of states, and the twins that plain TED has in their place."""
    twins = [leaf.name for leaf in schema.steps if leaf.row_bytes >= LARGE_ROW and "next/" + leaf.name in schema]
    return (*(leaf.name for leaf in schema.states), *(name for twin in twins for name in (twin, "next/" + twin)))


# -- whole files -----------------------------------------------------------------------------------------------------------


def remote_files(reader: Reader) -> list[RemoteObject]:
    """The files that are fetched whole."""
    return [item for item in reader.files() if not is_local(item)]


def bytes_left(remote: Sequence[RemoteObject], folder: Path | None) -> int:
    """Bytes of whole raw files still to be fetched into a folder that an interrupted run may have begun to fill."""
    sizes = {file_name(item): item.size or 0 for item in remote}
    kept = sum(min(size, bytes_there(folder / name)) for name, size in sizes.items()) if folder else 0
    return sum(sizes.values()) - kept


def is_local(item: RemoteObject) -> bool:
    """Whether an object is a file that can be opened where it is."""
    return item.url.startswith("/")


def file_name(item: RemoteObject) -> str:
    """A name for a fetched file: different objects may have the same last name."""
    return f"{crc32c(item.url.encode())}-{item.name}"


def _manifest(reader: Reader, facts: Facts, episodes: EpisodeTable, dataset_id: str, url: str) -> Manifest:
    """The manifest of a dataset, without its files."""
    names = {"name": reader.source, "upstream": reader.upstream or reader.source, "dataset": reader.name}
    objects = [*reader.objects(), *(part.object for part in facts.parts)]
    unverified = reader.unverified()
    returns, lengths = episodes.summary()
    provenance: dict[str, Any] = {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "rbdata_version": __version__,
        "location": url,
        **({"why": reader.why} if reader.why else {}),
        **({"files_state": reader.files_state} if reader.files_state else {}),
        **({"unverified": {"files": len(unverified), "first": unverified[0]}} if unverified else {}),
    }
    return Manifest(
        id=dataset_id,
        schema=reader.schema,
        steps=episodes.steps,
        episodes=len(episodes),
        source={**names, **reader.describe(), "objects": objects},
        parts=[part.to_json() for part in facts.parts],
        spaces=dict(facts.spaces),
        counts=dict(facts.counts),
        notes=list(facts.notes),
        returns=returns,
        lengths=lengths,
        licence=reader.licence,
        citation=reader.citation,
        provenance=provenance,
    )
