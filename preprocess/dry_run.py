"""A dry run: a few chunks through the functions; nothing is written to the root."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from ..datasets.workers.engines import Engine
from ..storage.codecs import codec_of
from ..storage.durable import write_atomically
from ..storage.parts import PARTS
from ..storage.schema import FLAGS
from ..storage.scratch import ScratchFolder
from .chunks import split
from .first_pass import collect_statistics
from .preprocess_request import DryRun, Listener, Preprocessed
from .probe import choose_layout, probe_functions
from .records import ProbeResult, unpack_counts
from .run_context import RunContext
from .tasks import call_worker

#: Chunks from all parts of the data that are made, at most.
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
    config, episodes = context.config, context.episodes
    with ScratchFolder() as scratch:
        config = replace(config, folder=scratch)
        # The statistics of the first batch, or of as many episodes, are good enough for an estimate.
        first = split(context.sections[0], episodes, config.batch, config.whole_episodes)[:1]
        config = collect_statistics(config, first, episodes, engine, Listener())
        context = replace(context, config=config)
        probe = probe_functions(context, engine)
        layout, dictionaries = choose_layout(context, probe, engine, Listener())
        for name, data in dictionaries.items():
            path = config.folder / codec_of(layout.schema[name]).path("dictionary")
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data)
        procs = useful_procs(context, probe, engine)
        context = context.with_chunks(context.choose_chunk_steps(probe.step_seconds, procs))
        last = len(context.chunks) - 1
        places = {round(last * number / (TRIED_CHUNKS - 1)) for number in range(TRIED_CHUNKS)}
        tried = [context.chunks[place] for place in sorted(places)]
        work = call_worker("write_part", config, schema=layout.schema, shapes=layout.shapes, undecoded=frozenset[str]())
        records = [record for _, record in engine.run(work, tried, lambda progress: None)]
        written = sum(path.stat().st_size for path in (config.folder / PARTS).iterdir())
    steps_in = sum(chunk.rows for chunk in tried)
    steps_out = sum(record["steps"] for record in records)
    seconds = sum(record["seconds"] for record in records)
    dropped = (
        sum(int((unpack_counts(record["dones"]) == 0).sum()) for record in records) if config.whole_episodes else 0
    )
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
