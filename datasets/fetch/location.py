"""The vocabulary of fetching: a remote object, a location that holds objects, time-outs and retries.

A `Location` is a directory, an HTTP server, a bucket or a Hub repository, all with one layout: folders that hold objects.
Paths inside it are relative, separated by '/', decoded (``$store$_action_ckpt.0.gz``, never ``%24``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from ...errors import FetchError, UsageError

#: Bytes per second, on average over the time-out for silence: a connection that is slower is considered lost.
LEAST_RATE = 1024
#: Connections of a process that are kept for further requests: as many as readers of remote datasets use at once.
CONNECTIONS = 16
#: Pages of a listing, which have up to a thousand names each; names on all of them, and the characters of these.
MOST_PAGES, MOST_LISTED, MOST_CHARACTERS = 500, 100_000, 16 << 20
#: Folders that are searched one by one.
MOST_FOLDERS = 10_000
#: Times the time-out for silence that a listing may take, all pages together.
LISTING_TIMEOUTS = 10
#: Bytes of an answer of a bucket about its objects: a page has at most a thousand names of 1 KiB.
LONGEST_ANSWER = 8 << 20
#: Characters of a name: file systems and buckets have no longer ones.
LONGEST_NAME = 1024
#: The size of an object is smaller.
NO_SIZE = 1 << 63


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


# `Location` has a method called `list`, which hides the type inside the class.
Objects: TypeAlias = list[RemoteObject]
Names: TypeAlias = list[str]


@dataclass(frozen=True)
class FetchOptions:
    """Retries, time-outs and credentials of requests. Raises UsageError for invalid values."""

    attempts: int = 6
    """Failures in a row, without progress between them, after which there is no retry."""
    backoff: float = 0.5
    """Seconds to wait after the first failure; doubles with each further one."""
    backoff_cap: float = 30.0
    """Longest wait in seconds, unless the server asks for a longer one."""
    connect_timeout: float = 10.0
    """Seconds to wait for a connection."""
    silence_timeout: float = 60.0
    """Seconds without a byte, or of less than LEAST_RATE, after which a connection is considered lost."""
    user_project: str | None = None
    """Google Cloud project billed for requester-pays buckets."""
    anonymous: bool | Literal["auto"] = "auto"
    """Google Cloud: True never logs in, False always does, "auto" first tries without a login."""

    @property
    def timeouts(self) -> tuple[float, float]:
        """For connecting and between two bytes, as requests and Google's client expect them."""
        return self.connect_timeout, self.silence_timeout

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise UsageError(f"attempts must be at least 1, not {self.attempts}")
        if min(self.backoff, self.backoff_cap) < 0:
            raise UsageError("backoff times must not be negative")
        if min(self.connect_timeout, self.silence_timeout) <= 0:
            raise UsageError("time-outs must be more than 0 seconds")
        if self.anonymous not in (True, False, "auto"):
            raise UsageError(f"anonymous must be True, False or 'auto', not {self.anonymous!r}")


class Location(Protocol):
    """A place that holds objects.

    Picklable, for worker processes; connections are opened on first use in each process and not pickled. `list`,
    `folders`, `stat` and `refresh` retry temporary failures as `options` say; `open` is one attempt, and `stream` adds
    the retries.

    All raise ObjectNotFoundError, ForbiddenError, TransientFetchError or FetchError if the object cannot be read, and
    UsageError for a path that leads out of the location.
    """

    @property
    def url(self) -> str:
        """The URL for messages and manifests: no credentials, no trailing slash."""

    @property
    def options(self) -> FetchOptions: ...

    def list(self, folder: str = "") -> Objects:
        """The objects directly in the folder ('' is the top), sorted by name as text (so ``.10`` before ``.9``).

        Raises ObjectNotFoundError if the folder does not exist.
        """

    def folders(self, folder: str = "") -> Names:
        """Names of the folders directly in the folder, sorted. Raises as `list` does."""

    def stat(self, path: str) -> RemoteObject:
        """The object at this path."""

    def refresh(self, obj: RemoteObject) -> RemoteObject:
        """The same object, with all that the location states about it now."""

    def read_range(self, obj: RemoteObject, start: int, length: int) -> bytes:
        """Bytes ``start..start+length-1`` of this version of an object, all of them; with retries, by one request each."""

    def open(self, obj: RemoteObject, offset: int = 0) -> Generator[bytes, None, None]:
        """A generator of the object's stored bytes from `offset`, in pieces of 64 KiB to 1 MiB; one attempt.

        Raises ObjectChangedError if the location holds another version than `obj.version` (if stated), and
        TransientFetchError if the connection is lost or times out. Closing the generator closes its connection.
        """


