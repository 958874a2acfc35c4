"""Files that survive a power cut: written whole or not at all, and synced before anything relies on them."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO


def is_full(error: OSError) -> bool:
    """Return whether a write failed because the disk, or the user's quota on it, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_about_reader(error: OSError) -> bool:
    """Return whether an error is about this process (rights, memory, descriptors) instead of the content of a file."""
    return error.errno in (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def system_error(error: BaseException | None) -> OSError | None:
    """Return the OSError that an exception is or stands for: torch raises RuntimeError for some, with the errno at the end."""
    if isinstance(error, RuntimeError):
        found = re.fullmatch(r"(unable to .*): .* \((\d+)\)", str(error), re.DOTALL)
        return OSError(int(found[2]), f"{os.strerror(int(found[2]))}: {found[1]}") if found else None
    return error if isinstance(error, OSError) else None


def allocate(path: Path, size: int) -> None:
    """Reserve disk space for the first ``size`` bytes of a file, so that writing to a map of it cannot kill the process
    (SIGBUS). Raises OSError if the disk is full."""
    if size and hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # the file system does not support it
                    raise


def is_dangling(path: Path) -> bool:
    """Return whether a path is a symbolic link whose target is missing or cannot be reached. Never raises."""
    try:
        path.readlink()
    except (OSError, ValueError):
        return False
    try:
        path.stat()
    except OSError:
        return True
    return False


def open_replacement(path: Path) -> BinaryIO:
    """Open a new, empty file in place of one that readers may have mapped: they keep the old inode."""
    path.unlink(missing_ok=True)
    return path.open("xb")


def write_atomically(path: Path, data: bytes) -> None:
    """Write a whole small file: after a crash or a power cut it is either the old one or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        write_durably(temporary, data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_durably(path: Path, data: Any) -> None:
    """Write a whole file and sync its bytes; its name is durable after `sync_folder`."""
    with path.open("wb") as file:
        file.write(data)
        close_durably(file)


def close_durably(file: BinaryIO) -> None:
    """Sync the bytes of a file and close it."""
    file.flush()
    os.fsync(file.fileno())
    file.close()


def sync_folder(folder: Path) -> None:
    """Make renames and new files in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network filesystems do not sync directories; they order renames themselves
    finally:
        os.close(descriptor)


def sync_files(folder: Path, names: Iterable[str]) -> None:
    """Make files of a folder durable, and their names."""
    names = list(names)
    for name in names:
        with (folder / name).open("rb") as file:
            os.fsync(file.fileno())
    for parent in sorted({(folder / name).parent for name in names}):
        sync_folder(parent)


def write_at(descriptor: int, data: Any, at: int) -> None:
    """Write all bytes of a buffer into an open file at offset ``at``."""
    left = memoryview(data)
    while left:
        written = os.pwrite(descriptor, left, at)
        left, at = left[written:], at + written
