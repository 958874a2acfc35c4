"""Every byte of an object exactly once and in order, whatever the network does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import cast

from ...errors import FetchError, TransientFetchError
from .location import FetchOptions, Location, RemoteObject
from .retry import Retry, next_try
from .verifier import Verifier

OnBytes = Callable[[int], None]
OnRetry = Callable[[Retry], None]
Sleep = Callable[[float], None]


def pinned(location: Location, obj: RemoteObject) -> RemoteObject:
    """The object with size and version, asked for where the listing stated neither (web servers)."""
    return location.refresh(obj) if obj.version is None and obj.size is None else obj


def resolve(location: Location, objects: Iterable[RemoteObject], *, connections: int = 8) -> list[RemoteObject]:
    """`pinned` for many objects, over several connections at once; in the same order."""
    wanted = list(objects)
    if all(obj.version is not None or obj.size is not None for obj in wanted):
        return wanted
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(max_workers=connections, thread_name_prefix="rbdata-resolve")
    try:
        return list(pool.map(lambda obj: pinned(location, obj), wanted))
    finally:
        # After a failure or Ctrl-C the rest need not be asked for.
        pool.shutdown(wait=False, cancel_futures=True)


def stream(
    location: Location,
    obj: RemoteObject,
    *,
    options: FetchOptions | None = None,
    start: int = 0,
    verifier: Verifier | None = None,
    on_bytes: OnBytes | None = None,
    on_retry: OnRetry | None = None,
    sleep: Sleep = time.sleep,
) -> Iterator[bytes]:
    """A generator of the object's stored bytes from `start`: each exactly once, in order, verified at the end.

    A connection that breaks is opened again at the byte where it broke, pinned to the same version, as often as
    `options` (the location's own by default) allow; the count starts anew whenever a byte got through.

    `verifier` is one that has seen the first `start` bytes already; without it, a stream that does not start at 0 is
    verified by size alone. `on_bytes` hears the length of each piece, `on_retry` a `Retry` before each wait.

    Raises ChecksumError at the end, ObjectChangedError, ForbiddenError, ObjectNotFoundError at once, and
    TransientFetchError when patience is at its end. Bytes handed out before any of these are not verified; nor are any
    of an object of which the place states neither size nor checksum.
    """
    options = options or location.options
    obj = pinned(location, obj)
    if verifier is None:
        verifier = Verifier.of_size(obj, seen=start) if start else Verifier(obj)
    position, failures = start, 0
    while True:
        before = position
        failure: TransientFetchError | None = None
        pieces = location.open(obj, position)
        try:
            for piece in pieces:
                verifier.update(piece)
                position += len(piece)
                if on_bytes is not None:
                    on_bytes(len(piece))
                yield piece
        except TransientFetchError as error:
            failure = error
        finally:
            close(pieces)
        if failure is None:
            # A clean end that comes too early is a broken connection that nobody noticed, unless nothing follows when
            # asked for what is missing.
            if obj.size is None or position >= obj.size or position == before:
                verifier.finish()
                return
            message = f"{obj.url}: the server stopped after {position} of {obj.size} bytes"
            failure = TransientFetchError(message, hint="try again later, or use another mirror (--mirror)")
        if position and not can_resume(obj):
            message = f"{failure}; it cannot be continued, as the server states neither size nor version"
            raise TransientFetchError(message, hint=failure.hint) from failure
        failures = 1 if position > before else failures + 1
        retry = next_try(failure, obj.url, position, failures, options)
        if on_retry is not None:
            on_retry(retry)
        sleep(retry.wait)


def can_resume(obj: RemoteObject) -> bool:
    """Whether the second half of one object could not pass unnoticed for the second half of another."""
    return obj.version is not None or obj.size is not None or bool(obj.checksums)


def read_all(
    location: Location,
    obj: RemoteObject,
    *,
    limit_bytes: int,
    options: FetchOptions | None = None,
    on_bytes: OnBytes | None = None,
    on_retry: OnRetry | None = None,
    sleep: Sleep = time.sleep,
) -> bytes:
    """The whole of a small object, verified. Raises FetchError when it is larger than the limit, else as `stream`."""
    obj = pinned(location, obj)
    message = f"{obj.url} is larger than the {limit_bytes} bytes it can sensibly have"
    hint = "the mirror may hold another file under this name"
    if obj.size is not None and obj.size > limit_bytes:
        raise FetchError(message, hint=hint)
    content = bytearray()
    pieces = stream(location, obj, options=options, on_bytes=on_bytes, on_retry=on_retry, sleep=sleep)
    try:
        for piece in pieces:
            content += piece
            if len(content) > limit_bytes:
                raise FetchError(message, hint=hint)
    finally:
        close(pieces)
    return bytes(content)


def close(pieces: Iterator[bytes]) -> None:
    """Close a generator, and with it its connection; iterators of other kinds have nothing to close."""
    end = cast("Callable[[], None] | None", getattr(pieces, "close", None))
    if end is not None:
        end()
