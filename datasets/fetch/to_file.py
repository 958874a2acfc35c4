"""Fetches an object into a file: resumable by another process, verified, and at its path only when complete.

During the fetch ``<path>.part`` holds the bytes received and ``<path>.part.json`` identifies the object:

    {"format": 1, "url": ..., "size": ..., "version": ..., "checksums": {...}, "kept": 123, "sum": "..."}

``sum`` is the checksum of the first ``kept`` bytes: where the location states none that shows in the end whether the part has
changed between two processes, what lies behind them is fetched again. Both files are removed when ``<path>`` is complete.
The writing process locks ``<path>.part`` (flock).
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import IO, Any

from ...errors import ChecksumError, DatasetBusyError, DiskSpaceError
from ...storage.durable import is_full, open_plain, read_plain, sync_folder
from .location import Location, RemoteObject
from .stream import OnBytes, Verifier, pin, stream

FORMAT = 1
BLOCK = 1 << 20
#: Bytes and seconds after which the record of a part is brought up to date.
RECORD_BYTES, RECORD_SECONDS = 64 << 20, 5.0
#: Bytes; a record has less than a thousand.
_LARGEST_RECORD = 1 << 20


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
    exist; a file at `path` is replaced. Raises as `stream` does, DiskSpaceError if the disk is full, DatasetBusyError if
    another process is fetching to the same path.
    """
    path = Path(path)
    obj = pin(location, obj)
    with _open_part(_part(path)) as part:
        record = _read_record(path)
        kept = resumable_bytes(record, obj, os.fstat(part.fileno()).st_size)
        while True:
            verifier = Verifier(obj)
            _rehash(part, kept, verifier)
            if kept and not obj.checksums and (record is None or record.get("sum") != verifier.checksum):
                kept = 0
                continue
            if on_resume is not None and kept:
                on_resume(kept)
            try:
                _write_record(path, obj, verifier)
                pieces = stream(location, obj, start=kept, verifier=verifier, on_bytes=on_bytes)
                with closing(pieces), _recorded(path, obj, verifier, part) as wrote:
                    for piece in pieces:
                        _write(part, piece)
                        wrote()
                os.fsync(part.fileno())
            except ChecksumError:
                if not kept:
                    # The record first, as a part without a record is never resumed.
                    _record(path).unlink(missing_ok=True)
                    _part(path).unlink(missing_ok=True)
                    raise
                # The earlier process's bytes may be wrong (after a crash of the machine): start over.
                kept = 0
                continue
            except OSError as error:
                if not is_full(error):
                    raise
                message = f"{path}: the disk is full; no space for {obj.url}"
                hint = "free some space and run the same command again: it continues"
                raise DiskSpaceError(message, hint=hint) from error
            break
        _part(path).replace(path)
        _record(path).unlink(missing_ok=True)
        sync_folder(path.parent)
    found = {verifier.algorithm: verifier.checksum or ""}
    return replace(obj, size=verifier.size, checksums={**obj.checksums, **found})


def resumable_bytes(record: Mapping[str, Any] | None, obj: RemoteObject, present: int) -> int:
    """How many of the `present` bytes of a part can be kept for this object: all, those that were recorded, or none."""
    if record is None or record.get("format") != FORMAT or (obj.size is not None and present > obj.size):
        return 0
    same_version = record.get("url") == obj.url and obj.version is not None and record.get("version") == obj.version
    # A copy on another mirror is the same object if its checksum is the same.
    stated = record.get("checksums") or {}
    common = set(stated) & set(obj.checksums) if isinstance(stated, dict) else set()
    same_bytes = bool(common) and all(stated[name] == obj.checksums[name] for name in common)
    if not (same_version or same_bytes) or record.get("size") != obj.size:
        return 0
    if obj.checksums:  # they show in the end whether these bytes are right
        return present
    kept = record.get("kept")
    return kept if isinstance(kept, int) and 0 <= kept <= present else 0


def bytes_there(path: Path) -> int:
    """Bytes of the file at ``path`` or, while it is fetched, of its part: what the next `fetch_to_file` may keep."""
    for there in (path, _part(path)):
        if there.is_file():
            return there.stat().st_size
    return 0


def is_being_fetched(part: Path) -> bool:
    """Whether a process is writing this ``.part`` file, or that of this ``.part.json``."""
    part = part.with_name(part.name.partition(".part")[0] + ".part")
    try:
        with open_plain(part, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def discard_part(path: Path) -> None:
    """Remove what a fetch to ``path`` that was killed at its very end left beside the finished file."""
    for left in (_record(path), _record(path).with_suffix(".json.new"), _part(path)):
        left.unlink(missing_ok=True)


# -- the part and its record -----------------------------------------------------------------------------------------


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _record(path: Path) -> Path:
    return path.with_name(path.name + ".part.json")


def _open_part(part: Path) -> IO[bytes]:
    if part.is_symlink():
        part.unlink()
    while True:
        descriptor = os.open(part, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        file = os.fdopen(descriptor, "a+b", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The process that held the lock before may have renamed or removed the file after it was opened here.
            if _same_file(file, part):
                return file
        except BlockingIOError as error:
            file.close()
            message = f"another process is fetching to {part.with_suffix('')}"
            busy = DatasetBusyError(message, hint="wait for it to finish, or stop it")
            busy.is_held = partial(is_being_fetched, part)
            raise busy from error
        except BaseException:
            file.close()
            raise
        file.close()


def _same_file(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _rehash(part: IO[bytes], kept: int, verifier: Verifier) -> None:
    """Truncate the part to the kept bytes and pass them to the verifier; leaves the file at its end."""
    if os.fstat(part.fileno()).st_size > kept:
        part.truncate(kept)
    part.seek(0)
    while verifier.size < kept:
        verifier.update(part.read(min(BLOCK, kept - verifier.size)))


def _write(part: IO[bytes], piece: bytes) -> None:
    # Unbuffered, so that the bytes received by a killed process are kept; such a write may be partial.
    rest = memoryview(piece)
    while rest:
        rest = rest[part.write(rest) :]


def _read_record(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(read_plain(_record(path), _LARGEST_RECORD))
    except (OSError, ValueError):  # none, or no file: the part is fetched again
        return None
    return record if isinstance(record, dict) else None


@contextmanager
def _recorded(path: Path, obj: RemoteObject, verifier: Verifier, part: IO[bytes]) -> Iterator[Callable[[], None]]:
    """Gives what is to be called after each write: it records now and then how far the part is, as does an interruption."""
    if obj.checksums:
        yield lambda: None
        return
    size, began = verifier.size, monotonic()

    def wrote() -> None:
        nonlocal size, began
        if verifier.size - size >= RECORD_BYTES or monotonic() - began >= RECORD_SECONDS:
            os.fsync(part.fileno())
            _write_record(path, obj, verifier)
            size, began = verifier.size, monotonic()

    try:
        yield wrote
    except BaseException:
        with suppress(OSError):  # a full disk
            if os.fstat(part.fileno()).st_size == verifier.size:
                _write_record(path, obj, verifier)
        raise


def _write_record(path: Path, obj: RemoteObject, verifier: Verifier) -> None:
    record = {
        "format": FORMAT,
        "url": obj.url,
        "size": obj.size,
        "version": obj.version,
        "checksums": dict(obj.checksums),
        "kept": verifier.size,
        "sum": verifier.checksum,
    }
    new = _record(path).with_suffix(".json.new")
    new.unlink(missing_ok=True)  # never through a link
    new.write_text(json.dumps(record), encoding="utf-8")
    new.replace(_record(path))
