"""Runs a request through the modules of this package, in the order that the package lists.

Workers write parts in any order; the parts are appended in the order of the chunks. The journal of the working folder
(`storage.writer`) records all finished work and the size of the chunks: after an interruption at any moment the same request
continues from the journal and produces the same bytes. The last step (`finish`) turns the records of all parts into an
episode table and a manifest.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import settings
from .._version import __version__
from ..datasets.cleanup import leftovers_of, remove_leftovers
from ..datasets.ingest.request import Estimate
from ..datasets.local import find
from ..datasets.user_code_old.opened_files import WRITTEN, differing
from ..datasets.user_code_old.process_state import CallerSettings
from ..datasets.workers import open_engine
from ..datasets.workers.task import Engine, usable_cpus
from ..errors import DamagedDatasetError, UnfinishedDatasetError, UsageError
from ..storage.episodes import CUT, TERMINATED, TRUNCATED, EpisodeTable
from ..storage.folder import JOURNAL, DatasetPlace, check_id, check_is_text, check_space, make_writable, remove_tree
from ..storage.integrity import check_leaves
from ..storage.journal import Journal
from ..storage.lock import when_free
from ..storage.manifest import Manifest
from ..storage.schema import Schema
from ..storage.writer import DatasetWriter
from .chunks import Chunk, choose_sizes
from .function_chain import FunctionChain, examine_functions, examine_in_worker
from .functions.lookup import check_session
from .layout import Layout
from .lineage import describe_changes, describe_input, leaf_changes, named_statistics, remaining_spaces
from .planning import WORKER, FilesOfRun, Workers, collect_statistics, dry_run, passthrough_leaves, prepare_layout
from .records import FIRST, LAST, ProbeResult, nothing_left_error, unchained_error, unpack_counts
from .request import Input, Listener, Preprocessed, Request, RunContext, listed, make_context

#: Number of steps whose flags and rewards are read at a time.
_BLOCK_STEPS = 1 << 20

Record = Mapping[str, Any]


def _unchained_of(context: RunContext, layout: Layout, records: Mapping[int, Record], number: int) -> set[str]:
    """The observations whose successors differ from the observation of the following step, in the part of chunk ``number``
    and at its edges. Raises ResultError if a state leaf has other successors."""
    unchained = set(records[number]["unchained"])
    for before in (number - 1, number):
        left, right = records.get(before), records.get(before + 1)
        if left is None or right is None or not left["open"]:
            continue
        for name in left["edges"]:
            if left["edges"][name][1] != right["edges"][name][0]:
                unchained.add(name)
                leaf = layout.schema.get(name)
                if leaf is not None and leaf.kind == "state":
                    where = f"at step {context.chunks[before + 1].start:,} of {context.input.id}"
                    raise unchained_error(context.config.chain.names, name, where)
    return unchained


def make_manifest(
    context: RunContext,
    layout: Layout,
    probe: ProbeResult,
    unchained: set[str],
    writer: DatasetWriter,
    records: Mapping[int, Record],
) -> tuple[Manifest, list[str]]:
    """Write the episode table and the constant leaves. Returns the manifest, and warnings for the user."""
    parts = [records[chunk.index] for chunk in context.chunks]
    sections = context.chunks_of_sections
    steps = sum(part["steps"] for part in parts)
    if not steps:
        raise nothing_left_error(context.config.chain.names, context.input.id)
    columns = writer.columns()
    try:
        columns.rows = steps
        files = columns.close()
    finally:
        columns.abandon()
    # An episode of the view may lie in several chunks and become several episodes.
    dones, lost_edges, states = np.zeros(len(context.episodes), np.int64), np.zeros(len(context.episodes), np.int64), []
    for chunk, part in zip(context.chunks, parts):
        counts = unpack_counts(part["dones"])
        dones[chunk.first : chunk.last] += counts
        if "lost_edges" in part:
            lost_edges[chunk.first : chunk.last] |= unpack_counts(part["lost_edges"])
        states.append(part["steps"] + int(counts.sum()))
    episodes = _make_episodes(context, layout, dones, lost_edges, writer, steps)
    writer.planned(files, episodes)
    returns, lengths = episodes.summary()
    nans: Counter[str] = Counter()
    for part in parts:
        nans.update(part["nans"])
    totals = {
        "input_steps": context.episodes.steps,
        "dropped_episodes": int((dones == 0).sum()),
        "ended_episodes": sum(part["ended"] for part in parts),
        "nans": dict(nans),
    }
    notes, warnings = _make_notes(len(dones), totals, unchained)
    if probe.changed is not None:  # the first batch need not be like the others
        later = {name for part in parts for name in part.get("changed", ())}
        probe = replace(probe, changed=sorted({*probe.changed, *later}))
    source, options = context.input, {"codec": context.request.codec, "layout": context.request.layout}
    manifest = Manifest(
        id=context.place.id,
        schema=layout.schema,
        steps=steps,
        episodes=len(episodes),
        source={"name": "preprocess", "options": options, "objects": []},
        parts=[
            {
                "name": section.describe(),
                "states": sum(states[first:last]),
                "rows": sum(part["steps"] for part in parts[first:last]),
            }
            for section, (first, last) in zip(context.sections, sections)
        ],
        spaces=remaining_spaces(source, probe),
        counts=totals,
        notes=notes,
        returns=returns,
        lengths=lengths,
        licence=source.licence,
        citation=source.citation,
        lineage=_make_lineage(context, probe, unchained, _other_returns(context, dones, episodes)),
    )
    return manifest, warnings


def _make_episodes(
    context: RunContext, layout: Layout, dones: np.ndarray, lost_edges: np.ndarray, writer: DatasetWriter, steps: int
) -> EpisodeTable:
    """The episode table from the flags that were written.

    ``dones``: how many episodes each episode of the view became; ``lost_edges``: see `records`.
    """
    view = context.episodes
    leaves = (layout.schema["next/" + name] for name in ("done", "terminated", "reward"))
    done, terminated, reward = (
        np.memmap(writer.folder / leaf.memmap, leaf.np_dtype, "r", shape=(steps,)) for leaf in leaves
    )
    ends, returns, open_return = [], [], 0.0
    for low in range(0, steps, _BLOCK_STEPS):
        here = np.flatnonzero(done[low : low + _BLOCK_STEPS])
        values = reward[low : low + _BLOCK_STEPS].astype(np.float64)
        if len(here):
            sums = np.add.reduceat(values[: here[-1] + 1], np.append(0, here[:-1] + 1))
            sums[0] += open_return  # of the episode that began before this block
            returns.append(sums)
            ends.append(here + low)
            open_return, values = 0.0, values[here[-1] + 1 :]
        open_return += float(values.sum())
    end = np.concatenate(ends)
    start = np.append(0, end[:-1] + 1).astype(np.int64)
    source = np.repeat(np.arange(len(view)), dones)
    is_last = np.zeros(len(end), bool)
    is_last[np.cumsum(dones)[dones > 0] - 1] = True
    is_first = np.append(True, is_last[:-1])
    outcome = np.where(terminated[end], TERMINATED, TRUNCATED)
    kept_end, kept_beginning = (lost_edges & LAST)[source] == 0, (lost_edges & FIRST)[source] == 0
    outcome[is_last & kept_end & view.cut[source] & (outcome == TRUNCATED)] = CUT
    midway = view.midway[source] & is_first & kept_beginning
    return EpisodeTable(start, end - start + 1, np.concatenate(returns), outcome.astype(np.uint8), midway)


def _other_returns(context: RunContext, dones: np.ndarray, made: EpisodeTable) -> bool:
    """Whether an episode became several, or has another return now. Those that were dropped, or cut, do not count.

    ``dones``: how many episodes each episode of the view became. Sums of the same rewards differ by rounding.
    """
    before = context.episodes.returns
    compared = np.isfinite(before) & (dones > 0)
    if (dones[compared] > 1).any():
        return True
    before, after = before[compared], made.returns[(np.cumsum(dones) - 1)[compared]]
    rounding = 1e-6 * max(1e-3, float(np.abs(before).max(initial=0.0)))
    return bool((np.abs(after - before) > rounding).any())


def _make_notes(episodes: int, counts: Mapping[str, Any], unchained: set[str]) -> tuple[list[str], list[str]]:
    """Notes for the manifest, and the subset that are warnings."""
    notes, warnings = [], []
    if counts["dropped_episodes"]:
        notes.append(f"{counts['dropped_episodes']:,} of {episodes:,} episodes were dropped")
    if counts["ended_episodes"]:
        notes.append(f"{counts['ended_episodes']:,} episodes whose last step was not done were truncated there")
    if unchained:
        names = ", ".join(sorted(unchained))
        notes.append(f"the successor of {names} is not that of the following step: slices and stacks make no sense")
    if counts["nans"]:
        by_leaf = ", ".join(f"{number:,} in {name}" for name, number in sorted(counts["nans"].items()))
        warnings.append(f"NaN values that were not in the input: {by_leaf}")
    return [*notes, *warnings], warnings


def _make_lineage(context: RunContext, probe: ProbeResult, unchained: set[str], other_returns: bool) -> dict[str, Any]:
    keys = ("functions", "per", "batch", "windows", "num_frames", "seed", "versions", "process")
    return {
        "input": describe_input(context.input),
        **{key: context.identity[key] for key in keys if key in context.identity},
        "statistics": named_statistics(context.config.chain.functions, context.config.statistics),
        "leaves": leaf_changes(probe, other_returns),
        "unchained": sorted(unchained),
        "fingerprint": context.config.run,
    }


MAX_PROCS = 8
#: Starting a process takes seconds: one is started per this many sections, or as many as the measured functions need.
SECTIONS_PER_PROCESS = 4
#: Seconds of work from which starting processes is worthwhile.
WORTH_PROCESSES = 6.0
#: Finished parts are appended after this many seconds, or this many times the duration of the last append if that is longer.
MERGE_EVERY, MERGE_SHARE = 0.25, 8.0


def preprocess(request: Request, listener: Listener | None = None, engine: Engine | None = None) -> Preprocessed:
    """Make a new dataset. Work that was finished before an error or KeyboardInterrupt is kept for the next run.

    ``engine`` is an open engine, for several runs in a row; it stays open, except after an error.

    Raises FunctionNotFoundError and UsageError for invalid requests, FunctionError for what a function raises, ResultError for
    results that cannot be stored, WorkerLostError, DiskSpaceError, RootNotWritableError, DatasetBusyError,
    DatasetExistsError, and what `datasets.local.find` raises for the input.
    """
    listener = listener or Listener()
    action = partial(_preprocess, request, listener, engine)
    return when_free(action, request.wait, listener.on_note, listener.on_stage)


def _preprocess(request: Request, listener: Listener, engine: Engine | None) -> Preprocessed:
    CallerSettings.check()
    root = settings.root(request.root)
    _check_dest(request.dest)
    place = DatasetPlace(root, request.dest)
    source = Input.at(find(request.id, request.root)) if request.dataset is None else Input.of(request.dataset)
    if place.path.resolve() in {path.resolve() for path, _ in source.folders}:
        message = f"{request.dest} is the input: it cannot be written at the same time"
        raise UsageError(message, hint="give another --dest")
    if not request.dry_run and not place.exists():
        place.lock().check_free()  # before functions are looked up and workers are started
    procs = _choose_procs(request, source.manifest)
    with _replaced_input(source), _open(engine, request, procs, listener) as opened:
        # If all work may be done already, functions are looked up here, without starting workers.
        will_work = engine is None and (request.force or not place.exists())
        if will_work:
            opened.prepare()
        chain = _examine(request, opened if will_work else None)
        began = time.monotonic()
        context = make_context(request, chain, source, place)
        existing = context.find_existing()
        if existing is not None:
            if not request.dry_run:
                with suppress(OSError):  # a root that cannot be written to
                    remove_leftovers(leftovers_of(place), place.root)  # of a process that was killed at the very end
            return Preprocessed(place.id, place.path, "complete", existing)
        if request.dry_run:
            outcome = dry_run(context, opened, listener, _useful_procs)
        else:
            outcome = _make_dataset(context, opened, listener, own_engine=engine is None)
        return replace(outcome, seconds=time.monotonic() - began)


@contextmanager
def _replaced_input(source: Input) -> Iterator[None]:
    """During a run, report failures that a replaced input caused as such, not as damage or as a wrong request."""
    try:
        yield
    except (UsageError, DamagedDatasetError) as error:
        if not source.replaced():
            raise
        message = f"{source.manifest.id} was replaced by a dataset with other content while this run read it"
        hint = "run it again with --force (force=True), to begin with the new content"
        raise UsageError(message, hint=hint) from error


def _check_dest(dest: str) -> None:
    check_is_text(dest)
    try:
        check_id(dest)
    except UsageError as error:
        hint = f"an id has two parts: my/{dest}" if "/" not in dest and dest.isidentifier() else error.hint
        raise UsageError(f"--dest {dest!r} is not a dataset id", hint=hint) from error


def _choose_procs(request: Request, source: Manifest) -> int | None:
    procs: int | None = settings.procs(request.procs)
    if request.engine != "local":
        return procs
    steps = min(source.steps, request.num_frames or source.steps)
    _, size = choose_sizes(request.batch_size, request.read_options.step_bytes(source.schema), steps)
    sections = -(-steps // size)
    return max(1, min(procs or _most_procs(), sections if procs else sections // SECTIONS_PER_PROCESS))


def _most_procs() -> int:
    return min(MAX_PROCS, usable_cpus())


@contextmanager
def _open(engine: Engine | None, request: Request, procs: int | None, listener: Listener) -> Iterator[Engine]:
    opened = engine or _open_engine(request, procs)
    opened.on_output = listener.on_output
    try:
        yield opened
    finally:
        if engine is None:
            opened.close()
        if WORKER in sys.modules:  # the work was done in this process
            from .worker import close_appliers

            close_appliers()


def _open_engine(request: Request, procs: int | None) -> Engine:
    return open_engine(request.engine, procs=procs, address=request.address, preload=[WORKER])


def _examine(request: Request, engine: Engine | None) -> FunctionChain:
    """The functions, looked up in this process or in a worker of a prepared engine."""
    folder = (request.folder or Path.cwd()).absolute()
    given = tuple(one for one in request.functions if isinstance(one, str))
    named = [value for name, value in request.args.items() if name.rpartition(".")[2] == "fn"]  # of relabel_rewards
    for text in (*given, *(one for one in named if isinstance(one, str))):
        check_session(text, folder)
    if engine is None or not engine.separate or len(given) < len(request.functions):
        return examine_functions(request.functions, request.args, folder, request.per)
    work = partial(examine_in_worker, given, request.args, folder, request.per)
    ((_, record),) = engine.run(work, [Chunk(0, 0, 0, 0, 0)], lambda progress: None)
    chain: FunctionChain = record["chain"]
    return chain


def _make_dataset(context: RunContext, engine: Engine, listener: Listener, *, own_engine: bool) -> Preprocessed:
    place = context.place
    make_writable(place.root)
    with place.lock() as lock:
        place.recover()
        existing = context.find_existing()  # another process may have finished it meanwhile
        if existing is not None:
            return Preprocessed(place.id, place.path, "complete", existing)
        writer = _open_writer(context)
        workers = Workers(engine, listener, FilesOfRun(writer))
        try:
            config = collect_statistics(context.config, context.sections, context.episodes, workers, writer)
            context = replace(context, config=config)
            layout, probe = prepare_layout(context, writer, workers)
            procs = _useful_procs(context, probe, engine) if own_engine else engine.parallel
            context = _choose_chunks(context, probe, procs, writer)
            with ExitStack() as stack:
                if procs > engine.parallel:
                    engine.close()
                    engine = stack.enter_context(closing(_open_engine(context.request, procs)))
                    engine.on_output = listener.on_output
                workers = replace(workers, engine=engine)
                estimate, records, unchained = _write_parts(context, layout, probe, writer, workers)
            listener.on_stage("committing")
            writer.merge()
            manifest, warnings = make_manifest(context, layout, probe, unchained, writer, records)
            opened = {label: state for label, state in sorted(workers.files.states.items()) if state != WRITTEN}
            manifest.lineage = {**(manifest.lineage or {}), **({"opened": opened} if opened else {})}
            manifest.provenance = {
                "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "rbdata_version": __version__,
                "location": context.source.describe(),
                "engine": engine.name,
            }
            lock.check()
            writer.commit(manifest, context.chunks_of_sections)
        except BaseException:
            engine.close()  # no worker may still write when the folder is removed or the lock released
            if not writer.holds_work():
                remove_tree(writer.folder)  # it holds nothing that the next run could use
            raise
    return Preprocessed(place.id, place.path, "written", manifest, estimate=estimate, warnings=tuple(warnings))


def _open_writer(context: RunContext) -> DatasetWriter:
    """The writer of a run, which continues an interrupted run.

    Raises UnfinishedDatasetError if that run had another request, or if the functions read files that have changed.
    """
    writer = _resume(context)
    edited = differing(FilesOfRun(writer).states, context.config.chain.folder)
    if edited and (context.request.force or not writer.holds_work()):
        context.place.discard_working()
        return _resume(context)
    if edited:
        message = f"an unfinished {context.place.id} exists, and files that the functions read have changed"
        hint = f"put them back, or start over with --force ({writer.folder})"
        raise UnfinishedDatasetError(message + listed(edited), hint=hint)
    return writer


def _resume(context: RunContext) -> DatasetWriter:
    before = Journal(context.place.working / JOURNAL).find("request").get(0, {}).get("identity")
    try:
        writer = DatasetWriter(
            context.place,
            Schema(()),
            context.config.run,
            restart=context.request.force,
            appended=True,
            command=context.request.command,
        )
    except UnfinishedDatasetError as error:
        name, changed = context.place.id, describe_changes(before, context.identity) if isinstance(before, dict) else []
        message = f"an unfinished {name} exists, started with another function, input, version or other options"
        raise UnfinishedDatasetError(message + listed(changed), hint=error.hint) from error
    if not writer.remembered("request"):
        writer.remember("request", {"identity": context.identity})  # for messages about how another request differs
    return writer


def _useful_procs(context: RunContext, probe: ProbeResult, engine: Engine) -> int:
    """The number of processes of this machine that suits the measured functions: for slow ones, more than the engine has."""
    procs = settings.procs(context.request.procs) or _most_procs()
    steps = context.episodes.steps
    pieces = len(context.episodes) if context.config.whole_episodes else -(-steps // context.config.batch)
    if context.request.engine != "local" or probe.step_seconds * steps < WORTH_PROCESSES:
        return engine.parallel
    return max(engine.parallel, min(procs, pieces))


def _choose_chunks(context: RunContext, probe: ProbeResult, parallel: int, writer: DatasetWriter) -> RunContext:
    """The run with its chunks: of the size that the journal states, or of a size chosen from the measured time per step."""
    known = writer.remembered("chunks").get(0)
    if known is None:
        known = {"steps": context.choose_chunk_steps(probe.step_seconds, parallel)}
        writer.remember("chunks", known)
    return context.with_chunks(known["steps"])


def _write_parts(
    context: RunContext, layout: Layout, probe: ProbeResult, writer: DatasetWriter, workers: Workers
) -> tuple[Estimate, Mapping[int, Record], set[str]]:
    """Write and append the parts of all chunks. Returns the estimate, the records of the parts by chunk, and the
    observations whose successor is not that of the following step."""
    config, chunks = context.config, context.chunks
    writer.set_schema(layout.schema, layout.filled, len(chunks))
    records = writer.parts_done()
    estimate = _estimate(context, layout, probe, records, workers.engine)
    workers.listener.on_estimate(estimate)
    undecoded = frozenset[str]()
    if config.ignores_observations == len(config.chain.functions):
        undecoded = frozenset(passthrough_leaves(context, probe)).intersection(layout.compressed)
    for path, manifest in context.source.folders:  # copied bytes get new checksums: they must be intact
        check_leaves(path, manifest, undecoded)
    unchained = {name for number in records for name in _unchained_of(context, layout, records, number)}
    writer.merge()
    how: dict[str, Any] = {"schema": layout.schema, "shapes": layout.shapes, "undecoded": undecoded}
    next_merge = time.monotonic() + MERGE_EVERY
    left = [chunk for chunk in chunks if chunk.index not in records]
    for index, record in workers.run("write_part", config, left, workers.listener.on_progress, **how):
        records[index] = record
        unchained |= _unchained_of(context, layout, records, index)
        record |= workers.files.new()
        writer.part_done(index, record)
        now = time.monotonic()
        if now > next_merge:
            writer.merge()
            next_merge = time.monotonic() + max(MERGE_EVERY, MERGE_SHARE * (time.monotonic() - now))
        workers.listener.on_part_done(index)
    return estimate, records, unchained


def _estimate(
    context: RunContext, layout: Layout, probe: ProbeResult, records: Mapping[int, Any], engine: Engine
) -> Estimate:
    """What remains to be done after the parts in ``records``."""
    total = context.episodes.steps
    done = sum(context.chunks[number].rows for number in records)
    given = sum(record["steps"] for record in records.values())
    # Without finished chunks, the estimate assumes that functions make no more steps of other episodes than of the first one.
    ratio = given / done if done else max(1.0, probe.steps_out / probe.steps_in)
    disk = layout.step_bytes * ratio * (total - done)
    # Parts take space beside the leaves until they are appended.
    longest = max(chunk.rows for chunk in context.chunks)
    waiting = min(disk, layout.step_bytes * longest * (2 * engine.parallel + 2))
    check_space(context.place.path, int(disk + waiting), context.place.id)
    return context.estimate(round(total * ratio), int(disk), len(records), measured=bool(done))
