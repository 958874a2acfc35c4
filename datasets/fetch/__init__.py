"""Where bytes come from: listing, byte streams at an offset, sizes, checksums, versions, retries and resumption.

Read in this order: `location` (the words), one transport (`directory`, `http`, `gcs`), `retry`, `checksum`, `stream`
(every byte exactly once, whatever the network does), `to_file` (the same into a file, across processes), `readahead`.

Importing this costs next to nothing: the transports, and with them requests and google, load when a place is opened.
"""

from __future__ import annotations

from .location import FetchOptions, Location, RemoteObject, open_location
from .readahead import Readahead, readahead
from .retry import Retry
from .stream import pinned, read_all, resolve, stream
from .to_file import fetch_to_file
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
    "pinned",
    "read_all",
    "readahead",
    "resolve",
    "stream",
]
