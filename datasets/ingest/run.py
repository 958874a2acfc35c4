"""One run of a job: plan, fill, commit; or plan alone (`dry_run`).

    fetch whole files -> inspect them   |   stage everything      depending on the job
    plan        step leaves and the episode table are written; all counts are known
    dictionary  trained on sample rows, for compressed leaves
    fill        worker processes fill the large leaves, part by part
    commit      the manifest is written and the folder renamed

An interrupted run is continued from the journal of the working folder (`storage.writer`). The parts that a smaller
dataset of the same id begins with, too, are copied from it.

A provider's `RowSource` yields the rows in blocks. A `FillTask` opens a sink for each leaf, writes the blocks, reports
progress, and returns the record of the part for the journal.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ChecksumError, CorruptSourceError, DamagedDatasetError, DatasetExistsError
from ...storage.codecs import codec_of
from ...storage.folder import RAW, DatasetPlace, check_space, remove_tree
from ...storage.manifest import Manifest, read_manifest
from ...storage.schema import Schema
from ...storage.writer import ColumnWriter, DatasetWriter, OldDataset, fingerprint, finished_parts, open_sink
from ..fetch import RemoteObject
from ..workers.local_engine import LocalEngine, memory_for, run_tasks, threads_of_task, usual_procs
from ..workers.task import Engine, OnBlock, modules_of
from . import pipeline
from .estimate import bytes_of_columns, bytes_of_state, compressed_leaves, estimate_fetch, estimate_plan, expect
from .job import Job, Plan, RawObject, StagedJob
from .pipeline import bytes_left, file_name, is_local, make_manifest, remote_files, write_dataset
from .raw_files import RawReading, drop_changed, fetch_all, remember_complete, remember_fetched
from .request import Estimate, Listener, Outcome, Request, announce_replacement, read_objects
from .row_source import RowSource, SampleRows
from .unit import Reader


@dataclass(frozen=True)
class FillTask:
    """Fills one part; picklable. ``all_states`` are the state rows of the whole dataset."""

    index: int
    source: RowSource
    folder: Path
    schema: Schema
    leaves: tuple[str, ...]
    first_state: int
    states: int
    all_states: int
    threads: int
    label: str

    @property
    def rows(self) -> int:
        return self.source.rows

    def __call__(self, on_block: OnBlock) -> dict[str, Any]:
        """Write all rows of the part. Returns its record: what each sink returns, and the object's checksum if computed."""
        where = (self.index, self.first_state, self.states, self.all_states, self.threads)
        checksum = None
        records = {name: self.source.adopt(self.schema[name], self.folder, self.index) for name in self.leaves}
        rest = [self.schema[name] for name, record in records.items() if record is None]
        sinks = {leaf.name: open_sink(self.folder, leaf, *where) for leaf in rest}
        with closing(self.source.blocks(rest, self.threads)) as blocks:
            for block in blocks:
                for position, starts in block.runs:
                    sinks[block.leaf].write(position, block.buffer, starts)
                checksum = block.crc32c
                on_block(block.done, block.fetched, block.retries)
        return {"leaves": {**records, **{name: sink.finish() for name, sink in sinks.items()}}, "crc32c": checksum}


def fill_tasks(job: Job, plan: Plan, folder: Path, threads: int, file: str | None = None) -> list[FillTask]:
    """The tasks that fill the parts of a plan; ``file`` is what they read, None: each the object of its part."""
    leaves = tuple(name for name in job.bulk if not name.startswith("next/"))  # a sink writes both twins
    return [
        FillTask(
            *(index, source, folder, job.schema, leaves, part.first_state or 0, part.states, plan.states, threads),
            label=file or part.name,
        )
        for index, (source, part) in enumerate(zip(job.row_sources(), plan.parts))
    ]


#: Bytes of renamed parts that wait to be appended; they need this much disk twice.
_MERGED_TOGETHER = 256 << 20
#: What a staged job is likely to write may be several times too much: it is refused beforehand where not even this part fits.
_FAR_TOO_MUCH = 8


