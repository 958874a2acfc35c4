"""Work before parts are made: statistics, the leaves of the result, the time that functions take.

All of it is work for the engine (`Workers`). Nothing here imports torch at the top, so that the process that distributes
the work need not load it.

- First passes (`collect_statistics`): statistics over all data that a function needs before it can be called. The partial
  statistics of each section are a small file in the working folder, so that an interrupted pass can be continued. They are
  merged in order, so that sums do not depend on the order in which workers finish. If other, possibly slow functions come
  first, few sections are cut into more pieces, which also follow from the data alone.
- The functions are tried on the first steps (`prepare_layout`): the first result decides the leaves of the new dataset.
- A dry run (`dry_run`) makes a few chunks; nothing is written to the root.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import pairwise
from typing import Any

import numpy as np

from ..datasets.user_code_old.opened_files import differing, merge
from ..datasets.workers.task import Engine, OnBlock, Report
from ..errors import ResultError
from ..storage.codecs import PLAIN, codec_of
from ..storage.durable import write_atomically
from ..storage.folder import remove_tree
from ..storage.parts import PARTS
from ..storage.schema import FLAGS
from ..storage.scratch import ScratchFolder
from ..storage.writer import DatasetWriter
from .chunks import Chunk, Episodes, cut_sections, split
from .layout import SAMPLE_ROWS, Layout, choose_codec, choose_schema
from .records import (
    ROWS_PER_SAMPLE,
    ProbeResult,
    collected_path,
    load_arrays,
    nothing_left_error,
    sample_path,
    unpack_counts,
)
from .request import DryRun, Listener, Preprocessed, RunConfig, RunContext

#: The module that does the work. It imports torch, so that workers are forked after it has been imported.
WORKER = f"{__package__}.worker"


def _call(function: str, config: RunConfig, chunk: Chunk, on_block: OnBlock, **options: Any) -> dict[str, Any]:
    from . import worker

    record: dict[str, Any] = getattr(worker, function)(config, chunk, on_block, **options)
    return {**record, "opened": worker.opened_files(config)}


class FilesOfRun:
    """The files that functions opened in the processes of a run (`user_code_old.opened_files`), and in those before it.

    ``states`` by label. The record of each part includes the files that were first opened for it.
    """

    def __init__(self, writer: DatasetWriter | None = None) -> None:
        self.states: dict[str, str] = {}
        kinds = ("statistics", "layout", "part")
        for record in [one for kind in kinds for one in writer.remembered(kind).values()] if writer is not None else ():
            merge(self.states, record.get("opened", {}))
        self._new: dict[str, str] = {}

    def take(self, opened: Mapping[str, str]) -> None:
        """Add the files that a worker opened. Raises FunctionError for a file that has changed since it was first opened."""
        self._new |= merge(self.states, opened)

    def new(self) -> dict[str, Any]:
        """The files added since the last call, for the journal: ``{opened}``, or an empty record."""
        new, self._new = self._new, {}
        return {"opened": new} if new else {}


@dataclass(frozen=True)
class Workers:
    """The engine that does the work of a run, the listener to its progress, and the files that functions open in the run."""

    engine: Engine
    listener: Listener
    files: FilesOfRun

    def run(
        self,
        function: str,
        config: RunConfig,
        chunks: Sequence[Chunk],
        report: Report = lambda progress: None,
        **options: Any,
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """The number of each chunk and what ``worker.FUNCTION(config, chunk, on_block, **options)`` returns, as they finish."""
        for index, record in self.engine.run(partial(_call, function, config, **options), chunks, report):
            self.files.take(record.pop("opened"))
            yield index, record


#: Minimum number of pieces of a pass through other functions, if the data have that many batches or episodes.
LEAST_PIECES = 32


def collect_statistics(
    config: RunConfig,
    sections: Sequence[Chunk],
    episodes: Episodes,
    workers: Workers,
    writer: DatasetWriter | None = None,
) -> RunConfig:
    """The configuration with the statistics of every function; each pass gets the results of the functions before it.

    Statistics are read from and added to the journal of ``writer``.
    """
    known = writer.remembered("statistics") if writer is not None else {}
    for number, needs_fit in enumerate(config.chain.needs_fit):
        if not needs_fit:
            continue
        statistics = list(config.statistics)
        if number in known:
            statistics[number] = known[number]["statistics"]
        else:
            pieces = sections if not number else _pieces(config, sections, episodes)
            statistics[number] = _collect_one(config, number, pieces, workers)
            if writer is not None:
                writer.remember("statistics", {"statistics": statistics[number], **workers.files.new()}, number)
        config = replace(config, statistics=tuple(statistics))
    return config


def _pieces(config: RunConfig, sections: Sequence[Chunk], episodes: Episodes) -> Sequence[Chunk]:
    if len(sections) >= LEAST_PIECES:
        return sections
    steps = -(-sum(section.rows for section in sections) // LEAST_PIECES)
    size = steps if config.whole_episodes else config.batch * -(-steps // config.batch)
    return cut_sections(sections, episodes, size, config.whole_episodes)


def _collect_one(config: RunConfig, number: int, pieces: Sequence[Chunk], workers: Workers) -> dict[str, Any]:
    """The statistics of one function."""
    import torch

    fn = config.chain.functions[number]
    fit = fn.fit
    assert fit is not None
    workers.listener.on_stage(f"first pass for {fn.label}")
    paths = {piece.index: collected_path(config.folder, number, piece.index) for piece in pieces}
    for path in paths.values():  # of an interrupted run
        try:
            opened = json.loads(load_arrays(path)[1])
        except ResultError:
            remove_tree(path)
            continue
        if differing(opened, config.chain.folder):
            path.unlink()
        else:
            workers.files.take(opened)
    left = [piece for piece in pieces if not paths[piece.index].exists()]
    done = len(pieces) - len(left)
    for _ in workers.run("collect_statistics", config, left, number=number):
        done += 1
        workers.listener.on_stage(f"first pass for {fn.label}, {done} of {len(pieces)}")
    loaded = (load_arrays(paths[piece.index])[0] for piece in pieces)
    partials = ({name: torch.from_numpy(array) for name, array in arrays.items()} for arrays in loaded if arrays)
    first = next(partials, None)
    if first is None:
        raise ResultError(f"there is nothing left for {fn.name}: the functions before it dropped every episode")
    finished = fit.finish(reduce(fit.merge, partials, first), **fn.args)
    for path in paths.values():
        path.unlink(missing_ok=True)
    return finished


#: Sections that rows for the dictionary are taken from.
_SAMPLED_SECTIONS = SAMPLE_ROWS // ROWS_PER_SAMPLE


def prepare_layout(context: RunContext, writer: DatasetWriter, workers: Workers) -> tuple[Layout, ProbeResult]:
    """The leaves of the new dataset, from the journal or from a new probe; writes the dictionaries."""
    known = writer.remembered("layout").get(0)
    if known is not None:
        layout = Layout.from_json(known["layout"])
        trained = [leaf for leaf in layout.schema.states if codec_of(leaf).uses_dictionary]
        stored = {leaf.name: writer.stored_dictionary(leaf) for leaf in trained}
        if None not in stored.values():
            for leaf in trained:
                writer.dictionary(leaf, stored[leaf.name] or b"")
            return layout, ProbeResult.from_json(known["look"])
    workers.listener.on_stage("trying the functions on the first steps")
    probe = probe_functions(context, workers)
    layout, dictionaries = choose_layout(context, probe, workers)
    for name, data in dictionaries.items():
        if codec_of(layout.schema[name]).uses_dictionary:
            writer.dictionary(layout.schema[name], data)
    if known is None:
        writer.remember("layout", {"layout": layout.to_json(), "look": probe.to_json(), **workers.files.new()})
    return layout, probe


def probe_functions(context: RunContext, workers: Workers) -> ProbeResult:
    """The result of the first batch, or of the first episodes that are not dropped (`worker.try_functions`).

    Raises ResultError where every episode is dropped.
    """
    for section in context.sections:
        for _, record in workers.run("try_functions", context.config, [section]):
            probe: ProbeResult | None = record["probe"]
            if probe is not None:
                return probe
    raise nothing_left_error([fn.name for fn in context.config.chain.functions], context.input.id)


def choose_layout(context: RunContext, probe: ProbeResult, workers: Workers) -> tuple[Layout, dict[str, bytes]]:
    """Leaves, codecs and dictionaries for results like the first one."""
    request, before = context.request, context.input.schema
    ted = request.layout == "ted"
    schema = choose_schema(probe.after, probe.unchained, before, ted=ted, codecs={})
    names = tuple(leaf.name for leaf in schema.states)
    step_bytes = float(sum(leaf.row_bytes for leaf in schema.steps))
    codecs: dict[str, str] = {}
    dictionaries: dict[str, bytes] = {}
    for name in sorted(set(names).intersection(passthrough_leaves(context, probe))):
        path, manifest = context.source.folders[0]
        codec = codec_of(manifest.schema[name])
        codecs[name], dictionaries[name] = codec.name, codec.read_dictionary(path)
        step_bytes += codec.stored_row_bytes(path, manifest.states)
    names = tuple(name for name in names if name not in codecs)
    samples: dict[str, np.ndarray] = {}
    if names and request.codec != PLAIN:
        workers.listener.on_stage("sampling results")
        samples = _sample_results(context.config, context.sections, names, workers)
    for name in names:
        rows = samples[name] if samples else np.zeros((0, schema[name].row_bytes), np.uint8)
        codecs[name], dictionaries[name], row_bytes = choose_codec(rows, request.codec)
        step_bytes += row_bytes
    schema = choose_schema(probe.after, probe.unchained, before, ted=ted, codecs=codecs)
    return Layout(schema, step_bytes), dictionaries


def passthrough_leaves(context: RunContext, probe: ProbeResult) -> list[str]:
    """The compressed leaves that no function changes and whose codec stays: their stored rows are copied."""
    schema = context.input.schema
    return [
        name
        for name in probe.passthrough
        if name in context.source.copyable and context.request.codec in ("auto", schema[name].codec)
    ]


def _sample_results(
    config: RunConfig, sections: Sequence[Chunk], names: tuple[str, ...], workers: Workers
) -> dict[str, np.ndarray]:
    """Rows of results from all parts of the data, uint8 ``[n, row_bytes]`` by leaf."""
    places = np.linspace(0, len(sections) - 1, min(len(sections), _SAMPLED_SECTIONS)).astype(int)
    sampled = [sections[place] for place in sorted(set(places.tolist()))]
    if len(sections) < _SAMPLED_SECTIONS and not config.whole_episodes:
        sampled = _split(sampled, _SAMPLED_SECTIONS)
    for _ in workers.run("sample_results", config, sampled, names=names):
        pass
    samples: dict[str, np.ndarray] = {}
    for name in names:
        paths = [sample_path(config.folder, name, section.index) for section in sampled]
        rows = [array for array in (load_arrays(path)[0]["rows"] for path in paths) if len(array)]
        samples[name] = np.concatenate(rows) if rows else np.zeros((0, 1), np.uint8)
        for path in paths:
            path.unlink(missing_ok=True)
    return samples


def _split(sections: Sequence[Chunk], count: int) -> list[Chunk]:
    """About ``count`` pieces of fewer sections, renumbered, so that small datasets give equally many rows."""
    each = -(-count // len(sections))
    pieces: list[Chunk] = []
    for section in sections:
        edges = np.linspace(section.start, section.stop, min(each, section.rows) + 1).astype(int).tolist()
        for start, stop in pairwise(edges):
            pieces.append(Chunk(len(pieces), start, stop, section.first, section.last))
    return pieces


#: Maximum number of chunks that a dry run makes; they are spread over the data.
TRIED_CHUNKS = 4


def dry_run(
    context: RunContext,
    engine: Engine,
    listener: Listener,
    useful_procs: Callable[[RunContext, ProbeResult, Engine], int],
) -> Preprocessed:
    """Make a few chunks in a temporary folder; the leaves before and after, and time and disk space for all chunks.

    ``useful_procs``: how many processes a run with a probe would have.
    """
    listener.on_stage("trying the functions")
    config, episodes, workers = context.config, context.episodes, Workers(engine, Listener(), FilesOfRun())
    with ScratchFolder() as scratch:
        config = replace(config, folder=scratch)
        # The statistics of the first batch, or of as many episodes, are good enough for an estimate.
        first = split(context.sections[0], episodes, config.batch, config.whole_episodes)[:1]
        config = collect_statistics(config, first, episodes, workers)
        context = replace(context, config=config)
        probe = probe_functions(context, workers)
        layout, dictionaries = choose_layout(context, probe, workers)
        for name, data in dictionaries.items():
            path = config.folder / codec_of(layout.schema[name]).path("dictionary")
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data)
        procs = useful_procs(context, probe, engine)
        context = context.with_chunks(context.choose_chunk_steps(probe.step_seconds, procs))
        last = len(context.chunks) - 1
        places = {round(last * number / (TRIED_CHUNKS - 1)) for number in range(TRIED_CHUNKS)}
        tried = [context.chunks[place] for place in sorted(places)]
        how: dict[str, Any] = {"schema": layout.schema, "shapes": layout.shapes, "undecoded": frozenset[str]()}
        records = [record for _, record in workers.run("write_part", config, tried, **how)]
        written = sum(path.stat().st_size for path in (config.folder / PARTS).iterdir())
    steps_in = sum(chunk.rows for chunk in tried)
    steps_out = sum(record["steps"] for record in records)
    seconds = sum(record["seconds"] for record in records)
    dones = [unpack_counts(record["dones"]) for record in records if config.whole_episodes]
    dropped = sum(int((one == 0).sum()) for one in dones)
    nans = sum((Counter(record["nans"]) for record in records), Counter[str]())
    probe = replace(probe, steps_in=steps_in, steps_out=steps_out, dropped=dropped, nans=dict(nans))
    share = steps_in / episodes.steps
    estimate = context.estimate(round(steps_out / share), round(written / share), 0, measured=True)
    listener.on_estimate(estimate)
    stored = {leaf.name: f"{leaf.kind} {leaf.codec}" for leaf in layout.schema}
    stored.update({"next/" + leaf.name: f"rows of {leaf.name}" for leaf in layout.schema.states})
    passes = 1 + sum(config.chain.needs_fit)
    found = DryRun(
        [fn.name for fn in config.chain.functions],
        config.chain.per,
        probe,
        after=layout.shapes | dict.fromkeys(FLAGS, ("bool", (1,))),
        stored=stored,
        seconds=seconds,
        estimated_seconds=seconds / share * passes / procs,
    )
    return Preprocessed(context.place.id, context.place.path, "planned", None, 0.0, estimate, found)
