"""The parts of a view: segments of the episodes of one or several datasets, and rows that are read from the members.

A *segment* is a run of consecutive steps of one episode of one of the datasets, the *members* of the view. Each segment is an
episode of the view, in the order of the segments. One that leaves out the first steps of its episode begins midway, one that
leaves out the last is cut, and its last step is truncated:

    member 0   a0 a1 a2 | b0 b1        member 1   c0 c1 c2 c3
    segments   (0, b, 0..1)  (1, c, 1..2)
    view       b0 b1 | c1 c2           c1 is midway, c2 is cut: done and truncated there

No row is copied: `SegmentRows` maps row numbers of the view to row numbers of the members. Segments that are adjacent in a
member are read together. `dataset.DatasetView` is the dataset made of these parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import torch

from ..errors import UsageError
from .codecs.codec import Rows
from .computed_rows import ComputedRows, ConstantRows
from .episodes import CUT, EpisodeTable
from .leaf import Leaf, is_observation
from .manifest import Manifest, ViewManifest
from .memory_map import widest_word
from .reference_scores import OTHER_RETURNS, original_source, stated_wrappers
from .row_index import row_index
from .schema import Schema
from .window import as_words

#: The flags that are set where a segment ends and its episode continues.
_ENDING = ("next/done", "next/truncated")
#: Entries of the table by which runs are found.
_LARGEST_TABLE = 1 << 16
#: Entries of ``source`` in a manifest that apply to a part of the data, and to several datasets if all state them.
_OF_ANY_PART = ("name", "dataset", "options", "environment", "reference_scores")


class Member(Protocol):
    """The interface that a view needs of its members (`dataset.Dataset`)."""

    manifest: Manifest

    @property
    def schema(self) -> Schema: ...
    @property
    def episodes(self) -> EpisodeTable: ...
    @property
    def rows(self) -> Mapping[str, Rows]: ...


@dataclass(frozen=True)
class Segments:
    """The segments of a view: int64 ``[segments]`` each.

    ``member`` is the number of the dataset, ``episode`` the number of its episode, ``offset`` the number of steps of the
    episode before the segment, ``length`` (at least 1) the number of steps of the segment.
    """

    member: np.ndarray
    episode: np.ndarray
    offset: np.ndarray
    length: np.ndarray

    def __len__(self) -> int:
        return len(self.member)

    @classmethod
    def of_episodes(cls, table: EpisodeTable, numbers: np.ndarray, member: int = 0) -> Segments:
        """Whole episodes of a member, by number."""
        zero = np.zeros(len(numbers), np.int64)
        return cls(zero + member, numbers, zero, np.asarray(table.lengths[numbers], np.int64))

    @classmethod
    def of_steps(cls, table: EpisodeTable, steps: np.ndarray) -> Segments:
        """Return steps in the order given; consecutive steps of one episode are a segment."""
        episode = np.searchsorted(table.starts, steps, "right") - 1
        begins = np.ones(len(steps), bool)
        begins[1:] = (np.diff(steps) != 1) | (np.diff(episode) != 0)
        first = np.flatnonzero(begins)
        length = np.diff(np.append(first, len(steps)))
        offset = steps[first] - table.starts[episode[first]]
        return cls(np.zeros(len(first), np.int64), episode[first], offset.astype(np.int64), length.astype(np.int64))

    @classmethod
    def pieces(cls, table: EpisodeTable, steps: int, length: int | None) -> Segments:
        """The first ``steps`` steps, in pieces of ``length`` steps of an episode (None: whole), the last one shorter."""
        starts = table.starts[table.starts < steps]
        lengths = np.minimum(table.lengths[: len(starts)], steps - starts)
        length = length or steps
        count = -(-lengths // length)
        episode = np.repeat(np.arange(len(starts)), count)
        offset = (np.arange(len(episode)) - np.repeat(np.cumsum(count) - count, count)) * length
        return cls(np.zeros(len(episode), np.int64), episode, offset, np.minimum(length, lengths[episode] - offset))

    @classmethod
    def join(cls, several: Iterable[Segments]) -> Segments:
        return cls(*map(np.concatenate, zip(*(vars(one).values() for one in several))))

    def within(self, outer: Segments) -> Segments:
        """Segments of a view, whose own segments are ``outer``, as segments of the view's members."""
        there = self.episode  # an episode of the view is one of its segments
        return Segments(outer.member[there], outer.episode[there], outer.offset[there] + self.offset, self.length)

    @property
    def digest(self) -> str:
        """sha256 (hex) of the numbers."""
        columns = (np.ascontiguousarray(column, "<i8").tobytes() for column in vars(self).values())
        return hashlib.sha256(b"".join(columns)).hexdigest()


