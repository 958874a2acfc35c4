"""The work of one chunk, in a worker: write a part; before that try the functions, sample results, collect statistics.

`do` calls one of them for the process that distributes the work; they return the record that the engine yields.

A part holds the results of one chunk on disk: a file for each leaf, until it is appended to the new dataset. The rows of a
state leaf are in the order of states: the observation of each step, and after the last step of an episode its successor. The
successors of all other steps are the rows after them, which is checked here. Unchanged rows of the input are copied as they
are stored.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ..datasets.workers.task import OnBlock
from ..errors import FunctionError
from ..storage.codecs import codec_of
from ..storage.durable import sync_folder
from ..storage.parts import PARTS
from ..storage.schema import Schema
from .apply import Applier, ResultBatch
from .chunks import Chunk, split
from .function import unpickled
from .functions.leaves import covers
from .layout import Probe, Shapes, observation_pairs, unchained_error
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

        Leaves that were not decoded have no columns, and are copied. Returns the leaves that are copied. Raises SchemaError
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


#: Number of rows of results from each sampled chunk, of the first few of its episodes.
ROWS_PER_SAMPLE, _EPISODES_PER_SAMPLE = 128, 4
#: Maximum number of kept episodes that decide the leaves.
_MOST_EPISODES = 16


def do(task: str, config: RunConfig | bytes, chunk: Chunk, on_block: OnBlock, **options: Any) -> dict[str, Any]:
    """One of the functions below for a chunk. A process keeps the input and the functions of the last ``config``, which is
    pickled where they are another process's."""
    applier = _unpickled(config) if isinstance(config, bytes) else _opened(config)
    work: Callable[..., dict[str, Any]] = _TASKS[task]
    with _one_thread(), torch.no_grad():
        record = work(applier, chunk, on_block, **options)
    applier.view.release()
    return record


@lru_cache(maxsize=1)
def _unpickled(config: bytes) -> Applier:
    return Applier(unpickled(config))


_here: list[tuple[RunConfig, Applier]] = []


def _opened(config: RunConfig) -> Applier:
    if not _here or _here[0][0] is not config:
        _here[:] = [(config, Applier(config))]
    return _here[0][1]


def close() -> None:
    """Close the input and forget the functions of a run in this process."""
    _here.clear()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Processes run in parallel: torch uses one thread in each."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def write_part(
    applier: Applier, chunk: Chunk, on_block: OnBlock, schema: Schema, shapes: Shapes, undecoded: frozenset[str]
) -> dict[str, Any]:
    """Write the results of a chunk as a part. ``shapes`` are those that every result must have.

    The leaves ``undecoded`` are copied as they are stored, and functions do not get them. The first chunk is made twice, and
    must come out the same.

    The record is that of `PartWriter.finish`, the fields of `ResultCounts`, ``dones``: how many episodes each episode of
    the chunk became, and where there are any ``lost_edges`` (`ResultBatch`); ``changed``: leaves with a space whose values
    are not those of the input; ``seconds``.
    """
    began = time.perf_counter()
    part = PartWriter(applier.config, applier.view.dataset.schema, schema, shapes, chunk.index)
    dones = np.zeros(chunk.last - chunk.first, np.int64)
    lost_edges = np.zeros_like(dones)
    counts, steps = ResultCounts(), 0
    expected = {path: shape for path, shape in shapes.items() if path.removeprefix("next/") not in undecoded}
    watched = _leaves_with_space(applier) - undecoded
    changed: set[str] = set()
    repeated = chunk.index == 0 and applier.runs_own_code
    digests: list[bytes] = []
    try:
        for batch in applier.apply(chunk, counts, undecoded):
            if repeated:
                digests.append(batch.digest())
            if batch.columns:
                check_same(batch.columns, expected, applier.name, batch.where)
                copied = part.add(batch.columns, batch.where, batch.source)
                changed |= _other_values(applier, batch, chunk.start + steps, watched - changed - copied)
            low = batch.first - chunk.first
            dones[low : low + len(batch.dones)] += batch.dones
            if batch.lost_edges is not None:
                lost_edges[low : low + len(batch.dones)] = batch.lost_edges
            steps += batch.steps_in
            on_block(steps, 0, 0)
        seconds = round(time.perf_counter() - began, 6)
        if repeated:
            _check_again(applier, chunk, undecoded, digests)
        record = {**part.finish(), "dones": dones.tolist(), "ended": counts.ended, "nans": counts.nans}
    except BaseException:
        part.abandon()
        raise
    if lost_edges.any():
        record["lost_edges"] = lost_edges.tolist()
    return {**record, "changed": sorted(changed), "seconds": seconds}


