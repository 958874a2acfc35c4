"""A location in a Google Cloud Storage bucket, read with google-cloud-storage.

Requests are anonymous first. If access is denied, they use the application-default credentials, if there are any.
The client supports STORAGE_EMULATOR_HOST.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ...errors import FetchError, ForbiddenError, ObjectNotFoundError, TransientFetchError, UsageError
from .location import (
    CONNECTIONS,
    Location,
    Names,
    Objects,
    PerProcess,
    RemoteObject,
    check_endpoint,
    check_first,
    check_path,
    hex_of_base64,
    is_plain_name,
    join_path,
    require_inside,
    split_ranges,
    stated_size,
    without_login,
)
from .retries import (
    MISSING,
    NO_RANGES,
    FetchOptions,
    malformed,
    network_error,
    reason,
    replaced,
    status_error,
    transient,
)

if TYPE_CHECKING:
    from google.cloud.storage import Blob, Bucket, Client
    from requests import Response


T = TypeVar("T")

PIECE = 1 << 20

_FIELDS = "items(name,size,crc32c,md5Hash,generation),prefixes,nextPageToken"

_DENIED = (
    "use a mirror (--mirror); if you have access, run `gcloud auth application-default login`; "
    "a requester-pays bucket needs --user-project"
)


@dataclass(frozen=True)
class GcsLocation(Location):
    """A `Location` in a bucket: every object whose key starts with the prefix; '/' in the keys separates folders."""

    _clients: PerProcess[Clients] = field(default_factory=PerProcess, init=False, repr=False, compare=False)

    @classmethod
    def from_url(cls, url: str, options: FetchOptions) -> GcsLocation:
        bucket, _, prefix = url[len("gs://") :].partition("/")
        if not bucket or "@" in bucket:
            message = f"{without_login(url)}: no bucket in the URL"
            raise UsageError(message, hint="give gs://bucket or gs://bucket/folder")
        return cls("gs://" + join_path(bucket, check_path(prefix)), options)

    def open(self, obj: RemoteObject, offset: int = 0) -> Generator[bytes, None, None]:
        require_inside(obj, self.url)
        if obj.size is None:
            obj = self._describe(obj)
        for start, length in split_ranges(obj, offset):
            yield from self._range(obj, start, length)

    def _read_once(self, obj: RemoteObject, start: int, length: int) -> bytes:
        return b"".join(self._range(obj, start, length))

    # -- requests ----------------------------------------------------------------------------------------------------

    def _describe(self, obj: RemoteObject) -> RemoteObject:
        def reload(bucket: Bucket) -> RemoteObject:
            blob = bucket.blob(_key(obj.url))
            blob.reload(timeout=self.options.timeouts, retry=None)
            return _to_object(blob, obj.url)

        return self._call(obj.url, reload)

    def _listing(self, url: str) -> tuple[Objects, Names]:
        prefix = f"{_key(url)}/" if _key(url) else ""

        def list_page_by_page(bucket: Bucket) -> tuple[Objects, Names]:
            listing = bucket.client.list_blobs(
                bucket, prefix=prefix or None, delimiter="/", fields=_FIELDS, timeout=self.options.timeouts, retry=None
            )
            objects = [_to_object(blob, f"gs://{self._bucket}/{blob.name}") for blob in listing]
            return objects, [*listing.prefixes]

        objects, folders = self._call(url, list_page_by_page)
        if prefix and not objects and not folders:
            raise ObjectNotFoundError(f"{url}: no such folder", hint=MISSING)
        # Some tools mark an empty folder by a key 'folder/'. Names such as '..' are not plain and are omitted.
        names = (folder.removeprefix(prefix).removesuffix("/") for folder in folders if folder.startswith(prefix))
        direct = (obj for obj in objects if _key(obj.url) == prefix + obj.name and is_plain_name(obj.name))
        return sorted(direct, key=lambda obj: obj.name), sorted(filter(is_plain_name, names))

    def _range(self, obj: RemoteObject, start: int, length: int) -> Iterator[bytes]:
        """`length` bytes from `start` by one request; if it fails, yields the bytes received before raising the error."""
        sink = _Sink(obj.url, length)
        generation = int(obj.version) if obj.version is not None else None

        def download(bucket: Bucket) -> None:
            blob = bucket.blob(_key(obj.url), generation=generation)
            # Raw: the bytes as stored, also of objects with gzip encoding. rbdata verifies checksums and retries itself.
            blob.download_to_file(
                sink,
                start=start,
                end=start + length - 1,
                raw_download=True,
                checksum=None,
                timeout=self.options.timeouts,
                retry=None,
            )
            received = blob.generation
            if generation is not None and received is not None and int(received) != generation:
                raise replaced(obj.url, f"generation {received} instead of {generation}")

        failure: TransientFetchError | None = None
        try:
            self._call(obj.url, download)
        except ObjectNotFoundError as error:
            raise self._explain_missing(obj, error) from error
        except TransientFetchError as error:
            failure = error
        yield from sink.pieces()
        if failure is None and sink.size < length:
            failure = transient(f"{obj.url}: connection lost after {sink.size} of {length} bytes")
        if failure is not None:
            raise failure

    def _call(self, url: str, action: Callable[[Bucket], T]) -> T:
        """`action(bucket)`, anonymous or logged in, whichever has access; Google's exceptions are translated."""
        clients = self._clients.get(lambda: Clients(self.options))
        denied: FetchError = ForbiddenError(f"{url}: no Google credentials found", hint=_DENIED)
        for login in clients.order():
            try:
                client = clients.get(login)
                if client is None:
                    continue
                result = action(client.bucket(self._bucket, user_project=self.options.user_project))
            except Exception as error:
                # Other exceptions of the client come from responses that are not Google's: an empty body, other JSON.
                failure = translate_error(error, url, login=login) or malformed(error, url)
                if not isinstance(failure, ForbiddenError):
                    raise failure from error
                denied = failure
                denied.__cause__ = error
            else:
                clients.last_login = login
                return result
        raise denied

    def _explain_missing(self, obj: RemoteObject, error: ObjectNotFoundError) -> FetchError:
        """Distinguish replaced from removed objects: both are 404."""
        with suppress(FetchError):
            if obj.version is not None and (now := self._describe(obj).version) != obj.version:
                return replaced(obj.url, f"generation {now} instead of {obj.version}")
        return error

    @property
    def _bucket(self) -> str:
        return self.url[len("gs://") :].partition("/")[0]


