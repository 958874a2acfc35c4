"""One LeRobotDataset, from its files to a dataset: which episodes, which files they need, and what they become."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import prod
from typing import Any

from ....errors import CorruptSourceError, ObjectNotFoundError, SchemaError, UsageError
from ....storage.leaf import RESERVED_EVERYWHERE, check_key
from ...fetch import Location, RemoteObject
from ...fetch.location import join_path
from ...formats.arrow import require_pyarrow
from ...formats.lerobot import INFO, KEYS, OWN, LeRobotFeature, LeRobotInfo, ListedEpisode, episodes_from, tasks_from
from ...formats.limits import check_rows
from ...formats.video import require_av
from ...ingest.episode_files import EpisodeFiles, FileGroup
from ...ingest.records import ConvertOptions, Expectation, RawObject
from ...ingest.request import format_numbers, parse_numbers
from ...ingest.spaces import TakenKeys, stored_dtype
from ...workers import open_local
from ...workers.task import call, memory_for, usual_procs
from .episodes import LerobotEpisodes

#: Bytes of ``info.json``, and of the other metadata; those of 100,000 episodes with all statistics have half of that.
_LARGEST_INFO, _LARGEST_METADATA = 16 << 20, 1 << 30
#: A unit ends with a video file if it has at least this many bytes.
LEAST_UNIT = 16 << 20
#: Tasks that the manifest lists, and bytes that the text of each may have.
_MOST_TASKS, _LONGEST_TASK = 4096, 4096
#: Columns that say how rows follow and end. They are read, but do not become leaves of that name.
_RULES = ("next.reward", "next.done", "next.success", "next.terminated", "next.truncated", "frame_index", "index")
#: The share of their size that frames of videos take after lossless compression: from 0.15 to 0.9.
_RATIO = 0.4


class LerobotReader(EpisodeFiles):
    """The chosen episodes, in order of their number; a unit is about a video file of the first camera."""

    source, converter = "lerobot", "lerobot 1"
    citation = "Remi Cadene et al. LeRobot: State-of-the-art Machine Learning for Real-World Robotics in Pytorch. 2024."
    sentences: Mapping[str, str] = {
        "steps_without_reward": "The data state no rewards: those of {n:step} are 0.",
        "done_without_success": (
            "{n:episode is|episodes are} done without success and taken as terminated. It may have been a time limit: "
            "lerobot's next.done is set for both."
        ),
        "repeated_rows": (
            "The last row of {n:episode} repeats the one before with the final observation: it is not a step."
        ),
        "inner_dones": "next.done is set in {n:row} before the last of an episode, which goes on there.",
        "late_rows": (
            "{n:row has|rows have} a timestamp more than half a frame from the place in order: frames go by place."
        ),
        "spare_frames": "{n:frame} behind the last row of an episode left out.",
    }

    def __init__(self, name: str | None, folder: str, location: Location, options: ConvertOptions) -> None:
        self._inside, self._prefix, self.location = folder, f"{name}/" if name else "", location.pinned()
        self._listings: dict[str, dict[str, RemoteObject]] = {}
        extra, raw = options.extra, self._raw(INFO)
        self.info = LeRobotInfo.parse(self.read_description(raw, _LARGEST_INFO), raw.item.url)
        self.size = parse_size(extra["size"])
        cameras = _chosen_cameras(self.info, extra["cameras"])
        self.leaves, self.left_out = _leaves(self.info, cameras, self._stated_keys())
        videos = [feature.name for feature in self.leaves.values() if feature.dtype == "video"]
        if videos:
            require_av(f"{self.info.where}: {videos[0]}")
        listed, self.tasks = self._listed(videos)
        self.listed = _chosen_episodes(self.info, listed, extra["episodes"])
        names = frozenset(feature.name for feature in self.info.features)
        texts = self.tasks.values() if "task_index" in names and extra["text"] == "bytes" else ()
        self._text_width = width = max((len(text.encode()) for text in texts), default=0)
        if width > _LONGEST_TASK:
            raise UsageError(f"{self.info.where}: a task has {width} bytes", hint="leave texts out: --text omit")
        rules = names.intersection({*_RULES, "timestamp"})
        reader = LerobotEpisodes(self.info.fps, self.leaves, rules, self.size, self.tasks, width, self._prefix)
        units = [self._unit(number, group, reader) for number, group in enumerate(self._groups())]
        steps, episodes = sum(one.length for one in self.listed), len(self.listed)
        super().__init__(name, self.location, units, reader, options, steps=steps, episodes=episodes)

    # -- files ---------------------------------------------------------------------------------------------------------

    def _find(self, path: str) -> RemoteObject:
        """A file of the dataset; each folder is listed once. Raises ObjectNotFoundError."""
        folder, _, name = join_path(self._inside, path).rpartition("/")
        if folder not in self._listings:
            try:
                self._listings[folder] = {item.name: item for item in self.location.list(folder)}
            except ObjectNotFoundError:
                if path == INFO:
                    raise
                self._listings[folder] = {}
        if name not in self._listings[folder]:
            message = f"{self.location.url} has no {join_path(folder, name)}, which its metadata list"
            raise ObjectNotFoundError(message, hint="use another mirror (--mirror), or leave its --episodes out")
        return self._listings[folder][name]

    def _stated_keys(self) -> dict[str, str]:
        """The keys by column that `rbdata export` wrote; none of other datasets, or where they are no keys."""
        try:
            stated = json.loads(self.read_description(self._raw(KEYS), _LARGEST_INFO))
            for key in stated.values():
                check_key(key)
            return {str(column): key for column, key in stated.items()}
        except (ObjectNotFoundError, ValueError, AttributeError, TypeError, SchemaError):
            return {}

    def _raw(self, path: str) -> RawObject:
        return RawObject(self._prefix + path, self._find(path), self.location)

    def _listed(self, videos: Sequence[str]) -> tuple[list[ListedEpisode], dict[int, str]]:
        """The episodes, with where they are in these cameras' videos, and the tasks."""
        require_pyarrow(f"{self.info.where}: LeRobotDatasets are Parquet, and pyarrow is not installed")
        paths = ["meta/tasks.jsonl", "meta/episodes.jsonl"]
        if self.info.version == 3:
            top = join_path(self._inside, "meta/episodes")
            chunks = {chunk: self.location.list(f"{top}/{chunk}") for chunk in self.location.folders(top)}
            every = [f"meta/episodes/{chunk}/{item.name}" for chunk, items in chunks.items() for item in items]
            paths = ["meta/tasks.parquet", *(path for path in every if path.endswith(".parquet"))]
        files, left = dict[str, bytes](), _LARGEST_METADATA
        for raw in map(self._raw, paths):
            files[raw.item.url] = self.read_description(raw, left)
            left -= len(files[raw.item.url])
        procs, memory = usual_procs(1), memory_for(_LARGEST_METADATA - left)
        with open_local(procs, [__name__, "pyarrow"], memory=memory) as engine:
            found: tuple[list[ListedEpisode], dict[int, str]]
            found = call(engine, f"{self.location.url}: meta", _parse, files, self.info, videos)
            return found

    def _groups(self) -> list[list[ListedEpisode]]:
        """The episodes of each unit."""
        rows: Counter[str] = Counter()
        for one in self.listed:
            rows[one.data] += one.length
        for path, count in rows.items():
            check_rows(count, self._find(path).size or 1 << 62, path)
        groups, held, last = list[list[ListedEpisode]](), set[str](), ""
        for one in self.listed:
            first = next((span.path for span in one.videos.values()), one.data)
            if not groups or (first != last and sum(self._find(path).size or 0 for path in held) >= LEAST_UNIT):
                groups.append([])
                held = set()
            groups[-1].append(one)
            held.update(_paths([one]))
            last = first
        return groups

    def _unit(self, number: int, group: Sequence[ListedEpisode], reader: LerobotEpisodes) -> FileGroup:
        name = f"episodes {format_numbers([one.number for one in group])}"
        return FileGroup(name, number, tuple(map(self._raw, _paths(group))), replace(reader, listed=tuple(group)))

    # -- what is known before, and what the manifest says --------------------------------------------------------------

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "metadata": [record for _, record in self.described]}

    def expect(self) -> Expectation:
        known, frame, row = super().expect(), 0, self._text_width
        for feature in self.leaves.values():
            if feature.is_camera:
                shape = (*self.size, feature.shape[-1]) if self.size else feature.shape
                frame += prod(shape) * (4 if feature.depth else 1)
            else:
                row += 2 * 4 * prod(feature.shape)
        frames, rows = (known.steps + known.episodes) * frame, known.steps * row
        is_plain = self.options.codec == "raw" or self.options.layout == "ted"
        ratio = 2.0 if self.options.layout == "ted" else 1.0 if is_plain else _RATIO
        return replace(known, disk_bytes=int(frames * ratio) + rows)

    def describe(self) -> dict[str, Any]:
        robot, tasks = self.info.record.get("robot_type"), sorted(self.tasks.items())[:_MOST_TASKS]
        return {
            **super().describe(),
            "layout": self.info.record["codebase_version"],
            "robot": robot if isinstance(robot, str) else None,
            "fps": self.info.fps,
            "tasks": {str(index): text for index, text in tasks},
            "keys": {key: feature.name for key, feature in self.leaves.items()},
            "left_out": self.left_out,
        }


