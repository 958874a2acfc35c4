"""Episodes to rows: which columns a dataset has (`survey`), which steps an episode gives, and the values of its columns.

The columns follow from the spaces, from what the episodes hold, and from which infos can be kept. Infos come with as many rows
as observations (the first one from the reset), or with one for each step; they may be missing from some episodes, or differ
in shape or kind. A name is kept if its values fit into rows of one dtype and shape:

    n + 1 rows in every episode that has it    ``info/<name>`` and ``next/info/<name>``, as observations
    else                                       ``next/info/<name>`` alone: what the step brought; a row of the reset is dropped

and where an episode does not have it, its rows are zeros and ``info_mask/<name>`` (``next/info_mask/<name>``) is False.

An episode of n steps and n + 1 observations gives n steps, and ends as its last step is flagged; where that is neither
terminated nor truncated, the data were cut there. A flag inside it ends an episode as well: what follows begins a new one with
the observation that the first ended with, as Minari's collector itself does it. Where the last observation is missing (n
observations), nothing is known after the last step: unless that is terminated, it is given up, and its observation becomes the
final one of the step before (or, asked for ``unknown_next`` zero, it is kept with a successor of zeros).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from ....errors import CorruptSourceError, SchemaError, UsageError
from ....storage.checksums import Crc32c, hash_file
from ....storage.schema import clean_keys
from ...formats.limits import REFETCH
from ...formats.pictures import decode_jpegs
from ...ingest.block import END_CUT, END_TERMINATED, END_TRUNCATED, Block, outcomes
from ...ingest.spaces import (
    Json,
    SpaceLeaf,
    TakenKeys,
    TextAs,
    cast_rows,
    renamed,
    space_leaves,
    stored_dtype,
    text_rows,
)
from ...ingest.trajectories import BLOCK_BYTES, Column, block_steps, count_outcomes, to_flags, to_rewards
from ...ingest.unit import Unit
from .files import DataFiles, Field, Kind, LeafPath, Metadata, MinariFiles


@dataclass(frozen=True)
class ColumnSource:
    """Where the rows of a column come from. Picklable.

    ``rows`` (infos only) is how many rows each episode has, int64, -1 where it has none that fit. ``mask``: the column says
    whether there are rows, not what they are.
    """

    column: Column
    place: LeafPath
    kind: Kind
    rows: np.ndarray | None = None
    mask: bool = False


@dataclass
class Survey:
    """What a dataset holds: ``steps`` and ``states`` are the rows of actions and observations of each episode, int64."""

    episodes: Sequence[int]
    steps: np.ndarray
    states: np.ndarray
    sources: list[ColumnSource]
    spaces: dict[str, Json]
    keys: dict[str, str]
    left_out: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    #: Bytes of the files.
    size: int = 0

    @property
    def columns(self) -> list[Column]:
        return [source.column for source in self.sources]

    def compared_with(self, metadata: Metadata) -> list[tuple[str, int, int]]:
        """The counts that the metadata state and that are others: of what, as stated, and as held."""
        held = {"steps": int(self.steps.sum()), "episodes": len(self.episodes)}
        stated = {"steps": metadata.steps, "episodes": metadata.episodes}
        return [(what, count, held[what]) for what, count in stated.items() if count not in (None, held[what])]


def survey(reader: MinariFiles, metadata: Metadata, name: str, text: TextAs) -> Survey:
    """Look through a dataset without reading its rows.

    Raises CorruptSourceError where the files do not hold what the spaces say, UsageError for what cannot be stored.
    """
    if not reader.episodes:
        raise CorruptSourceError(f"{name} holds no episodes")
    spaces = {key: metadata.spaces.get(key) or reader.space((key + "s",)) for key in ("observation", "action")}
    left_out: dict[str, str] = {}
    described: list[_SpaceColumn] = []
    for base in ("observation", "action"):
        found, omitted = space_leaves(spaces[base], base, text)
        described += [_SpaceColumn(leaf, (base + "s", *leaf.path)) for leaf in found]
        left_out.update(omitted)
    if {one.place[0] for one in described} != {"observations", "actions"}:
        raise UsageError(f"{name}: no observations or no actions remain: {left_out}")
    infos = _InfoColumns()
    steps, states = (np.zeros(len(reader.episodes), np.int64) for _ in range(2))
    for index, episode in enumerate(reader.episodes):
        has = f"{name}: episode {episode} has"
        steps[index] = reader.steps(episode)
        rows = {one.place[0]: one.add(reader, episode, name) for one in described}
        for one in described:
            if one.rows != rows[one.place[0]]:
                raise CorruptSourceError(f"{has} {one.place} of {one.rows} rows, others of its space more")
        states[index] = rows["observations"]
        if rows["actions"] != steps[index]:
            raise CorruptSourceError(f"{has} {rows['actions']} actions and {steps[index]} rewards")
        if steps[index] and states[index] - steps[index] not in (0, 1):
            message = f"{has} {states[index]} observations and {steps[index]} steps"
            raise CorruptSourceError(message, hint="an episode of n steps has n + 1 observations")
        infos.add(index, reader.infos(episode))
    sources = [one.source(name) for one in described]
    kept, why_not = infos.sources(steps, TakenKeys(source.column.key for source in sources))
    keys = {**renamed([one.leaf for one in described]), **infos.keys}
    result = Survey(reader.episodes, steps, states, [*sources, *kept], spaces, keys, {**left_out, **why_not})
    result.notes = _notes(result, metadata, infos)
    return result


class _SpaceColumn:
    """A leaf of a space, as all episodes hold it."""

    def __init__(self, leaf: SpaceLeaf, place: LeafPath) -> None:
        self.leaf, self.place = leaf, place
        self.rows = 0
        self._kind: Kind | None = None
        self._dtypes: dict[np.dtype, None] = {}

    def add(self, reader: MinariFiles, episode: int, name: str) -> int:
        """Take an episode; returns how many rows it has."""
        wanted = tuple(self.leaf.space.get("shape", ()))
        found = reader.field(episode, self.place, wanted)
        where = f"{name}: {'/'.join(map(str, self.place))} of episode {episode}"
        self.rows = found.rows
        if not found.rows:
            return 0
        if found.kind == "other" or (found.kind == "text") != self.leaf.is_text:
            message = f"{where} is not of its space ({self.leaf.space['type']}): {found.why or found.kind}"
            raise CorruptSourceError(message)
        if not self.leaf.is_text and _squeezed(found.shape) != _squeezed(wanted):
            raise CorruptSourceError(f"{where} has rows of shape {found.shape}, its space says {wanted}")
        if self._kind not in (None, found.kind):
            raise CorruptSourceError(f"{where} holds {found.kind}, earlier episodes {self._kind}")
        self._kind = found.kind
        self._dtypes[found.dtype] = None
        return found.rows

    def source(self, name: str) -> ColumnSource:
        leaf = self.leaf
        per: Any = "state" if self.place[0] == "observations" else "step"
        dtype = leaf.dtype
        if not leaf.is_text and self._dtypes:
            # The stored dtype counts: a float32 space often holds values that the environment gave as float64.
            dtype = stored_dtype(_common(list(self._dtypes)), f"{name}: {leaf.key}")
        return ColumnSource(Column(leaf.key, dtype, leaf.shape, per), self.place, self._kind or "numbers")


class _InfoColumns:
    """All infos of all episodes, by place."""

    def __init__(self) -> None:
        self._found: dict[LeafPath, dict[int, Field]] = {}
        self.keys: dict[str, str] = {}
        #: Names that some episodes lack, and names of which the reset's row is dropped.
        self.masked: list[str] = []
        self.shortened: list[str] = []

    def add(self, index: int, fields: dict[LeafPath, Field]) -> None:
        for place, one in fields.items():
            self._found.setdefault(place, {})[index] = one

    def sources(self, steps: np.ndarray, taken: TakenKeys) -> tuple[list[ColumnSource], dict[str, str]]:
        """The infos that are kept, and why others are not."""
        kept: list[ColumnSource] = []
        left_out: dict[str, str] = {}
        names = {place: "/".join(map(str, place[1:])) for place in self._found}
        for place, fields in self._found.items():
            path = "infos/" + names[place]
            try:
                (key,) = clean_keys([f"info/{names[place]}"]).values()
                if key in taken:
                    raise SchemaError(f"its key {key} is taken")
                sources = self._columns(place, key, fields, steps)
            except (UsageError, SchemaError) as error:
                left_out[path] = error.message
                continue
            taken.add(key)
            if key != "info/" + names[place]:
                self.keys[key] = path
            kept += sources
        return kept, left_out

    def _columns(self, place: LeafPath, key: str, fields: dict[int, Field], steps: np.ndarray) -> list[ColumnSource]:
        """The column of an info, and that of its mask. Raises UsageError with what keeps it from being one."""
        unusable = [one for one in fields.values() if one.kind != "numbers"]
        if unusable:
            raise UsageError(unusable[0].why or f"it holds {unusable[0].kind}")
        present = {index: one for index, one in fields.items() if one.rows}
        shapes = sorted({one.shape for one in present.values()})
        if len(shapes) != 1:
            raise UsageError(f"its shape varies: {', '.join(map(str, shapes))}" if shapes else "it is empty everywhere")
        if 0 in shapes[0]:
            raise UsageError(f"its shape {shapes[0]} is empty")
        shape = shapes[0] or (1,)  # TED wants a dimension for a single number
        dtype = stored_dtype(_common(list(dict.fromkeys(one.dtype for one in present.values()))), key)
        rows = np.full(len(steps), -1, np.int64)
        for index, one in present.items():
            if one.rows - steps[index] in (0, 1):
                rows[index] = one.rows
        there = rows >= 0
        if not there.any():
            raise UsageError("it has neither n nor n + 1 rows in any episode")
        has_reset = rows[there] == steps[there] + 1
        per: Literal["state", "step"] = "state" if has_reset.all() else "step"
        prefix, name = "" if per == "state" else "next/", key.removeprefix("info/")
        if per == "step" and has_reset.any():
            self.shortened.append(name)
        found = [ColumnSource(Column(prefix + key, dtype, shape, per), place, "numbers", rows)]
        if (~there & (steps > 0)).any():
            self.masked.append(name)
            mask = Column(f"{prefix}info_mask/{name}", "bool", (1,), per)
            found.append(ColumnSource(mask, place, "numbers", rows, mask=True))
        return found


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _common(dtypes: list[np.dtype]) -> np.dtype:
    """A dtype that holds the values of all. Raises UsageError if no dtype does so exactly."""
    common = np.result_type(*dtypes)
    if not all(np.can_cast(dtype, common, "safe") for dtype in dtypes):
        raise UsageError(f"its dtype varies: {', '.join(map(str, dtypes))}")
    return common


def _notes(found: Survey, metadata: Metadata, infos: _InfoColumns) -> list[str]:
    """What a user should know about the values, in sentences."""
    by_kind = {kind: [one.column.key for one in found.sources if one.kind == kind] for kind in ("jpeg", "text")}
    left_out = [f"{path} ({why})" for path, why in list(found.left_out.items())[:8]]
    listed = {
        "Minari stored {} as JPEG, which is lossy: the frames are as decoded.": by_kind["jpeg"],
        "Text is stored as UTF-8 bytes, zero-padded: {}.": by_kind["text"],
        "Not in every episode, zeros with a mask (info_mask) elsewhere: {}.": infos.masked,
        "The info of the reset is dropped, as some episodes lack it: {}.": infos.shortened,
    }
    notes = [sentence.format(", ".join(names)) for sentence, names in listed.items() if names]
    if left_out:
        notes.append(f"Left out: {'; '.join(left_out)}.")
    dtypes = [column.dtype for column in found.columns if column.key == "observation"]
    if dtypes == ["float64"] and found.spaces["observation"].get("dtype") == "float32":
        notes.append("The observation space says float32, the data are float64, and kept as they are.")
    for what, stated, held in found.compared_with(metadata):
        notes.append(f"The metadata state {stated} {what}, the files hold {held}.")
    return notes


#: Runs that a file of any size may have beyond its episodes; larger files may have one per 32 bytes.
_FEW_RUNS = 1 << 16
#: Bytes of pixels that any file may have as JPEG, which are decoded at 0.3 GB/s, and that larger ones have for a byte: a
#: picture of one colour has 400. Rows of one picture that are compressed again have a hundred thousand.
_FEW_PIXELS, _LARGEST_RATIO = 1 << 30, 512
#: Decoded bytes of a part.
PART_BYTES = 256 << 20
#: Bytes and rows that the dictionary is trained on, taken from all over the dataset.
_SAMPLE_BYTES, _SAMPLE_ROWS = 24 << 20, 1500


def open_files(data: DataFiles) -> AbstractContextManager[MinariFiles]:
    """Open a dataset's files for reading. Raises CorruptSourceError, MissingExtraError for Arrow without pyarrow."""
    if data.format == "hdf5":
        from .hdf5 import Hdf5Files

        return closing(Hdf5Files(data))
    from .arrow import ArrowFiles

    return closing(ArrowFiles(data))


