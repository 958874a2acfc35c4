"""Episodes to rows: which steps an episode gives, and the values of its columns.

An episode of n steps and n + 1 observations gives n steps, and ends as its last step is flagged; where that is neither
terminated nor truncated, the data were cut there. A flag inside it ends an episode as well: what follows begins a new one with
the observation that the first ended with, as Minari's collector itself does it. Where the last observation is missing (n
observations), nothing is known after the last step: unless that is terminated, it is given up, and its observation becomes the
final one of the step before (or, asked for ``unknown_next`` zero, it is kept with a successor of zeros).
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ....errors import CorruptSourceError
from ....storage.episodes import EpisodeTable
from ....storage.schema import Leaf
from ....storage.writer import ColumnWriter
from ...formats.jpeg import decode
from ...ingest.casts import LossyCastError, cast
from ...ingest.row_source import BLOCK_BYTES, Block, RowSource, block_of_rows
from ...ingest.spaces import text_rows
from ...ingest.trajectories import TrajectoryWriter, as_reward, block_steps, outcome_of
from .reader import Data, EpisodeReader
from .survey import Source, Survey

#: Runs that a file may have beyond its episodes whatever its size; larger ones have one in 32 bytes.
_FEW_RUNS = 1 << 16
#: Bytes of pixels that any file may have as JPEG, which are decoded at 0.3 GB/s, and that larger ones have for a byte: a
#: picture of one colour has 400. Rows of one picture, packed once more, have a hundred thousand.
_FEW_PIXELS, _LARGEST_RATIO = 1 << 30, 512
#: Decoded bytes of a part.
PART_BYTES = 256 << 20
#: Bytes and rows that the dictionary is trained on, taken from all over the dataset.
_SAMPLE_BYTES, _SAMPLE_ROWS = 24 << 20, 1500


@contextmanager
def open_reader(data: Data) -> Iterator[EpisodeReader]:
    """Open a dataset's files for reading. Raises CorruptSourceError, MissingExtraError for Arrow without pyarrow."""
    reader: EpisodeReader
    if data.format == "hdf5":
        from .hdf5 import Hdf5Reader

        reader = Hdf5Reader(data)
    else:
        from .arrow import ArrowReader

        reader = ArrowReader(data)
    try:
        yield reader
    finally:
        reader.close()


class Run(NamedTuple):
    """Steps ``first..first+steps-1`` of an episode, as one of the dataset; ``terminated`` and ``truncated`` flag the last."""

    first: int
    steps: int
    terminated: bool
    truncated: bool
    outcome: int


def split_episode(states: int, terminated: np.ndarray, truncated: np.ndarray, unknown_next: str) -> Iterator[Run]:
    """The runs that an episode gives, by the flags of its steps (bool ``[n]``) and its number of observations."""
    ends = np.flatnonzero(terminated | truncated).tolist()
    steps = len(terminated)
    if steps and (not ends or ends[-1] != steps - 1):
        ends.append(steps - 1)
    first = 0
    for end in ends:
        last, is_terminated, is_truncated = end, bool(terminated[end]), bool(truncated[end])
        outcome = outcome_of(is_terminated, is_truncated)
        if end + 1 >= states and not is_terminated and unknown_next == "truncate":
            last -= 1
        if last >= first:
            yield Run(first, last - first + 1, is_terminated, is_truncated or not is_terminated, outcome)
        first = end + 1


def state_rows(
    reader: EpisodeReader, source: Source, found: Survey, index: int, low: int, high: int, name: str
) -> np.ndarray:
    """Rows ``low..high-1`` of a column in one episode; zeros beyond what there is."""
    column = source.column
    rows = np.zeros((high - low, *column.shape), column.dtype)
    episode = found.episodes[index]
    if source.rows is None:
        available = int((found.states if column.per == "state" else found.steps)[index])
        skip = 0
    else:
        available = int(source.rows[index])
        # Rows of an info that belong to steps: that of the reset comes before them.
        skip = available - int(found.steps[index]) if column.per == "step" and available >= 0 else 0
    if available < 0:
        return rows
    if source.mask:
        rows[:] = True
        return rows
    high = min(high, available - skip)
    if high <= low:
        return rows
    values = reader.read(episode, source.place, low + skip, high + skip, source.kind)
    where = f"{name}: {column.key} of episode {episode}"
    if source.kind == "jpeg":
        values = decode(values, column.shape, where)
    elif source.kind == "text":
        values = text_rows(values, column.shape[0], where)
    try:
        rows[: high - low] = cast(np.asarray(values).reshape(high - low, *column.shape), column.dtype)
    except LossyCastError as error:
        raise CorruptSourceError(f"{where}: {error}, in row {low + error.row}") from error
    return rows


