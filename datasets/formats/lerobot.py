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
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np

from ...errors import CorruptSourceError, UsageError, reason
from ..fetch.location import is_plain_name
from .arrow import ROW_OF_ONE, list_column, parquet_records
from .pictures import encode_png
from .video import CODEC, VideoWriter, pixel_format

INFO = "meta/info.json"
#: The keys of leaves by column, beside lerobot's own metadata, in exports.
KEYS = "meta/rbdata_keys.json"
#: Templates of paths have these fields, with or without a number of digits.
_FIELD = re.compile(r"\{(\w+)(?::0(\d)d)?\}")


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
        try:
            path = _FIELD.sub(lambda match: str(fields[match[1]]).zfill(int(match[2] or 0)), template)
        except KeyError as error:
            raise CorruptSourceError(f"{self.where}: {kind} asks for {error.args[0]}") from error
        if not all(map(is_plain_name, path.split("/"))):
            raise CorruptSourceError(f"{self.where}: {kind} leads to {path[:80]!r}")
        return path


def _feature(name: str, stated: Mapping[str, Any]) -> LeRobotFeature:
    dtype, shape, names = str(stated["dtype"]), tuple(map(int, stated["shape"])), stated.get("names")
    if dtype in ("video", "image") and isinstance(names, list) and str(names[0]).startswith("channel"):
        shape = (*shape[1:], shape[0])
    info = {**(stated.get("video_info") or {}), **(stated.get("info") or {})}
    depth = None
    if info.get("is_depth_map") or info.get("video.is_depth_map"):
        usual = {"depth_min": 0.01, "depth_max": 10.0, "shift": 3.5}
        low, high, shift = (float(info.get(f"video.{key}", default)) for key, default in usual.items())
        depth = (low, high, shift, bool(info.get("video.use_log", True)))
    return LeRobotFeature(name, dtype, shape, depth)


# -- episodes and tasks --------------------------------------------------------------------------------------------------


def episodes_from(info: LeRobotInfo, cameras: Sequence[str], files: Mapping[str, bytes]) -> list[ListedEpisode]:
    """The episodes that the metadata files list, by path, in order of their number. Raises CorruptSourceError."""
    found: dict[int, ListedEpisode] = {}
    for name, data in files.items():
        for record in _records(data, name, without="stats/"):
            try:
                episode = _episode(info, cameras, record)
            except (KeyError, TypeError, ValueError) as error:
                raise CorruptSourceError(f"{name}: episode {len(found)} is malformed: {reason(error)}") from error
            if found.setdefault(episode.number, episode) is not episode:
                raise CorruptSourceError(f"{name} lists episode {episode.number} twice")
    return [found[index] for index in sorted(found)]


