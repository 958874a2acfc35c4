"""LeRobotDatasets: the metadata of layouts v3 and v2.1 are read, layout v3.0 is written, without lerobot.

    meta/info.json, meta/stats.json
    v3      meta/tasks.parquet                         task_index; the text is the index of the table
            meta/episodes/chunk-000/file-000.parquet   an episode a row: its tasks, statistics, where its rows and frames are
            data/chunk-000/file-000.parquet            a frame a row; pictures as PNG in the rows, or
            videos/<camera>/chunk-000/file-000.mp4     frames of many episodes, one after the other
    v2.1    meta/episodes.jsonl, meta/tasks.jsonl      the files of an episode follow from its number; so does v2.0

(https://huggingface.co/docs/lerobot/lerobot-dataset-v3; huggingface/lerobot, src/lerobot/datasets; format of episodes and
paths: dataset_metadata.py, utils.py)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ...errors import CorruptSourceError, UsageError, reason
from ..fetch.location import is_plain_name
from .arrow import ROW_OF_ONE, list_column, parquet_records
from .pictures import encode_png
from .video import CODEC, OutputFile, VideoWriter, pixel_format

INFO = "meta/info.json"
#: The keys of leaves by column, beside lerobot's own metadata, in exports.
KEYS = "meta/rbdata_keys.json"
#: Templates of paths have these fields, with or without a number of digits.
_FIELD = re.compile(r"\{(\w+)(?::0(\d)d)?\}")
#: Numbers that 64 bits hold, as episodes and rows are counted.
_MOST = 1 << 62


@dataclass(frozen=True)
class LeRobotFeature:
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
class LeRobotInfo:
    """``meta/info.json``. ``record`` is all of it."""

    where: str
    version: int
    fps: float
    features: tuple[LeRobotFeature, ...]
    record: Mapping[str, Any]

    @classmethod
    def parse(cls, data: bytes, where: str) -> LeRobotInfo:
        """Raises CorruptSourceError, and UsageError for an unsupported layout."""
        try:
            record = json.loads(data)
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


def _feature(name: str, stated: Mapping[str, Any]) -> LeRobotFeature:
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
    return LeRobotFeature(str(name), str(stated["dtype"]), shape, depth)


# -- episodes and tasks --------------------------------------------------------------------------------------------------


def episodes_from(info: LeRobotInfo, cameras: Sequence[str], files: Mapping[str, bytes]) -> list[ListedEpisode]:
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


def _episode(info: LeRobotInfo, cameras: Sequence[str], record: Mapping[str, Any]) -> ListedEpisode:
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
        records = [json.loads(line) for line in data.splitlines() if line.strip()]
    except ValueError as error:
        raise CorruptSourceError(f"{name} is not JSON by lines: {reason(error)}") from error
    if not all(isinstance(record, dict) for record in records):
        raise CorruptSourceError(f"{name} has lines that are no objects")
    return records


# -- writing -----------------------------------------------------------------------------------------------------------

#: Files are closed at this many bytes; `info.json` states it in MB. Bytes of rows written at once, files a chunk.
_DATA_BYTES, _VIDEO_BYTES, _GROUP_BYTES, _CHUNK = 100 << 20, 200 << 20, 8 << 20, 1000
#: Rows of more values have no statistics, which would take more room than the rows.
_MOST_VALUES = 4096
_VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
#: Columns that every dataset has, which the writer fills.
OWN = {"timestamp": "float32", **dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), "int64")}


@dataclass(frozen=True)
class WrittenColumn:
    """A column: ``shape`` is that of a row, ``kind`` says what holds it. Pictures are uint8 ``[height, width, channels]``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: Literal["numbers", "image", "video"] = "numbers"

    @property
    def has_stats(self) -> bool:
        return self.kind != "numbers" or int(np.prod(self.shape)) <= _MOST_VALUES

    def to_json(self, fps: float) -> dict[str, Any]:
        if self.kind == "numbers":
            return {"dtype": self.dtype, "shape": list(self.shape) or [1], "names": None}
        names = ["height", "width", "channels"]
        if self.kind == "image":
            return {"dtype": "image", "shape": list(self.shape), "names": names}
        height, width, _ = self.shape
        about = {"height": height, "width": width, "codec": CODEC, "pix_fmt": pixel_format(height, width)}
        about |= {"is_depth_map": False, "fps": fps, "channels": 3}
        info = {**{f"video.{key}": value for key, value in about.items()}, "has_audio": False}
        return {"dtype": "video", "shape": [height, width, 3], "names": names, "info": info}


