"""A remote object as a stream that counts what it fetches."""

from __future__ import annotations

from collections.abc import Iterator

from ...storage.checksums import Crc32c
from ..fetch import Location, RemoteObject, stream


class CountedStream:
    """The bytes of a remote object, each once and in order, with what a `Block` reports of them."""

    def __init__(self, location: Location, obj: RemoteObject) -> None:
        self.fetched = self.retries = 0
        self._location, self._obj, self._crc32c = location, obj, Crc32c()

    def __iter__(self) -> Iterator[bytes]:
        for piece in stream(self._location, self._obj, on_retry=self._count_retry):
            self.fetched += len(piece)
            self._crc32c.update(piece)
            yield piece

    @property
    def crc32c(self) -> str:
        """The crc32c of all bytes fetched so far."""
        return self._crc32c.hexdigest()

    def _count_retry(self, _: object) -> None:
        self.retries += 1
