"""How a batch is read: column by column, one gather for each leaf.

A `BatchColumn` reads the leaves of one stored leaf for the steps of a draw, whose places in time `At` computes when a column
asks for them. Batches do not share memory with the storage, nor do the leaves of a batch with each other.

This module has the columns of single steps, `windows` those that read rows around a step: stacks, n-step returns and windows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from ..codecs import load_codec
from ..codecs.codec import Rows
from ..window import Windows
from .draw import Slices
from .storages.storage import Storage
from .timeline import Timeline

Value = TypeVar("Value", torch.Tensor, Windows)


class At:
    """Where the steps of a draw lie: ``rows`` of the storage, int64 ``[n]``, and in time.

    ``position``, ``episode`` and its extent ``low`` to ``high``, the ``state`` row, and ``last``, the step whose successor is
    returned: n - 1 later with n-step returns, at most the end of the episode. Each is computed once, for all columns.
    """

    def __init__(
        self,
        timeline: Callable[[], Timeline],
        rows: torch.Tensor,
        slices: Slices | None = None,
        n_step: int | None = None,
    ) -> None:
        self.rows, self.size, self.slices, self.n_step, self._timeline = rows, len(rows), slices, n_step, timeline
        self._known: dict[str, Any] = {}
        self._starts: At | None = None
        #: The slices, if rows can be read as windows of their length.
        self.whole: Slices | None = None
        if slices is not None:
            self._known["position"] = slices.positions
            self.whole = slices if slices.length > 1 and slices.whole else None

    @property
    def timeline(self) -> Timeline:
        return self._timeline() if self.slices is None else self.slices.timeline

    def kept(self, name: str, make: Callable[[], Value]) -> Value:
        """Return a value for each step, made once."""
        if name not in self._known:
            self._known[name] = make()
        found: Value = self._known[name]
        return found

    @property
    def position(self) -> torch.Tensor:
        return self.kept("position", lambda: self.timeline.positions(self.rows))

    @property
    def episode(self) -> torch.Tensor:
        return self.kept("episode", lambda: self.timeline.episode_of(self.position))

    @property
    def low(self) -> torch.Tensor:
        return self.kept("low", lambda: self.timeline.extent_of(self.episode)[0])

    @property
    def high(self) -> torch.Tensor:
        return self.kept("high", lambda: self.timeline.extent_of(self.episode)[1])

    @property
    def state(self) -> torch.Tensor:
        """The state row of step i in episode e is i + e: an episode has one more of them than steps."""
        return self.kept("state", lambda: self.position + self.episode)

    @property
    def last(self) -> torch.Tensor:
        if self.n_step is None:
            return self.position
        ahead = self.n_step
        return self.kept("last", lambda: torch.minimum(self.position + ahead, self.high) - 1)

    @property
    def last_rows(self) -> torch.Tensor:
        return self.rows if self.n_step is None else self.kept("last_rows", lambda: self.timeline.rows(self.last))

    @property
    def starts(self) -> At:
        """Where the first steps of the slices lie."""
        if self._starts is None:
            assert self.slices is not None
            timeline = self.slices.timeline
            self._starts = At(lambda: timeline, timeline.rows(self.slices.start))
            self._starts._known["position"] = self.slices.start
        return self._starts

    def split(self, sizes: Sequence[int], counts: Sequence[int]) -> list[At]:
        """Return those of consecutive batches, with what is known; ``counts``: the slices of each."""
        rows = self.rows.split_with_sizes(list(sizes))
        slices: Sequence[Slices | None] = [None] * len(sizes) if self.slices is None else self.slices.split(counts)
        found = []
        for part, own in zip(rows, slices):
            at = object.__new__(At)  # without the positions of the slices, which are known
            at.rows, at.size, at.slices, at.n_step, at._timeline = part, len(part), own, self.n_step, self._timeline
            at._known, at._starts, at.whole = {}, None, own if self.whole is not None else None
            found.append(at)
        for name, value in self._known.items():
            parts = value.split(sizes) if isinstance(value, Windows) else value.split_with_sizes(list(sizes))
            for at, part in zip(found, parts):
                at._known[name] = part
        if self._starts is not None:
            for at, starts in zip(found, self._starts.split(counts, ())):
                at._starts = starts
        return found


class BatchColumn:
    """Reads leaves of a batch. ``bytes``: how many for each step; ``names``: the paths of the leaves."""

    bytes: int
    names: tuple[str, ...]

    def plan(self, at: At) -> None:
        """Have ``at`` compute what `read` needs, for several batches at once."""

    def read(self, at: At) -> tuple[torch.Tensor, ...]:
        """Return the leaves, ``[n, ...]`` each, in the order of ``names``."""
        raise NotImplementedError


class StepColumn(BatchColumn):
    """A leaf with a row for each step."""

    def __init__(self, rows: Rows) -> None:
        self._rows, self.names, self.bytes = rows, (rows.leaf.name,), rows.leaf.row_bytes
        self._follows = rows.leaf.name.startswith("next/") or getattr(rows, "follows_action", False)

    def read(self, at: At) -> tuple[torch.Tensor, ...]:
        if self._follows and at.n_step is not None:
            return (self._rows.take(at.last_rows),)
        whole = at.whole
        if whole is not None:
            return (self._rows.windows(whole.start, whole.length).flatten(0, 1),)
        return (self._rows.take(at.rows),)


class StateColumn(BatchColumn):
    """A leaf with a row for each state: the state of a step and its successor, which is the next row; or one of both."""

    def __init__(self, rows: Rows, names: Sequence[str]) -> None:
        self._rows, self.names = rows, tuple(names)
        self._first, self._both = names[0].startswith("next/"), len(names) == 2
        self.bytes = len(names) * rows.leaf.row_bytes
        # A row of fixed size costs one copy per use; other rows are decoded, which costs more than copying.
        self._fixed = load_codec(rows.leaf.codec).fixed_rows

    def plan(self, at: At) -> None:
        _ = at.starts.state if at.whole is not None and at.n_step is None else at.state
        if at.n_step is not None:
            _ = at.last

    def read(self, at: At) -> tuple[torch.Tensor, ...]:
        rows, slices = self._rows, at.whole
        if at.n_step is not None:
            here, after = at.state, at.state + (at.last - at.position) + 1
            if not self._both:
                return (rows.take(after if self._first else here),)
            # If rows are decoded, one call decodes both.
            return tuple(rows.take(torch.cat([here, after])).chunk(2))
        if slices is None:
            if not self._both:
                return (rows.take(at.state + self._first),)
            pair = rows.windows(at.state, 2)
            return pair[:, 0], pair[:, 1]
        first, length = at.starts.state, slices.length
        if self._fixed or not self._both:
            firsts = (first, first + 1) if self._both else (first + self._first,)
            return tuple(rows.windows(one, length).flatten(0, 1) for one in firsts)
        # Each row is decoded once, then both views of the rows are flattened, which copies (except for a single slice, hence
        # the first case); by NumPy, for the reason given in `row_index.lookup`.
        read, shape = rows.windows(first, length + 1).numpy(), (len(first) * length, *rows.leaf.shape)
        return torch.from_numpy(read[:, :-1].copy().reshape(shape)), torch.from_numpy(read[:, 1:].reshape(shape))


class Only(BatchColumn):
    """Some of the leaves that a column reads."""

    def __init__(self, column: BatchColumn, names: Sequence[str]) -> None:
        self._column, self.names, self.bytes, self.plan = column, tuple(names), column.bytes, column.plan  # type: ignore[method-assign]
        self._places = [column.names.index(name) for name in names]

    def read(self, at: At) -> tuple[torch.Tensor, ...]:
        found = self._column.read(at)
        return tuple(found[place] for place in self._places)


def step_columns(
    storage: Storage, leaves: Mapping[str, Rows], *, with_info: bool, without: Any = ()
) -> list[BatchColumn]:
    """Return a column for each leaf, those of ``storage.keys`` if it has such; ``without`` these paths."""
    keys = storage.keys
    columns: list[BatchColumn] = []
    for name, rows in leaves.items():
        # An ``index`` that a writer stored is not read: the drawn rows are known already.
        paths = (name, f"next/{name}") if rows.leaf.kind == "state" else (name,)
        wanted = [path for path in paths if (keys is None or path in keys) and path not in without]
        if not wanted or (with_info and name == "index"):
            continue
        columns.append(StateColumn(rows, wanted) if rows.leaf.kind == "state" else StepColumn(rows))
    return columns
