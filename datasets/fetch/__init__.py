"""Reads and writes remote objects: listings, byte streams, sizes, checksums, versions, retries, resumption, uploads.

Read in this order: `retries` (options, errors, waits), `location` (objects, and what every transport does), `open_location`
(the transport of a URL) and one transport (`directory`, `http`, `gcs`), `reading` (every byte exactly once, across failures
and processes), `upload`. Importing this package is cheap: transports, and with them requests and google-cloud-storage, are
imported when a location is opened.
"""

from __future__ import annotations

import os
from pathlib import Path

from ...errors import ObjectNotFoundError
from .directory import DirectoryLocation
from .location import Location as Location
from .location import RemoteObject as RemoteObject
from .reading import Verifier as Verifier
from .reading import fetch_to_file as fetch_to_file
from .reading import pin as pin
from .reading import read_ahead as read_ahead
from .reading import read_all as read_all
from .reading import resolve as resolve
from .reading import stream as stream
from .retries import FetchOptions as FetchOptions
from .retries import Retry as Retry


def open_location(url: str | os.PathLike[str], *, options: FetchOptions | None = None) -> Location:
    """The location that a path or URL names. Touches neither disk nor network.

    Accepts ``/path``, ``~/path``, ``file://``, ``http(s)://``, ``gs://``, ``hf://``, and with the extra ``remote`` the
    schemes of fsspec (``s3://``). Raises UsageError for anything else, MissingExtraError if a package is missing.
    """
    text = os.fspath(url)
    options = options or FetchOptions()
    scheme, separator, _ = text.partition("://")
    scheme = scheme.lower() if separator else "file"
    if scheme == "file":
        return DirectoryLocation.from_url(text, options)
    if scheme in ("http", "https"):
        from .http import HttpLocation

        return HttpLocation.from_url(text, options)
    if scheme == "gs":
        from .gcs import GcsLocation

        return GcsLocation.from_url(text, options)
    if scheme == "hf":
        from .hugging_face import HubLocation

        return HubLocation.from_url(text, options)
    from .fsspec_store import FsspecLocation

    return FsspecLocation.from_url(text, options)


def open_mirror(url: str, *, options: FetchOptions | None = None) -> Location:
    """`open_location` for a location named by a user: also raises ObjectNotFoundError for a folder that does not exist."""
    location = open_location(url, options=options)
    if location.url.startswith("/") and not Path(location.url).exists():
        raise ObjectNotFoundError(f"no such folder: {url}", hint="check the spelling of the mirror")
    return location


def open_raw(path: Path, options: FetchOptions | None = None) -> Location:
    """A folder of raw files, or a single raw file, as a location."""
    folder, only = (path.parent, path.name) if path.is_file() else (path, "")
    return DirectoryLocation(str(folder.resolve()), options or FetchOptions(), only)
