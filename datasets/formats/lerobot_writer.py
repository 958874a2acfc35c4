"""A LeRobotDataset, layout v3.0, written without lerobot: rows in Parquet, frames in videos or as PNG in the rows.

    meta/info.json, meta/stats.json, meta/tasks.parquet
    meta/episodes/chunk-000/file-000.parquet       an episode a row: its tasks, statistics, and where it lies
    data/chunk-000/file-000.parquet                a frame a row
    videos/<camera>/chunk-000/file-000.mp4         frames of many episodes, one after the other

A new file begins with the first episode after `_DATA_BYTES` or `_VIDEO_BYTES`, a new chunk after 1,000 files. Episodes are
written in blocks, so that memory depends on neither their length nor their number.
(https://huggingface.co/docs/lerobot/lerobot-dataset-v3; huggingface/lerobot, src/lerobot/datasets)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .arrow import ROW_OF_ONE, list_column
from .column_stats import Stats, sampled
from .pictures import encode_png
from .video_writer import CODEC, OutputFile, VideoWriter, pixel_format

#: Files are closed at this many bytes; `info.json` states it in MB. Bytes of rows written at once, files a chunk.
_DATA_BYTES, _VIDEO_BYTES, _GROUP_BYTES, _CHUNK = 100 << 20, 200 << 20, 8 << 20, 1000
#: Rows of more values have no statistics, which would take more room than the rows.
_MOST_VALUES = 4096
#: Episodes whose statistics are kept before they are joined.
_KEPT = 256
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
    """Writes a dataset. A ``with`` block closes its files when an error ends the work."""

    def __init__(self, folder: Path, columns: Sequence[WrittenColumn], fps: float, robot: str | None = None) -> None:
        import pyarrow

        self._folder, self._columns, self._fps, self._robot = folder, list(columns), fps, robot
        self._own = [WrittenColumn(name, dtype, ()) for name, dtype in OWN.items()]
        self._tasks: dict[str, int] = {}
        self._rows = self._episodes = 0
        #: By column: statistics of episodes, and of all before them.
        self._stats: dict[str, list[Stats]] = {
            column.name: [] for column in (*self._columns, *self._own) if column.has_stats
        }
        folder.mkdir(parents=True)
        inside = [column for column in (*self._columns, *self._own) if column.kind != "video"]
        fields = []
        for column in inside:
            # A row of one number is written as a plain number, as in lerobot; this package turns it into a row again.
            one = {ROW_OF_ONE: b"1"} if column.kind == "numbers" and column.shape == (1,) else None
            fields.append(pyarrow.field(column.name, _arrow_type(column, pyarrow), metadata=one))
        self._schema = pyarrow.schema(fields)
        self._data = _NumberedFiles(
            folder / "data", ".parquet", _DATA_BYTES, lambda path, batch: _ParquetFile(path, batch.schema, _GROUP_BYTES)
        )
        self._listed = _NumberedFiles(
            folder / "meta/episodes",
            ".parquet",
            _DATA_BYTES,
            lambda path, batch: _ParquetFile(path, batch.schema, 1 << 20),
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
        return [self._data, self._listed, *self._videos.values()]

    def task_number(self, text: str) -> int:
        """The number of a task; a new text gets a new number."""
        return self._tasks.setdefault(text, len(self._tasks))

    def add(self, length: int, blocks: Iterable[Mapping[str, np.ndarray]]) -> None:
        """Append an episode of ``length`` frames: blocks of consecutive rows, ``[k, *shape]`` of each column by its name, and
        ``task_index`` int64 ``[k]``, as `task_number` gives them."""
        import pyarrow

        found: dict[str, list[Stats]] = {name: [] for name in self._stats}
        pictures, tasks, done = sampled(length), dict[int, None](), 0
        place = self._data.place("data")
        videos = {name: (files.frames, files.place(f"videos/{name}")) for name, files in self._videos.items()}
        for given in blocks:
            count = len(given["task_index"])
            frame = np.arange(done, done + count)
            times = (frame / self._fps).astype(np.float32)
            own: dict[str, np.ndarray] = {"timestamp": times, "frame_index": frame, "index": frame + self._rows}
            block: dict[str, np.ndarray] = {**given, **own, "episode_index": np.full(count, self._episodes)}
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
                if column.kind == "numbers" and column.has_stats:
                    found[column.name].append(Stats.of_rows(rows.reshape(count, *(column.shape or (1,)))))
                elif column.kind != "numbers" and len(chosen):
                    found[column.name].append(Stats.of_pictures(rows[chosen]))
            self._data.write(pyarrow.record_batch(arrays, schema=self._schema))
            tasks |= dict.fromkeys(np.unique(given["task_index"]).tolist())
            done += count
        texts = list(self._tasks)
        record: dict[str, Any] = {"episode_index": self._episodes, "tasks": [texts[number] for number in tasks]}
        record |= {"length": length, **place}
        record |= {"dataset_from_index": self._rows, "dataset_to_index": self._rows + length}
        for name, (begin, where) in videos.items():
            span = {"from_timestamp": begin / self._fps, "to_timestamp": (begin + length) / self._fps}
            record |= {**where, **{f"videos/{name}/{end}": time for end, time in span.items()}}
        for name, several in found.items():
            stats = Stats.joined(several)
            record |= {f"stats/{name}/{key}": values for key, values in stats.record().items()}
            self._stats[name].append(stats)
            if len(self._stats[name]) >= _KEPT:
                self._stats[name] = [Stats.joined(self._stats[name])]
        record |= self._listed.place("meta/episodes")
        self._listed.write(pyarrow.RecordBatch.from_pylist([record]))
        self._rows, self._episodes = self._rows + length, self._episodes + 1
        for files in self._files():
            files.end_episode()

    def finish(self) -> None:
        """Close the files, and describe them."""
        import pyarrow
        from pyarrow import parquet

        for files in self._files():
            files.finish()
        numbers, texts = pyarrow.array(range(len(self._tasks)), pyarrow.int64()), pyarrow.array(list(self._tasks))
        table = pyarrow.table({"task_index": numbers, "task": texts})
        with (self._folder / "meta" / "tasks.parquet").open("wb") as file:
            parquet.write_table(table.replace_schema_metadata({"pandas": json.dumps(_PANDAS)}), file)
        stats = {name: Stats.joined(several).record() for name, several in self._stats.items() if several}
        for name, content in (("info", self._info()), ("stats", stats)):
            (self._folder / "meta" / f"{name}.json").write_text(json.dumps(content, indent=4), encoding="utf-8")

    def _info(self) -> dict[str, Any]:
        columns = (*self._columns, *self._own)
        return {
            "codebase_version": "v3.0",
            "robot_type": self._robot,
            "total_episodes": self._episodes,
            "total_frames": self._rows,
            "total_tasks": len(self._tasks),
            "chunks_size": _CHUNK,
            "data_files_size_in_mb": _DATA_BYTES >> 20,
            "video_files_size_in_mb": _VIDEO_BYTES >> 20,
            "fps": self._fps,
            "splits": {"train": f"0:{self._episodes}"},
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
    """A table; rows are written when there are ``group_bytes`` of them."""

    def __init__(self, path: Path, schema: Any, group_bytes: int) -> None:
        from pyarrow import parquet

        self._schema, self._group_bytes = schema, group_bytes
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
        if self._waiting_bytes >= self._group_bytes:
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