def _episode(info: LeRobotInfo, cameras: Sequence[str], record: Mapping[str, Any]) -> ListedEpisode:
    def number(name: str, most: float = 1 << 62) -> Any:
        if not 0 <= record[name] < most:
            raise ValueError(f"{name} is {str(record[name])[:40]}")
        return record[name]

    def place(folder: str) -> dict[str, int]:
        return {name: number(f"{folder}/{name}") for name in ("chunk_index", "file_index")}

    index, videos = number("episode_index"), {}
    if info.version == 2:
        fields = {"episode_chunk": index // (info.record.get("chunks_size") or 1000), "episode_index": index}
        data = info.path("data_path", **fields)
    else:
        data = info.path("data_path", **place("data"))
    for key in cameras:
        at = f"videos/{key}"
        if info.version == 2:
            videos[key] = Span(info.path("video_path", video_key=key, **fields), 0.0, None)
        else:
            begin, end = (number(f"{at}/{side}_timestamp", 1e9) for side in ("from", "to"))
            videos[key] = Span(info.path("video_path", video_key=key, **place(at)), begin, end)
    return ListedEpisode(index, number("length"), data, videos)


def tasks_from(files: Mapping[str, bytes]) -> dict[int, str]:
    """The texts of the tasks by their number. Raises CorruptSourceError."""
    tasks = {}
    for name, data in files.items():
        for record in _records(data, name):
            texts = [record[key] for key in _TEXT if isinstance(record.get(key), str)]
            if not isinstance(record.get("task_index"), int) or not texts:
                raise CorruptSourceError(f"{name}: a task has no number or no text")
            tasks[record["task_index"]] = texts[0]
    return tasks


_TEXT = ("task", "__index_level_0__", "index")


def _records(data: bytes, name: str, without: str | None = None) -> list[dict[str, Any]]:
    if name.endswith(".parquet"):
        return parquet_records(data, name, without)
    try:
        return [dict(json.loads(line)) for line in data.splitlines() if line.strip()]
    except (ValueError, TypeError) as error:
        raise CorruptSourceError(f"{name} is not JSON by lines: {reason(error)}") from error


# -- writing -----------------------------------------------------------------------------------------------------------

#: Files are closed at this many bytes; `info.json` states it in MB. Bytes of rows written at once, files a chunk.
_DATA_BYTES, _VIDEO_BYTES, _GROUP_BYTES, _CHUNK = 100 << 20, 200 << 20, 8 << 20, 1000
#: Rows of more values have no statistics, which would take more room than the rows.
_MOST_VALUES = 4096
_PLACE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
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
        return self.kind != "numbers" or prod(self.shape) <= _MOST_VALUES

    def to_arrow(self, rows: np.ndarray) -> Any:
        """Rows in the data file."""
        import pyarrow

        if self.kind == "numbers":
            return list_column(rows.reshape(-1, *self.shape), pyarrow, fixed=len(self.shape) == 1)
        picture = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
        return pyarrow.array([{"bytes": encode_png(row), "path": None} for row in rows], picture)

    def stats(self, rows: np.ndarray, first: int, length: int) -> _Stats | None:
        """Statistics of rows of an episode of this length, ``first`` is the number of the first. Of pictures by channel, in
        parts of 255: all up to 199, about ``length ** 0.75`` of more, and of large ones some pixels."""
        if self.kind == "numbers":
            return _Stats.of(rows.reshape(len(rows), *(self.shape or (1,))))
        step = length // max(100, int(length**0.75)) or 1
        some, stride = rows[-first % step :: step], max(self.shape[:2]) // 150 or 1
        pixels = some[:, ::stride, ::stride].reshape(-1, self.shape[2], 1, 1)
        return replace(_Stats.of(pixels / 255), count=len(some)) if len(some) else None

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
        self._folder, self._fps, self._robot = folder, fps, robot
        self._columns = [*columns, *(WrittenColumn(name, dtype, ()) for name, dtype in OWN.items())]
        self._tasks: dict[str, int] = {}
        self._rows = 0
        #: What the metadata say of each episode; statistics of all episodes so far by column.
        self._episodes: list[dict[str, Any]] = []
        self._stats: dict[str, _Stats] = {}
        data = partial(_ParquetFile, [column for column in self._columns if column.kind != "video"])
        self._data = _NumberedFiles(folder, "data", ".parquet", _DATA_BYTES, data)
        self._videos = {}
        for one in columns:
            if one.kind == "video":
                begin = partial(VideoWriter, height=one.shape[0], width=one.shape[1], fps=fps)
                self._videos[one.name] = _NumberedFiles(folder, f"videos/{one.name}", ".mp4", _VIDEO_BYTES, begin)

    def __enter__(self) -> LerobotFolder:
        return self

    def __exit__(self, *_: object) -> None:
        for files in (self._data, *self._videos.values()):
            with suppress(Exception):  # it stays open only after an error, such as a full disk, that comes again
                files.close()

    def task_number(self, text: str) -> int:
        """The number of a task; a new text gets a new number."""
        return self._tasks.setdefault(text, len(self._tasks))

    def add(self, length: int, blocks: Iterable[Mapping[str, np.ndarray]]) -> None:
        """Append an episode of ``length`` frames: blocks of consecutive rows, ``[k, *shape]`` of each column by its name, and
        ``task_index`` int64 ``[k]``, as `task_number` gives them."""
        stats: dict[str, _Stats] = {}
        number, tasks, done = len(self._episodes), dict[int, None](), 0
        record = {"episode_index": number, "length": length, **self._data.place()}
        for name, files in self._videos.items():
            begin = files.opened.frames if files.opened else 0
            record |= {**files.place(), f"videos/{name}/from_timestamp": begin / self._fps}
            record[f"videos/{name}/to_timestamp"] = (begin + length) / self._fps
        for given in blocks:
            frame = np.arange(done, done + len(given["task_index"]))
            times = (frame / self._fps).astype(np.float32)
            block: dict[str, np.ndarray] = {
                **given,
                "timestamp": times,
                "frame_index": frame,
                "index": frame + self._rows,
            }
            block["episode_index"] = np.full_like(frame, number)
            for column in self._columns:
                if column.kind == "video":
                    self._videos[column.name].write(block[column.name])
                found = column.stats(block[column.name], done, length) if column.has_stats else None
                if found is not None:
                    stats[column.name] = stats[column.name] + found if column.name in stats else found
            self._data.write(block)
            tasks |= dict.fromkeys(np.unique(given["task_index"]).tolist())
            done += len(frame)
        texts = list(self._tasks)
        record["tasks"] = [texts[task] for task in tasks]
        record |= {"dataset_from_index": self._rows, "dataset_to_index": self._rows + length}
        for name, found in stats.items():
            record |= {f"stats/{name}/{key}": values for key, values in found.record().items()}
            self._stats[name] = self._stats[name] + found if name in self._stats else found
        self._episodes.append({**record, "meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0})
        self._rows += length
        for files in (self._data, *self._videos.values()):
            files.end_episode()

    def finish(self, keys: Mapping[str, str] | None = None) -> None:
        """Close the files, and describe them. ``keys`` by column are kept for `rbdata convert`."""
        import pyarrow
        from pyarrow import parquet

        for files in (self._data, *self._videos.values()):
            files.close()
        tasks = pyarrow.table({"task_index": pyarrow.array(self._tasks.values(), "int64"), "task": list(self._tasks)})
        tables = {
            "tasks": tasks.replace_schema_metadata({"pandas": json.dumps(_PANDAS)}),
            "episodes/chunk-000/file-000": pyarrow.Table.from_pylist(self._episodes),
        }
        for name, table in tables.items():
            path = self._folder / "meta" / f"{name}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                parquet.write_table(table, file)
        stats = {name: found.record() for name, found in self._stats.items()}
        for name, content in ((INFO, self._info()), ("meta/stats.json", stats), (KEYS, keys or {})):
            (self._folder / name).write_text(json.dumps(content, indent=4), encoding="utf-8")

    def _info(self) -> dict[str, Any]:
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
            "data_path": f"data/{_PLACE}.parquet",
            "video_path": f"videos/{{video_key}}/{_PLACE}.mp4" if self._videos else None,
            "features": {column.name: column.to_json(self._fps) for column in self._columns},
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


# -- files ---------------------------------------------------------------------------------------------------------------


class _NumberedFiles:
    """The files below ``name`` in a folder, from ``chunk-000/file-000`` on. ``begin`` begins one in a new file, which ends with
    the episode after which it has ``most_bytes``."""

    def __init__(
        self, folder: Path, name: str, suffix: str, most_bytes: int, begin: Callable[[IO[bytes]], Any]
    ) -> None:
        self._name, self._most_bytes, self._begin = name, most_bytes, begin
        self._path = str(folder / name / _PLACE) + suffix
        self._number = 0
        #: What is being written, if there is anything in it.
        self.opened: Any = None

    def place(self) -> dict[str, Any]:
        """Chunk and file that the next episode lies in, as episodes list them."""
        chunk, file = divmod(self._number, _CHUNK)
        return {f"{self._name}/chunk_index": chunk, f"{self._name}/file_index": file}

    def write(self, content: Any) -> None:
        """Append rows of a table by column, or frames."""
        if self.opened is None:
            chunk, file = divmod(self._number, _CHUNK)
            path = Path(self._path.format(chunk_index=chunk, file_index=file))
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb")
            self.opened = self._begin(self._file)
        self.opened.write(content)

    def end_episode(self) -> None:
        if self.opened is not None and self.opened.bytes >= self._most_bytes:
            self.close()
            self._number += 1

    def close(self) -> None:
        if self.opened is not None:
            with self._file:
                self.opened.close()
            self.opened = None


class _ParquetFile:
    """A table of these columns; rows are written when there are `_GROUP_BYTES` of them."""

    def __init__(self, columns: Sequence[WrittenColumn], file: IO[bytes]) -> None:
        import pyarrow
        from pyarrow import parquet

        fields = []
        for column in columns:
            # A row of one number is written as a plain number, as in lerobot; this package turns it into a row again.
            about = {ROW_OF_ONE: b"1"} if column.kind == "numbers" and column.shape == (1,) else None
            none = np.empty((0, *column.shape), column.dtype)
            fields.append(pyarrow.field(column.name, column.to_arrow(none).type, metadata=about))
        self._columns, self._schema, self._file = columns, pyarrow.schema(fields), file
        self._writer = parquet.ParquetWriter(file, self._schema, compression="snappy")
        self._waiting: list[Any] = []
        self._waiting_bytes = 0

    @property
    def bytes(self) -> int:
        """Bytes in the file, without the rows that wait."""
        return self._file.tell()

    def write(self, block: Mapping[str, np.ndarray]) -> None:
        import pyarrow

        arrays = [column.to_arrow(block[column.name]) for column in self._columns]
        self._waiting.append(pyarrow.record_batch(arrays, schema=self._schema))
        self._waiting_bytes += self._waiting[-1].nbytes
        if self._waiting_bytes >= _GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        with self._writer:
            self._flush()

    def _flush(self) -> None:
        import pyarrow

        self._writer.write_table(pyarrow.Table.from_batches(self._waiting, self._schema))
        self._waiting, self._waiting_bytes = [], 0


# -- statistics of columns ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Stats:
    """Statistics of the rows of a column, or of the channels of pictures; float64, of the shape of a row."""

    count: int
    low: np.ndarray
    high: np.ndarray
    mean: np.ndarray
    variance: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray) -> _Stats:
        exact = rows.astype(np.float64)
        return cls(len(rows), exact.min(0), exact.max(0), exact.mean(0), exact.var(0))

    def __add__(self, other: _Stats) -> _Stats:
        """Those of all rows of both."""
        count, step = self.count + other.count, other.mean - self.mean
        share = other.count / count
        variance = self.variance * (1 - share) + other.variance * share + step**2 * share * (1 - share)
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return _Stats(count, low, high, self.mean + step * share, variance)

    def record(self) -> dict[str, Any]:
        """By lerobot's names, nested lists; ``count`` is a list of one number."""
        by_name = {"min": self.low, "max": self.high, "mean": self.mean, "std": np.sqrt(self.variance)}
        return {name: values.tolist() for name, values in by_name.items()} | {"count": [self.count]}
