"""A mirror in a Google Cloud Storage bucket, read with google-cloud-storage.

Asks anonymously first, and logs in with the application-default credentials when that is refused and there are any.
STORAGE_EMULATOR_HOST is honoured (by the client itself).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ...errors import (
    FetchError,
    ForbiddenError,
    ObjectChangedError,
    ObjectNotFoundError,
    TransientFetchError,
    UsageError,
)
from .google_login import Door
from .headers import hex_of_base64
from .http_errors import network_error, reason, status_error, transient
from .location import (
    FetchOptions,
    Names,
    Objects,
    RemoteObject,
    checked_offset,
    checked_path,
    is_plain_name,
    joined,
    require_inside,
    without_login,
)
from .per_process import PerProcess
from .retry import retrying

if TYPE_CHECKING:
    from google.cloud.storage import Blob, Bucket

T = TypeVar("T")

# Each range is a request of its own. The first is small, so that the first bytes are there at once; the last ones are
# large, so that the pause between two of them does not matter.
FIRST_RANGE = 1 << 20
LARGEST_RANGE = 16 << 20
PIECE = 1 << 20

_FIELDS = "items(name,size,crc32c,md5Hash,generation),prefixes,nextPageToken"

_CLOSED = (
    "use a mirror (--mirror); or, if you were given access, run `gcloud auth application-default login`; "
    "a bucket whose readers pay needs --user-project"
)


@dataclass(frozen=True)
class GcsLocation:
    """A `Location` in a bucket: every object whose key starts with the prefix, folders made by '/' in the keys."""

    url: str
    options: FetchOptions = field(default_factory=FetchOptions)
    _door: PerProcess[Door] = field(default_factory=PerProcess, init=False, repr=False, compare=False)

    @classmethod
    def from_url(cls, url: str, options: FetchOptions) -> GcsLocation:
        bucket, _, prefix = url[len("gs://") :].partition("/")
        if not bucket or "@" in bucket:
            message = f"{without_login(url)}: names no bucket"
            raise UsageError(message, hint="give gs://bucket or gs://bucket/folder")
        return cls("gs://" + joined(bucket, checked_path(prefix)), options)

    def list(self, folder: str = "") -> Objects:
        return self._listing(folder)[0]

    def folders(self, folder: str = "") -> Names:
        return self._listing(folder)[1]

    def stat(self, path: str) -> RemoteObject:
        path = checked_path(path)
        if not path:
            message = f"{self.url} is a folder, not an object"
            raise UsageError(message, hint="give the object's path")
        key = joined(self._prefix, path)
        return retrying(lambda: self._describe(key), url=self._url_of(key), options=self.options)

    def refresh(self, obj: RemoteObject) -> RemoteObject:
        return self.stat(require_inside(obj, self.url))

    def open(self, obj: RemoteObject, offset: int = 0) -> Iterator[bytes]:
        key = joined(self._prefix, require_inside(obj, self.url))
        if obj.size is None:
            obj = self._describe(key)
        assert obj.size is not None
        checked_offset(obj, offset)
        position, length = offset, FIRST_RANGE
        while position < obj.size:
            length = min(length, obj.size - position)
            yield from self._range(key, obj, position, length)
            position += length
            length = min(2 * length, LARGEST_RANGE)

    def _describe(self, key: str) -> RemoteObject:
        url = self._url_of(key)
        return self._as_allowed(url, partial(_reload, key=key, url=url, options=self.options))

    def _range(self, key: str, obj: RemoteObject, start: int, length: int) -> Iterator[bytes]:
        """`length` bytes from `start` by one request; when it fails half-way, the first half comes before the error."""
        sink = _Sink(obj.url, length)
        failure: TransientFetchError | None = None
        try:
            self._as_allowed(
                obj.url, partial(_download, key=key, obj=obj, sink=sink, start=start, options=self.options)
            )
        except ObjectNotFoundError as error:
            raise self._why_missing(obj, key, error) from error
        except TransientFetchError as error:
            failure = error
        yield from sink.pieces()
        if failure is None and sink.size < length:
            failure = transient(f"{obj.url}: the connection broke after {sink.size} of {length} bytes")
        if failure is not None:
            raise failure

    # -- keys --------------------------------------------------------------------------------------------------------

    @property
    def _bucket(self) -> str:
        return self.url[len("gs://") :].partition("/")[0]

    @property
    def _prefix(self) -> str:
        return self.url[len("gs://") :].partition("/")[2]

    def _url_of(self, key: str) -> str:
        return f"gs://{self._bucket}/{key}"

    # -- asking ------------------------------------------------------------------------------------------------------

    def _as_allowed(self, url: str, action: Callable[[Bucket], T]) -> T:
        """`action(bucket)` as the first of anonymous and logged in that is let in; google's exceptions become ours."""
        door = self._door.get(lambda: Door(self.options))
        refusal: FetchError | None = None
        for login in door.order():
            try:
                client = door.client(login)
                if client is None:
                    continue
                result = action(client.bucket(self._bucket, user_project=self.options.user_project))
            except Exception as error:
                failure = translated(error, url, login=login)
                if failure is None:
                    raise
                if not isinstance(failure, ForbiddenError):
                    raise failure from error
                refusal = failure
                refusal.__cause__ = error
                continue
            door.opened_as = login
            return result
        if refusal is None:
            message = f"{url}: no credentials to log in with"
            refusal = ForbiddenError(message, hint=_CLOSED)
        raise refusal

    def _listing(self, folder: str) -> tuple[Objects, Names]:
        prefix = joined(self._prefix, checked_path(folder))
        url = self._url_of(prefix) if prefix else self.url
        ask = partial(_list_page_by_page, prefix=f"{prefix}/" if prefix else "", options=self.options)
        blobs, prefixes = retrying(lambda: self._as_allowed(url, ask), url=url, options=self.options)
        if prefix and not blobs and not prefixes:
            message = f"{url}: the bucket holds nothing there"
            raise ObjectNotFoundError(
                message, hint="check the spelling; the mirror must have the provider's own layout"
            )
        objects = (_described(blob, self._url_of(blob.name)) for blob in blobs)
        names = (found.rstrip("/").rpartition("/")[2] for found in prefixes)
        # A key 'folder/' is the mark that some tools leave for an empty folder; '..' is nobody's file.
        return (
            sorted((obj for obj in objects if is_plain_name(obj.name)), key=lambda obj: obj.name),
            sorted(name for name in names if is_plain_name(name)),
        )

    def _why_missing(self, obj: RemoteObject, key: str, error: ObjectNotFoundError) -> FetchError:
        """A generation that is gone is 404 too: tell 'replaced' from 'removed'."""
        if obj.version is None:
            return error
        try:
            now = self._describe(key)
        except FetchError:
            return error
        if now.version == obj.version:
            return error
        message = f"{obj.url} was replaced while it was being read: generation {obj.version} is {now.version} now"
        return ObjectChangedError(message, hint="start again: what was fetched of the old one is of no use")