def _paths(group: Sequence[ListedEpisode]) -> list[str]:
    """The files of episodes, each once."""
    every = ((one.data, *(span.path for span in one.videos.values())) for one in group)
    return list(dict.fromkeys(chain.from_iterable(every)))


def _parse(
    files: Mapping[str, bytes], info: LeRobotInfo, videos: Sequence[str]
) -> tuple[list[ListedEpisode], dict[int, str]]:
    """In a worker: the first file is that of the tasks."""
    (tasks, data), *episodes = files.items()
    return episodes_from(info, videos, dict(episodes)), tasks_from({tasks: data})


# -- what is asked for ---------------------------------------------------------------------------------------------------


def parse_size(text: str | None) -> tuple[int, int] | None:
    """``"128x96"``, width and height, as (height, width). Raises UsageError."""
    if text is None:
        return None
    width, _, height = text.partition("x")
    if not all(side.isdecimal() and 0 < int(side) <= 8192 for side in (width, height)):
        raise UsageError(f"size is {text!r}", hint="width and height in pixels, such as 128x128")
    return int(height), int(width)


def _chosen_cameras(info: LeRobotInfo, text: str | None) -> set[str]:
    """The cameras that are named, by the whole name of their column or its last part; all without a text."""
    cameras = [feature.name for feature in info.features if feature.is_camera]
    if text is None:
        return set(cameras)
    wanted = {word.strip() for word in text.split(",")} - {"none", ""}
    found = {name for name in cameras if {name, name.rpartition(".")[2]} & wanted}
    unknown = wanted - found - {name.rpartition(".")[2] for name in found}
    if unknown:
        there = ", ".join(name.rpartition(".")[2] for name in cameras) or "none"
        raise UsageError(f"{info.where} has no camera {', '.join(sorted(unknown))}", hint=f"cameras: {there}")
    return found