def _check_again(applier: Applier, chunk: Chunk, undecoded: frozenset[str], digests: list[bytes]) -> None:
    """Raise FunctionError unless the functions return the same for a chunk as before, bit by bit."""
    for batch, before in zip(applier.apply(chunk, ResultCounts(), undecoded), digests):
        if batch.digest() != before:
            names = ", ".join(fn.name for fn in applier.chain if fn.is_own)
            message = f"{names} returned something else when it was called again, for {batch.where}"
            hint = (
                "a function must keep nothing from call to call, and draw random numbers from the global generators of torch, "
                "numpy and Python, or from an argument called generator: a torch.Generator that is seeded for every batch"
            )
            raise FunctionError(message, hint=hint)


def _leaves_with_space(applier: Applier) -> frozenset[str]:
    """The leaves whose space holds for the result as long as a function of the user does not change them."""
    dataset = applier.view.dataset
    if applier.config.whole_episodes or not applier.runs_own_code:
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


def try_functions(applier: Applier, section: Chunk, on_block: OnBlock) -> dict[str, Any]:
    """Apply the functions to the first batch of a section, or to its first episodes; write nothing.

    Episodes are tried until one is kept that has two steps, so that its successors can be compared, at most
    _MOST_EPISODES of those that are kept. Returns ``{probe}``: a `Probe`, None where every episode was dropped.
    """
    counts, shapes, config = ResultCounts(), Shapes(), applier.config
    unchained: dict[str, int] = {}
    changed: list[str] | None = None
    passthrough: list[str] = []
    kept = steps_in = steps_out = dropped = 0
    for span in split(
        section, applier.view.episodes, 1 if config.whole_episodes else config.batch, config.whole_episodes
    ):
        (batch,) = applier.apply(span, counts)
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
        check_same(batch.columns, shapes, applier.name, batch.where)
        done = batch.columns["next/done"].view(-1)
        unchained = {**find_unchained(batch.columns, done), **unchained}
        steps_out += len(done)
        kept += 1
        if not config.whole_episodes or not bool(done[:-1].all()) or kept == _MOST_EPISODES:
            break
    if not kept:
        return {"probe": None}
    before = shapes_of(leaves_of(applier.view.read(section.start, section.start + 1)))
    found = (before, shapes, unchained, changed, passthrough, steps_in, steps_out, dropped, counts.nans)
    return {"probe": Probe(*found)}


def _compressed_passthrough(applier: Applier, batch: ResultBatch) -> list[str]:
    """The compressed leaves of a batch that no function changed."""
    if batch.source is None:
        return []
    compressed = [leaf.name for leaf in applier.view.dataset.schema.states if not codec_of(leaf).fixed_rows]
    return find_passthrough(batch.source, batch.columns, compressed)[0]


def _changed_leaves(applier: Applier, chunk: Chunk, columns: Columns) -> list[str]:
    """The leaves of input and result that differ in the first batch."""
    before = leaves_of(applier.view.read(chunk.start, chunk.stop))
    old, new = shapes_of(before), shapes_of(columns)
    return sorted(
        path
        for path in new
        if path in before and (new[path] != old[path] or bool(differing(before[path], columns[path]).any()))
    )


def sample_results(applier: Applier, chunk: Chunk, on_block: OnBlock, names: tuple[str, ...]) -> dict[str, Any]:
    """A few rows of the leaves ``names`` of the results, uint8 ``[n, row_bytes]``, for codecs and dictionaries."""
    if applier.config.whole_episodes:
        columns = _sample_episodes(applier, chunk)
    else:
        columns = applier.apply_to_steps(_spread(chunk.start, chunk.stop))
    on_block(chunk.rows, 0, 0)
    return {name: as_bytes(columns[name]) for name in names if name in columns}


def _spread(start: int, stop: int) -> torch.Tensor:
    count = min(ROWS_PER_SAMPLE, stop - start)
    return torch.linspace(start, stop - 1, count, dtype=torch.float64, device="cpu").long()


def _sample_episodes(applier: Applier, chunk: Chunk) -> Columns:
    """Rows of the first few episodes of a chunk; none where all of them are dropped."""
    last = min(chunk.first + _EPISODES_PER_SAMPLE, chunk.last)
    few = Chunk(chunk.index, chunk.start, int(applier.view.episodes.starts[last]), chunk.first, last)
    for batch in applier.apply(few, ResultCounts()):
        if batch.columns:
            chosen = _spread(0, len(batch.columns["next/done"]))
            return {name: tensor[chosen] for name, tensor in batch.columns.items()}
    return {}


def collect_statistics(applier: Applier, chunk: Chunk, on_block: OnBlock, number: int) -> dict[str, Any]:
    """The partial statistics for function ``number``, merged in order; empty where every episode was dropped."""
    fn = applier.chain[number]
    fit = fn.fit
    assert fit is not None
    merged: dict[str, torch.Tensor] = {}
    for td, where in applier.apply_first(number, chunk):
        with applier.guard(fn.name, where):
            partial = fit.collect(td, **fn.args)
            merged = fit.merge(merged, partial) if merged else partial
    on_block(chunk.rows, 0, 0)
    return {name: tensor.numpy() for name, tensor in merged.items()}


_TASKS = {fn.__name__: fn for fn in (write_part, try_functions, sample_results, collect_statistics)}
