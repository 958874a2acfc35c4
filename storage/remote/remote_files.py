"""What the cache needs of the place where a dataset lies."""

from __future__ import annotations

from typing import Protocol


class RemoteFiles(Protocol):
    """The files of one version of a dataset, by their paths in its folder. Picklable; used by several threads."""

    @property
    def url(self) -> str:
        """Where the dataset lies, without credentials."""

    def read(self, path: str, start: int, stop: int) -> bytes:
        """Bytes ``start..stop-1`` of a file, all of them, with retries.

        Raises ObjectChangedError where the file is not that of this version any more, and the other fetch errors.
        """

    def check(self) -> None:
        """Raise ObjectChangedError if the dataset was replaced since this version was opened."""
