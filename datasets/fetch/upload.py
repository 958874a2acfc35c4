"""The other direction: files into a place, each verified there, and not sent again when it is there already.

    deposit = open_deposit("s3://lab/rbdata")
    deposit.put(Path("blob"), "atari/Pong/5/observation/blob")

What a place states about an object (size, crc32c, md5) is compared with the file; where it states no checksum that the file
can be compared with, the object is read back. An object counts as sent when that agrees. A file that breaks off half-way
is begun anew, except in directories, where it is continued.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Protocol

from ...errors import ChecksumError, ForbiddenError, ObjectNotFoundError, RootNotWritableError, UsageError
from .directory import DirectoryLocation
from .fsspec_store import FsspecLocation
from .gcs import GcsLocation, translated
from .location import FetchOptions, Location, RemoteObject, checked_path, joined
from .retry import retrying
from .stream import stream
from .to_file import fetch_to_file
from .transports import open_location
from .verifier import Verifier

#: Files from twice this size on go to S3 in pieces of it.
S3_PIECE = 64 << 20
#: Pieces of a resumable upload to Google; a multiple of 256 KiB.
GCS_PIECE = 16 << 20
_BLOCK = 1 << 20

OnBytes = Callable[[int], None]


class Deposit(Protocol):
    """A place to write to; reads go through its location."""

    @property
    def location(self) -> Location: ...

    def send(self, file: LocalFile, path: str, on_bytes: OnBytes) -> None:
        """Write one file, whole; ``on_bytes`` hears what has gone (and less than nothing for what has to go again)."""


@dataclass
class LocalFile:
    """A file to be sent, with its checksums worked out when they are asked for."""

    path: Path
    _found: dict[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def checksum(self, algorithm: str) -> str:
        """Lowercase hex of ``crc32c``, ``md5`` or ``sha256``."""
        if algorithm not in self._found:
            verifier = Verifier(RemoteObject(str(self.path), self.path.name, checksums={algorithm: ""}))
            with self.path.open("rb") as file:
                while block := file.read(_BLOCK):
                    verifier.update(block)
            self._found[algorithm] = verifier.checksum or ""
        return self._found[algorithm]

    def s3_tag(self, piece: int = S3_PIECE) -> str:
        """What S3 calls an object that was stored in pieces: the MD5 of the MD5s of its pieces, and their number."""
        digests = []
        with self.path.open("rb") as file:
            while True:
                digest, left = hashlib.md5(usedforsecurity=False), piece
                while left and (block := file.read(min(_BLOCK, left))):
                    digest.update(block)
                    left -= len(block)
                if left == piece:
                    break
                digests.append(digest.digest())
                if left:
                    break
        return f"{hashlib.md5(b''.join(digests), usedforsecurity=False).hexdigest()}-{len(digests)}"


def open_deposit(url: str, options: FetchOptions | None = None) -> Deposit:
    """The place a path or URL names, to write to. Raises UsageError for one that cannot be written to."""
    location = open_location(url, options=options)
    if isinstance(location, DirectoryLocation):
        return _Directory(location)
    if isinstance(location, GcsLocation):
        return _Gcs(location)
    if isinstance(location, FsspecLocation):
        # Nobody writes anonymously by accident: without credentials that is refused here, not by chance over there.
        named = location.options.anonymous is True
        return _Fsspec(replace(location, options=replace(location.options, anonymous=named)))
    message = f"{location.url} cannot be written to"
    raise UsageError(message, hint="push to a directory, gs:// or s3://; a web server can then show that")


def put(deposit: Deposit, file: LocalFile, path: str, on_bytes: OnBytes | None = None) -> bool:
    """Make sure that a file is at ``path`` of a place; returns whether it had to be sent.

    Raises the fetch errors, and ChecksumError when what arrived is not what was sent.
    """
    path, tell = checked_path(path), on_bytes or (lambda count: None)
    try:
        there = find(deposit.location, path)
    except ForbiddenError as error:
        raise _for_writing(error) from error
    if there is not None and is_same(deposit.location, there, file):
        tell(file.size)
        return False
    deposit.send(file, path, tell)
    arrived = deposit.location.stat(path)
    if not is_same(deposit.location, arrived, file):
        message = f"{arrived.url}: what arrived is not what was sent"
        raise ChecksumError(message, hint="push again; if it fails again, the network or the store damages data")
    return True


def find(location: Location, path: str) -> RemoteObject | None:
    """The object at a path, None where there is none."""
    try:
        return location.stat(path)
    except ObjectNotFoundError:
        return None


def is_same(location: Location, there: RemoteObject, file: LocalFile) -> bool:
    """Whether an object holds a file's bytes: by what its place states, else by reading it."""
    if there.size is not None and there.size != file.size:
        return False
    for algorithm in ("crc32c", "md5", "sha256"):
        # A tag that is no MD5 after all (encrypted objects) shows as a difference: then only reading tells.
        if algorithm in there.checksums and there.checksums[algorithm] == file.checksum(algorithm):
            return True
    if "crc32c" in there.checksums:
        return False
    if there.url.startswith("s3") and "-" in (there.version or "") and there.version == file.s3_tag():
        return True
    plain = RemoteObject(there.url, there.name, there.size, {}, there.version)
    verifier = Verifier(plain)
    for _ in stream(location, plain, verifier=verifier):
        pass
    return verifier.checksum == file.checksum("crc32c")


