"""The metadata of a LeRobotDataset: ``meta/info.json``, its episodes and its tasks, of layout v3 and v2.1.

    v3      meta/episodes/chunk-000/file-000.parquet   an episode a row: where its rows and frames are
            meta/tasks.parquet                         task_index; the text is the index of the table
    v2.1    meta/episodes.jsonl, meta/tasks.jsonl      the files of an episode follow from its number; so does v2.0

(huggingface/lerobot, src/lerobot/datasets; format of episodes and paths: dataset_metadata.py, utils.py)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...errors import CorruptSourceError, UsageError, reason
from ...storage.untrusted_json import parse_json
from ..fetch.location import is_plain_name
from .arrow import parquet_records

INFO = "meta/info.json"
#: Templates of paths have these fields, with or without a number of digits.
_FIELD = re.compile(r"\{(\w+)(?::0(\d)d)?\}")
#: Numbers that 64 bits hold, as episodes and rows are counted.
_MOST = 1 << 62


@dataclass(frozen=True)
class Feature:
    """A column: ``dtype`` as stated (``video`` and ``image`` among them), ``shape`` of a row, ``depth`` parameters or None."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    depth: tuple[float, float, float, bool] | None = None

    @property
    def is_camera(self) -> bool:
        return self.dtype in ("video", "image")


class Span(NamedTuple):
    """Frames of an episode in a video file: the path, and the times at which they begin and end in it, in s."""

    path: str
    begin: float
    end: float | None


class ListedEpisode(NamedTuple):
    """An episode as the metadata list it; ``videos`` by camera."""

    number: int
    length: int
    data: str
    videos: Mapping[str, Span]


@dataclass(frozen=True)
class Info:
    """``meta/info.json``. ``record`` is all of it."""

    where: str
    version: int
    fps: float
    features: tuple[Feature, ...]
    record: Mapping[str, Any]

    @classmethod
    def parse(cls, data: bytes, where: str) -> Info:
        """Raises CorruptSourceError, and UsageError for an unsupported layout."""
        try:
            record = parse_json(data)
            version, stored = str(record["codebase_version"])[:20], str(record.get("storage_format", "parquet"))[:20]
            features = tuple(_feature(name, stated) for name, stated in record["features"].items())
            fps = float(record["fps"])
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise CorruptSourceError(f"{where} is not that of a LeRobotDataset: {reason(error)}") from error
        if not version.startswith(("v2.", "v3.")) or stored != "parquet":
            message = f"{where}: the layout is {version} in {stored}"
            raise UsageError(message, hint="rbdata reads v2 and v3 in Parquet; lerobot converts older datasets")
        if not 0 < fps < 1e6:
            raise CorruptSourceError(f"{where} states {fps} frames a second")
        return cls(where, int(version[1]), fps, features, record)

    def path(self, kind: str, **fields: Any) -> str:
        """The path of a file: the template ``data_path`` or ``video_path``, filled. Raises CorruptSourceError."""
        template = self.record.get(kind)
        if not isinstance(template, str):
            raise CorruptSourceError(f"{self.where} has no {kind}")

        def fill(match: re.Match[str]) -> str:
            if match[1] not in fields:
                raise CorruptSourceError(f"{self.where}: {kind} asks for {match[1]}")
            value = fields[match[1]]
            return str(value).zfill(int(match[2])) if match[2] else str(value)

        path = _FIELD.sub(fill, template)
        if not all(map(is_plain_name, path.split("/"))):
            raise CorruptSourceError(f"{self.where}: {kind} leads to {path[:80]!r}")
        return path


def _feature(name: str, stated: Mapping[str, Any]) -> Feature:
    shape = tuple(int(size) for size in stated["shape"])
    names = stated.get("names")
    first = str(names[0]) if isinstance(names, list) and names else ""
    if stated["dtype"] in ("video", "image") and first.startswith("channel"):
        shape = (*shape[1:], shape[0])
    info = {**(stated.get("video_info") or {}), **(stated.get("info") or {})}
    depth = None
    if info.get("is_depth_map") or info.get("video.is_depth_map"):
        low, high, shift = (
            float(info.get(f"video.{key}", default))
            for key, default in (("depth_min", 0.01), ("depth_max", 10.0), ("shift", 3.5))
        )
        depth = (low, high, shift, bool(info.get("video.use_log", True)))
    return Feature(str(name), str(stated["dtype"]), shape, depth)


# -- episodes and tasks --------------------------------------------------------------------------------------------------


def episodes_from(info: Info, cameras: Sequence[str], files: Mapping[str, bytes]) -> list[ListedEpisode]:
    """The episodes that the metadata files list, by path, in order of their number. Raises CorruptSourceError."""
    found: dict[int, ListedEpisode] = {}
    for name, data in files.items():
        for record in _records(data, name, without="stats/"):
            try:
                episode = _episode(info, cameras, record)
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                if isinstance(error, CorruptSourceError):
                    raise
                raise CorruptSourceError(f"{name}: episode {len(found)} is malformed: {reason(error)}") from error
            if found.setdefault(episode.number, episode) is not episode:
                raise CorruptSourceError(f"{name} lists episode {episode.number} twice")
    return [found[index] for index in sorted(found)]


def _episode(info: Info, cameras: Sequence[str], record: Mapping[str, Any]) -> ListedEpisode:
    index, length = _number(record["episode_index"]), _number(record["length"])
    if info.version == 2:
        stated = info.record.get("chunks_size")
        chunk = index // (stated if type(stated) is int and stated > 0 else 1000)
        place = {"episode_chunk": chunk, "episode_index": index}
        videos = {key: Span(info.path("video_path", video_key=key, **place), 0.0, None) for key in cameras}
        return ListedEpisode(index, length, info.path("data_path", **place), videos)

    def place_in(folder: str) -> dict[str, int]:
        return {name: _number(record[f"{folder}/{name}"]) for name in ("chunk_index", "file_index")}

    videos = {}
    for key in cameras:
        path = info.path("video_path", video_key=key, **place_in(f"videos/{key}"))
        videos[key] = Span(path, *(_seconds(record[f"videos/{key}/{end}_timestamp"]) for end in ("from", "to")))
    return ListedEpisode(index, length, info.path("data_path", **place_in("data")), videos)


def _number(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < _MOST:
        raise ValueError(f"{str(value)[:40]} is not a count")
    return value


def _seconds(value: Any) -> float:
    if not isinstance(value, float) or not 0 <= value < 1e9:
        raise ValueError(f"{str(value)[:40]} is not a time in a video")
    return value


def tasks_from(files: Mapping[str, bytes]) -> dict[int, str]:
    """The texts of the tasks by their number. Raises CorruptSourceError."""
    tasks = {}
    for name, data in files.items():
        for record in _records(data, name):
            text = next((value for value in (record.get(key) for key in _TEXT) if isinstance(value, str)), None)
            if not isinstance(record.get("task_index"), int) or text is None:
                raise CorruptSourceError(f"{name}: a task has no number or no text")
            tasks[record["task_index"]] = text
    return tasks


_TEXT = ("task", "__index_level_0__", "index")


def _records(data: bytes, name: str, without: str | None = None) -> list[dict[str, Any]]:
    if name.endswith(".parquet"):
        return parquet_records(data, name, without)
    try:
        records = [parse_json(line) for line in data.splitlines() if line.strip()]
    except ValueError as error:
        raise CorruptSourceError(f"{name} is not JSON by lines: {reason(error)}") from error
    if not all(isinstance(record, dict) for record in records):
        raise CorruptSourceError(f"{name} has lines that are no objects")
    return records
