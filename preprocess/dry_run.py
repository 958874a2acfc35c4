"""A dry run: one chunk through the functions; nothing is written to the root."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from ..datasets.workers.engines import Engine
from ..storage.schema import FLAGS
from .first_pass import collect_statistics
from .preprocess_request import DryRun, Listener, Preprocessed
from .probe import choose_layout, probe_functions
from .run_context import RunContext


def dry_run(context: RunContext, engine: Engine, listener: Listener) -> Preprocessed:
    """Try the functions on one chunk; the leaves before and after, and time and disk space for all chunks."""
    listener.on_stage("trying the functions on one chunk")
    with tempfile.TemporaryDirectory(prefix="rbdata-dry-run-") as scratch:
        config = replace(context.config, folder=Path(scratch))
        # The statistics of the first chunk are good enough for an estimate.
        config = collect_statistics(config, context.chunks[:1], engine, Listener())
        context = replace(context, config=config)
        probe = probe_functions(context, engine, batches=None)
        layout, _ = choose_layout(context, probe, engine, Listener())
    share = probe.steps_in / context.episodes.steps
    steps = round(probe.steps_out / share)
    estimate = context.estimate(steps, int(layout.step_bytes * steps), 0)
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
        estimated_seconds=probe.seconds / share * passes / engine.parallel,
    )
    return Preprocessed(context.place.id, context.place.path, "planned", None, 0.0, estimate, found)
