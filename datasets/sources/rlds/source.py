"""RLDS: episodes as TensorFlow Datasets stores them, read without TensorFlow.

A dataset is a folder with ``dataset_info.json``, ``features.json`` and TFRecord files (`formats.tfds`), a *builder's folder*.
Below a root of TensorFlow Datasets it is ``<name>/<version>`` or ``<name>/<config>/<version>``; names here are such paths, with
or without the version (the newest there is). `openx` has the datasets of Open X-Embodiment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ....errors import ObjectNotFoundError, UsageError
from ...fetch import Location, open_location
from ...ingest.job import ConvertOptions
from ..options import TEXT, SourceOption
from ..source import Source
from .folders import FEATURES, INFO, VERSION, builder_folder

if TYPE_CHECKING:
    from .job import RldsJob

HOME = "gs://tfds-data/datasets"
_PART = r"[\w][\w.\-+]*"
_NAME = re.compile(rf"{_PART}(?:/{_PART})*(?:@[\w+]+)?")
_SPLIT = "@"
OPTIONS = (
    SourceOption(
        "last_row",
        "what the last row of a terminated episode is: an observation alone, as RLDS says, or a step, as in most robot data; "
        "auto: a step where the first file has one with a reward or an action",
        choices=("auto", "observation", "step"),
        default="auto",
    ),
    SourceOption("split", "the split, or several joined by +; train, or the only one", metavar="SPLIT"),
    SourceOption(
        "leave_out", "features not to store, separated by commas, such as observation/depth,info", metavar="NAMES"
    ),
    SourceOption(
        "max_length",
        "bytes of a text, and elements of a sequence of varying length, that a row holds",
        int,
        512,
        least=1,
        most=1 << 16,
        metavar="N",
    ),
    TEXT,
)


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
    options = OPTIONS
    supports = frozenset({"parts", "codec", "layout"})
    open_ended = True

    def names(self) -> Sequence[str]:
        """Those of D4RL, RL Unplugged and the like that TensorFlow Datasets has; any other path may be asked for."""
        return [entry.name for entry in self.catalogue()]

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

    def find(self, name: str, location: Location, options: ConvertOptions) -> RldsJob:
        folder, _, split = name.partition(_SPLIT)
        return open_job(self.name, name, location, self.folders(folder), options, split or options.extra["split"])

    def recognises(self, path: Path) -> bool:
        if not path.is_dir():
            return False
        versions = [one for one in path.iterdir() if VERSION.fullmatch(one.name)]
        return any((one / INFO).is_file() and (one / FEATURES).is_file() for one in [path, *versions])

    def find_in_folder(self, location: Location, options: ConvertOptions) -> RldsJob:
        return open_job(self.name, None, location, [""], options, options.extra["split"])


def split_name(name: str, options: ConvertOptions) -> str:
    """A name with the split of the options, if it is one of its own. Raises UsageError where the name has another."""
    split, (folder, _, given) = options.extra.get("split"), name.partition(_SPLIT)
    if given and split not in (None, given):
        raise UsageError(f"{name} names a split already, which is not {split}", hint=f"leave one out: {folder}")
    return name if split in (None, "train", given) else f"{folder}{_SPLIT}{split}"


def open_job(
    source: str,
    name: str | None,
    location: Location,
    folders: Sequence[str],
    options: ConvertOptions,
    split: str | None,
) -> RldsJob:
    """The job for the first of ``folders`` that is a builder's folder, or has one for a version.

    Raises ObjectNotFoundError, CorruptSourceError, UsageError.
    """
    from .job import RldsJob

    for folder in folders:
        found = builder_folder(location, folder)
        if found is not None:
            return RldsJob(source, name, location, found, split, options)
    message = f"{location.url} holds no dataset of TensorFlow Datasets in {' or '.join(folders) or 'its top folder'}"
    raise ObjectNotFoundError(
        message, hint=f"looked for {INFO} and {FEATURES}, there and in folders of versions (1.0.0)"
    )
