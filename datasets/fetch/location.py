"""A remote object, and a location that holds objects: what every transport does, over the attempts that one adds.

A `Location` is a directory, an HTTP server, a bucket or a Hub repository, all with one layout: folders that hold objects.
Paths inside it are relative, separated by '/', decoded (``$store$_action_ckpt.0.gz``, never ``%24``).
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Generic, TypeAlias, TypeVar

from ...errors import FetchError, ObjectNotFoundError, UsageError
from ...storage.folder import RAW
from ...storage.threads import map_in_threads
from .retries import NO_RANGES, FetchOptions, call_with_retries, transient, translated

T = TypeVar("T")

#: Connections that a process keeps open for reuse: as many as readers of remote datasets use at once.
CONNECTIONS = 16
#: Folders that a search lists at once.
_SEARCHERS = 8


@dataclass(frozen=True)
class RemoteObject:
    """One object as its location describes it. What the location does not state is None (or missing in `checksums`)."""

    url: str
    """Absolute and unique, without credentials: gs://bucket/key, https://..., /absolute/path."""
    name: str
    """Last path component, decoded."""
    size: int | None = None
    """Bytes as stored."""
    checksums: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Algorithm ('crc32c', 'md5', 'sha256', 'git') to lowercase hex, of the bytes as stored."""
    version: str | None = None
    """Changes when the object does: GCS generation, strong HTTP ETag or Last-Modified, "mtime_ns-size" of a file."""

    def may_hold(self, size: int, crc32c: str) -> bool:
        """Whether bytes of this size and checksum are its own, as far as its location states what they are."""
        return self.size in (None, size) and self.checksums.get("crc32c") in (None, crc32c)


# `Location` has a method called `list`, which hides the type inside the class.
Objects: TypeAlias = list[RemoteObject]
Names: TypeAlias = list[str]
OnBytes: TypeAlias = Callable[[int], None]


# -- names and headers -------------------------------------------------------------------------------------------------


def is_plain_name(name: str) -> bool:
    """Whether a name, from the user or a server, is a single path component."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def check_path(path: str) -> str:
    """A relative path without a trailing slash; '' is the top. Raises UsageError for a path that could lead outside."""
    path = path.removesuffix("/")
    if path and not all(map(is_plain_name, path.split("/"))):
        message = f"{path!r} is not a path inside a mirror"
        raise UsageError(message, hint="give a relative path without '..', '.' or empty parts")
    return path


def join_path(*parts: str) -> str:
    """The non-empty parts with '/' between them."""
    return "/".join(part for part in parts if part)


def is_remote(text: str | os.PathLike[str]) -> bool:
    """Whether this is a URL instead of an id or a path. Raises UsageError for other types."""
    if not isinstance(text, (str, os.PathLike)):
        raise UsageError(f"a dataset is named by an id, a path or a URL, not by a {type(text).__name__}")
    return "://" in os.fspath(text)


def is_hub_dataset(text: str | os.PathLike[str]) -> bool:
    """Whether this names a dataset repository of the Hugging Face Hub: ``hf://datasets/owner/name``."""
    return os.fspath(text).lower().startswith("hf://datasets/")


def without_login(url: str) -> str:
    """The URL without user name and password, for messages."""
    return re.sub(r"://[^/]*@", "://", url, count=1)


def size_in(text: str) -> int | None:
    """The number of bytes that a header states; None for other text."""
    return int(text) if re.fullmatch(r"\d{1,18}", text, re.ASCII) else None


def content_range(headers: Mapping[str, str]) -> tuple[int | None, int | None]:
    """First byte and total size from ``bytes 5-9/10``, ``bytes */10``, ``bytes 5-9/*``."""
    span, _, total = headers.get("Content-Range", "").removeprefix("bytes").strip().partition("/")
    return size_in(span.partition("-")[0]), size_in(total)


def check_first(status: int, headers: Mapping[str, str], start: int) -> None:
    """Raise ValueError if the response to a request for bytes from ``start`` states that it starts elsewhere."""
    first = content_range(headers)[0] if status == 206 else 0
    if first != start:
        raise ValueError(f"bytes from {first} instead of {start}")


def hex_of_base64(text: str) -> str:
    """Base64 as lowercase hex; '' for text that is not base64."""
    try:
        return base64.b64decode(text, validate=True).hex()
    except ValueError:
        return ""


