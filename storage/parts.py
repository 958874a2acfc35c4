"""Writes the rows of one part: in place in the leaf's file, or in a file of the part.

.parts/<leaf>.<part>.blob       rows in the order in which they were written; the journal lists the runs by position
.parts/<leaf>.<part>.lengths    int64 [rows]: the stored length of every row, where rows differ in length
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RbdataError
from .checksums import Crc32c, crc32c, summed
from .durable import close_durably, open_plain, sync_folder, write_at, write_durably
from .leaf import Leaf

PARTS = ".parts"  # a name that no leaf can have
_BLOCK = 1 << 22

#: ``encode(buffer, starts, row_bytes)`` encodes the rows of ``row_bytes`` bytes that begin at ``starts`` (int64 ``[n]``) of a
#: buffer, and returns the encoded rows joined and their lengths (int64 ``[n]``).
Encode = Callable[[Any, np.ndarray, int], tuple[bytes, np.ndarray]]


class _Pieces:
    """The runs of consecutive rows in which a part was written, each with a checksum, as the journal records them."""

    def __init__(self) -> None:
        self._pieces: list[dict[str, Any]] = []
        self._checksum = Crc32c()

    def add(self, position: int, rows: int, offset: int, data: Any, *, in_place: bool = False) -> None:
        """``offset`` is the beginning of a run in the part's file or, ``in_place``, in the leaf's file."""
        last = self._pieces[-1] if self._pieces else None
        if last is None or last["position"] + last["rows"] != position:
            self._finish_run()
            self._checksum = Crc32c(offset if in_place else None)
            last = {"position": position, "rows": 0, "offset": offset}
            self._pieces.append(last)
        self._checksum.update(data)
        last["rows"] += rows

    def _finish_run(self) -> None:
        if self._pieces:
            self._pieces[-1].update(zip(("length", "crc32c", "blocks"), self._checksum.record))

    def in_order(self, rows: int) -> list[dict[str, Any]]:
        """The runs by position. Raises RbdataError unless each of the part's ``rows`` was written once."""
        self._finish_run()
        ordered = sorted(self._pieces, key=lambda piece: piece["position"])
        expected = 0
        for piece in ordered:
            if piece["position"] != expected:
                raise RbdataError(f"part rows {expected}..{piece['position']} were written twice or not at all")
            expected += piece["rows"]
        if expected != rows:
            raise RbdataError(f"a part of {rows} rows was given {expected}")
        return ordered


class RowsInPlace:
    """A sink that writes rows of one size into the leaf's preallocated file; ``first`` is the part's first row in it."""

    def __init__(self, folder: Path, leaf: Leaf, first: int, rows: int) -> None:
        self._leaf, self._first, self._rows = leaf, first, rows
        self._descriptor = os.open(folder / leaf.memmap, os.O_WRONLY | os.O_NOFOLLOW)
        self._pieces = _Pieces()

    def write(self, position: int, buffer: Any, starts: np.ndarray) -> None:
        check_rows(position, len(starts), self._rows)
        if not len(starts):
            return
        view, size = memoryview(buffer).cast("B"), self._leaf.row_bytes
        breaks = np.flatnonzero(np.diff(starts) != size) + 1
        for low, high in zip([0, *breaks.tolist()], [*breaks.tolist(), len(starts)]):
            begin = int(starts[low])
            data = view[begin : begin + (high - low) * size]
            at = (self._first + position + low) * size
            self._pieces.add(position + low, high - low, at, data, in_place=True)
            write_at(self._descriptor, data, at)

    def finish(self) -> dict[str, Any]:
        os.fsync(self._descriptor)
        os.close(self._descriptor)
        names = ("length", "crc32c", "blocks")
        ranges = [[piece[name] for name in names if name in piece] for piece in self._pieces.in_order(self._rows)]
        return {"ranges": {self._leaf.memmap: ranges}, "begin": {self._leaf.memmap: self._first * self._leaf.row_bytes}}


class TedSink:
    """Writes rows in place twice: as ``observation`` of the step they start and as ``next/observation`` of the one before.

    ``state_starts`` holds the first state row of every episode of the dataset (int64, ascending); ``first`` is the
    part's first state row. State row s of episode e is the root row of step s - e, unless it is the episode's last,
    and the next row of step s - e - 1, unless it is the first.
    """

    def __init__(self, folder: Path, leaf: Leaf, first: int, rows: int, state_starts: np.ndarray, states: int) -> None:
        self._first, self._rows, self._starts = first, rows, state_starts
        self._ends = np.append(state_starts[1:], states) - 1
        begin, end = self._rows_before(first), self._rows_before(first + rows)
        next_leaf = Leaf("next/" + leaf.name, "step", leaf.dtype, leaf.shape)
        self._begin = begin
        self._root = RowsInPlace(folder, leaf, begin[0], end[0] - begin[0])
        self._next = RowsInPlace(folder, next_leaf, begin[1], end[1] - begin[1])

    def _rows_before(self, state: int) -> tuple[int, int]:
        """How many root rows and how many next rows come from the states before this one."""
        return (
            state - int(np.searchsorted(self._ends, state, "left")),
            state - int(np.searchsorted(self._starts, state, "left")),
        )

    def write(self, position: int, buffer: Any, starts: np.ndarray) -> None:
        check_rows(position, len(starts), self._rows)
        states = self._first + position + np.arange(len(starts))
        episode = np.searchsorted(self._starts, states, "right") - 1
        is_first = self._starts[episode] == states
        is_last = self._ends[episode] == states
        for file, begin, chosen, steps in (
            (self._root, self._begin[0], ~is_last, states - episode),
            (self._next, self._begin[1], ~is_first, states - episode - 1),
        ):
            if chosen.any():
                # The steps of consecutive states are consecutive, also across episodes.
                file.write(int(steps[chosen][0]) - begin, buffer, starts[chosen])

    def finish(self) -> dict[str, Any]:
        root, successors = self._root.finish(), self._next.finish()
        return {name: {**root[name], **successors[name]} for name in root}


