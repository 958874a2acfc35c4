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
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import CorruptSourceError
from ....storage.checksums import Crc32c, crc32c, hash_file
from ....storage.codecs import codec_of
from ....storage.episodes import EpisodeTable
from ...fetch import Location, RemoteObject, resolve
from ...formats.limits import REFETCH, check_row_bytes, check_rows
from ...ingest.block import Block
from ...ingest.estimate import compressed_share, expect_rows
from ...ingest.reader import Reader
from ...ingest.records import ConvertOptions, Expectation, RawObject
from ...ingest.trajectories import BLOCK_BYTES, block_steps, to_rewards
from ...ingest.unit import Facts, Part, Unit
from .files import DataFiles, MinariFiles, MinariHdf5
from .metadata import Metadata
from .survey import Survey, survey

#: Decoded bytes of a part.
PART_BYTES = 256 << 20
#: Bytes and rows that the dictionary is trained on, taken from all over the dataset.
_SAMPLE_BYTES, _SAMPLE_ROWS = 24 << 20, 1500


@dataclass(frozen=True)
class MinariUnit(Unit):
    """The episodes ``first`` to ``stop - 1`` of a dataset, each in blocks of steps."""

    data: DataFiles
    found: Survey
    first: int
    stop: int

    def blocks(self, resume: Any, threads: int) -> Iterator[Block]:
        columns, done = [source.column for source in self.found.sources], 0
        large = sum(column.row_bytes for column in columns if column.large)
        size = max(1, min(block_steps(columns), BLOCK_BYTES // max(1, large)))
        with self.data.open() as files:
            for index in range(self.first, self.stop):
                bits = self.found.bits[index]
                for low in range(0, len(bits), size):
                    some = bits[low : low + size]
                    done += len(some)
                    # All units are one section: rewards are summed in blocks that do not depend on them.
                    yield Block(self._columns(files, index, low, some), some, place=(0,), done=done)

    def _columns(self, files: MinariFiles, index: int, low: int, bits: np.ndarray) -> dict[str, np.ndarray]:
        """The rows of the steps of an episode from ``low`` on."""
        high, ends, episode = low + len(bits), np.flatnonzero(bits), self.found.episodes[index]
        # A state for each step and, where one ends an episode, the one after it.
        states = np.sort(np.concatenate([np.arange(len(bits)), ends + 1]))
        rewards = files.read(episode, "rewards", low, high)
        rows = {"next/reward": to_rewards(rewards, f"{self.data.name}: episode {episode}", first=low)}
        for source in self.found.sources:
            is_state = source.column.per == "state"
            stop = low + int(states[-1]) + 1 if is_state else high
            some = source.read(files, self.found, index, low, stop, self.data.name)
            rows[source.column.key] = some[states] if is_state and len(some) < len(states) else some
        return rows


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
    #: Set by `seen`: the files and their checksums, the metadata, what the files hold.
    _data: DataFiles
    _checksums: Mapping[str, str]
    _metadata: Metadata
    _survey: Survey | None = None

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

    def look(self, files: Mapping[str, Path]) -> tuple[DataFiles, Mapping[str, str], Metadata, Survey]:
        """Look through the files. Raises CorruptSourceError, UsageError."""
        data_format = self._stated.format if self._stated else "hdf5"
        data = DataFiles(data_format, self.title, {path: files[item.url] for path, item in self._objects})
        with ThreadPoolExecutor(1, "rbdata-crc32c") as pool, data.open() as opened:
            sums = pool.submit(
                lambda: {path: hash_file(file, Crc32c()).hexdigest() for path, file in data.files.items()}
            )
            metadata = self._stated or (opened.metadata() if isinstance(opened, MinariHdf5) else Metadata(data_format))
            found = survey(opened, metadata, self.title, self.options.extra["text"], self.options.unknown_next)
            self._check_counts(found, metadata)
            size = sum(file.stat().st_size for file in data.files.values())
            check_rows(int(found.steps.sum()), size, self.title)
            check_row_bytes(sum(source.column.row_bytes for source in found.sources), self.title)
            return data, sums.result(), metadata, found

    def seen(self, found: tuple[DataFiles, Mapping[str, str], Metadata, Survey]) -> None:
        self._data, self._checksums, self._metadata, self._survey = found
        self.set_columns([source.column for source in self.found.sources])
        about = crc32c(self._described[1]) if self._described else None
        self.digest = crc32c(repr([about, sorted(self._checksums.items())]).encode())

    @property
    def found(self) -> Survey:
        """What the files hold, once they were seen."""
        assert self._survey is not None
        return self._survey

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

    def expect(self) -> Expectation | None:
        if self._survey is None:
            return None
        kept = np.concatenate(self._survey.bits)
        episodes, ratio = int(np.count_nonzero(kept)), 1.0
        if leaves := self.compressed():
            ratio = compressed_share(codec_of(leaves[0]), self.sample_rows())
        expected = expect_rows(self, len(kept), episodes, ratio * (1 + episodes / len(kept)))
        return replace(expected, notes=self._survey.notes, counted=True)

    def units(self, lead: Part | None) -> list[MinariUnit]:
        """Groups of episodes of about one size; one where there are no large columns."""
        found, runs, units = self.found, self.found.runs(), list[MinariUnit]()
        row_bytes = sum(column.row_bytes for column in self.columns if column.large)
        for low, high in part_bounds(found.states, row_bytes) if row_bytes else [(0, len(found.episodes))]:
            here = runs[(runs[:, 0] >= low) & (runs[:, 0] < high)]
            if len(here):
                name, identity = f"episodes {found.episodes[low]}..{found.episodes[high - 1]}", crc32c(here.tobytes())
                steps = int(here[:, 2].sum()) - len(here)
                units.append(MinariUnit(len(units), name, steps, identity, self._data, found, low, high))
        return units

    @cached_property
    def _sample(self) -> list[np.ndarray]:
        taken, runs = list[np.ndarray](), self.found.runs()
        large = [source for source in self.found.sources if source.column.large]
        ends = np.cumsum(runs[:, 2])
        with self._data.open() as files:
            for source in large:
                want = min(_SAMPLE_ROWS, _SAMPLE_BYTES // source.column.row_bytes) // len(large)
                for row in np.unique(np.linspace(0, int(ends[-1]) - 1, max(1, want)).astype(np.int64)).tolist():
                    run = int(np.searchsorted(ends, row, "right"))
                    at = int(runs[run, 1] + row - (ends[run] - runs[run, 2]))
                    rows = source.read(files, self.found, int(runs[run, 0]), at, at + 1, self.title)
                    taken.append(np.frombuffer(np.ascontiguousarray(rows).tobytes(), np.uint8))
        return taken

    def sample_rows(self) -> list[np.ndarray]:
        return self._sample

    def facts(self, parts: Sequence[Part], episodes: EpisodeTable) -> Facts:
        return Facts(self.found.counts(), self.found.notes, [], self.found.spaces)

    # -- what the manifest says ----------------------------------------------------------------------------------------

    def objects(self) -> list[dict[str, Any]]:
        described: list[dict[str, Any]] = []
        if self._described:
            data = self._described[1]
            described.append({"name": "data/metadata.json", "size": len(data), "crc32c": crc32c(data)})
        for path, item in self._objects:
            record = {"name": f"data/{path}", "size": item.size, "crc32c": self._checksums.get(path)}
            described.append({**record, **item.checksums})
        return described

    def raw_objects(self) -> list[RawObject]:
        top = f"{self.name}/data" if self.name else "data"
        described = [("metadata.json", self._described[0])] if self._described else []
        return [RawObject(f"{top}/{path}", item, self.location) for path, item in [*described, *self._objects]]

    def describe(self) -> dict[str, Any]:
        found, metadata, about = self.found, self._metadata, super().describe()
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
