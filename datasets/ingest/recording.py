"""A recording: episodes stored on disk until their number is known, and the dataset that is made from it.

Episodes of several environments are recorded side by side, but lie one after the other in a dataset. So each environment has
its own files, appended block by block; memory stays a few blocks, however long the recording. Users' own arrays
(`sources.arrays`) become a recording of one environment. A recording is a folder that exists only when it is complete:

    <e>.reward           float32 [steps] of environment e
    <e>.end              uint8 [steps]    0 inside an episode; 1 terminated, 2 truncated, 3 both, 4 cut by the end of recording
    <e>.<c>              rows of column c, raw: one more than steps for each episode of a per-state column
    <e>.<c>.lengths      int64 [states]   compressed lengths, where <e>.<c> holds rows compressed as the dataset has them
    dictionary           of the compressed rows; trained on the first rows recorded
    about.json           {"states": [of each environment], "counts": {...}, "notes": [...]}, and the "dictionary" of its
                         compressed rows (crc32c), wherever it was trained

If the caller can continue after any episode, the recording is kept while it is written (`RecordingWriter.keep`):

    kept.json            {"files": {name: [bytes, crc32c]}, "about": what the writer's owner continues from}
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DiskError
from ...storage.checksums import Crc32c, crc32c, join_ranges, sum_range
from ...storage.codecs import PLAIN, load_codec
from ...storage.codecs.compressed import compressed_codec
from ...storage.durable import is_full, sync_files, write_atomically
from ...storage.episodes import CUT, TERMINATED, TRUNCATED, EpisodeTable
from ...storage.parts import Encode
from ...storage.untrusted_json import parse_json
from ...storage.writer import ColumnWriter
from ..fetch.location import DirectoryLocation
from ..workers.task import OnBlock, Task
from .job import ConvertOptions, Expectation, PartSpec, Plan, StagedJob
from .row_source import StagedPart, StagedRows, lengths_path, staging_folder
from .trajectories import Column, TrajectoryWriter, TransitionRows, block_steps, cuts

RECORDING = "recording"
#: Bytes of rows kept in memory for all environments together, and the most rows for one.
_BUFFER_BYTES, _BUFFER_ROWS = 32 << 20, 8192
#: The share of their size that compressed frames take if no environment can be tried: from 1/200 (Pong) to 1/2 (noise).
_GUESSED = 0.1

REWARD, END, DICTIONARY, ABOUT, RESUME_FILE = "reward", "end", "dictionary", "about.json", "kept.json"
END_TERMINATED, END_TRUNCATED, END_BOTH, END_CUT = 1, 2, 3, 4
#: From the end of a step to the outcome of its episode.
_OUTCOMES = np.array([0, TERMINATED, TRUNCATED, TERMINATED, CUT], np.uint8)
#: Bytes and rows that the dictionary is trained on. They come from the first rows of all environments.
SAMPLE_BYTES, SAMPLE_ROWS = 24 << 20, 1500


def end_codes(transitions: TransitionRows, low: int, high: int) -> np.ndarray:
    """The end codes of a recording for the rows ``low`` to ``high - 1`` of a table, uint8."""
    flags = (transitions.terminated, transitions.truncated, transitions.by_clock)
    terminated, truncated, by_clock = (flag[low:high] for flag in flags)
    over = [terminated & truncated, terminated, truncated & by_clock, truncated]
    return np.select(over, [END_BOTH, END_TERMINATED, END_TRUNCATED, END_CUT], 0).astype(np.uint8)


class RecordingWriter:
    """Appends blocks of rows; ``codec`` is that of large columns. Without a ``dictionary`` it trains one.

    A caller that can continue in the middle calls `resume` first, `mark` after whole episodes, and `keep` periodically and when
    an error ends the work.
    """

    def __init__(
        self, folder: Path, columns: Sequence[Column], *, codec: str, threads: int, dictionary: bytes | None = None
    ) -> None:
        self._folder, self._columns, self._threads = folder, columns, threads
        self._codec = compressed_codec(codec)
        compress = self._codec.name == codec
        self._compressed = {number for number, column in enumerate(columns) if compress and column.large}
        #: Of the compressed rows: None until it is trained, empty where no rows are compressed.
        self.dictionary = dictionary if self._compressed else b""
        self._encode: Encode | None = None if dictionary is None else self._codec.encoder(dictionary, threads)
        #: Blocks that wait for the dictionary, and their bytes.
        self._waiting: list[tuple[int, int, np.ndarray]] = []
        self._waiting_bytes = 0
        self._keeps = False
        #: By file: what was written since the last mark, and up to it.
        self._sums: dict[str, Crc32c] = defaultdict(Crc32c)
        self._ranges: dict[str, list[Any]] = {}
        self._about: dict[str, Any] | None = None

    def resume(self) -> dict[str, Any] | None:
        """Continue from what an interrupted writer kept in the folder; returns what `mark` was given. If it kept nothing, or
        its files have changed, empties the folder and returns None."""
        self._keeps, saved = True, _read_resume_file(self._folder)
        files: dict[str, list[Any]] = {} if saved is None else saved["files"]
        for path in self._folder.iterdir():
            if path.name not in files and (saved is None or path.name != RESUME_FILE):
                path.unlink()
        if saved is None:
            return None
        for name, (size, _) in files.items():
            os.truncate(self._folder / name, size)
        self._ranges = files
        if DICTIONARY in files:
            self.dictionary = (self._folder / DICTIONARY).read_bytes()
            self._encode = self._codec.encoder(self.dictionary, self._threads)
        about: dict[str, Any] = saved["about"]
        return about

    def mark(self, about: dict[str, Any]) -> None:
        """Declare that all rows so far belong to whole episodes; ``about`` (JSON) says how to continue after them."""
        if self.dictionary is None:
            return  # rows wait in memory
        for name, written in self._sums.items():
            before = self._ranges.get(name)
            self._ranges[name] = join_ranges([written.range] if before is None else [before, written.range])
        self._sums.clear()
        self._about = about

    def keep(self) -> None:
        """Make everything up to the last mark durable."""
        if self._about is not None:
            sync_files(self._folder, self._ranges)
            content = {"files": self._ranges, "about": self._about}
            write_atomically(self._folder / RESUME_FILE, json.dumps(content).encode())
            self._about = None

    def begin(self, env: int) -> None:
        """Create the files of an environment, which exist even if it has no steps."""
        self.steps(env, np.zeros(0), np.zeros(0, np.uint8))
        for number, column in enumerate(self._columns):
            if number not in self._compressed:
                self.column(env, number, np.zeros((0, *column.shape), column.dtype))

    def column(self, env: int, number: int, rows: np.ndarray) -> None:
        """Append rows of a column."""
        if number not in self._compressed:
            self._append(f"{env}.{number}", rows)
        elif self._encode is None:
            self._waiting.append((env, number, rows.copy()))
            self._waiting_bytes += rows.nbytes
            if self._waiting_bytes >= SAMPLE_BYTES:
                self.dictionary = self._train()
        else:
            self._compress(env, number, rows)

    def steps(self, env: int, reward: np.ndarray, end: np.ndarray) -> None:
        """Append rewards and ends."""
        self._append(f"{env}.{REWARD}", reward.astype("<f4"))
        self._append(f"{env}.{END}", end)

    def finish(self, about: dict[str, Any]) -> None:
        """Write the waiting rows, and the facts about the recording."""
        if self.dictionary is None:
            self.dictionary = self._train()
        content = {**about, "dictionary": crc32c(self.dictionary)}
        (self._folder / ABOUT).write_text(json.dumps(content), encoding="utf-8")
        sync_files(self._folder, [path.name for path in self._folder.iterdir()])

    def _train(self) -> bytes:
        """Train the dictionary on the waiting blocks, then write them; returns it."""
        rows = [row for _, _, block in self._waiting for row in block]
        size = max((row.nbytes for row in rows), default=1)
        want = max(1, min(SAMPLE_ROWS, SAMPLE_BYTES // size, len(rows)))
        chosen = [rows[i] for i in np.unique(np.linspace(0, len(rows) - 1, want).astype(int))]
        dictionary = self._codec.train(chosen)
        self._append(DICTIONARY, dictionary)
        self._encode = self._codec.encoder(dictionary, self._threads)
        for env, number, block in self._waiting:
            self._compress(env, number, block)
        self._waiting, self._waiting_bytes = [], 0
        return dictionary

    def _compress(self, env: int, number: int, rows: np.ndarray) -> None:
        assert self._encode is not None
        column = self._columns[number]
        starts = np.arange(len(rows), dtype=np.int64) * column.row_bytes
        data, lengths = self._encode(np.ascontiguousarray(rows).data.cast("B"), starts, column.row_bytes)
        self._append(f"{env}.{number}", data)
        self._append(lengths_path(Path(f"{env}.{number}")).name, lengths)

    def _append(self, name: str, data: np.ndarray | bytes) -> None:
        content = data if isinstance(data, bytes) else np.ascontiguousarray(data).data
        try:
            with (self._folder / name).open("ab") as file:
                file.write(content)
            if self._keeps and len(content):
                self._sums[name].update(content)
        except OSError as error:
            if not is_full(error):
                raise
            message = f"the disk is full: the recording in {self._folder} does not fit"
            raise DiskError(message, hint="make room, record fewer --steps, or choose another --root") from error


def _read_resume_file(folder: Path) -> dict[str, Any] | None:
    """What `RecordingWriter.keep` wrote, if the files still begin with the same bytes."""
    try:
        saved = parse_json((folder / RESUME_FILE).read_bytes())
        sound = all(
            sum_range(folder / name, 0, size) == [size, crc32c] for name, (size, crc32c) in saved["files"].items()
        )
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return None
    return saved if sound and isinstance(saved.get("about"), dict) else None


class Recording:
    """A complete recording, for reading; ``columns`` are the columns that it states, if none are given."""

    def __init__(self, folder: Path, columns: Sequence[Column] | None = None) -> None:
        #: Everything that the owner of its writer recorded about it.
        self.about: dict[str, Any] = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        about, self.folder = self.about, folder
        self.columns: Sequence[Column] = columns or [
            Column(key, dtype, tuple(shape), per) for key, dtype, shape, per in about.get("columns", ())
        ]
        self.counts: dict[str, int] = about["counts"]
        self.notes: list[str] = about["notes"]
        self.states: list[int] = about["states"]
        #: Records of the raw objects that it was made from.
        self.objects: list[dict[str, Any]] = about.get("objects", [])

    def reward(self, env: int) -> np.ndarray:
        """float32 ``[steps]``, mapped."""
        return self._mapped(f"{env}.{REWARD}", "<f4", ())

    def end(self, env: int) -> np.ndarray:
        """uint8 ``[steps]``, mapped."""
        return self._mapped(f"{env}.{END}", "u1", ())

    def rows(self, env: int, number: int) -> np.ndarray:
        """The rows of an uncompressed column, mapped."""
        column = self.columns[number]
        return self._mapped(f"{env}.{number}", np.dtype(column.dtype).newbyteorder("<"), column.shape)

    @property
    def dictionary(self) -> Path | None:
        """The file of the dictionary that was trained on it."""
        path = self.folder / DICTIONARY
        return path if path.is_file() else None

    def staged(self, columns: Sequence[Column], dictionary: Path | None) -> dict[str, list[StagedRows]]:
        """The rows of the large ``columns`` (a recording without steps may state none), environment by environment; compressed
        with ``dictionary``, if there is one."""
        return {
            column.key: [
                StagedRows(self.folder / f"{env}.{number}", 0, states, dictionary)
                for env, states in enumerate(self.states)
                if states
            ]
            for number, column in enumerate(columns)
            if column.large
        }

    def _mapped(self, name: str, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
        path = self.folder / name
        item = np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
        return np.memmap(path, dtype, "r", shape=(path.stat().st_size // item, *shape))


def append_recordings(
    writer: ColumnWriter,
    recordings: Sequence[Recording],
    columns: Sequence[Column],
    on_progress: Callable[[int, int], None],
) -> tuple[EpisodeTable, dict[str, int]]:
    """Append the small columns of all episodes, recording by recording. Returns the episodes, and all counts."""
    writer.reserve(sum(sum(recording.states) for recording in recordings))
    trajectories, counts = TrajectoryWriter(writer, columns), Counter[str]()
    every = [(recording, env) for recording in recordings for env in range(len(recording.states))]
    for number, (recording, env) in enumerate(every):
        if recording.states[env]:
            _append_recorded(trajectories, recording, env)
        on_progress(number + 1, len(every))
    for recording in recordings:
        counts.update(recording.counts)
    episodes = trajectories.episodes()
    return episodes, {**trajectories.counts, **counts}


def _append_recorded(writer: TrajectoryWriter, recording: Recording, env: int) -> None:
    """Append the small columns of an environment's episodes."""
    end, reward = recording.end(env), recording.reward(env)
    ends = np.flatnonzero(end)
    small = [(number, column) for number, column in enumerate(recording.columns) if not column.large]
    rows = {column.key: (column, recording.rows(env, number)) for number, column in small}
    for cut in cuts(np.diff(np.concatenate([[-1], ends])), block_steps(recording.columns)):
        here = slice(*cut.steps)
        block = {
            key: all_rows[slice(*cut.states) if column.per == "state" else here]
            for key, (column, all_rows) in rows.items()
        }
        flag = end[here]
        terminated, truncated = (flag == END_TERMINATED) | (flag == END_BOTH), flag >= END_TRUNCATED
        writer.append(block, cut.lengths, np.array(reward[here]), terminated, truncated, _OUTCOMES[flag])


