"""One Minari dataset, from its files to a dataset folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import CorruptSourceError
from ....storage.checksums import Crc32c, crc32c, hash_file
from ....storage.writer import ColumnWriter
from ...fetch import Location, RemoteObject, resolve
from ...formats.limits import REFETCH, check_row_bytes, check_rows
from ...ingest.job import ConvertOptions, Job, PartSpec, Plan, RawObject, count_notes
from .episodes import ColumnSource, EpisodePlanner, LargeRows, Survey, open_reader, part_bounds, sample, survey
from .hdf5 import Hdf5Reader
from .reader import DataFiles, Metadata


class MinariJob(Job):
    """The contents of the files decide the leaves, so these are known only after ``inspect_files``.

    ``objects`` are pairs of the path below ``data/`` and the object; ``metadata`` None where they are in the HDF5 file.
    """

    source, converter = "minari", "minari 2"
    citation = "Omar G. Younis et al. Minari. 2024. doi:10.5281/zenodo.13767625"
    metadata: Metadata
    #: Set by `inspect_files`.
    _data: DataFiles
    _found: Survey
    #: Set by `plan`; ``_runs``: see `EpisodePlanner`.
    _runs: np.ndarray
    _checksums: dict[str, str]

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
        self.why = why
        self.text = options.extra["text"]
        stated = resolve(location, [item for _, item in objects])
        self._objects = [(path, item) for (path, _), item in zip(objects, stated)]
        self._described = described
        self._stated = metadata
        self.native_libraries = ("h5py",) if metadata is None or metadata.format == "hdf5" else ("pyarrow.parquet",)
        self._bounds: list[tuple[int, int]] = []

    def files(self) -> list[RemoteObject]:
        return [item for _, item in self._objects]

    def parts(self) -> int:
        return len(self._bounds)

    # -- plan ----------------------------------------------------------------------------------------------------------

    def inspect_files(self, files: Mapping[str, Path]) -> None:
        """Look through the files. Raises CorruptSourceError, UsageError."""
        data_format = self._stated.format if self._stated else "hdf5"
        self._data = DataFiles(data_format, self.title, {path: files[item.url] for path, item in self._objects})
        with open_reader(self._data) as reader:
            if self._stated is None:
                assert isinstance(reader, Hdf5Reader)
                self.metadata = reader.attributes()
            else:
                self.metadata = self._stated
            self._found = survey(reader, self.metadata, self.title, self.text)
        self._check_counts()
        self._found.size = sum(file.stat().st_size for file in self._data.files.values())
        check_rows(sum(self._found.steps.tolist()), self._found.size, self.title)
        check_row_bytes(sum(column.row_bytes for column in self._found.columns), self.title)
        self._data = replace(self._data, checked=True)
        self.set_columns(self._found.columns)
        row_bytes = sum(source.column.row_bytes for source in self._large)
        self._bounds = part_bounds(self._found.states, row_bytes) if row_bytes else []

    def _check_counts(self) -> None:
        """Raise CorruptSourceError where a transfer brought less or more than the metadata state. A folder on this machine is
        accepted as it is, with a note."""
        found, metadata = self._found, self.metadata
        if "://" not in self.location.url:
            return
        if self._stated is None and metadata.steps is None:
            message = f"{self.title} has no metadata.json, and its HDF5 file does not state what it holds either"
            raise CorruptSourceError(message, hint=REFETCH)
        for what, stated, held in reversed(found.compared_with(metadata)):
            message = f"{self.title}: the metadata state {stated} {what}, the files that came hold {held}"
            hint = "fetch it again, or use another mirror; if it was published so, convert a copy on this machine"
            raise CorruptSourceError(message, hint=hint)

    def plan(self, columns: ColumnWriter, files: Mapping[str, Path], on_progress: Callable[[int, int], None]) -> Plan:
        from concurrent.futures import ThreadPoolExecutor

        found, data = self._found, self._data
        columns.reserve(int(found.steps.sum()))

        def hash_all() -> dict[str, str]:
            return {path: hash_file(file, Crc32c()).hexdigest() for path, file in data.files.items()}

        with ThreadPoolExecutor(1, "rbdata-crc32c") as pool:
            sums = pool.submit(hash_all)
            with open_reader(data) as reader:
                planner = EpisodePlanner(reader, found, self.title, self.options.unknown_next, columns)
                episodes = planner.run(on_progress)
            self._checksums = sums.result()
        if not len(episodes):
            raise CorruptSourceError(f"{self.title} holds no step whose successor is known")
        on_progress(len(found.episodes), len(found.episodes))
        self._runs = planner.runs
        notes = [*found.notes, *_notes(planner.counts, self.options.unknown_next)]
        about = crc32c(self._described[1]) if self._described else None
        digest = crc32c(repr([about, sorted(self._checksums.items())]).encode())
        parts = []
        for number, (low, high) in enumerate(self._bounds):
            runs, first, states = self._part(number)
            name, layout = f"episodes {found.episodes[low]}..{found.episodes[high - 1]}", crc32c(runs.tobytes())
            about_file = {"name": name, "size": None, "crc32c": None}
            parts.append(PartSpec(name, states, f"minari-{layout}", about_file, number, first))
        return Plan(episodes, planner.counts, notes, parts, dict(found.spaces), digest)

    def _part(self, number: int) -> tuple[np.ndarray, int, int]:
        """A part's runs, its first state row and their number."""
        low, high = self._bounds[number]
        first = int(np.searchsorted(self._runs[:, 0], low, "left"))
        last = int(np.searchsorted(self._runs[:, 0], high, "left"))
        return self._runs[first:last], int(self._runs[:first, 2].sum()), int(self._runs[first:last, 2].sum())

    # -- frames --------------------------------------------------------------------------------------------------------

    @property
    def _large(self) -> list[ColumnSource]:
        return [source for source in self._found.sources if source.column.large]

    def sample_rows(self) -> list[np.ndarray]:
        return sample(self._data, self._found, self._large, self._runs)

    def row_sources(self) -> list[LargeRows]:
        large = tuple(self._large)
        return [LargeRows(self._data, self._found, large, self._part(number)[0]) for number in range(len(self._bounds))]

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
        found, metadata = self._found, self.metadata
        large = {"codec": self.schema[self.bulk[0]].codec, "layout": self.options.layout} if self.bulk else {}
        return {
            "dataset": self.name or metadata.about.get("dataset_id"),
            "reference_scores": metadata.reference_scores,
            "options": {"unknown_next": self.options.unknown_next, "text": self.text, **large},
            "environment": metadata.environment,
            "metadata": metadata.about,
            "keys": found.keys,
            "left_out": found.left_out,
        }

    @property
    def title(self) -> str:
        return f"{self.location.url}/{self.name}" if self.name else self.location.url


def _notes(counts: Mapping[str, int], unknown_next: str) -> list[str]:
    """What became of irregular episodes, in sentences."""
    sentences = {
        "empty_episodes": "{n} episodes without a step were left out.",
        "split_episodes": "{n} episodes end inside one of Minari's, where a step is flagged terminated or truncated.",
        "given_up_steps": (
            "Dropped: {n} steps whose successor is not in the data (episodes with as many observations as steps). Their "
            "observation is the final one of the step before."
        ),
        "blank_successors": (
            "{n} episodes lack their final observation; their last successor is zeros."
            if unknown_next == "zero"
            else "{n} terminated episodes lack their final observation, which is zeros here."
        ),
        "cut_episodes": "{n} episodes are flagged neither terminated nor truncated at their end: cut there.",
    }
    return count_notes(sentences, counts)