class PartFile:
    """Writes rows to the part's file, encoded or raw: as a sink, or (without ``rows``, their number) appended in order.

    The file gets its name when it is finished: two workers may write a part at once, if one was considered lost.
    """

    def __init__(self, folder: Path, leaf: Leaf, number: int, encode: Encode | None, rows: int | None = None) -> None:
        self._row_bytes, self._encode, self._expected = leaf.row_bytes, encode, rows
        self._path = part_path(folder, leaf, number)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = self._path.with_name(f"{self._path.name}.{uuid.uuid4().hex}")
        self._file = self._temporary.open("xb")
        self._lengths: list[tuple[int, np.ndarray]] = []
        self._pieces = _Pieces()
        self._rows = 0

    def write(self, position: int, buffer: Any, starts: np.ndarray) -> None:
        check_rows(position, len(starts), self._expected or 0)
        self._encoded(position, buffer, starts)

    def append(self, rows: np.ndarray) -> None:
        """Append rows, uint8 ``[n, row_bytes]``, contiguous."""
        data: Any = rows.reshape(-1).data
        if self._encode is None:
            self._store(self._rows, len(rows), data)
        else:
            self._encoded(self._rows, data, np.arange(len(rows), dtype=np.int64) * self._row_bytes)

    def append_encoded(self, data: Any, lengths: np.ndarray) -> None:
        """Append rows that are already encoded like this leaf's: their concatenated bytes, and the length of each."""
        self._lengths.append((self._rows, lengths))
        self._store(self._rows, len(lengths), data)

    def copy(self, rows: Any, start: int, stop: int) -> None:
        """Append rows ``start..stop-1``, unchanged, of an open leaf that is stored like this one (`Codec.is_like`)."""
        self.append_encoded(*rows.stored(start, stop))

    def _encoded(self, position: int, buffer: Any, starts: np.ndarray) -> None:
        if len(starts):
            assert self._encode is not None
            data, lengths = self._encode(buffer, starts, self._row_bytes)
            self._lengths.append((position, lengths))
            self._store(position, len(starts), data)

    def _store(self, position: int, rows: int, data: Any) -> None:
        if rows:
            self._pieces.add(position, rows, self._file.tell(), data)
            self._file.write(data)
            self._rows += rows

    def finish(self, *, sync: bool = True) -> dict[str, Any]:
        """Make the file durable; returns the record for the journal. Without ``sync``, its name needs `sync_folder`."""
        close_durably(self._file)
        rows = self._rows if self._expected is None else self._expected
        record = {"pieces": self._pieces.in_order(rows), "rows": rows}
        if self._encode is not None:
            lengths = np.zeros(rows, np.int64)
            for position, some in self._lengths:
                lengths[position : position + len(some)] = some
            record["lengths"] = write_lengths(self._path, lengths)
        self._temporary.replace(self._path)
        if sync:
            sync_folder(self._path.parent)
        return record

    def abandon(self) -> None:
        """Close and remove what was written."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)


def check_rows(position: int, count: int, rows: int) -> None:
    """Raise RbdataError for rows outside a part of ``rows`` rows, which would overwrite those of another part."""
    if not 0 <= position <= position + count <= rows:
        raise RbdataError(f"rows {position}..{position + count - 1} are outside a part of {rows} rows")


def part_path(folder: Path, leaf: Leaf, number: int) -> Path:
    """The file of a part that is not appended to its leaf yet."""
    return folder / PARTS / f"{'.'.join(leaf.key)}.{number}.blob"


def remove_unfinished(folder: Path) -> None:
    """Remove part files that an interrupted run did not finish. Call while no worker writes."""
    for path in (folder / PARTS).glob("*.*.*.????????????????????????????????"):
        path.unlink()


def write_lengths(path: Path, lengths: np.ndarray) -> str:
    """Store the lengths (int64 ``[rows]``) of the rows of the part file ``path``; returns their crc32c."""
    target = lengths_path(path)
    temporary = target.with_name(f"{target.name}.{uuid.uuid4().hex}")
    data = np.ascontiguousarray(lengths, np.int64).tobytes()
    write_durably(temporary, data)
    temporary.replace(target)
    return crc32c(data)


def lengths_path(path: Path) -> Path:
    """The file with the row lengths of the part file ``path``."""
    return path.with_suffix(".lengths")


def read_pieces(path: Path, pieces: list[dict[str, Any]]) -> Iterator[bytes]:
    """The bytes of a part file in row order. Raises RbdataError if the file is too short."""
    with open_plain(path, "rb") as file:
        for piece in pieces:
            file.seek(piece["offset"])
            left = piece["length"]
            while left:
                data = file.read(min(_BLOCK, left))
                if not data:
                    raise RbdataError(f"{path} is shorter than its journal says")
                left -= len(data)
                yield data


def sum_piece(path: Path, piece: dict[str, Any]) -> str:
    """crc32c of a piece of a part file."""
    return summed(read_pieces(path, [piece])).hexdigest()
