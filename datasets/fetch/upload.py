"""Uploads files to a location: each is verified there, and not sent if the location already holds it.

    location = open_writable("s3://lab/rbdata")
    upload(location, LocalFile(Path("blob")), "atari/Pong/5/observation/blob")

Stated size and checksum (crc32c, md5) are compared with the file's; if the location states no checksum, the object is read
back. An interrupted upload starts over with that file, except in directories, where it continues.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import ChecksumError, ForbiddenError, ObjectNotFoundError, UsageError
from ...storage.checksums import hash_file
from . import open_location
from .directory import DirectoryLocation
from .fsspec_store import S3_PIECE
from .location import Location, OnBytes, RemoteObject, check_path, find_object
from .reading import Verifier, discard_part, stream
from .retries import FetchOptions


@dataclass
class LocalFile:
    """A file to upload; each checksum is computed on first use."""

    path: Path
    _checksums: dict[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def checksum(self, algorithm: str) -> str:
        """Lowercase hex of ``crc32c``, ``md5``, ``sha256`` or ``git`` (a blob's)."""
        if algorithm not in self._checksums:
            verifier = Verifier(RemoteObject(str(self.path), self.path.name, self.size, {algorithm: ""}))
            self._checksums[algorithm] = hash_file(self.path, verifier).checksum or ""
        return self._checksums[algorithm]

    def s3_tag(self, piece: int = S3_PIECE) -> str:
        """S3's tag of an object uploaded in pieces: the MD5 of the MD5s of its pieces, and their number."""
        with self.path.open("rb") as file:
            pieces = iter(lambda: file.read(piece), b"")
            digests = [hashlib.md5(data, usedforsecurity=False).digest() for data in pieces]
        return f"{hashlib.md5(b''.join(digests), usedforsecurity=False).hexdigest()}-{len(digests)}"


def open_writable(url: str, options: FetchOptions | None = None) -> Location:
    """The location that a path or URL names. Raises UsageError for one that is read-only."""
    location = open_location(url, options=options)
    if not location.takes_objects:
        hint = "push to a directory, gs://, s3:// or hf://datasets/owner/name; a web server can serve a directory"
        raise UsageError(f"{location.url} is read-only", hint=hint)
    return location


def upload(location: Location, file: LocalFile, path: str, on_bytes: OnBytes = lambda count: None) -> bool:
    """Upload a file to ``path`` of the location unless it is there already; returns whether it was sent.

    Raises the fetch errors, and ChecksumError if the stored object differs from the file.
    """
    path = check_path(path)
    try:
        existing = find_object(location, path)
        if existing is not None and has_same_bytes(location, existing, file):
            if isinstance(location, DirectoryLocation):
                discard_part(Path(location.url, path))
            on_bytes(file.size)
            return False
        location.write(file.path, path, on_bytes)
        stored = location.stat(path)
    except ForbiddenError as error:
        error.hint = "log in with an account that has write access"
        raise
    except ObjectNotFoundError as error:
        error.hint = "the bucket must exist: create it with the store's tools"
        raise
    if not has_same_bytes(location, stored, file):
        message = f"{stored.url}: checksum mismatch after the upload"
        raise ChecksumError(message, hint="push again; if it fails again, the network or the store damages data")
    return True


def has_same_bytes(location: Location, obj: RemoteObject, file: LocalFile) -> bool:
    """Whether an object holds a file's bytes: by its stated size and checksum, else by reading it."""
    if obj.size is not None and obj.size != file.size:
        return False
    for algorithm in ("crc32c", "md5", "sha256"):
        # The tag of an encrypted object is not its MD5, so after a difference the object is read.
        if algorithm in obj.checksums and obj.checksums[algorithm] == file.checksum(algorithm):
            return True
    if "crc32c" in obj.checksums:
        return False
    if obj.url.startswith("s3") and "-" in (obj.version or "") and obj.version == file.s3_tag():
        return True
    plain = RemoteObject(obj.url, obj.name, obj.size, {}, obj.version)
    verifier = Verifier(plain)
    for _ in stream(location, plain, verifier=verifier):
        pass
    return verifier.checksum == file.checksum("crc32c")
