"""The last step: the records of all parts become an episode table and a manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..storage.episodes import CUT, TERMINATED, TRUNCATED, EpisodeTable
from ..storage.manifest import Manifest
from ..storage.writer import DatasetWriter
from .layout import Layout
from .lineage import describe_input, leaf_changes, named_statistics, remaining_spaces
from .records import FIRST, LAST, ProbeResult, nothing_left_error, unchained_error, unpack_counts
from .run_context import RunContext

#: Steps whose flags and rewards are read at a time.
_BLOCK_STEPS = 1 << 20

Record = Mapping[str, Any]


@dataclass
class EdgeCheck:
    """Checks successors across the edges of chunks: ``unchained`` collects the observations that have others."""

    context: RunContext
    layout: Layout
    unchained: set[str] = field(default_factory=set)

    def add(self, number: int, record: Record, others: Mapping[int, Record]) -> None:
        """Compare the part of chunk ``number`` with those of its neighbours. Raises ResultError for a state leaf."""
        self.unchained.update(record["unchained"])
        before, after = others.get(number - 1), others.get(number + 1)
        for left, right, at in ((before, record, number), (record, after, number + 1)):
            if left is None or right is None or not left["open"]:
                continue
            for name in left["edges"]:
                if left["edges"][name][1] != right["edges"][name][0]:
                    self.unchained.add(name)
                    leaf = self.layout.schema.get(name)
                    if leaf is not None and leaf.kind == "state":
                        where = f"at step {self.context.chunks[at].start:,} of {self.context.input.id}"
                        raise unchained_error(self.context.config.chain.last_name, name, where)


def make_manifest(
    context: RunContext,
    layout: Layout,
    probe: ProbeResult,
    unchained: set[str],
    writer: DatasetWriter,
    records: Mapping[int, Record],
) -> tuple[Manifest, list[str]]:
    """Write the episode table and the constant leaves. Returns the manifest, and warnings for the user."""
    parts = [records[chunk.index] for chunk in context.chunks]
    sections = context.chunks_of_sections
    steps = sum(part["steps"] for part in parts)
    if not steps:
        raise nothing_left_error(context.config.chain.last_name, context.input.id)
    columns = writer.columns()
    try:
        columns.rows = steps
        files = columns.close()
    finally:
        columns.abandon()
    # An episode of the view may lie in several chunks and become several episodes.
    dones, lost_edges, states = np.zeros(len(context.episodes), np.int64), np.zeros(len(context.episodes), np.int64), []
    for chunk, part in zip(context.chunks, parts):
        counts = unpack_counts(part["dones"])
        dones[chunk.first : chunk.last] += counts
        if "lost_edges" in part:
            lost_edges[chunk.first : chunk.last] |= unpack_counts(part["lost_edges"])
        states.append(part["steps"] + int(counts.sum()))
    episodes = _make_episodes(context, layout, dones, lost_edges, writer, steps)
    writer.planned(files, episodes)
    returns, lengths = episodes.summary()
    nans: Counter[str] = Counter()
    for part in parts:
        nans.update(part["nans"])
    totals = {
        "input_steps": context.episodes.steps,
        "dropped_episodes": int((dones == 0).sum()),
        "ended_episodes": sum(part["ended"] for part in parts),
        "nans": dict(nans),
    }
    notes, warnings = _make_notes(len(dones), totals, unchained)
    source, options = context.input, {"codec": context.request.codec, "layout": context.request.layout}
    manifest = Manifest(
        id=context.place.id,
        schema=layout.schema,
        steps=steps,
        episodes=len(episodes),
        source={"name": "preprocess", "options": options, "objects": []},
        parts=[
            {
                "name": section.describe(),
                "states": sum(states[first:last]),
                "rows": sum(part["steps"] for part in parts[first:last]),
            }
            for section, (first, last) in zip(context.sections, sections)
        ],
        spaces=remaining_spaces(source, probe),
        counts=totals,
        notes=notes,
        returns=returns,
        lengths=lengths,
        licence=source.licence,
        citation=source.citation,
        lineage=_make_lineage(context, probe, unchained),
    )
    return manifest, warnings


def _make_episodes(
    context: RunContext, layout: Layout, dones: np.ndarray, lost_edges: np.ndarray, writer: DatasetWriter, steps: int
) -> EpisodeTable:
    """The episode table from the flags that were written.

    ``dones``: how many episodes each one of the view became; ``lost_edges``: see `records`.
    """
    view = context.episodes
    leaves = (layout.schema["next/" + name] for name in ("done", "terminated", "reward"))
    done, terminated, reward = (
        np.memmap(writer.folder / leaf.memmap, leaf.np_dtype, "r", shape=(steps,)) for leaf in leaves
    )
    ends, returns, open_return = [], [], 0.0
    for low in range(0, steps, _BLOCK_STEPS):
        here = np.flatnonzero(done[low : low + _BLOCK_STEPS])
        values = reward[low : low + _BLOCK_STEPS].astype(np.float64)
        if len(here):
            sums = np.add.reduceat(values[: here[-1] + 1], np.append(0, here[:-1] + 1))
            sums[0] += open_return  # of the episode that began before this block
            returns.append(sums)
            ends.append(here + low)
            open_return, values = 0.0, values[here[-1] + 1 :]
        open_return += float(values.sum())
    end = np.concatenate(ends)
    start = np.append(0, end[:-1] + 1).astype(np.int64)
    source = np.repeat(np.arange(len(view)), dones)
    is_last = np.zeros(len(end), bool)
    is_last[np.cumsum(dones)[dones > 0] - 1] = True
    is_first = np.append(True, is_last[:-1])
    outcome = np.where(terminated[end], TERMINATED, TRUNCATED)
    kept_end, kept_beginning = (lost_edges & LAST)[source] == 0, (lost_edges & FIRST)[source] == 0
    outcome[is_last & kept_end & view.cut[source] & (outcome == TRUNCATED)] = CUT
    midway = view.midway[source] & is_first & kept_beginning
    return EpisodeTable(start, end - start + 1, np.concatenate(returns), outcome.astype(np.uint8), midway)


def _make_notes(episodes: int, counts: Mapping[str, Any], unchained: set[str]) -> tuple[list[str], list[str]]:
    """Notes for the manifest, and those of them that are warnings."""
    notes, warnings = [], []
    if counts["dropped_episodes"]:
        notes.append(f"{counts['dropped_episodes']:,} of {episodes:,} episodes were dropped")
    if counts["ended_episodes"]:
        notes.append(f"{counts['ended_episodes']:,} episodes whose last step was not done were truncated there")
    if unchained:
        names = ", ".join(sorted(unchained))
        notes.append(f"the successor of {names} is not that of the following step: slices and stacks make no sense")
    if counts["nans"]:
        by_leaf = ", ".join(f"{number:,} in {name}" for name, number in sorted(counts["nans"].items()))
        warnings.append(f"NaN values that were not in the input: {by_leaf}")
    return [*notes, *warnings], warnings


def _make_lineage(context: RunContext, probe: ProbeResult, unchained: set[str]) -> dict[str, Any]:
    """See `lineage`."""
    keys = ("functions", "per", "batch", "windows", "num_frames", "seed", "versions")
    return {
        "input": describe_input(context.input),
        **{key: context.identity[key] for key in keys},
        **{key: context.identity[key] for key in ("process",) if key in context.identity},
        "statistics": named_statistics(context.config.chain.functions, context.config.statistics),
        "leaves": leaf_changes(probe),
        "unchained": sorted(unchained),
        "fingerprint": context.config.run,
    }