def run(
    job: Job,
    place: DatasetPlace,
    request: Request,
    listener: Listener,
    url: str,
    check: Callable[[Manifest], object] = lambda existing: None,
) -> Outcome:
    """Make the dataset of a job at a place; ``url`` is recorded as where it comes from. For ``check`` see `write_dataset`.

    Raises the fetch errors of `errors`, CorruptSourceError, DiskError, DatasetBusyError,
    DatasetExistsError. What is finished before an error or KeyboardInterrupt is kept for the next run.
    """

    if isinstance(job, Reader):
        return pipeline.run(job, place, request, listener, url, check)
    if request.dry_run:
        began = time.monotonic()
        announce_replacement(place, request, job.shards(), url, listener)
        estimate = dry_run(job, place, request, listener)
        listener.on_estimate(estimate)
        return Outcome(place.id, place.path, "planned", None, time.monotonic() - began, estimate)

    def write() -> tuple[Estimate, Manifest]:
        announce_replacement(place, request, job.shards(), url, listener)
        if request.force and place.exists():
            job.set_previous_objects(read_objects(place))
        return _write(job, place, request, listener, url)

    return write_dataset(place, request, write, check)


def restore(job: Job, place: DatasetPlace, request: Request, listener: Listener, url: str) -> Estimate:
    """Make the damaged dataset at a place again, from its sound parts and the job's data: the same bytes as before.

    Raises as `run`, and DamagedDatasetError where the data have changed; the dataset is then as it was.
    """
    if isinstance(job, Reader):
        return pipeline.restore(job, place, request, listener, url)
    with place.lock():
        place.recover()
        return _write(job, place, request, listener, url, read_manifest(place.path))[0]


def _write(
    job: Job,
    place: DatasetPlace,
    request: Request,
    listener: Listener,
    url: str,
    original: Manifest | None = None,
) -> tuple[Estimate, Manifest]:
    """Plan, fill and commit with the place's lock; ``original``: the manifest of the dataset that is made again."""
    old, mark = _begin(job, place, request, original)
    writer = DatasetWriter(
        place,
        job.schema,
        mark,
        bulk=job.bulk,
        parts=job.parts(),
        restart=request.force,
        command=request.command,
        continues=job.continues,
    )
    if writer.discarded and not request.force:
        listener.on_note(
            f"{place.id} was begun before and is made from the beginning: nothing states how to go on with it"
        )
    going_on, run = writer.holds_work(), _Run(job, place, request, listener, writer, old)
    try:
        paths = run.fetch()
        try:
            estimate, manifest = run.convert(paths, url)
        except (ChecksumError, CorruptSourceError):
            if not run.remote:
                raise
            remove_tree(writer.folder)  # the next run is to fetch the files again
            if not going_on:
                raise
            # Perhaps what an earlier run left was damaged on its way: not every place states checksums.
            return _write(job, place, request, listener, url, original)
        try:
            writer.commit(manifest, original=original)
        except DamagedDatasetError:
            remove_tree(writer.folder)
            raise
    except BaseException:
        if not writer.holds_work():
            remove_tree(writer.folder)  # nothing worth keeping for the next run
        raise
    return estimate, manifest


def _begin(
    job: Job, place: DatasetPlace, request: Request, original: Manifest | None = None
) -> tuple[OldDataset | None, str]:
    """The dataset whose parts are taken over, if any, and the fingerprint of the run."""
    # The plan of a staged job needs all of its data, so that parts of an old dataset are of no use.
    old = None if request.force or isinstance(job, StagedJob) else OldDataset.open(place.path, job.schema)
    # Not the old dataset, which may be gone when the run is continued: its dictionary is in the working folder by then.
    identity = {"id": place.id, **job.identity()}
    if original is not None:
        identity["restores"] = original.to_json()["checksum"]
    return old, fingerprint(identity)


def dry_run(job: Job, place: DatasetPlace, request: Request, listener: Listener) -> Estimate:
    """What a run would do, without the work that an interrupted run has finished; writes nothing, and leaves the job as it is.

    Where raw files must be fetched whole before they can be read, only their sizes are known.
    """
    job = copy.copy(job)
    old, mark = _begin(job, place, request)
    finished = finished_parts(place.working, mark, restart=request.force)
    kept = place.working / RAW
    if isinstance(job, StagedJob):
        return expect(job, place, 0 if finished is None else job.staged_parts(kept))
    remote = remote_files(job)
    if remote:
        return estimate_fetch(job, place, bytes_left(remote, None if finished is None else kept))
    paths = {item.url: Path(item.url) for item in job.files()}
    with RawReading(job, paths, usual_procs(1, request.procs)) as reading:
        reading.inspect()
        small = Schema(tuple(leaf for leaf in job.schema.steps if leaf.name not in job.bulk))
        plan, _ = reading.plan(partial(ColumnWriter, None, small), listener.on_planned)
        done = (finished or set()) | set(range(old.common(_records(plan)) if old else 0))
        state_bytes = old.bytes_of_state if old else partial(bytes_of_state, job, reading.sample_rows)
        return estimate_plan(job, plan, place, state_bytes, done)


