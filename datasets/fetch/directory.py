"""A location in a directory, local or mounted."""

from __future__ import annotations

import errno
import os
import stat as stat_flags
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from ...errors import FetchError, ForbiddenError, ObjectChangedError, ObjectNotFoundError, UsageError
from .http_errors import MISSING, transient
from .location import FetchOptions, Names, Objects, RemoteObject, check_offset, check_path, require_inside

BLOCK = 1 << 20

Entries: TypeAlias = list[tuple[os.DirEntry[str], os.stat_result]]

# Errors of a network file system whose server is unavailable for a while.
_TEMPORARY = {errno.EAGAIN, errno.EINTR, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENETDOWN, errno.EHOSTDOWN}


@dataclass(frozen=True)
class DirectoryLocation:
    """A `Location` in the file system. Objects are regular files; links are followed, broken links omitted."""

    url: str
    options: FetchOptions = field(default_factory=FetchOptions)

    @classmethod
    def from_url(cls, url: str, options: FetchOptions) -> DirectoryLocation:
        path = url
        if url[:7].lower() == "file://":
            parts = urlsplit(url)
            if parts.netloc not in ("", "localhost"):
                message = f"{url}: file:// URLs name local files, not files of the host {parts.netloc!r}"
                raise UsageError(message, hint="write file:///absolute/path")
            path = unquote(parts.path)
        if not path or "\0" in path:
            message = f"{url!r} is not a directory"
            raise UsageError(message, hint="give the directory of the mirror")
        return cls(os.path.abspath(os.path.expanduser(path)), options)  # noqa: PTH100, PTH111  (no Path: ~user may fail)

    def list(self, folder: str = "") -> Objects:
        entries = self._scan(folder)
        return [_describe(entry.path, status) for entry, status in entries if stat_flags.S_ISREG(status.st_mode)]

    def folders(self, folder: str = "") -> Names:
        return [entry.name for entry, status in self._scan(folder) if stat_flags.S_ISDIR(status.st_mode)]

    def stat(self, path: str) -> RemoteObject:
        return self._stat(self._path(path))

    def refresh(self, obj: RemoteObject) -> RemoteObject:
        return self.stat(require_inside(obj, self.url))

    def open(self, obj: RemoteObject, offset: int = 0) -> Iterator[bytes]:
        path = self._path(require_inside(obj, self.url))
        check_offset(obj, offset)
        try:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123
                _check_unchanged(obj, os.fstat(file.fileno()))
                file.seek(offset)
                while True:
                    block = file.read(BLOCK)
                    # Also after the empty last block, so that a file that is still being written is detected.
                    _check_unchanged(obj, os.fstat(file.fileno()))
                    if not block:
                        return
                    yield block
        except OSError as error:
            if isinstance(error, FetchError):
                raise
            raise _translate_error(error, path) from error

    def _path(self, relative: str) -> str:
        inside = check_path(relative)
        return f"{self.url.rstrip('/')}/{inside}" if inside else self.url

    def _scan(self, folder: str) -> Entries:
        path = self._path(folder)
        found = []
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    try:
                        found.append((entry, entry.stat()))
                    except FileNotFoundError:
                        continue  # a broken link, or removed since the listing
        except OSError as error:
            raise _translate_error(error, path) from error
        return sorted(found, key=lambda pair: pair[0].name)

    def _stat(self, path: str) -> RemoteObject:
        try:
            found = os.stat(path)  # noqa: PTH116
        except OSError as error:
            raise _translate_error(error, path) from error
        if not stat_flags.S_ISREG(found.st_mode):
            message = f"{path} is not a file"
            raise ObjectNotFoundError(message, hint=MISSING)
        return _describe(path, found)


def _describe(path: str, found: os.stat_result) -> RemoteObject:
    name = os.path.basename(path)  # noqa: PTH119
    return RemoteObject(url=path, name=name, size=found.st_size, version=_version(found))


def _version(found: os.stat_result) -> str:
    return f"{found.st_mtime_ns}-{found.st_size}"


def _check_unchanged(obj: RemoteObject, found: os.stat_result) -> None:
    if obj.version is not None and obj.version != _version(found):
        message = f"{obj.url} was changed while it was being read"
        raise ObjectChangedError(message, hint="wait until the file is complete, then run the command again")


def _translate_error(error: OSError, path: str) -> FetchError:
    message = f"{path}: {error.strerror or error}"
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EISDIR):
        return ObjectNotFoundError(message, hint=MISSING)
    if error.errno in (errno.EACCES, errno.EPERM):
        return ForbiddenError(message, hint="give the current user read access")
    if error.errno in _TEMPORARY:
        return transient(message, hint="check the disk or the mount")
    return FetchError(message, hint="check the disk or the mount")