def _key(url: str) -> str:
    return url[len("gs://") :].partition("/")[2]


def _to_object(blob: Blob, url: str) -> RemoteObject:
    checksums = {"crc32c": hex_of_base64(blob.crc32c or ""), "md5": hex_of_base64(blob.md5_hash or "")}
    return RemoteObject(
        url=url,
        name=blob.name.rpartition("/")[2],
        size=stated_size(blob.size),
        checksums={name: value for name, value in checksums.items() if value},
        version=str(blob.generation) if blob.generation is not None else None,
    )


class _Sink:
    """The file that the client writes a range to; keeps the bytes received when the connection breaks."""

    def __init__(self, url: str, wanted: int) -> None:
        self._url, self._wanted, self.size = url, wanted, 0
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self.size += len(data)
        if self.size > self._wanted:
            raise FetchError(f"{self._url}: requested {self._wanted} bytes, received more", hint=NO_RANGES)
        self._parts.append(data)
        return len(data)

    def pieces(self) -> Iterator[bytes]:
        """The bytes received, in pieces of about PIECE bytes; each is released when it is yielded."""
        parts, self._parts = self._parts[::-1], []
        while parts:
            batch, size = [], 0
            while parts and size < PIECE:
                batch.append(parts.pop())
                size += len(batch[-1])
            yield b"".join(batch)


