"""State rows, filled in parallel: each part of the source fills its own range of rows.

A part is the rows of one source object (an Atari shard). Its worker writes rows as they come out of the stream, which
need not be row order (the last row of a ring file comes before its first one in time): every contiguous run of rows is a
*piece*. Raw leaves are written in place, into the preallocated file. Compressed rows have sizes not known beforehand, so
a part writes its own file, and the coordinator appends finished parts to the one blob in order, piece by piece: the
result is the same bytes whatever the number of processes and whoever was interrupted.

A sink takes rows as byte offsets into a buffer, so that rows left out (padding) or repeated (zeros) cost no copy.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from ..errors import RbdataError
from .checksums import Crc32c
from .codecs.zstd import RowEncoder
from .column_writer import leaf_path
from .folder import PARTS
from .manifest import sync_folder
from .schema import Leaf


@dataclass
class Piece:
    """A run of rows: ``rows`` rows from ``position``; ``offset`` and ``length`` are its bytes in the part file."""

    position: int
    rows: int
    offset: int
    length: int
    crc32c: str = ""


class Sink(Protocol):
    """Takes the state rows of one part."""

    def write(self, position: int, buffer: Any, starts: np.ndarray) -> None:
        """Store rows at ``position`` (relative to the part); row i begins at byte ``starts[i]`` of the buffer."""

    def finish(self) -> dict[str, Any]:
        """Make what was written durable; returns the record for the journal."""


class ZstdSink:
    """Compressed rows into the part's own file."""

    def __init__(self, folder: Path, number: int, leaf: Leaf, rows: int, encoder: RowEncoder) -> None:
        self._leaf, self._rows, self._encoder = leaf, rows, encoder
        self._path = part_path(folder, leaf, number)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("wb")
        self._lengths = np.zeros(rows, np.int64)
        self._pieces: list[Piece] = []

    def write(self, position: int, buffer: Any, starts: np.ndarray) -> None:
        _check_rows(position, len(starts), self._rows)
        if not len(starts):
            return
        data, lengths = self._encoder.encode(buffer, starts, self._leaf.row_bytes)
        self._lengths[position : position + len(starts)] = lengths
        offset = self._file.tell()
        self._file.write(data)
        _extend(self._pieces, Piece(position, len(starts), offset, len(data)))

    def finish(self) -> dict[str, Any]:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        with self._path.with_suffix(".lengths").open("wb") as file:
            file.write(self._lengths.tobytes())
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self._path.parent)
        return {"pieces": [asdict(piece) for piece in _in_order(self._pieces, self._rows)]}


