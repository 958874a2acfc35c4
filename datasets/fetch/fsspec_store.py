"""Mirrors in object stores and servers that `fsspec` knows: ``s3://``, ``az://``, ``sftp://`` and others.

Needs the extra ``remote`` (fsspec and s3fs; other stores need the package that fsspec names for them). Credentials are those
that the store's own tools use: for S3 the AWS variables, profiles and roles (AWS_ENDPOINT_URL for other vendors' stores);
where there are none, S3 is asked anonymously.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar

from ...errors import FetchError, ForbiddenError, MissingExtraError, ObjectChangedError, ObjectNotFoundError, UsageError
from .http_errors import CLOSED, MISSING, network_error, reason, transient
from .location import (
    FetchOptions,
    Names,
    Objects,
    RemoteObject,
    checked_offset,
    checked_path,
    is_plain_name,
    joined,
    require_inside,
    without_login,
)
from .per_process import PerProcess
from .retry import retrying

T = TypeVar("T")
# `Location` has a method called `list`, which hides the type inside the class.
Entries: TypeAlias = list[dict[str, Any]]

FIRST_RANGE = 1 << 20
LARGEST_RANGE = 16 << 20
PIECE = 1 << 20

_S3 = ("s3", "s3a")
_MD5 = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class FsspecLocation:
    """A `Location` behind one of fsspec's file systems."""

    url: str
    options: FetchOptions = field(default_factory=FetchOptions)
    _files: PerProcess[_Files] = field(default_factory=PerProcess, init=False, repr=False, compare=False)

    @classmethod
    def from_url(cls, url: str, options: FetchOptions) -> FsspecLocation:
        scheme, _, rest = url.partition("://")
        check_installed(scheme.lower(), url)
        if ":" in rest.partition("/")[0].partition("@")[0] and "@" in rest.partition("/")[0]:
            message = f"{without_login(url)}: a password in the URL would end up in manifests"
            raise UsageError(message, hint="use the store's own way to keep credentials")
        host, _, path = rest.partition("/")
        if not host and scheme.lower() in _S3:
            raise UsageError(f"{url}: names no bucket", hint="give s3://bucket or s3://bucket/folder")
        return cls(f"{scheme.lower()}://{joined(host, checked_path(path))}", options)

    def list(self, folder: str = "") -> Objects:
        entries = self._entries(folder)
        return [_described(entry, self._url_of(folder, entry)) for entry in entries if entry["type"] == "file"]

    def folders(self, folder: str = "") -> Names:
        return [_name(entry) for entry in self._entries(folder) if entry["type"] == "directory"]

    def stat(self, path: str) -> RemoteObject:
        path = checked_path(path)
        if not path:
            raise UsageError(f"{self.url} is a folder, not an object", hint="give the object's path")
        url = f"{self.url}/{path}"
        return retrying(lambda: self._describe(url), url=url, options=self.options)

    def refresh(self, obj: RemoteObject) -> RemoteObject:
        return self.stat(require_inside(obj, self.url))

    def open(self, obj: RemoteObject, offset: int = 0) -> Iterator[bytes]:
        require_inside(obj, self.url)
        if offset or obj.size is None:
            # What goes on in the middle must be what was begun; the ranges themselves cannot be pinned to a version.
            obj = self._unchanged(obj)
        assert obj.size is not None
        checked_offset(obj, offset)
        position, length = offset, FIRST_RANGE
        while position < obj.size:
            length = min(length, obj.size - position)
            data = self._ask(obj.url, partial(_read_range, start=position, end=position + length))
            if len(data) > length:
                message = f"{obj.url}: asked for {length} bytes, got {len(data)}"
                raise FetchError(message, hint="the server does not know byte ranges: use another mirror (--mirror)")
            for low in range(0, len(data), PIECE):
                yield data[low : low + PIECE]
            if len(data) < length:
                self._unchanged(obj)
                raise transient(f"{obj.url}: the connection broke after {len(data)} of {length} bytes")
            position += length
            length = min(2 * length, LARGEST_RANGE)
        if offset or obj.size > FIRST_RANGE or not obj.checksums:
            self._unchanged(obj)  # one range of a known checksum needs no such question

    def file_system(self) -> _Files:
        """This process's connection, for who writes there."""
        return self._files.get(lambda: _Files(self.url, self.options))

    # -- asking ------------------------------------------------------------------------------------------------------

    def _ask(self, url: str, action: Callable[[Any, str], T]) -> T:
        return self.file_system().ask(url, action)

    def _describe(self, url: str) -> RemoteObject:
        entry = self._ask(url, lambda fs, path: fs.info(path))
        if entry["type"] != "file":
            raise ObjectNotFoundError(f"{url} is a folder, not an object", hint=MISSING)
        return _described(entry, url)

    def _unchanged(self, obj: RemoteObject) -> RemoteObject:
        now = self._describe(obj.url)
        if (obj.version is not None and now.version != obj.version) or obj.size not in (None, now.size):
            message = f"{obj.url} was replaced while it was being read"
            raise ObjectChangedError(message, hint="start again: what was fetched of the old one is of no use")
        return now

    def _entries(self, folder: str) -> Entries:
        folder = checked_path(folder)
        url = f"{self.url}/{folder}" if folder else self.url

        def ask(fs: Any, path: str) -> Entries:
            found = fs.ls(path, detail=True)
            # Asked for an object, some answer with the object. An empty name is the mark of an empty folder.
            entries = [entry for entry in found if entry["name"].rstrip("/").strip("/") != path.strip("/")]
            if found and not entries and found[0]["type"] == "file" and not found[0]["name"].endswith("/"):
                raise NotADirectoryError(path)
            return sorted((entry for entry in entries if is_plain_name(_name(entry))), key=_name)

        return retrying(lambda: self._ask(url, ask), url=url, options=self.options)

    def _url_of(self, folder: str, entry: dict[str, Any]) -> str:
        return f"{self.url}/{joined(checked_path(folder), _name(entry))}"


