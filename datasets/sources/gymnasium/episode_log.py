"""The log of a loop that is recorded: its episodes on disk, as they end, until a dataset is made of them.

The log is one file that grows; its records survive the death of the process. A record is a run of steps of one environment,
from the beginning of an episode or from the end of the record before:

    head      crc32c of the rest (8 hex digits), uint32 environment, uint32 steps, uint64 bytes of rows, uint8 whether an
              episode begins, uint8 how it ends (`ingest.block`), 0 if it continues
    rows      of each column, one more row of a per-state column where an episode ends; then rewards, float64; compressed

Only the last record can be cut short by a kill; it is dropped, and so are the records of an episode without an end.
"""

from __future__ import annotations

import os
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from ....storage.checksums import crc32c
from ...ingest.trajectories import Column

_HEAD = struct.Struct("<8sIIQBB")


@dataclass(frozen=True)
class LoggedSteps:
    """A run of steps: ``rows`` of each column, and rewards float64 ``[steps]``. ``end`` is 0 if the episode continues."""

    env: int
    begins: bool
    end: int
    rows: Sequence[np.ndarray]
    rewards: np.ndarray


class _LogRecord(NamedTuple):
    """Where the rows of a record lie, and its head."""

    offset: int
    env: int
    steps: int
    stored: int
    begins: int
    end: int


class EpisodeLog:
    """The log at ``path``; ``columns`` are those of the recording. Opening it drops an incomplete record."""

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._open_records = defaultdict[int, list[_LogRecord]](list)
        self._kept: list[_LogRecord] = []
        #: Steps and episodes of whole episodes.
        self.counts = (0, 0)
        self._file: BinaryIO = path.open("r+b" if path.exists() else "w+b")
        self._file.truncate(self._scan())

    def append(self, piece: LoggedSteps) -> None:
        """Add a record; it is with the operating system when this returns."""
        import zstandard

        data = b"".join(np.ascontiguousarray(rows).tobytes() for rows in (*piece.rows, piece.rewards))
        stored = zstandard.ZstdCompressor(level=1).compress(data)
        facts = (piece.env, len(piece.rewards), len(stored), piece.begins, piece.end)
        head = _HEAD.pack(b"", *facts)[8:]
        start = self._file.seek(0, os.SEEK_END)
        try:
            self._file.write(crc32c(head + stored).encode() + head + stored)
            self._file.flush()
        except BaseException:  # a full disk, Ctrl-C: the next record must not follow half a record
            self._file.truncate(start)
            raise
        self._add(_LogRecord(start + _HEAD.size, *facts))

    def close(self) -> None:
        """Close the file; the records stay."""
        self._file.close()

    def pieces(self, env: int) -> Iterator[LoggedSteps]:
        """The records of an environment's whole episodes, in order."""
        import zstandard

        for record in [one for one in self._kept if one.env == env]:
            self._file.seek(record.offset)
            data = zstandard.ZstdDecompressor().decompress(self._file.read(record.stored))
            rows, at = [], 0
            for column in self._columns:
                count = record.steps + (column.per == "state" and record.end > 0)
                some = np.frombuffer(data, column.dtype, count * int(np.prod(column.shape, dtype=int)), at)
                rows.append(some.reshape(count, *column.shape))
                at += some.nbytes
            rewards = np.frombuffer(data, "<f8", record.steps, at)
            yield LoggedSteps(env, bool(record.begins), record.end, rows, rewards)

    def _add(self, record: _LogRecord) -> None:
        episode = self._open_records[record.env]
        if record.begins:
            episode.clear()
        episode.append(record)
        if record.end:
            self._kept += episode
            self.counts = self.counts[0] + sum(one.steps for one in episode), self.counts[1] + 1
            episode.clear()

    def _scan(self) -> int:
        """Take the records that are whole; returns where the last of them ends."""
        sound, size = 0, os.fstat(self._file.fileno()).st_size
        while len(head := self._file.read(_HEAD.size)) == _HEAD.size:
            crc, *facts = _HEAD.unpack(head)
            record = _LogRecord(self._file.tell(), *facts)
            if record.stored > size - record.offset:
                break
            if crc32c(head[8:] + self._file.read(record.stored)).encode() != crc:
                break
            self._add(record)
            sound = self._file.tell()
        return sound
