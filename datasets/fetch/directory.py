"""A location in a directory, local or mounted."""

from __future__ import annotations

import errno
import os
import stat as stat_flags
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ...errors import FetchError, ForbiddenError, ObjectChangedError, ObjectNotFoundError, UsageError
from ...storage.durable import open_plain
from .base_location import BaseLocation
from .failures import MISSING, transient
from .location import FetchOptions, Names, Objects, RemoteObject, check_offset, check_path, require_inside

BLOCK = 1 << 20

# Errors of a network file system whose server is unavailable for a while.
_TEMPORARY = {errno.EAGAIN, errno.EINTR, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENETDOWN, errno.EHOSTDOWN}


@dataclass(frozen=True)
class DirectoryLocation(BaseLocation):
    """A `Location` in the file system. Objects are regular files; links are followed, broken links omitted.

    With ``only``, listings of its top show the file of this name alone.
    """

    only: str = ""

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
            raise UsageError(f"{url!r} is not a directory", hint="give the directory of the mirror")
        return cls(os.path.abspath(os.path.expanduser(path)), options)  # noqa: PTH100, PTH111  (no Path: ~user may fail)

    def open(self, obj: RemoteObject, offset: int = 0) -> Generator[bytes, None, None]:
        path = self._url_of(check_path(require_inside(obj, self.url)))
        check_offset(obj, offset)
        try:
            with open_plain(Path(path), "rb", follow=True) as file:
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

    def _listing(self, url: str) -> tuple[Objects, Names]:
        objects, names = [], []
        try:
            with os.scandir(url) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name):
                    try:
                        status = entry.stat()
                    except FileNotFoundError:
                        continue  # a broken link, or removed since the listing
                    if stat_flags.S_ISREG(status.st_mode):
                        objects.append(_to_object(entry.path, status))
                    elif stat_flags.S_ISDIR(status.st_mode):
                        names.append(entry.name)
        except OSError as error:
            raise _translate_error(error, url) from error
        if self.only and url == self.url:
            return [item for item in objects if item.name == self.only], []
        return objects, names

    def _describe(self, obj: RemoteObject) -> RemoteObject:
        try:
            status = os.stat(obj.url)  # noqa: PTH116
        except OSError as error:
            raise _translate_error(error, obj.url) from error
        if not stat_flags.S_ISREG(status.st_mode):
            raise ObjectNotFoundError(f"{obj.url} is not a file", hint=MISSING)
        return _to_object(obj.url, status)


def _to_object(path: str, status: os.stat_result) -> RemoteObject:
    return RemoteObject(path, os.path.basename(path), status.st_size, version=_version(status))  # noqa: PTH119


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
