"""Reads and writes remote objects: listings, byte streams, sizes, checksums, versions, retries, resumption, uploads.

Read in this order: `location` (the vocabulary), one transport (`directory`, `http`, `gcs`), `transports` (by URL),
`retry`, `verifier`, `stream` (every byte exactly once, across failures), `to_file` (the same into a file, across
processes), `readahead`. Importing this package is cheap: transports are imported when a location is opened.
"""

from __future__ import annotations

from .location import FetchOptions, Location, RemoteObject
from .readahead import Readahead, readahead
from .retry import Retry
from .stream import pin, read_all, resolve, stream
from .to_file import fetch_to_file
from .transports import open_location
from .verifier import Verifier

__all__ = [
    "FetchOptions",
    "Location",
    "Readahead",
    "RemoteObject",
    "Retry",
    "Verifier",
    "fetch_to_file",
    "open_location",
    "pin",
    "read_all",
    "readahead",
    "resolve",
    "stream",
]
