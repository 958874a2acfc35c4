"""What the transports have in common: checked paths, retries, ranges of large objects, one client a process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ...errors import UsageError
from .failures import call_with_retries, transient
from .location import FetchOptions, Names, Objects, RemoteObject, check_offset, check_path, require_inside

T = TypeVar("T")

# Each range is one request. The first is small, so that the first bytes arrive soon; later ones are large, so that the
# latency of a request does not matter.
FIRST_RANGE = 1 << 20
_LARGEST_RANGE = 16 << 20


class PerProcess(Generic[T]):
    """Holds a client or session, which must not be shared with or sent to another process: created on first use, not pickled,
    created again after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._value: Any = None

    def get(self, make: Callable[[], T]) -> T:
        """The value of this process; the first call creates it with `make`."""
        process = os.getpid()
        if self._owner != process:
            # A thread that does not exist in this process may have held the lock when it was forked.
            if self._owner is not None:
                self._lock = threading.Lock()
            with self._lock:
                if self._owner != process:
                    self._value = make()
                    self._owner = process
        return self._value

    def __reduce__(self) -> tuple[type[PerProcess[T]], tuple[()]]:
        return (PerProcess, ())


@dataclass(frozen=True)
class BaseLocation:
    """A `Location` without its requests: transports add `open`, and one attempt at each of the methods at the end."""

    url: str
    options: FetchOptions = field(default_factory=FetchOptions)

    def list(self, folder: str = "") -> Objects:
        return self._list_with_retries(folder)[0]

    def folders(self, folder: str = "") -> Names:
        return self._list_with_retries(folder)[1]

    def stat(self, path: str) -> RemoteObject:
        path = check_path(path)
        if not path:
            raise UsageError(f"{self.url} is a folder, not a file", hint="give the path of a file")
        return self.refresh(RemoteObject(self._url_of(path), path.rpartition("/")[2]))

    def refresh(self, obj: RemoteObject) -> RemoteObject:
        check_path(require_inside(obj, self.url))
        return self._with_retries(lambda: self._describe(obj), obj.url)

    def read_range(self, obj: RemoteObject, start: int, length: int) -> bytes:
        check_path(require_inside(obj, self.url))
        check_offset(obj, start + length)
        return self._with_retries(lambda: self._read_once(obj, start, length), obj.url) if length else b""

    def open(self, obj: RemoteObject, offset: int = 0) -> Generator[bytes, None, None]:
        raise NotImplementedError

    def _read_once(self, obj: RemoteObject, start: int, length: int) -> bytes:
        """One attempt at `read_range`."""
        data = bytearray()
        with closing(self.open(obj, start)) as pieces:
            for piece in pieces:
                data += piece[: length - len(data)]
                if len(data) == length:
                    return bytes(data)
        raise transient(f"{obj.url}: connection lost after {len(data)} of {length} bytes")

    def _list_with_retries(self, folder: str) -> tuple[Objects, Names]:
        url = self._url_of(check_path(folder))
        return self._with_retries(lambda: self._listing(url), url)

    def _with_retries(self, call: Callable[[], T], url: str) -> T:
        return call_with_retries(call, url=url, options=self.options)

    def _url_of(self, path: str) -> str:
        return f"{self.url.rstrip('/')}/{path}" if path else self.url

    def _listing(self, url: str) -> tuple[Objects, Names]:
        """The objects and the names of the folders directly in the folder at a URL."""
        raise NotImplementedError

    def _describe(self, obj: RemoteObject) -> RemoteObject:
        """What the location states about the object at ``obj.url``."""
        raise NotImplementedError


def split_ranges(obj: RemoteObject, offset: int) -> Iterator[tuple[int, int]]:
    """The start and length of the requests that read an object from ``offset`` on, whose size its store must have stated."""
    if obj.size is None:
        raise transient(f"{obj.url}: the store's answer is malformed: it states no size")
    check_offset(obj, offset)
    length = FIRST_RANGE
    while offset < obj.size:
        length = min(length, obj.size - offset)
        yield offset, length
        offset += length
        length = min(2 * length, _LARGEST_RANGE)