class ColumnRows:
    """Rows of one column by ranges in ascending order: ``size`` rows are read at once, whatever is asked for."""

    def __init__(self, reader: EpisodeReader, source: Source, found: Survey, size: int, name: str) -> None:
        self._reader, self._source, self._found, self._size, self._name = reader, source, found, size, name
        self._rows, self._episode, self._first = np.zeros(0), -1, 0

    def read(self, index: int, low: int, high: int) -> np.ndarray:
        """Rows ``low..high-1`` in the episode of this index, as `state_rows` gives them; not to be written to."""
        if index != self._episode or low < self._first or high > self._first + len(self._rows):
            end = max(high, min(low + self._size, int(self._found.steps[index]) + 1))
            self._rows = state_rows(self._reader, self._source, self._found, index, low, end, self._name)
            self._episode, self._first = index, low
        return self._rows[low - self._first : high - self._first]


class Planner:
    """Appends all small columns of a dataset, and keeps where the states of its episodes come from."""

    def __init__(
        self, reader: EpisodeReader, found: Survey, name: str, unknown_next: str, columns: ColumnWriter
    ) -> None:
        #: Each is an episode of the dataset, so a small file may not have a million of them.
        self._most_runs = len(found.episodes) + max(_FEW_RUNS, found.size // 32)
        self._reader, self._found, self._name, self._unknown_next = reader, found, name, unknown_next
        pictures = [source.column.row_bytes for source in found.sources if source.kind == "jpeg"]
        if int(found.states.sum()) * sum(pictures) > max(_FEW_PIXELS, found.size * _LARGEST_RATIO):
            raise CorruptSourceError(f"{name} holds larger pictures than its {found.size} bytes can be JPEG of")
        self._writer = TrajectoryWriter(columns, found.columns)
        self._size = block_steps(found.columns)
        self._small = {
            source.column: ColumnRows(reader, source, found, self._size + 1, name)
            for source in found.sources
            if not source.column.large
        }
        #: Segments that wait until there are enough for a block: rows by key, rewards, and flags and outcomes uint8 [3, n].
        self._waiting: list[tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]] = []
        self._waiting_steps = 0
        #: int64 ``[runs, 3]``: index of the episode, its first state row, number of state rows.
        self.runs = np.zeros((0, 3), np.int64)
        self.counts = {"empty_episodes": 0, "split_episodes": 0, "given_up_steps": 0, "blank_successors": 0}

    def run(self, on_progress: Any) -> EpisodeTable:
        """Read and append everything."""
        found, runs = self._found, array("q")  # 24 bytes a run, where every step may end one
        for index, episode in enumerate(found.episodes):
            steps, states = int(found.steps[index]), int(found.states[index])
            if not steps:
                self.counts["empty_episodes"] += 1
                continue
            terminated = self._flags(episode, "terminations", steps)
            truncated = self._flags(episode, "truncations", steps)
            rewards = self._rewards(episode, steps)
            given = kept = 0
            for one in split_episode(states, terminated, truncated, self._unknown_next):
                runs.extend((index, one.first, one.steps + 1))
                if len(runs) > 3 * self._most_runs:
                    message = f"{self._name} flags more than {self._most_runs} ends inside of its episodes"
                    raise CorruptSourceError(
                        message, hint="the file is damaged: fetch it again, or use another mirror (--mirror)"
                    )
                self._append(index, one, rewards)
                given, kept = given + 1, kept + one.steps
            self.counts["given_up_steps"] += steps - kept
            self.counts["split_episodes"] += max(0, given - 1)
            self.counts["blank_successors"] += bool(given) and states <= steps and kept == steps
            if not index % 64:
                on_progress(index, len(found.episodes))
        self._flush()
        self.runs = np.frombuffer(runs, np.int64).reshape(-1, 3) if runs else self.runs
        table = self._writer.episodes()
        self.counts = {**self._writer.counts, **self.counts}
        return table

    def _append(self, index: int, run: Run, rewards: np.ndarray) -> None:
        for low in range(run.first, run.first + run.steps, self._size):
            high = min(low + self._size, run.first + run.steps)
            rows = {}
            for column, reader in self._small.items():
                rows[column.key] = reader.read(index, low, high + 1 if column.per == "state" else high)
            flags = np.zeros((3, high - low), np.uint8)
            if high == run.first + run.steps:
                flags[:, -1] = (run.terminated, run.truncated, run.outcome)
            self._waiting.append((rows, rewards[low:high], flags))
            self._waiting_steps += high - low
            if self._waiting_steps >= self._size:
                self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        all_rows, rewards, flags = zip(*self._waiting)
        rows = {key: np.concatenate([one[key] for one in all_rows]) for key in all_rows[0]}
        lengths = np.array([len(one) for one in rewards], np.int64)
        terminated, truncated, outcome = np.concatenate(flags, axis=1)
        ends = (terminated.astype(bool), truncated.astype(bool), outcome)
        self._writer.append(rows, lengths, np.concatenate(rewards), *ends)
        self._waiting, self._waiting_steps = [], 0

    def _rewards(self, episode: int, steps: int) -> np.ndarray:
        values = self._reader.read(episode, ("rewards",), 0, steps, "numbers")
        rewards = as_reward(values, f"{self._name}: episode {episode}")
        if len(rewards) != steps:
            raise CorruptSourceError(f"{self._name}: episode {episode} has rewards of shape {np.shape(values)}")
        return rewards

    def _flags(self, episode: int, name: str, steps: int) -> np.ndarray:
        field = self._reader.field(episode, (name,), ())
        values = np.asarray(self._reader.read(episode, (name,), 0, steps, "numbers")).reshape(-1)
        if field.rows != steps or len(values) != steps or values.dtype.kind not in "biuf":
            raise CorruptSourceError(f"{self._name}: episode {episode} has {field.rows} {name} and {steps} steps")
        try:
            return cast(values, bool)
        except LossyCastError as error:
            message = f"{self._name}: episode {episode} has {name} that are {error.value} at step {error.row}"
            raise CorruptSourceError(message) from error


