"""A location in a Google Cloud Storage bucket, with google-cloud-storage.

Requests are anonymous first. If access is denied, they use the application-default credentials, if there are any.
The client supports STORAGE_EMULATOR_HOST.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ...errors import FetchError, ForbiddenError, ObjectNotFoundError, RbdataError, TransientFetchError, UsageError
from .location import (
    CONNECTIONS,
    Names,
    Objects,
    OnBytes,
    PerProcess,
    RemoteObject,
    StoreLocation,
    check_first,
    check_path,
    hex_of_base64,
    join_path,
    without_login,
)
from .retries import MISSING, FetchOptions, fetch_error, reason, replaced, transient

if TYPE_CHECKING:
    from google.cloud.storage import Blob, Bucket, Client
    from requests import Response

T = TypeVar("T")

#: Bytes per piece of a resumable upload; a multiple of 256 KiB.
_PIECE = 16 << 20
_FIELDS = "items(name,size,crc32c,md5Hash,generation),prefixes,nextPageToken"

_DENIED = (
    "use a mirror (--mirror); if you have access, run `gcloud auth application-default login`; "
    "a requester-pays bucket needs --user-project"
)


@dataclass(frozen=True)
class GcsLocation(StoreLocation):
    """A `Location` in a bucket: every object whose key starts with the prefix; '/' in the keys separates folders."""

    _clients: PerProcess[Clients] = field(default_factory=PerProcess, init=False, repr=False, compare=False)

    @classmethod
    def from_url(cls, url: str, options: FetchOptions) -> GcsLocation:
        bucket, _, prefix = url[len("gs://") :].partition("/")
        if not bucket or "@" in bucket:
            message = f"{without_login(url)}: no bucket in the URL"
            raise UsageError(message, hint="give gs://bucket or gs://bucket/folder")
        return cls("gs://" + join_path(bucket, check_path(prefix)), options)

    def _describe(self, obj: RemoteObject) -> RemoteObject:
        def reload(bucket: Bucket) -> RemoteObject:
            blob = bucket.blob(_key(obj.url))
            blob.reload(timeout=self.options.timeouts, retry=None)
            return _to_object(blob)

        return self._call(obj.url, reload)

    def _listing(self, url: str) -> tuple[Objects, Names]:
        prefix = f"{_key(url)}/" if _key(url) else ""

        def list_pages(bucket: Bucket) -> tuple[Objects, list[str]]:
            listing = bucket.client.list_blobs(
                bucket, prefix=prefix or None, delimiter="/", fields=_FIELDS, timeout=self.options.timeouts, retry=None
            )
            return [_to_object(blob) for blob in listing], [*listing.prefixes]

        objects, folders = self._call(url, list_pages)
        if prefix and not objects and not folders:
            raise ObjectNotFoundError(f"{url}: no such folder", hint=MISSING)
        # Some tools mark an empty folder by a key 'folder/'.
        names = [folder.removeprefix(prefix).removesuffix("/") for folder in folders if folder.startswith(prefix)]
        return [obj for obj in objects if _key(obj.url) == prefix + obj.name], names

    def _range(self, obj: RemoteObject, start: int, length: int) -> Iterator[bytes]:
        """If the request fails, yields the bytes received before it raises the error."""
        received, generation = io.BytesIO(), None if obj.version is None else int(obj.version)

        def download(bucket: Bucket) -> None:
            blob = bucket.blob(_key(obj.url), generation=generation)
            # Raw: the bytes as stored, also of objects with gzip encoding. rbdata verifies checksums and retries itself.
            blob.download_to_file(
                received,
                start=start,
                end=start + length - 1,
                raw_download=True,
                checksum=None,
                timeout=self.options.timeouts,
                retry=None,
            )

        failure: FetchError | None = None
        try:
            self._call(obj.url, download)
        except TransientFetchError as error:
            failure = error
        except ObjectNotFoundError:
            # A removed and a replaced object are both 404.
            with suppress(FetchError):
                if generation is not None and (now := self._describe(obj).version) != obj.version:
                    failure = replaced(obj.url, f"generation {now} instead of {generation}")
            if failure is None:
                raise
        yield received.getvalue()
        if failure is not None:
            raise failure

    def _write(self, source: Path, url: str, count: OnBytes) -> None:
        def send(bucket: Bucket) -> None:
            with _CountingFile(source, count) as file:
                blob = bucket.blob(_key(url), chunk_size=_PIECE)
                size = source.stat().st_size
                blob.upload_from_file(file, size=size, checksum="crc32c", timeout=self.options.timeouts)

        self._call(url, send)

    def _remove(self, url: str) -> None:
        self._call(url, lambda bucket: bucket.blob(_key(url)).delete(timeout=self.options.timeouts))

    def _call(self, url: str, action: Callable[[Bucket], T]) -> T:
        """`action(bucket)`, anonymous or logged in, whichever has access; Google's exceptions are translated."""
        clients = self._clients.get(Clients)
        bucket = self.url.removeprefix("gs://").partition("/")[0]
        first = bool(self.options.user_project) if clients.login is None else clients.login
        for login in (first, not first):
            try:
                client = clients.get(login=login)
                if client is None:
                    continue
                result = action(client.bucket(bucket, user_project=self.options.user_project))
            except Exception as error:
                failure = google_error(error, url, login=login)
                if not isinstance(failure, ForbiddenError):
                    raise failure from error
                denied = failure
                denied.__cause__ = error
            else:
                clients.login = login
                return result
        raise denied


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


