"""Work before parts are made: statistics, the leaves of the result; and dry runs, which make a few parts of them.

All of it is work for the engine (`Workers`). Nothing here imports torch at the top, so that the process that distributes
the work need not load it.

- First passes (`collect_statistics`): statistics over all data that a function needs before it can be called. The partial
  statistics of the sections are merged in order, so that sums do not depend on the order in which workers finish. If other,
  possibly slow functions come first, few sections are cut into more pieces, which also follow from the data alone.
- The functions are tried on the first steps (`choose_layout`): the first result decides the leaves of the new dataset.
- A dry run (`dry_run`) makes a few chunks; nothing is written to the root.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ..datasets.workers.task import Engine, OnBlock, Report
from ..errors import SchemaError
from ..storage.codecs import PLAIN, codec_of
from ..storage.durable import write_atomically
from ..storage.parts import PARTS
from ..storage.schema import FLAGS
from ..storage.writer import DatasetWriter
from .chunks import Chunk, cut_sections, split
from .function import Chain, examine, pickled, unpickled
from .functions import find_builtin
from .layout import Layout, Probe, choose_codec, choose_schema, nothing_left_error
from .request import DryRun, Listener, Preprocessed, Run, RunConfig

#: The module that does the work. It imports torch, so that workers are forked after it has been imported.
WORKER = f"{__package__}.worker"


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
        report: Report = lambda progress: None,
        **options: Any,
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """The number of each chunk and what ``worker.TASK(applier, chunk, on_block, **options)`` returns, as they finish."""
        given = config if self.here else pickled(config)
        return self.engine.run(partial(_do, task, given, **options), chunks, report)

    def examine(self, run: Run) -> Chain:
        """The functions of a run, found in a worker. Raises as `function.examine`."""
        request = run.request
        given = (tuple(request.functions), request.args, run.code, request.per)
        if self.here:
            return examine(*given)
        ((_, record),) = self.engine.run(
            partial(_examine, pickled(given)), [Chunk(0, 0, 0, 0, 0)], lambda progress: None
        )
        chain: Chain = record["chain"]
        return chain


def _do(task: str, config: RunConfig | bytes, chunk: Chunk, on_block: OnBlock, **options: Any) -> dict[str, Any]:
    from .worker import do

    return do(task, config, chunk, on_block, **options)


def _examine(given: bytes, chunk: object, on_block: object) -> dict[str, Any]:
    return {"chain": examine(*unpickled(given))}


#: Minimum number of pieces of a pass through other functions, if the data have that many batches or episodes.
LEAST_PIECES = 32


def collect_statistics(
    run: Run, config: RunConfig, sections: Sequence[Chunk], workers: Workers, writer: DatasetWriter | None = None
) -> RunConfig:
    """The configuration with the statistics of every function; each pass gets the results of the functions before it.

    Statistics are read from and added to the journal of ``writer``.
    """
    known = writer.remembered("statistics") if writer is not None else {}
    for number, name in enumerate(config.chain.fits):
        if not name:
            continue
        statistics = list(config.statistics)
        if number in known:
            statistics[number] = known[number]["statistics"]
        else:
            pieces = sections if not number else _pieces(run, sections)
            statistics[number] = _collect_one(config, number, find_builtin(name), pieces, workers)
            if writer is not None:
                writer.remember("statistics", {"statistics": statistics[number]}, number)
        config = replace(config, statistics=tuple(statistics))
    return config


def _pieces(run: Run, sections: Sequence[Chunk]) -> Sequence[Chunk]:
    if len(sections) >= LEAST_PIECES:
        return sections
    steps = -(-sum(section.rows for section in sections) // LEAST_PIECES)
    size = steps if run.whole_episodes else run.batch * -(-steps // run.batch)
    return cut_sections(sections, run.episodes, size, run.whole_episodes)


def _collect_one(config: RunConfig, number: int, fn: Any, pieces: Sequence[Chunk], workers: Workers) -> dict[str, Any]:
    """The statistics of one function, the built-in one ``fn``."""
    import torch

    label, fit = config.chain.labels[number], fn.traits.fit
    found: dict[int, dict[str, Any]] = {}
    for index, arrays in workers.run("collect_statistics", config, pieces, number=number):
        found[index] = {name: torch.tensor(array) for name, array in arrays.items()}
        workers.listener.on_stage(f"first pass for {label}, {len(found)} of {len(pieces)}")
    partials = [found[index] for index in sorted(found) if found[index]]
    if not partials:
        name = config.chain.names[number]
        raise SchemaError(f"there is nothing left for {name}: the functions before it dropped every episode")
    finished: dict[str, Any] = fit.finish(reduce(fit.merge, partials), **config.chain.args[number])
    return finished


# -- the leaves of the result --------------------------------------------------------------------------------------------

#: Sections that rows for the dictionary are taken from, and rows of each.
_SAMPLED_SECTIONS = 16


def try_functions(run: Run, config: RunConfig, workers: Workers) -> Probe:
    """The result of the first batch, or of the first episodes that are not dropped (`worker.try_functions`).

    Raises SchemaError where every episode is dropped.
    """
    workers.listener.on_stage("trying the functions on the first steps")
    for section in run.sections:
        for _, record in workers.run("try_functions", config, [section]):
            probe: Probe | None = record["probe"]
            if probe is not None:
                return probe
    raise nothing_left_error(config.chain.names, run.input.id)


def choose_layout(run: Run, config: RunConfig, probe: Probe, workers: Workers) -> tuple[Layout, dict[str, bytes]]:
    """Leaves, codecs and dictionaries (of the codecs that use one) for results like the first one."""
    request, before = run.request, run.input.schema
    choose = partial(choose_schema, probe.after, probe.unchained, before, ted=request.layout == "ted")
    schema = choose(codecs={})
    step_bytes = float(sum(leaf.row_bytes for leaf in schema.steps))
    codecs: dict[str, str] = {}
    dictionaries: dict[str, bytes] = {}
    for name in sorted({leaf.name for leaf in schema.states}.intersection(passthrough_leaves(run, probe))):
        path, manifest = run.source.folders[0]
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


def passthrough_leaves(run: Run, probe: Probe) -> list[str]:
    """The compressed leaves that no function changes and whose codec stays: their stored rows are copied."""
    schema = run.input.schema
    return [
        name
        for name in probe.passthrough
        if name in run.source.copyable and run.request.codec in ("auto", schema[name].codec)
    ]


def undecoded_leaves(run: Run, config: RunConfig, probe: Probe, layout: Layout) -> frozenset[str]:
    """The compressed leaves that no function of the chain reads: they are copied without being decoded."""
    ignored = config.ignoring == len(config.chain.names)
    return frozenset(passthrough_leaves(run, probe) if ignored else ()).intersection(layout.compressed)


def _sample_results(run: Run, config: RunConfig, names: tuple[str, ...], workers: Workers) -> dict[str, np.ndarray]:
    """Rows of results from all parts of the data, uint8 ``[n, row_bytes]`` by leaf."""
    sections = run.sections
    places = np.linspace(0, len(sections) - 1, min(len(sections), _SAMPLED_SECTIONS)).astype(int)
    sampled = [sections[place] for place in sorted(set(places.tolist()))]
    if len(sections) < _SAMPLED_SECTIONS and not run.whole_episodes:
        sampled = _split(sampled, _SAMPLED_SECTIONS)
    found = dict(workers.run("sample_results", config, sampled, names=names))
    rows = {name: [found[index][name] for index in sorted(found) if name in found[index]] for name in names}
    return {name: np.concatenate(parts) for name, parts in rows.items() if parts}


def _split(sections: Sequence[Chunk], count: int) -> list[Chunk]:
    """About ``count`` pieces of fewer sections, renumbered, so that small datasets give equally many rows."""
    each = -(-count // len(sections))
    pieces: list[Chunk] = []
    for section in sections:
        edges = np.linspace(section.start, section.stop, min(each, section.rows) + 1).astype(int).tolist()
        for start, stop in pairwise(edges):
            pieces.append(Chunk(len(pieces), start, stop, section.first, section.last))
    return pieces


# -- dry runs ------------------------------------------------------------------------------------------------------------

#: Maximum number of chunks that a dry run makes; they are spread over the data.
TRIED_CHUNKS = 4


def dry_run(run: Run, config: RunConfig, workers: Workers) -> Preprocessed:
    """Make a few chunks in a temporary folder; the leaves before and after, and time and disk space for all chunks."""
    with TemporaryDirectory(prefix="rbdata-") as made:
        scratch = Path(made)
        config = replace(config, folder=scratch)
        # The statistics of the first batch, or of as many episodes, are good enough for an estimate.
        first = split(run.sections[0], run.episodes, run.batch, run.whole_episodes)[:1]
        config = collect_statistics(run, config, first, workers)
        probe = try_functions(run, config, workers)
        layout, dictionaries = choose_layout(run, config, probe, workers)
        for name, data in dictionaries.items():
            path = scratch / codec_of(layout.schema[name]).path("dictionary")
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data)
        places = {round((len(run.chunks) - 1) * number / (TRIED_CHUNKS - 1)) for number in range(TRIED_CHUNKS)}
        tried = [run.chunks[place] for place in sorted(places)]
        how: Mapping[str, Any] = {"schema": layout.schema, "shapes": layout.shapes, "undecoded": frozenset[str]()}
        records = [record for _, record in workers.run("write_part", config, tried, **how)]
        written = sum(path.stat().st_size for path in (scratch / PARTS).iterdir())
    steps_in = sum(chunk.rows for chunk in tried)
    share = steps_in / run.episodes.steps
    seconds = sum(record["seconds"] for record in records)
    probe = replace(
        probe,
        steps_in=steps_in,
        steps_out=sum(record["steps"] for record in records),
        dropped=sum(record["dones"].count(0) for record in records) if run.whole_episodes else 0,
        nans=dict(sum((Counter(record["nans"]) for record in records), Counter[str]())),
    )
    estimate = run.estimate(round(probe.steps_out / share), round(written / share), 0, measured=True)
    workers.listener.on_estimate(estimate)
    stored = {leaf.name: f"{leaf.kind} {leaf.codec}" for leaf in layout.schema}
    stored.update({"next/" + leaf.name: f"rows of {leaf.name}" for leaf in layout.schema.states})
    passes = 1 + sum(map(bool, config.chain.fits))
    found = DryRun(
        config.chain.names,
        config.chain.per,
        probe,
        after=layout.shapes | dict.fromkeys(FLAGS, ("bool", (1,))),
        stored=stored,
        seconds=seconds,
        estimated_seconds=seconds / share * passes / workers.engine.parallel,
    )
    return Preprocessed(run.place.id, run.place.path, "planned", None, 0.0, estimate, found)
