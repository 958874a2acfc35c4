"""The work of one chunk, in a worker: write a part; before that try the functions, sample results, collect statistics.

All four are called by `planning.Workers`; they return the record that the engine yields.

A part holds the results of one chunk on disk: a file for each leaf, until it is appended to the new dataset. The rows of a
state leaf are in the order of states: the observation of each step, and after the last step of an episode its successor. The
successors of all other steps are the rows after them, which is checked here. Unchanged rows of the input are copied as they
are stored.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch

from ..datasets.user_code_old.opened_files import OpenedFiles
from ..datasets.workers.task import OnBlock
from ..errors import FunctionError
from ..storage.codecs import codec_of
from ..storage.durable import sync_folder
from ..storage.parts import PARTS
from ..storage.schema import Schema
from .apply import Applier, ResultBatch, isolated
from .chunks import Chunk, split
from .function import check_loaded, files_of_chain
from .functions.leaves import covers
from .layout import Shapes, observation_pairs
from .records import (
    ROWS_PER_SAMPLE,
    ProbeResult,
    collected_path,
    pack_counts,
    sample_path,
    save_arrays,
    unchained_error,
)
from .request import RunConfig
from .result import (
    Columns,
    ResultCounts,
    SourceRows,
    SourceStates,
    StepRun,
    as_bytes,
    check_same,
    differing,
    find_passthrough,
    find_unchained,
    leaves_of,
    shapes_of,
)


class PartWriter:
    """Writes the results of chunk ``number``, leaf by leaf, and checks successors.

    ``shapes``: the shapes of all results. ``source``: the input, whose rows may be copied for some leaves.
    """

    def __init__(self, config: RunConfig, source: Schema, schema: Schema, shapes: Shapes, number: int) -> None:
        self._names, self._folder = config.chain.names, config.folder
        self._leaves = [leaf for leaf in schema if leaf.constant is None]
        self._sinks = {leaf.name: codec_of(leaf).open_appender(self._folder, number) for leaf in self._leaves}
        self._states = {leaf.name for leaf in schema.states}
        #: Leaves with the codec and dictionary of the input, whose unchanged rows are copied.
        self._copyable: set[str] = set()
        for leaf in schema.states:
            old, stored = source.get(leaf.name), config.copyable.get(leaf.name)
            if old is not None and stored is not None and codec_of(leaf).is_like(self._folder, old, stored):
                self._copyable.add(leaf.name)
        self._pairs = observation_pairs(shapes)
        self._unchained: set[str] = set()
        self._steps = 0
        #: The first observations, the last successors, and whether the last step is done.
        self._first: dict[str, torch.Tensor] = {}
        self._last: dict[str, torch.Tensor] = {}
        self._done = True

    def add(self, columns: Columns, where: str, source: SourceStates | None) -> set[str]:
        """Append rows. ``where`` describes them in messages; ``source``: the states of the input that the rows may equal.

        Leaves that were not decoded have no columns, and are copied. Returns the leaves that are copied. Raises ResultError
        for successors of a state leaf that are not the observation of the following step.
        """
        done = columns["next/done"].view(-1)
        copied: dict[str, SourceRows] = {}
        runs: list[StepRun] = []
        if source is not None and self._copyable:
            names, runs = find_passthrough(source, columns, self._copyable)
            copied = {name: source.leaves[name] for name in names}
        self._check_chain(columns, done, where, copied)
        ends = done.nonzero().squeeze(1)
        for leaf in self._leaves:
            if leaf.name in copied:
                states = copied[leaf.name]
                for run in runs:  # with the final state where an episode ends
                    first = states.first + run.first
                    last = first + run.stop - run.start + int(done[run.stop - 1])
                    self._sinks[leaf.name].copy(states.leaf, first, last)
                continue
            rows = columns[leaf.name]
            if leaf.kind == "state":
                rows = _in_state_order(rows, columns["next/" + leaf.name], done, ends)
            self._sinks[leaf.name].append(as_bytes(rows))
        self._steps += len(done)
        return set(copied)

    def _check_chain(self, columns: Columns, done: torch.Tensor, where: str, copied: Mapping[str, SourceRows]) -> None:
        unchanged = {path for name in copied for path in (name, "next/" + name)}
        unchained = find_unchained({path: rows for path, rows in columns.items() if path not in unchanged}, done)
        for name in self._pairs:
            if name not in columns:
                continue  # it was not decoded
            if not self._done and not _is_same(self._last[name], columns[name][0]):
                unchained.setdefault(name, -1)
            self._first.setdefault(name, columns[name][0].clone())
            self._last[name] = columns["next/" + name][-1].clone()
        self._done = bool(done[-1])
        for name, row in unchained.items():
            if name in self._states:
                raise unchained_error(self._names, name, f"at row {row + 1} of {where}")
        self._unchained.update(unchained)

    def finish(self) -> dict[str, Any]:
        """Close the files. Returns ``leaves`` (the records of the sinks), ``steps``, ``unchained``, ``edges`` (hashes of the
        first observations and the last successors) and ``open`` (whether the last step is not done)."""
        leaves = {name: sink.finish(sync=False) for name, sink in self._sinks.items()}
        sync_folder(self._folder / PARTS)
        edges = {name: [_hash_row(self._first[name]), _hash_row(self._last[name])] for name in self._first}
        return {
            "leaves": leaves,
            "steps": self._steps,
            "unchained": sorted(self._unchained),
            "edges": edges,
            "open": not self._done,
        }

    def abandon(self) -> None:
        for sink in self._sinks.values():
            sink.abandon()


def _is_same(successor: torch.Tensor, row: torch.Tensor) -> bool:
    alike = (successor.shape, successor.dtype) == (row.shape, row.dtype)
    return alike and not bool(differing(successor[None], row[None]))


def _in_state_order(
    rows: torch.Tensor, successors: torch.Tensor, done: torch.Tensor, ends: torch.Tensor
) -> torch.Tensor:
    """The root rows, with the successor inserted after the last row of each episode."""
    if not len(ends):
        return rows
    place = torch.arange(len(rows), device="cpu") + done.cumsum(0) - done.long()
    out = torch.empty(len(rows) + len(ends), *rows.shape[1:], dtype=rows.dtype, device="cpu")
    out[place] = rows
    out[place[ends] + 1] = successors[ends]
    return out


def _hash_row(row: torch.Tensor) -> str:
    return hashlib.blake2b(row.contiguous().numpy().tobytes(), digest_size=12).hexdigest()


#: Maximum number of episodes that are tried for the rows of a sampled chunk.
_EPISODES_PER_SAMPLE = 4
#: Maximum number of kept episodes that decide the leaves.
_MOST_EPISODES = 16

_opened: dict[tuple[str, str], Applier] = {}
#: The files that functions opened in this process in an attempt, the last one.
_files: dict[str, OpenedFiles] = {}


def open_applier(config: RunConfig, purpose: str) -> Applier:
    """The applier of a configuration for one ``purpose``; each process keeps the last one.

    Each purpose has its own copies of the functions: a trial or a first pass must not change the state (such as a counter) of
    the copies that make the data.
    """
    key = (config.key, purpose)
    if key not in _opened:
        _opened.clear()
        _opened[key] = Applier(config, _files_of(config))
    return _opened[key]


def _files_of(config: RunConfig) -> OpenedFiles:
    if config.attempt not in _files:
        _files.clear()
        _files[config.attempt] = OpenedFiles([*config.inputs, config.folder])
    return _files[config.attempt]


def opened_files(config: RunConfig) -> dict[str, str]:
    """The files that functions opened in this process, except their own code; see `datasets.user_code_old.opened_files`.

    Raises FunctionError for files that changed meanwhile, and if functions imported code other than the request recorded.
    """
    functions = config.chain.functions
    check_loaded(functions)
    own = {*files_of_chain(functions).values(), *(fn.identity.file for fn in functions)}
    found = _files_of(config).labelled(config.chain.folder)
    return {label: state for label, state in found.items() if state not in own}


def close_appliers() -> None:
    """Close the open appliers of this process."""
    _opened.clear()
    _files.clear()


def write_part(
    config: RunConfig, chunk: Chunk, on_block: OnBlock, schema: Schema, shapes: Shapes, undecoded: frozenset[str]
) -> dict[str, Any]:
    """Write the results of a chunk as a part. ``shapes`` are those that every result must have.

    The leaves ``undecoded`` are copied as they are stored, and functions do not get them.
    The record is that of `PartWriter.finish`, the fields of `ResultCounts`, ``dones``: how many episodes each episode of
    the chunk became, and where there are any ``lost_edges``, both as `records.pack_counts`; ``changed``: leaves with a
    space whose values are not those of the input; ``seconds``.
    """
    began = time.perf_counter()
    applier = open_applier(config, "data")
    name = config.chain.last_name
    part = PartWriter(config, applier.view.dataset.schema, schema, shapes, chunk.index)
    dones = np.zeros(chunk.last - chunk.first, np.int64)
    lost_edges = np.zeros_like(dones)
    counts, steps = ResultCounts(), 0
    expected = {path: shape for path, shape in shapes.items() if path.removeprefix("next/") not in undecoded}
    watched = _leaves_with_space(applier) - undecoded
    changed: set[str] = set()
    try:
        with isolated(applier):
            for batch in applier.apply(chunk, counts, undecoded=undecoded):
                if batch.columns:
                    check_same(batch.columns, expected, name, batch.where)
                    copied = part.add(batch.columns, batch.where, batch.source)
                    start = chunk.start + steps
                    changed |= _other_values(applier, batch, start, watched - changed - copied)
                low = batch.first - chunk.first
                dones[low : low + len(batch.dones)] += batch.dones
                if batch.lost_edges is not None:
                    lost_edges[low : low + len(batch.dones)] = batch.lost_edges
                steps += batch.steps_in
                on_block(steps, 0, 0)
        record = {**part.finish(), "dones": pack_counts(dones), "ended": counts.ended, "nans": counts.nans}
        if lost_edges.any():
            record["lost_edges"] = pack_counts(lost_edges)
        if changed:
            record["changed"] = sorted(changed)
        return {**record, "seconds": round(time.perf_counter() - began, 6)}
    except BaseException:
        part.abandon()
        raise


def _leaves_with_space(applier: Applier) -> frozenset[str]:
    """The leaves whose space holds for the result as long as a function of the user does not change them."""
    dataset = applier.view.dataset
    if applier.config.whole_episodes or not any(fn.runs_users_code for fn in applier.chain):
        return frozenset()  # of episodes no space is kept
    spaces = dataset.manifest.spaces
    return frozenset(leaf.name for leaf in dataset.schema if covers(spaces, leaf.name.removeprefix("next/")))


def _other_values(applier: Applier, batch: ResultBatch, start: int, names: Collection[str]) -> set[str]:
    """The leaves among ``names`` whose values in the result of the steps from ``start`` on are not those of the input."""
    rows = applier.view.dataset.rows
    stored = [name for name in names if rows[name].leaf.kind == "state"]
    same = find_passthrough(batch.source, batch.columns, stored)[0] if stored and batch.source is not None else []
    other = set(stored) - set(same)
    for name in set(names) - set(stored):
        found, before = batch.columns.get(name), rows[name].block(start, start + batch.steps_in)
        is_like = found is not None and (found.shape, found.dtype) == (before.shape, before.dtype)
        if not is_like or differing(before, batch.columns[name]).any():
            other.add(name)
    return other


def try_functions(config: RunConfig, section: Chunk, on_block: OnBlock) -> dict[str, Any]:
    """Apply the functions to the first batch of a section, or to its first episodes until one is kept; write nothing.

    Episodes are tried until one is kept that has two steps, so that its successors can be compared, at most
    _MOST_EPISODES of those that are kept. Then a batch or an episode of about the mean length is applied once more to
    measure the time, because the first call may load or compile something.

    Returns ``{probe}``: a `ProbeResult`, None where every episode was dropped.
    """
    applier = open_applier(config, "trial")
    counts, shapes = ResultCounts(), Shapes()
    unchained: dict[str, int] = {}
    changed: list[str] | None = None
    passthrough: list[str] = []
    kept = steps_in = steps_out = dropped = 0
    with isolated(applier):
        size = 1 if config.whole_episodes else config.batch
        spans = split(section, applier.view.episodes, size, config.whole_episodes)
        for span in spans:
            began = time.perf_counter()
            (batch,) = applier.apply(span, counts, map_states=False)
            seconds = time.perf_counter() - began
            if not steps_in:
                _check_draws(applier, span)
            steps_in += batch.steps_in
            on_block(steps_in, 0, 0)
            if not batch.columns:
                dropped += 1
                continue
            if not kept:
                shapes = shapes_of(batch.columns)
                passthrough = _compressed_passthrough(applier, batch)
                if not config.whole_episodes:
                    changed = _changed_leaves(applier, span, batch.columns)
            check_same(batch.columns, shapes, config.chain.last_name, batch.where)
            done = batch.columns["next/done"].view(-1)
            unchained = {**find_unchained(batch.columns, done), **unchained}
            steps_out += len(done)
            kept += 1
            if not config.whole_episodes or not bool(done[:-1].all()) or kept == _MOST_EPISODES:
                break
        before = shapes_of(leaves_of(applier.view.read(section.start, section.start + 1)))
        if not kept:
            return {"probe": None}
        if config.whole_episodes:  # the first one whose length is nearest to the mean
            mean = sum(span.rows for span in spans) / len(spans)
            span = min(spans, key=lambda span: abs(span.rows - mean))
        step_seconds = _measure(applier, span, seconds)
    found = (before, shapes, unchained, changed, passthrough, steps_in, steps_out, dropped, counts.nans, step_seconds)
    return {"probe": ProbeResult(*found)}


def _measure(applier: Applier, span: Chunk, seconds: float) -> float:
    """Seconds per step, measured on a batch or an episode; on a piece of the batch if it took more than one second before."""
    if seconds > 1 and not applier.config.whole_episodes:
        span = split(span, applier.view.episodes, max(1, span.rows // 16), False)[0]
    began = time.perf_counter()
    for _ in applier.apply(span, ResultCounts()):
        pass
    return (time.perf_counter() - began) / span.rows


def _check_draws(applier: Applier, span: Chunk) -> None:
    """Raise FunctionError if functions that were called with these steps draw other numbers from generators of their own when
    they are called with them again: they draw once what they keep, such as a random projection, which would be another one in
    every process.
    """
    drawn = applier.own_generators.states
    if not drawn:
        return
    for _ in applier.apply(span, ResultCounts(), map_states=False):
        pass
    if applier.own_generators.states != drawn:
        name = applier.config.chain.last_name
        message = f"{name} draws other numbers from its random generator when it is called again with the same steps"
        hint = "draw what all calls use when the function or its object is made, not in the first call"
        raise FunctionError(message, hint=hint)


def _compressed_passthrough(applier: Applier, batch: ResultBatch) -> list[str]:
    """The compressed leaves of a batch that no function changed."""
    if batch.source is None:
        return []
    compressed = [leaf.name for leaf in applier.view.dataset.schema.states if not codec_of(leaf).fixed_rows]
    return find_passthrough(batch.source, batch.columns, compressed)[0]


def _changed_leaves(applier: Applier, chunk: Chunk, columns: Columns) -> list[str]:
    """The leaves of input and result that differ in the first batch."""
    before = leaves_of(applier.view.read(chunk.start, chunk.start + len(columns["next/done"])))
    old, new = shapes_of(before), shapes_of(columns)
    return sorted(
        path
        for path in new
        if path in before and (new[path] != old[path] or bool(differing(before[path], columns[path]).any()))
    )


def sample_results(config: RunConfig, chunk: Chunk, on_block: OnBlock, names: tuple[str, ...]) -> dict[str, Any]:
    """Write a few rows of the leaves ``names`` of the results, one file each, for codecs and dictionaries."""
    applier = open_applier(config, "trial")
    with isolated(applier):
        if config.whole_episodes:
            columns = _sample_episodes(applier, chunk)
        else:
            count = min(ROWS_PER_SAMPLE, chunk.rows)
            steps = torch.linspace(chunk.start, chunk.stop - 1, count, dtype=torch.float64, device="cpu").long()
            columns = applier.apply_to_steps(steps)
    for name in names:
        rows = columns.get(name)
        data = as_bytes(rows) if rows is not None else np.zeros((0, 1), np.uint8)
        save_arrays(sample_path(config.folder, name, chunk.index), {"rows": data})
    on_block(chunk.rows, 0, 0)
    return {}


def _sample_episodes(applier: Applier, chunk: Chunk) -> Columns:
    """Rows of the first few episodes of a chunk; none where all of them are dropped."""
    last = min(chunk.first + _EPISODES_PER_SAMPLE, chunk.last)
    few = Chunk(chunk.index, chunk.start, int(applier.view.episodes.starts[last]), chunk.first, last)
    for batch in applier.apply(few, ResultCounts()):
        if batch.columns:
            rows = len(batch.columns["next/done"])
            chosen = torch.linspace(0, rows - 1, min(ROWS_PER_SAMPLE, rows), dtype=torch.float64, device="cpu").long()
            return {name: tensor[chosen] for name, tensor in batch.columns.items()}
    return {}


def collect_statistics(config: RunConfig, chunk: Chunk, on_block: OnBlock, number: int) -> dict[str, Any]:
    """Write the partial statistics for function ``number``, merged in the order of batches or episodes."""
    applier = open_applier(config, f"first pass {number}")
    fn = config.chain.functions[number]
    fit = fn.fit
    assert fit is not None
    merged: dict[str, torch.Tensor] | None = None
    with isolated(applier):
        for td, where in applier.apply_first(number, chunk):
            with applier.guard(fn.name, where):
                partial = fit.collect(td, **fn.args)
                merged = partial if merged is None else fit.merge(merged, partial)
    arrays = {} if merged is None else {name: tensor.numpy() for name, tensor in merged.items()}
    save_arrays(collected_path(config.folder, number, chunk.index), arrays, json.dumps(opened_files(config)))
    on_block(chunk.rows, 0, 0)
    return {}
