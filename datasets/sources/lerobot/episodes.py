"""Episodes of a LeRobotDataset: rows from Parquet, frames from videos or from pictures in the rows.

Rows of an episode are those with its ``episode_index``, wherever they lie; frame n of its span in the video belongs to row n.
Row t is (observation, action), and with ``next.reward`` and ``next.done`` what the action led to. The observation after the
last row is not stored, so an episode of T rows has T - 1 steps and is truncated, unless ``next.done`` says that it ended: then
it has T steps, the last one terminated and without a successor. lerobot's evaluation repeats the last row with the true final
observation: there are T - 1 steps, and nothing is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from ....errors import CorruptSourceError
from ...formats.arrow import ROW_OF_ONE, ParquetRows, damage_reported, number_dtype, number_rows
from ...formats.lerobot import LeRobotFeature, ListedEpisode, Span
from ...formats.pictures import decode_picture
from ...formats.video import COLOUR, DEPTH, Video, resize
from ...ingest.block import LazyRows
from ...ingest.episode_files import Episode, EpisodeReader, RawInput, Rows
from ...ingest.spaces import stored_dtype, text_rows

#: Bytes of numbers, and pictures, that are read at a time.
_BYTES, _PICTURES = 1 << 20, 8
_LEAVE_OUT = "leave the episode out with --episodes, or fetch the file again"


@dataclass(frozen=True)
class LerobotEpisodes(EpisodeReader):
    """Reads the ``listed`` episodes of one unit, whose objects lie below ``prefix``.

    ``columns`` are features by the key of their leaf, ``names`` those of the columns that say how rows follow and end. Frames
    are resized to ``size``, (height, width). ``tasks`` are texts by number, stored in ``text_width`` bytes; 0: they are left
    out.
    """

    fps: float
    columns: Mapping[str, LeRobotFeature]
    names: frozenset[str]
    size: tuple[int, int] | None
    tasks: Mapping[int, str]
    text_width: int
    prefix: str = ""
    listed: tuple[ListedEpisode, ...] = ()

    native_libraries = ("pyarrow", "av")
    joined = True

    def group_episodes(self, raws: Sequence[RawInput]) -> Iterator[tuple[RawInput, Episode]]:
        """The episodes, in order, each with the file that holds its rows."""
        files = {raw.name.removeprefix(self.prefix): raw for raw in raws}
        pixels = {feature.name: DEPTH if feature.depth else COLOUR for feature in self.columns.values()}
        table: _DataFile | None = None
        videos: dict[str, Video] = {}
        try:
            for one in self.listed:
                raw = files[one.data]
                if table is None or table.name != raw.name:
                    table = _DataFile(raw)
                for key, span in one.videos.items():
                    if key not in videos or videos[key].name != span.path:
                        if key in videos:
                            videos[key].close()
                        videos[key] = Video(files[span.path].file, span.path, pixels[key])
                if one.length:
                    yield raw, self._episode(one, table, videos, raw)
                else:
                    table.rows_of(one.number, 0, f"{one.data}: episode {one.number}")
                    raw.counts["empty_episodes"] += 1
        finally:
            for video in videos.values():
                video.close()

    def _episode(self, one: ListedEpisode, table: _DataFile, videos: Mapping[str, Video], raw: RawInput) -> Episode:
        where = f"{one.data}: episode {one.number}"
        low, high = table.rows_of(one.number, one.length, where)
        flags = [name for name in self.names if name.startswith("next.")]
        single = {name: table.numbers(name, low, high, where).reshape(-1) for name in flags}
        numbers = {
            key: table.numbers(feature.name, low, high, where, feature.shape)
            for key, feature in self.columns.items()
            if not feature.is_camera
        }
        if "frame_index" in self.names:
            order = table.numbers("frame_index", low, high, where)
            if not np.array_equal(order, np.arange(len(order))):
                raise CorruptSourceError(f"{where}: its rows are not in the order of their frame_index")
        if "timestamp" in self.names:
            off = table.numbers("timestamp", low, high, where) - np.arange(high - low) / self.fps
            raw.counts["late_rows"] += int((np.abs(off) > 0.5 / self.fps).sum())
        terminated, truncated, is_blank = _end(single, numbers, raw.counts)
        steps = high - low if is_blank else high - low - 1
        states: dict[str, Rows] = {}
        for key, feature in self.columns.items():
            if feature.dtype == "video":
                span = one.videos[feature.name]
                states[key] = self._video(feature, videos[feature.name], span, high - low, where, raw)
            elif feature.dtype == "image":
                states[key] = self._pictures(feature, table, low, high, where)
            elif key.startswith("observation"):
                states[key] = numbers.pop(key)
        actions = {key: values[:steps] for key, values in numbers.items()}
        if self.text_width:
            indices = table.numbers("task_index", low, high, where)[:steps]
            actions["task"] = self._texts(indices, where)
        if "next.success" in single:
            actions["next/success"] = single["next.success"][:steps, None].astype(bool)
        rewards = single.get("next.reward", np.zeros(high - low, np.float32))[:steps]
        raw.counts["steps_without_reward"] += 0 if "next.reward" in single else steps
        return Episode(states, actions, rewards, terminated, truncated, is_blank)

    def _texts(self, indices: np.ndarray, where: str) -> np.ndarray:
        used, places = np.unique(indices, return_inverse=True)
        unknown = [index for index in used.tolist() if index not in self.tasks]
        if unknown:
            raise CorruptSourceError(f"{where}: task {unknown[0]} is not among the tasks")
        return text_rows([self.tasks[index] for index in used.tolist()], self.text_width, where)[places]

    # -- frames --------------------------------------------------------------------------------------------------------

    def _video(
        self, feature: LeRobotFeature, video: Video, span: Span, rows: int, where: str, raw: RawInput
    ) -> LazyRows:
        first = round(span.begin * self.fps)
        if span.end is not None and round(span.end * self.fps) - first != rows:
            stated = round(span.end * self.fps) - first
            message = f"{where} has {rows} rows, and its span in {span.path} has {stated} frames"
            raise CorruptSourceError(message, hint=_LEAVE_OUT)
        if first + rows > video.frames:
            message = f"{where} lists frames {first} to {first + rows - 1} of {span.path}, which has {video.frames}"
            raise CorruptSourceError(message, hint=_LEAVE_OUT)
        raw.counts["spare_frames"] += video.frames - rows if span.end is None else 0
        off = np.abs(video.times[first : first + rows] - span.begin - np.arange(rows) / self.fps)
        if rows and off.max() > 0.5 / self.fps:
            at = int(off.argmax())
            message = f"{where}: frame {first + at} of {span.path} is shown {off[at]:.3f} s beside the time of its row"
            raise CorruptSourceError(message, hint=_LEAVE_OUT)

        def blocks() -> Iterator[np.ndarray]:
            for block in video.read(first, first + rows):
                yield _metres(self._resized(block), feature) if feature.depth else self._resized(block)

        shape = (*(self.size or video.shape[:2]), video.shape[2])
        return LazyRows("float32" if feature.depth else "uint8", shape, blocks())

    def _pictures(self, feature: LeRobotFeature, table: _DataFile, low: int, high: int, where: str) -> LazyRows:
        place = f"{where}: {feature.name}"
        pictures = (decode_picture(data, place) for data in table.bytes_of(feature.name, low, high, place))
        first = next(pictures)
        shape = (*(self.size or first.shape[:2]), first.shape[2])

        def blocks() -> Iterator[np.ndarray]:
            pending = chain([first], pictures)
            while block := list(islice(pending, _PICTURES)):
                if any(picture.shape != first.shape or picture.dtype != first.dtype for picture in block):
                    message = f"{place}: its pictures are not all of one size and kind"
                    raise CorruptSourceError(message, hint="convert them, or leave the camera out with --cameras")
                yield self._resized(np.stack(block))

        return LazyRows(first.dtype.name, shape, blocks())

    def _resized(self, frames: np.ndarray) -> np.ndarray:
        return resize(frames, self.size) if self.size else frames


def _metres(codes: np.ndarray, feature: LeRobotFeature) -> np.ndarray:
    """Depth in m, float32, of codes of 12 bits: linear, or in equal steps of the logarithm of depth + shift."""
    assert feature.depth is not None
    low, high, shift, is_logarithmic = feature.depth
    if not is_logarithmic:
        return np.clip(codes * ((high - low) / 4095) + low, low, high).astype(np.float32)
    begin, end = np.log(low + shift), np.log(high + shift)
    return np.clip(np.exp(codes * ((end - begin) / 4095) + begin) - shift, low, high).astype(np.float32)


# -- how an episode ends -------------------------------------------------------------------------------------------------


def _end(
    flags: Mapping[str, np.ndarray], numbers: Mapping[str, np.ndarray], counts: Counter[str]
) -> tuple[bool, bool, bool]:
    """How the episode of these rows ends: terminated, truncated, is_blank, as in `Episode`. ``numbers`` are its columns by key.
    Counts irregularities."""
    done = flags.get("next.done", np.zeros(0)).astype(bool)
    inner = int(done[:-1].sum())
    terminated = truncated = is_blank = is_repeated = failed = False
    if len(done) and done[-1]:
        success = flags.get("next.success")
        by_clock = "next.truncated" in flags and bool(flags["next.truncated"][-1])
        over = bool(flags["next.terminated"][-1]) if "next.terminated" in flags else not by_clock
        # Without success it may have been the time limit, where the data do not say that the episode was terminated.
        failed = success is not None and not success[-1] and "next.terminated" not in flags
        same = [*flags.values(), *(values for key, values in numbers.items() if key.partition("/")[0] == "action")]
        is_repeated = bool(inner and done[-2]) and all(
            np.array_equal(values[-1], values[-2], equal_nan=True) for values in same
        )
        if is_repeated:  # the only ends of lerobot's evaluation are success and the time limit
            terminated, truncated, inner = over and not failed, by_clock or failed, inner - 1
        else:
            terminated = is_blank = over or not by_clock
            truncated = by_clock
    counts.update(blank_successors=int(is_blank), inner_dones=inner, repeated_rows=int(is_repeated))
    counts.update(done_without_success=int(is_blank and failed))
    return terminated, truncated, is_blank


# -- rows ----------------------------------------------------------------------------------------------------------------


class _DataFile:
    """A data file, and where the rows of its episodes lie."""

    def __init__(self, raw: RawInput) -> None:
        import pyarrow

        self.name, self._pa = raw.name, pyarrow
        with damage_reported(self.name):
            self._rows = ParquetRows(raw.file, raw.name)
            names = list(self._rows.schema.names)
        if len(set(names)) < len(names):
            raise CorruptSourceError(f"{raw.name} has columns of the same name")
        self._of = self.numbers("episode_index", 0, self._rows.rows, raw.name)

    def rows_of(self, episode: int, length: int, where: str) -> tuple[int, int]:
        """First row of an episode, and the row after its last. Raises CorruptSourceError if they differ from the listing."""
        found = np.flatnonzero(self._of == episode)
        if len(found) != length:
            raise CorruptSourceError(f"{where} has {len(found)} rows, and {length} are listed", hint=_LEAVE_OUT)
        if length and int(found[-1]) - int(found[0]) != length - 1:
            raise CorruptSourceError(f"{where}: rows of other episodes lie between its rows")
        return (int(found[0]), int(found[0]) + length) if length else (0, 0)

    def numbers(self, name: str, low: int, high: int, where: str, shape: tuple[int, ...] = (1,)) -> np.ndarray:
        """Rows of a column, ``[n, *shape]``; ``[n]`` for single numbers."""
        types = self._pa.types
        with damage_reported(self.name):
            place = self._rows.schema.get_field_index(name)
            if place < 0:
                raise CorruptSourceError(f"{where}: there is no column {name}")
            field = self._rows.schema.field(place)
            kind, is_list = field.type, ROW_OF_ONE in (field.metadata or {})
            while types.is_list(kind) or types.is_fixed_size_list(kind) or types.is_large_list(kind):
                kind, is_list = kind.value_type, True
            wanted, dtype = shape if is_list or shape != (1,) else (), number_dtype(kind)
            at_once = max(1, _BYTES // max(1, int(np.prod(wanted)) * dtype.itemsize))
            found = number_rows(self._rows.read((name,), low, high, at_once), kind, wanted, f"{where}: {name}")
            return found.astype(stored_dtype(dtype, name), copy=False)

    def bytes_of(self, name: str, low: int, high: int, where: str) -> Iterator[bytes]:
        """The pictures in rows of a column."""
        with damage_reported(self.name):
            if self._rows.schema.get_field_index(name) < 0:
                raise CorruptSourceError(f"{where}: there is no such column")
            for array in self._rows.read((name, "bytes"), low, high, _PICTURES):
                for value in array:
                    data = value.as_py()
                    if not isinstance(data, bytes):
                        raise CorruptSourceError(f"{where}: a picture is not in the file")
                    yield data
