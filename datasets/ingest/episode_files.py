"""A dataset whose raw objects hold whole episodes: each object is decoded separately, by any free worker.

A source says how one raw object is read (`EpisodeReader`), and which objects a worker takes at a time (`Unit`: a shard, or some
small files). `EpisodeFilesJob` does the rest:

    fetch      the objects of a unit, whole (continued at the byte, checked) or as a stream
    decode     their episodes into a recording of the unit (`recording`); in a worker process where C libraries read the files
    plan       the recordings one after the other, in the order of the units

Large rows are compressed as they are decoded, with one dictionary for all units, trained on the first rows of the first unit
that holds an episode. So a first task reads that unit alone. It ends when the dictionary is there, and all units are decoded
side by side with it; where the unit ends before, it is decoded. The leaves of the dataset follow from the first episode; every
other episode must have the same. A unit is kept when a run is interrupted, and an object that was being fetched is continued.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ...errors import CorruptSourceError, ObjectChangedError
from ...storage.checksums import Crc32c, crc32c, hash_file
from ...storage.codecs import PLAIN
from ...storage.durable import write_atomically
from ...storage.folder import remove_tree
from ...storage.writer import ColumnWriter
from ..fetch import Location, RemoteObject, fetch_to_file, read_all, resolve
from ..formats.limits import check_row_bytes
from ..workers.task import OnBlock, Task
from .estimate import compressed_leaves
from .job import ConvertOptions, Expectation, PartSpec, Plan, RawObject, StagedJob, count_notes
from .raw_files import is_sound
from .recording import (
    ABOUT,
    DICTIONARY,
    END_BOTH,
    END_CUT,
    END_TERMINATED,
    END_TRUNCATED,
    Recording,
    RecordingWriter,
    append_recordings,
)
from .request import select_numbered
from .row_source import CountedStream, StagedPart, staging_folder
from .trajectories import Column, column_difference, schema_of, to_rewards

_SENTENCES = {
    "empty_episodes": "{n} episodes without a step were left out.",
    "blank_successors": "{n} terminated episodes lack their final observation, which is zeros here.",
    "cut_episodes": "{n} episodes are flagged neither terminated nor truncated at their end: cut there.",
    "rows_not_finite": "Observations with NaN or infinity, as in the data: {n}.",
}


# -- what a source gives -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LazyRows:
    """Rows of ``shape`` that are decoded when they are needed: ``blocks`` yields them in order, ``[k, *shape]`` each, once."""

    dtype: str
    shape: tuple[int, ...]
    blocks: Iterable[np.ndarray]


Rows = np.ndarray | LazyRows


def state_rows(rows: Rows) -> Rows:
    """Rows of a state: TED wants a dimension for a single number."""
    if isinstance(rows, LazyRows):
        return rows if rows.shape else LazyRows(rows.dtype, (1,), (block[:, None] for block in rows.blocks))
    return rows[:, None] if rows.ndim == 1 else rows


@dataclass(frozen=True)
class Episode:
    """An episode of n steps.

    ``states`` have n + 1 rows: a state ``observation/image`` is stored as ``observation/image`` and ``next/observation/image``.
    ``steps`` (actions among them) and ``rewards`` have n rows. Rewards may be of any type of number. An episode that is neither
    ``terminated`` nor ``truncated`` was cut by the end of the data. If the data lack the observation after the last step
    (``is_blank``), ``states`` have n rows, and zeros are stored.
    """

    states: Mapping[str, Rows]
    steps: Mapping[str, Rows]
    rewards: np.ndarray
    terminated: bool
    truncated: bool
    is_blank: bool = False

    def count(self, is_state: bool) -> int:
        """The number of rows of a column of states, or of steps."""
        return len(self.rewards) + (is_state and not self.is_blank)

    def rows(self) -> Iterator[tuple[str, Rows, bool]]:
        """Key and rows of each column, and whether it is one of states."""
        yield from ((key, rows, True) for key, rows in self.states.items())
        yield from ((key, rows, False) for key, rows in self.steps.items())


def dm_env_episode(
    states: Mapping[str, Rows],
    action: np.ndarray,
    rewards: np.ndarray,
    discount: np.ndarray,
    counts: Counter[str],
    where: str,
    *,
    steps: Mapping[str, np.ndarray] = {},
    terminal: np.ndarray | None = None,
    whole: bool = True,
) -> Episode:
    """An episode as dm_env's time steps: action and reward of row t *led to* the observation of row t.

        row           0        1    2    3
        observation   s0       s1   s2   s3
        action        (zeros)  a0   a1   a2
        reward        (0)      r0   r1   r2
        discount      (1)      d0   d1   d2        0 where the episode terminated

    So all arrays have n + 1 rows, and there are n transitions (s[t-1], action[t], reward[t], s[t]): ``states`` keep all rows,
    all other arrays lose row 0, whose action and reward are dummies. DrQ-v2, URLB and DreamerV2 store episodes so
    (`EfficientReplayBuffer.add`, `relable_episode`, `common/replay.py`).

    It terminated if its last row is ``terminal``, or has a ``discount`` of 0. Otherwise it was truncated, or, if the data do
    not hold its end (not ``whole``), cut. Such flags in rows before the last do not end it; they are counted as
    ``inner_terminals``. Raises CorruptSourceError, which names ``where``, for a discount of several numbers a row.
    """
    if discount.size != len(rewards):
        raise CorruptSourceError(f"{where}: discount has the shape {list(discount.shape)}, not one number a row")
    discount = discount.reshape(-1)
    ends = discount == 0
    if terminal is not None:
        ends |= terminal != 0
    terminated = bool(len(ends) > 1 and ends[-1])
    counts["inner_terminals"] += int(np.count_nonzero(ends[1:-1]))
    kept = {key: rows[1:] for key, rows in {"action": action, "info/discount": discount, **steps}.items()}
    return Episode(states, kept, rewards[1:], terminated, whole and not terminated)


#: What `dm_env_episode` counts, for the notes of a dataset.
DM_ENV_SENTENCES = {
    "inner_terminals": (
        "{n} rows inside episodes are flagged terminal, or have discount 0, and do not end them: see info/discount."
    )
}


@dataclass(frozen=True)
class RawInput:
    """A raw object as a reader gets it. ``name`` is for messages; ``counts`` receives what became of odd data.

    Counts are recorded in the manifest, and those that have a sentence (`EpisodeFilesJob.sentences`) become notes.
    """

    name: str
    #: The path of the whole object; None if the reader takes streams.
    path: Path | None
    #: Its bytes in order, once; None if the reader takes whole files.
    stream: Iterator[bytes] | None
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def file(self) -> Path:
        """`path`, for a reader that takes whole files."""
        assert self.path is not None
        return self.path


class EpisodeReader:
    """How one raw object is read. A derived class is a frozen dataclass of options: it is sent to worker processes."""

    #: Whether objects must lie whole on a disk to be read.
    whole: ClassVar[bool] = True
    #: The modules of the C libraries that read the objects, which they do in a worker process.
    native_libraries: ClassVar[tuple[str, ...]] = ()
    #: Whether an episode spans several objects of its unit: then `unit_episodes` gets all of them at once.
    joined: ClassVar[bool] = False

    def episodes(self, raw: RawInput) -> Iterator[Episode]:
        """The episodes of an object, in order. Raises CorruptSourceError, which names the object and the place in it."""
        raise NotImplementedError

    def unit_episodes(self, raws: Sequence[RawInput]) -> Iterator[tuple[RawInput, Episode]]:
        """The episodes of these objects, in order, each with the object that messages about it name."""
        for raw in raws:
            for episode in self.episodes(raw):
                yield raw, episode


@dataclass(frozen=True)
class Unit:
    """The objects that one worker decodes at a time; ``number`` is what ``--shards`` selects by."""

    name: str
    number: int
    objects: tuple[RawObject, ...]
    #: Its reader, if the units of a job have different readers.
    reader: EpisodeReader | None = None

    @property
    def size(self) -> int:
        """Bytes of its objects, as far as they are stated."""
        return sum(raw.item.size or 0 for raw in self.objects)


def units_of_files(
    location: Location, files: Iterable[tuple[str, RemoteObject]], most_bytes: int = 16 << 20
) -> list[Unit]:
    """Units of small files, given with their paths in a mirror: consecutive files of at most about ``most_bytes`` together."""
    groups: list[list[RawObject]] = []
    size = 0
    for path, item in files:
        size += item.size or 0
        if not groups or size > most_bytes:
            groups.append([])
            size = item.size or 0
        groups[-1].append(RawObject(path, item, location))
    return [Unit(_name(group), number, tuple(group)) for number, group in enumerate(groups)]


def _name(group: Sequence[RawObject]) -> str:
    first, last = group[0].path, group[-1].path
    return first if len(group) == 1 else f"{first} .. {last}"


def check_lengths(shapes: Mapping[str, tuple[int, ...]], rows: int, where: str) -> None:
    """Raise CorruptSourceError where the array of a shape has another number of rows than ``rows``."""
    for key, shape in shapes.items():
        if shape[:1] != (rows,):
            message = f"{where}: {key} has the shape {list(shape)}, and there are {rows} rows"
            raise CorruptSourceError(message, hint="the file is not what its provider publishes")


def check_keys(needed: Iterable[str], where: str, there: Collection[str]) -> None:
    """Raise CorruptSourceError for missing keys."""
    missing = [key for key in needed if key not in there]
    if missing:
        hint = f"it holds {', '.join(list(there)[:12]) or 'nothing'}"
        raise CorruptSourceError(f"{where} has no {', '.join(missing)}", hint=hint)


# -- decoding a unit -----------------------------------------------------------------------------------------------------


class _UnitWriter:
    """Writes the episodes of a unit as a recording; without a ``dictionary`` it trains one."""

    def __init__(self, folder: Path, options: ConvertOptions, dictionary: bytes | None, threads: int) -> None:
        self._folder, self._options = folder, options
        self._dictionary, self._threads = dictionary, threads
        self._writer: RecordingWriter | None = None
        self.columns: list[Column] = []
        self.counts: Counter[str] = Counter()
        self.states = 0

    def add(self, episode: Episode, where: str, on_rows: Callable[[], None]) -> None:
        """Append an episode; ``on_rows`` is called when some of its rows are written.

        Raises CorruptSourceError where it is unlike the first, or its rows do not fit together.
        """
        steps = len(episode.rewards)
        columns = [_column(key, rows, is_state) for key, rows, is_state in episode.rows()]
        if self._writer is None:
            self._begin(columns, where)
        elif columns != self.columns:
            raise CorruptSourceError(f"{where} is unlike the first: {column_difference(columns, self.columns)}")
        if episode.rewards.size != steps:
            message = f"{where} has rewards of {list(episode.rewards.shape)}, not one number a step"
            raise CorruptSourceError(message)
        rewards = to_rewards(episode.rewards, where)
        if not steps:
            self.counts["empty_episodes"] += 1
            return
        assert self._writer is not None
        for number, (key, rows, is_state) in enumerate(episode.rows()):
            self._append(number, rows, episode.count(is_state), f"{where}: {key}", on_rows)
            if is_state and episode.is_blank:
                column = self.columns[number]
                self._writer.column(0, number, np.zeros((1, *column.shape), column.dtype))
        end = np.zeros(steps, np.uint8)
        end[-1] = _END[episode.terminated, episode.truncated]
        self._writer.steps(0, rewards, end)
        self.states += steps + 1

    @property
    def dictionary(self) -> bytes | None:
        """What rows are compressed with; None if that is not known yet."""
        return self._writer.dictionary if self._writer else None

    def finish(self, objects: Sequence[Mapping[str, Any]]) -> None:
        """Write the waiting rows, and the facts about the unit."""
        about = {"states": [self.states], "counts": dict(self.counts), "notes": [], "objects": list(objects)}
        about["columns"] = [[one.key, one.dtype, one.shape, one.per] for one in self.columns]
        if self._writer is None or not self.states:
            (self._folder / ABOUT).write_text(json.dumps(about), encoding="utf-8")
        else:
            self._writer.finish(about)

    def _begin(self, columns: list[Column], where: str) -> None:
        check_row_bytes(sum(column.row_bytes for column in columns), where)
        schema, _ = schema_of(columns, self._options.codec, self._options.layout)
        codec = next((leaf.codec for leaf in schema.states), PLAIN)
        self.columns = columns
        self._writer = RecordingWriter(
            self._folder, columns, codec=codec, threads=self._threads, dictionary=self._dictionary
        )
        self._writer.begin(0)

    def _append(self, number: int, rows: Rows, wanted: int, where: str, on_rows: Callable[[], None]) -> None:
        assert self._writer is not None
        column, done = self.columns[number], 0
        for block in rows.blocks if isinstance(rows, LazyRows) else (rows,):
            if block.shape[1:] != column.shape:
                message = f"{where} has rows of {list(block.shape[1:])}, and {list(column.shape)} before"
                raise CorruptSourceError(message)
            done += len(block)
            if done > wanted:
                break
            if column.per == "state" and block.dtype.kind == "f":
                self.counts["rows_not_finite"] += int((~np.isfinite(block)).any(tuple(range(1, block.ndim))).sum())
            self._writer.column(0, number, np.ascontiguousarray(block, column.dtype))
            on_rows()
        if done != wanted:
            raise CorruptSourceError(f"{where} has {'more' if done > wanted else done} rows where {wanted} belong")


_END = {(False, False): END_CUT, (True, False): END_TERMINATED, (False, True): END_TRUNCATED, (True, True): END_BOTH}


def _column(key: str, rows: Rows, is_state: bool) -> Column:
    shape = rows.shape if isinstance(rows, LazyRows) else rows.shape[1:]
    return Column(key, np.dtype(rows.dtype).newbyteorder("=").name, tuple(shape), "state" if is_state else "step")


#: The record of a task that ended before its unit.
UNFINISHED = {"unfinished": True}


class _DictionaryMade(Exception):
    """Raised between two blocks of rows, to end a task."""


@dataclass(frozen=True)
class _DecodeTask:
    """Fetches and decodes one unit; picklable. ``index`` is the unit's place among those of the job.

    If there is no file ``dictionary``, the task makes it, and ends then if ``begins`` (another task decodes the unit).
    """

    index: int
    unit: Unit
    reader: EpisodeReader
    target: Path
    options: ConvertOptions
    dictionary: Path
    threads: int
    begins: bool

    @property
    def label(self) -> str:
        return self.unit.name

    @property
    def native_bytes(self) -> int | None:
        """Bytes that C libraries read for it; None if none do."""
        return self.unit.size if self.reader.native_libraries else None

    @property
    def rows(self) -> int:
        """What progress counts: bytes, as rows are not known."""
        return max(1, self.unit.size)

    def __call__(self, on_block: OnBlock) -> dict[str, Any]:
        """Returns an empty record, everything is in the folder; or UNFINISHED."""
        fetched = retries = 0

        def on_fetched(length: int, again: int = 0) -> None:
            nonlocal fetched, retries
            fetched, retries = fetched + length, retries + again
            on_block(min(fetched, self.rows), fetched, retries)

        folder = raw_folder(self.target)
        paths = self._fetch(folder, on_fetched) if self.reader.whole else {}
        try:
            with staging_folder(self.target) as staged:
                self.decode(on_fetched, staged, paths)
        except _DictionaryMade:
            return UNFINISHED
        except CorruptSourceError:
            remove_tree(folder)  # perhaps it was damaged on its way: the next run fetches it again
            raise
        remove_tree(folder)
        on_block(self.rows, fetched, retries)
        return {}

    def _fetch(self, folder: Path, on_fetched: Callable[[int], None]) -> dict[str, Path]:
        """Where the objects lie, by url: in place if they are files of this machine, else fetched, unless another task of this
        unit has done that."""
        paths = {raw.item.url: Path(raw.item.url) for raw in self.unit.objects if raw.item.url.startswith("/")}
        for raw in self.unit.objects:
            if raw.item.url not in paths:
                folder.mkdir(parents=True, exist_ok=True)
                paths[raw.item.url] = folder / f"{crc32c(raw.item.url.encode())}-{raw.item.name}"
                if not is_sound(paths[raw.item.url], raw.item):
                    fetch_to_file(raw.location, raw.item, paths[raw.item.url], on_bytes=on_fetched)
        return paths

    def decode(self, on_fetched: Callable[..., None], folder: Path, paths: Mapping[str, Path]) -> None:
        """Write the episodes of all objects into ``folder``. Raises _DictionaryMade where ``begins`` says so."""
        dictionary = self.dictionary.read_bytes() if self.dictionary.is_file() else None
        writer = _UnitWriter(folder, self.options, dictionary, self.threads)

        def on_rows() -> None:
            on_fetched(0)
            if self.begins and writer.dictionary is not None:
                write_atomically(self.dictionary, writer.dictionary)
                raise _DictionaryMade

        objects = []
        every = list(self.unit.objects)
        for group in [every] if self.reader.joined else [[raw] for raw in every]:
            streams = [None if self.reader.whole else CountedStream(raw.location, raw.item) for raw in group]
            sources = [
                RawInput(raw.path, paths.get(raw.item.url), None if stream is None else iter(stream), writer.counts)
                for raw, stream in zip(group, streams)
            ]
            before, numbers = (0, 0), Counter[str]()
            for source, episode in self.reader.unit_episodes(sources):
                writer.add(episode, f"{source.name}: episode {numbers[source.name]}", on_rows)
                numbers[source.name] += 1
                now = [(stream.fetched, stream.retries) for stream in streams if stream]
                fetched, retries = (sum(counts) for counts in zip(*now)) if now else (0, 0)
                on_fetched(fetched - before[0], retries - before[1])
                before = (fetched, retries)
            for raw, source, stream in zip(group, sources, streams):
                # Bytes after the last episode belong to the object, and to its checksum.
                for _ in source.stream or ():
                    pass
                objects.append(_object_record(raw, source.path, stream))
        writer.finish(objects)
        if dictionary is None and writer.states:
            assert writer.dictionary is not None
            write_atomically(self.dictionary, writer.dictionary)


def _object_record(raw: RawObject, path: Path | None, stream: CountedStream | None) -> dict[str, Any]:
    """The manifest's record of an object that was read. Raises ObjectChangedError if it is not the object that was found."""
    if stream is not None:
        record = {"name": raw.path, "size": stream.fetched, "crc32c": stream.crc32c}
    else:
        assert path is not None
        record = {"name": raw.path, "size": path.stat().st_size, "crc32c": hash_file(path, Crc32c()).hexdigest()}
    if not _is_of(record, raw):
        raise ObjectChangedError(f"{raw.item.url} changed while it was read", hint="run the command again")
    return record


