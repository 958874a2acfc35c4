"""Which files of a user's folder are its data: not hidden ones, no caches, and those of one split."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ....errors import DiskError, UsageError
from ....storage.durable import is_full

#: Some of the files that are read: of HDF5, of text, of columns.
HDF5, TEXT = (".h5", ".hdf5"), (".csv", ".tsv", ".csv.gz", ".tsv.gz")
COLUMNS = (".parquet", ".arrow", ".feather", *TEXT)
SUFFIXES = (".npz", ".npy", *HDF5, *COLUMNS)
#: Files of a Zarr store, which is refused.
ZARR = (".zgroup", "zarr.json")
#: Those that are refused: reading them runs code.
PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".joblib")
#: Names of files, of folders and of groups that are one episode each.
EPISODE = re.compile(r"(?:^|[^a-z])(?:episode|ep|demo|demonstration|traj|trajectory|trial)[^a-z0-9]*\d", re.IGNORECASE)
#: Names of files that are a part of one table.
SHARD = re.compile(r"\d+-of-\d+|(?:^|[^a-z])(?:shard|part|chunk)[^a-z]", re.IGNORECASE)
#: Words in the names of folders and files that name a split; Hugging Face goes by them too.
_SPLITS = frozenset(["train", "training", "test", "testing", "val", "valid", "validation", "dev", "eval", "evaluation"])
#: What Hugging Face's `Dataset.map` and `filter` leave beside the data.
_CACHE = re.compile(r"cache-[0-9a-f]{8,}.*\.arrow")


def suffix_of(path: Path) -> str:
    """The suffix that says what a file is, in lower case: ``.csv.gz`` is one."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return "".join(suffixes[-2:]) if suffixes[-1:] == [".gz"] else "".join(suffixes[-1:])


def natural(name: str) -> list[Any]:
    """A key that sorts ``demo_2`` before ``demo_10``."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name)]


def visible(path: Path) -> list[Path]:
    """All files below a folder that are not hidden, nor in a hidden folder (``.ipynb_checkpoints``, ``__MACOSX``)."""
    return [
        one
        for one in sorted(path.rglob("*"))
        if not any(part.startswith((".", "__")) for part in one.relative_to(path).parts) and one.is_file()
    ]


def data_files(path: Path, split: str | None) -> list[Path]:
    """The files of a folder that hold arrays, those of one split, in the order of the numbers in their names.

    Raises UsageError where they are of several splits, or of others than the one asked for.
    """
    splits: Collection[str] = _SPLITS
    if (path / "dataset_dict.json").is_file():  # `DatasetDict.save_to_disk` of Hugging Face's datasets
        splits = {str(name).lower() for name in json.loads((path / "dataset_dict.json").read_bytes())["splits"]}
    found: dict[str, list[Path]] = {}
    for one in sorted(visible(path), key=lambda one: natural(one.as_posix())):
        if suffix_of(one) in SUFFIXES and not _CACHE.fullmatch(one.name):
            found.setdefault(_split_of(one.relative_to(path), splits), []).append(one)
    return found.get(_choose(path.as_posix(), found, split), [])


def refuse_split(where: str, split: str | None) -> None:
    """Raise UsageError where a file is asked for a split."""
    _choose(where, (), split)


def _choose(where: str, splits: Collection[str], split: str | None) -> str:
    """The split to read: the one asked for, or the only one."""
    named = ", ".join(sorted(filter(None, splits)))
    if split is not None and (not split or split not in splits):
        hint = f"it has {named}" if named else "leave out --split: no folder or file is named after one"
        raise UsageError(f"{where} has no split {split}", hint=hint)
    if split is None and named and len(splits) > 1:
        also = ", and data of none of them" if "" in splits else ""
        raise UsageError(f"{where} holds the splits {named}{also}", hint=f"name the one to read with --split: {named}")
    return split or "".join(splits)


def _split_of(path: Path, names: Collection[str]) -> str:
    """The split of a file, by the outermost folder that has its name or by a word of its own name; "" is none."""
    for folder in path.parts[:-1]:
        if folder.lower() in names:
            return folder.lower()
    if suffix_of(path) == ".npy":  # the names are those of arrays
        return ""
    return next((word for word in re.split(r"[^a-z]+", path.name.lower().partition(".")[0]) if word in names), "")


def refuse_full(error: BaseException, path: Path, scratch: Path) -> None:
    """Raise DiskError where the disk is full."""
    if isinstance(error, OSError) and is_full(error):
        message = f"the disk is full: {path.name} does not fit into {scratch} when it is unpacked"
        raise DiskError(message, hint="make room, or choose another root") from error
