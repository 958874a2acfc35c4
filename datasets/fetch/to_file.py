"""An object into a file: continued across processes, verified, and there only when it is whole.

While it is fetched, ``<path>.part`` holds the bytes so far and ``<path>.part.json`` says of which object:

    {"format": 1, "url": ..., "size": ..., "version": ..., "checksums": {...}}

Both are gone once ``<path>`` is there. The part is locked (flock) by the process that writes it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from ...errors import ChecksumError, DatasetBusyError, DiskSpaceError
from .location import FetchOptions, Location, RemoteObject
from .stream import OnBytes, OnRetry, Sleep, close, pinned, stream
from .verifier import Verifier

FORMAT = 1
BLOCK = 1 << 20


def fetch_to_file(
    location: Location,
    obj: RemoteObject,
    path: str | os.PathLike[str],
    *,
    options: FetchOptions | None = None,
    on_bytes: OnBytes | None = None,
    on_resume: Callable[[int], None] | None = None,
    on_retry: OnRetry | None = None,
    sleep: Sleep = time.sleep,
) -> RemoteObject:
    """Put the object at `path`, continuing what an earlier process left; returns it with the size and checksum found.

    `on_resume` hears how many bytes were there already, `on_bytes` and `on_retry` are `stream`'s. The folder must
    exist; a file at `path` is replaced. Raises as `stream` does, DiskSpaceError when the disk is full, DatasetBusyError
    when another process is fetching to the same path.
    """
    path = Path(path)
    obj = pinned(location, obj)
    with _open_part(_part(path)) as part:
        kept = resumable_bytes(_read_record(path), obj, os.fstat(part.fileno()).st_size)
        while True:
            verifier = Verifier(obj)
            _rehash(part, kept, verifier)
            if on_resume is not None and kept:
                on_resume(kept)
            try:
                _write_record(path, obj)
                pieces = stream(
                    location,
                    obj,
                    options=options,
                    start=kept,
                    verifier=verifier,
                    on_bytes=on_bytes,
                    on_retry=on_retry,
                    sleep=sleep,
                )
                try:
                    for piece in pieces:
                        _write(part, piece)
                finally:
                    close(pieces)
                os.fsync(part.fileno())
            except ChecksumError:
                if not kept:
                    _discard(path)
                    raise
                # What an earlier process left may be what is wrong (a crash of the machine can do that): all anew.
                kept = 0
                continue
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                message = f"{path}: the disk is full, {obj.url} does not fit"
                raise DiskSpaceError(message, hint="free some space and start again: it continues") from error
            break
        _part(path).replace(path)
        _record(path).unlink(missing_ok=True)
        _sync_folder(path.parent)
    found = {verifier.algorithm: verifier.checksum or ""}
    return replace(obj, size=verifier.size, checksums={**obj.checksums, **found})


def resumable_bytes(record: Mapping[str, Any] | None, obj: RemoteObject, present: int) -> int:
    """How many of the `present` bytes of a part belong to this object: all of them or none."""
    if record is None or record.get("format") != FORMAT or (obj.size is not None and present > obj.size):
        return 0
    same_place = record.get("url") == obj.url and obj.version is not None and record.get("version") == obj.version
    # Another mirror's copy is the same object when its checksum says so.
    stated = record.get("checksums") or {}
    common = set(stated) & set(obj.checksums) if isinstance(stated, dict) else set()
    same_bytes = bool(common) and all(stated[name] == obj.checksums[name] for name in common)
    return present if (same_place or same_bytes) and record.get("size") == obj.size else 0


# -- the part and its record -----------------------------------------------------------------------------------------


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _record(path: Path) -> Path:
    return path.with_name(path.name + ".part.json")


def _open_part(part: Path) -> IO[bytes]:
    while True:
        file = part.open("a+b", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The process that held the lock until now may have renamed or removed what we opened.
            if _same_file(file, part):
                return file
        except BlockingIOError as error:
            file.close()
            message = f"another process is fetching to {part.with_suffix('')}"
            raise DatasetBusyError(message, hint="wait for it to finish, or stop it") from error
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
    """Let the verifier see what is kept, and cut off the rest; the file is at its end afterwards."""
    if os.fstat(part.fileno()).st_size > kept:
        part.truncate(kept)
    part.seek(0)
    while verifier.size < kept:
        verifier.update(part.read(min(BLOCK, kept - verifier.size)))


def _write(part: IO[bytes], piece: bytes) -> None:
    # Unbuffered, so that what a killed process had received is on the disk; such a file may take less than it is given.
    rest = memoryview(piece)
    while rest:
        rest = rest[part.write(rest) :]


def _read_record(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(_record(path).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def _write_record(path: Path, obj: RemoteObject) -> None:
    record = {
        "format": FORMAT,
        "url": obj.url,
        "size": obj.size,
        "version": obj.version,
        "checksums": dict(obj.checksums),
    }
    new = _record(path).with_suffix(".json.new")
    new.write_text(json.dumps(record), encoding="utf-8")
    new.replace(_record(path))


def _discard(path: Path) -> None:
    """The record goes first: a part without one is never continued."""
    _record(path).unlink(missing_ok=True)
    _part(path).unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