def _chosen_episodes(info: LeRobotInfo, listed: Sequence[ListedEpisode], text: str | None) -> list[ListedEpisode]:
    there = [one.number for one in listed]
    if text is None:
        for what, found in (("episodes", len(listed)), ("frames", sum(one.length for one in listed))):
            stated = info.record.get(f"total_{what}", found)
            if stated != found:
                message = f"{info.where} states {str(stated)[:20]} {what}, and the metadata list {found}"
                hint = f"to take what is listed: --episodes {format_numbers(there)[:200]}"
                raise CorruptSourceError(message, hint=hint)
        return list(listed)
    wanted = set(parse_numbers(text, "--episodes", longest=1 << 20) or ())
    missing = sorted(wanted.difference(there))
    if missing:
        message = f"{info.where} has no episode {format_numbers(missing)[:200]}"
        raise UsageError(message, hint=f"episodes: {format_numbers(there)[:200]}")
    return [one for one in listed if one.number in wanted]


def _leaves(
    info: LeRobotInfo, cameras: set[str], stated: Mapping[str, str]
) -> tuple[dict[str, LeRobotFeature], dict[str, str]]:
    """The features that become leaves, by key, and why others do not. ``stated``: keys by feature, of an export."""
    features = [feature for feature in info.features if feature.name not in _RULES]
    keys = _keys([feature.name for feature in features], stated)
    leaves, left_out = dict[str, LeRobotFeature](), dict[str, str]()
    for feature in features:
        why = ""
        if stated and feature.name in OWN and feature.name not in stated:
            why = "the export added it"
        elif feature.is_camera:
            why = "" if feature.name in cameras else "its camera was not asked for"
        else:
            try:
                stored_dtype(feature.dtype, feature.name)
            except (TypeError, UsageError):
                why = f"its dtype is {feature.dtype[:40]}"
        if why:
            left_out[feature.name] = why
        else:
            leaves[keys[feature.name]] = feature
    return leaves, left_out


def _keys(names: Sequence[str], stated: Mapping[str, str]) -> dict[str, str]:
    """The key of the leaf of each feature. Keys of the fewest levels are placed first: a leaf has no leaves below it, so
    ``action.original`` beside ``action`` is ``info/action_original``, whatever the order of the features. Among keys of as many
    levels the order decides: exports have ``info.timestamp`` of the data before lerobot's ``timestamp``."""
    keys, taken = dict[str, str](), TakenKeys(["task", "next/success"])
    for name in names:
        if name in stated and stated[name] not in taken:
            keys[name] = stated[name]
            taken.add(stated[name])
    names = [name for name in names if name not in keys]
    is_tree = any(name.startswith("observation.") for name in names)
    placed = {name: "observation/observation" if is_tree and name == "observation" else _key(name) for name in names}
    for name, wanted in sorted(placed.items(), key=lambda item: item[1].count("/")):
        key = taken.free(wanted)
        if key.partition("/")[0] != wanted.partition("/")[0]:
            key = taken.free(f"info/{key}")
        taken.add(key)
        keys[name] = key
    return keys


def _key(name: str) -> str:
    """The key of a leaf: levels at the dots; below ``info`` unless it is an observation, an action or the task's number."""
    parts = [re.sub("[^A-Za-z0-9]", "_", part) or "_" for part in name.split(".")]
    parts = [part + "_" if part in RESERVED_EVERYWHERE else part for part in parts]
    is_placed = parts[0] in ("observation", "action", "task_index") or (parts[0] == "info" and len(parts) > 1)
    return "/".join(parts if is_placed else ["info", *parts])
