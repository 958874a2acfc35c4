"""LeRobotDatasets for tests: those that lerobot itself wrote, with the truth, and others in the same layout (`write`)."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from paths import DATA
from PIL import Image
from video_tools import moving_frames, write_video

FIXTURES = DATA / "lerobot"
TASKS = ("pick up the cube", "ouvre le tiroir à gauche")


def truth(name: str) -> list[dict[str, np.ndarray]]:
    """The episodes that went into a dataset of `FIXTURES`, by column; frames as PyAV decodes the videos."""
    with np.load(FIXTURES / f"truth_{name}.npz") as arrays:
        every = {key: arrays[key] for key in arrays}
    ends = np.cumsum(every.pop("lengths"))
    return [{key: rows[low:high] for key, rows in every.items()} for low, high in zip(np.append(0, ends[:-1]), ends)]


def texts(rows: Any) -> list[str]:
    """Of a leaf of texts."""
    return [bytes(row).rstrip(b"\0").decode() for row in rows.numpy()]


def episode(length: int, seed: int = 0, **columns: Any) -> dict[str, np.ndarray]:
    """Rows of ``observation.state`` [3], ``action`` [2] and ``task_index``."""
    rng = np.random.default_rng(seed)
    return {
        "observation.state": rng.normal(size=(length, 3)).astype(np.float32),
        "action": rng.normal(size=(length, 2)).astype(np.float32),
        "task_index": rng.integers(0, len(TASKS), length),
        **columns,
    }


def ended(length: int, seed: int = 0, *, done: Sequence[int] = (-1,), success: bool = True, **columns: Any) -> Any:
    """The same with rewards, and ``next.done`` in the rows ``done``."""
    flags = np.zeros(length, bool)
    flags[list(done)] = True
    rewards = np.random.default_rng(seed + 99).normal(size=length).astype(np.float32)
    return episode(
        length, seed, **{"next.reward": rewards, "next.done": flags, "next.success": flags & success}, **columns
    )


def write(
    folder: Path,
    episodes: Mapping[int, Mapping[str, np.ndarray]],
    *,
    version: int = 3,
    cameras: Mapping[str, str] = {},
    data_files: Sequence[Sequence[int]] | None = None,
    video_files: Mapping[str, Sequence[Sequence[int]]] = {},
    size: tuple[int, int] = (32, 48),
    fps: int = 10,
    shapes: Mapping[str, tuple[int, ...]] = {},
    edit: Callable[[dict[str, Any]], None] = lambda info: None,
) -> dict[str, dict[int, np.ndarray]]:
    """Write episodes by their number; returns the frames that went in, by camera and episode.

    ``cameras`` are kinds by column: a codec of `video_tools`, ``image`` (pictures in the rows) or ``depth``. Episodes lie
    together in files as ``data_files`` and ``video_files`` say, all in one by default. ``edit`` changes ``info.json``.
    """
    numbers = list(episodes)
    frames = {
        name: {number: _frames(kind, len(episodes[number]["action"]), size, number + 7 * index) for number in numbers}
        for index, (name, kind) in enumerate(cameras.items())
    }
    groups = [[number] for number in numbers] if version == 2 else (data_files or [numbers])
    rows_before = 0
    places: dict[int, dict[str, Any]] = {number: {} for number in numbers}
    for file, group in enumerate(groups):
        tables = []
        for number in group:
            columns = episodes[number]
            length = len(columns["action"])
            places[number].update(data=file, low=rows_before)
            table = {name: _column(values) for name, values in columns.items()}
            for name, kind in cameras.items():
                if kind == "image":
                    table[name] = _pictures(frames[name][number])
            index = np.arange(length)
            table.update(timestamp=pa.array((index / fps).astype(np.float32)), frame_index=pa.array(index))
            table.update(episode_index=pa.array(np.full(length, number)), index=pa.array(index + rows_before))
            tables.append(pa.table(table))
            rows_before += length
        path = (
            f"data/chunk-000/episode_{group[0]:06d}.parquet"
            if version == 2
            else f"data/chunk-000/file-{file:03d}.parquet"
        )
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.concat_tables(tables), folder / path)
    for name, kind in cameras.items():
        if kind == "image":
            continue
        groups = [[number] for number in numbers] if version == 2 else video_files.get(name, [numbers])
        for file, group in enumerate(groups):
            path = (
                f"videos/chunk-000/{name}/episode_{group[0]:06d}.mp4"
                if version == 2
                else f"videos/{name}/chunk-000/file-{file:03d}.mp4"
            )
            write_video(folder / path, np.concatenate([frames[name][number] for number in group]), kind, fps)
            begin = 0.0
            for number in group:
                end = begin + len(frames[name][number]) / fps
                places[number][name] = (file, begin, end)
                begin = end
    _write_metadata(folder, episodes, places, version, cameras, size, fps, shapes, edit)
    return frames


def _write_metadata(
    folder: Path, episodes: Any, places: Any, version: int, cameras: Any, size: Any, fps: int, shapes: Any, edit: Any
) -> None:
    features: dict[str, Any] = {}
    for name, kind in cameras.items():
        about = {"is_depth_map": True, "video.depth_min": 0.5, "video.depth_max": 4.0} if kind == "depth" else {}
        shape = [*size, 1 if kind == "depth" else 3]
        features[name] = {
            "dtype": "image" if kind == "image" else "video",
            "shape": shape,
            "names": ["height", "width", "channels"],
            "info": about,
        }
    first = next(iter(episodes.values()))
    for name, values in first.items():
        shape = list(shapes.get(name, values.shape[1:] or (1,)))
        features[name] = {
            "dtype": "string" if values.dtype.kind == "U" else values.dtype.name,
            "shape": shape,
            "names": None,
        }
    for name, dtype in (
        ("timestamp", "float32"),
        ("frame_index", "int64"),
        ("episode_index", "int64"),
        ("index", "int64"),
    ):
        features[name] = {"dtype": dtype, "shape": [1], "names": None}
    rows = sum(len(columns["action"]) for columns in episodes.values())
    info: dict[str, Any] = {
        "codebase_version": "v3.0" if version == 3 else "v2.1",
        "robot_type": "toy",
        "fps": fps,
        "chunks_size": 1000,
        "total_episodes": len(episodes),
        "total_frames": rows,
        "total_tasks": len(TASKS),
        "features": features,
    }
    if version == 3:
        info["data_path"] = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
        info["video_path"] = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
    else:
        info["data_path"] = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
        info["video_path"] = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
    edit(info)
    meta = folder / "meta"
    meta.mkdir(parents=True, exist_ok=True)
    (meta / "info.json").write_text(json.dumps(info))
    tasks = [{"task_index": index, "task": text} for index, text in enumerate(TASKS)]
    if version == 2:
        listed = [
            {"episode_index": number, "tasks": [], "length": len(columns["action"])}
            for number, columns in episodes.items()
        ]
        for name, records in (("tasks", tasks), ("episodes", listed)):
            (meta / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        return
    pq.write_table(pa.table({"task_index": [0, 1], "__index_level_0__": list(TASKS)}), meta / "tasks.parquet")
    rows_listed: list[dict[str, Any]] = []
    for number, columns in episodes.items():
        place, length = places[number], len(columns["action"])
        record: dict[str, Any] = {
            "episode_index": number,
            "tasks": [TASKS[0]],
            "length": length,
            "data/chunk_index": 0,
            "data/file_index": place["data"],
            "dataset_from_index": place["low"],
            "dataset_to_index": place["low"] + length,
            "stats/action/mean": [0.0, 0.0],
        }
        for name, kind in cameras.items():
            if kind != "image":
                file, begin, end = place[name]
                record.update(
                    {
                        f"videos/{name}/chunk_index": 0,
                        f"videos/{name}/file_index": file,
                        f"videos/{name}/from_timestamp": begin,
                        f"videos/{name}/to_timestamp": end,
                    }
                )
        rows_listed.append(record)
    write_episodes(folder, rows_listed)


def write_episodes(folder: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """The table of episodes, layout v3."""
    file = folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(records)), file)


def read_episodes(folder: Path) -> list[dict[str, Any]]:
    return pq.read_table(folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet").to_pylist()


def _frames(kind: str, length: int, size: tuple[int, int], seed: int) -> np.ndarray:
    if kind == "depth":
        return np.random.default_rng(seed).integers(0, 4096, (length, *size)).astype(np.uint16)
    return moving_frames(length, *size, seed)


def _column(values: np.ndarray) -> pa.Array:
    if values.ndim == 1:
        return pa.array(values)
    flat: pa.Array = pa.array(values.reshape(-1))
    for width in values.shape[:0:-1]:
        flat = pa.FixedSizeListArray.from_arrays(flat, width)
    return flat


def _pictures(frames: np.ndarray) -> pa.Array:
    rows = []
    for number, frame in enumerate(frames):
        data = io.BytesIO()
        Image.fromarray(frame).save(data, "PNG")
        rows.append({"bytes": data.getvalue(), "path": f"frame-{number:06d}.png"})
    return pa.array(rows, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