def block_rows(columns: Sequence[Column], count: int) -> int:
    """How many rows of each environment are kept in memory, of ``count``."""
    row = sum(column.row_bytes for column in columns) + 5
    return max(4, min(_BUFFER_ROWS, _BUFFER_BYTES // (row * count)))


class RecordedJob(StagedJob):
    """The dataset of a recording, however it is made: ``environments`` are recorded side by side."""

    staging = "recording"
    #: Whether a recording that was interrupted is continued.
    continues_recording = False
    #: The share of their size that compressed rows took in a trial, if there was one.
    measured_ratio: float | None = None
    #: The folder of the recording, set by `staging_tasks`.
    _folder: Path
    #: The spaces of observation and action, if they are known.
    spaces: dict[str, Any]

    def __init__(self, name: str, columns: Sequence[Column], environments: int, options: ConvertOptions) -> None:
        # Only the name of the location is used: there is nothing to fetch.
        super().__init__(name, DirectoryLocation("this machine"), options)
        self.environments = environments
        self.set_columns(columns)
        #: The codec of the large columns.
        self._codec = next((leaf.codec for leaf in self.schema.states), PLAIN)

    def parts(self) -> int:
        return 1

    def staged_parts(self, folder: Path) -> int:
        return int((folder / RECORDING).is_dir())

    def staging_tasks(self, folder: Path, threads: int) -> Sequence[Task]:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        return [] if self.staged_parts(folder) else [self.record_task(folder / RECORDING, threads)]

    def record_task(self, target: Path, threads: int) -> Task:
        """The task that makes the recording in the folder ``target``: `record`, in this process."""
        return _RecordTask(0, self.expect().steps, self, target, threads)

    def record(self, folder: Path, threads: int, on_block: OnBlock) -> None:
        """Write the recording into a folder."""
        raise NotImplementedError

    @property
    def compresses(self) -> bool:
        """Whether large rows are compressed."""
        return bool(self.bulk) and not load_codec(self._codec).fixed_rows

    def expect_rows(self, steps: int, episodes: int = 0) -> Expectation:
        """The expected size on disk of this many steps."""
        ratio = (self.measured_ratio or _GUESSED) if self.compresses else 1.0
        index = load_codec(self._codec).index_bytes if self.compresses else 0
        large = sum(ratio * column.row_bytes + index for column in self.columns if column.large)
        lasting = sum(leaf.row_bytes for leaf in self.schema.steps if leaf.name not in self.bulk)
        lasting += int(large) * (2 if self.options.layout == "ted" else 1)
        return Expectation(0, steps, episodes, steps * lasting, ["recording"])

    # -- plan and fill -------------------------------------------------------------------------------------------------

    def plan(self, columns: ColumnWriter, files: Mapping[str, Path], on_progress: Callable[[int, int], None]) -> Plan:
        """Reads the recording: call after the task of `staging_tasks` is done."""
        recording = self._recorded()
        episodes, found = append_recordings(columns, [recording], self.columns, on_progress)
        counts = {**found, "environments": self.environments}
        part = PartSpec(
            name="recording",
            number=0,
            first_state=0,
            states=episodes.steps + len(episodes),
            layout="recording",
            object={"name": self.name, "size": None, "crc32c": None},
        )
        notes = self.all_notes(counts, recording)
        return Plan(episodes, counts, notes, parts=[part], spaces=self.spaces)

    def staged_dictionary(self) -> bytes:
        return (self._recorded().folder / DICTIONARY).read_bytes()

    def row_sources(self) -> list[StagedPart]:
        recording = self._recorded()
        return [StagedPart(self.title, recording.staged(self.columns, recording.dictionary))]

    def _recorded(self) -> Recording:
        return Recording(self._folder / RECORDING, self.columns)

    def all_notes(self, counts: Mapping[str, Any], recording: Recording) -> list[str]:
        """The notes of the dataset."""
        raise NotImplementedError


@dataclass(frozen=True)
class _RecordTask:
    """Makes a recording in this process: arrays in memory, open files and iterators are not sent to another."""

    index: int
    rows: int
    job: RecordedJob
    target: Path
    threads: int

    @property
    def label(self) -> str:
        return self.job.title

    def __call__(self, on_block: OnBlock) -> dict[str, Any]:
        with staging_folder(self.target, keep=self.job.continues_recording) as folder:
            self.job.record(folder, self.threads, on_block)
        return {}