# -- one request each, in the client's words -------------------------------------------------------------------------


def _timeout(options: FetchOptions) -> tuple[float, float]:
    return (options.connect_timeout, options.silence_timeout)


def _reload(bucket: Bucket, *, key: str, url: str, options: FetchOptions) -> RemoteObject:
    blob = bucket.blob(key)
    blob.reload(timeout=_timeout(options), retry=None)
    return _described(blob, url)


def _list_page_by_page(bucket: Bucket, *, prefix: str, options: FetchOptions) -> tuple[list[Blob], set[str]]:
    pages = bucket.client.list_blobs(
        bucket, prefix=prefix or None, delimiter="/", fields=_FIELDS, timeout=_timeout(options), retry=None
    )
    blobs = list(pages)
    return blobs, set(pages.prefixes)


def _download(bucket: Bucket, *, key: str, obj: RemoteObject, sink: _Sink, start: int, options: FetchOptions) -> None:
    generation = int(obj.version) if obj.version is not None else None
    blob = bucket.blob(key, generation=generation)
    # Raw: the bytes as stored, also of objects stored with gzip encoding. Checksums and retries are ours.
    blob.download_to_file(
        sink,
        start=start,
        end=start + sink.wanted - 1,
        raw_download=True,
        checksum=None,
        timeout=_timeout(options),
        retry=None,
    )
    served = blob.generation
    if generation is not None and served is not None and int(served) != generation:
        message = f"{obj.url} was replaced while it was being read: generation {generation} is {served} now"
        raise ObjectChangedError(message, hint="start again: what was fetched of the old one is of no use")


