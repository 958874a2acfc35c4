"""Checks the files that pictures and cards are to be written to, before any work."""

from __future__ import annotations

from pathlib import Path

from ...errors import DatasetExistsError, UsageError
from ...storage.manifest import FILENAME, Manifest

#: Text inside every picture and page that rbdata writes; such files are replaced without ``force``.
MARK = "written by rbdata"

#: Bytes at both ends of a file that are searched for the mark.
_SEARCHED = 1 << 16


def check_target(target: Path, suffixes: tuple[str, ...], *, force: bool = False, edited: bool = False) -> None:
    """Raise UsageError unless the folder of a file exists and its name ends in one of ``suffixes``.

    Without ``force``, raises DatasetExistsError for an existing file that rbdata did not write or users have ``edited``.
    """
    if target.suffix.lower() not in suffixes:
        *others, last = suffixes
        ends = f"{', '.join(others)} or {last}" if others else last
        hint = f"choose a name that ends in {ends}, such as {target.stem or 'card'}{suffixes[0]}"
        what = f"{target.suffix} files are not written here" if target.suffix else "the name has no suffix"
        raise UsageError(f"{target}: {what}", hint=hint)
    if not target.parent.is_dir():
        raise UsageError(f"no such folder: {target.parent}", hint="create it, or choose another path")
    if target.exists() and not target.is_file():
        raise UsageError(f"{target} is not a file", hint="choose another path")
    if target.is_file() and not force and (edited or not is_ours(target)):
        message = f"{target} already exists" + ("" if edited else " and was not written by rbdata")
        raise DatasetExistsError(message, hint="choose another path, or replace it with --force")


def check_outside(target: Path, folder: Path, manifest: Manifest) -> None:
    """Raise UsageError if the target is one of the files of the dataset in ``folder``."""
    files = {(folder / name).resolve() for name in (FILENAME, *manifest.files)}
    if target.resolve() in files:
        raise UsageError(f"{target} is a file of the dataset itself", hint="choose another path")


def is_ours(path: Path) -> bool:
    """Whether a file carries the mark of rbdata, or is empty."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        head = file.read(_SEARCHED)
        file.seek(max(0, size - _SEARCHED))
        return not size or MARK.encode() in head + file.read()