class _Run(NamedTuple):
    """Steps ``first..first+steps-1`` of an episode, as one of the dataset; ``bits`` is how the last one ends it."""

    first: int
    steps: int
    bits: int


def split_episode(states: int, terminated: np.ndarray, truncated: np.ndarray, unknown_next: str) -> Iterator[_Run]:
    """The runs that an episode gives, by the flags of its steps (bool ``[n]``) and its number of observations."""
    ends = np.flatnonzero(terminated | truncated).tolist()
    steps = len(terminated)
    if steps and ends[-1:] != [steps - 1]:
        ends.append(steps - 1)
    first = 0
    for end in ends:
        last, bits = end, int(terminated[end]) * END_TERMINATED | int(truncated[end]) * END_TRUNCATED
        if end + 1 >= states and not terminated[end] and unknown_next == "truncate":
            last -= 1
        if last >= first:
            yield _Run(first, last - first + 1, bits or END_CUT)
        first = end + 1


def column_rows(
    reader: MinariFiles, source: ColumnSource, found: Survey, index: int, low: int, high: int, name: str
) -> np.ndarray:
    """Rows ``low..high-1`` of a column in one episode; zeros beyond what there is."""
    column, episode = source.column, found.episodes[index]
    rows = np.zeros((high - low, *column.shape), column.dtype)
    every = found.states if column.per == "state" else found.steps
    available = int((every if source.rows is None else source.rows)[index])
    if available < 0:
        return rows
    if source.mask:
        rows[:] = True
        return rows
    # Rows of an info that belong to steps: that of the reset comes before them.
    skip = available - int(found.steps[index]) if column.per == "step" else 0
    high = min(high, available - skip)
    if high <= low:
        return rows
    values = reader.read(episode, source.place, low + skip, high + skip, source.kind)
    where = f"{name}: {column.key} of episode {episode}"
    if source.kind == "jpeg":
        values = decode_jpegs(values, column.shape, where)
    elif source.kind == "text":
        values = text_rows(values, column.shape[0], where)
    rows[: high - low] = cast_rows(np.asarray(values).reshape(high - low, *column.shape), column.dtype, where, low)
    return rows