def _described(blob: Blob, url: str) -> RemoteObject:
    checksums = {"crc32c": hex_of_base64(blob.crc32c or ""), "md5": hex_of_base64(blob.md5_hash or "")}
    return RemoteObject(
        url=url,
        name=blob.name.rpartition("/")[2],
        size=blob.size,
        checksums={name: value for name, value in checksums.items() if value},
        version=str(blob.generation) if blob.generation is not None else None,
    )


class _Sink:
    """The file object the client writes one range to; keeps what arrived when the connection breaks."""

    def __init__(self, url: str, wanted: int) -> None:
        self.wanted = wanted
        self.size = 0
        self._url = url
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self.size += len(data)
        if self.size > self.wanted:
            message = f"{self._url}: asked for {self.wanted} bytes, the server sends more"
            raise FetchError(message, hint="the server does not know byte ranges: use another mirror (--mirror)")
        self._parts.append(data)
        return len(data)

    def pieces(self) -> Iterator[bytes]:
        """What was written, in pieces of about PIECE bytes; each is let go of as it is handed out."""
        parts, self._parts = self._parts[::-1], []
        while parts:
            batch, size = [], 0
            while parts and size < PIECE:
                batch.append(parts.pop())
                size += len(batch[-1])
            yield b"".join(batch)


def translated(error: Exception, url: str, *, login: bool) -> FetchError | UsageError | None:
    """Our error for an exception of the google client; None for one that is none of theirs."""
    import google.auth.exceptions
    from google.api_core.exceptions import GoogleAPICallError

    if isinstance(error, GoogleAPICallError):
        said = _said(error.response)
        headers = getattr(error.response, "headers", None) or {}
        status = int(error.code or 500)
        if status == 400 and "requester pays" in str(error).lower():
            return ForbiddenError(f"{url}: readers of this bucket pay", hint="give --user-project PROJECT")
        if status == 416:
            message = f"{url} was replaced while it was being read: it is shorter now"
            return ObjectChangedError(message, hint="start again: what was fetched of the old one is of no use")
        failure = status_error(status, url, headers, said=said)
        if isinstance(failure, ForbiddenError):
            failure.hint = _CLOSED
        return failure
    if isinstance(error, google.auth.exceptions.TransportError):
        return transient(f"{url}: could not log in to Google ({reason(error)})")
    if isinstance(error, google.auth.exceptions.GoogleAuthError):
        # Refused (401), the client tries to renew its credentials, which an anonymous one cannot.
        said = f"could not log in to Google ({error})" if login else "the bucket is not open to anonymous readers"
        return ForbiddenError(f"{url}: {said}", hint=_CLOSED)
    return network_error(error, url)


def _said(response: Any) -> str:
    """The server's explanation: JSON from one half of the API, a line of text from the other."""
    try:
        return str(response.json()["error"]["message"])
    except (AttributeError, KeyError, TypeError, ValueError):
        text = str(getattr(response, "text", "")).strip()
        return text if len(text) < 200 and "\n" not in text and "<" not in text else ""
