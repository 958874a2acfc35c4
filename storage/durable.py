"""Files that survive a power cut: written whole or not at all, and synced before anything relies on them."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO


def is_full(error: OSError) -> bool:
    """Whether a write failed because the disk, or the user's quota on it, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_about_reader(error: OSError) -> bool:
    """Whether this process lacks the rights, memory or descriptors to read a file: that says nothing about its content."""
    return error.errno in (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def system_error(error: BaseException | None) -> OSError | None:
    """An error of the operating system; torch raises RuntimeError for some, with the number in brackets at the end."""
    found = (
        re.fullmatch(r"(unable to .*): .* \((\d+)\)", str(error), re.DOTALL)
        if isinstance(error, RuntimeError)
        else None
    )
    if found:
        return OSError(int(found[2]), f"{os.strerror(int(found[2]))}: {found[1]}")
    return error if isinstance(error, OSError) else None


def allocate(path: Path, size: int) -> None:
    """Reserve disk space for the first ``size`` bytes of a file. Raises OSError where the disk is full: a process that writes
    to a map of the file would be killed then (SIGBUS)."""
    if size and hasattr(os, "posix_fallocate"):
        with open_plain(path, "r+b") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # a file system that cannot
                    raise


def open_plain(path: Path, mode: str, *, follow: bool = False) -> BinaryIO:
    """Open a regular file in a folder that other programs may have changed; ``mode`` is a binary one of `open`.

    A pipe does not block it, and links are followed only with ``follow``: raises OSError (ELOOP) for anything else.
    """

    def opener(name: str, flags: int) -> int:
        descriptor = os.open(name, flags | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW), 0o666)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.ELOOP, "not a file", name)
        return descriptor

    return open(path, mode, opener=opener)  # type: ignore[return-value]


def read_plain(path: Path, most: int) -> bytes:
    """All of a file of at most ``most`` bytes, through links. Raises OSError as `open_plain`, and (EFBIG) for larger ones."""
    with open_plain(path, "rb", follow=True) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"it has {size} bytes, more than {most}", os.fspath(path))
        return file.read(size)  # files of the kernel have more than they say


def is_dangling(path: Path) -> bool:
    """Whether a path is a dangling link, or one whose target cannot be reached. Never raises."""
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
    return open_plain(path, "xb")


def replace_by_copy(path: Path) -> None:
    """Replace a file that readers may have mapped by a copy of it: they keep the old inode."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        shutil.copyfile(path, temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


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
    with open_plain(path, "wb") as file:
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
    """Write all bytes of a buffer into an open file, from a place on."""
    left = memoryview(data)
    while left:
        written = os.pwrite(descriptor, left, at)
        left, at = left[written:], at + written


def preallocate(path: Path, size: int) -> None:
    """Create a file of its final size (or keep it, when it has it); rows are then written in place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_plain(path, "ab") as file:
        if os.fstat(file.fileno()).st_size != size:
            file.truncate(size)
    sync_folder(path.parent)


def has_bytes(path: Path, size: int, *, exactly: bool = False) -> bool:
    """Whether a path is a regular file of at least ``size`` bytes (``exactly``: no more)."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and (found.st_size == size if exactly else found.st_size >= size)
