"""Jobs whose data are one raw file: fetched whole, checked, read in place.

Where the provider states no checksum, the one computed is recorded in the manifest; replacing the dataset then requires the
same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ...errors import ChecksumError
from ...storage.durable import open_plain
from ..fetch import RemoteObject
from .protocol import Job

Digest = TypeVar("Digest", bound=Any)

ACCEPT = "if it was replaced on purpose, take it with --accept-changed"


def hash_file(path: Path, digest: Digest) -> Digest:
    """Add the bytes of a whole file to a digest (one of hashlib, `Crc32c`, `Verifier`); returns the digest."""
    with open_plain(path, "rb", follow=True) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest


class WholeFileJob(Job):
    """A job with one raw file. ``item`` is the object, ``path`` the file, set by `inspect_files`."""

    item: RemoteObject
    path: Path
    #: Accept a file that is not the one recorded.
    accept_changed: bool
    _recorded: str | None = None

    def files(self) -> list[RemoteObject]:
        return [self.item]

    def set_previous_objects(self, objects: Sequence[Mapping[str, Any]]) -> None:
        same = [entry.get("sha256") for entry in objects if entry.get("name") == self.item.name]
        self._recorded = next((str(sha256) for sha256 in same if sha256), None)

    def check_recorded(self, sha256: str) -> None:
        """Raise ChecksumError for a file that is not the one that the dataset to be replaced was made from."""
        if self._recorded in (None, sha256) or self.accept_changed:
            return
        message = (
            f"{self.item.url} is not the file this dataset was made from before: its sha256 is {sha256}, "
            f"not {self._recorded}"
        )
        raise ChecksumError(message, hint=ACCEPT)
