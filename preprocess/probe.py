"""Trying the functions: what their first result says about all others."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ..datasets.workers.engines import Engine
from ..errors import ResultError
from ..storage.schema import FLAGS
from ..storage.writer import DatasetWriter
from .chunks import Chunk
from .layout import SAMPLE_ROWS, Layout, choose_codec, decide
from .preprocess_request import Listener, Outlook, Trial

if TYPE_CHECKING:
    from .driver import _Run

#: Chunks that give rows to the dictionary.
_SAMPLED_CHUNKS = SAMPLE_ROWS // 128


def settle_layout(
    run: _Run, writer: DatasetWriter, engine: Engine, listener: Listener
) -> tuple[Layout, dict[str, Any]]:
    """The leaves of the new dataset and what the first look found; dictionaries are stored. Remembered once decided."""
    known = writer.remembered("layout").get(0)
    if known is not None:
        layout = Layout.from_json(known["layout"])
        compressed = [leaf for leaf in layout.schema.states if leaf.codec == "zstd"]
        stored = {leaf.name: writer.stored_dictionary(leaf) for leaf in compressed}
        if None not in stored.values():
            for leaf in compressed:
                writer.dictionary(leaf, stored[leaf.name] or b"")
            return layout, known["look"]
    listener.stage("trying the functions on the first steps")
    look = first_look(run, engine)
    layout, dictionaries = lay_out(run, look, engine, listener)
    for name, data in dictionaries.items():
        writer.dictionary(layout.schema[name], data)
    if known is None:
        writer.remember("layout", {"layout": layout.to_json(), "look": look})
    return layout, look


def first_look(run: _Run, engine: Engine, batches: int | None = 2) -> dict[str, Any]:
    """What `work.Look` says of the first chunk of which anything is left. Raises ResultError where nothing is."""
    from .tasks import Look

    for chunk in run.chunks:
        for _, record in engine.run(Look(run.setting, batches), [chunk], lambda progress: None):
            if record["shapes"] is not None:
                # Through the journal and back they are lists; a resumed run must not differ.
                shapes = {name: list(shape) for name, shape in record["shapes"].items()}
                return {**record, "shapes": shapes, "input": {k: list(v) for k, v in record["input"].items()}}
    raise ResultError(
        f"{run.functions[-1].name} dropped every episode of {run.input.id}: nothing is left",
        hint="a dataset has at least one step",
    )


def lay_out(
    run: _Run, look: dict[str, Any], engine: Engine, listener: Listener | None = None
) -> tuple[Layout, dict[str, bytes]]:
    """Leaves, codecs and dictionaries for results like the first one."""
    shapes = {name: (dtype, tuple(shape)) for name, (dtype, shape) in look["shapes"].items()}
    request = run.request
    ted = request.layout == "ted"
    schema = decide(shapes, look["broken"], run.input.schema, ted=ted, codecs={})
    names = tuple(leaf.name for leaf in schema.states)
    step_bytes = float(sum(leaf.row_bytes for leaf in schema.steps))
    codecs: dict[str, str] = {}
    dictionaries: dict[str, bytes] = {}
    if request.codec != "raw":
        for name in sorted(set(names).intersection(look["untouched"])):
            codecs[name], dictionaries[name], size = _as_before(run, name)
            step_bytes += size
    names = tuple(name for name in names if name not in codecs)
    if names and request.codec != "raw":
        if listener is not None:
            listener.stage("sampling results")
        samples = sampled(run, names, engine)
    for name in names:
        rows = samples[name] if request.codec != "raw" else np.zeros((0, schema[name].row_bytes), np.uint8)
        codec, dictionary, size = choose_codec(rows, request.codec)
        codecs[name] = codec
        if codec == "zstd":
            dictionaries[name] = dictionary
        step_bytes += size
    schema = decide(shapes, look["broken"], run.input.schema, ted=ted, codecs=codecs)
    return Layout(schema, step_bytes), dictionaries


def _as_before(run: _Run, name: str) -> tuple[str, bytes, float]:
    """Codec, dictionary and bytes per row of an observation that stays as it is: those of the input, so that compressed rows
    can be taken over."""
    folder = run.path.joinpath(*run.input.schema[name].key)
    rows = run.input.steps + run.input.episodes
    return "zstd", (folder / "dictionary").read_bytes(), (folder / "blob").stat().st_size / rows + 8


def sampled(run: _Run, names: tuple[str, ...], engine: Engine) -> dict[str, np.ndarray]:
    """Rows of results from all over the data, uint8 ``[n, row_bytes]`` by leaf."""
    from .records import load_arrays, sample_path
    from .tasks import Sample

    places = np.linspace(0, len(run.chunks) - 1, min(len(run.chunks), _SAMPLED_CHUNKS)).astype(int)
    chunks = [run.chunks[place] for place in sorted(set(places.tolist()))]
    if len(run.chunks) < _SAMPLED_CHUNKS and not run.setting.whole_episodes:
        chunks = _pieces(chunks, _SAMPLED_CHUNKS)
    for _ in engine.run(Sample(run.setting, names), chunks, lambda progress: None):
        pass
    found: dict[str, np.ndarray] = {}
    for name in names:
        paths = [sample_path(run.setting.folder, name, chunk.index) for chunk in chunks]
        rows = [array for array in (load_arrays(path)["rows"] for path in paths) if len(array)]
        found[name] = np.concatenate(rows) if rows else np.zeros((0, 1), np.uint8)
        for path in paths:
            path.unlink(missing_ok=True)
    return found


def _pieces(chunks: list[Chunk], wanted: int) -> list[Chunk]:
    """Few chunks in more pieces, so that small datasets give as many rows; numbered anew."""
    each = -(-wanted // len(chunks))
    pieces: list[Chunk] = []
    for chunk in chunks:
        edges = np.linspace(chunk.start, chunk.stop, min(each, chunk.rows) + 1).astype(int).tolist()
        for start, stop in pairwise(edges):
            pieces.append(Chunk(len(pieces), start, stop, chunk.first, chunk.last))
    return pieces


# -- dry runs -----------------------------------------------------------------------------------------------------------


def estimate(run: _Run, engine: Engine) -> tuple[Trial, Outlook]:
    """One chunk through the functions: trees, and time and disk for all."""
    from dataclasses import replace

    from .first_pass import collect_one

    passes = 1
    everything = run.chunks
    run.chunks = everything[:1]  # statistics of the first chunk do for a trial
    for number, needed in enumerate(run.program.needs_fit):
        if needed:
            passes += 1
            statistics = list(run.setting.statistics)
            statistics[number] = collect_one(run, number, tuple(statistics), engine, Listener())
            run.setting = replace(run.setting, statistics=tuple(statistics), key=run.setting.key + str(number))
    run.chunks = everything
    look = first_look(run, engine, batches=None)
    layout, _ = lay_out(run, look, engine)
    share = look["steps_in"] / run.episodes.steps
    steps = round(look["steps"] / share)
    outlook = run.outlook(steps, int(layout.step_bytes * steps), 0)
    stored = {leaf.name: f"{leaf.kind} {leaf.codec}" for leaf in layout.schema}
    stored.update({"next/" + leaf.name: f"rows of {leaf.name}" for leaf in layout.schema.states})
    trial = Trial(
        functions=[fn.name for fn in run.functions],
        per=run.setting.per,
        before={name: (dtype, tuple(shape)) for name, (dtype, shape) in look["input"].items()},
        after=layout.shapes | dict.fromkeys(FLAGS, ("bool", (1,))),
        stored=stored,
        changed=look["changed"],
        steps_in=look["steps_in"],
        steps_out=look["steps"],
        dropped=look["dropped"],
        nans=look["nans"],
        seconds=look["seconds"],
        estimated_seconds=look["seconds"] / share * passes / engine.parallel,
    )
    return trial, outlook
