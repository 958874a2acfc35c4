"""The work of one chunk, in a worker: write a part; before that try the functions, sample results, collect statistics.

`do` calls one of them for the process that distributes the work; they return the record that the engine yields.

A part holds the results of one chunk on disk: a file for each leaf, until it is appended to the new dataset. The rows of a
state leaf are in the order of states: the observation of each step, and after the last step of an episode its successor. The
successors of all other steps are the rows after them, which is checked here. Compressed rows that no function changed are
copied as they are stored, because most of the time goes into compression: every batch is compared with the input.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
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
from .layout import Probe, Shapes, observation_pairs, unchained_edges, unchained_error
from .request import RunConfig
from .result import (
    Columns,
    Tally,
    as_bytes,
    check_same,
    digest,
    find_unchained,
    in_state_order,
    runs_of,
    shapes_of,
)


class PartWriter:
    """Writes the results of chunk ``number``, leaf by leaf, and checks successors.

    ``shapes``: the shapes of all results. ``source``: the schema of the input, whose rows may be copied for some leaves.
    """

    def __init__(self, config: RunConfig, source: Schema, schema: Schema, shapes: Shapes, number: int) -> None:
        self._names, self._folder = config.chain.names, config.folder
        self._leaves = [leaf for leaf in schema if leaf.constant is None]
        self._sinks = {leaf.name: codec_of(leaf).open_appender(self._folder, number) for leaf in self._leaves}
        self._states = {leaf.name for leaf in schema.states}
        #: Leaves with the codec and dictionary of the input, whose unchanged rows are copied.
        self.copyable: set[str] = set()
        for leaf in schema.states:
            old, stored = source.get(leaf.name), config.copyable.get(leaf.name)
            if old is not None and stored is not None and codec_of(leaf).is_like(self._folder, old, stored):
                self.copyable.add(leaf.name)
        self._pairs = observation_pairs(shapes)
        self._unchained: set[str] = set()
        self._steps = self._episodes = 0
        #: Hashes of the first observations, and of the last successors where the last step is not done.
        self._head: dict[str, str] = {}
        self._tail: dict[str, str] = {}
        #: Rows after which the recording ends, and with which an episode begins whose beginning is missing.
        self._cut: list[int] = []
        self._midway: list[int] = []

    def add(self, batch: ResultBatch, same: Collection[str]) -> None:
        """Append rows. Those of ``same`` are those of the input: they may have no columns, and are copied as they are stored.

        Raises SchemaError for successors of a state leaf that are not the observation of the following step."""
        columns, source = batch.columns, batch.source
        copied = {name for name in self.copyable if {name, f"next/{name}"} <= set(same)}
        done = columns["next/done"].view(-1)
        self._check_chain(columns, copied, done, batch.where)
        for leaf in self._leaves:
            sink = self._sinks[leaf.name]
            if leaf.name in copied and source is not None:
                stored = source.states[leaf.name]
                for first, last in runs_of(in_state_order(source.place, source.place + 1, done) + stored.first):
                    sink.copy(stored.rows, first, last)
                continue
            rows = columns[leaf.name]
            if leaf.kind == "state":
                rows = in_state_order(rows, columns["next/" + leaf.name], done)
            sink.append(as_bytes(rows))
        for marked, places in ((batch.cut, self._cut), (batch.midway, self._midway)):
            places += (marked.nonzero().view(-1) + self._steps).tolist()
        self._steps += len(done)
        self._episodes += int(done.sum())

    def _check_chain(self, columns: Columns, copied: Collection[str], done: torch.Tensor, where: str) -> None:
        pairs = [name for name in self._pairs if name in columns]
        head = {name: digest({"": columns[name][:1]}) for name in pairs}
        unchained = dict.fromkeys(unchained_edges(self._tail, head), -1)
        own = {path: rows for path, rows in columns.items() if path.removeprefix("next/") not in copied}
        unchained = {**unchained, **find_unchained(own, done)}
        self._head = self._head or head
        self._tail = {} if done[-1] else {name: digest({"": columns["next/" + name][-1:]}) for name in pairs}
        for name, row in unchained.items():
            if name in self._states:
                raise unchained_error(self._names, name, f"at row {row + 1} of {where}")
        self._unchained.update(unchained)

    def finish(self) -> dict[str, Any]:
        """Close the files. Returns the record of the part: ``leaves`` (the records of the sinks), ``steps``, ``episodes`` that
        end in it, ``cut`` and ``midway`` (rows), ``unchained``, ``head`` and ``tail`` (hashes of observations)."""
        leaves = {name: sink.finish(sync=False) for name, sink in self._sinks.items()}
        sync_folder(self._folder / PARTS)
        return {
            "leaves": leaves,
            "steps": self._steps,
            "episodes": self._episodes,
            "cut": self._cut,
            "midway": self._midway,
            "unchained": sorted(self._unchained),
            "head": self._head,
            "tail": self._tail,
        }

    def abandon(self) -> None:
        for sink in self._sinks.values():
            sink.abandon()


#: Number of rows of results from each sampled chunk, of the first few of its episodes.
ROWS_PER_SAMPLE, _EPISODES_PER_SAMPLE = 128, 4
#: Maximum number of kept episodes that decide the leaves.
_MOST_EPISODES = 16


def do(task: str, config: RunConfig | bytes, chunk: Chunk, on_block: OnBlock, **options: Any) -> dict[str, Any]:
    """One of the functions below for a chunk. A process keeps the input and the functions of the last ``config``, which is
    pickled where they are another process's."""
    if not _opened or _opened[0][0] != config:
        _opened[:] = [(config, Applier(unpickled(config) if isinstance(config, bytes) else config))]
    applier = _opened[0][1]
    work: Callable[..., dict[str, Any]] = _TASKS[task]
    with _one_thread(), torch.no_grad():
        record = work(applier, chunk, on_block, **options)
    applier.view.release()
    return record


