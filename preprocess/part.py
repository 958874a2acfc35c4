"""The results of one chunk on disk: a file for each leaf, until it is appended to the new dataset.

The rows of a state leaf are in the order of states: the observation of each step, and after the last step of an episode its
successor. The successors of all other steps are the rows after them, which is checked here. Unchanged rows of the input are
copied as they are stored (`passthrough`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..storage.codecs import codec_of
from ..storage.parts import sync_parts
from ..storage.schema import Leaf, Schema
from .layout import Shapes, observation_pairs
from .passthrough import SourceRows, SourceStates, StepRun, find_passthrough
from .records import unchained_error
from .result import Columns
from .successors import as_bytes, differing, find_unchained

if TYPE_CHECKING:
    from ..storage.dataset import Dataset


class PartWriter:
    """Writes the results of chunk ``number`` into ``folder``, leaf by leaf, and checks successors.

    ``name`` is that of the function, for messages; ``shapes`` are those of all results; ``source`` is the input.
    """

    def __init__(self, name: str, folder: Path, schema: Schema, shapes: Shapes, number: int, source: Dataset) -> None:
        self._name, self._folder = name, folder
        self._leaves = [leaf for leaf in schema if leaf.constant is None]
        self._sinks = {leaf.name: codec_of(leaf).open_appender(folder, number) for leaf in self._leaves}
        self._states = {leaf.name for leaf in schema.states}
        #: Leaves with the codec and dictionary of the input, whose unchanged rows are copied.
        self._copyable = frozenset(leaf.name for leaf in schema.states if _is_copyable(folder, leaf, source))
        self._pairs = observation_pairs(shapes)
        self._unchained: set[str] = set()
        self._steps = 0
        #: The first observations, the last successors, and whether the last step is done.
        self._first: dict[str, torch.Tensor] = {}
        self._last: dict[str, torch.Tensor] = {}
        self._done = True

    def add(self, columns: Columns, where: str, source: SourceStates | None) -> None:
        """Append rows. ``where`` describes them in messages; ``source``: the states of the input that they may be.

        Leaves that were not decoded have no columns, and are copied. Raises ResultError for successors of a state leaf that
        are not the observation of the following step.
        """
        done = columns["next/done"].view(-1)
        copied: dict[str, SourceRows] = {}
        runs: list[StepRun] = []
        if source is not None and self._copyable:
            names, runs = find_passthrough(source, columns, self._copyable)
            copied = {name: source.leaves[name] for name in names}
        self._check_chain(columns, done, where, copied)
        ends = done.nonzero().squeeze(1)
        for leaf in self._leaves:
            if leaf.name in copied:
                self._copy(leaf, copied[leaf.name], runs, done)
                continue
            rows = columns[leaf.name]
            if leaf.kind == "state":
                rows = _in_state_order(rows, columns["next/" + leaf.name], done, ends)
            self._sinks[leaf.name].append(as_bytes(rows))
        self._steps += len(done)

    def _copy(self, leaf: Leaf, source: SourceRows, runs: list[StepRun], done: torch.Tensor) -> None:
        """Copy the states of each run, with the final state where an episode ends."""
        for run in runs:
            first = source.first + run.first
            last = first + run.stop - run.start + int(done[run.stop - 1])
            self._sinks[leaf.name].copy(source.leaf, first, last)

    def _check_chain(self, columns: Columns, done: torch.Tensor, where: str, copied: Mapping[str, SourceRows]) -> None:
        unchanged = {path for name in copied for path in (name, "next/" + name)}
        unchained = find_unchained({path: rows for path, rows in columns.items() if path not in unchanged}, done)
        for name in self._pairs:
            if name not in columns:
                continue  # it was not decoded
            if not self._done and bool(differing(self._last[name][None], columns[name][:1])):
                unchained.setdefault(name, -1)
            self._first.setdefault(name, columns[name][0].clone())
            self._last[name] = columns["next/" + name][-1].clone()
        self._done = bool(done[-1])
        for name, row in unchained.items():
            if name in self._states:
                raise unchained_error(self._name, name, f"at row {row + 1} of {where}")
        self._unchained.update(unchained)

    def finish(self) -> dict[str, Any]:
        """Close the files. Returns ``leaves`` (the records of the sinks), ``steps``, ``unchained``, ``edges`` (hashes of the
        first observations and the last successors) and ``open`` (whether the last step is not done)."""
        leaves = {name: sink.finish(sync=False) for name, sink in self._sinks.items()}
        sync_parts(self._folder)
        edges = {name: [_hash_row(self._first[name]), _hash_row(self._last[name])] for name in self._first}
        return {
            "leaves": leaves,
            "steps": self._steps,
            "unchained": sorted(self._unchained),
            "edges": edges,
            "open": not self._done,
        }

    def abandon(self) -> None:
        for sink in self._sinks.values():
            sink.abandon()


def _in_state_order(
    rows: torch.Tensor, successors: torch.Tensor, done: torch.Tensor, ends: torch.Tensor
) -> torch.Tensor:
    """Root rows, and after the last row of each episode its successor."""
    if not len(ends):
        return rows
    place = torch.arange(len(rows)) + done.cumsum(0) - done.long()
    out = torch.empty(len(rows) + len(ends), *rows.shape[1:], dtype=rows.dtype)
    out[place] = rows
    out[place[ends] + 1] = successors[ends]
    return out


def _hash_row(row: torch.Tensor) -> str:
    return hashlib.blake2b(row.contiguous().numpy().tobytes(), digest_size=12).hexdigest()


def _is_copyable(folder: Path, leaf: Leaf, source: Dataset) -> bool:
    """Whether the leaf of the input has the codec and dictionary of this one."""
    old = source.schema.get(leaf.name)
    return old is not None and old.kind == "state" and codec_of(leaf).is_like(folder, old, source.path)
