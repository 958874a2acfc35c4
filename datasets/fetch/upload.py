"""Uploads files to a location. Each is verified there, and not sent if the location already holds it.

    uploader = open_uploader("s3://lab/rbdata")
    upload(uploader, LocalFile(Path("blob")), "atari/Pong/5/observation/blob")

Verification compares the stated size and checksum (crc32c, md5) with the file; if the location states no checksum, the
object is read back. An interrupted upload starts over with that file, except in directories, where it continues.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from ...errors import ChecksumError, DiskError, ForbiddenError, ObjectNotFoundError, UsageError
from ...storage.checksums import hash_file
from ...storage.folder import remove_empty
from . import open_location
from .fsspec_store import FsspecLocation
from .gcs import GcsLocation, google_error, make_client
from .location import DirectoryLocation, Location, RemoteObject, check_path, find_object, join_path
from .reading import OnBytes, Verifier, discard_part, fetch_to_file, stream
from .retries import FetchOptions

#: Bytes per piece of a multipart upload to S3, used for files of twice this size and more.
S3_PIECE = 64 << 20
#: Bytes per piece of a resumable upload to Google; a multiple of 256 KiB.
GCS_PIECE = 16 << 20

_NEEDS_ACCESS = "log in with an account that has write access"


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


def open_uploader(url: str, options: FetchOptions | None = None) -> Uploader:
    """An uploader to the location that a path or URL names. Raises UsageError for one that is read-only."""
    location = open_location(url, options=options)
    if isinstance(location, DirectoryLocation):
        return DirectoryUploader(location)
    if isinstance(location, GcsLocation):
        return GcsUploader(location)
    if isinstance(location, FsspecLocation):
        # Never fall back to anonymous uploads: without credentials, fail instead.
        anonymous = location.options.anonymous is True
        return FsspecUploader(replace(location, options=replace(location.options, anonymous=anonymous)))
    if location.url.startswith("hf://"):
        message = f"{location.url}: the Hub takes whole datasets, not files"
        raise UsageError(message, hint="push to hf://datasets/owner/name")
    message = f"{location.url} is read-only"
    raise UsageError(message, hint="push to a directory, gs:// or s3://; a web server can serve a directory")


def upload(uploader: Uploader, file: LocalFile, path: str, on_bytes: OnBytes | None = None) -> bool:
    """Upload a file to ``path`` of the location unless it is there already; returns whether it was sent.

    Raises the fetch errors, and ChecksumError if the stored object differs from the file.
    """
    path, report = check_path(path), on_bytes or (lambda count: None)
    location = uploader.location
    try:
        existing = find_object(location, path)
    except ForbiddenError as error:
        error.hint = _NEEDS_ACCESS
        raise
    if existing is not None and has_same_bytes(location, existing, file):
        if isinstance(location, DirectoryLocation):
            discard_part(Path(location.url, path))
        report(file.size)
        return False
    uploader.send(file, path, report)
    stored = location.stat(path)
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


# -- uploaders ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DirectoryUploader:
    location: DirectoryLocation

    def send(self, file: LocalFile, path: str, on_bytes: OnBytes) -> None:
        target = Path(self.location.url, path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"{target.parent} cannot be created: {error.strerror}"
            raise DiskError(message, hint="choose another mirror to push to") from error
        source = open_location(file.path.parent)
        fetch_to_file(source, source.stat(file.path.name), target, on_bytes=on_bytes, on_resume=on_bytes)

    def remove(self, path: str) -> None:
        """Also remove folders that become empty. If a folder above the file is a symbolic link, remove only the link: its
        target is not part of the mirror."""
        top, target = Path(self.location.url), Path(self.location.url, check_path(path))
        above = (top / parent for parent in reversed(target.relative_to(top).parents) if parent.parts)
        target = next((link for link in above if link.is_symlink()), target)
        try:
            target.unlink(missing_ok=True)
        except OSError as error:
            message = f"{target} cannot be removed: {error.strerror}"
            raise DiskError(message, hint="check the owner and permissions of the mirror") from error
        remove_empty(target.parent, top)

    def prune(self, folder: str) -> None:
        """Remove the empty folders in a folder, and its parents that become empty."""
        top = Path(self.location.url)
        for here, _, _ in os.walk(top / folder, topdown=False):
            remove_empty(Path(here), top)


@dataclass
class StoreUploader:
    """To a store, by its client, with retries. A derived class makes one attempt."""

    location: Any

    def send(self, file: LocalFile, path: str, on_bytes: OnBytes) -> None:
        """Write one file; ``on_bytes`` is called with the bytes sent (negative for bytes that must be sent again)."""
        sent = 0

        def count(length: int) -> None:
            nonlocal sent
            sent += length
            on_bytes(length)

        def send_once() -> None:
            count(-sent)
            self._send_once(file, path, count)

        self._with_retries(send_once, path)
        count(file.size - sent)

    def remove(self, path: str) -> None:
        """Remove one object, if it exists."""
        path = check_path(path)
        with suppress(ObjectNotFoundError):
            self._with_retries(lambda: self._remove_once(path), path)

    def _with_retries(self, call: Callable[[], None], path: str) -> None:
        try:
            self.location._with_retries(call, f"{self.location.url}/{path}")
        except (ForbiddenError, ObjectNotFoundError) as error:
            missing = isinstance(error, ObjectNotFoundError)
            error.hint = "the bucket must exist: create it with the store's tools" if missing else _NEEDS_ACCESS
            raise

    def _send_once(self, file: LocalFile, path: str, count: OnBytes) -> None:
        raise NotImplementedError

    def _remove_once(self, path: str) -> None:
        raise NotImplementedError


@dataclass
class GcsUploader(StoreUploader):
    location: GcsLocation
    _client: Any = None

    def _send_once(self, file: LocalFile, path: str, count: OnBytes) -> None:
        with _CountingFile(file.path, count) as source, self._blob(path) as blob:
            blob.chunk_size = GCS_PIECE
            blob.upload_from_file(source, size=file.size, checksum="crc32c", timeout=self.location.options.timeouts)

    def _remove_once(self, path: str) -> None:
        with self._blob(path) as blob:
            blob.delete(timeout=self.location.options.timeouts)

    @contextmanager
    def _blob(self, path: str) -> Iterator[Any]:
        """The client's object, around one attempt."""
        bucket, _, prefix = self.location.url.removeprefix("gs://").partition("/")
        options = self.location.options
        try:
            if self._client is None:  # with write access: logged in, or anonymous without credentials (the emulator)
                login = options.anonymous is not True
                self._client = make_client(login, "read_write", required=False) or make_client(False)
            yield self._client.bucket(bucket, user_project=options.user_project).blob(join_path(prefix, path))
        except Exception as error:
            raise google_error(error, f"{self.location.url}/{path}", login=True) from error


@dataclass
class FsspecUploader(StoreUploader):
    location: FsspecLocation

    def _send_once(self, file: LocalFile, path: str, count: OnBytes) -> None:
        from fsspec.callbacks import Callback

        files, counting = self.location.file_system(), Callback()
        counting.relative_update = lambda inc=1: count(inc)

        def put_file(fs: Any, target: str) -> None:
            if files.is_s3:
                return fs.put_file(str(file.path), target, callback=counting, chunksize=S3_PIECE)
            fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            return fs.put_file(str(file.path), target, callback=counting)

        files.call(f"{self.location.url}/{path}", put_file)

    def _remove_once(self, path: str) -> None:
        self.location.file_system().call(f"{self.location.url}/{path}", lambda fs, target: fs.rm_file(target))


#: Writes files to a location.
Uploader: TypeAlias = DirectoryUploader | StoreUploader


class _CountingFile(io.BufferedReader):
    """A file that reports the bytes read from it; bytes read twice count once."""

    def __init__(self, path: Path, on_bytes: OnBytes) -> None:
        super().__init__(io.FileIO(path))
        self._on_bytes, self._most = on_bytes, 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        if self.tell() > self._most:
            self._on_bytes(self.tell() - self._most)
            self._most = self.tell()
        return data