_opened: list[tuple[RunConfig | bytes, Applier]] = []


def close() -> None:
    """Close the input and forget the functions of a run in this process."""
    _opened.clear()


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

    The leaves ``undecoded`` are copied as they are stored, and functions do not get them. The record is that of
    `PartWriter.finish`, the fields of `Tally`, ``changed``: leaves whose values are not those of the input (unless functions
    get whole episodes), and ``seconds``.
    """
    began = time.perf_counter()
    before = applier.view.dataset.schema
    part = PartWriter(applier.config, before, schema, shapes, chunk.index)
    expected = {path: shape for path, shape in shapes.items() if path.removeprefix("next/") not in undecoded}
    kept = {path for leaf in before for path in leaf.names if path in shapes}
    unchanged = set() if applier.config.whole_episodes else set(kept)
    copyable = {path for name in part.copyable for path in (name, "next/" + name)}
    tally, steps = Tally(), 0
    try:
        for span in applier.split(chunk):
            batch = applier.apply(span, tally, undecoded)
            if batch.columns:
                check_same(batch.columns, expected, applier.name, batch.where)
                source, compared = batch.source, unchanged | copyable
                same = set() if source is None else source.unchanged(batch.columns, compared)
                part.add(batch, same)
                unchanged &= same
            steps += span.rows
            on_block(steps, 0, 0)
        record = part.finish()
    except BaseException:
        part.abandon()
        raise
    changed = [] if applier.config.whole_episodes else sorted(kept - unchanged)
    return {**record, **vars(tally), "changed": changed, "seconds": round(time.perf_counter() - began, 6)}


def try_functions(applier: Applier, section: Chunk, on_block: OnBlock) -> dict[str, Any]:
    """Apply the functions to the first batch of a section, or to its first episodes; write nothing. Those of users are called
    twice: they must return the same again, bit by bit.

    Episodes are tried until one is kept that has two steps, so that its successors can be compared, at most
    _MOST_EPISODES of those that are kept. Returns ``{probe}``: a `Probe`, None where every episode was dropped.
    """
    config, shapes = applier.config, Shapes()
    unchained: dict[str, int] = {}
    passthrough: list[str] = []
    kept = steps_in = steps_out = 0
    for span in split(
        section, applier.view.episodes, 1 if config.whole_episodes else config.batch, config.whole_episodes
    ):
        batch = applier.apply(span, Tally())
        columns, steps_in = batch.columns, steps_in + span.rows
        on_block(steps_in, 0, 0)
        if columns:
            shapes = shapes or shapes_of(columns)
            check_same(columns, shapes, applier.name, batch.where)
            passthrough = passthrough if kept else _compressed_passthrough(applier, batch)
            done = columns["next/done"].view(-1)
            unchained = {**find_unchained(columns, done), **unchained}
            steps_out += len(done)
            kept += 1
        if applier.runs_own_code:
            _check_again(applier, span, batch, digest(columns))
        if columns and (not config.whole_episodes or not bool(done[:-1].all()) or kept == _MOST_EPISODES):
            break
    return {"probe": Probe(shapes, unchained, passthrough, steps_in, steps_out) if kept else None}


def _check_again(applier: Applier, span: Chunk, batch: ResultBatch, before: str) -> None:
    """Raise FunctionError unless the functions return the same for a batch as before."""
    if digest(applier.apply(span, Tally()).columns) != before:
        names = ", ".join(fn.name for fn in applier.chain if fn.is_own)
        message = f"{names} returned something else when it was called again, for {batch.where}"
        hint = (
            "a function must keep nothing from call to call, and draw random numbers from the global generators of torch, "
            "numpy and Python, or from an argument called generator: a torch.Generator that is seeded for every batch"
        )
        raise FunctionError(message, hint=hint)


def _compressed_passthrough(applier: Applier, batch: ResultBatch) -> list[str]:
    """The compressed leaves of a batch that no function changed."""
    compressed = [leaf.name for leaf in applier.view.dataset.schema.states if not codec_of(leaf).fixed_rows]
    if batch.source is None:
        return []
    return [name for name in compressed if len(batch.source.unchanged(batch.columns, (name, "next/" + name))) == 2]


def sample_results(applier: Applier, chunk: Chunk, on_block: OnBlock, names: tuple[str, ...]) -> dict[str, Any]:
    """A few rows of the leaves ``names`` of the results, uint8 ``[n, row_bytes]``, for codecs and dictionaries."""
    columns: Columns = {}
    if not applier.config.whole_episodes:
        columns = applier.apply_to_steps(_spread(chunk.start, chunk.stop))
    else:  # the first few episodes, none where all of them are dropped
        last = min(chunk.first + _EPISODES_PER_SAMPLE, chunk.last)
        few = Chunk(chunk.index, chunk.start, int(applier.view.episodes.starts[last]), chunk.first, last)
        for span in applier.split(few):
            columns = columns or applier.apply(span, Tally()).columns
        if columns:
            chosen = _spread(0, len(columns["next/done"]))
            columns = {name: columns[name][chosen] for name in names}
    on_block(chunk.rows, 0, 0)
    return {name: as_bytes(columns[name]) for name in names if name in columns}


def _spread(start: int, stop: int) -> torch.Tensor:
    count = min(ROWS_PER_SAMPLE, stop - start)
    return torch.linspace(start, stop - 1, count, dtype=torch.float64, device="cpu").long()


def collect_statistics(applier: Applier, chunk: Chunk, on_block: OnBlock, number: int) -> dict[str, Any]:
    """The partial statistics for function ``number``, merged in order; empty where every episode was dropped."""
    fn = applier.chain[number]
    assert fn.fit is not None
    merged: dict[str, torch.Tensor] = {}
    for td, where in applier.apply_first(number, chunk):
        with applier.guard(fn.name, where):
            partial = fn.fit.collect(td, **fn.args)
            merged = fn.fit.merge(merged, partial) if merged else partial
    on_block(chunk.rows, 0, 0)
    return {name: tensor.numpy() for name, tensor in merged.items()}


def finish_statistics(
    applier: Applier, chunk: Chunk, on_block: OnBlock, number: int, partials: list[Mapping[str, np.ndarray]]
) -> dict[str, Any]:
    """The statistics of function ``number`` from those of all parts, in order."""
    fn = applier.chain[number]
    assert fn.fit is not None
    parts = [{name: torch.tensor(array) for name, array in partial.items()} for partial in partials]
    statistics: dict[str, Any] = fn.fit.finish(reduce(fn.fit.merge, parts), **fn.args)
    return statistics


_TASKS = {fn.__name__: fn for fn in (write_part, try_functions, sample_results, collect_statistics, finish_statistics)}