def stage_all(
    job: StagedJob, writer: DatasetWriter, procs: Callable[[int], int], engine: Engine | None, listener: Listener
) -> Estimate:
    """Stage everything in the working folder: in processes (``procs`` gives how many for a number of tasks), or by an
    ``engine``."""
    folder, place, finished = writer.folder / RAW, writer.place, 0
    try:
        listener.on_stage(job.staging)
        tasks = job.staging_tasks(folder, 1)  # makes what the estimate needs, such as a dictionary
        finished = job.staged_parts(folder)
        left = job.parts() - finished
        estimate = expect(job, place, finished)
        listener.on_estimate(estimate)
        check_space(place.path, estimate.disk_bytes // _FAR_TOO_MUCH, place.id)
        remember_complete(writer)
        modules = modules_of(tasks[0]) if tasks else []
        native = [size for task in tasks if (size := getattr(task, "native_bytes", None)) is not None]
        memory = memory_for(max(native)) if native else None
        needs_worker = bool(native) or job.in_worker
        count = procs(left) if needs_worker or procs(left) > 1 else 0
        with closing(LocalEngine(count, modules, memory=memory)) as local:
            if engine is None:
                local.prepare()  # while this process does what all other work waits for
            while tasks := job.staging_tasks(folder, threads_of_task(procs(left), engine)):
                here = engine is None and len(tasks) == 1 and not needs_worker
                for index, record in run_tasks(tasks, 0, listener.on_progress, None if here else engine or local):
                    remember_complete(writer)
                    if not record.get("unfinished"):
                        finished, left = finished + 1, left - 1
                        listener.on_part_done(index)
    except BaseException:
        if not finished and not job.holds_staged(folder):
            remove_tree(folder)  # nothing worth keeping for the next run
        raise
    listener.on_stage("sorting the rows")
    return estimate


@dataclass(frozen=True)
class _Run:
    """One run with the place's lock held; ``old`` is the dataset to be extended."""

    job: Job
    place: DatasetPlace
    request: Request
    listener: Listener
    writer: DatasetWriter
    old: OldDataset | None

    @property
    def remote(self) -> list[RemoteObject]:
        """The files that are fetched whole."""
        return remote_files(self.job)

    def convert(self, paths: dict[str, Path], url: str) -> tuple[Estimate, Manifest]:
        """Plan and fill; what is left is to commit. ``paths`` are those of the job's whole files by url."""
        with RawReading(self.job, paths, self._procs(self.job.parts() or 1)) as reading:
            return self._convert(reading, url)

    def _convert(self, reading: RawReading, url: str) -> tuple[Estimate, Manifest]:
        job, writer, expected = self.job, self.writer, None
        if isinstance(job, StagedJob):
            expected = stage_all(job, writer, self._procs, self.request.engine, self.listener)
        reading.inspect()
        writer.set_schema(job.schema, job.bulk, job.parts())
        plan = self._plan(reading)
        samples = cache(reading.sample_rows)
        self._make_dictionary(samples)
        self._check_same_objects(plan)
        if self.old:
            self._take_over(plan, self.old)
        writer.merge()
        if expected is None:
            done = writer.parts_done().keys()
            # Nothing is read from parts that a smaller dataset holds.
            state_bytes = self.old.bytes_of_state if self.old else partial(bytes_of_state, job, samples)
            expected = estimate_plan(job, plan, self.place, state_bytes, done, fetched=bool(self.remote))
            self.listener.on_estimate(expected)
            check_space(self.place.path, expected.disk_bytes - bytes_of_columns(job, plan), self.place.id)
        self._fill(plan, reading)
        self.listener.on_stage("committing")
        for index, record in writer.parts_done().items():
            plan.parts[index] = plan.parts[index].with_checksum(record["crc32c"])
        return expected, make_manifest(job, plan, self.place.id, url)

    def _procs(self, tasks: int) -> int:
        """The number of worker processes for so many tasks; 0: this process, if it is asked for."""
        return usual_procs(tasks, self.request.procs)

    def fetch(self) -> dict[str, Path]:
        """The paths of the job's whole files by url: in place where the source is a directory, else fetched."""
        job, folder, remote = self.job, self.writer.folder / RAW, self.remote
        drop_changed(self.writer)
        if remote:
            self.listener.on_estimate(estimate_fetch(job, self.place, bytes_left(remote, folder)))
            self.listener.on_stage("fetching the raw files")
            raw = [RawObject(file_name(item), item, job.location) for item in remote]
            fetch_all(folder, raw, self.listener.on_fetched, partial(remember_fetched, self.writer))
        return {item.url: Path(item.url) if is_local(item) else folder / file_name(item) for item in job.files()}

    def _plan(self, reading: RawReading) -> Plan:
        plan, files = reading.plan(self.writer.begin_plan(), self.listener.on_planned)
        wrong = ~np.isfinite(plan.episodes.returns)
        if wrong.any():
            message = f"{self.place.id}: rewards of episode {int(wrong.argmax())} are not finite numbers, as float32"
            raise CorruptSourceError(message, hint="the source must leave them out, or clip them")
        self.writer.planned(files, plan.episodes, plan.digest)
        return plan

    def _make_dictionary(self, samples: Callable[[], SampleRows]) -> None:
        """Store the dictionary of the compressed leaves: that of the old dataset, of an interrupted run, or a new one."""
        for leaf in compressed_leaves(self.job):
            if not isinstance(self.job, StagedJob):
                self.listener.on_stage("sampling frames")
            if not codec_of(leaf).uses_dictionary:
                continue
            stored = self.writer.stored_dictionary(leaf)
            if isinstance(self.job, StagedJob):
                dictionary = self.job.staged_dictionary()
            elif stored is not None:
                dictionary = stored
            else:
                dictionary = self.old.dictionary(leaf) if self.old else codec_of(leaf).train(samples())
            self.writer.dictionary(leaf, dictionary)

    def _check_same_objects(self, plan: Plan) -> None:
        """The objects that an earlier run converted must be those that the source states now; the mirror may have changed."""
        if self.writer.remembered("part"):
            self.listener.on_stage("checking what is finished")
        for index, record in self.writer.parts_done().items():
            part = plan.parts[index]
            pairs = [(part.object["crc32c"], record.get("crc32c")), (part.object["size"], record.get("object_bytes"))]
            if any(None not in pair and pair[0] != pair[1] for pair in pairs):
                message = f"{part.name} of the unfinished {self.place.id} came from another file than the one here"
                raise DatasetExistsError(message, hint=f"start over with --force ({self.writer.folder})")

    def _take_over(self, plan: Plan, old: OldDataset) -> None:
        """Copy the first parts, which a smaller dataset already holds, if its rows are encoded as those of this one."""
        for leaf in compressed_leaves(self.job):
            if not codec_of(leaf).is_like(self.writer.folder, leaf, old.folder):
                return
        self.listener.on_stage("copying the shards that are there")
        for index in range(old.common(_records(plan))):
            done = index in self.writer.parts_done()
            record = None if done else old.take_over(self.writer, index)
            if record is not None:
                self.writer.part_done(index, record)

    def _fill(self, plan: Plan, reading: RawReading) -> None:
        job, writer = self.job, self.writer
        # The parts of a staged job were reported as they were staged.
        is_staged = isinstance(job, StagedJob)
        listener = Listener() if is_staged else self.listener
        left = [index for index in range(job.parts()) if index not in writer.parts_done()]
        # Staged rows that are compressed are only renamed: not worth starting processes for.
        renamed = bool(is_staged and compressed_leaves(job))
        count, engine = (0, None) if renamed else (self._procs(len(left)), self.request.engine)
        file = reading.label if job.native_libraries else None
        every = fill_tasks(job, plan, writer.folder, threads_of_task(count, engine), file)
        # One process that needs no protection from C libraries is this one.
        count = 0 if min(count, len(left)) == 1 else count
        engine = engine or (reading.engine if job.native_libraries and not renamed else None)
        waiting = 0
        for index, record in run_tasks([every[index] for index in left], count, listener.on_progress, engine):
            writer.part_done(index, {**record, "object_bytes": plan.parts[index].object["size"]})
            waiting += sum(piece["length"] for leaf in record["leaves"].values() for piece in leaf.get("pieces", ()))
            # Every time, files are synced: that takes longer than to rename a part.
            if not renamed or waiting >= _MERGED_TOGETHER:
                writer.merge()
                waiting = 0
            listener.on_part_done(index)


def _records(plan: Plan) -> list[dict[str, Any]]:
    return [part.to_json() for part in plan.parts]
