"""Datasets read while others replace, grow or delete them: all that is read at once comes from one and the same folder.

A dataset is never changed in place: it is replaced by a rename, and a deleted one loses its manifest first. So a reader that
maps files, and finds after the last one that the path still leads to the folder and the manifest that it began with, has
mapped files of one dataset; mapped files stay readable when they are removed. (`verify --repair` alone writes into a dataset:
the bytes that its manifest states.)
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

#: Seconds before each further try, about one in all: a replacement takes less than a millisecond.
_WAITS = (0.0, 0.001, 0.002, 0.004, 0.008, 0.016, 0.03, 0.06, 0.12, 0.25, 0.5)


class Pin:
    """What a path led to when this was made: `is_unchanged` says whether it still does."""

    def __init__(self, folder: Path, descriptor: int | None, name: str) -> None:
        self.folder, self._descriptor, self._name = folder, descriptor, name
        self._before = None if descriptor is None else self._state(os.fstat(descriptor))

    def is_unchanged(self) -> bool:
        """Whether the path leads to the same folder with the same manifest, or as before to none."""
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
    """A `Pin` of a folder with its manifest ``name``. While it is open, the folder's inode is not another's."""
    descriptor = None
    try:
        descriptor = os.open(folder, getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC)
    except ValueError:
        pass
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):  # not a folder that changes
            raise
    try:
        yield Pin(folder, descriptor, name)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def read_snapshot(folder: Path, read: Callable[[Manifest], T]) -> T:
    """``read(manifest)`` of one dataset: repeated if the dataset was replaced during the call.

    Raises what ``read`` and `read_manifest` raise of a folder that stays as it is, and DatasetBusyError of one that is
    replaced again and again.
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
    """Whether a folder has a manifest; one that a writer is about to replace is waited for, for about a second."""
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
    except (OSError, ValueError):  # it may not be entered, or no folder could have its name
        return False


def aside(folder: Path) -> Path:
    """Where a dataset stands for the moment between two renames in which another takes its place (`folder.DatasetPlace`)."""
    return folder.with_name(f".{folder.name}.old")


def _is_being_replaced(folder: Path) -> bool:
    try:
        return not folder.exists() and (aside(folder) / FILENAME).exists()
    except (OSError, ValueError):  # no name that a folder could have
        return False
