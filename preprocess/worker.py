"""The work of one chunk, in a worker: its blocks; before that try the functions, sample results, collect statistics.

`do` calls a task for the process that distributes the work, which returns a record. `blocks` are what a chunk becomes part of
the new dataset by (`datasets.ingest.block`). The rows of a state leaf are in the order of states: the observation of each
step, and after the last step of an episode its successor. The successors of all other steps are the rows after them, which is
checked here. Compressed rows that no function changed are copied as they are stored, because most of the time goes into
compression: every batch is compared with the input.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import numpy as np
import torch

from ..datasets.ingest.block import END_CUT, END_TERMINATED, END_TRUNCATED, Block, Rows, StoredRows
from ..datasets.workers.task import OnBlock
from ..errors import FunctionError
from ..storage.codecs import codec_of
from .apply import Applier, ResultBatch, Stored
from .chunks import Chunk, split
from .function import unpickled
from .layout import RESULT_FLAGS, Layout, Probe, Shapes, observation_pairs, unchained_edges, unchained_error
from .request import RunConfig
from .result import Columns, Tally, as_bytes, check_same, digest, find_unchained, in_state_order, runs_of, shapes_of

# -- blocks --------------------------------------------------------------------------------------------------------------


def blocks(config: RunConfig | bytes, chunk: Chunk, layout: Layout, undecoded: frozenset[str]) -> Iterator[Block]:
    """The results of a chunk, a block a batch, and last a record of them.

    The leaves ``undecoded`` are copied as they are stored, and functions do not get them. The record holds ``chunk`` (its
    number), ``steps``, ``episodes`` that end in the chunk, ``midway`` (rows with which an episode begins whose beginning is
    missing), those of `Successors` and `Tally`, ``changed`` (leaves whose values are not those of the input, unless functions
    get whole episodes), and ``seconds``. Raises SchemaError for results unlike the first one, and for successors of a state
    leaf that are not the observation of the following step.
    """
    with _opened(config) as applier:
        began, shapes, before = time.perf_counter(), layout.shapes, applier.view.dataset.schema
        copyable = _copyable(applier, layout)
        expected = {path: shape for path, shape in shapes.items() if path.removeprefix("next/") not in undecoded}
        kept = {path for leaf in before for path in leaf.names if path in shapes}
        unchanged = set() if applier.config.whole_episodes else set(kept)
        compared = {path for name in copyable for path in (name, "next/" + name)}
        successors = Successors(applier.config.chain.names, layout)
        tally, done, steps, episodes = Tally(), 0, 0, 0
        midway: list[int] = []
        for span in applier.split(chunk):
            batch = applier.apply(span, tally, undecoded)
            done += span.rows
            if not batch.columns:
                yield Block({}, place=_PLACE, done=done)
                continue
            check_same(batch.columns, expected, applier.name, batch.where)
            same = set() if batch.source is None else batch.source.unchanged(batch.columns, unchanged | compared)
            unchanged &= same
            copied = {name for name in copyable if {name, "next/" + name} <= same}
            ends = batch.columns["next/done"].view(-1)
            successors.check(batch.columns, copied, ends, batch.where)
            midway += (batch.midway.nonzero().view(-1) + steps).tolist()
            steps, episodes = steps + len(ends), episodes + int(ends.sum())
            yield Block(_rows(batch, layout, copied, ends), _bits(batch), place=_PLACE, done=done)
        record = {
            "chunk": chunk.index,
            "steps": steps,
            "episodes": episodes,
            "midway": midway,
            **successors.record,
            **vars(tally),
        }
        record["changed"] = [] if applier.config.whole_episodes else sorted(kept - unchanged)
        record["seconds"] = round(time.perf_counter() - began, 6)
        yield Block({}, place=_PLACE, done=done, record=record)


#: All chunks are one section: nothing of the result depends on where one ends.
_PLACE = (0,)


def _copyable(applier: Applier, layout: Layout) -> set[str]:
    """The leaves with the codec and dictionary of the input, whose unchanged rows are copied."""
    config, before = applier.config, applier.view.dataset.schema
    found = set()
    for leaf in layout.schema.states:
        old, stored = before.get(leaf.name), config.copyable.get(leaf.name)
        if old is not None and stored is not None and codec_of(leaf).is_like(config.folder, old, stored):
            found.add(leaf.name)
    return found


def _rows(batch: ResultBatch, layout: Layout, copied: Collection[str], ends: torch.Tensor) -> dict[str, Rows]:
    """The columns of a block. Leaves that are ``copied`` may have no columns in the result."""
    columns, rows = batch.columns, dict[str, Rows]()
    for name in layout.filled:
        if name in copied:
            assert batch.source is not None
            place = batch.source.place
            runs = runs_of(in_state_order(place, place + 1, ends) + batch.source.states[name].first)
            rows[name] = StoredRows(_Copied(batch.source.states[name], runs), 0, len(ends) + int(ends.sum()))
        elif name not in RESULT_FLAGS:
            found = columns[name]
            if layout.schema[name].kind == "state":
                found = in_state_order(found, columns["next/" + name], ends)
            rows[name] = found.numpy()
    return rows


def _bits(batch: ResultBatch) -> np.ndarray:
    terminated, truncated = (batch.columns[f"next/{name}"].view(-1).numpy() for name in ("terminated", "truncated"))
    ends = np.where(batch.cut.numpy(), END_CUT, END_TRUNCATED) * truncated
    bits: np.ndarray = (ends + END_TERMINATED * terminated).astype(np.uint8)
    return bits


class _Copied:
    """Rows of the input, ``runs`` of them one after the other."""

    def __init__(self, stored: Stored, runs: Sequence[tuple[int, int]]) -> None:
        self._rows, self._runs = stored.rows, runs

    def stored(self, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """All of them: their concatenated bytes, and the length of each."""
        rows: Any = self._rows
        data, lengths = zip(*(rows.stored(low, high) for low, high in self._runs))
        return np.concatenate(data), np.concatenate(lengths)


class Successors:
    """Compares successors with the observations that follow: within a batch, and at its edges by hashes.

    Raises SchemaError where they differ for a leaf that is stored once per state.
    """

    def __init__(self, names: Sequence[str], layout: Layout) -> None:
        self._names, self._states = names, {leaf.name for leaf in layout.schema.states}
        self._pairs = observation_pairs(layout.shapes)
        self._unchained: set[str] = set()
        #: Of the first observations, and of the last successors where the last step is not done.
        self._head: dict[str, str] = {}
        self._tail: dict[str, str] = {}

    def check(self, columns: Columns, copied: Collection[str], done: torch.Tensor, where: str) -> None:
        """Compare those of consecutive steps, after which an episode ends where ``done`` (bool ``[n]``)."""
        pairs = [name for name in self._pairs if name in columns]
        head = {name: digest({"": columns[name][:1]}) for name in pairs}
        own = {path: rows for path, rows in columns.items() if path.removeprefix("next/") not in copied}
        unchained = {**dict.fromkeys(unchained_edges(self._tail, head), -1), **find_unchained(own, done)}
        self._head = self._head or head
        self._tail = {} if done[-1] else {name: digest({"": columns["next/" + name][-1:]}) for name in pairs}
        for name, row in unchained.items():
            if name in self._states:
                raise unchained_error(self._names, name, f"at row {row + 1} of {where}")
        self._unchained.update(unchained)

    @property
    def record(self) -> dict[str, Any]:
        """``unchained``: the observations whose successors differ; ``head``, ``tail``: the hashes at the edges of the chunk."""
        return {"unchained": sorted(self._unchained), "head": self._head, "tail": self._tail}


# -- tasks ---------------------------------------------------------------------------------------------------------------

#: Number of rows of results from each sampled chunk, of the first few of its episodes.
ROWS_PER_SAMPLE, _EPISODES_PER_SAMPLE = 128, 4
#: Maximum number of kept episodes that decide the leaves.
_MOST_EPISODES = 16


def do(task: str, config: RunConfig | bytes, chunk: Chunk, on_block: OnBlock, **options: Any) -> dict[str, Any]:
    """One of the functions below for a chunk."""
    work: Callable[..., dict[str, Any]] = _TASKS[task]
    with _opened(config) as applier:
        return work(applier, chunk, on_block, **options)


_kept: list[tuple[RunConfig | bytes, Applier]] = []


@contextmanager
def _opened(config: RunConfig | bytes) -> Iterator[Applier]:
    """The input and the functions of a run, which is pickled where it is another process's; a process keeps the last one.

    Processes run in parallel: torch uses one thread in each.
    """
    if not _kept or _kept[0][0] != config:
        _kept[:] = [(config, Applier(unpickled(config) if isinstance(config, bytes) else config))]
    applier, threads = _kept[0][1], torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            yield applier
        applier.view.release()
    finally:
        torch.set_num_threads(threads)


def close() -> None:
    """Close the input and forget the functions of a run in this process."""
    _kept.clear()


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


_TASKS = {fn.__name__: fn for fn in (try_functions, sample_results, collect_statistics, finish_statistics)}