@dataclass(frozen=True)
class LargeRows(RowSource):
    """The large columns of one part. ``runs``: see `episode_rows.Planner`. Progress counts states."""

    data: Data
    found: Survey
    sources: tuple[Source, ...]
    runs: np.ndarray

    @property
    def rows(self) -> int:
        return int(self.runs[:, 2].sum())

    def blocks(self, leaves: Sequence[Leaf], threads: int) -> Generator[Block, None, None]:
        with open_reader(self.data) as reader:
            for number, (source, leaf) in enumerate(zip(self.sources, leaves)):
                position = 0
                for rows in self._read(reader, source):
                    done = (number * self.rows + position + len(rows)) // len(leaves)
                    yield block_of_rows(leaf, position, rows, done)
                    position += len(rows)

    def _read(self, reader: EpisodeReader, source: Source) -> Iterator[np.ndarray]:
        size = max(1, BLOCK_BYTES // source.column.row_bytes)
        column = ColumnRows(reader, source, self.found, size, self.data.name)
        for index, first, states in self.runs.tolist():
            for low in range(first, first + states, size):
                yield column.read(index, low, min(low + size, first + states))


def part_bounds(states: np.ndarray, row_bytes: int, part_bytes: int = PART_BYTES) -> list[tuple[int, int]]:
    """Episodes of so many states in groups of about ``part_bytes`` of large rows: (first, last + 1)."""
    sizes = np.cumsum(states) * row_bytes
    bounds = []
    low = 0
    while low < len(states):
        before = int(sizes[low - 1]) if low else 0
        high = max(low + 1, int(np.searchsorted(sizes, before + part_bytes, "right")))
        bounds.append((low, high))
        low = high
    return bounds


def sample(data: Data, found: Survey, sources: Sequence[Source], runs: np.ndarray) -> list[np.ndarray]:
    """Rows to train the dictionary on, uint8 ``[row bytes]`` each, spread over all runs and large columns."""
    taken: list[np.ndarray] = []
    ends = np.cumsum(runs[:, 2])
    with open_reader(data) as reader:
        for source in sources:
            want = min(_SAMPLE_ROWS, _SAMPLE_BYTES // source.column.row_bytes) // len(sources)
            for row in np.unique(np.linspace(0, int(ends[-1]) - 1, max(1, want)).astype(np.int64)).tolist():
                run = int(np.searchsorted(ends, row, "right"))
                at = int(runs[run, 1] + row - (ends[run] - runs[run, 2]))
                rows = state_rows(reader, source, found, int(runs[run, 0]), at, at + 1, data.name)
                taken.append(np.frombuffer(np.ascontiguousarray(rows).tobytes(), np.uint8))
    return taken
