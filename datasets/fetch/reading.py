"""Reads objects: as a stream (`stream`), with read-ahead (`read_ahead`), into a file (`fetch_to_file`).

A stream yields every byte exactly once and in order, across network failures, and verifies size and checksum. A fetch into a
file is resumable by another process, and the file is at its path only when it is complete: until then ``<path>.part`` holds
the bytes received and ``<path>.part.json`` identifies the object:

    {"format": 1, "url": ..., "size": ..., "version": ..., "checksums": {...}, "kept": 123, "sum": "..."}

``sum`` is the checksum of the first ``kept`` bytes. If the location states no checksum, a change of the part between two
processes would go unnoticed, so bytes beyond ``kept`` are fetched again. Both files are removed when ``<path>`` is complete.
The writing process holds the lock ``<path>.part.lock``.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import IO, Any, TypeVar

from ...errors import ChecksumError, DiskError, FetchError, TransientFetchError
from ...storage.checksums import Crc32c
from ...storage.durable import is_full, sync_folder, write_atomically
from ...storage.lock import WriterLock
from ...storage.threads import map_in_threads
from .location import Location, OnBytes, RemoteObject
from .retries import MIN_RATE, Retry, next_retry, transient

OnRetry = Callable[[Retry], None]

# In order of preference: crc32c runs at memory speed, the others at 0.5 to 2 GB/s. "git" is the id of a blob of git.
_ALGORITHMS = ("crc32c", "sha256", "md5", "git")

_HINT = "fetch it again; if it fails again, the mirror's copy is damaged: use another mirror (--mirror)"


class Verifier:
    """Counts and hashes an object's bytes as they are received, and at the end compares them with what the location states.

    After `finish`, `size` and `checksum` are those of the received bytes, even if the location states neither. Of a stream
    without its first ``skipped`` bytes, only the size is compared.
    """

    def __init__(self, obj: RemoteObject, skipped: int = 0) -> None:
        self.obj, self.size = obj, skipped
        # The fastest one stated, else crc32c, for the manifest.
        self.algorithm = next((name for name in _ALGORITHMS if name in obj.checksums), "crc32c")
        self._hash: Any = None
        if skipped:
            return
        if self.algorithm == "crc32c":
            self._hash = Crc32c()
        elif self.algorithm == "git":
            # https://git-scm.com/book/en/v2/Git-Internals-Git-Objects: the SHA-1 of a header with the size, and the bytes
            self._hash = hashlib.sha1(b"blob %d\0" % (obj.size or 0), usedforsecurity=False)
        else:
            self._hash = hashlib.new(self.algorithm, usedforsecurity=False)

    @property
    def checksum(self) -> str | None:
        """Lowercase hex of `algorithm` over the bytes received so far; None if only the size is compared."""
        return None if self._hash is None else str(self._hash.hexdigest())

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


def resolve(location: Location, objects: Iterable[RemoteObject]) -> list[RemoteObject]:
    """`pin` for many objects, over several connections; in the same order."""
    wanted = list(objects)
    if all(obj.version is not None or obj.size is not None for obj in wanted):
        return wanted
    return list(map_in_threads(lambda obj: pin(location, obj), wanted, 8, "rbdata-resolve"))


def stream(
    location: Location,
    obj: RemoteObject,
    *,
    start: int = 0,
    verifier: Verifier | None = None,
    on_bytes: OnBytes | None = None,
    on_retry: OnRetry | None = None,
) -> Generator[bytes, None, None]:
    """A generator of the object's stored bytes from `start`: each exactly once, in order, verified at the end.

    After a lost connection it continues at the same byte of the same version, as often as the options of the
    location allow; a connection that delivered at least `MIN_RATE` (and as many bytes) resets the count of failures.

    `verifier` must have processed the first `start` bytes; without one, a stream that does not start at 0 is verified by
    size only. `on_bytes` is called with the length of each piece, `on_retry` with a `Retry` before each wait.

    Raises ChecksumError at the end, or at once for an object that was replaced; ForbiddenError and ObjectNotFoundError at
    once; and TransientFetchError after the last attempt. Bytes yielded before an error are not verified, and neither are
    those of an object without stated size and checksum.
    """
    obj = pin(location, obj)
    verifier = verifier or Verifier(obj, start)
    position, failures = start, 0
    while True:
        before, began = position, time.monotonic()
        try:
            with closing(location.open(obj, position)) as pieces:
                for piece in pieces:
                    verifier.update(piece)
                    position += len(piece)
                    if on_bytes is not None:
                        on_bytes(len(piece))
                    yield piece
            # A clean end before the object's size is an unreported lost connection, unless a request for the rest returns
            # nothing.
            if obj.size is None or position >= obj.size or position == before:
                return verifier.finish()
            raise transient(f"{obj.url}: connection closed after {position} of {obj.size} bytes")
        except TransientFetchError as error:
            if position and obj.version is None and obj.size is None and not obj.checksums:
                # A replacement of the object between two requests could not be detected.
                message = f"{error.message}; cannot be resumed, as the server states neither size nor version"
                raise TransientFetchError(message, hint=error.hint) from error
            useful = position - before >= MIN_RATE * max(1.0, time.monotonic() - began)
            failures = 1 if useful else failures + 1
            retry = next_retry(error, obj.url, position, failures, location.options)
        if on_retry is not None:
            on_retry(retry)
        time.sleep(retry.wait)


def read_all(location: Location, obj: RemoteObject, *, limit_bytes: int) -> bytes:
    """The bytes of a small object, verified. Raises FetchError if it is larger than the limit, and as `stream`."""
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


T = TypeVar("T")


def read_ahead(iterable: Iterable[T], depth: int) -> Generator[T, None, None]:
    """The same items in the same order; from the first one on, a thread fetches up to ``depth`` of them in advance.

    Close it if it is not read to its end: the thread ends after the item that it waits for, and then the inner iterator is
    closed.
    """
    end: Any = object()
    with closing(
        map_in_threads(lambda inner: next(inner, end), repeat(iter(iterable)), 1, "rbdata-readahead", ahead=depth)
    ) as ahead:
        for item in ahead:
            if item is end:
                return
            yield item
            del item  # it would stay in memory until the next one arrives


#: What `fetch_to_file` has beside a file: the bytes received, their record, and the lock of the process that writes them.
_PART, _RECORD, _LOCK = ".part", ".part.json", ".part.lock"
_FORMAT = 1
_BLOCK = 1 << 20
#: Bytes after which the record of a part is updated.
RECORD_BYTES = 16 << 20


def fetch_to_file(
    location: Location,
    obj: RemoteObject,
    path: str | os.PathLike[str],
    *,
    on_bytes: OnBytes | None = None,
    on_resume: Callable[[int], None] | None = None,
) -> RemoteObject:
    """Fetch the object to `path`, continuing an earlier process's part; returns it with its size and checksum.

    `on_resume` is called with the number of bytes of that part; `on_bytes` is `stream`'s. The folder must
    exist; a file at `path` is replaced. Raises as `stream` does, DiskError if the disk is full, DatasetBusyError if
    another process is fetching to the same path.
    """
    path = Path(path)
    obj = pin(location, obj)
    with _lock_of(path), _open_part(path) as part:
        verifier = _resume(path, obj, part)
        if on_resume is not None and verifier.size:
            on_resume(verifier.size)
        while True:
            kept = verifier.size
            try:
                _receive(location, obj, path, part, verifier, on_bytes)
                break
            except ChecksumError:
                _beside(path, _RECORD).unlink(missing_ok=True)  # first, as a part without a record is never resumed
                if not kept:
                    _beside(path, _PART).unlink(missing_ok=True)
                    raise
                # The earlier process's bytes may be wrong (after a crash of the machine): start over.
                part.truncate(0)
                verifier = Verifier(obj)
            except OSError as error:
                if not is_full(error):
                    raise
                hint = "free some space and run the same command again: it continues"
                raise DiskError(f"{path}: the disk is full; no space for {obj.url}", hint=hint) from error
        _beside(path, _PART).replace(path)
        _beside(path, _RECORD).unlink(missing_ok=True)
        sync_folder(path.parent)
    found = {verifier.algorithm: verifier.checksum or ""}
    return replace(obj, size=verifier.size, checksums={**obj.checksums, **found})


def _resume(path: Path, obj: RemoteObject, part: IO[bytes]) -> Verifier:
    """Truncate a part to the bytes that can be kept, which the verifier has processed."""
    record, present, verifier = _read_record(path), os.fstat(part.fileno()).st_size, Verifier(obj)
    start = resumable_bytes(record, obj, present)
    part.seek(0)
    while verifier.size < start:
        verifier.update(part.read(min(_BLOCK, start - verifier.size)))
    if not obj.checksums and record.get("sum") != verifier.checksum:
        verifier = Verifier(obj)
    if present > verifier.size:
        part.truncate(verifier.size)
    return verifier


def _receive(
    location: Location, obj: RemoteObject, path: Path, part: IO[bytes], verifier: Verifier, on_bytes: OnBytes | None
) -> None:
    """Append the rest of the object to a part, whose record is updated now and then, and by an interruption."""
    recorded = verifier.size
    try:
        _write_record(path, obj, verifier)
        with closing(stream(location, obj, start=recorded, verifier=verifier, on_bytes=on_bytes)) as pieces:
            for piece in pieces:
                # Unbuffered, so that the bytes received by a killed process are kept; such a write may be partial.
                rest = memoryview(piece)
                while rest:
                    rest = rest[part.write(rest) :]
                if verifier.size - recorded >= RECORD_BYTES:
                    os.fsync(part.fileno())
                    _write_record(path, obj, verifier)
                    recorded = verifier.size
        os.fsync(part.fileno())
    except BaseException:
        with suppress(OSError):  # a full disk
            if os.fstat(part.fileno()).st_size == verifier.size:
                _write_record(path, obj, verifier)
        raise


def resumable_bytes(record: Mapping[str, Any], obj: RemoteObject, present: int) -> int:
    """How many of the `present` bytes of a part can be resumed for this object: all, those recorded, or none."""
    if record.get("format") != _FORMAT or (obj.size is not None and present > obj.size):
        return 0
    same_version = record.get("url") == obj.url and obj.version is not None and record.get("version") == obj.version
    # A copy on another mirror is the same object if its checksum is the same.
    stated = record.get("checksums") or {}
    common = set(stated) & set(obj.checksums) if isinstance(stated, dict) else set()
    same_bytes = bool(common) and all(stated[name] == obj.checksums[name] for name in common)
    if not (same_version or same_bytes) or record.get("size") != obj.size:
        return 0
    if obj.checksums:  # compared at the end
        return present
    recorded = record.get("kept")
    return recorded if isinstance(recorded, int) and 0 <= recorded <= present else 0


def bytes_there(path: Path) -> int:
    """Bytes of the file at ``path``, or of its part: what the next `fetch_to_file` may keep."""
    for file in (path, _beside(path, _PART)):
        if file.is_file():
            return file.stat().st_size
    return 0


def is_being_fetched(left: Path) -> bool:
    """Whether a process is fetching the file beside which it has this one (``.part``, ``.part.json``, ``.part.lock``)."""
    return _lock_of(left.with_name(left.name.rpartition(_PART)[0])).is_held()


def discard_part(path: Path) -> None:
    """Remove the files beside a finished ``path`` that a fetch leaves if it is killed at its very end."""
    for suffix in (_RECORD, _RECORD + ".tmp", _PART, _LOCK):
        _beside(path, suffix).unlink(missing_ok=True)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _lock_of(path: Path) -> WriterLock:
    return WriterLock(_beside(path, _LOCK), str(path))


def _open_part(path: Path) -> IO[bytes]:
    part = _beside(path, _PART)
    if part.is_symlink():
        part.unlink()
    return part.open("a+b", buffering=0)


def _read_record(path: Path) -> dict[str, Any]:
    """The record; empty if it is missing or invalid: the part is fetched again."""
    try:
        record = json.loads(_beside(path, _RECORD).read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _write_record(path: Path, obj: RemoteObject, verifier: Verifier) -> None:
    record = {
        "format": _FORMAT,
        "url": obj.url,
        "size": obj.size,
        "version": obj.version,
        "checksums": dict(obj.checksums),
        "kept": verifier.size,
        "sum": verifier.checksum,
    }
    write_atomically(_beside(path, _RECORD), json.dumps(record).encode())
