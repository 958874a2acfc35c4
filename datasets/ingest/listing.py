"""What a provider's remote holds: asked for once, and kept with a date, so that it can be looked at without a network.

The answer is kept below the root in ``.remote/<source>-<crc32c of the remote>.json``:

    {"format": 1, "remote": url, "date": UTC, "datasets": [{"name", "episodes", "steps", "bytes"}, ...]}

with null for what the remote does not state, or what would be too much to ask for.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ... import settings
from ...storage.checksums import crc32c
from ...storage.durable import read_plain, write_atomically

FOLDER, FORMAT = ".remote", 1
#: Bytes; the listing of thousands of datasets has less than one MB.
_LARGEST = 1 << 28


@dataclass(frozen=True)
class RemoteDataset:
    """One dataset at a remote; what is not known is None."""

    name: str
    episodes: int | None = None
    steps: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class RemoteListing:
    """What a remote held at a date (``YYYY-MM-DDTHH:MM:SSZ``)."""

    remote: str
    date: str
    datasets: tuple[RemoteDataset, ...]


def kept(source: str, remote: str, root: Path | None = None) -> RemoteListing | None:
    """The listing that is kept below a root; None where there is none, or one that cannot be read."""
    try:
        record: Any = json.loads(read_plain(_path(source, remote, root), _LARGEST))
        if record["format"] != FORMAT or record["remote"] != remote:
            return None
        datasets = tuple(RemoteDataset(**entry) for entry in record["datasets"])
        return RemoteListing(remote, str(record["date"]), datasets)
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None  # not there, or of another time: it is asked for again


def keep(source: str, remote: str, datasets: Iterable[RemoteDataset], root: Path | None = None) -> RemoteListing:
    """Keep what a remote just answered, as of now; returns the listing."""
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    listing = RemoteListing(remote, date, tuple(sorted(datasets, key=lambda dataset: dataset.name)))
    path = _path(source, remote, root)
    record = {"format": FORMAT, **asdict(listing)}
    with contextlib.suppress(OSError):  # a root that cannot be written to is no reason not to answer
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(record, indent=1).encode())
    return listing


def _path(source: str, remote: str, root: Path | None) -> Path:
    return settings.root(root) / FOLDER / f"{source}-{crc32c(remote.encode())}.json"