class LerobotFolder:
    """Writes a dataset. A ``with`` block closes its files when an error ends the work.

    A new file begins with the first episode after `_DATA_BYTES` or `_VIDEO_BYTES`, a new chunk after `_CHUNK` files. Episodes
    are written in blocks, so that memory does not depend on their length.
    """

    def __init__(self, folder: Path, columns: Sequence[WrittenColumn], fps: float, robot: str | None = None) -> None:
        import pyarrow

        self._folder, self._columns, self._fps, self._robot = folder, list(columns), fps, robot
        self._own = [WrittenColumn(name, dtype, ()) for name, dtype in OWN.items()]
        self._tasks: dict[str, int] = {}
        self._rows = 0
        #: What the metadata say of each episode; statistics of all episodes so far by column.
        self._episodes: list[dict[str, Any]] = []
        self._stats: dict[str, _Stats] = {}
        folder.mkdir(parents=True)
        inside = [column for column in (*self._columns, *self._own) if column.kind != "video"]
        fields = []
        for column in inside:
            # A row of one number is written as a plain number, as in lerobot; this package turns it into a row again.
            one = {ROW_OF_ONE: b"1"} if column.kind == "numbers" and column.shape == (1,) else None
            fields.append(pyarrow.field(column.name, _arrow_type(column, pyarrow), metadata=one))
        self._schema = pyarrow.schema(fields)
        self._data = _NumberedFiles(
            folder / "data", ".parquet", _DATA_BYTES, lambda path, batch: _ParquetFile(path, batch.schema)
        )
        self._videos = {
            column.name: _NumberedFiles(
                folder / "videos" / column.name,
                ".mp4",
                _VIDEO_BYTES,
                lambda path, frames: VideoWriter(path, frames.shape[1], frames.shape[2], fps),
            )
            for column in self._columns
            if column.kind == "video"
        }

    def __enter__(self) -> LerobotFolder:
        return self

    def __exit__(self, *_: object) -> None:
        for files in self._files():
            files.abandon()

    def _files(self) -> list[_NumberedFiles]:
        return [self._data, *self._videos.values()]

    def task_number(self, text: str) -> int:
        """The number of a task; a new text gets a new number."""
        return self._tasks.setdefault(text, len(self._tasks))

    def add(self, length: int, blocks: Iterable[Mapping[str, np.ndarray]]) -> None:
        """Append an episode of ``length`` frames: blocks of consecutive rows, ``[k, *shape]`` of each column by its name, and
        ``task_index`` int64 ``[k]``, as `task_number` gives them."""
        import pyarrow

        stats: dict[str, _Stats] = {}
        number, pictures, tasks, done = len(self._episodes), _sampled(length), dict[int, None](), 0
        place = self._data.place("data")
        videos = {name: (files.frames, files.place(f"videos/{name}")) for name, files in self._videos.items()}
        for given in blocks:
            count = len(given["task_index"])
            frame = np.arange(done, done + count)
            times = (frame / self._fps).astype(np.float32)
            own: dict[str, np.ndarray] = {"timestamp": times, "frame_index": frame, "index": frame + self._rows}
            block: dict[str, np.ndarray] = {**given, **own, "episode_index": np.full(count, number)}
            chosen = pictures[np.searchsorted(pictures, done) : np.searchsorted(pictures, done + count)] - done
            arrays = []
            for column in (*self._columns, *self._own):
                rows = block[column.name]
                if column.kind == "video":
                    self._videos[column.name].write(rows)
                elif column.kind == "image":
                    encoded = [{"bytes": encode_png(row), "path": None} for row in rows]
                    arrays.append(pyarrow.array(encoded, _arrow_type(column, pyarrow)))
                else:
                    arrays.append(list_column(rows, pyarrow, fixed=rows.ndim == 2))
                if column.kind != "numbers" and len(chosen):
                    _add(stats, column.name, _Stats.of_pictures(rows[chosen]))
                elif column.kind == "numbers" and column.has_stats:
                    _add(stats, column.name, _Stats.of(rows.reshape(count, *(column.shape or (1,)))))
            self._data.write(pyarrow.record_batch(arrays, schema=self._schema))
            tasks |= dict.fromkeys(np.unique(given["task_index"]).tolist())
            done += count
        texts = list(self._tasks)
        record: dict[str, Any] = {
            "episode_index": number,
            "tasks": [texts[task] for task in tasks],
            "length": length,
            **place,
        }
        record |= {"dataset_from_index": self._rows, "dataset_to_index": self._rows + length}
        for name, (begin, where) in videos.items():
            span = {"from_timestamp": begin / self._fps, "to_timestamp": (begin + length) / self._fps}
            record |= {**where, **{f"videos/{name}/{end}": time for end, time in span.items()}}
        for name, found in stats.items():
            record |= {f"stats/{name}/{key}": values for key, values in found.record().items()}
            _add(self._stats, name, found)
        self._episodes.append({**record, "meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0})
        self._rows += length
        for files in self._files():
            files.end_episode()

    def finish(self, keys: Mapping[str, str] | None = None) -> None:
        """Close the files, and describe them. ``keys`` by column are kept for `rbdata convert`."""
        import pyarrow
        from pyarrow import parquet

        for files in self._files():
            files.finish()
        numbers, texts = pyarrow.array(range(len(self._tasks)), pyarrow.int64()), pyarrow.array(list(self._tasks))
        tasks = pyarrow.table({"task_index": numbers, "task": texts}).replace_schema_metadata(
            {"pandas": json.dumps(_PANDAS)}
        )
        tables = {"tasks": tasks, "episodes/chunk-000/file-000": pyarrow.Table.from_pylist(self._episodes)}
        for name, table in tables.items():
            path = self._folder / "meta" / f"{name}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                parquet.write_table(table, file)
        stats = {name: found.record() for name, found in self._stats.items()}
        for name, content in ((INFO, self._info()), ("meta/stats.json", stats), (KEYS, keys or {})):
            (self._folder / name).write_text(json.dumps(content, indent=4), encoding="utf-8")

    def _info(self) -> dict[str, Any]:
        columns = (*self._columns, *self._own)
        return {
            "codebase_version": "v3.0",
            "robot_type": self._robot,
            "total_episodes": len(self._episodes),
            "total_frames": self._rows,
            "total_tasks": len(self._tasks),
            "chunks_size": _CHUNK,
            "data_files_size_in_mb": _DATA_BYTES >> 20,
            "video_files_size_in_mb": _VIDEO_BYTES >> 20,
            "fps": self._fps,
            "splits": {"train": f"0:{len(self._episodes)}"},
            "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
            "video_path": _VIDEO_PATH if self._videos else None,
            "features": {column.name: column.to_json(self._fps) for column in columns},
        }


#: Metadata for pandas, with which lerobot reads the tasks: the text is the index of the table.
_PANDAS = {
    "index_columns": ["task"],
    "column_indexes": [],
    "columns": [
        {"name": name, "field_name": name, "pandas_type": pandas, "numpy_type": numpy, "metadata": None}
        for name, pandas, numpy in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
    ],
}


def _arrow_type(column: WrittenColumn, pyarrow: Any) -> Any:
    if column.kind == "image":
        return pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    kind = pyarrow.from_numpy_dtype(np.dtype(column.dtype))
    shape = () if column.shape == (1,) else column.shape
    for length in reversed(shape):
        kind = pyarrow.list_(kind, length if len(shape) == 1 else -1)
    return kind


# -- files ---------------------------------------------------------------------------------------------------------------


class _NumberedFiles:
    """The files of a folder, from ``chunk-000/file-000`` on: ``open_file`` begins one at a path, for its first content. A file
    ends with the episode after which it has ``most_bytes``."""

    def __init__(self, folder: Path, suffix: str, most_bytes: int, open_file: Callable[[Path, Any], Any]) -> None:
        self._folder, self._suffix, self._most_bytes, self._open_file = folder, suffix, most_bytes, open_file
        self._number = 0
        self._opened: Any = None

    def place(self, folder: str) -> dict[str, Any]:
        """Chunk and file that the next episode lies in, as episodes list them."""
        return dict(zip((f"{folder}/chunk_index", f"{folder}/file_index"), divmod(self._number, _CHUNK)))

    @property
    def frames(self) -> int:
        """The number of frames in the video that is being written."""
        return self._opened.frames if self._opened else 0

    def write(self, content: Any) -> None:
        """Append rows of a table (a record batch), or frames."""
        if self._opened is None:
            chunk, file = divmod(self._number, _CHUNK)
            path = self._folder / f"chunk-{chunk:03d}" / f"file-{file:03d}{self._suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._opened = self._open_file(path, content)
        self._opened.write(content)

    def end_episode(self) -> None:
        if self._opened is not None and self._opened.bytes >= self._most_bytes:
            self.finish()
            self._number += 1

    def finish(self) -> None:
        if self._opened is not None:
            self._opened.finish()
            self._opened = None

    def abandon(self) -> None:
        if self._opened is not None:
            self._opened.abandon()
            self._opened = None


class _ParquetFile:
    """A table; rows are written when there are `_GROUP_BYTES` of them."""

    def __init__(self, path: Path, schema: Any) -> None:
        from pyarrow import parquet

        self._schema = schema
        self._file = OutputFile(path)
        self._writer = parquet.ParquetWriter(self._file, schema, compression="snappy")
        self._waiting: list[Any] = []
        self._waiting_bytes = 0

    @property
    def bytes(self) -> int:
        """Bytes in the file, without the rows that wait."""
        return self._file.tell()

    def write(self, batch: Any) -> None:
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= _GROUP_BYTES:
            self._flush()

    def finish(self) -> None:
        self._flush()
        self._writer.close()
        self._file.close()

    def abandon(self) -> None:
        self._file.give_up()
        self._writer.close()
        self._file.close()

    def _flush(self) -> None:
        import pyarrow

        if self._waiting:
            self._writer.write_table(pyarrow.Table.from_batches(self._waiting, self._schema))
        self._waiting, self._waiting_bytes = [], 0


# -- statistics of columns ---------------------------------------------------------------------------------------------

#: Pictures with a side of at least this many pixels are thinned, to sides of about `_THINNED`.
_LARGE_SIDE, _THINNED = 300, 150


@dataclass(frozen=True)
class _Stats:
    """Statistics of the rows of a column, or of the channels of pictures; float64."""

    count: int
    low: np.ndarray
    high: np.ndarray
    mean: np.ndarray
    variance: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray) -> _Stats:
        """Those of ``[n, *shape]``, n > 0; each has the shape of a row."""
        exact = rows.astype(np.float64)
        return cls(len(rows), exact.min(0), exact.max(0), exact.mean(0), exact.var(0))

    @classmethod
    def of_pictures(cls, pictures: np.ndarray) -> _Stats:
        """Those of uint8 ``[n, height, width, channels]``, n > 0, in parts of 255; each has the shape ``[channels, 1, 1]``."""
        side = max(pictures.shape[1:3])
        stride = side // _THINNED if side >= _LARGE_SIDE else 1
        pixels = pictures[:, ::stride, ::stride].reshape(-1, pictures.shape[3], 1, 1)
        return replace(cls.of(pixels / 255), count=len(pictures))

    def __add__(self, other: _Stats) -> _Stats:
        count = self.count + other.count
        share = other.count / count
        mean = self.mean + (other.mean - self.mean) * share
        variance = (self.variance + (self.mean - mean) ** 2) * (1 - share)
        variance += (other.variance + (other.mean - mean) ** 2) * share
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return _Stats(count, low, high, mean, variance)

    def record(self) -> dict[str, Any]:
        """A dictionary with lerobot's names; ``count`` is a list of one number, the other values are nested lists."""
        by_name = {"min": self.low, "max": self.high, "mean": self.mean, "std": np.sqrt(self.variance)}
        return {name: values.tolist() for name, values in by_name.items()} | {"count": [self.count]}


def _add(stats: dict[str, _Stats], name: str, more: _Stats) -> None:
    stats[name] = stats[name] + more if name in stats else more


def _sampled(length: int) -> np.ndarray:
    """Which pictures of an episode go into its statistics, int64: all up to 100, ``length ** 0.75`` of more than 464."""
    count = max(min(length, 100), min(int(length**0.75), 10_000))
    return np.unique(np.linspace(0, length - 1, count).round().astype(np.int64))