# -- locations ---------------------------------------------------------------------------------------------------------


class PerProcess(Generic[T]):
    """Holds a client or session that processes must not share: created on first use in each process, and not pickled."""

    def __init__(self) -> None:
        #: By process id. A forked process keeps its parent's, whose connections would end if it were collected.
        self._values: dict[int, T] = {}

    def get(self, make: Callable[[], T]) -> T:
        """The value of this process; the first call creates it with `make`."""
        process = os.getpid()
        if process not in self._values:
            self._values.setdefault(process, make())
        return self._values[process]

    def __reduce__(self) -> tuple[type[PerProcess[T]], tuple[()]]:
        return (PerProcess, ())


@dataclass(frozen=True)
class Location:
    """A place that holds objects. A transport adds one attempt at each of `_listing`, `_describe` and `_read`, and one that
    takes objects too, at `_write` and `_remove`.

    Picklable, for worker processes; connections are opened on first use in each process and not pickled. Temporary failures
    are retried as `options` say; but `open` is one attempt, and `stream` adds the retries.

    All raise ObjectNotFoundError, ForbiddenError, TransientFetchError or FetchError if the object cannot be read; those that
    take a path, UsageError for one outside the location.
    """

    url: str
    """For messages and manifests: no credentials, no trailing slash."""
    options: FetchOptions = field(default_factory=FetchOptions)

    takes_objects: ClassVar[bool] = False
    """Whether `write` and `remove` are there."""

    @property
    def shown(self) -> str:
        """The URL for messages about what is read: of one file, if only that is."""
        return self.url

    def pinned(self) -> Location:
        """This location in its current version, if its store keeps versions of whole locations; else the location itself."""
        return self

    def list(self, folder: str = "") -> Objects:
        """The objects directly in the folder ('' is the top), sorted by name as text (so ``.10`` before ``.9``).

        Raises ObjectNotFoundError if the folder does not exist.
        """
        return self._list_with_retries(folder)[0]

    def folders(self, folder: str = "") -> Names:
        """Names of the folders directly in the folder, sorted. Raises as `list` does."""
        return self._list_with_retries(folder)[1]

    def walk(self, folder: str = "", deepest: int = 8) -> Iterator[tuple[str, Objects, Names]]:
        """Folders level by level, ``folder`` first: the path of each, its objects, and the names of the folders in it.

        The caller may remove names: what is left is searched next, down to ``deepest`` levels below. Raises as `list` does.
        """
        level = [folder]
        for _ in range(deepest + 1):
            listed = map_in_threads(self._list_with_retries, level, _SEARCHERS, "rbdata-search")
            below: list[str] = []
            for here, (objects, names) in zip(level, listed):
                yield here, objects, names
                below += [join_path(here, name) for name in names]
            level = below

    def stat(self, path: str) -> RemoteObject:
        """The object at this path."""
        path = check_path(path)
        if not path:
            raise UsageError(f"{self.url} is a folder, not a file", hint="give the path of a file")
        return self.refresh(RemoteObject(self._url_of(path), path.rpartition("/")[2]))

    def refresh(self, obj: RemoteObject) -> RemoteObject:
        """The object with everything that the location now states about it."""
        return self._with_retries(lambda: self._describe(obj), obj.url)

    def path_of(self, obj: RemoteObject) -> str:
        """The path of one of its objects."""
        return obj.url.removeprefix(self.url).removeprefix("/")

    def read_range(self, obj: RemoteObject, start: int, length: int) -> bytes:
        """Bytes ``start..start+length-1`` of this version of an object, by one request, with retries."""

        def read() -> bytes:
            with closing(self._read(obj, start, length)) as pieces:
                data = b"".join(pieces)
            if len(data) != length:
                raise transient(f"{obj.url}: requested {length} bytes, received {len(data)}")
            return data

        return self._with_retries(read, obj.url) if length else b""

    def open(self, obj: RemoteObject, offset: int = 0) -> Generator[bytes, None, None]:
        """A generator of the object's stored bytes from `offset`, in pieces of up to 1 MiB; one attempt.

        Raises ChecksumError if the location holds another version than `obj.version` (if stated), and
        TransientFetchError if the connection is lost or times out. Closing the generator closes its connection.
        """
        if obj.size is None or offset < obj.size:
            with translated(obj.url):
                yield from self._read(obj, offset, None)

    def write(self, source: Path, path: str, on_bytes: OnBytes) -> None:
        """Store a file at a path; ``on_bytes`` is called with the bytes sent (negative for those that are sent again)."""
        sent, url = 0, self._url_of(check_path(path))

        def count(length: int) -> None:
            nonlocal sent
            sent += length
            on_bytes(length)

        def write() -> None:
            count(-sent)
            self._write(source, url, count)

        self._with_retries(write, url)
        count(source.stat().st_size - sent)

    def remove(self, path: str) -> None:
        """Remove one object; nothing if it does not exist."""
        url = self._url_of(check_path(path))
        with suppress(ObjectNotFoundError):
            self._with_retries(lambda: self._remove(url), url)

    def _list_with_retries(self, folder: str) -> tuple[Objects, Names]:
        """Objects and names of folders, sorted: those with a plain name. Hidden files are no data: notebooks, macOS and version
        control leave copies beside them. Of folders, `.raw` holds the raw files that were kept below a root, which is a mirror.
        """
        url = self._url_of(check_path(folder))
        objects, names = self._with_retries(lambda: self._listing(url), url)
        objects = [item for item in objects if is_plain_name(item.name) and item.name[0] != "."]
        names = [name for name in names if is_plain_name(name) and (name[0] != "." or name == RAW)]
        return sorted(objects, key=lambda item: item.name), sorted(names)

    def _with_retries(self, call: Callable[[], T], url: str) -> T:
        def once() -> T:
            with translated(url):
                return call()

        return call_with_retries(once, url=url, options=self.options)

    def _url_of(self, path: str) -> str:
        return f"{self.url.rstrip('/')}/{path}" if path else self.url

    def _listing(self, url: str) -> tuple[Objects, Names]:
        """The objects and the names of the folders directly in the folder at a URL."""
        raise NotImplementedError

    def _describe(self, obj: RemoteObject) -> RemoteObject:
        """What the location states about the object at ``obj.url``."""
        raise NotImplementedError

    def _read(self, obj: RemoteObject, start: int, length: int | None) -> Generator[bytes, None, None]:
        """The bytes of this version of an object from ``start``; ``length`` of them, or all."""
        raise NotImplementedError

    def _write(self, source: Path, url: str, count: OnBytes) -> None:
        """Store a file as the object at a URL."""
        raise NotImplementedError

    def _remove(self, url: str) -> None:
        """Remove the object at a URL. Raises ObjectNotFoundError, or what the client has for it."""
        raise NotImplementedError


