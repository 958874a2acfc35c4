"""Reads and writes remote objects: listings, byte streams, sizes, checksums, versions, retries, resumption, uploads.

Read in this order: `retries` (options, errors, waits), `location` (objects, locations, the file system), `transports` (chosen
by URL) and one transport (`http`, `gcs`), `reading` (every byte exactly once, across failures and processes), `upload`.
Importing this package is cheap: transports are imported when a location is opened.
"""

from __future__ import annotations

from .location import Location as Location
from .location import RemoteObject as RemoteObject
from .reading import Readahead as Readahead
from .reading import Verifier as Verifier
from .reading import fetch_to_file as fetch_to_file
from .reading import pin as pin
from .reading import read_all as read_all
from .reading import resolve as resolve
from .reading import stream as stream
from .retries import FetchOptions as FetchOptions
from .retries import Retry as Retry
from .transports import open_location as open_location
