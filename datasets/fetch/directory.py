"""A location in the file system, local or mounted."""

from __future__ import annotations

import os
import stat as stat_flags
import sys
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ...errors import ChecksumError, DiskError, ObjectNotFoundError, UsageError
from ...storage.folder import remove_empty
from .location import PIECE, Location, Names, Objects, OnBytes, RemoteObject
from .reading import fetch_to_file
from .retries import MISSING, FetchOptions


@dataclass(frozen=True)
class DirectoryLocation(Location):
    """A `Location` in the file system. Objects are regular files; links are followed, broken links omitted.

    With ``only``, listings of its top show the file of this name alone.
    """

    only: str = ""
    takes_objects = True

    @property
    def shown(self) -> str:
        return os.path.join(self.url, self.only) if self.only else self.url  # noqa: PTH118  (the path as it was given)

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

    def _read(self, obj: RemoteObject, start: int, length: int | None) -> Generator[bytes, None, None]:
        with Path(obj.url).open("rb") as file:
            file.seek(start)
            left = sys.maxsize if length is None else length
            while left:
                # Also with the empty last piece, so that a file that is still being written is detected.
                piece = file.read(min(PIECE, left))
                if obj.version is not None and obj.version != _version(os.fstat(file.fileno())):
                    message = f"{obj.url} was changed while it was being read"
                    raise ChecksumError(message, hint="wait until the file is complete, then run the command again")
                if not piece:
                    return
                left -= len(piece)
                yield piece

    def _listing(self, url: str) -> tuple[Objects, Names]:
        objects, names = [], []
        with os.scandir(url) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # a broken link, or removed since the listing
                    status = entry.stat()
                    if stat_flags.S_ISREG(status.st_mode):
                        objects.append(_to_object(entry.path, status))
                    elif stat_flags.S_ISDIR(status.st_mode):
                        names.append(entry.name)
        if self.only and url == self.url:
            return [item for item in objects if item.name == self.only], []
        return objects, names

    def _describe(self, obj: RemoteObject) -> RemoteObject:
        status = os.stat(obj.url)  # noqa: PTH116
        if not stat_flags.S_ISREG(status.st_mode):
            raise ObjectNotFoundError(f"{obj.url} is not a file", hint=MISSING)
        return _to_object(obj.url, status)

    def _write(self, source: Path, url: str, count: OnBytes) -> None:
        target = Path(url)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"{target.parent} cannot be created: {error.strerror}"
            raise DiskError(message, hint="choose another mirror to push to") from error
        here = DirectoryLocation(str(source.parent.resolve()))
        fetch_to_file(here, here.stat(source.name), target, on_bytes=count, on_resume=count)

    def _remove(self, url: str) -> None:
        """Also folders that become empty. What lies behind a link is not part of the mirror."""
        top, target = Path(self.url), Path(url)
        if not target.parent.resolve().is_relative_to(top.resolve()):
            raise DiskError(f"{target} lies behind a link out of the mirror", hint="remove the link yourself")
        target.unlink(missing_ok=True)
        remove_empty(target.parent, top)


def _to_object(path: str, status: os.stat_result) -> RemoteObject:
    return RemoteObject(path, os.path.basename(path), status.st_size, version=_version(status))  # noqa: PTH119


def _version(found: os.stat_result) -> str:
    return f"{found.st_mtime_ns}-{found.st_size}"