#: Bytes of the longest piece that `Location.open` yields.
PIECE = 1 << 20
# A store is read by ranges. The first is small, so that the first bytes arrive soon; later ones are large, so that the latency
# of a request does not matter.
_FIRST_RANGE, _LARGEST_RANGE = 1 << 20, 16 << 20


@dataclass(frozen=True)
class StoreLocation(Location):
    """A `Location` whose client reads one range at a time; a transport adds `_range` instead of `_read`."""

    takes_objects = True

    def _read(self, obj: RemoteObject, start: int, length: int | None) -> Generator[bytes, None, None]:
        if obj.size is None:
            obj = replace(self._describe(obj), version=obj.version)
        if obj.size is None:
            raise transient(f"{obj.url}: the store states no size")
        end, step = obj.size if length is None else start + length, length or _FIRST_RANGE
        while start < end:
            step = min(step, end - start)
            received = 0
            for piece in self._range(obj, start, step):
                received += len(piece)
                if received > step:
                    raise FetchError(f"{obj.url}: requested {step} bytes, received more", hint=NO_RANGES)
                yield from (piece[low : low + PIECE] for low in range(0, len(piece), PIECE))
            if received < step:
                raise transient(f"{obj.url}: connection lost after {received} of {step} bytes")
            start, step = start + step, min(2 * step, _LARGEST_RANGE)

    def _range(self, obj: RemoteObject, start: int, length: int) -> Iterator[bytes]:
        """The bytes of one range, of the object's version if it states one; by one request."""
        raise NotImplementedError


def find_object(location: Location, path: str) -> RemoteObject | None:
    """The object at a path, None if it does not exist."""
    try:
        return location.stat(path)
    except ObjectNotFoundError:
        return None