def _key(url: str) -> str:
    return url.removeprefix("gs://").partition("/")[2]


def _to_object(blob: Blob) -> RemoteObject:
    checksums = {"crc32c": hex_of_base64(blob.crc32c or ""), "md5": hex_of_base64(blob.md5_hash or "")}
    return RemoteObject(
        url=f"gs://{blob.bucket.name}/{blob.name}",
        name=blob.name.rpartition("/")[2],
        size=blob.size,
        checksums={name: value for name, value in checksums.items() if value},
        version=str(blob.generation) if blob.generation is not None else None,
    )


def google_error(error: Exception, url: str, *, login: bool) -> RbdataError:
    """`fetch_error`, with what the statuses of Google's store mean."""
    from google.auth.exceptions import GoogleAuthError, TransportError

    if isinstance(error, TransportError):
        return transient(f"{url}: could not log in to Google ({reason(error)})")
    if isinstance(error, GoogleAuthError):
        # After a 401 the client tries to renew its credentials; an anonymous client has none.
        cause = f"could not log in to Google ({error})" if login else "access denied to anonymous readers"
        return ForbiddenError(f"{url}: {cause}", hint=_DENIED)
    failure = fetch_error(error, url)
    status = getattr(failure, "status", None)
    if status == 400 and "requester pays" in str(error).lower():
        return ForbiddenError(f"{url}: the bucket is requester-pays", hint="give --user-project PROJECT")
    if status == 416:
        return replaced(url, "it became shorter")
    if isinstance(failure, ForbiddenError):
        failure.hint = _DENIED
    return failure


# -- clients ------------------------------------------------------------------------------------------------------------


class Clients:
    """The clients of one process, made when they are first needed."""

    def __init__(self) -> None:
        self._clients: dict[bool, Client | None] = {}
        #: Whether the one that last had access is logged in; with a user_project, which is billed, that one is tried first.
        self.login: bool | None = None

    def get(self, *, login: bool) -> Client | None:
        """The client, logged in or anonymous; None if there are no credentials."""
        if login not in self._clients:
            self._clients[login] = make_client(login)
        return self._clients[login]


def _check_range(response: Response, **_: object) -> None:
    """Raise ValueError for a response with another range than requested, which the client would accept."""
    asked = response.request.headers.get("Range", "")
    if asked and response.status_code in (200, 206):
        check_first(response.status_code, response.headers, int(asked.removeprefix("bytes=").partition("-")[0]))


def may_have_credentials() -> bool:
    """Whether application-default credentials may exist.

    Outside Google's cloud google.auth takes up to 12 seconds to tell, and logs warnings, as it looks for a metadata server on
    the network: a bucket that denies anonymous readers, as that of DQN Replay does, would make every user wait for that.
    """
    if any(os.environ.get(name) for name in ("GOOGLE_APPLICATION_CREDENTIALS", "K_SERVICE", "GAE_ENV")):
        return True
    folder = Path(os.environ.get("CLOUDSDK_CONFIG") or "~/.config/gcloud").expanduser()
    if (folder / "application_default_credentials.json").is_file():
        return True
    try:
        return Path("/sys/class/dmi/id/product_name").read_text().startswith("Google")
    except OSError:
        return False


def make_client(login: bool) -> Client | None:
    """A client, anonymous or logged in; None if there are no credentials."""
    from google.cloud import storage
    from requests.adapters import HTTPAdapter

    if login:
        import google.auth
        from google.auth.exceptions import DefaultCredentialsError

        if not may_have_credentials():
            return None
        try:
            credentials, project = google.auth.default(scopes=["https://www.googleapis.com/auth/devstorage.read_write"])
        except DefaultCredentialsError:
            return None
        client = storage.Client(project=project or "<none>", credentials=credentials)
    else:
        client = storage.Client.create_anonymous_client()
    for scheme in ("https://", "http://"):
        client._http.mount(scheme, HTTPAdapter(pool_maxsize=CONNECTIONS))
    client._http.hooks["response"].append(_check_range)
    # From release 3.13 on, the client requests the bucket's metadata in a background thread before every call, for
    # telemetry that rbdata does not use. Anonymous readers are denied that, so it would be requested every time.
    if hasattr(client, "_bucket_metadata_cache"):
        client._bucket_metadata_cache = None
    return client
