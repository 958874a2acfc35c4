"""A preprocessing run: a reader of the steps of another dataset, for the one pipeline (`datasets.ingest.pipeline`).

    examine      the functions are found and their arguments checked, by a worker (`function`)
    statistics   first passes over all data, for functions that need them; the partial statistics of chunks are merged in
                 order, so that sums do not depend on the order in which workers finish
    try          the first result decides the leaves (`layout`); rows from all parts of the data decide codecs and dictionaries
    units        a unit for each chunk: its blocks are what the functions make of it

All work is done by workers (`worker`); nothing here imports torch. Parts that are there are not made again, and statistics are
remembered: after an interruption at any moment the same request continues, with the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from .. import settings
from ..datasets.ingest import pipeline
from ..datasets.ingest.block import Block
from ..datasets.ingest.estimate import estimate_expected
from ..datasets.ingest.plan import bulk_of
from ..datasets.ingest.reader import Reader
from ..datasets.ingest.records import ConvertOptions, Expectation, count_notes
from ..datasets.ingest.request import Listener, Request, find_existing
from ..datasets.ingest.unit import Facts, Part, Unit
from ..datasets.local import find
from ..datasets.workers import open_cluster, open_local
from ..datasets.workers.task import Engine, usual_procs
from ..errors import DatasetExistsError, SchemaError, UsageError
from ..storage.codecs import PLAIN, codec_of
from ..storage.episodes import EpisodeTable, open_episodes
from ..storage.folder import DatasetPlace
from ..storage.integrity import check_leaves
from ..storage.lock import when_free
from ..storage.manifest import Manifest, read_manifest
from ..storage.schema import FLAGS, Schema
from ..storage.work import Work
from .chunks import Chunk, choose_sizes, cut, split
from .function import Chain, Job, describe, pickled, to_json
from .layout import choose_codec, choose_schema, filled, shapes_of_schema, unchained_edges, unchained_error
from .lineage import describe_input, leaf_changes, remaining_spaces, versions
from .request import DryRun, Preprocessed, PreprocessRequest

#: The module that does the work. It imports torch, so that workers are forked after it has been imported.
WORKER = f"{__package__}.worker"

#: The number of chunks from which built-in functions are worth processes that nobody asked for.
LEAST_CHUNKS = 8
#: Places that rows for a dictionary are taken from, and chunks that a dry run makes, at most.
_SAMPLED, TRIED_CHUNKS = 16, 4


def preprocess(
    request: PreprocessRequest, listener: Listener | None = None, engine: Engine | None = None
) -> Preprocessed:
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


def _preprocess(request: PreprocessRequest, listener: Listener, given: Engine | None) -> Preprocessed:
    began, place = time.monotonic(), DatasetPlace(settings.root(request.root), request.dest)
    reader = FunctionReader(request, place, listener)
    existing = find_existing(place, Request(place.id, force=request.force))
    if existing is not None:
        reader.check(existing)
        return Preprocessed(place.id, place.path, "complete", existing)
    engine = given or open_cluster(request.engine, procs=reader.procs, address=request.address)
    engine = engine or open_local(reader.procs or 0, [WORKER])
    engine.on_output = listener.on_output
    reader.engine, reader.here = engine, given is None and request.engine == "local" and reader.procs == 0
    try:
        if request.dry_run:
            return replace(_dry_run(reader), seconds=time.monotonic() - began)
        options: dict[str, Any] = {"options": reader.options, "procs": request.procs, "engine": engine}
        wanted = Request(place.id, force=request.force, command=request.command, **options)
        made = pipeline.run(reader, place, wanted, listener, reader.location.shown, reader.check)
    finally:
        if given is None:
            engine.close()
        if WORKER in sys.modules:  # the work was done here
            sys.modules[WORKER].close()
    return Preprocessed(**vars(made))


# -- the work of workers ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChunkUnit(Unit):
    """A chunk of the input, read through the functions; ``about`` it see `worker.results`."""

    job: Job | bytes
    chunk: Chunk
    about: Mapping[str, Any]

    def blocks(self, resume: object, threads: int) -> Iterator[Block]:
        from .worker import blocks

        return blocks(self.job, self.chunk, **self.about)


def _do(task: str, job: Job | bytes, chunk: Chunk, on_block: object, **options: Any) -> dict[str, Any]:
    from .worker import do

    return do(task, job, chunk, **options)


# -- the reader --------------------------------------------------------------------------------------------------------------


class FunctionReader(Reader):
    """A request bound to its input (``path``, ``input``, ``episodes``) and its destination ``place``.

    ``folders``: those that hold the stored rows of the input, with their manifests; empty if some rows are in none.
    ``identified`` is everything that decides the bytes of the result, as far as it is known (``continues``); ``fingerprint``
    is its digest. ``engine`` does the work, ``here`` or elsewhere.
    """

    source = "preprocess"
    engine: Engine

    def __init__(self, request: PreprocessRequest, place: DatasetPlace, listener: Listener) -> None:
        self.request, self.place, self.listener = request, place, listener
        dataset = request.dataset
        if dataset is not None:
            self.path, self.input, self.folders = dataset.path, dataset.manifest, dataset.folders
            self.episodes = dataset.episodes
        else:
            self.path = find(request.id, request.root)
            self.input = read_manifest(self.path)
            self.folders = ((self.path, self.input),)
            self.episodes = open_episodes(self.path, self.input.episodes, self.input.steps)
        if place.path.resolve() in {path.resolve() for path, _ in self.folders}:
            message = f"{request.dest} is the input: it cannot be written at the same time"
            raise UsageError(message, hint="give another --dest")
        where = ", ".join(dict.fromkeys(str(path) for path, _ in self.folders)) or str(self.path)
        location: Any = SimpleNamespace(shown=where, url=where)
        super().__init__(self.input.id, location, ConvertOptions(request.codec, request.layout))
        self.licence, self.citation, self.steps = self.input.licence, self.input.citation, self.input.steps
        if not self.steps:
            raise UsageError(f"{self.input.id} has no steps: there is nothing to preprocess")
        self.code, self.starts = Path.cwd(), np.append(self.episodes.starts, self.steps)
        self.records, is_text = describe(request.functions, request.args, self.code)
        self.runs_own_code = not is_text or any("files" in record for record in self.records)
        stacked = request.frame_stack or 1
        step_bytes = max(1, sum(leaf.row_bytes * len(leaf.names) * stacked for leaf in self.input.schema))
        self.batch, self.size = choose_sizes(request.batch_size, step_bytes, self.steps, self.runs_own_code)
        self.continues = is_text or request.version is not None
        self.identified = {
            "preprocess": 5,
            "id": place.id,
            "input": self.input.content,
            "functions": self.records,
            "args": to_json(request.args),
            "batch": self.batch,
            "windows": request.windows,
            "versions": versions(),
            **{name: getattr(request, name) for name in ("version", "per", "seed", "codec", "layout")},
        }
        digest = hashlib.sha256(json.dumps(self.identified, sort_keys=True).encode()).hexdigest()
        self.fingerprint = digest if self.continues else uuid.uuid4().hex

    @cached_property
    def procs(self) -> int | None:
        """The number of worker processes; 0 is this process: for a debugger, and where built-in functions have little to do."""
        request, chunks = self.request, -(-self.steps // self.size)
        if request.engine != "local":
            return settings.procs(request.procs)
        if not self.runs_own_code and chunks < LEAST_CHUNKS and settings.procs(request.procs) is None:
            return 0
        return usual_procs(chunks, request.procs)

    # -- the same request, and another one ---------------------------------------------------------------------------------

    def identity(self) -> dict[str, Any]:
        return {"preprocess": self.fingerprint}

    def check(self, existing: Manifest) -> None:
        """Raise DatasetExistsError unless the same run made a dataset."""
        lineage = existing.lineage or {}
        if lineage.get("fingerprint") == self.fingerprint:
            return
        if not self.continues:
            message = (
                f"{self.place.id} exists already, and nothing tells whether these functions made it: one is an object"
            )
            hint = "replace it with force=True; give the function as text ('file.py:name'), or state version='...'"
            raise DatasetExistsError(message, hint=hint)
        functions = [
            {key: value for key, value in one.items() if key != "args"} for one in lineage.get("functions") or ()
        ]
        content = (lineage.get("input") or {}).get("content")
        before = {**(existing.source.get("options") or {}), **lineage, "functions": functions, "input": content}
        now = {name: value for name, value in self.identified.items() if value is not None and name in before}
        differs = [name for name, value in now.items() if before[name] != value]
        was, are = (
            dict(pair for one in some for pair in (one.get("files") or {}).items())
            for some in (functions, self.records)
        )
        differs += sorted(name for name, sha256 in are.items() if was.get(name, sha256) != sha256)
        message = f"{self.place.id} exists already and was made with another request"
        message += f" (differs in {', '.join(differs)})" if differs else ""
        raise DatasetExistsError(message, hint="choose another --dest, or replace it with --force")

    # -- what is decided before the units ------------------------------------------------------------------------------------

    def prepare(self, work: Work) -> None:
        self.decide(work)

    def decide(self, work: Work | None) -> None:
        """The chunks for the functions, their statistics, and from a trial the leaves."""
        self.listener.on_stage("trying the functions on the first steps")
        self.job = Job(self.request, self.path, self.input.content, self.batch, self.code, {})
        ((_, found),) = self._ask("examine", [Chunk(0, 0, 1, 0, 1)])
        chain: Chain = found["chain"]
        needing = [name for name, fits in zip(chain.names, chain.fits) if fits]
        if self.request.is_part and needing:
            message = (
                f"{', '.join(needing)} computes statistics over all data, and each part of a split would get its own"
            )
            raise UsageError(message, hint="leave the split out, and split what comes of that")
        self.chain, self.whole = chain, chain.per == "episode"
        self.chunks = cut(self.starts, self.size, self.whole)
        if needing:
            self._collect_statistics(work)
        self.probe = self._try_functions()
        self._choose_leaves()

    def _given(self, job: Job) -> Job | bytes:
        """What the work gets: pickled here, where errors are the user's."""
        return job if self.here else pickled(job)

    def _ask(self, task: str, chunks: Sequence[Chunk], **options: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        """The number of each chunk and what ``worker.TASK(applier, chunk, **options)`` returns, as they finish."""
        return self.engine.run(partial(_do, task, self._given(self.job), **options), chunks, lambda progress: None)

    def _collect_statistics(self, work: Work | None) -> None:
        """The statistics of every function that needs them; each pass gets the results of the functions before it."""
        known: dict[str, Any] = dict((work and work.remembered("statistics")) or {})
        pieces = self.chunks
        if work is None:  # those of the first batch, or of as many episodes, are good enough for an estimate
            pieces = split(pieces[0], self.starts, self.batch, self.whole)[:1]
        for number, fits in enumerate(self.chain.fits):
            self.job = replace(self.job, statistics=known)
            if not fits or str(number) in known:
                continue
            found: dict[int, dict[str, Any]] = {}
            for index, arrays in self._ask("collect_statistics", pieces, number=number):
                found[index] = arrays
                stage = f"first pass for {self.chain.labels[number]}, {len(found)} of {len(pieces)}"
                self.listener.on_stage(stage)
            partials = [found[index] for index in sorted(found) if found[index]]
            if not partials:
                message = f"there is nothing left for {self.chain.names[number]}: the functions before it dropped every episode"
                raise SchemaError(message)
            ((_, finished),) = self._ask("finish_statistics", pieces[:1], number=number, partials=partials)
            known = {**known, str(number): finished}
            if work is not None:
                work.remember("statistics", known)
        self.job = replace(self.job, statistics=known)

    def _try_functions(self) -> dict[str, Any]:
        """The result of the first batch, or of the first episodes that are not dropped (`worker.try_functions`)."""
        for chunk in self.chunks:
            ((_, probe),) = self._ask("try_functions", [chunk])
            if probe:
                return probe
        raise self._nothing_left()

    def _nothing_left(self) -> SchemaError:
        message = f"{', '.join(self.chain.names)} dropped every episode of {self.input.id}: nothing is left"
        return SchemaError(message, hint="a dataset has at least one step")

    def _choose_leaves(self) -> None:
        """Leaves, codecs and dictionaries (of the codecs that use one) for results like the first one."""
        wanted, before = self.request.codec, self.input.schema
        shapes, ted = self.probe["shapes"], self.request.layout == "ted"
        choose = partial(choose_schema, shapes, self.probe["unchained"], before, ted=ted)
        plain = choose(codecs={})
        self.states = {leaf.name for leaf in plain.states}
        #: The leaves whose unchanged rows are copied: no function changes the first of them, and the codec stays.
        self.copied = frozenset(
            name for name in self.probe["unchanged"] if name in self.states and self._can_be_copied(name, wanted)
        )
        codecs: dict[str, str] = {}
        self._dictionaries: dict[str, bytes] = {}
        size = float(sum(leaf.row_bytes for leaf in plain.steps))
        others = tuple(sorted(self.states - self.copied))
        samples = self._sample_results(others) if others and wanted != PLAIN else {}
        for name in sorted(self.states):
            if name in self.copied:
                path, manifest = self.folders[0]
                codec = codec_of(manifest.schema[name])
                codecs[name], self._dictionaries[name] = codec.name, codec.read_dictionary(path)
                size += codec.stored_row_bytes(path, manifest.states)
            else:
                rows = samples.get(name, np.zeros((0, plain[name].row_bytes), np.uint8))
                codecs[name], self._dictionaries[name], row_bytes = choose_codec(rows, wanted)
                size += row_bytes
        #: The approximate disk space of a step in bytes.
        self.step_bytes, self.schema = size, choose(codecs=codecs)
        self.bulk = bulk_of(self.schema)
        ignored = self.chain.ignoring == len(self.chain.names)
        self.undecoded = self.copied if ignored else frozenset[str]()
        self.about = {"schema": self.schema, "copyable": self.copied, "undecoded": self.undecoded}

    def _can_be_copied(self, name: str, wanted: str) -> bool:
        """Whether all folders of the input encode a leaf alike, as is wanted."""
        if not self.folders:
            return False
        (first, manifest), *others = self.folders
        codec = codec_of(manifest.schema[name])
        its = [(other.schema.get(name), path) for path, other in others]
        alike = all(one is not None and codec.is_like(first, one, path) for one, path in its)
        return wanted in ("auto", codec.name) and not codec.fixed_rows and alike

    def _sample_results(self, names: tuple[str, ...]) -> dict[str, np.ndarray]:
        """Rows of results from all parts of the data, uint8 ``[n, row_bytes]`` by leaf."""
        self.listener.on_stage("sampling results")
        sampled = cut(self.starts, -(-self.steps // _SAMPLED), self.whole)
        found = dict(self._ask("sample_results", sampled, names=names))
        rows = [found[index] for index in sorted(found) if found[index]]
        return {name: np.concatenate([one[name] for one in rows]) for name in names} if rows else {}

    # -- units and parts -----------------------------------------------------------------------------------------------------

    def units(self, lead: Part | None) -> Sequence[ChunkUnit]:
        job, names = self._given(self.job), ", ".join(self.chain.names)
        return [
            ChunkUnit(chunk.index, f"{chunk.label} ({names})", chunk.rows, self.fingerprint, job, chunk, self.about)
            for chunk in self.chunks
        ]

    def dictionaries(self) -> dict[str, bytes]:
        return {name: data for name, data in self._dictionaries.items() if codec_of(self.schema[name]).uses_dictionary}

    def expect(self) -> Expectation:
        # Functions are assumed to make no more steps of other episodes than of the first one.
        return self.expected(max(1.0, self.probe["steps_out"] / self.probe["steps_in"]))

    def expected(self, ratio: float) -> Expectation:
        """That so many times as many steps will be made as are read."""
        steps = ratio * self.steps
        return Expectation(0, round(steps), len(self.episodes), round(steps * self.step_bytes))

    def check_input(self) -> None:
        for path, manifest in self.folders:  # copied bytes get new checksums: they must be intact
            check_leaves(path, manifest, self.undecoded)

    # -- what the manifest says ----------------------------------------------------------------------------------------------

    def facts(self, parts: Sequence[Part], episodes: EpisodeTable) -> Facts:
        if not episodes.steps:
            raise self._nothing_left()
        about = [part.about for part in parts]
        made = _total(about)
        self._unchained = sorted(made["unchained"] | self._broken_edges(about))
        # Where episodes end elsewhere, their returns are others.
        self._changed = made["changed"] | ({"next/reward"} if "next/done" in made["changed"] else set())
        counts = {"input_steps": self.steps, "dropped_episodes": made["dropped"], "ended_episodes": made["ended"]}
        counts["nans"] = made["nans"]
        return Facts(counts, self._notes(counts), spaces=remaining_spaces(self.input, self._shapes, self._changed))

    def _broken_edges(self, about: Sequence[Mapping[str, Any]]) -> set[str]:
        """The observations whose successor before the end of a chunk is not the first one after it. Raises SchemaError for
        those that are stored once per state."""
        broken = set[str]()
        for chunk, (one, other) in zip(self.chunks[1:], pairwise(about)):
            broken.update(names := unchained_edges(one["tail"], other["head"]))
            for name in sorted(self.states.intersection(names)):
                raise unchained_error(self.chain.names, name, f"at step {chunk.start:,} of {self.input.id}")
        return broken

    @property
    def _shapes(self) -> Any:
        return shapes_of_schema(Schema(tuple(filled(self.schema))))

    def _notes(self, counts: Mapping[str, Any]) -> list[str]:
        sentences = {
            "dropped_episodes": f"{{n}} of {len(self.episodes):,} episodes dropped",
            "ended_episodes": "{n:episode was|episodes were} truncated at a last step that was not done",
        }
        notes = count_notes(sentences, counts)
        if self._unchained:
            names = ", ".join(self._unchained)
            notes.append(f"the successor of {names} is not that of the following step: slices and stacks make no sense")
        if counts["nans"]:
            by_leaf = ", ".join(f"{number:,} in {name}" for name, number in sorted(counts["nans"].items()))
            notes.append(f"NaN values that were not in the input: {by_leaf}")
        return notes

    def manifest(self, dataset_id: str, facts: Facts, episodes: EpisodeTable, url: str) -> Manifest:
        made, request = super().manifest(dataset_id, facts, episodes, url), self.request
        options = {"codec": request.codec, "layout": request.layout}
        made.source = {"name": self.source, "options": options, "objects": []}
        made.provenance["engine"] = self.engine.name
        chain, identified = self.chain, self.identified
        made.lineage = {
            "input": describe_input(self.input),
            "functions": [{**record, "args": args} for record, args in zip(self.records, chain.args)],
            "per": chain.per,
            **{key: identified[key] for key in ("args", "batch", "windows", "seed", "versions")},
            **({"version": request.version} if request.version is not None else {}),
            "statistics": {chain.labels[int(number)]: found for number, found in self.job.statistics.items()},
            "leaves": leaf_changes(shapes_of_schema(self.input.schema), self._shapes, self._changed),
            "unchained": self._unchained,
            **({"fingerprint": self.fingerprint} if self.continues else {}),
        }
        return made


def _total(about: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What some chunks say of themselves (`worker.blocks`), as one."""
    numbers = {name: sum(one[name] for one in about) for name in ("steps", "episodes", "dropped", "ended", "seconds")}
    names = {key: {name for one in about for name in one[key]} for key in ("changed", "unchained")}
    return {**numbers, **names, "nans": dict(sum((Counter(one["nans"]) for one in about), Counter[str]()))}


# -- dry run ---------------------------------------------------------------------------------------------------------------


def _dry_run(reader: FunctionReader) -> Preprocessed:
    """Make a few chunks from all parts of the data, which are not stored, and estimate the rest from them."""
    reader.decide(None)
    chain, schema, every = reader.chain, reader.schema, reader.chunks
    places = np.linspace(0, len(every) - 1, min(TRIED_CHUNKS, len(every))).astype(int).tolist()
    chunks = [every[place] for place in places]
    counted = reader._ask("count_results", chunks, **reader.about)
    made, steps_in = _total([record for _, record in counted]), sum(chunk.rows for chunk in chunks)
    estimate = estimate_expected(reader, reader.place, reader.expected(made["steps"] / steps_in), len(every))
    reader.listener.on_estimate(estimate)
    stored = {leaf.name: f"{leaf.kind} {leaf.codec}" for leaf in schema}
    found = DryRun(
        chain.names,
        chain.per,
        before=shapes_of_schema(reader.input.schema),
        after=reader._shapes | dict.fromkeys(FLAGS, ("bool", (1,))),
        changed=sorted(made["changed"]),
        stored=stored | {"next/" + leaf.name: f"rows of {leaf.name}" for leaf in schema.states},
        steps_in=steps_in,
        steps_out=made["steps"],
        dropped=made["dropped"],
        seconds=made["seconds"],
        estimated_seconds=made["seconds"] * reader.steps / steps_in * (1 + sum(chain.fits)) / reader.engine.parallel,
    )
    return Preprocessed(reader.place.id, reader.place.path, "planned", None, 0.0, estimate, found)
