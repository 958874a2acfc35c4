"""One Minari dataset, from its files to a dataset folder.

An episode of n steps and n + 1 observations gives n steps, and ends as its last step is flagged; where that is neither
terminated nor truncated, the data were cut there. A flag inside it ends an episode as well: what follows begins a new one with
the observation that the first ended with, as Minari's collector itself does it. Where the last observation is missing (n
observations), nothing is known after the last step: unless that is terminated, it is given up, and its observation becomes the
final one of the step before (or, asked for ``unknown_next`` zero, it is kept with a successor of zeros).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import CorruptSourceError
from ....storage.checksums import Crc32c, crc32c, hash_file
from ....storage.episodes import EpisodeTable
from ...fetch import Location, RemoteObject, resolve
from ...formats.limits import REFETCH, check_row_bytes, check_rows
from ...ingest.block import END_CUT, END_TERMINATED, END_TRUNCATED, Block, outcomes
from ...ingest.reader import Reader
from ...ingest.records import ConvertOptions, PartSpec, RawObject, count_notes
from ...ingest.trajectories import BLOCK_BYTES, block_steps, count_outcomes, to_flags, to_rewards
from ...ingest.unit import LEAD, Facts, Part, Unit
from .files import DataFiles, Hdf5Files, MinariFiles
from .metadata import Metadata
from .survey import ColumnSource, Survey, survey

#: Decoded bytes of a part.
PART_BYTES = 256 << 20
#: Bytes and rows that the dictionary is trained on, taken from all over the dataset.
_SAMPLE_BYTES, _SAMPLE_ROWS = 24 << 20, 1500
_COUNTED = ("empty_episodes", "split_episodes", "given_up_steps", "blank_successors")


def end_bits(states: int, terminated: np.ndarray, truncated: np.ndarray, unknown_next: str) -> np.ndarray:
    """How each kept step of an episode with so many observations ends (`ingest.block`), uint8; from the flags of all of its
    steps, bool ``[n]``."""
    bits = (terminated * END_TERMINATED | truncated * END_TRUNCATED).astype(np.uint8)
    end = int(bits[-1]) or END_CUT
    if states <= len(bits) and not terminated[-1] and unknown_next == "truncate":
        bits = bits[:-1]
    if len(bits) and not bits[-1]:
        bits[-1] = end
    return bits


def states_of(bits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The states of steps with these bits, by their place in the episode, int64: one for each step and, where one ends an
    episode, the one after it; and which of them are final, bool."""
    ends = np.flatnonzero(bits)
    states = np.sort(np.concatenate([np.arange(len(bits)), ends + 1]))
    final = np.zeros(len(states), bool)
    final[ends + np.arange(len(ends)) + 1] = True
    return states, final


