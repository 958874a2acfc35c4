"""A dataset whose raw objects hold whole episodes: each group of objects is a unit, which any free worker reads.

A source says how one raw object is read (`EpisodeReader`), and which objects a worker takes at a time (`FileGroup`: a shard, or
some small files). `EpisodeFiles` is the reader of them all: a unit fetches the objects of its group, whole (continued at the
byte, checked) or as a stream, and each of their episodes is a block.

The leaves of the dataset follow from the first episode; every other episode must have the same.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...errors import ChecksumError, CorruptSourceError
from ...storage.checksums import Crc32c, crc32c, hash_file
from ...storage.folder import RAW, remove_tree
from ..fetch import Location, RemoteObject, fetch_to_file, read_all, resolve
from ..formats.limits import check_row_bytes
from ..workers.task import OnBlock
from .block import END_CUT, END_TERMINATED, END_TRUNCATED, Block, LazyRows, lazy
from .counted_stream import CountedStream
from .raw_files import is_sound, local_path
from .reader import Reader
from .records import ConvertOptions, Expectation, PartSpec, RawObject, count_notes
from .request import select_numbered
from .trajectories import Column, column_difference, count_outcomes, schema_of, to_rewards
from .unit import Facts, Part, Unit

if TYPE_CHECKING:
    from ...storage.episodes import EpisodeTable

_SENTENCES = {
    "empty_episodes": "{n:episode without a step was|episodes without a step were} left out.",
    "blank_successors": (
        "{n:terminated episode lacks its|terminated episodes lack their} final observation, which is zeros here."
    ),
    "cut_episodes": "{n:episode is|episodes are} flagged neither terminated nor truncated at the end: cut there.",
    "rows_not_finite": "Observations with NaN or infinity, as in the data: {n}.",
}

#: The rows of a column of an episode.
Rows = np.ndarray | LazyRows


# -- what a source gives -------------------------------------------------------------------------------------------------


def state_rows(rows: Rows) -> Rows:
    """Rows of a state: TED wants a dimension for a single number."""
    if isinstance(rows, np.ndarray):
        return rows[:, None] if rows.ndim == 1 else rows
    return rows if rows.shape else LazyRows(rows.dtype, (1,), (block[:, None] for block in rows.blocks))


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
        "{n:row} inside episodes with a flag of an end, or discount 0, that did not end there: see info/discount."
    )
}


@dataclass(frozen=True)
class RawInput:
    """A raw object as a reader gets it. ``name`` is for messages; ``counts`` receives what became of odd data.

    Counts are recorded in the manifest, and those that have a sentence (`EpisodeFiles.sentences`) become notes.
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
    #: Whether an episode spans several objects of its group: then `group_episodes` gets all of them at once.
    joined: ClassVar[bool] = False

    def episodes(self, raw: RawInput) -> Iterator[Episode]:
        """The episodes of an object, in order. Raises CorruptSourceError, which names the object and the place in it."""
        raise NotImplementedError

    def group_episodes(self, raws: Sequence[RawInput]) -> Iterator[tuple[RawInput, Episode]]:
        """The episodes of these objects, in order, each with the object that messages about it name."""
        for raw in raws:
            for episode in self.episodes(raw):
                yield raw, episode


@dataclass(frozen=True)
class FileGroup:
    """The objects that one worker reads at a time, in order; ``number`` is what ``--shards`` selects by."""

    name: str
    number: int
    objects: tuple[RawObject, ...]
    #: Its reader, if the groups of a dataset have different readers.
    reader: EpisodeReader | None = None

    @property
    def size(self) -> int:
        """Bytes of its objects, as far as they are stated."""
        return sum(raw.item.size or 0 for raw in self.objects)


def group_files(
    location: Location, files: Iterable[tuple[str, RemoteObject]], most_bytes: int = 16 << 20
) -> list[FileGroup]:
    """Small files, given with their paths in a mirror: consecutive files of at most about ``most_bytes`` together."""
    groups: list[list[RawObject]] = []
    size = 0
    for path, item in files:
        size += item.size or 0
        if not groups or size > most_bytes:
            groups.append([])
            size = item.size or 0
        groups[-1].append(RawObject(path, item, location))
    return [FileGroup(_name(group), number, tuple(group)) for number, group in enumerate(groups)]