def raw_folder(target: Path) -> Path:
    """The folder of a unit's whole objects while it is decoded into ``target``."""
    return target.with_name(f"{target.name}.raw.part")


# -- the job -------------------------------------------------------------------------------------------------------------


class EpisodeFilesJob(StagedJob):
    """The dataset of all episodes in ``units``, in their order.

    A derived class states ``source``, ``converter``, ``licence``, ``citation`` and what `describe` adds. ``sentences``
    become notes, as in `count_notes`. ``episodes`` and ``steps`` are the dataset's counts, if they are known beforehand (0:
    unknown).
    """

    staging = "decoding the episodes"
    sentences: Mapping[str, str] = {}
    #: Files that describe the other files, with their records in the manifest (`read_description`).
    described: Sequence[tuple[RawObject, dict[str, Any]]] = ()
    #: Whether `staging_tasks` needs the first unit with a step before it can say how the others are read.
    first_decides = False
    _folder: Path

    def __init__(
        self,
        name: str | None,
        location: Location,
        units: Sequence[Unit],
        reader: EpisodeReader,
        options: ConvertOptions,
        *,
        steps: int = 0,
        episodes: int = 0,
    ) -> None:
        super().__init__(name, location, options)
        chosen = select_numbered({unit.number: unit for unit in units}, options.parts, self.title, "shard")
        stated = iter(resolve(location, [raw.item for unit in chosen for raw in unit.objects]))
        self.units = [
            replace(unit, objects=tuple(replace(raw, item=next(stated)) for raw in unit.objects)) for unit in chosen
        ]
        self.reader, self._known = reader, (steps, episodes)
        self.spaces: dict[str, Any] = {}

    def identity(self) -> dict[str, Any]:
        # Decoded units are compared with their objects: an interrupted run may be continued with another mirror.
        return {**super().identity(), "units": [[raw.path for raw in unit.objects] for unit in self.units]}

    def shards(self) -> Sequence[int]:
        return [unit.number for unit in self.units] if self.options.parts is not None else ()

    def parts(self) -> int:
        return len(self.units)

    # -- staging -------------------------------------------------------------------------------------------------------

    def expect(self) -> Expectation:
        fetch = sum(unit.size for unit in self.units)
        steps, episodes = self._known
        return Expectation(fetch, steps, episodes, fetch, [unit.name for unit in self.units])

    def staged_parts(self, folder: Path) -> int:
        return len(self.units) - len(self._left(folder))

    def staging_tasks(self, folder: Path, threads: int) -> Sequence[Task]:
        """The first unit with a step alone until there is a dictionary, then all that are left, large ones first: no process
        ends long after the others."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        left, dictionary = self._left(folder), self._dictionary(folder)
        begins = len(left) > 1 and not self.first_decides and not dictionary.is_file()
        if not dictionary.is_file() or (self.first_decides and self._first() is None):
            left = left[:1]
        tasks = []
        for index in sorted(left, key=lambda index: -self.units[index].size):
            unit = self.units[index]
            remove_tree(self._target(unit))
            how = (self.options, dictionary, threads, begins)
            tasks.append(_DecodeTask(index, unit, self.reader_of(unit), self._target(unit), *how))
        return tasks

    def reader_of(self, unit: Unit) -> EpisodeReader:
        """How the objects of a unit are read; called when the unit is about to be decoded."""
        return unit.reader or self.reader

    def holds_staged(self, folder: Path) -> bool:
        """Whether there are objects that were fetched, or begun."""
        return any(next(raw_folder(self._target(unit, folder)).glob("*"), None) for unit in self.units)

    def staged_dictionary(self) -> bytes:
        return self._dictionary(self._folder).read_bytes()

    def _target(self, unit: Unit, folder: Path | None = None) -> Path:
        return (folder or self._folder) / f"unit-{unit.number:05d}"

    def _decoded(self, folder: Path) -> Iterator[Recording | None]:
        """The recording of each unit that was decoded from these objects, as far as their place states what they are."""
        for unit in self.units:
            try:
                found = Recording(self._target(unit, folder))
            except (OSError, ValueError):
                yield None
                continue
            same = len(found.objects) == len(unit.objects) and all(map(_is_of, found.objects, unit.objects))
            yield found if same else None

    def _dictionary(self, folder: Path) -> Path:
        """The file of the dictionary, with a name that follows from what is stated of the objects that it is made from: those
        of the first unit that is not known to be without a step."""
        pairs = zip(self.units, self._decoded(folder))
        first = next((unit for unit, found in pairs if found is None or found.states[0]), self.units[0])
        stated = [(raw.path, raw.item.size, raw.item.checksums.get("crc32c")) for raw in first.objects]
        return folder / f"{DICTIONARY}-{crc32c(repr(stated).encode())}"

    def _left(self, folder: Path) -> list[int]:
        """The units to be decoded. Without the dictionary, only units without a step count as decoded."""
        path = self._dictionary(folder)
        dictionary = crc32c(path.read_bytes()) if path.is_file() else None
        return [
            index
            for index, found in enumerate(self._decoded(folder))
            if found is None or (found.states[0] and found.about.get("dictionary") != dictionary)
        ]

    def _first(self) -> Recording | None:
        """The first unit with a step, if all before it are decoded."""
        return next((found for found in self._decoded(self._folder) if found is None or found.states[0]), None)

    @cached_property
    def _every(self) -> list[Recording]:
        """All units; read when they are decoded."""
        return [Recording(self._target(unit)) for unit in self.units]

    # -- plan and fill -------------------------------------------------------------------------------------------------

    def inspect_files(self, files: Mapping[str, Path]) -> None:
        first = self._first()
        if first is None:
            raise CorruptSourceError(f"{self.title} holds no episode with a step")
        for unit, decoded in zip(self.units, self._every):
            if decoded.columns and decoded.columns != first.columns:
                raise CorruptSourceError(
                    f"{unit.name} is unlike the first: {column_difference(decoded.columns, first.columns)}"
                )
        self.set_columns(first.columns)

    def plan(self, columns: ColumnWriter, files: Mapping[str, Path], on_progress: Callable[[int, int], None]) -> Plan:
        episodes, found = append_recordings(columns, self._every, self.columns, on_progress)
        digest = crc32c(repr([decoded.objects for decoded in self._every]).encode())
        notes = count_notes({**_SENTENCES, **self.sentences}, found)
        return Plan(episodes, found, notes, self._part_specs(), dict(self.spaces), digest)

    def _part_specs(self) -> list[PartSpec]:
        parts, first = [], 0
        for unit, decoded in zip(self.units, self._every):
            objects = decoded.objects
            # The objects of a unit with several objects are recorded by `objects`.
            described = objects[0] if len(objects) == 1 else {"name": unit.name, "size": None, "crc32c": None}
            layout = f"episodes-{crc32c(repr(objects).encode())}"
            parts.append(PartSpec(unit.name, decoded.states[0], layout, described, unit.number, first))
            first += decoded.states[0]
        return parts

    def row_sources(self) -> list[StagedPart]:
        dictionary = self._dictionary(self._folder) if compressed_leaves(self) else None
        return [
            StagedPart(unit.name, one.staged(self.columns, dictionary)) for unit, one in zip(self.units, self._every)
        ]

    # -- what the manifest says ----------------------------------------------------------------------------------------

    def read_description(self, raw: RawObject, limit_bytes: int) -> bytes:
        """Read a whole file that describes the other files. Raises FetchErrors, and CorruptSourceError for a larger file."""
        data = read_all(raw.location, raw.item, limit_bytes=limit_bytes)
        record = {"name": raw.path, "size": len(data), "crc32c": crc32c(data)}
        self.described = [*self.described, (raw, record)]
        return data

    def objects(self) -> list[dict[str, Any]]:
        several = [decoded.objects for decoded in self._every if len(decoded.objects) > 1]
        every = [*(record for _, record in self.described), *(record for records in several for record in records)]
        return list({record["name"]: record for record in every}.values())  # units may share objects

    def raw_objects(self) -> list[RawObject]:
        every = [*(raw for raw, _ in self.described), *(raw for unit in self.units for raw in unit.objects)]
        return list({raw.path: raw for raw in every}.values())

    def describe(self) -> dict[str, Any]:
        return {"dataset": self.name, **super().describe()}


def _is_of(found: Mapping[str, Any], raw: RawObject) -> bool:
    return found["name"] == raw.path and raw.item.may_hold(found["size"], found["crc32c"])


def raw_object(location: Location, item: RemoteObject, path: str | None = None) -> RawObject:
    """An object with its ``path`` in a mirror (its name by default)."""
    return RawObject(path or item.name, item, location)
