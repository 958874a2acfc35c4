"""One Minari dataset, from its files to a dataset folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import CorruptSourceError
from ....storage.checksums import crc32c
from ....storage.episodes import EpisodeTable
from ...fetch import Location, RemoteObject, resolve
from ...formats.limits import REFETCH, check_row_bytes, check_rows
from ...ingest.reader import Reader
from ...ingest.records import ConvertOptions, PartSpec, RawObject, count_notes
from ...ingest.unit import LEAD, Facts, Part
from .episodes import ColumnSource, LargeUnit, StepUnit, Survey, open_files, part_bounds, sample, survey
from .files import DataFiles, Metadata
from .hdf5 import Hdf5Files


@dataclass(frozen=True)
class Found:
    """What the files of a dataset hold."""

    data: DataFiles
    metadata: Metadata
    survey: Survey


class MinariReader(Reader):
    """The contents of the files decide the leaves.

    ``objects`` are pairs of the path below ``data/`` and the object; ``metadata`` None where they are in the HDF5 file.
    """

    source, converter = "minari", "minari 2"
    citation = "Omar G. Younis et al. Minari. 2024. doi:10.5281/zenodo.13767625"
    #: Set by `seen` and `units`.
    _found: Found
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
        self.why = why
        self.text = options.extra["text"]
        stated = resolve(location, [item for _, item in objects])
        self._objects = [(path, item) for (path, _), item in zip(objects, stated)]
        self._described = described
        self._stated = metadata
        self.native_libraries = ("h5py",) if metadata is None or metadata.format == "hdf5" else ("pyarrow.parquet",)

    def files(self) -> list[RemoteObject]:
        return [item for _, item in self._objects]

    def look(self, files: Mapping[str, Path]) -> Found:
        """Look through the files. Raises CorruptSourceError, UsageError."""
        data_format = self._stated.format if self._stated else "hdf5"
        data = DataFiles(data_format, self.title, {path: files[item.url] for path, item in self._objects})
        with open_files(data) as opened:
            metadata = self._stated
            if metadata is None:
                assert isinstance(opened, Hdf5Files)
                metadata = opened.attributes()
            found = survey(opened, metadata, self.title, self.text)
        self._check_counts(found, metadata)
        found.size = sum(file.stat().st_size for file in data.files.values())
        check_rows(sum(found.steps.tolist()), found.size, self.title)
        check_row_bytes(sum(column.row_bytes for column in found.columns), self.title)
        return Found(replace(data, checked=True), metadata, found)

    def seen(self, found: Found) -> None:
        self._found = found
        self.set_columns(found.survey.columns)

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
        found = self._found
        how = (found.data, found.survey, self.options.unknown_next)
        return StepUnit(LEAD, self.title, len(found.survey.episodes), "steps", *how)

    def units(self, lead: Part | None) -> list[LargeUnit]:
        assert lead is not None
        self._lead, found = lead.about, self._found.survey
        checksums, counts = self._lead["checksums"], self._lead["counts"]
        about = crc32c(self._described[1]) if self._described else None
        self.digest = crc32c(repr([about, sorted(checksums.items())]).encode())
        self.notes = [*found.notes, *_notes(counts, self.options.unknown_next)]
        large = tuple(self._large)
        row_bytes = sum(source.column.row_bytes for source in large)
        every, first = self._runs(), 0
        self._units = units = list[LargeUnit]()
        for number, (low, high) in enumerate(part_bounds(found.states, row_bytes) if row_bytes else []):
            begin, end = np.searchsorted(every[:, 0], [low, high], "left").tolist()
            runs = every[begin:end]
            name, states = f"episodes {found.episodes[low]}..{found.episodes[high - 1]}", int(runs[:, 2].sum())
            layout, made_of = f"minari-{crc32c(runs.tobytes())}", {"name": name, "size": None, "crc32c": None}
            spec = PartSpec(name, states, layout, made_of, number, first)
            units.append(LargeUnit(number, name, states, layout, self._found.data, found, large, runs, spec=spec))
            first += states
        return units

    def _runs(self) -> np.ndarray:
        return np.array(self._lead["runs"], np.int64).reshape(-1, 3)

    @property
    def _large(self) -> list[ColumnSource]:
        return [source for source in self._found.survey.sources if source.column.large]

    def sample_rows(self) -> list[np.ndarray]:
        return sample(self._found.data, self._found.survey, self._large, self._runs())

    def facts(self, parts: Sequence[Part], episodes: EpisodeTable) -> Facts:
        specs = [unit.spec for unit in self._units if unit.spec]
        return Facts(self._lead["counts"], self.notes, specs, self._found.survey.spaces)

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
        found, metadata = self._found.survey, self._found.metadata
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
