"""One file of episodes to decoded rows on disk: everything is fetched once, and decoded while it comes.

network -> gunzip -> records -> episodes -> frames in blocks -> compressed rows

How many rows there are, and which come first, is known only when all files have been read: lengths, actions and rewards lie
in the same records as the pictures. So each file is decoded into a folder of the working folder, and its rows are put in
their places when all files are decoded (`ingest.row_source`). Rows are compressed as the dataset has them, so that for the
usual codec a file of rows is only renamed. The folder exists only when it is complete:

    rows           state rows in the order of the file, each compressed on its own
    rows.lengths   int64 [rows]          their compressed lengths
    episodes.npy   int64 [episodes, 6]   checkpoint, index in it, rows in the file, steps kept, outcome, blank
    action.npy     int32 [steps]         of the steps kept
    reward.npy     float32 [steps]
    about.json     {"crc32c" and "size" of the object, "records": their number, "silent_ends": terminated episodes without
                   a reward in their last row}

An episode has one more state row than steps: the last frame, or a row of zeros (``blank`` is 1) where its last successor
is not in the data.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .....storage.codecs.compressed import compressed_codec
from .....storage.durable import close_durably, sync_folder, write_durably
from .....storage.episodes import CUT, TERMINATED, TRUNCATED
from .....storage.parts import Encode
from ....fetch import Location, RemoteObject
from ....formats.png import SIDE, PngError, decode_frames
from ....ingest.row_source import lengths_path
from ....workers.task import OnBlock
from .episodes import ROW_BYTES, Episode, EpisodeStream, bad_frame

BLOCK_ROWS = 512
ROWS, ABOUT = "rows", "about.json"
#: Columns of ``episodes.npy``.
CHECKPOINT, INDEX, FILE_ROWS, STEPS, OUTCOME, BLANK = range(6)


class Ending(NamedTuple):
    """What becomes of an episode's rows."""

    steps: int
    outcome: int
    blank: bool


def end_episode(rows: int, terminal: bool, unknown_next: str, time_limit: int) -> Ending:
    """Which steps an episode of so many rows gives, and how it ends; the same rule as for the ring files.

    After a terminal row comes a blank state. The last row of an episode that was cut, or that lasted ``time_limit`` rows and
    so was ended by the clock, has no known successor: it is given up (``truncate``) or gets a blank one (``zero``).
    """
    if not rows:
        return Ending(0, CUT, False)
    clocked = terminal and rows == time_limit
    if terminal and not clocked:
        return Ending(rows, TERMINATED, True)
    outcome = TRUNCATED if clocked else CUT
    return Ending(rows, outcome, True) if unknown_next == "zero" else Ending(rows - 1, outcome, False)


@dataclass(frozen=True)
class DecodeTask:
    """Fetches and decodes one file; picklable."""

    index: int
    obj: RemoteObject
    location: Location
    target: Path
    dictionary: Path
    codec: str
    unknown_next: str
    time_limit: int
    threads: int

    @property
    def rows(self) -> int:
        """What progress counts: bytes, as rows are not known."""
        return self.obj.size or 1

    def __call__(self, on_block: OnBlock) -> dict[str, Any]:
        """Fetch and decode one file. Returns an empty record: everything is in the folder."""
        partial = self.target.with_name(self.target.name + ".part")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        made = Columns()
        encode = compressed_codec(self.codec).encoder(self.dictionary.read_bytes(), self.threads)
        with closing(EpisodeStream(self.location, self.obj)) as source, (partial / ROWS).open("wb") as rows:

            def write(data: bytes, lengths: np.ndarray) -> None:
                rows.write(data)
                made.lengths.append(lengths)

            blocks = _Blocks(write, encode)
            for where, episode in source.episodes():
                ending = end_episode(len(episode), episode.terminal, self.unknown_next, self.time_limit)
                made.add(episode, ending)
                if ending.steps:
                    for _ in blocks.add(episode.frames, ending.blank, where):
                        on_block(min(source.fetched, self.rows), source.fetched, source.retries)
            blocks.flush()
            close_durably(rows)
            about = {
                "crc32c": source.crc32c,
                "size": source.fetched,
                "records": source.records,
                "silent_ends": made.silent_ends,
            }
        made.save(partial)
        write_durably(partial / ABOUT, json.dumps(about).encode())
        sync_folder(partial)
        partial.rename(self.target)
        sync_folder(self.target.parent)
        on_block(self.rows, source.fetched, source.retries)
        return {}