def file_groups(
    location: Location, files: Iterable[tuple[str, RemoteObject]], numbers: Iterable[int] | None = None
) -> list[FileGroup]:
    """Large files, given with their paths in a mirror, each alone; numbered from 0 unless there are ``numbers``."""
    numbered = zip(count() if numbers is None else numbers, files)
    return [FileGroup(item.name, number, (RawObject(path, item, location),)) for number, (path, item) in numbered]


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


# -- reading a group -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EpisodesUnit(Unit):
    """A group of files. ``paths``: where those that are read whole lie, by url; ``fetched``: the bytes that were fetched for
    that."""

    group: FileGroup
    reader: EpisodeReader
    options: ConvertOptions
    paths: Mapping[str, Path] = field(default_factory=dict, kw_only=True)
    fetched: int = field(default=0, kw_only=True)

    def fits(self, part: Part) -> bool:
        """Whether the part was read from these objects, as far as their place states what they are: an interrupted run may be
        continued with another mirror."""
        objects = part.about.get("objects", ())
        return len(objects) == len(self.group.objects) and all(map(_is_of, objects, self.group.objects))

    @contextmanager
    def prepared(self, folder: Path, on_block: OnBlock) -> Iterator[Unit]:
        """With its whole files: in place if they are files of this machine, else fetched into the working folder, unless an
        earlier task has done that."""
        if not self.reader.whole:
            yield self
            return
        raw_folder, fetched = folder / RAW / f"unit-{self.group.number:05d}.raw.part", 0

        def on_bytes(length: int) -> None:
            nonlocal fetched
            fetched += length
            on_block(min(fetched, self.rows), fetched, 0)

        paths = {}
        for raw in self.group.objects:
            path = paths[raw.item.url] = local_path(raw.item, raw_folder)
            if path.parent == raw_folder and not is_sound(path, raw.item):
                raw_folder.mkdir(parents=True, exist_ok=True)
                fetch_to_file(raw.location, raw.item, path, on_bytes=on_bytes)
        try:
            yield replace(self, paths=paths, fetched=fetched)
        except CorruptSourceError:
            remove_tree(raw_folder)  # perhaps it was damaged on its way: the next run fetches it again
            raise
        remove_tree(raw_folder)

    def blocks(self, resume: Any, threads: int) -> Iterator[Block]:
        reader, episodes = self.reader, _CheckedEpisodes(self.options)
        objects, every, fetched, retries = list[dict[str, Any]](), list(self.group.objects), self.fetched, 0
        for raws in [every] if reader.joined else [[raw] for raw in every]:
            streams = [None if reader.whole else CountedStream(raw.location, raw.item) for raw in raws]
            sources = [
                RawInput(raw.path, self.paths.get(raw.item.url), iter(stream) if stream else None, episodes.counts)
                for raw, stream in zip(raws, streams)
            ]
            numbers, open_streams = Counter[str](), [stream for stream in streams if stream]
            for source, episode in reader.group_episodes(sources):
                block = episodes.block(episode, f"{source.name}: episode {numbers[source.name]}")
                numbers[source.name] += 1
                now = fetched + sum(stream.fetched for stream in open_streams)
                again = retries + sum(stream.retries for stream in open_streams)
                yield replace(block, done=min(now, self.rows), fetched=now, retries=again)
            for raw, source, stream in zip(raws, sources, streams):
                # Bytes after the last episode belong to the object, and to its checksum.
                for _ in source.stream or ():
                    pass
                objects.append(_object_record(raw, source.path, stream))
            fetched += sum(stream.fetched for stream in open_streams)
            retries += sum(stream.retries for stream in open_streams)
        record = {"states": episodes.states, "counts": dict(episodes.counts), "objects": objects}
        yield Block({}, done=self.rows, fetched=fetched, retries=retries, record=record)