# -- which ones --------------------------------------------------------------------------------------------------------------


def chosen(what: str, given: Any, count: int) -> np.ndarray:
    """Numbers of episodes or steps below ``count``, int64 ``[n]``, from numbers, a range, a slice or a mask (bool ``[count]``).

    Raises UsageError for anything else, and for a mask of whole numbers.
    """
    shape = np.shape(given) if isinstance(given, (list, tuple)) else getattr(given, "shape", ())
    if len(shape) > 1:
        hint = "flatten it with .reshape(-1): flags have a second dimension of 1"
        raise UsageError(f"{what} are one-dimensional, not of shape {list(shape)}", hint=hint)
    index = row_index(list(given) if isinstance(given, tuple) else given, count, what.removesuffix("s"))
    if isinstance(index, slice):
        return np.arange(*index.indices(count), dtype=np.int64)
    numbers = np.atleast_1d(np.asarray(index, np.int64))
    if len(numbers) == count > 3 and ((numbers == 0) | (numbers == 1)).all():
        message = f"{what} are given as {count} numbers that are all 0 or 1: as numbers they would repeat the first two"
        raise UsageError(message, hint="a mask is of bool: mask.astype(bool), or mask.bool() of a tensor")
    return numbers


# -- what the members have in common -----------------------------------------------------------------------------------------


def common_leaves(members: Sequence[Member], keys: Literal["all", "common"]) -> list[Leaf]:
    """Return the leaves of a view: the leaves of the members, which must be equal, or with ``common`` the equal leaves.

    Raises UsageError, naming the leaves, if they differ, and with ``common`` if no observation is left.
    """
    first, *others = [member.schema for member in members]
    names = dict.fromkeys(leaf.name for schema in (first, *others) for leaf in schema)
    leaves, unlike = [], []
    for name in names:
        found = [schema.get(name) for schema in (first, *others)]
        forms = [None if leaf is None else (leaf.kind, leaf.dtype, leaf.shape) for leaf in found]
        other = next((number for number, form in enumerate(forms) if form != forms[0]), None)
        if other is not None:
            places = (f"{_form(found[at])} in {members[at].manifest.id}" for at in (0, other))
            unlike.append(f"{name} ({', '.join(places)})")
            continue
        alike = [leaf for leaf in found if leaf is not None]  # all of them
        constant = alike[0].constant if all(leaf.constant == alike[0].constant for leaf in alike) else None
        leaves.append(replace(alike[0], constant=constant))
    if any(map(is_observation, names)) and not any(is_observation(leaf.name) for leaf in leaves):
        message = f"the datasets have no observation in common: they differ in {', '.join(unlike)}"
        raise UsageError(message, hint="make their observations alike first, with `rbdata preprocess --fn`")
    if unlike and keys != "common":
        message = f"the datasets differ in their leaves: {', '.join(unlike)}"
        hint = 'rbdata.concat(datasets, keys="common"), or `rbdata preprocess` with --keys common, leaves these out'
        raise UsageError(message, hint=hint)
    return leaves


def _form(leaf: Leaf | None) -> str:
    if leaf is None:
        return "not"
    return f"{leaf.dtype} {list(leaf.shape)}{' stored per state' if leaf.kind == 'state' else ''}"


