"""V-D4RL: DeepMind Control from pixels, as npz episodes of 64 x 64 pixels and HDF5 shards of 84 x 84.

Lu, Ball, Rudner, Parker-Holder, Osborne, Teh, "Challenges and Opportunities in Offline Reinforcement Learning from Visual
Observations", TMLR 2023 (https://arxiv.org/abs/2206.04779).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ....errors import CorruptSourceError
from ...fetch import Location, RemoteObject
from ...fetch.location import join_path
from ...ingest.reader import Reader
from ...ingest.records import ConvertOptions
from ..catalogue_entry import ListedDataset
from ..source import FoundFile, Source, files_below, files_in, first_found, visible_files

ENVIRONMENTS = ("walker_walk", "cheetah_run", "humanoid_walk")
LEVELS = ("random", "medium_replay", "medium", "medium_expert", "expert")
SIZES = ("64px", "84px")
_NAME = re.compile(rf"({'|'.join(ENVIRONMENTS)})-({'|'.join(LEVELS)})(?:-({'|'.join(SIZES)}))?")
#: The provider's own path of a dataset, as TorchRL names it.
_PATH = re.compile(r"(main|distracting|multitask)(/[\w-][\w.-]*){1,6}/(64px|84px)")
_TOP = "vd4rl"
_SUFFIXES = (".npz", ".hdf5")
#: How DreamerV2 names the file of an episode: time, number, rows.
_EPISODE_FILE = re.compile(r"\d{8}T\d{6}-\w+-\d+\.npz")


def folder_of(name: str) -> str:
    """The folder of a dataset at the provider, below ``vd4rl``: ``main/walker_walk/random/64px``."""
    match = _NAME.fullmatch(name)
    return "/".join(("main", match[1], match[2], match[3] or SIZES[0])) if match else name


def short_name(name: str) -> str:
    """The name of a dataset that is given by its folder at the provider, if it has one."""
    match = re.fullmatch(r"main/([^/]+)/([^/]+)/([^/]+)", name)
    short = "-".join(match.groups()) if match else name
    return short if _NAME.fullmatch(short) else name


class VD4RLSource(Source):
    """Names are ``<env>-<level>``, with ``-64px`` (the default) or ``-84px``; or a folder of the provider (``distracting/...``,
    ``multitask/...``, ``main/walker_walk/random/64px``)."""

    name = "vd4rl"
    home = "hf://conglu/vd4rl"
    supports = frozenset({"parts", "codec", "layout"})
    open_ended = True

    def knows(self, name: str) -> bool:
        return _NAME.fullmatch(name) is not None or _PATH.fullmatch(name) is not None

    def list_remote(self, location: Location, on_progress: Callable[[int, int], None]) -> Iterator[ListedDataset]:
        """Every folder that holds files, with their bytes; those of ``main`` by their short names."""
        held: dict[str, list[RemoteObject]] = {}
        for path, item in files_below(location, "", *_SUFFIXES):
            held.setdefault(path.rpartition("/")[0].removeprefix(f"{_TOP}/"), []).append(item)
        for folder, files in held.items():
            if self.knows(folder):
                episodes = len(files) if folder.endswith(SIZES[0]) else None
                yield ListedDataset(short_name(folder), episodes, None, sum(item.size or 0 for item in files))

    def find(self, name: str, location: Location, options: ConvertOptions) -> Reader:
        """The files in the dataset's folder: as the provider lays it out, or from ``main`` on. Raises FetchErrors."""
        folder, missing = folder_of(name), f"{location.url} holds no files of {name}"
        paths, hint = (f"{_TOP}/{folder}", folder), "looked for .npz and .hdf5 files in {paths}"
        folder, items = first_found(paths, lambda path: of_one_kind(location.list(path)), missing, hint)
        return _reader(name, location, [(join_path(folder, item.name), item) for item in items], options)

    def recognises(self, path: Path) -> bool:
        from ...formats.npy import NpzArchive
        from ...ingest.raw_files import hdf5_names

        file = next(iter(visible_files(path, *_SUFFIXES)), None)
        if file is None:
            return False
        if file.suffix == ".hdf5":
            arrays = hdf5_names(file)
            frames = arrays.get("observation", "").split()  # dtype and shape
            return frames[:1] == ["uint8"] and len(frames) == 5 and {"action", "reward", "step_type"} <= arrays.keys()
        named = _EPISODE_FILE.match(file.name) is not None  # a user's own file may have these keys
        with suppress(CorruptSourceError, OSError), NpzArchive(file, file.name) as archive:
            if {"image", "action", "reward"} <= set(archive.keys) and (named or "is_first" in archive.keys):
                dtype, shape = archive.head("image")
                return dtype == "uint8" and len(shape) == 4
        return False

    def find_in_folder(self, location: Location, options: ConvertOptions) -> Reader:
        """A folder of npz files, or of shards; or one such file."""
        items = of_one_kind([item for _, item in files_in(location, *_SUFFIXES)])
        return _reader(None, location, [(item.name, item) for item in items], options)


def of_one_kind(items: Sequence[RemoteObject]) -> list[RemoteObject]:
    """The npz files of a folder, else its HDF5 files."""
    kinds = ([item for item in items if item.name.endswith(suffix)] for suffix in _SUFFIXES)
    return next(filter(None, kinds), [])


def _reader(name: str | None, location: Location, files: Sequence[FoundFile], options: ConvertOptions) -> Reader:
    from ...ingest.episode_files import EpisodeReader, group_files
    from .reader import Hdf5Shard, NpzEpisode, VD4RLReader

    reader: EpisodeReader = NpzEpisode() if files[0][0].endswith(".npz") else Hdf5Shard()
    return VD4RLReader(name, location, group_files(location, files), reader, options)