# -- three kinds of places -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Directory:
    location: DirectoryLocation

    def send(self, file: LocalFile, path: str, on_bytes: OnBytes) -> None:
        target = Path(self.location.url, path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"{target.parent} cannot be created: {error.strerror}"
            raise RootNotWritableError(message, hint="choose another place to push to") from error
        source = open_location(file.path.parent)
        fetch_to_file(source, source.stat(file.path.name), target, on_bytes=on_bytes, on_resume=on_bytes)


@dataclass
class _Gcs:
    location: GcsLocation
    _client: Any = None

    def send(self, file: LocalFile, path: str, on_bytes: OnBytes) -> None:
        bucket, _, prefix = self.location.url[len("gs://") :].partition("/")
        options, url = self.location.options, f"{self.location.url}/{path}"

        def upload() -> None:
            with _Counted(file.path, on_bytes) as source:
                try:
                    blob = self._writer().bucket(bucket, user_project=options.user_project).blob(joined(prefix, path))
                    blob.chunk_size = GCS_PIECE
                    blob.upload_from_file(
                        source,
                        size=file.size,
                        content_type="application/octet-stream",
                        checksum="crc32c",
                        timeout=(options.connect_timeout, options.silence_timeout),
                    )
                except Exception as error:
                    source.take_back()
                    failure = translated(error, url, login=True)
                    if failure is None:
                        raise
                    raise _for_writing(failure) from error

        retrying(upload, url=url, options=options)

    def _writer(self) -> Any:
        """A client that may write: logged in, anonymous where there is nothing to log in with (the emulator)."""
        if self._client is None:
            from google.cloud import storage

            from .google_login import may_have_credentials

            if self.location.options.anonymous is True or not may_have_credentials():
                self._client = storage.Client.create_anonymous_client()
            else:
                import google.auth

                scope = "https://www.googleapis.com/auth/devstorage.read_write"
                credentials, project = google.auth.default(scopes=[scope])
                self._client = storage.Client(project=project or "<none>", credentials=credentials)
            if hasattr(self._client, "_bucket_metadata_cache"):  # see google_login
                self._client._bucket_metadata_cache = None
        return self._client


@dataclass(frozen=True)
class _Fsspec:
    location: FsspecLocation

    def send(self, file: LocalFile, path: str, on_bytes: OnBytes) -> None:
        from fsspec.callbacks import Callback

        url = f"{self.location.url}/{path}"
        files = self.location.file_system()

        class Counting(Callback):
            sent = 0

            def relative_update(self, inc: int = 1) -> None:
                self.sent += inc
                on_bytes(inc)

        def upload() -> None:
            counting = Counting()
            pieces = {"chunksize": S3_PIECE} if files.protocol in ("s3", "s3a") else {}

            def put_file(fs: Any, target: str) -> None:
                if files.protocol not in ("s3", "s3a"):
                    fs.makedirs(target.rpartition("/")[0], exist_ok=True)
                fs.put_file(str(file.path), target, callback=counting, **pieces)

            try:
                files.ask(url, put_file)
            except Exception as error:
                on_bytes(-counting.sent)
                raise _for_writing(error) from error
            on_bytes(file.size - counting.sent)

        retrying(upload, url=url, options=self.location.options)


def _for_writing(error: Exception) -> Exception:
    """The same error with a hint about writing; those of the readers' errors are about reading."""
    if isinstance(error, ForbiddenError):
        return ForbiddenError(str(error), hint="log in as somebody who may write there")
    if isinstance(error, ObjectNotFoundError):
        return ObjectNotFoundError(
            str(error), hint="the bucket must be there already: create it with the store's tools"
        )
    return error


class _Counted:
    """A file that tells how much of it was read; what is read twice counts once."""

    def __init__(self, path: Path, on_bytes: OnBytes) -> None:
        self._file: IO[bytes] = path.open("rb")
        self._on_bytes, self._most = on_bytes, 0

    def __enter__(self) -> _Counted:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        at = self._file.tell()
        if at > self._most:
            self._on_bytes(at - self._most)
            self._most = at
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def take_back(self) -> None:
        """What was counted has to go again."""
        self._on_bytes(-self._most)
        self._most = 0