def translate_error(error: Exception, url: str, *, login: bool) -> FetchError | UsageError | None:
    """rbdata's error for an exception of the Google client or the network; None for other exceptions."""
    import google.auth.exceptions
    from google.api_core.exceptions import GoogleAPICallError

    if isinstance(error, GoogleAPICallError):
        headers = getattr(error.response, "headers", None) or {}
        status = int(error.code or 500)
        if status == 400 and "requester pays" in str(error).lower():
            return ForbiddenError(f"{url}: the bucket is requester-pays", hint="give --user-project PROJECT")
        if status == 416:
            return replaced(url, "it became shorter")
        failure = status_error(status, url, headers, explanation=_explanation(error.response))
        if isinstance(failure, ForbiddenError):
            failure.hint = _DENIED
        return failure
    if isinstance(error, google.auth.exceptions.TransportError):
        return transient(f"{url}: could not log in to Google ({reason(error)})")
    if isinstance(error, google.auth.exceptions.GoogleAuthError):
        # After a 401 the client tries to renew its credentials; an anonymous client has none.
        cause = f"could not log in to Google ({error})" if login else "access denied to anonymous readers"
        return ForbiddenError(f"{url}: {cause}", hint=_DENIED)
    return network_error(error, url)


def _explanation(response: Any) -> str:
    """The server's explanation: JSON from one part of the API, a line of text from the other; '' for anything else."""
    try:
        return str(response.json()["error"]["message"])
    except (AttributeError, KeyError, TypeError, ValueError):
        text = str(getattr(response, "text", "")).strip()
        return text if len(text) < 200 and "\n" not in text and "<" not in text else ""


# -- clients ------------------------------------------------------------------------------------------------------------


def may_have_credentials() -> bool:
    """Whether application-default credentials may exist.

    google.auth itself can take many seconds to tell on a machine outside Google's cloud, as it looks for a metadata
    server on the network.
    """
    if any(os.environ.get(name) for name in ("GOOGLE_APPLICATION_CREDENTIALS", "K_SERVICE", "GAE_ENV")):
        return True
    folder = os.environ.get("CLOUDSDK_CONFIG")
    config = Path(folder) if folder else Path(os.path.expanduser("~/.config/gcloud"))  # noqa: PTH111
    if (config / "application_default_credentials.json").is_file():
        return True
    try:
        return Path("/sys/class/dmi/id/product_name").read_text().startswith("Google")
    except OSError:
        return False


class Clients:
    """The clients of one process, and which of them last had access."""

    def __init__(self, options: FetchOptions) -> None:
        self._options = options
        self._clients: dict[bool, Client | None] = {}
        self.last_login: bool | None = None

    def order(self) -> tuple[bool, ...]:
        """Whether to log in: what to try, in order. With a user_project, which is billed, logged in first."""
        if self._options.anonymous != "auto":
            return (not self._options.anonymous,)
        first = bool(self._options.user_project) if self.last_login is None else self.last_login
        return first, not first

    def get(self, login: bool) -> Client | None:
        """The client; None if there are no credentials, unless the options demand a login."""
        if login not in self._clients:
            required = self._options.anonymous is False
            self._clients[login] = make_client(login) if not login or required or may_have_credentials() else None
        return self._clients[login]


def _check_range(response: Response, **_: object) -> None:
    """Raise ValueError for a response with another range than requested, which the client would accept."""
    asked = response.request.headers.get("Range", "")
    if asked and response.status_code in (200, 206):
        check_first(response.status_code, response.headers, int(asked.removeprefix("bytes=").partition("-")[0]))


def make_client(login: bool, access: str = "read_only") -> Client:
    """A client: anonymous, or logged in with read or write ``access`` (``read_only``, ``read_write``)."""
    from google.cloud import storage

    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    if emulator:
        check_endpoint(emulator, "STORAGE_EMULATOR_HOST")
    if login:
        import google.auth

        scope = f"https://www.googleapis.com/auth/devstorage.{access}"
        credentials, project = google.auth.default(scopes=[scope])
        client = storage.Client(project=project or "<none>", credentials=credentials)
    else:
        client = storage.Client.create_anonymous_client()
    from requests.adapters import HTTPAdapter

    for scheme in ("https://", "http://"):
        client._http.mount(scheme, HTTPAdapter(pool_maxsize=CONNECTIONS))
    client._http.hooks["response"].append(_check_range)
    # From release 3.13 on, the client requests the bucket's metadata in a background thread before every call, for
    # telemetry that rbdata does not use. Anonymous readers are denied that, so it would be requested every time.
    if hasattr(client, "_bucket_metadata_cache"):
        client._bucket_metadata_cache = None
    return client
