"""Reads every byte of an object exactly once and in order, across network failures, and verifies size and checksum."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from typing import Any, Protocol

from ...errors import ChecksumError, FetchError, TransientFetchError
from .failures import LATER, Retry, next_try
from .location import LEAST_RATE, Location, RemoteObject

OnBytes = Callable[[int], None]
OnRetry = Callable[[Retry], None]
Sleep = Callable[[float], None]

# In order of preference: crc32c runs at memory speed, the others at 0.5 to 2 GB/s. "git" is the id of a blob of git.
_ALGORITHMS = ("crc32c", "sha256", "md5", "git")

_HINT = "fetch it again; if it fails again, the mirror's copy is damaged: use another mirror (--mirror)"


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


class _Crc32c:
    def __init__(self) -> None:
        import google_crc32c

        self._extend: Any = google_crc32c.extend
        self._value = 0

    def update(self, data: bytes, /) -> None:
        # The C function takes `bytes` only; for an argument of that type this is no copy.
        self._value = self._extend(self._value, bytes(data))

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


class Verifier:
    """Counts and hashes an object's bytes as they are received, and compares them with what the location states at the end.

    After `finish`, `size` and `checksum` are those of the received bytes, also if the location states neither.
    """

    def __init__(self, obj: RemoteObject) -> None:
        self.obj = obj
        # The fastest one stated, else crc32c, for the manifest.
        self.algorithm = next((name for name in _ALGORITHMS if name in obj.checksums), "crc32c")
        self.size = 0
        self._hash: _Hash | None
        if self.algorithm == "crc32c":
            self._hash = _Crc32c()
        elif self.algorithm == "git":
            # https://git-scm.com/book/en/v2/Git-Internals-Git-Objects: the SHA-1 of a header with the size, and the bytes
            self._hash = hashlib.sha1(b"blob %d\0" % (obj.size or 0), usedforsecurity=False)
        else:
            self._hash = hashlib.new(self.algorithm, usedforsecurity=False)

    @classmethod
    def of_size(cls, obj: RemoteObject, *, received: int) -> Verifier:
        """One that compares the size only, for a stream that does not start at byte 0."""
        verifier = cls(obj)
        verifier.size, verifier._hash = received, None
        return verifier

    @property
    def checksum(self) -> str | None:
        """Lowercase hex of `algorithm` over the bytes received so far; None if only the size is compared."""
        return None if self._hash is None else self._hash.hexdigest()

    def update(self, data: bytes) -> None:
        """Add received bytes. Raises ChecksumError if there are more than the location states."""
        self.size += len(data)
        if self.obj.size is not None and self.size > self.obj.size:
            raise ChecksumError(f"{self.obj.url}: received more than the expected {self.obj.size} bytes", hint=_HINT)
        if self._hash is not None:
            self._hash.update(data)

    def finish(self) -> None:
        """Raises ChecksumError if size or checksum of the received bytes differ from those stated."""
        obj = self.obj
        if obj.size is not None and self.size != obj.size:
            raise ChecksumError(f"{obj.url}: received only {self.size} of {obj.size} bytes", hint=_HINT)
        stated, found = obj.checksums.get(self.algorithm), self.checksum
        if stated is not None and found is not None and stated != found:
            message = f"{obj.url}: checksum mismatch, {self.algorithm} is {found}, expected {stated}"
            raise ChecksumError(message, hint=_HINT)


def pin(location: Location, obj: RemoteObject) -> RemoteObject:
    """The object with size and version, requested if the listing stated neither (web servers)."""
    return location.refresh(obj) if obj.version is None and obj.size is None else obj


def resolve(location: Location, objects: Iterable[RemoteObject], *, connections: int = 8) -> list[RemoteObject]:
    """`pin` for many objects, over several connections; in the same order."""
    wanted = list(objects)
    if all(obj.version is not None or obj.size is not None for obj in wanted):
        return wanted
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(max_workers=connections, thread_name_prefix="rbdata-resolve")
    try:
        return list(pool.map(lambda obj: pin(location, obj), wanted))
    finally:
        # Do not wait for the other requests after a failure or Ctrl-C.
        pool.shutdown(wait=False, cancel_futures=True)


def stream(
    location: Location,
    obj: RemoteObject,
    *,
    start: int = 0,
    verifier: Verifier | None = None,
    on_bytes: OnBytes | None = None,
    on_retry: OnRetry | None = None,
    sleep: Sleep = time.sleep,
) -> Generator[bytes, None, None]:
    """A generator of the object's stored bytes from `start`: each exactly once, in order, verified at the end.

    After a lost connection it continues at the same byte of the same version, as often as the options of the
    location allow; a connection that was worth its time (`LEAST_RATE` at least, and as many bytes) resets the count of
    failures.

    `verifier` must have processed the first `start` bytes; without one, a stream that does not start at 0 is verified by
    size only. `on_bytes` is called with the length of each piece, `on_retry` with a `Retry` before each wait.

    Raises ChecksumError at the end; ObjectChangedError, ForbiddenError and ObjectNotFoundError at once; and
    TransientFetchError after the last attempt. Bytes yielded before an error are not verified, and neither are those of
    an object without stated size and checksum.
    """
    obj = pin(location, obj)
    if verifier is None:
        verifier = Verifier.of_size(obj, received=start) if start else Verifier(obj)
    position, failures = start, 0
    while True:
        before, began = position, time.monotonic()
        failure: TransientFetchError | None = None
        try:
            with closing(location.open(obj, position)) as pieces:
                for piece in pieces:
                    verifier.update(piece)
                    position += len(piece)
                    if on_bytes is not None:
                        on_bytes(len(piece))
                    yield piece
        except TransientFetchError as error:
            failure = error
        if failure is None:
            # A clean end before the object's size is an unreported lost connection, unless a request for the rest
            # returns nothing.
            if obj.size is None or position >= obj.size or position == before:
                verifier.finish()
                return
            message = f"{obj.url}: connection closed after {position} of {obj.size} bytes"
            failure = TransientFetchError(message, hint=LATER)
        if position and obj.version is None and obj.size is None and not obj.checksums:
            # A replacement of the object between two requests could not be detected.
            message = f"{failure.message}; cannot be resumed, as the server states neither size nor version"
            raise TransientFetchError(message, hint=failure.hint) from failure
        useful = position - before >= LEAST_RATE * max(1.0, time.monotonic() - began)
        failures = 1 if useful else failures + 1
        retry = next_try(failure, obj.url, position, failures, location.options)
        if on_retry is not None:
            on_retry(retry)
        sleep(retry.wait)


def read_all(location: Location, obj: RemoteObject, *, limit_bytes: int) -> bytes:
    """The whole of a small object, verified. Raises FetchError if it is larger than the limit, else as `stream`."""
    obj = pin(location, obj)
    message = f"{obj.url} is larger than the limit of {limit_bytes} bytes"
    hint = "the mirror may hold a different file of this name"
    if obj.size is not None and obj.size > limit_bytes:
        raise FetchError(message, hint=hint)
    content = bytearray()
    with closing(stream(location, obj)) as pieces:
        for piece in pieces:
            content += piece
            if len(content) > limit_bytes:
                raise FetchError(message, hint=hint)
    return bytes(content)
