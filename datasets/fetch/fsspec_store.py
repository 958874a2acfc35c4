"""Locations in the stores that `fsspec` supports: ``s3://``, ``az://``, ``sftp://`` and others.

Needs the extra ``remote`` (fsspec and s3fs; other stores need the package that fsspec names for them). Credentials are those
of the store's own tools: for S3 the AWS variables, profiles and roles (AWS_ENDPOINT_URL for stores of other vendors).
Without credentials, S3 is read anonymously.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ...errors import MissingExtraError, ObjectNotFoundError, UsageError
from .location import (
    CONNECTIONS,
    Names,
    Objects,
    OnBytes,
    PerProcess,
    RemoteObject,
    StoreLocation,
    check_first,
    check_path,
    join_path,
    without_login,
)
from .retries import CONNECT_TIMEOUT, MISSING, NO_LOGIN, FetchOptions, replaced

T = TypeVar("T")

_S3 = ("s3", "s3a")
#: Bytes per piece of a multipart upload to S3, used for files of twice this size and more.
S3_PIECE = 64 << 20
_MD5 = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class FsspecLocation(StoreLocation):
    """A `Location` behind one of fsspec's file systems."""

    _files: PerProcess[_Files] = field(default_factory=PerProcess, init=False, repr=False, compare=False)

    @classmethod
    def from_url(cls, url: str, options: FetchOptions) -> FsspecLocation:
        scheme, _, rest = url.partition("://")
        host, _, path = rest.partition("/")
        user, at, _ = host.partition("@")
        if at and ":" in user:
            message = f"{without_login(url)}: a password in the URL is not allowed, as manifests record the URL"
            raise UsageError(message, hint="use the credentials of the store's own tools")
        if not host and scheme.lower() in _S3:
            raise UsageError(f"{url}: no bucket in the URL", hint="give s3://bucket or s3://bucket/folder")
        _check_installed(scheme.lower(), url)
        return cls(f"{scheme.lower()}://{join_path(host, check_path(path))}", options)

    def _file_system(self) -> _Files:
        return self._files.get(lambda: _Files(self.url, self.options))

    def _range(self, obj: RemoteObject, start: int, length: int) -> Iterator[bytes]:
        files = self._file_system()
        if files.is_s3 and obj.version is not None:
            version = obj.version
            yield files.call(obj.url, lambda fs, path: _read_s3_range(fs, path, start, length, version))
            return
        data = files.call(obj.url, lambda fs, path: bytes(fs.cat_file(path, start=start, end=start + length)))
        # The request names no version: the object must be the same one afterwards.
        now = self._describe(obj)
        if obj.version not in (None, now.version) or obj.size not in (None, now.size):
            raise replaced(obj.url)
        yield data

    def _describe(self, obj: RemoteObject) -> RemoteObject:
        entry = self._file_system().call(obj.url, lambda fs, path: fs.info(path))
        if entry["type"] != "file":
            raise ObjectNotFoundError(f"{obj.url} is a folder, not a file", hint=MISSING)
        return _to_object(entry, obj.url)

    def _listing(self, url: str) -> tuple[Objects, Names]:
        def list_entries(fs: Any, path: str) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = fs.ls(path, detail=True)
            # For the path of an object, some stores list that object; a name that ends with '/' marks an empty folder.
            here = path.strip("/")
            entries = [one for one in found if one["name"].rstrip("/").rpartition("/")[0].strip("/") == here]
            if found and not entries and found[0]["type"] == "file" and not found[0]["name"].endswith("/"):
                raise NotADirectoryError(path)
            return entries

        entries = self._file_system().call(url, list_entries)
        objects = [_to_object(entry, f"{url}/{_name(entry)}") for entry in entries if entry["type"] == "file"]
        return objects, [_name(entry) for entry in entries if entry["type"] == "directory"]

    def _write(self, source: Path, url: str, count: OnBytes) -> None:
        from fsspec.callbacks import Callback

        files, counting = self._file_system(), Callback()
        counting.relative_update = lambda inc=1: count(inc)

        def put_file(fs: Any, target: str) -> None:
            if files.is_s3:
                return fs.put_file(str(source), target, callback=counting, chunksize=S3_PIECE)
            fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            return fs.put_file(str(source), target, callback=counting)

        files.call(url, put_file)

    def _remove(self, url: str) -> None:
        self._file_system().call(url, lambda fs, target: fs.rm_file(target))


