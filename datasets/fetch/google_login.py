"""Clients of Google Cloud Storage: anonymous, or with the application-default credentials."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from .headers import check_first
from .location import CONNECTIONS, FetchOptions, check_endpoint

if TYPE_CHECKING:
    from google.cloud.storage import Client
    from requests import Response


def login_order(options: FetchOptions) -> tuple[bool, ...]:
    """Whether to log in: the order to try. With a user_project, which is billed, logged in first."""
    if options.anonymous is True:
        return (False,)
    if options.anonymous is False:
        return (True,)
    return (True, False) if options.user_project else (False, True)


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
    """The clients of one process, and which of them had access last."""

    def __init__(self, options: FetchOptions) -> None:
        self._options = options
        self._clients: dict[bool, Client | None] = {}
        self.last_login: bool | None = None

    def order(self) -> tuple[bool, ...]:
        order = login_order(self._options)
        return order if self.last_login is None else tuple(sorted(order, key=lambda login: login != self.last_login))

    def get(self, login: bool) -> Client | None:
        """The client; None if there are no credentials, unless the options demand a login."""
        if login not in self._clients:
            required = self._options.anonymous is False
            self._clients[login] = make_client(login) if not login or required or may_have_credentials() else None
        return self._clients[login]


def _check_range(response: Response, **_: object) -> None:
    """Raise ValueError for an answer of another range than the request's: the client takes any."""
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
    from .least_rate import PacedAdapter

    for scheme in ("https://", "http://"):
        client._http.mount(scheme, PacedAdapter(pool_maxsize=CONNECTIONS))
    client._http.hooks["response"].append(_check_range)
    # From release 3.13 on, the client requests the bucket's metadata in a background thread before every call, for
    # telemetry that rbdata does not use. Anonymous readers are denied that, so it would be requested every time.
    if hasattr(client, "_bucket_metadata_cache"):
        client._bucket_metadata_cache = None
    return client
