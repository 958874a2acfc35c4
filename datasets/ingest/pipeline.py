"""The one path by which anything becomes a dataset: units are read as blocks, each becomes a part, the parts are joined.

    plan      the lead, the units, what of them is there (`plan`)
    read      a unit's blocks (`block`, `unit`; the sources)
    write     a part of each unit, by workers (`part`), encoded (`storage.part_file`)
    commit    episodes, manifest, pieces (`commit`), joined to files (`storage.join`)

Resuming is: the part is there, and its record fits. A larger dataset of the same id begins with the parts of the one that is
there, and one that is appended to with all of it: their rows are copied from its files when the parts are joined. The lock is
held from plan to rename.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from ...errors import (
    ChecksumError,
    CorruptSourceError,
    DamagedDatasetError,
)
from ...storage.codecs import level_of
from ...storage.folder import DatasetPlace, check_space, make_writable, remove_tree
from ...storage.join import is_joining, join
from ...storage.manifest import Manifest, read_manifest
from ...storage.old_dataset import OldDataset
from ...storage.work import Work, fingerprint
from ..workers import open_local
from ..workers.task import Engine, OnBlock, call, memory_for, threads_of_task, usual_procs
from .append import Base
from .commit import begin_commit
from .estimate import estimate_expected, estimate_fetch, estimate_work
from .part import PartTask, count_steps, part_folder, parts_of, read_part
from .plan import Plan, common, is_done
from .raw_files import bytes_left, fetch_whole, paths_of, remote_files
from .reader import Reader
from .records import Expectation
from .request import Estimate, Listener, Outcome, Request, announce_replacement, find_existing
from .unit import LEAD, Part, Unit

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
    plan = partial(dry_run, reader, place, request, listener)
    write = partial(make, reader, place, request, listener, url)
    return write_dataset(place, request, listener, reader.shards(), url, plan, write, check)


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
    listener: Listener,
    shards: Collection[int],
    url: str,
    plan: Callable[[], Estimate],
    write: Callable[[], tuple[Estimate, Manifest]],
    check: Callable[[Manifest], object],
) -> Outcome:
    """Have ``write`` put a dataset with these ``shards``, from ``url``, at a place, with the place's lock, unless another
    process has made it by then; in a dry run, ``plan`` says what it would do.

    ``check`` raises if the dataset that process made is not the requested one.
    """
    began = time.monotonic()
    if request.dry_run:
        announce_replacement(place, request, shards, url, listener)
        estimate = plan()
        listener.on_estimate(estimate)
        return Outcome(place.id, place.path, "planned", None, time.monotonic() - began, estimate)
    make_writable(place.root)
    try:
        with place.lock():
            place.recover()
            existing = find_existing(place, request)  # another process may have finished it meanwhile
            if existing is not None:
                check(existing)
                return Outcome(place.id, place.path, "complete", existing)
            announce_replacement(place, request, shards, url, listener)
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
    going_on = work.holds_work()
    plan = Plan(reader, place, request, listener, work, base or _old(reader, place, request))
    try:
        if is_joining(place):
            estimate = estimate_expected(reader, place, Expectation(0, 0, 0, 0), 0)
        else:
            estimate = _write(plan, url, original, base)
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
    finally:
        if not work.holds_work():
            remove_tree(work.folder)  # the dataset is there, or nothing is worth keeping for the next run


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
    """What a run would do, without the work that an interrupted run has finished; writes nothing.

    Where raw files must be fetched whole before they can be read, only their sizes are known.
    """
    old = _old(reader, place, request)
    folder = place.working if Work.belongs(place, mark_of(reader, place), restart=request.force) else None
    expected = reader.expect()
    if expected is None and remote_files(reader):
        return estimate_fetch(reader, place, bytes_left(reader, folder))
    with _opened(reader, paths_of(reader, place.working) if expected is None else {}, request):
        unit = reader.lead()
        lead = count_steps(unit, _planned(listener, unit)) if unit else None
        units = reader.units(lead)
        done = {unit.index for unit in units if folder is not None and is_done(parts_of(folder, unit))}
        done.update(range(common(old, units)))
        return estimate_work(reader, place, units, done, lead, old, reader.sample_rows)


def _old(reader: Reader, place: DatasetPlace, request: Request) -> OldDataset | None:
    """The dataset that is about to become larger."""
    grows = reader.schema.leaves and not request.force and place.exists()
    return OldDataset.open(place.path, reader.schema) if grows else None


# -- whole files and the lead ----------------------------------------------------------------------------------------------


@contextmanager
def _opened(reader: Reader, paths: Mapping[str, Path], request: Request) -> Iterator[Engine]:
    """A reader that has looked into its whole files, and what reads them: processes if C libraries do it, else this one."""
    libraries = reader.native_libraries
    procs = usual_procs(64, request.procs) if libraries else 0
    memory = memory_for(reader.native_bytes(paths)) if libraries else None
    with open_local(procs, _modules(reader), memory=memory) as engine:
        if paths:
            label = next(iter(paths)) if len(paths) == 1 else reader.location.url
            reader.seen(call(engine, label, reader.look, paths))
        yield engine


def _modules(reader: Reader) -> list[str]:
    """What the work on a reader's units imports."""
    return [PartTask.__module__, type(reader).__module__, *reader.native_libraries]


