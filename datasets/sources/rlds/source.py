"""RLDS: episodes as TensorFlow Datasets stores them, read without TensorFlow.

A dataset is a folder with ``dataset_info.json``, ``features.json`` and TFRecord files (`formats.tfds`), a *builder's folder*.
Below a root of TensorFlow Datasets it is ``<name>/<version>`` or ``<name>/<config>/<version>``; names here are such paths, with
or without the version (the newest there is).

Open X-Embodiment is robot data of many laboratories in this layout: Open X-Embodiment Collaboration, "Open X-Embodiment:
Robotic Learning Datasets and RT-X Models", ICRA 2024 (https://robotics-transformer-x.github.io). Its names and their places are
those that TensorFlow Datasets 4.9.10 lists (tensorflow_datasets/robotics/rtx/rtx.py), and a few that lie beside them in the
bucket.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ....errors import ObjectNotFoundError, UsageError
from ...fetch import Location, open_location
from ...fetch.location import join_path
from ...ingest.reader import Reader
from ...ingest.records import ConvertOptions
from ..options import declared
from ..source import Source

HOME = "gs://tfds-data/datasets"
INFO, FEATURES = "dataset_info.json", "features.json"
VERSION = re.compile(r"\d+\.\d+\.\d+")
_PART = r"[\w][\w.\-+]*"
_NAME = re.compile(rf"{_PART}(?:/{_PART})*(?:@[\w+]+)?")
_SPLIT = "@"


def local_root() -> Path:
    """Where TensorFlow Datasets keeps its datasets on this machine; it need not be there."""
    return Path(os.environ.get("TFDS_DATA_DIR") or Path.home() / "tensorflow_datasets")


class RldsSource(Source):
    """Names are paths of builders' folders, ``d4rl_mujoco_hopper/v2-medium``, with ``@SPLIT`` where it is not the default one.

    Without a mirror, a dataset is taken from the root of TensorFlow Datasets on this machine where it is there, else from
    the bucket that TensorFlow Datasets itself reads prepared datasets from.
    """

    name = "rlds"
    home = HOME
    options = declared("rlds")
    supports = frozenset({"parts", "codec", "layout"})
    open_ended = True
    #: Where a dataset states none.
    licence: str | None = None
    citation: str | None = None

    def knows(self, name: str) -> bool:
        return _NAME.fullmatch(name) is not None and ".." not in name

    def full_name(self, name: str, options: ConvertOptions) -> str:
        return split_name(name, options)

    def split_address(self, text: str) -> tuple[str, str] | None:
        """``gs://bucket/folder/name/1.0.0`` and the like: what ends with a version."""
        place, _, version = text.rstrip("/").rpartition("/")
        mirror, _, name = place.rpartition("/")
        if VERSION.fullmatch(version) is None or not mirror.partition("://")[2]:
            return None
        return f"{name}/{version}", mirror

    def places(self, name: str, options: ConvertOptions) -> Sequence[str]:
        folder = name.partition(_SPLIT)[0]
        here = self.knows(name) and (local_root() / folder).is_dir()
        return [open_location(local_root()).url if here else self.home]

    def folders(self, name: str) -> Sequence[str]:
        """Where a dataset may be at a place, in the order in which to look."""
        return [name]

    def find(self, name: str, location: Location, options: ConvertOptions) -> Reader:
        folder, _, split = name.partition(_SPLIT)
        return self._reader(name, location, self.folders(folder), split or options.extra["split"], options)

    def recognises(self, path: Path) -> bool:
        if not path.is_dir():
            return False
        versions = [one for one in path.iterdir() if VERSION.fullmatch(one.name)]
        return any((one / INFO).is_file() and (one / FEATURES).is_file() for one in [path, *versions])

    def find_in_folder(self, location: Location, options: ConvertOptions) -> Reader:
        return self._reader(None, location, [""], options.extra["split"], options)

    def _reader(
        self, name: str | None, location: Location, folders: Sequence[str], split: str | None, options: ConvertOptions
    ) -> Reader:
        """The reader of the first of ``folders`` that is a builder's folder, or has one for a version.

        Raises ObjectNotFoundError, CorruptSourceError, UsageError.
        """
        from .reader import RldsReader

        found = next((one for one in (builder_folder(location, folder) for folder in folders) if one is not None), None)
        if found is None:
            where = " or ".join(folders) or "its top folder"
            message = f"{location.url} holds no dataset of TensorFlow Datasets in {where}"
            hint = f"looked for {INFO} and {FEATURES}, there and in folders of versions (1.0.0)"
            raise ObjectNotFoundError(message, hint=hint)
        described = [location.stat(join_path(found, file)) for file in (INFO, FEATURES)]
        reader = RldsReader(self.name, name, location, found, described, split, options)
        reader.licence, reader.citation = reader.licence or self.licence, reader.citation or self.citation
        return reader


