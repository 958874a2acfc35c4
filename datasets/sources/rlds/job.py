"""One builder's folder of TensorFlow Datasets, from its files to a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ....errors import CorruptSourceError, ObjectNotFoundError, UsageError
from ....storage.checksums import crc32c
from ....storage.leaf import is_observation
from ...fetch import Location, read_all
from ...fetch.location import join_path
from ...formats.tfds import STEPS, Feature, Split, parse_features, parse_info
from ...ingest.episode_files import EpisodeFilesJob, Unit, raw_object
from ...ingest.job import ConvertOptions, RawObject
from ...workers.task import Task
from .episodes import LastRow, RldsReader, leaf_keys
from .folders import FEATURES, INFO

#: Bytes of the two files that describe a dataset.
_LARGEST_JSON = 64 << 20
_OPENX = "Open X-Embodiment Collaboration. Open X-Embodiment: Robotic Learning Datasets and RT-X Models. ICRA 2024."

_SENTENCES = {
    "kept_last_rows": (
        "The last row of {n} terminated episodes is a step, as in robot data; by the specification of RLDS it would be an "
        "observation alone (--last-row observation)."
    ),
    "unused_last_rows": (
        "{n} terminated episodes have a reward or an action in their last row, which is an observation alone by the "
        "specification of RLDS (--last-row step keeps them)."
    ),
    "given_up_steps": "Dropped: the last rows of {n} episodes that have a reward, since no observation follows them.",
    "early_ends": "{n} episodes have is_last before their last row; they are read to the end.",
    "episodes_without_rewards": "{n} episodes have no rewards in the data; they are zeros here.",
}


class RldsJob(EpisodeFilesJob):
    """The files of one split, or of several, are units."""

    converter = "rlds 1"
    sentences = _SENTENCES

    def __init__(
        self, source: str, name: str | None, location: Location, folder: str, split: str | None, options: ConvertOptions
    ) -> None:
        self.source = source
        described = [location.stat(join_path(folder, file)) for file in (INFO, FEATURES)]
        contents = [read_all(location, item, limit_bytes=_LARGEST_JSON) for item in described]
        self.info = parse_info(contents[0], described[0].url)
        found = parse_features(contents[1], described[1].url)
        kept, self.left_out = _chosen(found.features, options.extra)
        self.left_out = {**found.left_out, **self.left_out}
        keys = leaf_keys(kept)
        self.renamed = {key: name for name, key in keys.items() if not name.endswith(key.removeprefix("info/"))}
        self._described = [
            (raw_object(location, item, join_path(folder, item.name)), data) for item, data in zip(described, contents)
        ]
        self.splits = self._splits(split)
        units, lengths = self._units(location, folder, options.parts)
        extra = options.extra
        self._reader = RldsReader(kept, keys, lengths, extra["max_length"], extra["last_row"])
        super().__init__(name, location, units, self._reader, options, episodes=sum(lengths.values()))
        self.licence = self.info.licence or ("CC-BY-4.0" if source == "openx" else None)
        self.citation = self.info.citation or (_OPENX if source == "openx" else None)

    def _splits(self, asked: str | None) -> list[Split]:
        """The splits that are asked for. Raises UsageError for one that is not there, and where it must be said which."""
        there = self.info.splits
        names = asked.split("+") if asked else ["train"] if "train" in there else list(there)
        absent = [name for name in names if name not in there]
        if absent or len(set(names)) != len(names) or (not asked and len(names) != 1):
            message = (
                f"{self.info.name} has no split {', '.join(absent)}"
                if absent
                else f"{self.info.name} has several splits"
            )
            raise UsageError(message, hint=f"name one, or several joined by +, with --split: {', '.join(there)}")
        return [there[name] for name in names]

    def _units(
        self, location: Location, folder: str, chosen: Sequence[int] | None
    ) -> tuple[list[Unit], dict[str, int]]:
        """The files of the splits (those of the numbers ``chosen``), and the episodes in each.

        Raises ObjectNotFoundError for files that are not there, CorruptSourceError where none are stated.
        """
        listed = {item.name: item for item in location.list(folder)}
        stated = [(file, length) for split in self.splits for file, length in zip(split.files, split.lengths)]
        if not stated:
            message = f"{location.url}/{folder}: {INFO} states no files of {', '.join(one.name for one in self.splits)}"
            raise CorruptSourceError(message, hint="it was written before the dataset was complete")
        units, lengths, absent = list[Unit](), dict[str, int](), list[str]()
        for number in range(len(stated)) if chosen is None else chosen:
            file, length = stated[number] if number < len(stated) else (f"file {number}", 0)
            if file not in listed:
                absent.append(file)
                continue
            path = join_path(folder, file)
            units.append(Unit(file, number, (raw_object(location, listed[file], path),)))
            lengths[path] = length
        if absent:
            more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
            hint = f"{INFO} names {len(stated)} files; choose of those that are there with --shards"
            error = ObjectNotFoundError(f"{location.url}/{folder} has no {', '.join(absent[:3])}{more}", hint=hint)
            error.partly_there = True
            raise error
        return units, lengths

    def staging_tasks(self, folder: Path, threads: int) -> Sequence[Task]:
        """As ever; what the last row is, the first file decides for all others."""
        self._folder = folder
        first = self._first()
        if first is not None:
            self.reader = replace(self._reader, last_row=self._last_row())
        return super().staging_tasks(folder, threads)

    def _last_row(self) -> LastRow:
        asked: LastRow = self.options.extra["last_row"]
        first = self._first()
        if asked != "auto" or first is None:
            return asked
        return "step" if first.counts.get("kept_last_rows") else "observation"

    # -- what the manifest says ----------------------------------------------------------------------------------------

    def identity(self) -> dict[str, Any]:
        described = [crc32c(data) for _, data in self._described]
        return {**super().identity(), "described": described, "splits": [split.name for split in self.splits]}

    def objects(self) -> list[dict[str, Any]]:
        described = [{"name": raw.path, "size": len(data), "crc32c": crc32c(data)} for raw, data in self._described]
        return [*described, *super().objects()]

    def raw_objects(self) -> list[RawObject]:
        return [*(raw for raw, _ in self._described), *super().raw_objects()]

    def unverified(self) -> list[str]:
        """The two files of JSON alone: records have checksums."""
        files = {raw.path for raw, _ in self._described}
        return [path for path in super().unverified() if path in files]

    def describe(self) -> dict[str, Any]:
        found = super().describe()
        options = {**found["options"], "last_row": self._last_row(), "split": "+".join(one.name for one in self.splits)}
        about = {"name": self.info.name, "version": self.info.version, "description": self.info.description}
        pictures = {"jpeg": "Pillow"} if any(one.kind == "picture" for one in self._reader.features) else {}
        return {
            **found,
            "options": options,
            "metadata": about,
            "keys": self.renamed,
            "left_out": self.left_out,
            **pictures,
        }


def _chosen(features: Sequence[Feature], options: Mapping[str, Any]) -> tuple[tuple[Feature, ...], dict[str, str]]:
    """The features to store, and those that are not, with the reason. Raises UsageError for names of unknown features."""
    unwanted = [name.strip().strip("/") for name in (options["leave_out"] or "").split(",") if name.strip()]
    names = {feature.name: _without_steps(feature.name) for feature in features}
    for one in unwanted:
        if not any(f"{name}/".startswith(f"{one}/") for name in names.values()):
            message = f"there is no feature {one} to leave out"
            raise UsageError(message, hint=f"features: {', '.join(names.values())}")
    left_out = {}
    for feature in features:
        name = names[feature.name]
        if any(f"{name}/".startswith(f"{one}/") for one in unwanted):
            left_out[name] = "left out as asked"
        elif feature.kind == "text" and options["text"] == "omit":
            left_out[name] = "text, left out as asked"
    kept = tuple(feature for feature in features if names[feature.name] not in left_out)
    if not any(is_observation(names[feature.name]) for feature in kept):
        raise UsageError("no observation is left to store", hint=f"features: {', '.join(names.values())}")
    return kept, left_out


def _without_steps(name: str) -> str:
    return name.removeprefix(f"{STEPS}/")
