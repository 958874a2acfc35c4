"""Reads and writes remote objects: listings, byte streams, sizes, checksums, versions, retries, resumption, uploads.

Read in this order: `location` (the vocabulary), `base_location` and one transport (`directory`, `http`, `gcs`), `transports`
(by URL), `failures` (errors, retries), `stream` (every byte exactly once, across failures), `to_file` (the same into a file,
across processes), `readahead`, `upload`. Importing this package is cheap: transports are imported when a location is opened.
"""

from __future__ import annotations

from .failures import Retry as Retry
from .location import FetchOptions as FetchOptions
from .location import Location as Location
from .location import RemoteObject as RemoteObject
from .readahead import Readahead as Readahead
from .stream import Verifier as Verifier
from .stream import pin as pin
from .stream import read_all as read_all
from .stream import resolve as resolve
from .stream import stream as stream
from .to_file import fetch_to_file as fetch_to_file
from .transports import open_location as open_location