def make_manifest(members: Sequence[Member], segments: Segments, schema: Schema, table: EpisodeTable) -> ViewManifest:
    """Return the manifest of a view: the facts shared by all members.

    With a single member it keeps source, lineage and notes.
    """
    manifests = [member.manifest for member in members]
    first, returns, lengths = manifests[0], *table.summary()
    sources = [original_source(one)[0] for one in manifests]
    source = {
        key: sources[0][key] for key in _OF_ANY_PART if all(one.get(key, one) == sources[0].get(key) for one in sources)
    }
    wrappers = [name for one in sources for name in stated_wrappers(one)]
    if wrappers:
        source[OTHER_RETURNS] = [*dict.fromkeys(wrappers)]
    single = len(members) == 1
    parents = [
        {"id": one.id, "content": one.content, "steps": one.steps, "episodes": one.episodes, "lineage": one.lineage}
        for one in manifests
    ]
    return ViewManifest(
        id=first.id if single else " + ".join(dict.fromkeys(one.id for one in manifests))[:1024],
        schema=schema,
        steps=table.steps,
        episodes=len(table),
        source=first.source if single else source,
        spaces={
            key: space for key, space in first.spaces.items() if all(one.spaces.get(key) == space for one in manifests)
        },
        notes=list(dict.fromkeys(note for one in manifests for note in one.notes)),
        returns=returns,
        lengths=lengths,
        licence=_joined(one.licence for one in manifests),
        citation=_joined(one.citation for one in manifests),
        lineage=first.lineage if single else None,
        identity={
            "members": [one.content for one in manifests],
            "segments": segments.digest,
            "leaves": [leaf.name for leaf in schema],
        },
        parents=parents,
    )


def _joined(texts: Iterable[str | None]) -> str | None:
    return "\n".join(dict.fromkeys(text for text in texts if text)) or None


def make_table(members: Sequence[Member], segments: Segments) -> EpisodeTable:
    """Return the episodes of a view.

    The return of a part of an episode is the sum of its rewards, which are read from the member.
    """
    there, returns, outcome, midway = (
        _gather(members, segments, column) for column in ("lengths", "returns", "outcomes", "midway")
    )
    for place in np.flatnonzero(segments.length != there).tolist():
        member = members[int(segments.member[place])]
        begin = int(member.episodes.starts[segments.episode[place]] + segments.offset[place])
        rewards = member.rows["next/reward"].block(begin, begin + int(segments.length[place]))
        returns[place] = float(rewards.double().sum())
    outcome[segments.offset + segments.length != there] = CUT
    start = np.cumsum(segments.length) - segments.length
    return EpisodeTable(start, segments.length, returns, outcome, midway | (segments.offset > 0))


def _gather(members: Sequence[Member], segments: Segments, column: str) -> np.ndarray:
    """A column of the members' episode tables for the episode of each segment."""
    tables = [getattr(member.episodes, column) for member in members]
    out = np.empty(len(segments), tables[0].dtype.newbyteorder("="))
    for number, values in enumerate(tables):
        mine = segments.member == number
        out[mine] = values[segments.episode[mine]]
    return out


# -- rows ------------------------------------------------------------------------------------------------------------------


def make_rows(
    members: Sequence[Member], segments: Segments, leaves: Sequence[Leaf], table: EpisodeTable, marked: bool = False
) -> dict[str, Rows]:
    """Return the rows of the leaves of a view, by name; if ``marked``, with the leaf ``dataset`` (`MemberRows`)."""
    first, member = _gather(members, segments, "starts") + segments.offset, segments.member
    here, there = table.starts + np.arange(len(segments)), first + segments.episode
    runs = {
        "step": _Runs(member, table.starts, first, segments.length, len(members)),
        "state": _Runs(member, here, there, segments.length + 1, len(members)),
    }
    ends = table.starts + table.lengths - 1
    cut = torch.from_numpy(ends[segments.offset + segments.length != _gather(members, segments, "lengths")])
    rows: dict[str, Rows] = {}
    for leaf in leaves:
        if leaf.constant is not None:
            rows[leaf.name] = ConstantRows(leaf, runs[leaf.kind].count)
            continue
        made: Rows = SegmentRows(leaf, runs[leaf.kind], [member.rows[leaf.name] for member in members])
        rows[leaf.name] = EndedRows(made, cut) if leaf.name in _ENDING and len(cut) else made
    if marked and "dataset" in rows:
        message = f"{members[0].manifest.id} has a leaf 'dataset', which says here whose a row is"
        raise UsageError(message, hint="rename it with `rbdata preprocess`")
    return {**rows, "dataset": MemberRows(runs["step"])} if marked else rows


