"""The last step: what the finished chunks add up to, as episode table and manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ResultError
from ..storage.column_writer import leaf_path
from ..storage.episodes import CUT, TERMINATED, TRUNCATED, EpisodeTable
from ..storage.manifest import Manifest
from ..storage.schema import Leaf
from ..storage.writer import DatasetWriter
from .layout import Layout
from .lineage import describe_input, leaf_changes, named_statistics, spaces_left
from .records import not_chained, unpacked

if TYPE_CHECKING:
    from .driver import _Run

#: Steps whose flags and rewards are looked at together.
_BLOCK = 1 << 20


@dataclass
class Finish:
    """A run whose chunks are coming in. ``look`` is what was found when the functions were tried."""

    run: _Run
    layout: Layout
    look: Mapping[str, Any]

    def __post_init__(self) -> None:
        self._unchained: set[str] = set()

    def check_edges(self, number: int, record: Mapping[str, Any], others: Mapping[int, Mapping[str, Any]]) -> None:
        """Whether an episode that goes on from one chunk to the next does so without a break."""
        self._unchained.update(record["unchained"])
        for left, right, at in (
            (others.get(number - 1), record, number),
            (record, others.get(number + 1), number + 1),
        ):
            if left is None or right is None or not left["open"]:
                continue
            for name in left["edges"]:
                if left["edges"][name][1] != right["edges"][name][0]:
                    self._unchained.add(name)
                    leaf = self.layout.schema.get(name)
                    if leaf is not None and leaf.kind == "state":
                        where = f"at step {self.run.chunks[at].start:,} of {self.run.input.id}"
                        raise not_chained(self.run.functions[-1].name, name, where)

    # -- what it adds up to ----------------------------------------------------------------------------------------------

    def plan(self, writer: DatasetWriter, records: Mapping[int, Mapping[str, Any]]) -> tuple[Manifest, list[str]]:
        """Write the episode table and the constant leaves; returns the manifest, and what the user should look at."""
        run = self.run
        parts = [records[chunk.index] for chunk in run.chunks]
        steps = sum(part["steps"] for part in parts)
        if not steps:
            message = f"{run.functions[-1].name} dropped every episode of {run.input.id}: nothing is left"
            raise ResultError(message, hint="a dataset has at least one step")
        columns = writer.columns()
        try:
            columns.rows = steps
            files = columns.close()
        finally:
            columns.abandon()
        episodes, dropped = self._episodes(writer, parts, steps)
        writer.planned(files, episodes)
        returns, lengths = episodes.summary()
        nans: dict[str, int] = {}
        for part in parts:
            for name, number in part["nans"].items():
                nans[name] = nans.get(name, 0) + number
        ended = sum(part["ended"] for part in parts)
        notes, warnings = self._notes(dropped, ended, nans)
        states = [part["steps"] + int(unpacked(part["dones"]).sum()) for part in parts]
        manifest = Manifest(
            id=run.place.id,
            schema=self.layout.schema,
            steps=steps,
            episodes=len(episodes),
            source={"name": "preprocess", "options": self._options(), "objects": []},
            parts=[
                {"name": chunk.words(), "states": state, "rows": part["steps"]}
                for chunk, part, state in zip(run.chunks, parts, states)
            ],
            spaces=spaces_left(run.input, self.look),
            counts={
                "input_steps": run.episodes.steps,
                "dropped_episodes": dropped,
                "ended_episodes": ended,
                "nans": nans,
            },
            notes=notes,
            returns=returns,
            lengths=lengths,
            licence=run.input.licence,
            citation=run.input.citation,
            lineage=self._lineage(),
        )
        return manifest, warnings

    def _episodes(self, writer: DatasetWriter, parts: list[Mapping[str, Any]], steps: int) -> tuple[EpisodeTable, int]:
        """The episode table, from the flags that were written; and how many episodes of the input are gone."""
        view, chunks = self.run.episodes, self.run.chunks
        # How many episodes each one of the view became; one may lie in several chunks.
        became = np.zeros(len(view), np.int64)
        for chunk, part in zip(chunks, parts):
            became[chunk.first : chunk.last] += unpacked(part["dones"])
        flags = {name: _column(writer, self.layout.schema["next/" + name], steps) for name in ("done", "terminated")}
        ends, returns = [], []
        reward, open_ = _column(writer, self.layout.schema["next/reward"], steps), 0.0
        for low in range(0, steps, _BLOCK):
            here = np.flatnonzero(flags["done"][low : low + _BLOCK])
            values = reward[low : low + _BLOCK].astype(np.float64)
            if len(here):
                sums = np.add.reduceat(values[: here[-1] + 1], np.append(0, here[:-1] + 1))
                sums[0] += open_  # what the episode had before this block
                returns.append(sums)
                ends.append(here + low)
                open_, values = 0.0, values[here[-1] + 1 :]
            open_ += float(values.sum())
        end = np.concatenate(ends)
        start = np.append(0, end[:-1] + 1).astype(np.int64)
        source = np.repeat(np.arange(len(view)), became)
        last = np.zeros(len(end), bool)
        last[np.cumsum(became)[became > 0] - 1] = True
        first = np.append(True, last[:-1])
        outcome = np.where(flags["terminated"][end], TERMINATED, TRUNCATED)
        outcome[last & view.cut[source] & (outcome == TRUNCATED)] = CUT
        table = EpisodeTable(
            start, end - start + 1, np.concatenate(returns), outcome.astype(np.uint8), view.midway[source] & first
        )
        return table, int((became == 0).sum())

    def _notes(self, dropped: int, ended: int, nans: Mapping[str, int]) -> tuple[list[str], list[str]]:
        notes, warnings = [], []
        if dropped:
            notes.append(f"{dropped:,} of {len(self.run.episodes):,} episodes were dropped")
        if ended:
            notes.append(f"{ended:,} episodes whose end was lost end truncated")
        if self._unchained:
            names = ", ".join(sorted(self._unchained))
            notes.append(f"the successor of {names} is not that of the following step: slices and stacks make no sense")
        if nans:
            told = ", ".join(f"{number:,} in {name}" for name, number in sorted(nans.items()))
            warnings.append(f"NaN values that were not in the input: {told}")
        return [*notes, *warnings], warnings

    def _options(self) -> dict[str, Any]:
        request = self.run.request
        return {"codec": request.codec, "layout": request.layout}

    def _lineage(self) -> dict[str, Any]:
        run = self.run
        how = {
            name: run.identity[name]
            for name in ("functions", "per", "batch", "windows", "num_frames", "seed", "versions")
        }
        return {
            "input": describe_input(run.input),
            **how,
            "statistics": named_statistics(run.functions, run.setting.statistics),
            "leaves": leaf_changes(self.look),
            "unchained": sorted(self._unchained),
            "fingerprint": run.fingerprint,
        }


def _column(writer: DatasetWriter, leaf: Leaf, steps: int) -> np.ndarray:
    """A leaf of one number a step, mapped: ``[steps]``."""
    return np.memmap(leaf_path(writer.folder, leaf), leaf.np_dtype, "r", shape=(steps,))
