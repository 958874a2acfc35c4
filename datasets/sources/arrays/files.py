"""Which files of a user's folder are its data: not hidden ones, no caches, and those of one split."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ....errors import CorruptSourceError, DiskError, UsageError
from ....storage.durable import is_full

#: The files that are read (`tables`).
SUFFIXES = (".npz", ".npy", ".h5", ".hdf5", ".parquet", ".arrow", ".feather", ".csv", ".tsv", ".csv.gz", ".tsv.gz")
#: Some of them: of HDF5, of text, of columns.
HDF5, TEXT = (".h5", ".hdf5"), (".csv", ".tsv", ".csv.gz", ".tsv.gz")
COLUMNS = (".parquet", ".arrow", ".feather", *TEXT)
#: A name with a number at its end.
NUMBERED = re.compile(r"(.*?)[._]?\[?(\d+)\]?")
#: Files of a Zarr store, which is refused.
ZARR = (".zgroup", "zarr.json")
#: Those that are refused: reading them runs code.
PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".joblib")
#: Words in the names of folders and files, or of the groups of an HDF5 file, that name a split; Hugging Face goes by them too.
SPLITS = frozenset(["train", "training", "test", "testing", "val", "valid", "validation", "dev", "eval", "evaluation"])
#: What Hugging Face's `Dataset.map` and `filter` leave beside the data.
_CACHE = re.compile(r"cache-[0-9a-f]{8,}.*\.arrow")
_STATE, _DICT = "state.json", "dataset_dict.json"


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


def data_files(path: Path) -> dict[str, list[Path]]:
    """The files of a folder that hold arrays, by split ("" is none), in the order of the numbers in their names.

    Where ``Dataset.save_to_disk`` wrote a folder, its ``state.json`` names its files. Raises UsageError where that says that
    only some of their rows count, CorruptSourceError where one of them is missing.
    """
    files = [one for one in visible(path) if suffix_of(one) in SUFFIXES and not _CACHE.fullmatch(one.name)]
    stated = {folder: _stated(folder) for folder in {one.parent for one in files} if (folder / _STATE).is_file()}
    files = [one for one in files if one.name in stated.get(one.parent, {one.name})]
    named = (
        {str(name).lower() for name in _read(path / _DICT).get("splits", ())} if (path / _DICT).is_file() else SPLITS
    )
    found: dict[str, list[Path]] = {}
    for one in sorted(files, key=lambda one: natural(one.as_posix())):
        found.setdefault(_split_of(one.relative_to(path), named), []).append(one)
    return found


def choose(where: str, splits: Collection[str], split: str | None) -> str:
    """The split to read: the one asked for, or the only one. Raises UsageError where there are several, or not this one."""
    named = sorted(filter(None, splits))
    if split is not None and split not in named:
        hint = (
            f"it has {', '.join(named)}" if named else "leave out --split: no folder, file or group is named after one"
        )
        raise UsageError(f"{where} has no split {split}", hint=hint)
    if split is None and named and len(splits) > 1:
        also = ", and data of none of them" if "" in splits else ""
        message = f"{where} holds the splits {', '.join(named)}{also}"
        raise UsageError(message, hint=f"name the one to read with --split: {', '.join(named)}")
    return split or "".join(splits)


def _split_of(path: Path, names: Collection[str]) -> str:
    """The split of a file, by the outermost folder that has its name or by a word of its own name."""
    for folder in path.parts[:-1]:
        if folder.lower() in names:
            return folder.lower()
    if suffix_of(path) == ".npy":  # the names are those of arrays
        return ""
    return next((word for word in re.split(r"[^a-z]+", path.name.lower().partition(".")[0]) if word in names), "")


def _stated(folder: Path) -> set[str]:
    state = _read(folder / _STATE)
    if state.get("_indices_data_files") or state.get("_indices_files"):
        message = f"{folder}: its {_STATE} says that only some rows of its files count"
        raise UsageError(message, hint="write it again: dataset.flatten_indices().save_to_disk(...)")
    try:
        names = {str(one["filename"]) for one in state["_data_files"]}
    except (KeyError, TypeError):
        return {one.name for one in folder.iterdir()}  # of another program
    missing = sorted(name for name in names if not (folder / name).is_file())
    if missing:
        raise CorruptSourceError(f"{folder}: {missing[0]} is missing, which its {_STATE} names")
    return names


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def refuse_full(error: BaseException, path: Path, scratch: Path) -> None:
    """Raise DiskError where the disk is full."""
    if isinstance(error, OSError) and is_full(error):
        message = f"the disk is full: {path.name} does not fit into {scratch} when it is unpacked"
        raise DiskError(message, hint="make room, or choose another root") from error
