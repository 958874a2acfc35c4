"""A dataset through functions into another one: look, collect, fill, commit.

1. *Look*: the functions are found and tried on the first steps; what comes back decides the leaves of the new dataset, a
   few rows from everywhere decide codecs and dictionaries.
2. *Collect*: functions that must know all of the data see it once (this comes before the look, which needs it).
3. *Fill*: chunks are read, changed and written by an engine's workers, in any order, and appended in their own.
4. *Commit*: the episode table is taken from the flags, the manifest is written, the folder becomes the dataset.

All that was found out and finished is in the journal of the working folder (`storage.writer`): killed at any moment, the
same command goes on from there, and ends with the same bytes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from .. import settings
from .._version import __version__
from ..datasets.local import find
from ..datasets.workers.engines import Engine, open_engine
from ..datasets.workers.pool import usable_cpus
from ..errors import DatasetExistsError, NotADatasetError, UsageError
from ..storage.episodes import open_episodes
from ..storage.folder import DatasetPlace, check_id, check_space, free_bytes, make_writable, remove_tree
from ..storage.integrity import check_leaves
from ..storage.manifest import Manifest, read_manifest
from ..storage.schema import Schema
from ..storage.writer import DatasetWriter, fingerprint
from .chunks import Chunk, chunk_steps, cut, default_batch
from .episode_view import view_episodes
from .function_chain import FunctionChain, examine_functions
from .lineage import content_id, versions
from .preprocess_request import Listener, Outlook, Preprocessed, Request
from .records import collected
from .run_config import Setting, Windows, row_bytes
from .tasks import WORKER, Examine, Fill

MAX_PROCS = 8
#: A process takes seconds to start: unless told otherwise, there is one for so many chunks at least.
CHUNKS_PER_PROCESS = 4
#: Seconds between two looks for finished parts that can be appended, and so many times as long as the last one took.
MERGE_EVERY, MERGE_SHARE = 0.25, 8.0


def preprocess(request: Request, listener: Listener | None = None, engine: Engine | None = None) -> Preprocessed:
    """Make a new dataset. Whatever was finished before an error or Ctrl-C is kept for the next run.

    ``engine`` is one that is open already, for several runs in a row; it stays open, except after an error.

    Raises FunctionNotFoundError and UsageError for what cannot be done as asked, FunctionError for what a function raises,
    ResultError for what it returns, WorkerLostError, DiskSpaceError, RootNotWritableError, DatasetBusyError,
    DatasetExistsError, and what `datasets.local.find` raises for the input.
    """
    listener = listener or Listener()
    root = settings.root(request.root)
    _check_dest(request.dest)
    place = DatasetPlace(root, request.dest)
    path = find(request.id, root)
    if path.resolve() == place.path.resolve():
        message = f"{request.dest} is the dataset that is read: it cannot be written at the same time"
        raise UsageError(message, hint="give another --dest")
    source = read_manifest(path)
    width = row_bytes(source.schema, request.windows)
    size = chunk_steps(request.batch_size or default_batch(width), width)
    procs: int | None = settings.procs(request.procs)
    if request.engine == "local":
        chunks = -(-min(source.steps, request.num_frames or source.steps) // size)
        default = min(MAX_PROCS, usable_cpus(), chunks // CHUNKS_PER_PROCESS)
        procs = max(1, min(procs or default, chunks))
    with _opened(engine, request, procs) as opened:
        ahead = engine is None and (request.force or not place.exists())
        if ahead:
            opened.prepare()
        run = _Run(request, _program(request, opened if ahead else None), path, source, place)
        existing = run.what_is_there()
        if existing is not None:
            return Preprocessed(place.id, place.path, "complete", existing)
        return run.dry(opened, listener) if request.dry_run else run.write(opened, listener)


def _program(request: Request, engine: Engine | None) -> FunctionChain:
    """The functions, looked at here, or by a worker of an engine that has been told to get ready."""
    folder = (request.folder or Path.cwd()).absolute()
    given = tuple(one for one in request.functions if isinstance(one, str))
    if engine is None or not engine.separate or len(given) < len(request.functions):
        return examine_functions(request.functions, request.args, folder, request.per)
    work = Examine(given, request.args, folder, request.per)
    ((_, record),) = engine.run(work, [Chunk(0, 0, 0, 0, 0)], lambda progress: None)
    program: FunctionChain = record["chain"]
    return program


@contextmanager
def _opened(given: Engine | None, request: Request, procs: int | None) -> Iterator[Engine]:
    engine = given or open_engine(request.engine, procs=procs, address=request.address, preload=[WORKER])
    try:
        yield engine
    finally:
        if given is None:
            engine.close()
        if f"{__package__}.worker" in sys.modules:  # the work was done in this process
            from .worker import forget

            forget()


def _check_dest(dest: str) -> None:
    try:
        check_id(dest)
    except UsageError as error:
        hint = f"an id has two parts: my/{dest}" if "/" not in dest and dest.isidentifier() else error.hint
        raise UsageError(f"--dest {dest!r} is not a dataset id", hint=hint) from error


@dataclass
class _Run:
    """One request, bound to its input and its place."""

    request: Request
    program: FunctionChain
    path: Path
    input: Manifest
    place: DatasetPlace

    def __post_init__(self) -> None:
        request = self.request
        per, self.functions = self.program.per, self.program.functions
        self.began = time.monotonic()
        table = open_episodes(self.path, self.input.episodes)
        self.episodes = view_episodes(table, request.num_frames, request.windows.slice_len)
        if not self.episodes.steps:
            raise UsageError(f"{self.input.id} has no steps: there is nothing to preprocess")
        width = row_bytes(self.input.schema, request.windows)
        batch = request.batch_size or default_batch(width)
        self.size = chunk_steps(batch, width)
        self.chunks = cut(self.episodes, self.size, per == "episode")
        self.identity = {
            "preprocess": 2,
            "id": self.place.id,
            "input": content_id(self.input),
            "functions": list(self.program.identities),
            "per": per,
            "batch": batch,
            "chunk": self.size,
            "windows": request.windows.to_json(),
            "num_frames": request.num_frames,
            "seed": request.seed,
            "codec": request.codec,
            "layout": request.layout,
            "versions": versions(),
        }
        self.fingerprint = fingerprint(self.identity)
        self.setting = Setting(
            key=self.fingerprint,
            path=self.path,
            folder=self.place.working,
            functions=self.functions,
            per=per,
            windows=request.windows,
            num_frames=request.num_frames,
            batch=batch,
            seed=request.seed,
            statistics=(None,) * len(self.functions),
            # One step at a time, windows and slices are not the steps and episodes that are stored.
            ignores_observations=self.program.ignores_observations
            if per != "sample" and request.windows == Windows()
            else 0,
        )

    # -- what is there -------------------------------------------------------------------------------------------------

    def what_is_there(self) -> Manifest | None:
        """The dataset at the destination if it is the very one that is asked for. Raises DatasetExistsError for others."""
        if not self.place.exists():
            self.place.check_free()
            return None
        if self.request.force:
            return None
        try:
            manifest = read_manifest(self.place.path)
        except NotADatasetError:
            return None
        if (manifest.lineage or {}).get("fingerprint") == self.fingerprint:
            return manifest
        message = f"{self.place.id} is there already, and was made otherwise"
        raise DatasetExistsError(message, hint="choose another --dest, or replace it with --force")

    # -- dry -----------------------------------------------------------------------------------------------------------

    def dry(self, engine: Engine, listener: Listener) -> Preprocessed:
        """Try one chunk and say what would be done."""
        import tempfile

        from .probe import estimate

        listener.stage("trying the functions on one chunk")
        with tempfile.TemporaryDirectory(prefix="rbdata-dry-run-") as scratch:
            self.setting = replace(self.setting, folder=Path(scratch), key=self.fingerprint + "dry")
            trial, outlook = estimate(self, engine)
        listener.outlook(outlook)
        seconds = time.monotonic() - self.began
        return Preprocessed(self.place.id, self.place.path, "planned", None, seconds, outlook, trial)

    def outlook(self, steps: int, disk: int, done: int) -> Outlook:
        """What is still to be done."""
        return Outlook(
            id=self.place.id,
            path=self.place.path,
            location=str(self.path),
            shards=len(self.chunks),
            fetch_bytes=0,
            steps=steps,
            episodes=len(self.episodes),
            disk_bytes=disk,
            free_bytes=free_bytes(self.place.path),
            done_parts=done,
            parts=len(self.chunks),
            part_names=[chunk.words() for chunk in self.chunks],
            estimated=self.setting.whole_episodes,
        )

    # -- write ---------------------------------------------------------------------------------------------------------

    def write(self, engine: Engine, listener: Listener) -> Preprocessed:
        """Make the dataset, going on where an earlier run stopped."""
        make_writable(self.place.root)
        with self.place.lock() as lock:
            self.place.recover()
            existing = self.what_is_there()  # another process may have finished it meanwhile
            if existing is not None:
                return Preprocessed(self.place.id, self.place.path, "complete", existing)
            writer = self._writer()
            try:
                manifest, outlook, warnings = self._fill(writer, engine, listener)
                lock.check()
                writer.commit(manifest)
            except BaseException:
                engine.close()  # nothing may still be writing when the folder goes, or the lock
                if not (writer.remembered("part") or writer.remembered("statistics") or collected(writer.folder)):
                    remove_tree(writer.folder)  # nothing worth keeping for the next run
                raise
        seconds = time.monotonic() - self.began
        return Preprocessed(
            self.place.id, self.place.path, "written", manifest, seconds, outlook, warnings=tuple(warnings)
        )

    def _writer(self) -> DatasetWriter:
        try:
            return DatasetWriter(
                self.place,
                Schema(()),
                self.fingerprint,
                parts=len(self.chunks),
                restart=self.request.force,
                appended=True,
            )
        except DatasetExistsError as error:
            if "unfinished" not in str(error):
                raise
            message = (
                f"an unfinished {self.place.id} is there, begun with another function, input, version or other options"
            )
            hint = f"go on with what it was begun with, or start over with --force ({self.place.working})"
            raise DatasetExistsError(message, hint=hint) from error

    def _fill(self, writer: DatasetWriter, engine: Engine, listener: Listener) -> tuple[Manifest, Outlook, list[str]]:
        from .finish import Finish
        from .first_pass import collect_statistics
        from .probe import settle_layout

        statistics = collect_statistics(self, writer, engine, listener)
        self.setting = replace(
            self.setting,
            statistics=statistics,
            key=fingerprint({"run": self.fingerprint, "statistics": list(statistics)}),
        )
        layout, look = settle_layout(self, writer, engine, listener)
        writer.lay_out(layout.schema, layout.bulk, len(self.chunks))
        finished = writer.parts_done()
        share = sum(self.chunks[number].rows for number in finished) / self.episodes.steps
        steps = (
            round(self.episodes.steps * look["steps"] / look["steps_in"]) if look["steps_in"] else self.episodes.steps
        )
        disk = layout.step_bytes * steps * (1 - share)
        left = [chunk for chunk in self.chunks if chunk.index not in finished]
        # Parts lie beside the leaves they are appended to until it is their turn.
        waiting = min(disk, layout.step_bytes * self.size * (2 * engine.parallel + 2))
        outlook = self.outlook(steps, int(disk + waiting), len(finished))
        listener.outlook(outlook)
        check_space(self.place.path, outlook.disk_bytes, self.place.id)
        unread = (
            frozenset(look["untouched"]).intersection(layout.compressed)
            if self.setting.all_ignores_observations
            else frozenset()
        )
        check_leaves(self.path, self.input, unread)  # not decoded: damage must not get a new checksum
        finish = Finish(self, layout, look)
        for number, record in finished.items():
            finish.check_edges(number, record, finished)
        writer.merge()
        work, next_merge = Fill(self.setting, layout.schema, layout.shapes, unread), time.monotonic() + MERGE_EVERY
        for index, record in engine.run(work, left, listener.progress):
            finish.check_edges(index, record, finished)
            writer.part_done(index, record)
            finished[index] = record
            now = time.monotonic()
            if now > next_merge:
                writer.merge()
                next_merge = time.monotonic() + max(MERGE_EVERY, MERGE_SHARE * (time.monotonic() - now))
            listener.part_done(index)
        listener.stage("writing the manifest")
        writer.merge()
        manifest, warnings = finish.plan(writer, finished)
        manifest.provenance = {
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "rbdata_version": __version__,
            "location": str(self.path),
            "engine": engine.name,
        }
        return manifest, outlook, warnings
