"""Reads of datasets that other processes replace, grow or delete: all data of one read come from the same folder.

A dataset is never changed in place: it is replaced by a rename, and a deleted one loses its manifest first. So a reader that
maps files, and finds afterwards that the path still leads to the same folder and manifest, has mapped files of one dataset;
mapped files stay readable when they are removed. (Only `verify --repair` writes into a dataset: the bytes that its manifest
states.)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from ..errors import DatasetBusyError, RbdataError
from .manifest import FILENAME, Manifest, read_manifest

T = TypeVar("T")

#: Seconds before each further attempt, about one second in total: a replacement takes less than a millisecond.
_WAITS = (0.0, 0.001, 0.002, 0.004, 0.008, 0.016, 0.03, 0.06, 0.12, 0.25, 0.5)


def state_of(folder: Path) -> tuple[int, ...] | None:
    """Return what changes when a dataset is replaced; None where there is none."""
    with suppress(OSError, ValueError):
        place, manifest = folder.stat(), (folder / FILENAME).stat()
        return place.st_dev, place.st_ino, manifest.st_ino, manifest.st_size, manifest.st_mtime_ns
    return None


def read_snapshot(folder: Path, read: Callable[[Manifest], T]) -> T:
    """``read(manifest)`` of one dataset: repeated if the dataset was replaced during the call.

    Raises the errors of ``read`` and `read_manifest` for an unchanged folder, and DatasetBusyError for a folder that is
    replaced repeatedly.
    """
    for wait in _WAITS:
        time.sleep(wait)
        before = state_of(folder)
        try:
            found = read(read_manifest(folder))
            if state_of(folder) == before:
                return found
        except (RbdataError, OSError):
            if not _is_being_replaced(folder) and state_of(folder) == before:  # in this order: it may have appeared
                raise
    message = f"{folder} was replaced again and again while it was opened"
    raise DatasetBusyError(message, hint="try again when the process that writes it has finished")


def holds_dataset(folder: Path) -> bool:
    """Return whether a folder has a manifest; waits about a second for a folder that a writer is replacing."""
    for wait in _WAITS:
        time.sleep(wait)
        before = state_of(folder)
        if has_manifest(folder):
            return True
        if not _is_being_replaced(folder) and state_of(folder) == before:
            return False
    return False


def has_manifest(folder: Path) -> bool:
    """Return whether a folder has a manifest at this moment."""
    try:
        return (folder / FILENAME).is_file()
    except (OSError, ValueError):  # no permission, or an invalid folder name
        return False


def aside(folder: Path) -> Path:
    """Return the path of a dataset between the two renames that replace it by another (`folder.DatasetPlace`)."""
    return folder.with_name(f".{folder.name}.old")


def _is_being_replaced(folder: Path) -> bool:
    try:
        return not folder.exists() and (aside(folder) / FILENAME).exists()
    except (OSError, ValueError):  # an invalid folder name
        return False
