"""The episodes of a loop as they are recorded, in one file that grows: what is in it survives the death of the process.

A record is a run of steps of one environment, from the beginning of an episode or from the end of the record before:

    head      crc32c of the rest (8 hex digits), uint32 environment, uint64 bytes stored, uint64 bytes, uint32 steps,
              uint8 whether an episode begins, uint8 how it ends (`recording`)
    rows      of each column, one more row of a per-state column where an episode begins; then rewards, float64. Compressed
              where that is shorter

A record that a kill cut short is the last one, and is dropped, and so are the records of an episode without an end.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ....errors import CorruptSourceError
from ....storage.checksums import crc32c
from ...ingest.trajectories import Column

_HEAD = struct.Struct("<8sIQQIBB")


@dataclass(frozen=True)
class Piece:
    """A run of steps: ``rows`` of each column, and rewards float64 ``[steps]``. ``end`` is 0 where the episode goes on."""

    env: int
    begins: bool
    end: int
    rows: Sequence[np.ndarray]
    rewards: np.ndarray


@dataclass(frozen=True)
class _Place:
    """Where a record lies: ``offset`` is that of its rows."""

    offset: int
    env: int
    stored: int
    bytes: int
    steps: int
    begins: bool
    end: int


class EpisodeLog:
    """The log at ``path``; ``columns`` are those of the recording. Opening it drops what was cut short."""

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        self.path, self._columns = path, columns
        self._places, sound = self._scan()
        self._file: BinaryIO = path.open("r+b" if path.exists() else "w+b")
        self._file.seek(sound)
        self._file.truncate()

    def append(self, piece: Piece) -> None:
        """Add a record; it is with the operating system when this returns."""
        import zstandard

        data = b"".join(np.ascontiguousarray(rows).tobytes() for rows in (*piece.rows, piece.rewards))
        short = zstandard.ZstdCompressor(level=1).compress(data) if len(data) > 4096 else data
        stored = short if len(short) < len(data) else data
        facts = (piece.env, len(stored), len(data), len(piece.rewards), piece.begins, piece.end)
        head = _HEAD.pack(b"", *facts)[8:]
        start = self._file.seek(0, os.SEEK_END)
        try:
            self._file.write(crc32c(head + stored).encode() + head + stored)
            self._file.flush()
        except BaseException:  # a full disk, Ctrl-C: what follows must not lie behind half a record
            self._file.truncate(start)
            raise
        self._places.append(_Place(start + _HEAD.size, *facts))

    def close(self) -> None:
        """Close the file; the records stay."""
        self._file.close()

    @property
    def kept(self) -> list[_Place]:
        """The records of whole episodes, in order."""
        open_records: dict[int, list[_Place]] = {}
        whole: set[int] = set()
        for place in self._places:
            if place.begins:
                open_records[place.env] = []
            open_records.setdefault(place.env, []).append(place)
            if place.end:
                whole.update(one.offset for one in open_records.pop(place.env))
        return [place for place in self._places if place.offset in whole]

    @property
    def counts(self) -> tuple[int, int]:
        """Steps and episodes of whole episodes."""
        kept = self.kept
        return sum(place.steps for place in kept), sum(place.end > 0 for place in kept)

    def pieces(self) -> Iterator[Piece]:
        """The records of whole episodes, in order."""
        for place in self.kept:
            yield self._read(place)

    def _read(self, place: _Place) -> Piece:
        import zstandard

        self._file.seek(place.offset)
        data = self._file.read(place.stored)
        if place.stored < place.bytes:
            data = zstandard.ZstdDecompressor().decompress(data, max_output_size=place.bytes)
        rows, at = [], 0
        for column in self._columns:
            count = place.steps + (place.begins and column.per == "state")
            rows.append(np.frombuffer(data, column.dtype, count * int(np.prod(column.shape, dtype=int)), at))
            rows[-1] = rows[-1].reshape(count, *column.shape)
            at += rows[-1].nbytes
        return Piece(place.env, bool(place.begins), place.end, rows, np.frombuffer(data, "<f8", place.steps, at))

    def _scan(self) -> tuple[list[_Place], int]:
        """The records that are whole, and where the last of them ends."""
        places: list[_Place] = []
        sound = 0
        if not self.path.exists():
            return places, sound
        row = {
            kind: sum(column.row_bytes for column in self._columns if column.per == kind) for kind in ("state", "step")
        }
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            while len(head := file.read(_HEAD.size)) == _HEAD.size:
                crc, *facts = _HEAD.unpack(head)
                place = _Place(file.tell(), *facts)
                if place.stored > size - place.offset:
                    break
                data: Any = file.read(place.stored)
                if len(data) < place.stored or crc32c(head[8:] + data).encode() != crc:
                    break
                wanted = place.steps * (row["state"] + row["step"] + 8) + place.begins * row["state"]
                if place.bytes != wanted:
                    raise CorruptSourceError(f"{self.path} holds rows of other leaves than the environment has")
                places.append(place)
                sound = file.tell()
        return places, sound