class _Files:
    """An fsspec file system of one process."""

    def __init__(self, url: str, options: FetchOptions) -> None:
        import fsspec

        self._options = options
        self.protocol = url.partition("://")[0]
        self._class: Any = fsspec.get_filesystem_class(self.protocol)
        self._from_url: dict[str, Any] = self._class._get_kwargs_from_urls(url)
        self._anonymous = options.anonymous is True
        self._file_system: Any = None

    def ask(self, url: str, action: Callable[[Any, str], T]) -> T:
        """``action(file system, path)``; what it raises becomes one of our errors. One attempt."""
        path = self._class._strip_protocol(url)
        try:
            return action(self._opened(), path)
        except Exception as error:
            if self._may_ask_anonymously(error):
                self._anonymous, self._file_system = True, None
                return self.ask(url, action)
            failure = translated(error, url)
            if failure is error:
                raise
            raise failure from error

    def _opened(self) -> Any:
        if self._file_system is None:
            settings: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False, **self._from_url}
            if self.protocol in _S3:
                times = {
                    "connect_timeout": self._options.connect_timeout,
                    "read_timeout": self._options.silence_timeout,
                    "retries": {"max_attempts": 1},
                }
                settings |= {"anon": self._anonymous, "config_kwargs": times}
            self._file_system = self._class(**settings)
            if hasattr(self._file_system, "retries"):
                self._file_system.retries = 1  # ours come on top
        return self._file_system

    def _may_ask_anonymously(self, error: Exception) -> bool:
        no_login = type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError")
        return no_login and self.protocol in _S3 and not self._anonymous and self._options.anonymous == "auto"


def _read_range(fs: Any, path: str, *, start: int, end: int) -> bytes:
    return bytes(fs.cat_file(path, start=start, end=end))


def check_installed(scheme: str, url: str) -> None:
    """Raise MissingExtraError when what reads this scheme is not installed, UsageError when nothing does."""
    from importlib.util import find_spec

    if find_spec("fsspec") is None:
        message = f"{without_login(url)}: reading {scheme}:// needs fsspec"
        raise MissingExtraError(message, hint="pip install 'rbdata[remote]'")
    from fsspec.registry import known_implementations, registry

    if scheme in registry:
        return
    if scheme not in known_implementations:
        message = f"{without_login(url)}: nothing here can read {scheme}://"
        raise UsageError(
            message, hint="give a directory, file://, http(s)://, gs://, s3://, or another that fsspec knows"
        )
    known = known_implementations[scheme]
    if find_spec(known["class"].partition(".")[0]) is None:
        message = f"{without_login(url)}: {known.get('err') or f'{scheme}:// needs another package'}"
        raise MissingExtraError(message, hint="pip install 'rbdata[remote]'" if scheme in _S3 else "see fsspec's docs")


def translated(error: Exception, url: str) -> Exception:
    """Our error for one of fsspec or of what it stands on; the error itself for all others."""
    if isinstance(error, (FetchError, UsageError)):
        return error
    library = type(error).__module__.partition(".")[0]
    said = reason(error)
    if isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
        return ObjectNotFoundError(f"{url}: there is no such object or folder", hint=MISSING)
    if isinstance(error, PermissionError) or type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
        return ForbiddenError(f"{url}: access is refused ({said})", hint=CLOSED)
    if isinstance(error, (ImportError, NotImplementedError)):
        return MissingExtraError(f"{url}: {said}", hint="pip install 'rbdata[remote]'")
    if library in ("botocore", "aiobotocore", "aiohttp", "asyncio") or isinstance(error, (OSError, EOFError)):
        return transient(f"{url}: the store did not answer ({said})")
    if library in ("s3fs", "fsspec", "azure", "adlfs", "paramiko"):
        return FetchError(f"{url}: {said}", hint="use another mirror (--mirror)")
    return network_error(error, url) or error


def _name(entry: dict[str, Any]) -> str:
    return str(entry["name"]).rstrip("/").rpartition("/")[2]


def _described(entry: dict[str, Any], url: str) -> RemoteObject:
    tag = str(entry.get("ETag") or "").strip('"')
    stamp = tag or entry.get("generation") or entry.get("mtime") or entry.get("LastModified") or entry.get("modified")
    # Of an object that was stored in one piece, S3's tag is the MD5 (unless encrypted with a key of its own: then it is
    # not, so it is only taken for one where S3 says how the object is stored).
    plain = bool(_MD5.fullmatch(tag)) and url.partition("://")[0] in _S3 and "SSEKMSKeyId" not in entry
    return RemoteObject(
        url=url,
        name=url.rpartition("/")[2],
        size=None if entry.get("size") is None else int(entry["size"]),
        checksums={"md5": tag} if plain else {},
        version=str(stamp) if stamp else None,
    )
