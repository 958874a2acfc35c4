"""Bytes that arrive in pieces, read by exact counts: what formats without an index are parsed with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...errors import CorruptSourceError


class ByteReader:
    """Reads a stream once and in order. ``name`` is what errors call it; ``position`` counts the bytes read so far."""

    def __init__(self, pieces: Iterable[bytes], name: str) -> None:
        self._source = iter(pieces)
        self._rest = memoryview(b"")
        self.name = name
        self.position = 0

    def pieces(self, count: int) -> Iterator[memoryview]:
        """Exactly ``count`` bytes, in pieces as they arrive. Raises CorruptSourceError where the stream ends before."""
        while count:
            if not len(self._rest):
                self._rest = memoryview(next(self._source, b""))
                if not len(self._rest):
                    raise CorruptSourceError(f"{self.name} is cut short: {count} bytes are missing", hint=_REFETCH)
            piece = self._rest[:count]
            self._rest = self._rest[len(piece) :]
            self.position += len(piece)
            count -= len(piece)
            yield piece

    def take(self, count: int) -> bytes:
        """Exactly ``count`` bytes; memory follows what arrives. Raises CorruptSourceError where the stream ends before."""
        if count <= len(self._rest):
            data = bytes(self._rest[:count])
            self._rest = self._rest[count:]
            self.position += count
            return data
        return b"".join(map(bytes, self.pieces(count)))

    def skip(self, count: int) -> None:
        """Leave out ``count`` bytes. Raises CorruptSourceError where the stream ends before."""
        for _ in self.pieces(count):
            pass

    def rest(self) -> Iterator[memoryview]:
        """Whatever is left."""
        if len(self._rest):
            yield self._rest
            self._rest = memoryview(b"")
        yield from (memoryview(piece) for piece in self._source)


_REFETCH = "the copy at the source or mirror is damaged; try another mirror"