class ColumnRows:
    """Rows of one column by ranges in ascending order: ``size`` rows are read at once, whatever is asked for."""

    def __init__(self, reader: MinariFiles, source: ColumnSource, found: Survey, size: int, name: str) -> None:
        self._reader, self._source, self._found, self._size, self._name = reader, source, found, size, name
        self._rows, self._episode, self._first = np.zeros(0), -1, 0

    def read(self, index: int, low: int, high: int) -> np.ndarray:
        """Rows ``low..high-1`` in the episode of this index, as `column_rows` gives them; not to be written to."""
        if index != self._episode or low < self._first or high > self._first + len(self._rows):
            end = max(high, min(low + self._size, int(self._found.steps[index]) + 1))
            self._rows = column_rows(self._reader, self._source, self._found, index, low, end, self._name)
            self._episode, self._first = index, low
        return self._rows[low - self._first : high - self._first]


@dataclass(frozen=True)
class StepUnit(Unit):
    """All steps with their small columns; ``name`` is the dataset's."""

    data: DataFiles
    found: Survey
    unknown_next: str

    def blocks(self, resume: Any, threads: int) -> Iterator[Block]:
        with ThreadPoolExecutor(1, "rbdata-crc32c") as pool:
            sums = pool.submit(lambda: {path: hash_file(file, Crc32c()) for path, file in self.data.files.items()})
            with open_files(self.data) as files:
                steps = _Steps(files, self.found, self.name, self.unknown_next)
                yield from steps.blocks()
            if not steps.runs:
                raise CorruptSourceError(f"{self.name} holds no step whose successor is known")
            large = any(source.column.large for source in self.found.sources)
            record = {
                "counts": steps.counts,
                "checksums": {path: one.hexdigest() for path, one in sums.result().items()},
                "runs": steps.runs.tolist() if large else [],
            }
            yield Block({}, done=self.rows, record=record)


