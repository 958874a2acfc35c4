"""Runs a request: examines the functions, decides the leaves, has workers make the parts, and commits the dataset.

    examine      the functions are found and checked (`function`)
    statistics   first passes over all data, for functions that need them; the partial statistics of the sections are merged in
                 order, so that sums do not depend on the order in which workers finish
    try          the first result decides the leaves (`layout`); rows from all parts of the data decide codecs and dictionaries
    parts        a part for each chunk, in any order (`datasets.ingest.part`)
    commit       what the parts say of themselves becomes an episode table and a manifest with `lineage`; they are joined

All work is done by the tasks of `worker`; nothing here imports torch. Parts that are there are not made again, and
statistics are in the record of the run: after an interruption at any moment the same request continues, with the same bytes.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from .. import settings
from .._version import __version__
from ..datasets.cleanup import leftovers_of, remove_leftovers
from ..datasets.ingest.block import Block
from ..datasets.ingest.commit import episodes_of
from ..datasets.ingest.dictionary import dictionary_mark, has_dictionaries, store_dictionaries
from ..datasets.ingest.part import PartTask, parts_of
from ..datasets.ingest.request import Estimate
from ..datasets.ingest.unit import Part, Unit
from ..datasets.workers import open_engine
from ..datasets.workers.task import Engine, OnBlock, do_task, usable_cpus
from ..errors import SchemaError, UnfinishedDatasetError, UsageError
from ..storage.codecs import PLAIN, codec_of
from ..storage.episodes import EpisodeTable
from ..storage.folder import DatasetPlace, check_id, check_is_text, check_space, make_writable, remove_tree
from ..storage.integrity import check_leaves
from ..storage.join import Piece, begin_join, is_joining, join
from ..storage.leaf import Leaf
from ..storage.lock import when_free
from ..storage.manifest import Manifest
from ..storage.schema import FLAGS
from ..storage.work import PART_RECORD, PARTS, Work, read_run
from .chunks import Chunk, cut_sections, split
from .function import Chain, examine, pickled, unpickled
from .layout import (
    Layout,
    Probe,
    choose_codec,
    choose_schema,
    nothing_left_error,
    shapes_of_schema,
    unchained_edges,
    unchained_error,
)
from .lineage import describe_input, leaf_changes, named_statistics, remaining_spaces
from .request import DryRun, Listener, Preprocessed, Request, Run, RunConfig

#: The module that does the work. It imports torch, so that workers are forked after it has been imported.
WORKER = f"{__package__}.worker"

#: Number of steps whose flags and rewards are read, and whose rewards are summed, at a time.
_BLOCK_STEPS = 1 << 20
#: Worker processes that are started without ``--procs``, and the sections from which built-in functions are worth them.
MAX_PROCS, LEAST_SECTIONS = 8, 8
#: Minimum number of pieces of a pass through other functions, if the data have that many batches or episodes.
LEAST_PIECES = 32
#: Sections that rows for a dictionary are taken from, and chunks that a dry run makes, at most.
_SAMPLED_SECTIONS, TRIED_CHUNKS = 16, 4

Record = Mapping[str, Any]


def preprocess(request: Request, listener: Listener | None = None, engine: Engine | None = None) -> Preprocessed:
    """Make a new dataset. Work that was finished before an error or KeyboardInterrupt is kept for the next run.

    ``engine`` is an open engine, for several runs in a row; it stays open, except after an error.

    Raises UsageError for invalid requests, FunctionError for what a function raises and for one that
    returns something else when it is called again, SchemaError for results that cannot be stored, WorkerLostError,
    DiskError, DatasetBusyError, DatasetExistsError, and what `datasets.local.find` raises for the
    input.
    """
    listener = listener or Listener()
    action = partial(_preprocess, request, listener, engine)
    return when_free(action, request.wait, listener.on_note, listener.on_stage)


def _preprocess(request: Request, listener: Listener, engine: Engine | None) -> Preprocessed:
    began = time.monotonic()
    check_is_text(request.dest)
    try:
        check_id(request.dest)
    except UsageError as error:
        parts = "/" in request.dest or not request.dest.isidentifier()
        hint = error.hint if parts else f"an id has two parts: my/{request.dest}"
        raise UsageError(f"--dest {request.dest!r} is not a dataset id", hint=hint) from error
    place = DatasetPlace(settings.root(request.root), request.dest)
    run = Run(request, place)
    if place.path.resolve() in {path.resolve() for path, _ in run.folders}:
        message = f"{request.dest} is the input: it cannot be written at the same time"
        raise UsageError(message, hint="give another --dest")
    existing = run.find_existing()
    if existing is not None:
        if not request.dry_run:
            with suppress(OSError):  # a root that cannot be written to
                remove_leftovers(leftovers_of(place), place.root)  # of a process that was killed at the very end
        return Preprocessed(place.id, place.path, "complete", existing)
    if not request.dry_run:
        place.lock().check_free()  # before workers are started
    with _workers(run, listener, engine) as workers:
        config = run.configure(workers.examine(run))
        make = _dry_run if request.dry_run else _make_dataset
        return replace(make(run, config, workers), seconds=time.monotonic() - began)


# -- workers -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Workers:
    """The engine that does the work of a run, ``here``, in this process, or elsewhere; and the listener to its progress."""

    engine: Engine
    here: bool
    listener: Listener

    def run(
        self,
        task: str,
        config: RunConfig,
        chunks: Sequence[Chunk],
        **options: Any,
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """The number of each chunk and what ``worker.TASK(applier, chunk, on_block, **options)`` returns, as they finish."""
        work = partial(_do, task, self.given(config), **options)
        return self.engine.run(work, [self.named(config, chunk) for chunk in chunks], lambda progress: None)

    def given(self, config: RunConfig) -> RunConfig | bytes:
        """What the work gets: pickled here, where errors are the user's."""
        return config if self.here else pickled(config)

    def named(self, config: RunConfig, chunk: Chunk) -> Chunk:
        """A chunk with the names of the functions."""
        return replace(chunk, functions=", ".join(config.chain.names))

    def examine(self, run: Run) -> Chain:
        """The functions of a run, found in a worker. Raises as `function.examine`."""
        request = run.request
        given = (tuple(request.functions), request.args, run.code, request.per)
        if self.here:
            return examine(*given)
        names = ", ".join(record["function"] for record in run.records)
        ((_, chain),) = self.engine.run(
            partial(_examine, pickled(given)), [Chunk(0, 0, 1, 0, 1, functions=names)], lambda progress: None
        )
        return chain["chain"]