class GrowingSink:
    """Rows in order into the part's own file, compressed or as they are; how many there are is known at the end.

    The file gets its name when it is finished: a part may be written by two workers at once, where one was taken for lost.
    """

    def __init__(self, folder: Path, number: int, leaf: Leaf, encoder: RowEncoder | None) -> None:
        self._leaf, self._encoder = leaf, encoder
        self._path = part_path(folder, leaf, number)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = self._path.with_name(f"{self._path.name}.{uuid.uuid4().hex}")
        self._file = self._temporary.open("wb")
        self._lengths: list[np.ndarray] = []
        self._rows = self._bytes = 0

    def write(self, rows: np.ndarray) -> None:
        """Append rows, uint8 ``[n, row_bytes]``, contiguous."""
        if not len(rows):
            return
        data: Any = rows.reshape(-1).data
        if self._encoder is not None:
            starts = np.arange(len(rows), dtype=np.int64) * self._leaf.row_bytes
            data, lengths = self._encoder.encode(data, starts, self._leaf.row_bytes)
            self._lengths.append(lengths)
        self._append(data, len(rows))

    def copy(self, data: np.ndarray, lengths: np.ndarray) -> None:
        """Append rows that are compressed already, with the same dictionary: their bytes, and the lengths of each."""
        self._lengths.append(lengths)
        self._append(data.data, len(lengths))

    def _append(self, data: Any, rows: int) -> None:
        self._file.write(data)
        self._rows += rows
        self._bytes += len(data)

    def finish(self) -> dict[str, Any]:
        """Make what was written durable, but for its name: that takes `sync_part`. Returns the record for the journal."""
        _close_durably(self._file)
        lengths = self._path.with_suffix(".lengths")
        temporary = lengths.with_name(f"{lengths.name}.{uuid.uuid4().hex}")
        if self._encoder is not None:
            file = temporary.open("wb")
            file.write(np.concatenate([np.zeros(0, np.int64), *self._lengths]).tobytes())
            _close_durably(file)
            temporary.replace(lengths)
        self._temporary.replace(self._path)
        piece = Piece(0, self._rows, 0, self._bytes)
        return {"pieces": [asdict(piece)], "rows": self._rows}

    def abandon(self) -> None:
        """Close and remove what was written."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)


class RawSink:
    """Rows in place, in the state leaf's preallocated file; ``first`` is the part's first row in it."""

    def __init__(self, folder: Path, leaf: Leaf, first: int, rows: int) -> None:
        self._file = _RowFile(leaf_path(folder, leaf), leaf.row_bytes, first)
        self._name, self._rows = leaf.name + ".memmap", rows

    def write(self, position: int, buffer: Any, starts: np.ndarray) -> None:
        _check_rows(position, len(starts), self._rows)
        self._file.write(position, buffer, starts)

    def finish(self) -> dict[str, Any]:
        return {"ranges": {self._name: self._file.finish(self._rows)}}


class TedSink:
    """Rows in place, twice: as ``observation`` of the step they begin and as ``next/observation`` of the one before.

    ``state_starts`` holds the first state row of every episode of the dataset (int64, ascending); ``first`` is the
    part's first state row. State row s of episode e is the root row of step s - e, unless it is the episode's last,
    and the next row of step s - e - 1, unless it is the first.
    """

    def __init__(self, folder: Path, leaf: Leaf, first: int, rows: int, state_starts: np.ndarray, states: int) -> None:
        self._first, self._starts = first, state_starts
        self._ends = np.append(state_starts[1:], states) - 1
        begin, end = self._rows_before(first), self._rows_before(first + rows)
        self._begin, self._rows, self._states = begin, (end[0] - begin[0], end[1] - begin[1]), rows
        next_leaf = Leaf("next/" + leaf.name, "step", leaf.dtype, leaf.shape)
        self._root = _RowFile(leaf_path(folder, leaf), leaf.row_bytes, begin[0])
        self._next = _RowFile(leaf_path(folder, next_leaf), leaf.row_bytes, begin[1])
        self._names = (leaf.name + ".memmap", next_leaf.name + ".memmap")

    def _rows_before(self, state: int) -> tuple[int, int]:
        """How many root rows and how many next rows come from the states before this one."""
        return (
            state - int(np.searchsorted(self._ends, state, "left")),
            state - int(np.searchsorted(self._starts, state, "left")),
        )

    def write(self, position: int, buffer: Any, starts: np.ndarray) -> None:
        _check_rows(position, len(starts), self._states)
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
        ranges = (self._root.finish(self._rows[0]), self._next.finish(self._rows[1]))
        return {"ranges": dict(zip(self._names, ranges))}


def _close_durably(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()


class _RowFile:
    """Positional writes of rows into a preallocated file, with checksums of the pieces."""

    def __init__(self, path: Path, row_bytes: int, first: int) -> None:
        self._descriptor = os.open(path, os.O_WRONLY)
        self._row_bytes, self._first = row_bytes, first
        self._pieces: list[Piece] = []
        self._checksum = Crc32c()

    def write(self, position: int, buffer: Any, starts: np.ndarray) -> None:
        if not len(starts):
            return
        view = memoryview(buffer).cast("B")
        breaks = np.flatnonzero(np.diff(starts) != self._row_bytes) + 1
        for low, high in zip([0, *breaks.tolist()], [*breaks.tolist(), len(starts)]):
            begin = int(starts[low])
            data = view[begin : begin + (high - low) * self._row_bytes]
            at = (self._first + position + low) * self._row_bytes
            if not self._pieces or self._pieces[-1].position + self._pieces[-1].rows != position + low:
                self._checksum = Crc32c()
            self._checksum.update(data)
            _extend(self._pieces, Piece(position + low, high - low, 0, len(data), self._checksum.hex))
            while data:
                written = os.pwrite(self._descriptor, data, at)
                data, at = data[written:], at + written

    def finish(self, rows: int) -> list[list[Any]]:
        os.fsync(self._descriptor)
        os.close(self._descriptor)
        return [[piece.length, piece.crc32c] for piece in _in_order(self._pieces, rows)]


def _check_rows(position: int, count: int, rows: int) -> None:
    """Raised before anything is written: beyond its end lie the rows of another part."""
    if not 0 <= position <= position + count <= rows:
        raise RbdataError(f"rows {position}..{position + count - 1} are outside a part of {rows} rows")


def _extend(pieces: list[Piece], piece: Piece) -> None:
    """Add a piece, as part of the last one where it continues it."""
    if pieces and pieces[-1].position + pieces[-1].rows == piece.position:
        last = pieces[-1]
        last.rows += piece.rows
        last.length += piece.length
        last.crc32c = piece.crc32c
    else:
        pieces.append(piece)


def _in_order(pieces: list[Piece], rows: int) -> list[Piece]:
    """Pieces by position; every row of the part must have been written once."""
    ordered = sorted(pieces, key=lambda piece: piece.position)
    expected = 0
    for piece in ordered:
        if piece.position != expected:
            raise RbdataError(f"part rows {expected}..{piece.position} were written twice or not at all")
        expected += piece.rows
    if expected != rows:
        raise RbdataError(f"a part of {rows} rows was given {expected}")
    return ordered


def part_path(folder: Path, leaf: Leaf, number: int) -> Path:
    """The file of a compressed part that is not yet in the blob."""
    return folder / PARTS / f"{'.'.join(leaf.key)}.{number}.blob"


def sync_part(folder: Path) -> None:
    """Make durable the names of part files that are finished."""
    sync_folder(folder / PARTS)


def read_pieces(path: Path, pieces: list[dict[str, Any]], block: int = 1 << 22) -> Iterator[bytes]:
    """The compressed bytes of a part file in row order."""
    with path.open("rb") as file:
        for piece in pieces:
            file.seek(piece["offset"])
            left = piece["length"]
            while left:
                data = file.read(min(block, left))
                if not data:
                    raise RbdataError(f"{path} is shorter than its journal says")
                left -= len(data)
                yield data


def read_lengths(path: Path) -> np.ndarray:
    """Compressed length of every row of a part file, int64."""
    return np.fromfile(path.with_suffix(".lengths"), np.int64)


def part_is_there(path: Path, pieces: list[dict[str, Any]], compressed: bool = True) -> bool:
    """Whether a part's files are there, in the size that its record says."""
    try:
        size = path.stat().st_size
        lengths = path.with_suffix(".lengths").stat().st_size if compressed else None
    except FileNotFoundError:
        return False
    rows = sum(piece["rows"] for piece in pieces)
    return size == sum(piece["length"] for piece in pieces) and lengths in (None, 8 * rows)


def preallocate(path: Path, size: int) -> None:
    """Create a file of its final size (or keep it, when it has it); rows are then written in place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        if os.fstat(file.fileno()).st_size != size:
            file.truncate(size)
    sync_folder(path.parent)
