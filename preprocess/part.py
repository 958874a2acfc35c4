"""One finished chunk on the disk: a file for each leaf, until it is its turn to be appended.

A state leaf gets its rows in the order of states: what a step begins with, and behind the last step of an episode what that
led to. The successors of all other steps are the rows that follow them, which is checked here. Rows that are those of the
input are copied as they are (`stored`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..storage.codecs.zstd import RowEncoder
from ..storage.rows import ZstdRows
from ..storage.schema import Leaf, Schema
from ..storage.sinks import GrowingSink, sync_part
from .layout import Shapes, pairs
from .passthrough import Origin, Run, Stored, untouched
from .records import not_chained
from .result import Columns
from .successors import as_bytes, differing, unchained

if TYPE_CHECKING:
    from ..storage.dataset import Dataset


class PartWriter:
    """Writes what became of one chunk, leaf by leaf, and looks whether successors are what follows.

    ``name`` is the function's, for errors; ``shapes`` are those of all results.
    """

    def __init__(self, name: str, folder: Path, schema: Schema, shapes: Shapes, number: int, before: Dataset) -> None:
        self._name, self._folder = name, folder
        self._leaves = [leaf for leaf in schema if leaf.constant is None]
        self._sinks = {leaf.name: GrowingSink(folder, number, leaf, _encoder(folder, leaf)) for leaf in self._leaves}
        self._states = {leaf.name for leaf in schema.states}
        #: Leaves that are compressed as those of the input are: rows that nobody changed are copied.
        self._alike = frozenset(leaf.name for leaf in schema.states if _is_alike(folder, leaf, before))
        self._pairs = pairs(shapes)
        self._unchained: set[str] = set()
        self._steps = 0
        #: Of the first row and of the row before the next one: observations, and whether an episode ended.
        self._first: dict[str, torch.Tensor] = {}
        self._last: dict[str, torch.Tensor] = {}
        self._done = True

    def add(self, columns: Columns, where: str, origin: Origin | None) -> None:
        """Append rows; ``where`` they come from, for people and (None where there is nothing to be copied) for us.

        Leaves that were not read have no columns, and are copied.
        """
        done = columns["next/done"].view(-1)
        copied: dict[str, Stored] = {}
        parts: list[Run] = []
        if origin is not None and self._alike:
            names, parts = untouched(origin, columns, self._alike)
            copied = {name: origin.stored[name] for name in names}
        self._check_chain(columns, done, where, copied)
        ends = done.nonzero().squeeze(1)
        for leaf in self._leaves:
            if leaf.name in copied:
                self._copy(leaf, copied[leaf.name], parts, done)
                continue
            rows = columns[leaf.name]
            if leaf.kind == "state":
                rows = _in_state_order(rows, columns["next/" + leaf.name], done, ends)
            self._sinks[leaf.name].write(as_bytes(rows))
        self._steps += len(done)

    def _copy(self, leaf: Leaf, stored: Stored, parts: list[Run], done: torch.Tensor) -> None:
        """The states of each run, and the final one of those that end here."""
        for run in parts:
            first = stored.first + run.first
            last = first + run.stop - run.start + int(done[run.stop - 1])
            assert isinstance(stored.leaf, ZstdRows)  # it is alike
            self._sinks[leaf.name].copy(*stored.leaf.compressed(first, last))

    def _check_chain(self, columns: Columns, done: torch.Tensor, where: str, copied: Mapping[str, Stored]) -> None:
        known = {path for name in copied for path in (name, "next/" + name)}  # they are what they were
        broken = unchained({path: rows for path, rows in columns.items() if path not in known}, done)
        for name in self._pairs:
            if name not in columns:
                continue  # nobody looked at it, or had to
            if not self._done and bool(differing(self._last[name][None], columns[name][:1])):
                broken.setdefault(name, -1)
            self._first.setdefault(name, columns[name][0].clone())
            self._last[name] = columns["next/" + name][-1].clone()
        self._done = bool(done[-1])
        for name, row in broken.items():
            if name in self._states:
                raise not_chained(self._name, name, f"at row {row + 1} of {where}")
        self._unchained.update(broken)

    def finish(self) -> dict[str, Any]:
        leaves = {name: sink.finish() for name, sink in self._sinks.items()}
        sync_part(self._folder)
        edges = {name: [_mark(self._first[name]), _mark(self._last[name])] for name in self._first}
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
    """Root rows, and behind the last one of an episode its final state."""
    if not len(ends):
        return rows
    place = torch.arange(len(rows)) + done.cumsum(0) - done.long()
    out = torch.empty(len(rows) + len(ends), *rows.shape[1:], dtype=rows.dtype)
    out[place] = rows
    out[place[ends] + 1] = successors[ends]
    return out


def _mark(row: torch.Tensor) -> str:
    """Stands for one row when two chunks are compared."""
    return hashlib.blake2b(row.contiguous().numpy().tobytes(), digest_size=12).hexdigest()


def _is_alike(folder: Path, leaf: Leaf, before: Dataset) -> bool:
    """Whether a leaf of the input is compressed as this one is to be."""
    rows = before.rows.get(leaf.name)
    if (
        leaf.codec != "zstd"
        or not isinstance(rows, ZstdRows)
        or (rows.leaf.dtype, rows.leaf.shape) != (leaf.dtype, leaf.shape)
    ):
        return False
    return rows.dictionary == folder.joinpath(*leaf.key, "dictionary").read_bytes()


_encoders: dict[tuple[str, int], RowEncoder] = {}


def _encoder(folder: Path, leaf: Leaf) -> RowEncoder | None:
    """What compresses the rows of a leaf, with the dictionary of the working folder; digested once in each process."""
    if leaf.codec != "zstd":
        return None
    path = folder.joinpath(*leaf.key) / "dictionary"
    key = (str(path), path.stat().st_mtime_ns)
    if key not in _encoders:
        if len(_encoders) >= 8:
            _encoders.clear()
        _encoders[key] = RowEncoder(path.read_bytes())
    return _encoders[key]
