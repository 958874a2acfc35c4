"""Locations in the stores that `fsspec` supports: ``s3://``, ``az://``, ``sftp://`` and others.

Needs the extra ``remote`` (fsspec and s3fs; other stores need the package that fsspec names for them). Credentials are those
of the store's own tools: for S3 the AWS variables, profiles and roles (AWS_ENDPOINT_URL for stores of other vendors).
Without credentials, S3 is read anonymously.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar

from ...errors import FetchError, ForbiddenError, MissingExtraError, ObjectChangedError, ObjectNotFoundError, UsageError
from .http_errors import DENIED, MISSING, NO_RANGES, REPLACED, network_error, reason, transient
from .location import (
    FetchOptions,
    Names,
    Objects,
    RemoteObject,
    check_offset,
    check_path,
    is_plain_name,
    join_path,
    require_inside,
    without_login,
)
from .per_process import PerProcess
from .retry import call_with_retries

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
            message = f"{without_login(url)}: a password in the URL is not allowed, as manifests record the URL"
            raise UsageError(message, hint="use the credentials of the store's own tools")
        host, _, path = rest.partition("/")
        if not host and scheme.lower() in _S3:
            raise UsageError(f"{url}: no bucket in the URL", hint="give s3://bucket or s3://bucket/folder")
        return cls(f"{scheme.lower()}://{join_path(host, check_path(path))}", options)

    def list(self, folder: str = "") -> Objects:
        entries = self._entries(folder)
        return [_to_object(entry, self._url_of(folder, entry)) for entry in entries if entry["type"] == "file"]

    def folders(self, folder: str = "") -> Names:
        return [_name(entry) for entry in self._entries(folder) if entry["type"] == "directory"]

    def stat(self, path: str) -> RemoteObject:
        path = check_path(path)
        if not path:
            raise UsageError(f"{self.url} is a folder, not an object", hint="give the object's path")
        url = f"{self.url}/{path}"
        return call_with_retries(lambda: self._describe(url), url=url, options=self.options)

    def refresh(self, obj: RemoteObject) -> RemoteObject:
        return self.stat(require_inside(obj, self.url))

    def open(self, obj: RemoteObject, offset: int = 0) -> Iterator[bytes]:
        require_inside(obj, self.url)
        if offset or obj.size is None:
            # The range requests cannot be pinned to a version, so check that the object is still the same one.
            obj = self._check_unchanged(obj)
        assert obj.size is not None
        check_offset(obj, offset)
        position, length = offset, FIRST_RANGE
        while position < obj.size:
            length = min(length, obj.size - position)
            data = self._request(obj.url, partial(_read_range, start=position, end=position + length))
            if len(data) > length:
                message = f"{obj.url}: requested {length} bytes, received {len(data)}"
                raise FetchError(message, hint=NO_RANGES)
            for low in range(0, len(data), PIECE):
                yield data[low : low + PIECE]
            if len(data) < length:
                self._check_unchanged(obj)
                raise transient(f"{obj.url}: connection lost after {len(data)} of {length} bytes")
            position += length
            length = min(2 * length, LARGEST_RANGE)
        if offset or obj.size > FIRST_RANGE or not obj.checksums:
            self._check_unchanged(obj)  # not needed for a single range that a checksum covers

    def file_system(self) -> _Files:
        """This process's connection; uploads use it too."""
        return self._files.get(lambda: _Files(self.url, self.options))

    # -- requests ----------------------------------------------------------------------------------------------------

    def _request(self, url: str, action: Callable[[Any, str], T]) -> T:
        return self.file_system().call(url, action)

    def _describe(self, url: str) -> RemoteObject:
        entry = self._request(url, lambda fs, path: fs.info(path))
        if entry["type"] != "file":
            raise ObjectNotFoundError(f"{url} is a folder, not an object", hint=MISSING)
        return _to_object(entry, url)

    def _check_unchanged(self, obj: RemoteObject) -> RemoteObject:
        now = self._describe(obj.url)
        if (obj.version is not None and now.version != obj.version) or obj.size not in (None, now.size):
            message = f"{obj.url} was replaced while it was being read"
            raise ObjectChangedError(message, hint=REPLACED)
        return now

    def _entries(self, folder: str) -> Entries:
        folder = check_path(folder)
        url = f"{self.url}/{folder}" if folder else self.url

        def list_entries(fs: Any, path: str) -> Entries:
            found = fs.ls(path, detail=True)
            # For the path of an object, some stores list that object. An empty name marks an empty folder.
            entries = [entry for entry in found if entry["name"].rstrip("/").strip("/") != path.strip("/")]
            if found and not entries and found[0]["type"] == "file" and not found[0]["name"].endswith("/"):
                raise NotADirectoryError(path)
            return sorted((entry for entry in entries if is_plain_name(_name(entry))), key=_name)

        return call_with_retries(lambda: self._request(url, list_entries), url=url, options=self.options)

    def _url_of(self, folder: str, entry: dict[str, Any]) -> str:
        return f"{self.url}/{join_path(check_path(folder), _name(entry))}"