@dataclass
class Columns:
    """What is written beside the rows, collected while a file is decoded."""

    episodes: list[tuple[int, ...]] = field(default_factory=list)
    action: list[np.ndarray] = field(default_factory=list)
    reward: list[np.ndarray] = field(default_factory=list)
    lengths: list[np.ndarray] = field(default_factory=list)
    silent_ends: int = 0

    def add(self, episode: Episode, ending: Ending) -> None:
        """Take an episode's numbers."""
        steps, outcome, blank = ending
        self.episodes.append((episode.checkpoint, episode.index, len(episode), steps, outcome, int(blank)))
        self.action.append(episode.action[:steps])
        self.reward.append(episode.reward[:steps])
        self.silent_ends += bool(episode.terminal and episode.reward[-1] == 0)

    def save(self, folder: Path) -> None:
        arrays = {
            "episodes": np.array(self.episodes, np.int64).reshape(-1, 6),
            "action": np.concatenate([np.empty(0, np.int32), *self.action]),
            "reward": np.concatenate([np.empty(0, np.float32), *self.reward]),
        }
        for name, array in arrays.items():
            with (folder / f"{name}.npy").open("wb") as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
                close_durably(file)
        write_durably(lengths_path(folder / ROWS), np.concatenate([np.empty(0, np.int64), *self.lengths]).tobytes())


class _Blocks:
    """Frames of many episodes in blocks of the same size: decoded, compressed, handed on."""

    def __init__(self, write: Callable[[bytes, np.ndarray], None], encode: Encode) -> None:
        self._write, self._encode = write, encode
        self._frames: list[memoryview] = []
        self._blank_after: list[int] = []
        #: Whose frames these are: (first of them here, its row there, where).
        self._owners: list[tuple[int, int, str]] = []
        self._block = np.zeros((BLOCK_ROWS + 1, SIDE, SIDE), np.uint8)  # the last row stays blank

    def add(self, frames: list[memoryview], blank: bool, where: str) -> Iterator[int]:
        """Take an episode's frames; yields how many were written whenever a block was full."""
        first = 0
        while first < len(frames):
            count = min(len(frames) - first, BLOCK_ROWS - len(self._frames))
            self._owners.append((len(self._frames), first, where))
            self._frames += frames[first : first + count]
            first += count
            if blank and first == len(frames):
                self._blank_after.append(len(self._frames) - 1)
            if len(self._frames) == BLOCK_ROWS:
                self.flush()
                yield BLOCK_ROWS

    def flush(self) -> None:
        """Decode and write what is there."""
        count = len(self._frames)
        if not count:
            return
        try:
            decode_frames(self._frames, self._block[:count])
        except PngError as error:
            first, row, where = [owner for owner in self._owners if owner[0] <= error.index][-1]
            raise bad_frame(where, row + error.index - first, error) from error
        order = np.arange(count)
        if self._blank_after:
            order = np.insert(order, np.array(self._blank_after) + 1, BLOCK_ROWS)
        self._write(*self._encode(self._block.data, order * ROW_BYTES, ROW_BYTES))
        self._frames, self._blank_after, self._owners = [], [], []


def is_of(target: Path, obj: RemoteObject) -> bool:
    """Whether a folder was decoded from this object, as far as its place states what the object is."""
    try:
        about = json.loads((target / ABOUT).read_text())
    except (OSError, ValueError):
        return False
    stated = obj.checksums.get("crc32c")
    return obj.size in (None, about["size"]) and stated in (None, about["crc32c"])
