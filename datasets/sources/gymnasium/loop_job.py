"""The recording of a loop: a log of its episodes (`EpisodeLog`), and a dataset made from the log (`LoopJob`), which has the
same files as a recording by a policy.

The log is one file that grows; its records survive the death of the process. A record is a run of steps of one environment,
from the beginning of an episode or from the end of the record before:

    head      crc32c of the rest (8 hex digits), uint32 environment, uint64 bytes stored, uint64 bytes, uint32 steps,
              uint8 whether an episode begins, uint8 how it ends (`recording`)
    rows      of each column, one more row of a per-state column where an episode begins; then rewards, float64. Compressed
              where that is shorter

Only the last record can be cut short by a kill; it is dropped, and so are the records of an episode without an end.
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
from ...ingest.job import ConvertOptions, Expectation
from ...ingest.recording import RecordingWriter, block_rows
from ...ingest.trajectories import Column
from ...workers.task import OnBlock
from .environments import PYTHON, describe_environment
from .recording import EnvironmentJob, count_outside

#: The log, in the working folder of the dataset.
LOG = "episodes.log"
_HEAD = struct.Struct("<8sIQQIBB")


@dataclass(frozen=True)
class Piece:
    """A run of steps: ``rows`` of each column, and rewards float64 ``[steps]``. ``end`` is 0 if the episode continues."""

    env: int
    begins: bool
    end: int
    rows: Sequence[np.ndarray]
    rewards: np.ndarray


@dataclass(frozen=True)
class _RecordPlace:
    """Where a record lies: ``offset`` is that of its rows."""

    offset: int
    env: int
    stored: int
    bytes: int
    steps: int
    begins: bool
    end: int


class EpisodeLog:
    """The log at ``path``; ``columns`` are those of the recording. Opening it drops an incomplete record."""

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
        except BaseException:  # a full disk, Ctrl-C: the next record must not follow half a record
            self._file.truncate(start)
            raise
        self._places.append(_RecordPlace(start + _HEAD.size, *facts))

    def close(self) -> None:
        """Close the file; the records stay."""
        self._file.close()

    @property
    def kept(self) -> list[_RecordPlace]:
        """The records of whole episodes, in order."""
        open_records: dict[int, list[_RecordPlace]] = {}
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
        import zstandard

        for place in self.kept:
            self._file.seek(place.offset)
            data = self._file.read(place.stored)
            if place.stored < place.bytes:
                data = zstandard.ZstdDecompressor().decompress(data, max_output_size=place.bytes)
            rows, at = [], 0
            for column in self._columns:
                count = place.steps + (place.begins and column.per == "state")
                some = np.frombuffer(data, column.dtype, count * int(np.prod(column.shape, dtype=int)), at)
                rows.append(some.reshape(count, *column.shape))
                at += some.nbytes
            rewards = np.frombuffer(data, "<f8", place.steps, at)
            yield Piece(place.env, bool(place.begins), place.end, rows, rewards)

    def _scan(self) -> tuple[list[_RecordPlace], int]:
        """The records that are whole, and where the last of them ends."""
        places: list[_RecordPlace] = []
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
                place = _RecordPlace(file.tell(), *facts)
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


class LoopJob(EnvironmentJob):
    """The dataset of a loop. ``log`` may be larger when it is run than when the job is made."""

    converter = "gymnasium loop 1"

    def __init__(self, name: str, env: Any, environments: int, options: ConvertOptions) -> None:
        super().__init__(name, env, environments, options)
        self.layers = describe_environment(env)
        self.log: EpisodeLog | None = None
        self.more_notes: list[str] = []

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "environments": self.environments, "text": self.options.extra["text"]}

    def describe(self) -> dict[str, Any]:
        options = {"text": self.options.extra["text"], "unknown_next": self.options.unknown_next}
        return {
            **super().describe(),
            "recorded_by": "rbdata.Recorder",
            "options": options,
            "environment_layers": self.layers,
            "python": PYTHON,
        }

    def expect(self) -> Expectation:
        return self.expect_rows(*self.log.counts) if self.log else self.expect_rows(0)

    def record(self, folder: Path, threads: int, on_block: OnBlock) -> None:
        """Write the recording of the log: in this process, since a log is an open file."""
        assert self.log is not None
        columns, count = self.columns, self.environments
        writer = RecordingWriter(folder, columns, codec=self._codec, threads=threads)
        blocks = [_Blocks(writer, env, columns, count) for env in range(count)]
        done = outside = 0
        for env in range(count):
            writer.begin(env)
        for piece in self.log.pieces():
            blocks[piece.env].add(piece)
            actions = zip(self.action, piece.rows[len(self.observation) :])
            outside += sum(count_outside(leaf, rows) for leaf, rows in actions)
            done += len(piece.rewards)
            on_block(done, 0, 0)
        for block in blocks:
            block.flush()
        states = [block.all_states for block in blocks]
        counts = {"actions_out_of_bounds": outside}
        writer.finish({"states": states, "counts": counts, "notes": list(self.more_notes)})


class _Blocks:
    """Gathers the rows of one environment into blocks, of which a dictionary is trained on the first."""

    def __init__(self, writer: RecordingWriter, env: int, columns: Sequence[Column], count: int) -> None:
        self._writer, self._env, self._columns = writer, env, columns
        self._room = block_rows(columns, count) - 1
        self._parts: list[list[np.ndarray]] = [[] for _ in columns]
        self._states = 0
        self.all_states = 0

    def add(self, piece: Piece) -> None:
        """Take the steps of a piece; a full block is written before the step after it."""
        steps = len(piece.rewards)
        first = int(piece.begins)
        if first:
            self._take(piece, slice(0, 1), slice(0, 0))
        low = 0
        while low < steps:
            if self._states >= self._room:
                self.flush()
            high = min(steps, low + max(1, self._room - self._states))
            self._take(piece, slice(first + low, first + high), slice(low, high))
            low = high
        end = np.zeros(steps, np.uint8)
        end[-1:] = piece.end
        self._writer.steps(self._env, piece.rewards, end)

    def _take(self, piece: Piece, states: slice, steps: slice) -> None:
        for parts, rows, column in zip(self._parts, piece.rows, self._columns):
            parts.append(rows[states if column.per == "state" else steps])
        self._states += states.stop - states.start

    def flush(self) -> None:
        """Write the gathered rows."""
        for number, parts in enumerate(self._parts):
            rows = np.concatenate(parts) if parts else np.zeros((0,))
            if len(rows):
                self._writer.column(self._env, number, rows)
            parts.clear()
        self.all_states += self._states
        self._states = 0
