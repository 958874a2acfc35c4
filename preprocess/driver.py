"""Runs a request through the modules of this package, in the order that the package lists.

Workers write parts in any order; the parts are appended in the order of the chunks. The journal of the working folder
(`storage.writer`) records them and the statistics of first passes: after an interruption at any moment the same request
continues from the journal and produces the same bytes; what comes before the parts is done again. The last step
(`_make_manifest`) turns the records of all parts into an episode table and a manifest.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from .. import settings
from .._version import __version__
from ..datasets.cleanup import leftovers_of, remove_leftovers
from ..datasets.local import find
from ..datasets.workers import open_engine
from ..datasets.workers.local_engine import LocalEngine
from ..datasets.workers.task import Engine, usable_cpus
from ..errors import UnfinishedDatasetError, UsageError
from ..storage.episodes import CUT, TERMINATED, TRUNCATED, EpisodeTable
from ..storage.folder import JOURNAL, DatasetPlace, check_id, check_is_text, check_space, make_writable, remove_tree
from ..storage.integrity import check_leaves
from ..storage.journal import Journal
from ..storage.lock import when_free
from ..storage.manifest import Manifest
from ..storage.schema import Schema
from ..storage.writer import DatasetWriter
from .chunks import FIRST, LAST, chunk_size
from .layout import Layout, Probe, nothing_left_error, unchained_error
from .lineage import describe_changes, describe_input, leaf_changes, named_statistics, remaining_spaces
from .planning import (
    WORKER,
    Workers,
    choose_layout,
    collect_statistics,
    dry_run,
    try_functions,
    undecoded_leaves,
)
from .request import Input, Listener, Preprocessed, Request, Run, RunConfig, listed

#: Number of steps whose flags and rewards are read at a time.
_BLOCK_STEPS = 1 << 20
#: Worker processes that are started without ``--procs``, and the sections from which built-in functions are worth them.
MAX_PROCS, LEAST_SECTIONS = 8, 8
#: Finished parts are appended after this many seconds, or this many times the duration of the last append if that is longer.
MERGE_EVERY, MERGE_SHARE = 0.25, 8.0

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
    _check_dest(request.dest)
    place = DatasetPlace(settings.root(request.root), request.dest)
    source = Input.at(find(request.id, request.root)) if request.dataset is None else Input.of(request.dataset)
    if place.path.resolve() in {path.resolve() for path, _ in source.folders}:
        message = f"{request.dest} is the input: it cannot be written at the same time"
        raise UsageError(message, hint="give another --dest")
    run = Run(request, source, place)
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
        make = dry_run if request.dry_run else _make_dataset
        return replace(make(run, config, workers), seconds=time.monotonic() - began)


def _check_dest(dest: str) -> None:
    check_is_text(dest)
    try:
        check_id(dest)
    except UsageError as error:
        hint = f"an id has two parts: my/{dest}" if "/" not in dest and dest.isidentifier() else error.hint
        raise UsageError(f"--dest {dest!r} is not a dataset id", hint=hint) from error


@contextmanager
def _workers(run: Run, listener: Listener, engine: Engine | None) -> Iterator[Workers]:
    request = run.request
    procs = _choose_procs(run)
    opened = engine or open_engine(request.engine, procs=procs, address=request.address, preload=[WORKER])
    opened.on_output = listener.on_output
    here = isinstance(opened, LocalEngine) and not opened.separate
    opened.prepare()
    try:
        yield Workers(opened, here, listener)
    finally:
        if engine is None:
            opened.close()
        if here and WORKER in sys.modules:
            from .worker import close

            close()


def _choose_procs(run: Run) -> int | None:
    """The number of worker processes; 0 is this process: for a debugger, and where built-in functions have little to do."""
    procs: int | None = settings.procs(run.request.procs)
    if run.request.engine != "local" or procs == 0:
        return procs
    steps = run.episodes.steps
    if procs is None and not run.runs_own_code and steps < LEAST_SECTIONS * run.section:
        return 0
    pieces = -(-steps // chunk_size(steps, run.batch, run.section, False))
    return min(procs or min(MAX_PROCS, usable_cpus()), pieces)


def _make_dataset(run: Run, config: RunConfig, workers: Workers) -> Preprocessed:
    place = run.place
    make_writable(place.root)
    with place.lock():
        place.recover()
        existing = run.find_existing()  # another process may have finished it meanwhile
        if existing is not None:
            return Preprocessed(place.id, place.path, "complete", existing)
        writer = _open_writer(run)
        try:
            config = collect_statistics(run, config, run.sections, workers, writer)
            probe = try_functions(run, config, workers)
            layout, dictionaries = choose_layout(run, config, probe, workers)
            for name, data in dictionaries.items():
                writer.dictionary(layout.schema[name], data)
            estimate, records, unchained = _write_parts(run, config, layout, probe, writer, workers)
            workers.listener.on_stage("committing")
            writer.merge()
            manifest, warnings = _make_manifest(run, config, layout, probe, unchained, writer, records)
            manifest.provenance = {
                "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "rbdata_version": __version__,
                "location": run.source.describe(),
                "engine": workers.engine.name,
            }
            writer.commit(manifest, run.chunks_of_sections)
        except BaseException:
            workers.engine.close()  # no worker may still write when the folder is removed or the lock released
            if not writer.holds_work():
                remove_tree(writer.folder)  # it holds nothing that the next run could use
            raise
    return Preprocessed(place.id, place.path, "written", manifest, estimate=estimate, warnings=tuple(warnings))


def _open_writer(run: Run) -> DatasetWriter:
    """The writer of a run, which continues an interrupted run of the same request.

    Raises UnfinishedDatasetError if an interrupted run had another request.
    """
    before = Journal(run.place.working / JOURNAL).find("request").get(0, {}).get("identity")
    try:
        writer = DatasetWriter(
            run.place,
            Schema(()),
            run.fingerprint,
            restart=run.request.force,
            appended=True,
            command=run.request.command,
            continues=run.is_identified,
        )
    except UnfinishedDatasetError as error:
        changed = describe_changes(before, run.identity) if isinstance(before, dict) else []
        message = f"an unfinished {run.place.id} exists, started with another function, input, version or other options"
        raise UnfinishedDatasetError(message + listed(changed), hint=error.hint) from error
    if not writer.remembered("request"):
        writer.remember("request", {"identity": run.identity})  # for messages about how another request differs
    return writer


def _write_parts(
    run: Run, config: RunConfig, layout: Layout, probe: Probe, writer: DatasetWriter, workers: Workers
) -> tuple[Any, Mapping[int, Record], set[str]]:
    """Write and append the parts of all chunks. Returns the estimate, the records of the parts by chunk, and the
    observations whose successor is not that of the following step."""
    listener = workers.listener
    writer.set_schema(layout.schema, layout.filled, len(run.chunks))
    records = writer.parts_done()
    estimate = _estimate(run, layout, probe, records, workers.engine)
    listener.on_estimate(estimate)
    undecoded = undecoded_leaves(run, config, probe, layout)
    for path, manifest in run.source.folders:  # copied bytes get new checksums: they must be intact
        check_leaves(path, manifest, undecoded)
    names = config.chain.names
    unchained = {name for number in records for name in _unchained_of(run, names, layout, records, number)}
    writer.merge()
    how: dict[str, Any] = {"schema": layout.schema, "shapes": layout.shapes, "undecoded": undecoded}
    next_merge = time.monotonic() + MERGE_EVERY
    left = [chunk for chunk in run.chunks if chunk.index not in records]
    for index, record in workers.run("write_part", config, left, listener.on_progress, **how):
        records[index] = record
        unchained |= _unchained_of(run, names, layout, records, index)
        writer.part_done(index, record)
        now = time.monotonic()
        if now > next_merge:
            writer.merge()
            next_merge = time.monotonic() + max(MERGE_EVERY, MERGE_SHARE * (time.monotonic() - now))
        listener.on_part_done(index)
    return estimate, records, unchained


def _estimate(run: Run, layout: Layout, probe: Probe, records: Mapping[int, Record], engine: Engine) -> Any:
    """What remains to be done after the parts in ``records``."""
    total = run.episodes.steps
    done = sum(run.chunks[number].rows for number in records)
    given = sum(record["steps"] for record in records.values())
    # Without finished chunks, the estimate assumes that functions make no more steps of other episodes than of the first one.
    ratio = given / done if done else max(1.0, probe.steps_out / probe.steps_in)
    disk = layout.step_bytes * ratio * (total - done)
    # Parts take space beside the leaves until they are appended.
    longest = max(chunk.rows for chunk in run.chunks)
    waiting = min(disk, layout.step_bytes * longest * (2 * engine.parallel + 2))
    check_space(run.place.path, int(disk + waiting), run.place.id)
    return run.estimate(round(total * ratio), int(disk), len(records), measured=bool(done))


# -- from parts to a dataset ---------------------------------------------------------------------------------------------


def _unchained_of(
    run: Run, names: Sequence[str], layout: Layout, records: Mapping[int, Record], number: int
) -> set[str]:
    """The observations whose successors differ from the observation of the following step, in the part of chunk ``number``
    and at its edges. Raises SchemaError if a state leaf has other successors."""
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
                    raise unchained_error(names, name, f"at step {run.chunks[before + 1].start:,} of {run.input.id}")
    return unchained


def _make_manifest(
    run: Run,
    config: RunConfig,
    layout: Layout,
    probe: Probe,
    unchained: set[str],
    writer: DatasetWriter,
    records: Mapping[int, Record],
) -> tuple[Manifest, list[str]]:
    """Write the episode table and the constant leaves. Returns the manifest, and warnings for the user."""
    parts = [records[chunk.index] for chunk in run.chunks]
    sections = run.chunks_of_sections
    steps = sum(part["steps"] for part in parts)
    if not steps:
        raise nothing_left_error(config.chain.names, run.input.id)
    columns = writer.columns()
    try:
        columns.rows = steps
        files = columns.close()
    finally:
        columns.abandon()
    # An episode of the view may lie in several chunks and become several episodes.
    dones, lost_edges, states = np.zeros(len(run.episodes), np.int64), np.zeros(len(run.episodes), np.int64), []
    for chunk, part in zip(run.chunks, parts):
        counts = np.array(part["dones"])
        dones[chunk.first : chunk.last] += counts
        if "lost_edges" in part:
            lost_edges[chunk.first : chunk.last] |= np.array(part["lost_edges"])
        states.append(part["steps"] + int(counts.sum()))
    episodes = _make_episodes(run, layout, dones, lost_edges, writer, steps)
    writer.planned(files, episodes)
    returns, lengths = episodes.summary()
    nans: Counter[str] = Counter()
    for part in parts:
        nans.update(part["nans"])
    totals = {
        "input_steps": run.episodes.steps,
        "dropped_episodes": int((dones == 0).sum()),
        "ended_episodes": sum(part["ended"] for part in parts),
        "nans": dict(nans),
    }
    notes, warnings = _make_notes(len(dones), totals, unchained)
    if probe.changed is not None:  # the first batch need not be like the others
        later = {name for part in parts for name in part.get("changed", ())}
        probe = replace(probe, changed=sorted({*probe.changed, *later}))
    source, options = run.input, {"codec": run.request.codec, "layout": run.request.layout}
    manifest = Manifest(
        id=run.place.id,
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
            for section, (first, last) in zip(run.sections, sections)
        ],
        spaces=remaining_spaces(source, probe),
        counts=totals,
        notes=notes,
        returns=returns,
        lengths=lengths,
        licence=source.licence,
        citation=source.citation,
        lineage=_make_lineage(run, config, probe, unchained, _other_returns(run, dones, episodes)),
    )
    return manifest, warnings


def _make_episodes(
    run: Run, layout: Layout, dones: np.ndarray, lost_edges: np.ndarray, writer: DatasetWriter, steps: int
) -> EpisodeTable:
    """The episode table from the flags that were written.

    ``dones``: how many episodes each episode of the view became; ``lost_edges``: see `records`.
    """
    view = run.episodes
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


def _other_returns(run: Run, dones: np.ndarray, made: EpisodeTable) -> bool:
    """Whether an episode became several, or has another return now. Those that were dropped, or cut, do not count.

    ``dones``: how many episodes each episode of the view became. Sums of the same rewards differ by rounding.
    """
    before = run.episodes.returns
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


def _make_lineage(
    run: Run, config: RunConfig, probe: Probe, unchained: set[str], other_returns: bool
) -> dict[str, Any]:
    chain, count = config.chain, len(config.chain.names)
    kept = ("args", "version", "batch", "windows", "num_frames", "seed", "versions")
    return {
        "input": describe_input(run.input),
        "functions": [{**record, "args": args} for record, args in zip(run.records, chain.args)],
        **({"arguments": run.records[count:]} if run.records[count:] else {}),
        "per": chain.per,
        **{key: run.identity[key] for key in kept if key != "version" or run.identity[key] is not None},
        "statistics": named_statistics(chain.labels, config.statistics),
        "leaves": leaf_changes(probe, other_returns),
        "unchained": sorted(unchained),
        **({"fingerprint": run.fingerprint} if run.is_identified else {}),
    }