def _planned(listener: Listener, lead: Unit) -> OnBlock:
    return lambda done, *_: listener.on_planned(done, lead.rows)


# -- one run ---------------------------------------------------------------------------------------------------------------


def _write(plan: Plan, url: str, original: Manifest | None, base: Base | None) -> Estimate:
    """Everything up to the join."""
    reader, place, listener = plan.reader, plan.place, plan.listener
    with _opened(reader, fetch_whole(reader, place, plan.work, listener), plan.request) as engine:
        plan.lead = _read_lead(plan)
        reader.prepare(plan.work)
        plan.units = list(reader.units(plan.lead))
        plan.find_parts()
        estimate = plan.estimate()
        listener.on_estimate(estimate)
        needed = estimate.disk_bytes // (_FAR_TOO_MUCH if estimate.estimated else 1)
        check_space(place.path, needed + (base.manifest.bytes if base else 0), place.id)
        reader.check_input()
        _fill(plan, engine)
    parts = [part for unit in plan.units for part in plan.parts[unit.index]]
    leads = [] if plan.lead is None else [plan.lead]
    try:
        begin_commit(reader, place, leads, parts, url, original, base)
    except CorruptSourceError:
        if not any(part.steps for part in (*leads, *parts)):
            plan.discard_parts()  # empty ones are not worth keeping for the next run
        raise
    return estimate


def _task(plan: Plan, unit: Unit, threads: int, begins: bool = False) -> PartTask:
    reader = plan.reader
    return PartTask(unit, plan.work.folder, reader.schema, threads, begins, level_of(reader.options.codec))


def _read_lead(plan: Plan) -> Part | None:
    lead = plan.reader.lead()
    if lead is None:
        return None
    folder = part_folder(plan.work.folder, LEAD, 0)
    remove_tree(folder)
    _task(plan, lead, 1)(_planned(plan.listener, lead))
    return read_part(folder)


def _fill(plan: Plan, engine: Engine) -> None:
    """Have workers make the parts that are not there; ``engine`` reads whole files."""
    reader, request = plan.reader, plan.request
    left = plan.left(plan.units)
    if not left:
        return
    count = 0 if reader.here else usual_procs(len(left), request.procs)
    threads = threads_of_task(count, request.engine)
    with _workers(plan, count, engine) as workers:
        while left and not plan.is_begun():
            begins = len(left) > 1 and not reader.first_decides
            _do(plan, [_task(plan, left[0], threads, begins)], workers)
            left = plan.left(left[:1]) + left[1:]
        if reader.first_decides and (first := plan.first_part()):
            left = [reader.decided(unit, first) for unit in left]
        # Large units first, where their sizes are known: no process ends long after the others.
        if workers.parallel > 1 and not any(unit.spec for unit in left):
            left = sorted(left, key=lambda unit: -unit.rows)
        _do(plan, [_task(plan, unit, threads) for unit in left], workers)


def _workers(plan: Plan, count: int, reading: Engine) -> AbstractContextManager[Engine]:
    """An engine that was given and goes on to the next dataset, the one that reads whole files, this process, or ``count``
    processes."""
    reader, given = plan.reader, plan.request.engine
    if given is None and reader.native_libraries:
        given = reading
    if reader.here or (given is None and count <= 1 and not reader.in_worker):
        given = Engine()
    return nullcontext(given) if given is not None else open_local(count, _modules(reader))


def _do(plan: Plan, tasks: Sequence[PartTask], engine: Engine) -> None:
    for index, schema in engine.run(operator.call, tasks, plan.listener.on_progress):
        plan.take_schema(schema)
        plan.parts[index] = parts_of(plan.work.folder, plan.units[index])
        if is_done(plan.parts[index]):
            plan.listener.on_part_done(index)