def split_name(name: str, options: ConvertOptions) -> str:
    """A name with the split of the options, unless that is the default. Raises UsageError if the name has another split."""
    split, (folder, _, given) = options.extra.get("split"), name.partition(_SPLIT)
    if given and split not in (None, given):
        raise UsageError(f"{name} names a split already, which is not {split}", hint=f"leave one out: {folder}")
    return name if split in (None, "train", given) else f"{folder}{_SPLIT}{split}"


def builder_folder(location: Location, folder: str) -> str | None:
    """The folder itself, or its newest version; None if it does not exist. Raises ObjectNotFoundError, UsageError."""
    with suppress(ObjectNotFoundError):
        location.stat(join_path(folder, INFO))
        return folder
    inside: Sequence[str] = ()
    with suppress(ObjectNotFoundError):
        inside = location.folders(folder)
    versions = [one for one in inside if VERSION.fullmatch(one)]
    if versions:
        return join_path(folder, max(versions, key=lambda version: tuple(map(int, version.split(".")))))
    if folder and inside:
        message = f"{location.url}/{folder} has neither {INFO} nor folders of versions"
        hint = f"it has {', '.join(inside[:8])}: name one of them, {folder}/{inside[0]}"
        raise ObjectNotFoundError(message, hint=hint)
    return None


# -- Open X-Embodiment --------------------------------------------------------------------------------------------------

OPENX_HOME = "gs://gresearch/robotics"
_AT_0_0_1 = (
    *("conq_hose_manipulation", "dobbe", "fmb", "io_ai_tech", "mimic_play", "aloha_mobile", "robo_set", "tidybot"),
    *("vima_converted_externally_to_rlds", "bridge_data_msr", "plex_robosuite", "robo_ai_u_r5e", "language_table"),
)
#: Where names lie that are not ``<name>/0.1.0``.
_ELSEWHERE = {
    "bridge": "bridge_data_v2/0.0.1",
    "spoc_robot": "spoc/0.0.1",
    **{name: f"{name}/0.0.1" for name in _AT_0_0_1},
    **{name: f"{name}/1.0.0" for name in ("droid", "droid_100", "robo_net")},
}


class OpenxSource(RldsSource):
    """Names are those of TensorFlow Datasets (``fractal20220817_data``), with ``@SPLIT`` where it is not the default one."""

    name = "openx"
    home = OPENX_HOME
    open_ended = False
    catalogue_name = "openx.json"
    licence = "CC-BY-4.0"
    citation = (
        "Open X-Embodiment Collaboration. Open X-Embodiment: Robotic Learning Datasets and RT-X Models. ICRA 2024."
    )

    def knows(self, name: str) -> bool:
        return name.partition("@")[0] in self.names()

    def split_address(self, text: str) -> tuple[str, str] | None:
        return None

    def places(self, name: str, options: ConvertOptions) -> Sequence[str]:
        return [self.home]

    def folders(self, name: str) -> Sequence[str]:
        """Where the bucket has it; a root of TensorFlow Datasets may have another version, and has its own name."""
        return list(dict.fromkeys([_ELSEWHERE.get(name, f"{name}/0.1.0"), name]))

    def recognises(self, path: Path) -> bool:
        return False  # `rlds` does