class Pages:
    """The bounds of a listing that comes page by page: how many pages and names it may have, and how long it may take."""

    def __init__(self, place: str, silence_timeout: float) -> None:
        self._place = place
        self._seconds = LISTING_TIMEOUTS * silence_timeout
        self._deadline = time.monotonic() + self._seconds
        self._names = self._characters = 0
        self._seen = set[int]()  # of tokens, which may have megabytes

    @property
    def seconds_left(self) -> float:
        return self._deadline - time.monotonic()

    def check_time(self) -> None:
        """Raises FetchError after the time that a listing may take."""
        if self.seconds_left <= 0:
            raise FetchError(f"{self._place}: the listing took more than {self._seconds:.0f} s", hint=_NO_END)

    def add(self, names: Sequence[str], following: Hashable) -> None:
        """Count the names of a page, and the token or address of the page after it (None: it is the last).

        Raises FetchError for a page that leads to one before it, and for more than a listing may have.
        """
        self._names += len(names)
        self._characters += sum(map(len, names))
        number = len(self._seen) + 1
        if following is not None and hash(following) in self._seen:
            message = f"{self._place}: the listing has no end: page {number} leads to one before it"
            raise FetchError(message, hint=_NO_END)
        if number > MOST_PAGES or self._names > MOST_LISTED or self._characters > MOST_CHARACTERS:
            message = (
                f"{self._place}: the listing has no end, or is too long: {self._names:,} names on {number:,} pages"
            )
            raise FetchError(message, hint=_NO_END)
        self.check_time()
        self._seen.add(hash(following))


def check_search(place: str, folders: int) -> None:
    """Raises FetchError for more folders than are searched one by one."""
    if folders > MOST_FOLDERS:
        raise FetchError(f"{place} has more than {MOST_FOLDERS:,} folders to be searched", hint=_NO_END)


_NO_END = "give a folder further down, or use another mirror (--mirror)"


def stated_size(size: int | None) -> int | None:
    """A size in bytes, or None, as a server states it. Raises ValueError for an impossible size."""
    if size is not None and not 0 <= size < NO_SIZE:
        raise ValueError("a size is negative, or has too many digits")
    return size


def check_path(path: str) -> str:
    """A relative path without a slash at its end; '' is the top. Raises UsageError for one that could lead out of it."""
    if not path:
        return ""
    parts = path[:-1].split("/") if path.endswith("/") else path.split("/")
    if not all(is_plain_name(part) for part in parts):
        message = f"{path!r} is not a path inside a mirror"
        raise UsageError(message, hint="give a relative path without '..', '.' or empty parts")
    return "/".join(parts)


def is_plain_name(name: str) -> bool:
    """Whether a name, from the user or a server, is a single path component."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name and len(name) <= LONGEST_NAME


def join_path(*parts: str) -> str:
    """The non-empty parts with '/' between them."""
    return "/".join(part for part in parts if part)


def is_remote(text: str | os.PathLike[str]) -> bool:
    """Whether this is a URL, not an id or a path."""
    return "://" in os.fspath(text)


def without_login(url: str) -> str:
    """The URL without user name and password, for messages."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def check_endpoint(url: str, variable: str) -> str:
    """The address of a server in an environment variable. Raises UsageError for an invalid one."""
    if not url.lower().startswith(("http://", "https://")):
        message = f"{variable} is not the address of a server: {without_login(url)}"
        raise UsageError(message, hint=f"set {variable} to http://host:port or https://host")
    return url


def check_offset(obj: RemoteObject, offset: int) -> None:
    """Raises UsageError for an offset outside the object."""
    if offset < 0 or (obj.size is not None and offset > obj.size):
        raise UsageError(f"{obj.url}: offset {offset} is outside its {obj.size} bytes")


def require_inside(obj: RemoteObject, top: str) -> str:
    """The object's URL relative to ``top``. Raises UsageError for other objects: the login must not be sent elsewhere."""
    prefix = top if top.endswith("/") else f"{top}/"
    if not obj.url.startswith(prefix):
        raise UsageError(f"{obj.url} is not in {top}", hint="open the location that listed the object")
    return obj.url[len(prefix) :]
