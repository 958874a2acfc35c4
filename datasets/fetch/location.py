"""The vocabulary of fetching: a remote object, a location that holds objects, time-outs and retries.

A `Location` is a directory, an HTTP server, a bucket or a Hub repository, all with one layout: folders that hold objects.
Paths inside it are relative, separated by '/', decoded (``$store$_action_ckpt.0.gz``, never ``%24``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from ...errors import UsageError


@dataclass(frozen=True)
class RemoteObject:
    """One object, as its place describes it. What the place does not state is None (or missing from `checksums`)."""

    url: str
    """Absolute and unique, without credentials: gs://bucket/key, https://..., /absolute/path."""
    name: str
    """Last path component, decoded."""
    size: int | None = None
    """Bytes as stored."""
    checksums: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Algorithm ('crc32c', 'md5', 'sha256') to lowercase hex, of the bytes as stored."""
    version: str | None = None
    """Changes when the object does: GCS generation, strong HTTP ETag or Last-Modified, "mtime_ns-size" of a file."""


# `Location` has a method called `list`, which hides the type inside the class.
Objects: TypeAlias = list[RemoteObject]
Names: TypeAlias = list[str]


@dataclass(frozen=True)
class FetchOptions:
    """How patient to be, and as whom to ask.

    Raises UsageError for values that make no sense.
    """

    attempts: int = 6
    """Attempts in a row without a single new byte before giving up."""
    backoff: float = 0.5
    """Seconds to wait after the first failure; doubles with each further one."""
    backoff_cap: float = 30.0
    """Seconds; no wait is longer, unless the server asks for it."""
    connect_timeout: float = 10.0
    """Seconds to wait for a connection."""
    silence_timeout: float = 60.0
    """Seconds without a byte after which a connection counts as broken."""
    user_project: str | None = None
    """Google Cloud project that pays for requester-pays buckets."""
    anonymous: bool | Literal["auto"] = "auto"
    """Google Cloud: True never logs in, False always does, "auto" asks anonymously first."""

    def __post_init__(self) -> None:
        if self.attempts < 1:
            message = f"attempts must be at least 1, not {self.attempts}"
            raise UsageError(message)
        if min(self.backoff, self.backoff_cap) < 0:
            message = "backoff times must not be negative"
            raise UsageError(message)
        if min(self.connect_timeout, self.silence_timeout) <= 0:
            message = "time-outs must be more than 0 seconds"
            raise UsageError(message)
        if self.anonymous not in (True, False, "auto"):
            message = f"anonymous must be True, False or 'auto', not {self.anonymous!r}"
            raise UsageError(message)


class Location(Protocol):
    """A place that holds objects.

    Picklable: it is sent to worker processes. Connections are made on first use in each process and never travel.
    `list`, `folders`, `stat` and `refresh` retry what can pass, as `options` say; `open` is one attempt, and `stream`
    is what makes it last.

    All raise ObjectNotFoundError, ForbiddenError, TransientFetchError, FetchError for what they cannot reach, and
    UsageError for a path that leads out of the place.
    """

    @property
    def url(self) -> str:
        """The place as to show to the user: no credentials, no trailing slash."""

    @property
    def options(self) -> FetchOptions: ...

    def list(self, folder: str = "") -> Objects:
        """The objects directly in the folder ('' is the top), sorted by name as text (so ``.10`` before ``.9``).

        Empty only where the folder exists; ObjectNotFoundError where it does not.
        """

    def folders(self, folder: str = "") -> Names:
        """Names of the folders directly in the folder, sorted. Raises as `list` does."""

    def stat(self, path: str) -> RemoteObject:
        """The object at this path."""

    def refresh(self, obj: RemoteObject) -> RemoteObject:
        """The same object, with all that the place states about it now."""

    def open(self, obj: RemoteObject, offset: int = 0) -> Iterator[bytes]:
        """A generator of the object's stored bytes from `offset`, in pieces of 64 KiB to 1 MiB; one attempt.

        Pinned to `obj.version` where there is one: ObjectChangedError when the place holds another by now. An early end
        or silence is a TransientFetchError. Closing the generator closes its connection.
        """


def checked_path(path: str) -> str:
    """A relative path without surrounding slashes; '' is the top.

    Raises UsageError for a path that could lead out of its place.
    """
    if not path:
        return ""
    parts = path[:-1].split("/") if path.endswith("/") else path.split("/")
    if not all(is_plain_name(part) for part in parts):
        message = f"{path!r} is not a path inside a mirror"
        raise UsageError(message, hint="give a relative path without '..', '.' or empty parts")
    return "/".join(parts)


def is_plain_name(name: str) -> bool:
    """Whether a name, our own or one a server states, is one path component and nothing else."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def joined(*parts: str) -> str:
    """The non-empty parts with '/' between them."""
    return "/".join(part for part in parts if part)


def without_login(url: str) -> str:
    """The URL without user name and password, for messages."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def checked_offset(obj: RemoteObject, offset: int) -> None:
    """Raises UsageError for an offset outside the object."""
    if offset < 0 or (obj.size is not None and offset > obj.size):
        message = f"{obj.url} has {obj.size} bytes, so none at {offset}"
        raise UsageError(message)


def require_inside(obj: RemoteObject, top: str) -> str:
    """The object's URL relative to the place's top URL.

    Raises UsageError for an object of another place: its login must not be sent there.
    """
    prefix = top if top.endswith("/") else f"{top}/"
    if not obj.url.startswith(prefix):
        message = f"{obj.url} is not in {top}"
        raise UsageError(message, hint="open the location that listed the object")
    return obj.url[len(prefix) :]