class _Files:
    """One process's fsspec file system."""

    def __init__(self, url: str, options: FetchOptions) -> None:
        import fsspec

        protocol = url.partition("://")[0]
        self._options, self._anonymous, self.is_s3 = options, False, protocol in _S3
        self._class: Any = fsspec.get_filesystem_class(protocol)
        self._from_url: dict[str, Any] = self._class._get_kwargs_from_urls(url)
        self._file_system: Any = None

    def call(self, url: str, action: Callable[[Any, str], T]) -> T:
        """``action(file system, path)``, one attempt; without credentials of S3, an anonymous one."""
        path = self._class._strip_protocol(url)
        try:
            return action(self._open(), path)
        except Exception as error:
            if self._anonymous or type(error).__name__ not in NO_LOGIN:
                raise
        self._anonymous, self._file_system = True, None
        return action(self._open(), path)

    def _open(self) -> Any:
        if self._file_system is None:
            settings: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False, **self._from_url}
            if self.is_s3:
                timeouts = {
                    "connect_timeout": CONNECT_TIMEOUT,
                    "read_timeout": self._options.silence_timeout,
                    "retries": {"total_max_attempts": 1},
                    "max_pool_connections": CONNECTIONS,
                }
                settings |= {"anon": self._anonymous, "config_kwargs": timeouts}
            self._file_system = self._class(**settings)
            if hasattr(self._file_system, "retries"):
                self._file_system.retries = 1  # rbdata retries itself
        return self._file_system


def _check_installed(scheme: str, url: str) -> None:
    """Raise MissingExtraError if the package for this scheme is not installed, UsageError for an unknown scheme."""
    try:
        import fsspec

        fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        hint = "pip install 'rbdata[remote]'" if scheme in _S3 else "see the documentation of fsspec"
        raise MissingExtraError(
            f"{without_login(url)}: {scheme}:// needs another package ({error})", hint=hint
        ) from error
    except ValueError as error:
        hint = "give a directory, file://, http(s)://, gs://, s3://, or another scheme of fsspec"
        raise UsageError(f"{without_login(url)}: unsupported URL scheme {scheme}://", hint=hint) from error


def _name(entry: dict[str, Any]) -> str:
    return str(entry["name"]).rstrip("/").rpartition("/")[2]


def _to_object(entry: dict[str, Any], url: str) -> RemoteObject:
    tag = str(entry.get("ETag") or "").strip('"')
    stamp = tag or entry.get("generation") or entry.get("mtime") or entry.get("LastModified") or entry.get("modified")
    # S3's tag of an object uploaded in one piece is its MD5, unless the object is encrypted with a separate key.
    plain = bool(_MD5.fullmatch(tag)) and url.partition("://")[0] in _S3 and "SSEKMSKeyId" not in entry
    return RemoteObject(
        url=url,
        name=url.rpartition("/")[2],
        size=entry.get("size"),
        checksums={"md5": tag} if plain else {},
        version=str(stamp) if stamp else None,
    )


# -- S3 and compatible stores ------------------------------------------------------------------------------------------
#
# s3fs itself takes any version of the object, and any bytes for the range that it asked for.


def _read_s3_range(fs: Any, path: str, start: int, length: int, version: str) -> bytes:
    """A range of a version of an object. Raises ChecksumError if the store has another one, and as `check_first`."""
    from fsspec.asyn import sync

    bucket, key, _ = fs.split_path(path)
    span = f"bytes={start}-{start + length - 1}"
    try:
        answer = fs.call_s3("get_object", Bucket=bucket, Key=key, Range=span, IfMatch=f'"{version}"')
    except OSError as error:
        refused = getattr(error.__cause__, "response", None) or {}
        if refused.get("ResponseMetadata", {}).get("HTTPStatusCode") in (412, 416):
            raise replaced(f"s3://{path}") from error
        raise
    status = answer["ResponseMetadata"]["HTTPStatusCode"]
    check_first(status, {"Content-Range": answer.get("ContentRange", "")}, start)
    return bytes(sync(fs.loop, answer["Body"].read))