class _Steps:
    """Reads all small columns of a dataset, and keeps where the states of its episodes come from."""

    def __init__(self, files: MinariFiles, found: Survey, name: str, unknown_next: str) -> None:
        #: Each is an episode of the dataset, so a small file may not have a million of them.
        self._most_runs = len(found.episodes) + max(_FEW_RUNS, found.size // 32)
        self._files, self._found, self._name, self._unknown_next = files, found, name, unknown_next
        pictures = [source.column.row_bytes for source in found.sources if source.kind == "jpeg"]
        if int(found.states.sum()) * sum(pictures) > max(_FEW_PIXELS, found.size * _LARGEST_RATIO):
            raise CorruptSourceError(f"{name} holds larger pictures than its {found.size} bytes can be JPEG of")
        self._size = block_steps(found.columns)
        self._small = {
            source.column: ColumnRows(files, source, found, self._size + 1, name)
            for source in found.sources
            if not source.column.large
        }
        #: Pieces of episodes that wait until there are enough for a block: rows by key, with rewards; and bits.
        self._waiting: list[tuple[dict[str, np.ndarray], np.ndarray]] = []
        #: Index of the episode, first state row, number of state rows; of each run. 24 bytes, where every step may end one.
        self.runs = array("q")
        self._waiting_steps = 0
        self.counts = {
            **count_outcomes(np.zeros(0, np.uint8)),
            **dict.fromkeys(("empty_episodes", "split_episodes", "given_up_steps", "blank_successors"), 0),
        }

    def blocks(self) -> Iterator[Block]:
        """All steps."""
        found = self._found
        for index, episode in enumerate(found.episodes):
            steps, states = int(found.steps[index]), int(found.states[index])
            if not steps:
                self.counts["empty_episodes"] += 1
                continue
            terminated, truncated = (self._flags(episode, name, steps) for name in ("terminations", "truncations"))
            rewards = self._rewards(episode, steps)
            given = kept = 0
            for one in split_episode(states, terminated, truncated, self._unknown_next):
                self.runs.extend((index, one.first, one.steps + 1))
                if len(self.runs) > 3 * self._most_runs:
                    message = f"{self._name} flags more than {self._most_runs} ends inside of its episodes"
                    raise CorruptSourceError(message, hint=f"the file is damaged: {REFETCH}")
                yield from self._pieces(index, one, rewards)
                given, kept = given + 1, kept + one.steps
            self.counts["given_up_steps"] += steps - kept
            self.counts["split_episodes"] += max(0, given - 1)
            self.counts["blank_successors"] += bool(given) and states <= steps and kept == steps
        if self._waiting:
            yield self._block(len(found.episodes))

    def _pieces(self, index: int, run: _Run, rewards: np.ndarray) -> Iterator[Block]:
        stop = run.first + run.steps
        for low in range(run.first, stop, self._size):
            high = min(low + self._size, stop)
            is_last = high == stop
            rows = {"next/reward": rewards[low:high]}
            for column, reader in self._small.items():
                rows[column.key] = reader.read(index, low, high + (is_last and column.per == "state"))
            bits = np.zeros(high - low, np.uint8)
            bits[-1] = run.bits if is_last else 0
            self._waiting.append((rows, bits))
            self._waiting_steps += high - low
            if self._waiting_steps >= self._size:
                yield self._block(index)

    def _block(self, done: int) -> Block:
        pieces, every = zip(*self._waiting)
        self._waiting, self._waiting_steps = [], 0
        bits = np.concatenate(every)
        for name, count in count_outcomes(outcomes(bits[bits != 0])).items():
            self.counts[name] += count
        return Block({key: np.concatenate([one[key] for one in pieces]) for key in pieces[0]}, bits, done=done)

    def _rewards(self, episode: int, steps: int) -> np.ndarray:
        values = self._files.read(episode, ("rewards",), 0, steps, "numbers")
        rewards = to_rewards(values, f"{self._name}: episode {episode}")
        if len(rewards) != steps:
            raise CorruptSourceError(f"{self._name}: episode {episode} has rewards of shape {np.shape(values)}")
        return rewards

    def _flags(self, episode: int, name: str, steps: int) -> np.ndarray:
        field = self._files.field(episode, (name,), ())
        values = np.asarray(self._files.read(episode, (name,), 0, steps, "numbers")).reshape(-1)
        if field.rows != steps or len(values) != steps or values.dtype.kind not in "biuf":
            raise CorruptSourceError(f"{self._name}: episode {episode} has {field.rows} {name} and {steps} steps")
        return to_flags(values, f"{self._name}: episode {episode}: {name}", "step")


@dataclass(frozen=True)
class LargeUnit(Unit):
    """The large columns of some episodes.

    ``runs``: int64 ``[n, 3]``, index of the episode, first state row, number of state rows. Progress counts states.
    """

    data: DataFiles
    found: Survey
    sources: tuple[ColumnSource, ...]
    runs: np.ndarray

    def blocks(self, resume: Any, threads: int) -> Iterator[Block]:
        with open_files(self.data) as files:
            for number, source in enumerate(self.sources):
                size, position = max(1, BLOCK_BYTES // source.column.row_bytes), 0
                column = ColumnRows(files, source, self.found, size, self.data.name)
                for index, first, states in self.runs.tolist():
                    for low in range(first, first + states, size):
                        high = min(low + size, first + states)
                        rows, final = column.read(index, low, high), np.zeros(high - low, bool)
                        final[-1] = high == first + states
                        position += len(rows)
                        done = (number * self.rows + position) // len(self.sources)
                        yield Block({source.column.key: rows}, final=final, done=done)


def part_bounds(states: np.ndarray, row_bytes: int, part_bytes: int = PART_BYTES) -> list[tuple[int, int]]:
    """Episodes of these many states in groups of about ``part_bytes`` of large rows: (first, last + 1)."""
    sizes = np.cumsum(states) * row_bytes
    bounds = []
    low = before = 0
    while low < len(states):
        high = max(low + 1, int(np.searchsorted(sizes, before + part_bytes, "right")))
        bounds.append((low, high))
        low, before = high, int(sizes[high - 1])
    return bounds


def sample(data: DataFiles, found: Survey, sources: Sequence[ColumnSource], runs: np.ndarray) -> list[np.ndarray]:
    """Rows to train the dictionary on, uint8 ``[row bytes]`` each, spread over all runs and large columns."""
    taken: list[np.ndarray] = []
    ends = np.cumsum(runs[:, 2])
    with open_files(data) as reader:
        for source in sources:
            want = min(_SAMPLE_ROWS, _SAMPLE_BYTES // source.column.row_bytes) // len(sources)
            for row in np.unique(np.linspace(0, int(ends[-1]) - 1, max(1, want)).astype(np.int64)).tolist():
                run = int(np.searchsorted(ends, row, "right"))
                at = int(runs[run, 1] + row - (ends[run] - runs[run, 2]))
                rows = column_rows(reader, source, found, int(runs[run, 0]), at, at + 1, data.name)
                taken.append(np.frombuffer(np.ascontiguousarray(rows).tobytes(), np.uint8))
    return taken