class _Runs:
    """Runs of rows of a view that are consecutive in a member.

    ``start`` (int64 ``[runs + 1]``) is the first row of each run in the view and, last, the number of rows; ``shift`` is added
    to a row number of the view to get the row number in ``member``. ``members`` is the number of members.
    """

    def __init__(
        self, member: np.ndarray, here: np.ndarray, there: np.ndarray, count: np.ndarray, members: int
    ) -> None:
        """Runs of rows ``there`` to ``there + count - 1`` of each ``member``: the rows of the view from ``here`` on."""
        begins = np.ones(len(member), bool)
        begins[1:] = (np.diff(member) != 0) | (there[1:] != there[:-1] + count[:-1])
        start = here[begins]
        self.start, self.shift = np.append(start, int(count.sum())).astype(np.int64), there[begins] - start
        self.member, self.members, self.count = member[begins], members, int(count.sum())
        self._last: tuple[torch.Tensor, int, np.ndarray] | None = None
        #: The run of every 2^k-th row, for long runs: searching costs ten times as much.
        shortest = int(np.diff(self.start).min(initial=self.count))
        self._every, self._known = max(0, shortest.bit_length() - 1), None
        if self.count >> self._every < _LARGEST_TABLE:
            self._known = np.searchsorted(self.start, np.arange(0, self.count, 1 << self._every), "right") - 1

    def of(self, rows: torch.Tensor) -> np.ndarray:
        """The run of each row. All leaves of a batch ask for the same rows, so the last answer is kept."""
        last = self._last
        if last is not None and last[0] is rows and not rows.is_inference() and last[1] == rows._version:
            return last[2]
        numbers = rows.numpy()
        if self._known is None:
            found = np.searchsorted(self.start, numbers, "right") - 1
        else:
            found = self._known.take(numbers >> self._every)
            found += numbers >= self.start.take(found + 1)  # at most one run begins in between
        if not rows.is_inference():  # inference mode does not count changes in place
            self._last = rows, rows._version, found
        return found