class _CheckedEpisodes:
    """Makes blocks of the episodes of a group, which must all have the columns of the first."""

    def __init__(self, options: ConvertOptions) -> None:
        self._options, self._columns = options, list[Column]()
        self.counts, self.states = Counter[str](), 0

    def block(self, episode: Episode, where: str) -> Block:
        """Raises CorruptSourceError where it is unlike the first, or its rows do not fit together."""
        columns, schema = [_column(key, rows, is_state) for key, rows, is_state in episode.rows()], None
        if not self._columns:
            check_row_bytes(sum(column.row_bytes for column in columns), where)
            schema, _ = schema_of(columns, self._options.codec, self._options.layout)
            self._columns = columns
        elif columns != self._columns:
            raise CorruptSourceError(f"{where} is unlike the first: {column_difference(columns, self._columns)}")
        steps = len(episode.rewards)
        if episode.rewards.size != steps:
            raise CorruptSourceError(f"{where} has rewards of {list(episode.rewards.shape)}, not one number a step")
        rewards = to_rewards(episode.rewards, where)
        if not steps:
            self.counts["empty_episodes"] += 1
            return Block({}, schema=schema)
        rows = {
            column.key: LazyRows(
                column.dtype, column.shape, self._rows(column, rows, episode, f"{where}: {column.key}")
            )
            for column, (_, rows, _) in zip(columns, episode.rows())
        }
        self.states += steps + 1
        bits = np.zeros(steps, np.uint8)
        bits[-1] = END_TERMINATED * episode.terminated | END_TRUNCATED * episode.truncated or END_CUT
        return Block({**rows, "next/reward": rewards}, bits, schema=schema)

    def _rows(self, column: Column, rows: Rows, episode: Episode, where: str) -> Iterator[np.ndarray]:
        """The rows of a column, checked, with its blank one."""
        done, wanted = 0, episode.count(column.per == "state")
        for block in lazy(rows).blocks:
            if block.shape[1:] != column.shape:
                message = f"{where} has rows of {list(block.shape[1:])}, and {list(column.shape)} before"
                raise CorruptSourceError(message)
            done += len(block)
            if done > wanted:
                break
            if column.per == "state" and block.dtype.kind == "f":
                self.counts["rows_not_finite"] += int((~np.isfinite(block)).any(tuple(range(1, block.ndim))).sum())
            yield np.ascontiguousarray(block, column.dtype)
        if done != wanted:
            raise CorruptSourceError(f"{where} has {'more' if done > wanted else done} rows where {wanted} belong")
        if column.per == "state" and episode.is_blank:
            yield np.zeros((1, *column.shape), column.dtype)


def _column(key: str, rows: Rows, is_state: bool) -> Column:
    some = lazy(rows)
    return Column(key, np.dtype(some.dtype).newbyteorder("=").name, tuple(some.shape), "state" if is_state else "step")


def _object_record(raw: RawObject, path: Path | None, stream: CountedStream | None) -> dict[str, Any]:
    """The manifest's record of an object that was read. Raises ChecksumError if it is not the object that was found."""
    if stream is not None:
        record = {"name": raw.path, "size": stream.fetched, "crc32c": stream.crc32c}
    else:
        assert path is not None
        record = {"name": raw.path, "size": path.stat().st_size, "crc32c": hash_file(path, Crc32c()).hexdigest()}
    if not _is_of(record, raw):
        raise ChecksumError(f"{raw.item.url} changed while it was read", hint="run the command again")
    return record


def _is_of(found: Mapping[str, Any], raw: RawObject) -> bool:
    return found["name"] == raw.path and raw.item.may_hold(found["size"], found["crc32c"])


# -- the dataset ---------------------------------------------------------------------------------------------------------


