"""The functions are tried on the first steps: the first result decides the leaves of the new dataset."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ..datasets.workers.engines import Engine
from ..storage.codecs import PLAIN, codec_of
from ..storage.writer import DatasetWriter
from .chunks import Chunk
from .layout import SAMPLE_ROWS, Layout, choose_codec, choose_schema
from .preprocess_request import Listener
from .records import ROWS_PER_SAMPLE, ProbeResult, load_arrays, nothing_left_error, sample_path
from .run_config import RunConfig
from .run_context import RunContext
from .tasks import call_worker

#: Sections that rows for the dictionary are taken from.
_SAMPLED_SECTIONS = SAMPLE_ROWS // ROWS_PER_SAMPLE


def prepare_layout(
    context: RunContext, writer: DatasetWriter, engine: Engine, listener: Listener
) -> tuple[Layout, ProbeResult]:
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
    listener.on_stage("trying the functions on the first steps")
    probe = probe_functions(context, engine)
    layout, dictionaries = choose_layout(context, probe, engine, listener)
    for name, data in dictionaries.items():
        if codec_of(layout.schema[name]).uses_dictionary:
            writer.dictionary(layout.schema[name], data)
    if known is None:
        writer.remember("layout", {"layout": layout.to_json(), "look": probe.to_json()})
    return layout, probe


def probe_functions(context: RunContext, engine: Engine) -> ProbeResult:
    """The result of the first batch, or of the first episodes that are not dropped (`worker.try_functions`).

    Raises ResultError where every episode is dropped.
    """
    probe = call_worker("try_functions", context.config)
    for section in context.sections:
        for _, record in engine.run(probe, [section], lambda progress: None):
            if record["probe"] is not None:
                return ProbeResult.from_json(record["probe"])
    raise nothing_left_error(context.config.chain.last_name, context.input.id)


def choose_layout(
    context: RunContext, probe: ProbeResult, engine: Engine, listener: Listener
) -> tuple[Layout, dict[str, bytes]]:
    """Leaves, codecs and dictionaries for results like the first one."""
    request, before = context.request, context.input.schema
    ted = request.layout == "ted"
    schema = choose_schema(probe.after, probe.unchained, before, ted=ted, codecs={})
    names = tuple(leaf.name for leaf in schema.states)
    step_bytes = float(sum(leaf.row_bytes for leaf in schema.steps))
    codecs: dict[str, str] = {}
    dictionaries: dict[str, bytes] = {}
    for name in sorted(set(names).intersection(passthrough_leaves(context, probe))):
        codecs[name], dictionaries[name], row_bytes = _input_codec(context, name)
        step_bytes += row_bytes
    names = tuple(name for name in names if name not in codecs)
    samples: dict[str, np.ndarray] = {}
    if names and request.codec != PLAIN:
        listener.on_stage("sampling results")
        samples = _sample_results(context.config, context.sections, names, engine)
    for name in names:
        rows = samples[name] if samples else np.zeros((0, schema[name].row_bytes), np.uint8)
        codecs[name], dictionaries[name], row_bytes = choose_codec(rows, request.codec)
        step_bytes += row_bytes
    schema = choose_schema(probe.after, probe.unchained, before, ted=ted, codecs=codecs)
    return Layout(schema, step_bytes), dictionaries


def passthrough_leaves(context: RunContext, probe: ProbeResult) -> list[str]:
    """The compressed leaves that no function changes and whose codec stays: their stored rows are copied."""
    schema = context.input.schema
    return [name for name in probe.passthrough if context.request.codec in ("auto", schema[name].codec)]


def _input_codec(context: RunContext, name: str) -> tuple[str, bytes, float]:
    """Codec, dictionary and bytes per row of an unchanged leaf: those of the input, so that its rows can be copied."""
    leaf, path = context.input.schema[name], context.config.path
    codec = codec_of(leaf)
    return codec.name, codec.read_dictionary(path), codec.stored_row_bytes(path, context.input.states)


def _sample_results(
    config: RunConfig, sections: Sequence[Chunk], names: tuple[str, ...], engine: Engine
) -> dict[str, np.ndarray]:
    """Rows of results from all parts of the data, uint8 ``[n, row_bytes]`` by leaf."""
    places = np.linspace(0, len(sections) - 1, min(len(sections), _SAMPLED_SECTIONS)).astype(int)
    sampled = [sections[place] for place in sorted(set(places.tolist()))]
    if len(sections) < _SAMPLED_SECTIONS and not config.whole_episodes:
        sampled = _split(sampled, _SAMPLED_SECTIONS)
    for _ in engine.run(call_worker("sample_results", config, names=names), sampled, lambda progress: None):
        pass
    samples: dict[str, np.ndarray] = {}
    for name in names:
        paths = [sample_path(config.folder, name, section.index) for section in sampled]
        rows = [array for array in (load_arrays(path)["rows"] for path in paths) if len(array)]
        samples[name] = np.concatenate(rows) if rows else np.zeros((0, 1), np.uint8)
        for path in paths:
            path.unlink(missing_ok=True)
    return samples


def _split(sections: Sequence[Chunk], count: int) -> list[Chunk]:
    """About ``count`` pieces of fewer sections, renumbered, so that small datasets give as many rows."""
    each = -(-count // len(sections))
    pieces: list[Chunk] = []
    for section in sections:
        edges = np.linspace(section.start, section.stop, min(each, section.rows) + 1).astype(int).tolist()
        for start, stop in pairwise(edges):
            pieces.append(Chunk(len(pieces), start, stop, section.first, section.last))
    return pieces
