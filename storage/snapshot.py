"""Reads of datasets that other processes replace, grow or delete: all data of one read come from the same folder.

A dataset is never changed in place: it is replaced by a rename, and a deleted one loses its manifest first. So a reader that
maps files, and finds after the last one that the path still leads to the initial folder and manifest, has mapped files of one
dataset; mapped files stay readable when they are removed. (Only `verify --repair` writes into a dataset: the bytes that its
manifest states.)
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from ..errors import DatasetBusyError, RbdataError
from .manifest import FILENAME, Manifest, read_manifest

T = TypeVar("T")

#: Seconds before each further attempt, about one second in total: a replacement takes less than a millisecond.
_WAITS = (0.0, 0.001, 0.002, 0.004, 0.008, 0.016, 0.03, 0.06, 0.12, 0.25, 0.5)


class Pin:
    """The target of a path at one moment; `is_unchanged` checks whether the path still leads to it."""

    def __init__(self, folder: Path, descriptor: int | None, name: str) -> None:
        self.folder, self._descriptor, self._name = folder, descriptor, name
        self._before = None if descriptor is None else self._state(os.fstat(descriptor))

    def is_unchanged(self) -> bool:
        """Whether the path leads to the same folder with the same manifest, or still to none."""
        with suppress(OSError, ValueError):
            return self._before == self._state(self.folder.stat())
        return self._before is None

    def _state(self, folder: os.stat_result) -> tuple[int, ...] | None:
        with suppress(OSError):
            manifest = (self.folder / self._name).stat()
            return folder.st_dev, folder.st_ino, manifest.st_ino, manifest.st_size, manifest.st_mtime_ns
        return None


@contextmanager
def pinned(folder: Path, name: str = FILENAME) -> Iterator[Pin]:
    """A `Pin` of a folder with its manifest ``name``. While it is open, the system does not reuse the folder's inode."""
    descriptor = None
    try:
        descriptor = os.open(folder, getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC)
    except ValueError:
        pass
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):  # too many open files, not a change of the folder
            raise
    try:
        yield Pin(folder, descriptor, name)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def read_snapshot(folder: Path, read: Callable[[Manifest], T]) -> T:
    """``read(manifest)`` of one dataset: repeated if the dataset was replaced during the call.

    Raises the errors of ``read`` and `read_manifest` for an unchanged folder, and DatasetBusyError for a folder that is
    replaced repeatedly.
    """
    for wait in _WAITS:
        time.sleep(wait)
        with pinned(folder) as pin:
            try:
                found = read(read_manifest(folder))
                if pin.is_unchanged():
                    return found
            except (RbdataError, OSError):
                if not _is_being_replaced(folder) and pin.is_unchanged():  # in this order: it may have appeared
                    raise
    message = f"{folder} was replaced again and again while it was opened"
    raise DatasetBusyError(message, hint="try again when the process that writes it has finished")


def holds_dataset(folder: Path) -> bool:
    """Whether a folder has a manifest; waits about a second for a folder that a writer is replacing."""
    for wait in _WAITS:
        time.sleep(wait)
        with pinned(folder) as pin:
            if has_manifest(folder):
                return True
            if not _is_being_replaced(folder) and pin.is_unchanged():
                return False
    return False


def has_manifest(folder: Path) -> bool:
    """Whether a folder has a manifest at this moment."""
    try:
        return (folder / FILENAME).is_file()
    except (OSError, ValueError):  # no permission, or an invalid folder name
        return False


def aside(folder: Path) -> Path:
    """The path of a dataset between the two renames that replace it by another (`folder.DatasetPlace`)."""
    return folder.with_name(f".{folder.name}.old")


def _is_being_replaced(folder: Path) -> bool:
    try:
        return not folder.exists() and (aside(folder) / FILENAME).exists()
    except (OSError, ValueError):  # an invalid folder name
        return False