class EpisodeFiles(Reader):
    """The dataset of all episodes in ``groups``, in their order.

    A derived class states ``source``, ``converter``, ``licence``, ``citation`` and what `describe` adds. ``sentences``
    become notes, as in `count_notes`. ``episodes`` and ``steps`` are the dataset's counts, if they are known beforehand (0:
    unknown).
    """

    sentences: Mapping[str, str] = {}
    #: Files that describe the other files, with their records in the manifest (`read_description`).
    described: Sequence[tuple[RawObject, dict[str, Any]]] = ()
    #: The records of the units (`Block.record`), set by `facts`.
    _records: Sequence[Mapping[str, Any]] = ()

    def __init__(
        self,
        name: str | None,
        location: Location,
        groups: Sequence[FileGroup],
        reader: EpisodeReader,
        options: ConvertOptions,
        *,
        steps: int = 0,
        episodes: int = 0,
    ) -> None:
        super().__init__(name, location, options)
        chosen = select_numbered({group.number: group for group in groups}, options.parts, self.title, "shard")
        stated = iter(resolve(location, [raw.item for group in chosen for raw in group.objects]))
        self.groups = [
            replace(group, objects=tuple(replace(raw, item=next(stated)) for raw in group.objects)) for group in chosen
        ]
        self.reader, self._known = reader, (steps, episodes)
        self.native_libraries = reader.native_libraries

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "units": [[raw.path for raw in group.objects] for group in self.groups]}

    def shards(self) -> Sequence[int]:
        return [group.number for group in self.groups] if self.options.parts is not None else ()

    def native_bytes(self, files: Mapping[str, Path]) -> int:
        return max(group.size for group in self.groups)

    def expect(self) -> Expectation:
        fetch = sum(group.size for group in self.groups)
        return Expectation(fetch, *self._known, fetch)

    def units(self, lead: Part | None) -> list[Unit]:
        units = list[Unit]()
        for index, group in enumerate(self.groups):
            stated = [(raw.path, raw.item.size, raw.item.checksums.get("crc32c")) for raw in group.objects]
            how = (group, group.reader or self.reader, self.options)
            # Progress counts bytes, as rows are not known.
            units.append(EpisodesUnit(index, group.name, max(1, group.size), json.dumps(stated), *how))
        return units

    # -- what the manifest says ----------------------------------------------------------------------------------------

    def facts(self, parts: Sequence[Part], episodes: EpisodeTable) -> Facts:
        if not len(episodes):
            raise CorruptSourceError(f"{self.title} holds no episode with a step")
        self._records = [part.about for part in parts]
        found = Counter[str]()
        for record in self._records:
            found.update(record["counts"])
        counts = {**count_outcomes(episodes.outcomes), **found}
        return Facts(counts, count_notes({**_SENTENCES, **self.sentences}, counts), self._part_specs(), self.spaces())

    def spaces(self) -> dict[str, Any]:
        """The spaces of observation and action, as far as they are known, by name."""
        return {}

    def _part_specs(self) -> list[PartSpec]:
        parts, first = [], 0
        for group, record in zip(self.groups, self._records):
            objects, states = record["objects"], record["states"]
            # The objects of a group with several objects are recorded by `objects`.
            described = objects[0] if len(objects) == 1 else {"name": group.name, "size": None, "crc32c": None}
            layout = f"episodes-{crc32c(repr(objects).encode())}"
            parts.append(PartSpec(group.name, states, layout, described, group.number, first))
            first += states
        return parts

    def read_description(self, raw: RawObject, limit_bytes: int) -> bytes:
        """Read a whole file that describes the other files. Raises FetchErrors, and CorruptSourceError for a larger file."""
        data = read_all(raw.location, raw.item, limit_bytes=limit_bytes)
        record = {"name": raw.path, "size": len(data), "crc32c": crc32c(data)}
        self.described = [*self.described, (raw, record)]
        return data

    def objects(self) -> list[dict[str, Any]]:
        several = [record["objects"] for record in self._records if len(record["objects"]) > 1]
        every = [*(record for _, record in self.described), *(record for records in several for record in records)]
        return list({record["name"]: record for record in every}.values())  # groups may share objects

    def raw_objects(self) -> list[RawObject]:
        every = [*(raw for raw, _ in self.described), *(raw for group in self.groups for raw in group.objects)]
        return list({raw.path: raw for raw in every}.values())

    def describe(self) -> dict[str, Any]:
        return {"dataset": self.name, **super().describe()}
