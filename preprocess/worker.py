"""What a worker does: the blocks of a chunk; before that it examines the functions, tries them, samples their results, and
collects statistics.

The rows of a state leaf are in the order of states: the observation of each step, and after the last step of an episode its
successor. The successors of all other steps are the rows after them, which is checked here. Compressed rows that no function
changed are copied as they are stored, because most of the time goes into compression: every batch is compared with the input.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import numpy as np
import torch

from ..datasets.ingest.block import END_CUT, END_MIDWAY, END_TERMINATED, END_TRUNCATED, Block, CopiedRows, Rows
from ..errors import FunctionError
from ..storage.codecs import codec_of
from ..storage.schema import Schema
from .apply import Applier, ResultBatch, StoredStates
from .chunks import Chunk, split
from .function import Job
from .layout import RESULT_FLAGS, Shapes, filled, observation_pairs, shapes_of_schema, unchained_edges, unchained_error
from .result import (
    Columns,
    as_bytes,
    check_same,
    digest,
    find_unchained,
    in_state_order,
    runs_of,
    shapes_of,
)


def blocks(job: Job | bytes, chunk: Chunk, **about: Any) -> Iterator[Block]:
    """The `results` of a chunk of a run."""
    with opened(job) as applier:
        yield from results(applier, chunk, **about)


def results(
    applier: Applier, chunk: Chunk, schema: Schema, copyable: frozenset[str], undecoded: frozenset[str]
) -> Iterator[Block]:
    """The results of a chunk, a block a batch, and last a record of them. Unchanged rows of the leaves ``copyable`` are copied;
    functions do not get those in ``undecoded``.

    The record holds ``steps``, ``episodes`` that end in the chunk, those of `Successors`, the counts of the `Applier`,
    ``changed`` (leaves whose values are not those of the same steps of the input), and ``seconds``. Raises SchemaError for
    results unlike the first one, and for successors of a state leaf that are not the observation of the following step.
    """
    began, names = time.perf_counter(), applier.chain.names
    applier.tally.clear()
    applier.nans.clear()
    expected = shapes_of_schema(Schema(tuple(filled(schema))))
    kept = {path for leaf in applier.dataset.schema for path in leaf.names if path in expected}
    compared = {path for name in copyable for path in (name, "next/" + name)}
    expected = {path: form for path, form in expected.items() if path.removeprefix("next/") not in undecoded}
    unchanged = set(kept)
    successors = Successors(names, schema)
    done = steps = episodes = 0
    for span in applier.split(chunk):
        batch = applier.apply(span, undecoded)
        done += span.rows
        if not batch.columns:
            yield Block({}, done=done)
            continue
        check_same(batch.columns, expected, names[-1], batch.where)
        same = set() if batch.source is None else batch.source.unchanged(batch.columns, unchanged | compared)
        unchanged &= same
        copied = {name for name in copyable if {name, "next/" + name} <= same}
        ends = batch.columns["next/done"].view(-1)
        successors.check(batch.columns, copied, ends, batch.where)
        steps, episodes = steps + len(ends), episodes + int(ends.sum())
        yield Block(_rows(batch, schema, copied, ends), _bits(batch), done=done)
    tally = {**{name: applier.tally[name] for name in ("dropped", "ended")}, "nans": dict(applier.nans)}
    record = {
        "steps": steps,
        "episodes": episodes,
        "changed": sorted(kept - unchanged),
        **successors.record,
        **tally,
    }
    yield Block({}, done=done, record={**record, "seconds": round(time.perf_counter() - began, 6)})


def _rows(batch: ResultBatch, schema: Schema, copied: Collection[str], ends: torch.Tensor) -> dict[str, Rows]:
    """The columns of a block. Leaves that are ``copied`` may have no columns in the result."""
    columns, rows = batch.columns, dict[str, Rows]()
    for leaf in filled(schema):
        if leaf.name in copied:
            assert batch.source is not None
            place, stored = batch.source.place, batch.source.states[leaf.name]
            runs = runs_of(in_state_order(place, place + 1, ends) + stored.first)
            rows[leaf.name] = CopiedRows(_Copied(stored, runs), 0, len(ends) + int(ends.sum()))
        elif leaf.kind == "state":
            rows[leaf.name] = in_state_order(columns[leaf.name], columns["next/" + leaf.name], ends).numpy()
        elif leaf.name not in RESULT_FLAGS:
            rows[leaf.name] = columns[leaf.name].numpy()
    return rows


def _bits(batch: ResultBatch) -> np.ndarray:
    terminated, truncated = (batch.columns[f"next/{name}"].view(-1).numpy() for name in ("terminated", "truncated"))
    ends = np.where(batch.cut.numpy(), END_CUT, END_TRUNCATED) * truncated
    bits: np.ndarray = (ends + END_TERMINATED * terminated + END_MIDWAY * batch.midway.numpy()).astype(np.uint8)
    return bits


class _Copied:
    """Rows of the input, ``runs`` of them one after the other."""

    def __init__(self, stored: StoredStates, runs: Sequence[tuple[int, int]]) -> None:
        self._rows, self._runs = stored.rows, runs

    def stored(self, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """All of them: their concatenated bytes, and the length of each."""
        rows: Any = self._rows
        data, lengths = zip(*(rows.stored(low, high) for low, high in self._runs))
        return np.concatenate(data), np.concatenate(lengths)


class Successors:
    """Compares successors with the observations that follow: within a batch, and at its edges by hashes.

    Raises SchemaError where they differ for a leaf that is stored once per state. ``record``: ``unchained``, the other
    observations where they differ; ``head``, ``tail``, the hashes of the first observations, and of the last successors where
    the last step is not done.
    """

    def __init__(self, names: Sequence[str], schema: Schema) -> None:
        self._names, self._states = names, {leaf.name for leaf in schema.states}
        self._pairs = observation_pairs(shapes_of_schema(schema))
        self.record: dict[str, Any] = {"unchained": [], "head": {}, "tail": {}}

    def check(self, columns: Columns, copied: Collection[str], done: torch.Tensor, where: str) -> None:
        """Compare those of consecutive steps, after which an episode ends where ``done`` (bool ``[n]``)."""
        record, pairs = self.record, [name for name in self._pairs if name in columns]
        head = {name: digest({"": columns[name][:1]}) for name in pairs}
        own = {path: rows for path, rows in columns.items() if path.removeprefix("next/") not in copied}
        unchained = {**dict.fromkeys(unchained_edges(record["tail"], head), -1), **find_unchained(own, done)}
        for name in sorted(self._states.intersection(unchained)):
            raise unchained_error(self._names, name, f"at row {unchained[name] + 1} of {where}")
        record["unchained"] = sorted({*record["unchained"], *unchained})
        record["head"] = record["head"] or head
        record["tail"] = {} if done[-1] else {name: digest({"": columns["next/" + name][-1:]}) for name in pairs}


# -- what else a run asks ------------------------------------------------------------------------------------------------

#: Number of rows of results from each sampled chunk, of the first few of its episodes.
ROWS_PER_SAMPLE, _EPISODES_PER_SAMPLE = 128, 4
#: Maximum number of kept episodes that decide the leaves.
_MOST_EPISODES = 16


def do(task: str, job: Job | bytes, chunk: Chunk, **options: Any) -> dict[str, Any]:
    """Return one of the functions below for a chunk."""
    work: Callable[..., dict[str, Any]] = _TASKS[task]
    with opened(job) as applier:
        return work(applier, chunk, **options)


_kept: list[tuple[Job | bytes, Applier]] = []


@contextmanager
def opened(job: Job | bytes) -> Iterator[Applier]:
    """The input and the functions of a run, which is pickled where it is another process's; a process keeps the last one.

    Processes run in parallel: torch uses one thread in each.
    """
    if not _kept or _kept[0][0] != job:
        _kept[:] = [(job, Applier(pickle.loads(job) if isinstance(job, bytes) else job))]
    applier, threads = _kept[0][1], torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            yield applier
        applier.release()
    finally:
        torch.set_num_threads(threads)


def close() -> None:
    """Close the input and forget the functions of a run in this process."""
    _kept.clear()


def examine(applier: Applier, chunk: Chunk) -> dict[str, Any]:
    """Return what the functions are, with their arguments checked."""
    return {"chain": applier.chain}


def try_functions(applier: Applier, chunk: Chunk) -> dict[str, Any]:
    """Apply the functions to the first batch of a chunk, or to its first episodes; write nothing. Those of users are called
    twice: they must return the same again, bit by bit.

    Episodes are tried until one is kept that has two steps, so that its successors can be compared, at most
    _MOST_EPISODES of those that are kept. Returns ``{}`` where every episode was dropped, else:

    ``shapes``: dtypes and shapes of the leaves. ``unchained``: observations whose successor is not the observation of the
    following step, with the first such row. ``unchanged``: compressed leaves that no function changed. ``steps_in``,
    ``steps_out``: numbers of steps.
    """
    whole, shapes = applier.whole, Shapes()
    unchained: dict[str, int] = {}
    unchanged: list[str] = []
    kept = steps_in = steps_out = 0
    for span in split(chunk, applier.starts, 1 if whole else applier.batch, whole):
        batch = applier.apply(span)
        columns, steps_in = batch.columns, steps_in + span.rows
        if columns:
            shapes = shapes or shapes_of(columns)
            check_same(columns, shapes, applier.chain.names[-1], batch.where)
            unchanged = unchanged if kept else _unchanged_rows(applier, batch)
            done = columns["next/done"].view(-1)
            unchained = {**find_unchained(columns, done), **unchained}
            steps_out += len(done)
            kept += 1
        if any(fn.is_own for fn in applier.functions):
            _check_again(applier, span, batch, digest(columns))
        if columns and (not whole or not bool(done[:-1].all()) or kept == _MOST_EPISODES):
            break
    found = {"shapes": shapes, "unchained": unchained, "unchanged": unchanged}
    return {**found, "steps_in": steps_in, "steps_out": steps_out} if kept else {}


def _check_again(applier: Applier, span: Chunk, batch: ResultBatch, before: str) -> None:
    """Raise FunctionError unless the functions return the same for a batch as before."""
    if digest(applier.apply(span).columns) != before:
        names = ", ".join(fn.name for fn in applier.functions if fn.is_own)
        message = f"{names} returned something else when it was called again, for {batch.where}"
        hint = (
            "a function must keep nothing from call to call, and draw random numbers from the global generators of torch, "
            "numpy and Python, or from an argument called generator: a torch.Generator that is seeded for every batch"
        )
        raise FunctionError(message, hint=hint)


def _unchanged_rows(applier: Applier, batch: ResultBatch) -> list[str]:
    """The compressed leaves of a batch that no function changed."""
    compressed = [leaf.name for leaf in applier.dataset.schema.states if not codec_of(leaf).fixed_rows]
    if batch.source is None:
        return []
    return [name for name in compressed if len(batch.source.unchanged(batch.columns, (name, "next/" + name))) == 2]


def count_results(applier: Applier, chunk: Chunk, **about: Any) -> dict[str, Any]:
    """Return the record of the `results` of a chunk, which are not stored."""
    record: dict[str, Any] = {}
    for block in results(applier, chunk, **about):
        record.update(block.record or {})
    return record


def sample_results(applier: Applier, chunk: Chunk, names: tuple[str, ...]) -> dict[str, Any]:
    """Return a few rows of the leaves ``names`` of the results, uint8 ``[n, row_bytes]``, for codecs and dictionaries."""
    columns: Columns = {}
    if not applier.whole:
        columns = applier.apply_to_steps(_spread(chunk.start, chunk.stop))
    else:  # the first few episodes, none where all of them are dropped
        last = min(chunk.first + _EPISODES_PER_SAMPLE, chunk.last)
        few = Chunk(chunk.index, chunk.start, int(applier.starts[last]), chunk.first, last)
        for span in applier.split(few):
            columns = columns or applier.apply(span).columns
        if columns:
            chosen = _spread(0, len(columns["next/done"]))
            columns = {name: columns[name][chosen] for name in names}
    return {name: as_bytes(columns[name]) for name in names if name in columns}


def _spread(start: int, stop: int) -> torch.Tensor:
    count = min(ROWS_PER_SAMPLE, stop - start)
    return torch.linspace(start, stop - 1, count, dtype=torch.float64, device="cpu").long()


def collect_statistics(applier: Applier, chunk: Chunk, number: int) -> dict[str, Any]:
    """Return the partial statistics for function ``number``, merged in order; empty where every episode was dropped."""
    fn = applier.functions[number]
    assert fn.fit is not None
    merged: dict[str, torch.Tensor] = {}
    for td, where in applier.inputs_of(number, chunk):
        with applier.guard(fn.name, where):
            partial = fn.fit.collect(td, **fn.args)
            merged = fn.fit.merge(merged, partial) if merged else partial
    return {name: tensor.numpy() for name, tensor in merged.items()}


def finish_statistics(
    applier: Applier, chunk: Chunk, number: int, partials: list[Mapping[str, np.ndarray]]
) -> dict[str, Any]:
    """Return the statistics of function ``number`` from those of all parts, in order."""
    fn = applier.functions[number]
    assert fn.fit is not None
    parts = [{name: torch.tensor(array) for name, array in partial.items()} for partial in partials]
    statistics: dict[str, Any] = fn.fit.finish(reduce(fn.fit.merge, parts), **fn.args)
    return statistics


_TASKS = {
    fn.__name__: fn
    for fn in (examine, try_functions, count_results, sample_results, collect_statistics, finish_statistics)
}