def _do(task: str, config: RunConfig | bytes, chunk: Chunk, on_block: OnBlock, **options: Any) -> dict[str, Any]:
    from .worker import do

    return do(task, config, chunk, on_block, **options)


def _examine(given: bytes, chunk: object, on_block: object) -> dict[str, Any]:
    return {"chain": examine(*unpickled(given))}


@contextmanager
def _workers(run: Run, listener: Listener, engine: Engine | None) -> Iterator[Workers]:
    request = run.request
    procs = _choose_procs(run)
    here = engine is None and request.engine == "local" and procs == 0
    opened = engine or open_engine(request.engine, procs=procs, address=request.address, preload=[WORKER])
    opened.on_output = listener.on_output
    opened.prepare()
    try:
        yield Workers(opened, here, listener)
    finally:
        if engine is None:
            opened.close()
        if WORKER in sys.modules:  # the work was done here
            sys.modules[WORKER].close()


def _choose_procs(run: Run) -> int | None:
    """The number of worker processes; 0 is this process: for a debugger, and where built-in functions have little to do."""
    procs: int | None = settings.procs(run.request.procs)
    if run.request.engine != "local" or procs == 0:
        return procs
    steps = run.episodes.steps
    if procs is None and not run.runs_own_code and steps < LEAST_SECTIONS * run.section:
        return 0
    return min(procs or min(MAX_PROCS, usable_cpus()), -(-steps // run.chunk_size()))


# -- statistics, and the leaves of the result ------------------------------------------------------------------------------


def _collect_statistics(
    run: Run, config: RunConfig, sections: Sequence[Chunk], workers: Workers, work: Work | None = None
) -> RunConfig:
    """The configuration with the statistics of every function; each pass gets the results of the functions before it.

    Statistics are read from and added to the record of ``work``.
    """
    known: dict[str, Any] = (work.remembered("statistics") if work is not None else None) or {}
    for number, fits in enumerate(config.chain.fits):
        if not fits:
            continue
        statistics = list(config.statistics)
        if str(number) in known:
            statistics[number] = known[str(number)]
        else:
            # Other, possibly slow functions come first: more pieces, which also follow from the data alone.
            pieces = sections if not number or len(sections) >= LEAST_PIECES else _pieces(run, sections)
            found: dict[int, dict[str, Any]] = {}
            for index, arrays in workers.run("collect_statistics", config, pieces, number=number):
                found[index] = arrays
                label = config.chain.labels[number]
                workers.listener.on_stage(f"first pass for {label}, {len(found)} of {len(pieces)}")
            partials = [found[index] for index in sorted(found) if found[index]]
            if not partials:
                name = config.chain.names[number]
                raise SchemaError(f"there is nothing left for {name}: the functions before it dropped every episode")
            finish = workers.run("finish_statistics", config, pieces[:1], number=number, partials=partials)
            ((_, statistics[number]),) = finish
            if work is not None:
                known[str(number)] = statistics[number]
                work.remember("statistics", known)
        config = replace(config, statistics=tuple(statistics))
    return config


def _pieces(run: Run, sections: Sequence[Chunk]) -> Sequence[Chunk]:
    steps = -(-sum(section.rows for section in sections) // LEAST_PIECES)
    size = steps if run.whole_episodes else run.batch * -(-steps // run.batch)
    return cut_sections(sections, run.episodes, size, run.whole_episodes)


def _try_functions(run: Run, config: RunConfig, workers: Workers) -> Probe:
    """The result of the first batch, or of the first episodes that are not dropped (`worker.try_functions`).

    Raises SchemaError where every episode is dropped.
    """
    workers.listener.on_stage("trying the functions on the first steps")
    for section in run.sections:
        for _, record in workers.run("try_functions", config, [section]):
            probe: Probe | None = record["probe"]
            if probe is not None:
                return probe
    raise nothing_left_error(config.chain.names, run.manifest.id)


def _choose_layout(run: Run, config: RunConfig, probe: Probe, workers: Workers) -> tuple[Layout, dict[str, bytes]]:
    """Leaves, codecs and dictionaries (of the codecs that use one) for results like the first one."""
    request, before = run.request, run.manifest.schema
    choose = partial(choose_schema, probe.shapes, probe.unchained, before, ted=request.layout == "ted")
    schema = choose(codecs={})
    step_bytes = float(sum(leaf.row_bytes for leaf in schema.steps))
    codecs: dict[str, str] = {}
    dictionaries: dict[str, bytes] = {}
    for name in sorted({leaf.name for leaf in schema.states}.intersection(_passthrough_leaves(run, probe))):
        path, manifest = run.folders[0]
        codec = codec_of(manifest.schema[name])
        codecs[name], dictionaries[name] = codec.name, codec.read_dictionary(path)
        step_bytes += codec.stored_row_bytes(path, manifest.states)
    names = tuple(leaf.name for leaf in schema.states if leaf.name not in codecs)
    samples: dict[str, np.ndarray] = {}
    if names and request.codec != PLAIN:
        workers.listener.on_stage("sampling results")
        samples = _sample_results(run, config, names, workers)
    for name in names:
        rows = samples.get(name, np.zeros((0, schema[name].row_bytes), np.uint8))
        codecs[name], dictionaries[name], row_bytes = choose_codec(rows, request.codec)
        step_bytes += row_bytes
    schema = choose(codecs=codecs)
    used = {name: data for name, data in dictionaries.items() if codec_of(schema[name]).uses_dictionary}
    return Layout(schema, step_bytes), used


def _passthrough_leaves(run: Run, probe: Probe) -> list[str]:
    """The compressed leaves that no function changes and whose codec stays: their stored rows are copied."""
    codecs = {leaf.name: leaf.codec for leaf in run.manifest.schema}
    wanted = run.request.codec
    return [name for name in probe.passthrough if name in run.copyable and wanted in ("auto", codecs[name])]


def _undecoded_leaves(run: Run, config: RunConfig, probe: Probe, layout: Layout) -> frozenset[str]:
    """The compressed leaves that no function of the chain reads: they are copied without being decoded."""
    ignored = config.ignoring == len(config.chain.names)
    return frozenset(_passthrough_leaves(run, probe) if ignored else ()).intersection(layout.compressed)


def _sample_results(run: Run, config: RunConfig, names: tuple[str, ...], workers: Workers) -> dict[str, np.ndarray]:
    """Rows of results from all parts of the data, uint8 ``[n, row_bytes]`` by leaf."""
    sections = run.sections
    places = np.linspace(0, len(sections) - 1, min(len(sections), _SAMPLED_SECTIONS)).astype(int)
    sampled = [sections[place] for place in sorted(set(places.tolist()))]
    if len(sections) < _SAMPLED_SECTIONS and not run.whole_episodes:
        each = -(-_SAMPLED_SECTIONS // len(sections))  # small datasets give equally many rows
        edges = [np.linspace(one.start, one.stop, min(each, one.rows) + 1).astype(int).tolist() for one in sampled]
        spans = [(start, stop, one) for one, marks in zip(sampled, edges) for start, stop in pairwise(marks)]
        sampled = [Chunk(n, start, stop, one.first, one.last) for n, (start, stop, one) in enumerate(spans)]
    found = dict(workers.run("sample_results", config, sampled, names=names))
    rows = {name: [found[index][name] for index in sorted(found) if name in found[index]] for name in names}
    return {name: np.concatenate(parts) for name, parts in rows.items() if parts}


# -- dry runs ------------------------------------------------------------------------------------------------------------


def _dry_run(run: Run, config: RunConfig, workers: Workers) -> Preprocessed:
    """Make a few chunks in a temporary folder; the leaves before and after, and time and disk space for all chunks."""
    with TemporaryDirectory(prefix="rbdata-") as made:
        scratch = Path(made)
        config = replace(config, folder=scratch)
        # The statistics of the first batch, or of as many episodes, are good enough for an estimate.
        first = split(run.sections[0], run.episodes, run.batch, run.whole_episodes)[:1]
        config = _collect_statistics(run, config, first, workers)
        probe = _try_functions(run, config, workers)
        layout, dictionaries = _choose_layout(run, config, probe, workers)
        store_dictionaries(scratch, {name: layout.schema[name] for name in dictionaries}, dictionaries, run.fingerprint)
        places = {round((len(run.chunks) - 1) * number / (TRIED_CHUNKS - 1)) for number in range(TRIED_CHUNKS)}
        tried = [run.chunks[place] for place in sorted(places)]
        tasks = _tasks(run, config, layout, frozenset(), tried, workers)
        done = workers.engine.run(do_task, tasks, lambda progress: None)
        records = [record["about"] for _, record in done]
        written = sum(path.stat().st_size for path in (scratch / PARTS).glob("*/*.*") if path.name != PART_RECORD)
    steps_in, steps_out = sum(chunk.rows for chunk in tried), sum(record["steps"] for record in records)
    share = steps_in / run.episodes.steps
    seconds = sum(record["seconds"] for record in records)
    estimate = run.estimate(round(steps_out / share), round(written / share), 0, measured=True)
    workers.listener.on_estimate(estimate)
    stored = {leaf.name: f"{leaf.kind} {leaf.codec}" for leaf in layout.schema}
    stored.update({"next/" + leaf.name: f"rows of {leaf.name}" for leaf in layout.schema.states})
    passes = 1 + sum(map(bool, config.chain.fits))
    found = DryRun(
        config.chain.names,
        config.chain.per,
        before=shapes_of_schema(run.manifest.schema),
        after=layout.shapes | dict.fromkeys(FLAGS, ("bool", (1,))),
        changed=None if run.whole_episodes else sorted({name for record in records for name in record["changed"]}),
        stored=stored,
        steps_in=steps_in,
        steps_out=steps_out,
        dropped=sum(record["dropped"] for record in records),
        nans=dict(sum((record["nans"] for record in records), Counter[str]())),
        seconds=seconds,
        estimated_seconds=seconds / share * passes / workers.engine.parallel,
    )
    return Preprocessed(run.place.id, run.place.path, "planned", None, 0.0, estimate, found)


# -- parts ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChunkUnit(Unit):
    """A chunk of the input, read through the functions."""

    config: RunConfig | bytes
    chunk: Chunk
    layout: Layout
    undecoded: frozenset[str]

    def blocks(self, resume: object, threads: int) -> Iterator[Block]:
        from .worker import blocks

        return blocks(self.config, self.chunk, self.layout, self.undecoded)


def _tasks(
    run: Run, config: RunConfig, layout: Layout, undecoded: frozenset[str], chunks: Sequence[Chunk], workers: Workers
) -> list[PartTask]:
    """The tasks that make the parts of chunks, in the folder of ``config``."""
    given: Any = workers.given(config)
    units = [
        ChunkUnit(
            chunk.index,
            workers.named(config, chunk).label,
            chunk.rows,
            run.fingerprint,
            given,
            chunk,
            layout,
            undecoded,
        )
        for chunk in chunks
    ]
    return [PartTask(unit, config.folder, layout.schema, 1) for unit in units]


def _make_dataset(run: Run, config: RunConfig, workers: Workers) -> Preprocessed:
    place = run.place
    make_writable(place.root)
    with place.lock():
        place.recover()
        existing = run.find_existing()  # another process may have finished it meanwhile
        if existing is not None:
            return Preprocessed(place.id, place.path, "complete", existing)
        work = _open_work(run)
        estimate, warnings = None, list[str]()
        try:
            if not is_joining(place):
                config = _collect_statistics(run, config, run.sections, workers, work)
                probe = _try_functions(run, config, workers)
                layout, dictionaries = _choose_layout(run, config, probe, workers)
                leaves = {name: layout.schema[name] for name in dictionaries}
                if not has_dictionaries(work.folder, [*leaves.values()], run.fingerprint):
                    store_dictionaries(work.folder, leaves, dictionaries, run.fingerprint)
                estimate, parts = _write_parts(run, config, layout, probe, work, workers)
                warnings = _begin_commit(run, config, layout, parts, workers)
            workers.listener.on_stage("committing")
            manifest = join(place)
        except BaseException:
            workers.engine.close()  # no worker may still write when the folder is removed or the lock released
            if not work.holds_work():
                remove_tree(work.folder)  # it holds nothing that the next run could use
            raise
    return Preprocessed(place.id, place.path, "written", manifest, estimate=estimate, warnings=tuple(warnings))


def _open_work(run: Run) -> Work:
    """The working folder of a run, which continues an interrupted run of the same request.

    Raises UnfinishedDatasetError if an interrupted run had another request.
    """
    before = read_run(run.place.working).get("request")
    request = run.request
    try:
        options: dict[str, Any] = {"restart": request.force, "command": request.command, "continues": run.is_identified}
        work = Work(run.place, run.fingerprint, **options)
    except UnfinishedDatasetError as error:
        differs = run.differs(before if isinstance(before, dict) else {})
        message = f"an unfinished {run.place.id} exists, started with another function, input, version or other options"
        raise UnfinishedDatasetError(message + differs, hint=error.hint) from error
    if not work.remembered("request"):
        work.remember("request", run.identity)  # for messages about how another request differs
    return work


def _write_parts(
    run: Run, config: RunConfig, layout: Layout, probe: Probe, work: Work, workers: Workers
) -> tuple[Estimate, list[Part]]:
    """Write the parts of all chunks that are not there. Returns the estimate and all parts."""
    listener = workers.listener
    undecoded = _undecoded_leaves(run, config, probe, layout)
    tasks = _tasks(run, config, layout, undecoded, run.chunks, workers)
    if not work.remembered("units"):
        work.remember("units", len(tasks))
    there = {task.index: part for task in tasks for part in _sound_parts(work.folder, task)}
    records: dict[int, Record] = {index: part.about for index, part in there.items()}
    estimate = _estimate(run, layout, probe, records, workers.engine)
    listener.on_estimate(estimate)
    for path, manifest in run.folders:  # copied bytes get new checksums: they must be intact
        check_leaves(path, manifest, undecoded)
    left = [task for task in tasks if task.index not in records]
    for index, record in workers.engine.run(do_task, left, listener.on_progress):
        records[index] = record["about"]
        for edge in (index, index + 1):
            _check_edge(run, config, layout, records, edge)
        listener.on_part_done(index)
    return estimate, [part for task in tasks for part in parts_of(work.folder, task.unit)]


def _sound_parts(folder: Path, task: PartTask) -> list[Part]:
    """The part of a chunk that an earlier run made, if its bytes are as they were and it has the dictionaries of now."""
    found, mark = parts_of(folder, task.unit), dictionary_mark(folder)
    for part in found:
        if part.record["dictionary"] != mark or not part.is_sound():
            remove_tree(part.folder)
    return [part for part in found if part.folder.exists()]


def _unchained_at(records: Mapping[int, Record], number: int) -> list[str]:
    """The observations of an episode that goes on in chunk ``number``, of which the last successors before it differ."""
    left, right = records.get(number - 1), records.get(number)
    if left is None or right is None:
        return []
    return unchained_edges(left["tail"], right["head"])


def _check_edge(run: Run, config: RunConfig, layout: Layout, records: Mapping[int, Record], number: int) -> None:
    """Raise SchemaError if a state leaf has other successors before a chunk than observations in it."""
    for name in _unchained_at(records, number):
        leaf = layout.schema.get(name)
        if leaf is not None and leaf.kind == "state":
            where = f"at step {run.chunks[number].start:,} of {run.manifest.id}"
            raise unchained_error(config.chain.names, name, where)


def _estimate(run: Run, layout: Layout, probe: Probe, records: Mapping[int, Record], engine: Engine) -> Estimate:
    """What remains to be done after the parts in ``records``."""
    total = run.episodes.steps
    done = sum(run.chunks[number].rows for number in records)
    given = sum(record["steps"] for record in records.values())
    # Without finished chunks, the estimate assumes that functions make no more steps of other episodes than of the first one.
    ratio = given / done if done else max(1.0, probe.steps_out / probe.steps_in)
    disk = layout.step_bytes * ratio * (total - done)
    # Rows lie on the disk twice while they are joined.
    longest = max(chunk.rows for chunk in run.chunks)
    waiting = min(disk, layout.step_bytes * longest * (2 * engine.parallel + 2))
    check_space(run.place.path, int(disk + waiting), run.place.id)
    return run.estimate(round(total * ratio), int(disk), len(records), measured=bool(done))


# -- from parts to a dataset ---------------------------------------------------------------------------------------------


def _begin_commit(run: Run, config: RunConfig, layout: Layout, parts: Sequence[Part], workers: Workers) -> list[str]:
    """Decide all files of the dataset: the episode table, the manifest. Returns warnings for the user."""
    about = [part.about for part in parts]
    if not any(one["steps"] for one in about):
        raise nothing_left_error(config.chain.names, run.manifest.id)
    sections = [(part, section) for part in parts for section in part.sections()]
    episodes = episodes_of(sections, layout.schema["next/reward"], _BLOCK_STEPS, lambda: run.place.id)
    firsts = np.cumsum([0, *(one["steps"] for one in about)])
    midway = [np.array(one["midway"], np.int64) + first for one, first in zip(about, firsts)]
    episodes = replace(episodes, midway=np.isin(episodes.start, np.concatenate(midway)))
    manifest, warnings = _make_manifest(run, config, layout, about, episodes)
    manifest.provenance = {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "rbdata_version": __version__,
        "location": run.where,
        "engine": workers.engine.name,
    }
    pieces = {name: [_piece(run, part, layout.schema[name]) for part in parts] for name in layout.filled}
    begin_join(run.place, manifest, episodes, pieces, layout.filled)
    return warnings


def _piece(run: Run, part: Part, leaf: Leaf) -> Piece:
    """The rows of a leaf in a part, none where every episode was dropped. Sections of the input have a checksum each."""
    section = run.chunks[part.unit].section
    found = (piece for one in part.sections() for piece in part.pieces(one, leaf, section))
    empty = None if codec_of(leaf).fixed_rows else np.zeros(0, np.int64)
    return next(found, None) or Piece(part.folder, 0, 0, "", 0, section, empty)


def _make_manifest(
    run: Run, config: RunConfig, layout: Layout, parts: Sequence[Record], episodes: EpisodeTable
) -> tuple[Manifest, list[str]]:
    """The manifest without its files, and warnings for the user. ``parts``: what the chunks say of themselves."""
    returns, lengths = episodes.summary()
    edges = (_unchained_at(dict(enumerate(parts)), number) for number in range(1, len(parts)))
    unchained = sorted({name for names in (*(part["unchained"] for part in parts), *edges) for name in names})
    counts = {
        "input_steps": run.episodes.steps,
        "dropped_episodes": sum(part["dropped"] for part in parts),
        "ended_episodes": sum(part["ended"] for part in parts),
        "nans": dict(sum((Counter(part["nans"]) for part in parts), Counter[str]())),
    }
    notes, warnings = _make_notes(len(run.episodes), counts, unchained)
    changed = {name for part in parts for name in part["changed"]}
    reading = run.request.read_options
    if any(part["returns"] for part in parts) or reading.n_step or reading.slice_len:
        changed.add("next/reward")  # slices have returns of their own
    kept, options = run.manifest, {"codec": run.request.codec, "layout": run.request.layout}
    of_sections = [list(some) for _, some in groupby(parts, lambda part: run.chunks[part["chunk"]].section)]
    manifest = Manifest(
        id=run.place.id,
        schema=layout.schema,
        steps=episodes.steps,
        episodes=len(episodes),
        source={"name": "preprocess", "options": options, "objects": []},
        parts=[
            {
                "name": section.describe(),
                "states": sum(part["steps"] + part["episodes"] for part in some),
                "rows": sum(part["steps"] for part in some),
            }
            for section, some in zip(run.sections, of_sections)
        ],
        spaces={} if run.whole_episodes else remaining_spaces(kept, layout.shapes, changed),
        counts=counts,
        notes=notes,
        returns=returns,
        lengths=lengths,
        licence=kept.licence,
        citation=kept.citation,
        lineage=_make_lineage(run, config, layout, changed, unchained),
    )
    return manifest, warnings


def _make_notes(episodes: int, counts: Mapping[str, Any], unchained: Sequence[str]) -> tuple[list[str], list[str]]:
    """Notes for the manifest, and the subset that are warnings."""
    notes, warnings = [], []
    if counts["dropped_episodes"]:
        notes.append(f"{counts['dropped_episodes']:,} of {episodes:,} episodes were dropped")
    if counts["ended_episodes"]:
        notes.append(f"{counts['ended_episodes']:,} episodes whose last step was not done were truncated there")
    if unchained:
        names = ", ".join(unchained)
        notes.append(f"the successor of {names} is not that of the following step: slices and stacks make no sense")
    if counts["nans"]:
        by_leaf = ", ".join(f"{number:,} in {name}" for name, number in sorted(counts["nans"].items()))
        warnings.append(f"NaN values that were not in the input: {by_leaf}")
    return [*notes, *warnings], warnings


def _make_lineage(
    run: Run, config: RunConfig, layout: Layout, changed: set[str], unchained: Sequence[str]
) -> dict[str, Any]:
    chain, count = config.chain, len(config.chain.names)
    kept = ("args", "version", "batch", "windows", "num_frames", "seed", "versions")
    return {
        "input": describe_input(run.manifest),
        "functions": [{**record, "args": args} for record, args in zip(run.records, chain.args)],
        **({"arguments": run.records[count:]} if run.records[count:] else {}),
        "per": chain.per,
        **{key: run.identity[key] for key in kept if key != "version" or run.identity[key] is not None},
        "statistics": named_statistics(chain.labels, config.statistics),
        "leaves": leaf_changes(shapes_of_schema(run.manifest.schema), layout.shapes, changed),
        "unchained": list(unchained),
        **({"fingerprint": run.fingerprint} if run.is_identified else {}),
    }