class SegmentRows:
    """A leaf of a view: the rows of its members' leaves.

    Where all of them lie in memory (mapped raw files), one gather by address reads the rows of any number of members;
    otherwise those of each member are read together.
    """

    def __init__(self, leaf: Leaf, runs: _Runs, rows: Sequence[Rows]) -> None:
        self.leaf, self.count, self._runs, self._rows = leaf, runs.count, runs, list(rows)
        self._dtype: torch.dtype = getattr(torch, leaf.dtype)
        found = [getattr(one, "address", None) for one in rows]
        addresses = np.array([one for one in found if one is not None], np.int64)
        self._origin: np.ndarray | None = None
        if len(rows) > 1 and len(addresses) == len(rows):
            self._word, self._base = widest_word(leaf.row_bytes)[0], int(addresses.min())
            #: Where row 0 of the view would lie if all rows were those of a run, in words from the lowest address.
            self._origin = (addresses[runs.member] + runs.shift * leaf.row_bytes - self._base) // self._word
            ends = addresses + np.array([one.count for one in rows]) * leaf.row_bytes
            self._words, self._memory = (int(ends.max()) - self._base) // self._word, dict[int, np.ndarray]()

    def take(self, index: torch.Tensor) -> torch.Tensor:
        return self._read(index, 1, lambda rows, there: rows.take(there)).view(len(index), *self.leaf.shape)

    def windows(self, first: torch.Tensor, length: int) -> torch.Tensor:
        inside = first.numpy() + length <= self._runs.start[self._runs.of(first) + 1]
        if inside.all():
            return self._read(first, length, lambda rows, there: rows.windows(there, length))
        # Rows beyond the end of a run belong to other episodes; most readers replace them.
        within = torch.from_numpy(inside)
        out = torch.empty(len(first), length, *self.leaf.shape, dtype=self._dtype, device="cpu")
        out[within] = self.windows(first[within], length)
        crossing = (first[~within][:, None] + torch.arange(length, device="cpu")).reshape(-1)
        out[~within] = self.take(crossing).view(-1, length, *self.leaf.shape)
        return out

    def block(self, start: int, stop: int) -> torch.Tensor:
        blocks = [rows.block(low, high) for rows, low, high in self._pieces(start, stop)]
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks) if blocks else self._empty(0, 0)[:, 0]

    def stored(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return rows ``start..stop-1`` of a compressed leaf as they are stored, see `CompressedRows.stored`."""
        pieces = [rows.stored(low, high) for rows, low, high in self._pieces(start, stop)]  # type: ignore[attr-defined]
        if len(pieces) == 1:
            return pieces[0]
        data, lengths = zip(*pieces)
        return np.concatenate(data), np.concatenate(lengths)

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[Rows, int, int]]:
        """The rows of members that form rows ``start..stop-1``."""
        runs = self._runs
        run = int(np.searchsorted(runs.start, start, "right")) - 1
        while start < stop:
            end, shift = min(stop, int(runs.start[run + 1])), int(runs.shift[run])
            yield self._rows[int(runs.member[run])], start + shift, end + shift
            start, run = end, run + 1

    def _read(
        self, first: torch.Tensor, length: int, read: Callable[[Rows, torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """``length`` rows from each of ``first``, which lie in one run: ``[n, length, *shape]``, or as ``read`` gives them."""
        runs = self._runs.of(first)
        if self._origin is not None:
            return self._gather(self._origin.take(runs) + first.numpy() * (self.leaf.row_bytes // self._word), length)
        there = first + torch.from_numpy(self._runs.shift.take(runs))
        if len(self._rows) == 1:
            return read(self._rows[0], there)
        members, out = self._runs.member.take(runs), self._empty(len(first), length)
        for number in np.unique(members).tolist():
            mine = np.flatnonzero(members == number)
            found = read(self._rows[number], there[torch.from_numpy(mine)])
            # By NumPy for the reason given in `row_index.lookup`.
            as_words(out).numpy()[mine] = as_words(found.reshape(len(mine), length, *self.leaf.shape)).numpy()
        return out

    def _gather(self, places: np.ndarray, length: int) -> torch.Tensor:
        """``length`` rows from each of these places, in words."""
        if not len(places):
            return self._empty(0, length)
        memory = self._memory.get(length)
        if memory is None:
            size = self.leaf.row_bytes * length
            item = f"<u{size}" if size == self._word else f"|V{size}"
            # An array over all the memory between the first row and the last, of which only rows are touched.
            made = _Memory(self._base, self._words - size // self._word + 1, self._word, item)
            memory = self._memory[length] = np.asarray(made)
        rows: torch.Tensor = torch.from_numpy(memory[places].view(np.uint8)).view(self._dtype)
        return rows.view(len(places), length, *self.leaf.shape)

    def _empty(self, *batch: int) -> torch.Tensor:
        return torch.empty(*batch, *self.leaf.shape, dtype=self._dtype, device="cpu")


class _Memory:
    """Items of memory that begin at every ``stride`` bytes from an address, to be viewed by NumPy."""

    def __init__(self, address: int, count: int, stride: int, item: str) -> None:
        self.__array_interface__ = {
            "data": (address, True),
            "shape": (count,),
            "strides": (stride,),
            "typestr": item,
            "version": 3,
        }


class MemberRows(ComputedRows):
    """The number of the member that each step comes from: the leaf ``dataset``, int64 ``[]``."""

    def __init__(self, runs: _Runs) -> None:
        super().__init__(Leaf("dataset", "step", "int64", ()), runs.count)
        self._runs = runs

    def take(self, index: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self._runs.member.take(self._runs.of(index)))


class EndedRows(ComputedRows):
    """A flag, bool ``[1]``, that is also set in the rows ``ends`` (int64, ascending)."""

    def __init__(self, rows: Rows, ends: torch.Tensor) -> None:
        super().__init__(replace(rows.leaf, constant=None), rows.count)
        self._rows, self._ends = rows, ends

    def take(self, index: torch.Tensor) -> torch.Tensor:
        ends, rows = self._ends.numpy(), index.numpy()
        is_end = ends.take(np.searchsorted(ends, rows), mode="clip") == rows
        return self._rows.take(index) | torch.from_numpy(is_end)[:, None]