@dataclass(frozen=True)
class StepUnit(Unit):
    """All steps with their small columns; ``name`` is the dataset's.

    It says of itself: ``counts``, the ``checksums`` of the files and, where there are large columns, the ``ends`` of each
    episode: the steps after which one ends, the last of which is the last that is kept.
    """

    data: DataFiles
    found: Survey
    unknown_next: str

    def blocks(self, resume: Any, threads: int) -> Iterator[Block]:
        with ThreadPoolExecutor(1, "rbdata-crc32c") as pool, self.data.open() as files:
            sums = pool.submit(lambda: {path: hash_file(file, Crc32c()) for path, file in self.data.files.items()})
            counts = {**count_outcomes(np.zeros(0, np.uint8)), **dict.fromkeys(_COUNTED, 0)}
            ends, waiting, held = list[list[int]](), list[tuple[dict[str, np.ndarray], np.ndarray]](), 0
            size = block_steps([source.column for source in self.found.sources])
            for index in range(len(self.found.episodes)):
                bits, rewards = self._flags(files, index, counts)
                ends.append(np.flatnonzero(bits).tolist())
                for low in range(0, len(bits), size):
                    some = bits[low : low + size]
                    waiting.append((self._columns(files, index, low, some, rewards), some))
                    held += len(some)
                    if held >= size:  # short episodes are joined
                        yield _joined(waiting, index)
                        waiting, held = [], 0
            if waiting:
                yield _joined(waiting, self.rows)
            if not any(ends):
                raise CorruptSourceError(f"{self.name} holds no step whose successor is known")
            large = any(source.column.large for source in self.found.sources)
            checksums = {path: one.hexdigest() for path, one in sums.result().items()}
            record = {"counts": counts, "checksums": checksums, "ends": ends if large else []}
            yield Block({}, done=self.rows, record=record)

    def _flags(self, files: MinariFiles, index: int, counts: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
        """Bits and rewards of an episode."""
        found, where = self.found, f"{self.name}: episode {self.found.episodes[index]}"
        steps, states, episode = int(found.steps[index]), int(found.states[index]), found.episodes[index]
        counts["empty_episodes"] += not steps
        if not steps:
            return np.zeros(0, np.uint8), np.zeros(0, np.float32)
        given = {
            name: np.asarray(files.read(episode, name, 0, steps)) for name in ("terminations", "truncations", "rewards")
        }
        for name, values in given.items():
            if values.size != steps or values.dtype.kind not in "biuf":
                raise CorruptSourceError(f"{where} has {name} of {values.dtype} {values.shape}, for {steps} steps")
        terminated, truncated = (to_flags(given[name], f"{where}: {name}", "step") for name in list(given)[:2])
        bits = end_bits(states, terminated, truncated, self.unknown_next)
        episodes = int(np.count_nonzero(bits))
        counts["given_up_steps"] += steps - len(bits)
        counts["split_episodes"] += max(0, episodes - 1)
        counts["blank_successors"] += bool(episodes) and states <= steps == len(bits)
        for name, count in count_outcomes(outcomes(bits[bits != 0])).items():
            counts[name] += count
        return bits, to_rewards(given["rewards"], where)

    def _columns(
        self, files: MinariFiles, index: int, low: int, bits: np.ndarray, rewards: np.ndarray
    ) -> dict[str, np.ndarray]:
        """The small columns of steps from ``low`` on."""
        states, _ = states_of(bits)
        rows = {"next/reward": rewards[low : low + len(bits)]}
        for source in self.found.sources:
            if not source.column.large:
                is_state = source.column.per == "state"
                high = low + (int(states[-1]) + 1 if is_state else len(bits))
                some = source.read(files, self.found, index, low, high, self.name)
                rows[source.column.key] = some[states] if is_state else some
        return rows


def _joined(waiting: Sequence[tuple[dict[str, np.ndarray], np.ndarray]], done: int) -> Block:
    """Pieces of episodes as one block."""
    pieces, bits = zip(*waiting)
    return Block(
        {key: np.concatenate([one[key] for one in pieces]) for key in pieces[0]}, np.concatenate(bits), done=done
    )


@dataclass(frozen=True)
class LargeUnit(Unit):
    """The large columns of some episodes.

    ``runs``: int64 ``[n, 3]``, place of the episode in the files, first state row, number of state rows. Progress counts
    states.
    """

    data: DataFiles
    found: Survey
    sources: tuple[ColumnSource, ...]
    runs: np.ndarray

    def blocks(self, resume: Any, threads: int) -> Iterator[Block]:
        if not len(self.runs):
            return  # all of its episodes are without a step
        with self.data.open() as files:
            for number, source in enumerate(self.sources):
                size, position = max(1, BLOCK_BYTES // source.column.row_bytes), 0
                for some in np.split(self.runs, np.flatnonzero(np.diff(self.runs[:, 0])) + 1):
                    index, runs = int(some[0, 0]), some[:, 1:].tolist()
                    states = np.concatenate([np.arange(first, first + count) for first, count in runs])
                    final = np.zeros(len(states), bool)
                    final[np.cumsum([count for _, count in runs]) - 1] = True
                    for low in range(0, len(states), size):
                        here = states[low : low + size]
                        first = int(here[0])
                        rows = source.read(files, self.found, index, first, int(here[-1]) + 1, self.data.name)
                        position += len(here)
                        done = (number * self.rows + position) // len(self.sources)
                        yield Block({source.column.key: rows[here - first]}, final=final[low : low + size], done=done)


def part_bounds(states: np.ndarray, row_bytes: int, part_bytes: int = PART_BYTES) -> list[tuple[int, int]]:
    """Episodes of these many states in groups of about ``part_bytes`` of large rows: (first, last + 1)."""
    sizes = np.cumsum(states) * row_bytes
    bounds, low, before = list[tuple[int, int]](), 0, 0
    while low < len(states):
        high = max(low + 1, int(np.searchsorted(sizes, before + part_bytes, "right")))
        bounds.append((low, high))
        low, before = high, int(sizes[high - 1])
    return bounds


class MinariReader(Reader):
    """The contents of the files decide the leaves.

    ``objects`` are pairs of the path below ``data/`` and the object; ``metadata`` None where they are in the HDF5 file.
    """

    source, converter = "minari", "minari 2"
    citation = "Omar G. Younis et al. Minari. 2024. doi:10.5281/zenodo.13767625"
    #: Set by `seen` and `units`.
    _data: DataFiles
    _metadata: Metadata
    _survey: Survey
    _lead: Mapping[str, Any]
    _units: list[LargeUnit]

    def __init__(
        self,
        name: str | None,
        location: Location,
        objects: Sequence[tuple[str, RemoteObject]],
        described: tuple[RemoteObject, bytes] | None,
        metadata: Metadata | None,
        options: ConvertOptions,
        why: str = "",
    ) -> None:
        super().__init__(name, location, options)
        self.why, self._described, self._stated = why, described, metadata
        stated = resolve(location, [item for _, item in objects])
        self._objects = [(path, item) for (path, _), item in zip(objects, stated)]
        self.native_libraries = ("h5py",) if metadata is None or metadata.format == "hdf5" else ("pyarrow.parquet",)

    @property
    def title(self) -> str:
        return f"{self.location.url}/{self.name}" if self.name else self.location.url

    def files(self) -> list[RemoteObject]:
        return [item for _, item in self._objects]

    def look(self, files: Mapping[str, Path]) -> tuple[DataFiles, Metadata, Survey]:
        """Look through the files. Raises CorruptSourceError, UsageError."""
        data_format = self._stated.format if self._stated else "hdf5"
        data = DataFiles(data_format, self.title, {path: files[item.url] for path, item in self._objects})
        with data.open() as opened:
            metadata = self._stated or (opened.metadata() if isinstance(opened, Hdf5Files) else Metadata(data_format))
            found = survey(opened, metadata, self.title, self.options.extra["text"])
        self._check_counts(found, metadata)
        size = sum(file.stat().st_size for file in data.files.values())
        check_rows(int(found.steps.sum()), size, self.title)
        check_row_bytes(sum(source.column.row_bytes for source in found.sources), self.title)
        return data, metadata, found

    def seen(self, found: tuple[DataFiles, Metadata, Survey]) -> None:
        self._data, self._metadata, self._survey = found
        self.set_columns([source.column for source in self._survey.sources])

    def _check_counts(self, found: Survey, metadata: Metadata) -> None:
        """Raise CorruptSourceError where a transfer brought less or more than the metadata state. A folder on this machine is
        accepted as it is, with a note."""
        if "://" not in self.location.url:
            return
        if self._stated is None and metadata.steps is None:
            message = f"{self.title} has no metadata.json, and its HDF5 file does not state what it holds either"
            raise CorruptSourceError(message, hint=REFETCH)
        for what, stated, held in reversed(found.compared_with(metadata)):
            message = f"{self.title}: the metadata state {stated} {what}, the files that came hold {held}"
            hint = "fetch it again, or use another mirror; if it was published so, convert a copy on this machine"
            raise CorruptSourceError(message, hint=hint)

    def lead(self) -> StepUnit:
        how = (self._data, self._survey, self.options.unknown_next)
        return StepUnit(LEAD, self.title, len(self._survey.episodes), "steps", *how)

    def units(self, lead: Part | None) -> list[LargeUnit]:
        assert lead is not None
        self._lead, found = lead.about, self._survey
        about = crc32c(self._described[1]) if self._described else None
        self.digest = crc32c(repr([about, sorted(self._lead["checksums"].items())]).encode())
        self.notes = [*found.notes, *_notes(self._lead["counts"], self.options.unknown_next)]
        large = self._large()
        row_bytes = sum(source.column.row_bytes for source in large)
        every, first = self._runs(), 0
        self._units = units = list[LargeUnit]()
        for number, (low, high) in enumerate(part_bounds(found.states, row_bytes) if row_bytes else []):
            runs = every[(every[:, 0] >= low) & (every[:, 0] < high)]
            name, states = f"episodes {found.episodes[low]}..{found.episodes[high - 1]}", int(runs[:, 2].sum())
            layout, made_of = f"minari-{crc32c(runs.tobytes())}", {"name": name, "size": None, "crc32c": None}
            spec = PartSpec(name, states, layout, made_of, number, first)
            units.append(LargeUnit(number, name, states, layout, self._data, found, large, runs, spec=spec))
            first += states
        return units

    def _runs(self) -> np.ndarray:
        """The episodes of the dataset, as `LargeUnit` takes them."""
        runs = [np.zeros((0, 3), np.int64)]
        for index, ends in enumerate(self._lead["ends"]):
            first = np.concatenate([[0], np.array(ends[:-1], np.int64) + 1])[: len(ends)]
            runs.append(np.stack([np.full(len(ends), index), first, np.array(ends, np.int64) - first + 2], 1))
        return np.concatenate(runs)

    def _large(self) -> tuple[ColumnSource, ...]:
        return tuple(source for source in self._survey.sources if source.column.large)

    def sample_rows(self) -> list[np.ndarray]:
        taken, runs, large = list[np.ndarray](), self._runs(), self._large()
        ends = np.cumsum(runs[:, 2])
        with self._data.open() as files:
            for source in large:
                want = min(_SAMPLE_ROWS, _SAMPLE_BYTES // source.column.row_bytes) // len(large)
                for row in np.unique(np.linspace(0, int(ends[-1]) - 1, max(1, want)).astype(np.int64)).tolist():
                    run = int(np.searchsorted(ends, row, "right"))
                    at = int(runs[run, 1] + row - (ends[run] - runs[run, 2]))
                    rows = source.read(files, self._survey, int(runs[run, 0]), at, at + 1, self.title)
                    taken.append(np.frombuffer(np.ascontiguousarray(rows).tobytes(), np.uint8))
        return taken

    def facts(self, parts: Sequence[Part], episodes: EpisodeTable) -> Facts:
        specs = [unit.spec for unit in self._units if unit.spec]
        return Facts(self._lead["counts"], self.notes, specs, self._survey.spaces)

    # -- what the manifest says ----------------------------------------------------------------------------------------

    def objects(self) -> list[dict[str, Any]]:
        described: list[dict[str, Any]] = []
        if self._described:
            data = self._described[1]
            described.append({"name": "data/metadata.json", "size": len(data), "crc32c": crc32c(data)})
        for path, item in self._objects:
            record = {"name": f"data/{path}", "size": item.size, "crc32c": self._lead["checksums"].get(path)}
            described.append({**record, **item.checksums})
        return described

    def raw_objects(self) -> list[RawObject]:
        top = f"{self.name}/data" if self.name else "data"
        described = [("metadata.json", self._described[0])] if self._described else []
        return [RawObject(f"{top}/{path}", item, self.location) for path, item in [*described, *self._objects]]

    def describe(self) -> dict[str, Any]:
        found, metadata, about = self._survey, self._metadata, super().describe()
        options = {"unknown_next": self.options.unknown_next, **about["options"]}
        return {
            "dataset": self.name or metadata.about.get("dataset_id"),
            "reference_scores": metadata.reference_scores,
            "options": options,
            "environment": metadata.environment,
            "metadata": metadata.about,
            "keys": found.keys,
            "left_out": found.left_out,
        }


def _notes(counts: Mapping[str, int], unknown_next: str) -> list[str]:
    """What became of irregular episodes, in sentences."""
    sentences = {
        "empty_episodes": "{n:episode without a step was|episodes without a step were} left out.",
        "split_episodes": (
            "{n:episode ends|episodes end} inside one of Minari's, where a step is flagged terminated or truncated."
        ),
        "given_up_steps": (
            "Dropped: {n:step} whose successor is not in the data (episodes with as many observations as steps). The "
            "observation of such a step is the final one of the step before."
        ),
        "blank_successors": (
            "{n:episode lacks its|episodes lack their} final observation; the last successor is zeros."
            if unknown_next == "zero"
            else "{n:terminated episode lacks its|terminated episodes lack their} final observation, which is zeros here."
        ),
        "cut_episodes": "{n:episode is|episodes are} flagged neither terminated nor truncated at the end: cut there.",
    }
    return count_notes(sentences, counts)