class _Files:
    """One process's fsspec file system."""

    def __init__(self, url: str, options: FetchOptions) -> None:
        import fsspec

        self._options = options
        self.protocol = url.partition("://")[0]
        self._class: Any = fsspec.get_filesystem_class(self.protocol)
        self._from_url: dict[str, Any] = self._class._get_kwargs_from_urls(url)
        self._anonymous = options.anonymous is True
        self._file_system: Any = None

    def call(self, url: str, action: Callable[[Any, str], T]) -> T:
        """``action(file system, path)``, one attempt; its exceptions are translated to rbdata's."""
        path = self._class._strip_protocol(url)
        try:
            return action(self._open(), path)
        except Exception as error:
            if self._may_retry_anonymously(error):
                self._anonymous, self._file_system = True, None
                return self.call(url, action)
            failure = translate_error(error, url)
            if failure is error:
                raise
            raise failure from error

    def _open(self) -> Any:
        if self._file_system is None:
            settings: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False, **self._from_url}
            if self.protocol in _S3:
                timeouts = {
                    "connect_timeout": self._options.connect_timeout,
                    "read_timeout": self._options.silence_timeout,
                    "retries": {"max_attempts": 1},
                }
                settings |= {"anon": self._anonymous, "config_kwargs": timeouts}
            self._file_system = self._class(**settings)
            if hasattr(self._file_system, "retries"):
                self._file_system.retries = 1  # rbdata retries itself
        return self._file_system

    def _may_retry_anonymously(self, error: Exception) -> bool:
        no_login = type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError")
        return no_login and self.protocol in _S3 and not self._anonymous and self._options.anonymous == "auto"


def _read_range(fs: Any, path: str, *, start: int, end: int) -> bytes:
    return bytes(fs.cat_file(path, start=start, end=end))


def check_installed(scheme: str, url: str) -> None:
    """Raise MissingExtraError if the package for this scheme is not installed, UsageError if there is none."""
    from importlib.util import find_spec

    if find_spec("fsspec") is None:
        message = f"{without_login(url)}: reading {scheme}:// needs fsspec"
        raise MissingExtraError(message, hint="pip install 'rbdata[remote]'")
    from fsspec.registry import known_implementations, registry

    if scheme in registry:
        return
    if scheme not in known_implementations:
        message = f"{without_login(url)}: unsupported URL scheme {scheme}://"
        raise UsageError(
            message, hint="give a directory, file://, http(s)://, gs://, s3://, or another scheme of fsspec"
        )
    known = known_implementations[scheme]
    if find_spec(known["class"].partition(".")[0]) is None:
        message = f"{without_login(url)}: {known.get('err') or f'{scheme}:// needs another package'}"
        raise MissingExtraError(
            message, hint="pip install 'rbdata[remote]'" if scheme in _S3 else "see the documentation of fsspec"
        )


def translate_error(error: Exception, url: str) -> Exception:
    """rbdata's error for an exception of fsspec or of the libraries below it; other exceptions unchanged."""
    if isinstance(error, (FetchError, UsageError)):
        return error
    library = type(error).__module__.partition(".")[0]
    cause = reason(error)
    if isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
        return ObjectNotFoundError(f"{url}: no such object or folder", hint=MISSING)
    if isinstance(error, PermissionError) or type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
        return ForbiddenError(f"{url}: access denied ({cause})", hint=DENIED)
    if isinstance(error, (ImportError, NotImplementedError)):
        return MissingExtraError(f"{url}: {cause}", hint="pip install 'rbdata[remote]'")
    if library in ("botocore", "aiobotocore", "aiohttp", "asyncio") or isinstance(error, (OSError, EOFError)):
        return transient(f"{url}: the store did not answer ({cause})")
    if library in ("s3fs", "fsspec", "azure", "adlfs", "paramiko"):
        return FetchError(f"{url}: {cause}", hint="use another mirror (--mirror)")
    return network_error(error, url) or error


def _name(entry: dict[str, Any]) -> str:
    return str(entry["name"]).rstrip("/").rpartition("/")[2]


def _to_object(entry: dict[str, Any], url: str) -> RemoteObject:
    tag = str(entry.get("ETag") or "").strip('"')
    stamp = tag or entry.get("generation") or entry.get("mtime") or entry.get("LastModified") or entry.get("modified")
    # S3's tag of an object uploaded in one piece is its MD5, unless the object is encrypted with a key of its own.
    plain = bool(_MD5.fullmatch(tag)) and url.partition("://")[0] in _S3 and "SSEKMSKeyId" not in entry
    return RemoteObject(
        url=url,
        name=url.rpartition("/")[2],
        size=None if entry.get("size") is None else int(entry["size"]),
        checksums={"md5": tag} if plain else {},
        version=str(stamp) if stamp else None,
    )
